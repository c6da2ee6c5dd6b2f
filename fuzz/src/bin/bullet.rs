//! Fuzzing target: opening a damaged pool of the engine `bullet`, its recovery, and every operation
//! afterwards. For any bytes, the result is a typed error or a store that works. No read returns what was
//! never written.
#![no_main]

use cap::Cap;
use everdram::Error;
use everdram_fuzz::choices::Choices;
use everdram_fuzz::pools::{self, Base};
use everdram_fuzz::visit::{Left, same, visit, visit_again};
use everdram_fuzz::{MEMORY_BYTES_MAX, damage};
use libfuzzer_sys::fuzz_target;
use std::alloc::System;
use std::sync::LazyLock;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_BYTES_MAX);

static BASES: LazyLock<Vec<Base>> = LazyLock::new(pools::of_bullet);

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let base = choices.of(&BASES);
    let mut left = Left::of(base);
    damage::damage(&mut left.image, base, &mut choices);
    let Ok((contents, after)) = visit(left, Some(base)) else {
        return;
    };
    match visit_again(after, &contents) {
        Ok(again) => same(&contents, &again),
        // What is behind is looked at when somebody needs it: by recovery, if the logs have changes of it
        // since.
        Err(Error::Corrupt { .. }) => {}
        Err(error) => panic!("a pool that was open is refused after a crash: {error}"),
    }
});
