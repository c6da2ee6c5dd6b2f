//! Fuzzing target: opening a damaged or forged pool of the engine `dstore` with its data file, its recovery,
//! and every operation afterwards. For any bytes of both, the result is a typed error or a store that works.
//! Of a damaged pool no read returns what was never written.
#![no_main]

use cap::Cap;
use everdram_fuzz::pools::{self, Base};
use everdram_fuzz::{MEMORY_BYTES_MAX, beside};
use libfuzzer_sys::fuzz_target;
use std::alloc::System;
use std::sync::LazyLock;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_BYTES_MAX);

/// Those with sums that hold for any bytes come second.
static BASES: LazyLock<[Vec<Base>; 2]> = LazyLock::new(|| [false, true].map(pools::of_dstore));

fuzz_target!(|input: &[u8]| beside::run(&BASES, input));
