//! Fuzzing target: opening a damaged or forged pool of the engine `dstore` with its data file, its recovery,
//! and every operation afterwards. For any bytes of both, the result is a typed error or a store that works.
//! Of a damaged pool no read returns what was never written.
#![no_main]

use cap::Cap;
use everdram::Error;
use everdram_fuzz::choices::Choices;
use everdram_fuzz::pools::{self, Base};
use everdram_fuzz::visit::{Left, same, visit, visit_again};
use everdram_fuzz::{MEMORY_BYTES_MAX, damage};
use everdram_pm::fuzzing::{forge_sums, seal_superblocks};
use libfuzzer_sys::fuzz_target;
use std::alloc::System;
use std::sync::LazyLock;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_BYTES_MAX);

/// Those with sums that hold for any bytes come second.
static BASES: LazyLock<[Vec<Base>; 2]> = LazyLock::new(|| [false, true].map(pools::of_dstore));

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let is_forged = choices.flag();
    let base = choices.of(&BASES[usize::from(is_forged)]);
    let mut left = Left::of(base);
    for _ in 0..2 {
        match choices.byte() % 3 {
            0 => {
                for file in left.files.values_mut() {
                    damage::damage_any(file, true, &mut choices);
                }
            }
            _ => damage::damage_any(&mut left.image, false, &mut choices),
        }
    }
    forge_sums(is_forged);
    if is_forged {
        seal_superblocks(&mut left.image);
    }
    live(left, (!is_forged).then_some(base));
    forge_sums(false);
});

/// The pool is opened and used, and once more after a crash. `base`: what may be read.
fn live(left: Left, base: Option<&Base>) {
    let Ok((contents, after)) = visit(left, base) else {
        return;
    };
    match visit_again(after, &contents) {
        Ok(again) if base.is_some() => same(&contents, &again),
        // What is behind a map, or in a log that was not read, is looked at when somebody needs it.
        Ok(_) | Err(Error::Corrupt { .. } | Error::Pool(_)) => {}
        Err(error) => panic!("a pool that was open is refused after a crash: {error}"),
    }
}
