//! Fuzzing target: the Redis door. The parser gets the same requests however a stream is cut into pieces; and
//! a connection to a server over the model engine gets one well-formed reply for each request, whatever it
//! asks.
#![no_main]

#[path = "../../../crates/kv/tests/support/model.rs"]
mod model;

use cap::Cap;
use everdram_fuzz::choices::Choices;
use everdram_fuzz::{MEMORY_BYTES_MAX, commands, replies};
use everdram_resp::Settings;
use everdram_resp::fuzzing::{Bench, parse};
use libfuzzer_sys::fuzz_target;
use std::alloc::System;
use std::cell::RefCell;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_BYTES_MAX);

/// What fits a socket's buffer, with room.
const STREAM_BYTES_MAX: usize = 32 << 10;

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let how = choices.byte();
    let (first, second) = (usize::from(choices.byte()), usize::from(choices.byte()));
    let stream = if how & 1 == 0 {
        choices.rest().to_vec()
    } else {
        commands::requests(&mut choices)
    };
    if stream.len() > STREAM_BYTES_MAX {
        return;
    }
    let pieces = cut(&stream, first, second);
    let authenticated = how & 6 != 6;
    let whole = parse(&[&stream], authenticated);
    assert!(
        parse(&pieces, authenticated) == whole,
        "the pieces make a difference"
    );
    run(&pieces, authenticated);
});

/// Three pieces, any of them empty.
fn cut(stream: &[u8], first: usize, second: usize) -> [&[u8]; 3] {
    let (front, rest) = stream.split_at(first.min(stream.len()));
    let (middle, back) = rest.split_at(second.min(rest.len()));
    [front, middle, back]
}

fn run(pieces: &[&[u8]], authenticated: bool) {
    BENCH.with_borrow_mut(|place| {
        let bench = place.get_or_insert_with(bench);
        let outcome = bench.run(pieces, authenticated);
        if bench.is_stopping() {
            *place = None;
        }
        match replies::count(&outcome.replies) {
            Ok(count) if outcome.complete => {
                assert_eq!(count, outcome.counted, "replies and requests")
            }
            Ok(_) => {}
            Err(_) if !outcome.complete => {}
            Err((at, what)) => {
                let around = outcome.replies.get(at..).unwrap_or_default();
                panic!(
                    "byte {at} of the replies: {what}: {}",
                    around.escape_ascii()
                );
            }
        }
    });
}

fn bench() -> Bench {
    let store = model::store(Arc::new(|| 1_000_000));
    let settings = Settings {
        port: 0,
        threads: 1,
        password: Some("1".into()),
        ..Settings::default()
    };
    Bench::new(store, settings).expect("a port is free")
}
