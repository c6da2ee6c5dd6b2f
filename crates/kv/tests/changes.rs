//! Changes of a value in one step, append and increment: an engine against the model, on each medium.

mod support;

use everdram::{EngineKind, Error, Session, test_each_engine};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::Ordering;
use support::{Bed, each_bed, seed};

test_each_engine!(
    changes_answer_as_the_model_does,
    what_a_change_makes_is_limited,
    changes_at_the_same_time_are_all_made,
);

/// Value, and expiry in milliseconds.
fn state(session: &mut Session, key: &[u8]) -> Option<(Vec<u8>, u64)> {
    let mut value = Vec::new();
    let found = session.get_into(key, &mut value).unwrap();
    found.map(|found| (value, found.expires_at_ms))
}

/// The answer of a change; errors by their kind, since each engine has its own texts.
fn answer<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::WordOutside { at, len }) => format!("no word at {at} of {len}"),
        other => format!("{:?}", other.unwrap()),
    }
}

fn changes_answer_as_the_model_does(engine: EngineKind) {
    each_bed(engine, |bed| {
        let mut random = StdRng::seed_from_u64(seed());
        let model = Bed::model(&bed.clock);
        let mut model = model.session().unwrap();
        let mut store = bed.open();
        for part in 0..3 {
            let mut engine = store.session().unwrap();
            for _ in 0..bed.scaled(300) {
                // Keys of 8 bytes with values of 16 have a fixed size in engines that support it.
                let key = format!("key-{:04}", random.random_range(0..20)).into_bytes();
                let now = bed.clock.fetch_add(1, Ordering::Relaxed);
                let told = match random.random_range(0..10) {
                    0..2 => {
                        let expiry = now + random.random_range(1..60);
                        let expiry = if random.random() { expiry } else { 0 };
                        let value =
                            vec![random.random(); [0, 8, 16, 16, 3000][random.random_range(0..5)]];
                        [&mut engine, &mut model]
                            .map(|session| answer(session.put_expiring(&key, &value, expiry)))
                    }
                    2 => [&mut engine, &mut model].map(|session| answer(session.delete(&key))),
                    3..6 => {
                        let suffix =
                            vec![random.random(); [0, 1, 8, 700][random.random_range(0..4)]];
                        [&mut engine, &mut model]
                            .map(|session| answer(session.append(&key, &suffix)))
                    }
                    _ => {
                        let (at, by) =
                            ([0, 8, 8, 4, 16][random.random_range(0..5)], random.random());
                        [&mut engine, &mut model]
                            .map(|session| answer(session.increment(&key, at, by)))
                    }
                };
                assert_eq!(told[0], told[1]);
                assert_eq!(state(&mut engine, &key), state(&mut model, &key));
            }
            drop(engine);
            bed.verify(&store);
            store.close().unwrap();
            store = bed.open();
            let mut engine = store.session().unwrap();
            for number in 0..20 {
                let key = format!("key-{number:04}").into_bytes();
                assert_eq!(
                    state(&mut engine, &key),
                    state(&mut model, &key),
                    "part {part}"
                );
            }
        }
    });
}

fn what_a_change_makes_is_limited(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = bed.open();
        let mut session = store.session().unwrap();
        assert!(matches!(
            session.append(b"", b"x"),
            Err(Error::KeyLength(0))
        ));
        assert_eq!(session.append(b"new", b"").unwrap(), 0);
        assert_eq!(state(&mut session, b"new"), Some((Vec::new(), 0)));
        assert_eq!(session.append(b"new", b"12345678").unwrap(), 8);
        assert_eq!(session.increment(b"absent", 0, 1).unwrap(), None);
        session.put(b"word", &u64::MAX.to_le_bytes()).unwrap();
        assert_eq!(session.increment(b"word", 0, 3).unwrap(), Some(2));
        let outside = session.increment(b"word", usize::MAX - 7, 1);
        assert!(matches!(outside, Err(Error::WordOutside { len: 8, .. })));
    });
}

/// Several threads change the same keys: no change is lost.
fn changes_at_the_same_time_are_all_made(engine: EngineKind) {
    const THREADS: u64 = 3;
    each_bed(engine, |bed| {
        let store = &bed.open();
        let rounds = bed.scaled(100) as u64;
        let mut session = store.session().unwrap();
        session.put(b"counters", &[0; 16]).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut session = store.session().unwrap();
                    for _ in 0..rounds {
                        session.increment(b"counters", 8, thread + 1).unwrap();
                        session.append(b"log", &[thread as u8]).unwrap();
                    }
                });
            }
        });
        let sum = rounds * (1..=THREADS).sum::<u64>();
        assert_eq!(session.increment(b"counters", 8, 0).unwrap(), Some(sum));
        let log = session.get(b"log").unwrap().unwrap();
        for thread in 0..THREADS {
            let count = log
                .iter()
                .filter(|&&byte| u64::from(byte) == thread)
                .count();
            assert_eq!(count as u64, rounds);
        }
    });
}
