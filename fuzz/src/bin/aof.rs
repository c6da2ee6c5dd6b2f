//! Fuzzing target: what `everdram import --aof` reads, RDB files and append-only files of commands. For every
//! buffering of the input they return the same, and no length that the input announces takes memory. What is
//! written of the requests reads back unchanged.
#![no_main]

use cap::Cap;
use everdram_cli::fuzzing::{read_aof, read_rdb, write_aof};
use everdram_fuzz::MEMORY_BYTES_MAX;
use libfuzzer_sys::fuzz_target;
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_BYTES_MAX);

fuzz_target!(|input: &[u8]| {
    let Some((&how, bytes)) = input.split_first() else {
        return;
    };
    let capacity = 1 + usize::from(how >> 1) % 16;
    if how & 1 == 0 {
        // A head that is right, so that no input is spent on it.
        let bytes = [&b"REDIS0010"[..], bytes].concat();
        assert!(
            read_rdb(&bytes, 1 << 16) == read_rdb(&bytes, capacity),
            "the buffer makes a difference"
        );
        return;
    }
    let whole = read_aof(bytes, 1 << 16);
    assert!(
        whole == read_aof(bytes, capacity),
        "the buffer makes a difference"
    );
    let mut text = Vec::new();
    for request in &whole.0 {
        write_aof(&mut text, request);
    }
    let (back, error) = read_aof(&text, 1 << 16);
    assert_eq!(error, None, "what was written does not read");
    assert!(back == whole.0, "what was written reads otherwise");
});
