//! Fuzzing target: opening a damaged or forged pool, viper's recovery, and every operation afterwards. For
//! any bytes, the result is a typed error or a store that works and recovers to the same state again.
#![no_main]

use cap::Cap;
use everdram_fuzz::choices::Choices;
use everdram_fuzz::pools::{self, Base};
use everdram_fuzz::visit::{Left, same, visit, visit_again};
use everdram_fuzz::{MEMORY_BYTES_MAX, damage};
use libfuzzer_sys::fuzz_target;
use std::alloc::System;
use std::sync::LazyLock;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_BYTES_MAX);

static BASES: LazyLock<Vec<Base>> = LazyLock::new(pools::all);

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let base = choices.of(&BASES);
    let mut left = Left::of(base);
    let forged = choices.flag();
    let mut ordered = true;
    if forged {
        ordered = damage::forge(&mut left.image, base, &mut choices);
    } else {
        damage::damage(&mut left.image, base, &mut choices);
    }
    let Ok((contents, after)) = visit(left, (!forged).then_some(base)) else {
        return;
    };
    let again = match visit_again(after, &contents) {
        _ if !ordered => return,
        Ok(again) => again,
        // Versions that are forged to the last one there is end with it.
        Err(error) if forged && error.to_string().contains("no store ever reaches") => return,
        Err(error) => panic!("a pool that was open is refused after a crash: {error}"),
    };
    same(&contents, &again);
});
