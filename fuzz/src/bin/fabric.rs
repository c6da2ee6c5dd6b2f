//! Fuzzing target: the door for a fabric. A client that sends what it likes, and writes where it likes, gets
//! one reply for each request or is closed; the door takes no more memory than its share, and goes on.
#![no_main]

#[path = "../../../crates/kv/tests/support/model.rs"]
mod model;

use cap::Cap;
use everdram::password::Password;
use everdram_fabric::Settings;
use everdram_fabric::fuzzing::{Bench, Step};
use everdram_fuzz::MEMORY_BYTES_MAX;
use everdram_fuzz::choices::Choices;
use libfuzzer_sys::fuzz_target;
use std::alloc::System;
use std::cell::RefCell;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_BYTES_MAX);

/// Most steps of a client.
const STEPS: usize = 64;

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    BENCH.with_borrow_mut(|place| {
        let bench = place.get_or_insert_with(bench);
        // Mostly the password comes first.
        let password = Step::Message {
            kind: 0,
            fields: [0; 5],
            key: &[],
            body: b"1",
        };
        let is_known = !choices.byte().is_multiple_of(8);
        let first = is_known.then_some(password);
        let mut count = 0;
        let others = std::iter::from_fn(|| {
            count += 1;
            (count <= STEPS && !choices.is_empty()).then(|| step(&mut choices))
        });
        bench.run(first.into_iter().chain(others));
    });
});

fn step<'a>(choices: &mut Choices<'a>) -> Step<'a> {
    match choices.byte() % 8 {
        0 => {
            let count = choices.below(300);
            Step::Bytes(choices.take(count))
        }
        1 => {
            let (behind, count) = (choices.number(), choices.below(100));
            Step::Write(behind, choices.take(count))
        }
        2 => {
            let count = choices.below(100);
            Step::Done(choices.take(count))
        }
        _ => {
            let kind = choices.byte();
            let fields = [(); 5].map(|()| choices.number());
            let (key, body) = (choices.below(4), choices.below(200));
            Step::Message {
                kind,
                fields,
                key: choices.take(key),
                body: choices.take(body),
            }
        }
    }
}

fn bench() -> Bench {
    let store = model::store(Arc::new(|| 1_000_000));
    let settings = Settings {
        password: Password::new(Some(b"1".to_vec())),
        ..Settings::default()
    };
    Bench::new(&store, settings).expect("a session")
}
