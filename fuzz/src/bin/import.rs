//! Fuzzing target: the readers of `everdram import`. For every buffering of the input, they return the same
//! changes and the same error. What export writes of these changes reads back unchanged.
#![no_main]

use cap::Cap;
use everdram_cli::fuzzing::{Change, Read, read_mass, read_tsv, write_mass, write_tsv};
use everdram_fuzz::MEMORY_BYTES_MAX;
use libfuzzer_sys::fuzz_target;
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_BYTES_MAX);

type Reader = fn(&[u8], usize) -> Read;
type Writer = fn(&mut Vec<u8>, &[u8], &[u8], u64);

fuzz_target!(|input: &[u8]| {
    let Some((&how, text)) = input.split_first() else {
        return;
    };
    let (read, write): (Reader, Writer) = match how & 1 {
        0 => (read_tsv, write_tsv),
        _ => (read_mass, write_mass),
    };
    let whole = read(text, 1 << 16);
    let small = read(text, 1 + usize::from(how >> 1) % 16);
    // Relative expiries count from the moment of reading.
    let stripped = |read: &Read| {
        let changes = read
            .0
            .iter()
            .map(|(key, value, _)| (key.clone(), value.clone()));
        (changes.collect::<Vec<_>>(), read.1.clone())
    };
    assert!(
        stripped(&whole) == stripped(&small),
        "the buffer makes a difference"
    );
    comes_back(&whole.0, read, write);
});

fn comes_back(changes: &[Change], read: Reader, write: Writer) {
    let put = |change: &&Change| change.1.is_some();
    let puts: Vec<Change> = changes.iter().filter(put).cloned().collect();
    let mut text = Vec::new();
    for (key, value, expires_at_ms) in &puts {
        let value = value.as_deref().unwrap_or_default();
        write(&mut text, key, value, expires_at_ms.unwrap_or(0));
    }
    let (back, error) = read(&text, 1 << 16);
    assert_eq!(error, None, "what was written does not read");
    assert!(back == puts, "what was written reads otherwise");
}
