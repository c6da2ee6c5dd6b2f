//! The promises of `EngineSession`, the same operations against an engine and the model, on each medium.

mod support;

use everdram::engine::{BatchOp, Change, Scope};
use everdram::{EngineKind, Error, Session, Store, test_each_engine};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::keys::independent_keys;
use support::{Bed, Counted, each_bed, seed};

test_each_engine!(
    one_session_answers_as_the_model_does,
    a_reopened_store_holds_what_it_held,
    sizes_outside_the_limits_are_refused,
    conditional_puts_look_at_the_version,
    submitted_writes_appear_together_and_are_the_sessions_own_before,
    an_iteration_meets_every_key_that_stays_while_the_store_grows,
    counters_lose_no_update_between_threads,
    transfers_keep_their_sum_for_every_reader,
    reclamation_gives_space_back_under_readers_and_writers,
    expired_keys_are_absent_and_swept,
    sessions_are_limited_and_come_back,
);

/// Value lengths for every place of a record: slot, page, block, chain.
const LENGTHS: [usize; 9] = [0, 1, 16, 200, 3_000, 4_200, 20_000, 30_000, 120_000];

fn key_of(number: u32) -> Vec<u8> {
    match number % 11 {
        0 => format!("{number:08}").into_bytes(),
        1 => [b"long-".repeat(200).as_slice(), &number.to_le_bytes()].concat(),
        2 => [b"huge-".repeat(6_000).as_slice(), &number.to_le_bytes()].concat(),
        _ => format!("key-{number}").into_bytes(),
    }
}

fn value_of(rng: &mut StdRng) -> Vec<u8> {
    let reach = if rng.random_bool(0.9) {
        5
    } else {
        LENGTHS.len()
    };
    let length = LENGTHS[rng.random_range(0..reach)];
    let fill: u8 = rng.random();
    (0..length).map(|i| fill.wrapping_add(i as u8)).collect()
}

/// The contents of a store.
fn contents(session: &mut Session) -> BTreeMap<Vec<u8>, (Vec<u8>, u64)> {
    let keys: Vec<Vec<u8>> = session.keys().collect::<Result<_, _>>().unwrap();
    let mut all = BTreeMap::new();
    for key in keys {
        let mut value = Vec::new();
        if let Some(found) = session.get_into(&key, &mut value).unwrap() {
            all.insert(key, (value, found.expires_at_ms));
        }
    }
    all
}

/// Asserts that two stores have the same contents, and names the keys that differ.
fn assert_same(engine: &mut Session, model: &mut Session, when: &str) {
    let (engine, model) = (contents(engine), contents(model));
    let brief = |entry: Option<&(Vec<u8>, u64)>| {
        entry.map(|(value, expiry)| (value.len(), value.first().copied(), *expiry))
    };
    let keys: std::collections::BTreeSet<&Vec<u8>> = engine.keys().chain(model.keys()).collect();
    let differ: Vec<_> = keys
        .into_iter()
        .filter(|key| engine.get(*key) != model.get(*key))
        .map(|key| {
            let name = String::from_utf8_lossy(&key[key.len().saturating_sub(12)..]).into_owned();
            (
                name,
                key.len(),
                brief(engine.get(key)),
                brief(model.get(key)),
            )
        })
        .collect();
    assert!(
        differ.is_empty(),
        "{when}: key, its length, engine, model: {differ:?}"
    );
}

/// One random operation on both; their answers must agree.
fn step(rng: &mut StdRng, engine: &mut Session, model: &mut Session, keys: u32, now: u64) {
    let key = key_of(rng.random_range(0..keys));
    match rng.random_range(0..100) {
        0..35 => {
            let value = value_of(rng);
            let expiry = if rng.random_bool(0.1) {
                now + rng.random_range(0..2_000)
            } else {
                0
            };
            let new = engine.put_expiring(&key, &value, expiry).unwrap();
            assert_eq!(new, model.put_expiring(&key, &value, expiry).unwrap());
        }
        35..60 => assert_eq!(engine.get(&key).unwrap(), model.get(&key).unwrap()),
        60..75 => assert_eq!(engine.delete(&key).unwrap(), model.delete(&key).unwrap()),
        75..80 => assert_eq!(
            engine.contains(&key).unwrap(),
            model.contains(&key).unwrap()
        ),
        80..84 => {
            let value = value_of(rng);
            let (a, b) = (
                engine.put_if_absent(&key, &value),
                model.put_if_absent(&key, &value),
            );
            assert_eq!(a.unwrap(), b.unwrap());
            let (a, b) = (
                engine.put_if_present(&key, &value),
                model.put_if_present(&key, &value),
            );
            assert_eq!(a.unwrap(), b.unwrap());
        }
        84..88 => {
            for session in [&mut *engine, &mut *model] {
                session
                    .update(&key, &mut |current, out| match current {
                        Some(current) if current.value.len() > 4_000 => Change::Delete,
                        Some(current) => {
                            out.extend_from_slice(current.value);
                            out.push(b'x');
                            Change::Put {
                                expires_at_ms: current.expires_at_ms,
                            }
                        }
                        None => Change::Keep,
                    })
                    .unwrap();
            }
        }
        88..91 => {
            let at = rng.random_range(0..4) * 8;
            let by: u64 = rng.random();
            let mut add = |word: u64| word.wrapping_add(by);
            match (
                engine.update_word(&key, at, &mut add),
                model.update_word(&key, at, &mut add),
            ) {
                (Ok(a), Ok(b)) => assert_eq!(a, b),
                (Err(Error::WordOutside { .. }), Err(Error::WordOutside { .. })) => {}
                (a, b) => panic!("update_word: {a:?} against {b:?}"),
            }
        }
        91..95 => {
            let others: Vec<Vec<u8>> = (0..rng.random_range(1..6))
                .map(|_| key_of(rng.random_range(0..keys)))
                .collect();
            let value = value_of(rng);
            let ops: Vec<BatchOp<'_>> = others
                .iter()
                .enumerate()
                .map(|(i, key)| match i % 3 {
                    2 => BatchOp::Delete { key },
                    _ => BatchOp::Put {
                        key,
                        value: &value,
                        expires_at_ms: 0,
                    },
                })
                .collect();
            engine.batch(&ops).unwrap();
            model.batch(&ops).unwrap();
        }
        95..98 => transaction(rng, engine, model, keys),
        98 => {
            let many: Vec<Vec<u8>> = (0..5).map(|_| key_of(rng.random_range(0..keys))).collect();
            let many: Vec<&[u8]> = many.iter().map(Vec::as_slice).collect();
            let read = |session: &mut Session| {
                let (mut values, mut found) = (Vec::new(), Vec::new());
                session
                    .engine()
                    .get_many(&many, &mut values, &mut found)
                    .unwrap();
                (
                    values,
                    found
                        .iter()
                        .map(|(f, end)| (f.is_some(), *end))
                        .collect::<Vec<_>>(),
                )
            };
            assert_eq!(read(engine), read(model));
        }
        _ => {
            if rng.random_bool(0.1) {
                for session in [engine, model] {
                    let ticket = session.engine().clear().unwrap();
                    session.wait(ticket).unwrap();
                }
            }
        }
    }
}

/// Moves a value from one key to another, or fails half-way and leaves both alone.
fn transaction(rng: &mut StdRng, engine: &mut Session, model: &mut Session, keys: u32) {
    let (from, to) = (
        key_of(rng.random_range(0..keys)),
        key_of(rng.random_range(0..keys)),
    );
    let fail = rng.random_bool(0.2);
    let all = rng.random_bool(0.2);
    let clear = all && rng.random_bool(0.1);
    let mut seen = Vec::new();
    for session in [engine, model] {
        let names = [from.as_slice(), to.as_slice()];
        let scope = if all { Scope::All } else { Scope::Keys(&names) };
        let mut moved = Vec::new();
        let result = session.transaction(scope, &mut |transaction| {
            moved.clear();
            let found = transaction.get(&from, &mut moved)?;
            if clear {
                transaction.clear()?;
            }
            if let Some(found) = found {
                transaction.put(&to, &moved, found.expires_at_ms)?;
                transaction.delete(&from)?;
                let mut again = Vec::new();
                assert!(from == to || transaction.get(&to, &mut again)?.is_some());
            }
            if fail { Err(Error::Condition) } else { Ok(()) }
        });
        assert_eq!(result.is_err(), fail);
        seen.push(moved);
    }
    assert_eq!(seen[0], seen[1]);
}

fn one_session_answers_as_the_model_does(engine: EngineKind) {
    each_bed(engine, |bed| {
        let seed = seed();
        let mut rng = StdRng::seed_from_u64(seed);
        let now = bed.clock.clone();
        let store = bed.open();
        let model = Bed::model(&now);
        let (mut engine, mut reference) = (store.session().unwrap(), model.session().unwrap());
        for round in 0..bed.scaled(3_000) {
            if round % 64 == 0 {
                now.fetch_add(rng.random_range(0..500), Ordering::Relaxed);
            }
            step(
                &mut rng,
                &mut engine,
                &mut reference,
                60,
                now.load(Ordering::Relaxed),
            );
        }
        assert_same(&mut engine, &mut reference, "at the end");
        bed.verify(&store);
    });
}

fn a_reopened_store_holds_what_it_held(engine: EngineKind) {
    each_bed(engine, |bed| {
        if !bed.keeps() {
            return;
        }
        let mut rng = StdRng::seed_from_u64(seed());
        let model = Bed::model(&bed.clock);
        let mut reference = model.session().unwrap();
        for round in 0..6 {
            let store = bed.open();
            let mut engine = store.session().unwrap();
            assert_same(&mut engine, &mut reference, &format!("round {round}"));
            for _ in 0..bed.scaled(300) {
                let now = bed.clock.fetch_add(3, Ordering::Relaxed);
                step(&mut rng, &mut engine, &mut reference, 60, now);
            }
            bed.verify(&store);
            drop(engine);
            if round % 2 == 0 {
                store.close().unwrap();
            }
        }
    });
}

fn sizes_outside_the_limits_are_refused(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = bed.open();
        let mut session = store.session().unwrap();
        assert!(matches!(session.put(b"", b"v"), Err(Error::KeyLength(0))));
        let long = vec![7; everdram::engine::KEY_BYTES_MAX + 1];
        assert!(matches!(session.put(&long, b"v"), Err(Error::KeyLength(_))));
        assert!(matches!(session.get(&long), Err(Error::KeyLength(_))));
        session.put(&long[1..], b"longest key").unwrap();
        assert_eq!(
            session.get(&long[1..]).unwrap().as_deref(),
            Some(&b"longest key"[..])
        );
        session.put(b"k", &[]).unwrap();
        assert_eq!(session.get(b"k").unwrap().as_deref(), Some(&b""[..]));
        let large = vec![3; 3 << 20];
        session.put(b"large", &large).unwrap();
        assert_eq!(session.get(b"large").unwrap().unwrap(), large);
    });
}

fn conditional_puts_look_at_the_version(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = bed.open();
        let mut session = store.session().unwrap();
        session.put(b"k", b"1").unwrap();
        let mut value = Vec::new();
        let first = session.get_into(b"k", &mut value).unwrap().unwrap().version;
        assert!(session.put_if_version(b"k", b"2", first).unwrap());
        assert!(!session.put_if_version(b"k", b"3", first).unwrap());
        assert_eq!(session.get(b"k").unwrap().as_deref(), Some(&b"2"[..]));
    });
}

fn submitted_writes_appear_together_and_are_the_sessions_own_before(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = bed.open();
        let (mut writer, mut reader) = (store.session().unwrap(), store.session().unwrap());
        // A session that needs a lock which it already holds commits first.
        let [a, b] = independent_keys(&store);
        writer.submit_put(&a, b"1").unwrap();
        writer.submit_put(&b, b"2").unwrap();
        assert_eq!(reader.get(&a).unwrap(), None);
        assert_eq!(reader.get(&b).unwrap(), None);
        assert_eq!(writer.get(&a).unwrap().as_deref(), Some(&b"1"[..]));
        writer.submit_delete(&b).unwrap();
        let ticket = writer.commit().unwrap();
        writer.wait(ticket).unwrap();
        assert_eq!(reader.get(&a).unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(reader.get(&b).unwrap(), None);
    });
}

fn an_iteration_meets_every_key_that_stays_while_the_store_grows(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = bed.open();
        let mut session = store.session().unwrap();
        let count = bed.scaled(3_000) as u32;
        for number in 0..count {
            session
                .submit_put(format!("stay-{number}").as_bytes(), b"v")
                .unwrap();
        }
        let ticket = session.commit().unwrap();
        session.wait(ticket).unwrap();
        let mut met = std::collections::BTreeSet::new();
        let (mut cursor, mut number) = (0, 0);
        loop {
            cursor = session
                .scan(cursor, 50, &mut |key, _, _| {
                    met.insert(key.to_vec());
                })
                .unwrap();
            for _ in 0..100 {
                session
                    .submit_put(format!("grow-{number}").as_bytes(), b"v")
                    .unwrap();
                number += 1;
            }
            let _ = session.commit().unwrap();
            if cursor == 0 {
                break;
            }
        }
        for number in 0..count {
            assert!(
                met.contains(format!("stay-{number}").as_bytes()),
                "stay-{number} was not met"
            );
        }
    });
}

fn counters_lose_no_update_between_threads(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = bed.open();
        let rounds = bed.scaled(400) as u64;
        store
            .session()
            .unwrap()
            .put(b"counter", &0u64.to_le_bytes())
            .unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut session = store.session().unwrap();
                    for _ in 0..rounds {
                        session
                            .update_word(b"counter", 0, &mut |word| word + 1)
                            .unwrap();
                    }
                });
            }
        });
        let mut session = store.session().unwrap();
        let value = session.get(b"counter").unwrap().unwrap();
        assert_eq!(u64::from_le_bytes(value.try_into().unwrap()), 4 * rounds);
    });
}

fn transfers_keep_their_sum_for_every_reader(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = bed.open();
        let mut session = store.session().unwrap();
        let names: Vec<Vec<u8>> = (0..8)
            .map(|i| format!("account-{i}").into_bytes())
            .collect();
        for name in &names {
            session.put(name, &100i64.to_le_bytes()).unwrap();
        }
        let stop = AtomicBool::new(false);
        let sums = AtomicU64::new(0);
        let money = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
        std::thread::scope(|scope| {
            for writer in 0..2u64 {
                let (store, names) = (&store, &names);
                let rounds = bed.scaled(400);
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(writer);
                    let mut session = store.session().unwrap();
                    for _ in 0..rounds {
                        let (a, b) = (rng.random_range(0..8), rng.random_range(0..8));
                        let keys = [names[a].as_slice(), names[b].as_slice()];
                        session
                            .transaction(Scope::Keys(&keys), &mut |transaction| {
                                if a == b {
                                    return Ok(());
                                }
                                let (mut x, mut y) = (Vec::new(), Vec::new());
                                transaction.get(keys[0], &mut x)?;
                                transaction.get(keys[1], &mut y)?;
                                transaction.put(keys[0], &(money(&x) - 1).to_le_bytes(), 0)?;
                                transaction.put(keys[1], &(money(&y) + 1).to_le_bytes(), 0)
                            })
                            .unwrap();
                    }
                });
            }
            let reader = scope.spawn(|| {
                let mut session = store.session().unwrap();
                let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
                while !stop.load(Ordering::Relaxed) {
                    let (mut values, mut found) = (Vec::new(), Vec::new());
                    session
                        .engine()
                        .get_many(&keys, &mut values, &mut found)
                        .unwrap();
                    let sum: i64 = values.chunks_exact(8).map(money).sum();
                    assert_eq!(sum, 800);
                    sums.fetch_add(1, Ordering::Relaxed);
                }
            });
            // The scope joins the writers; the reader must be told to stop.
            while sums.load(Ordering::Relaxed) < 200 && !reader.is_finished() {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
        });
        bed.verify(&store);
    });
}

fn reclamation_gives_space_back_under_readers_and_writers(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = &bed.open();
        let keys = 400u32;
        let rounds = bed.scaled(30) as u64;
        let write = |session: &mut Session, numbers: &mut dyn Iterator<Item = u32>, round: u64| {
            for number in numbers {
                let value = [round, u64::from(number)].map(u64::to_le_bytes);
                let value = value.concat().repeat(40);
                session.submit_put(&number.to_le_bytes(), &value).unwrap();
            }
            let ticket = session.commit().unwrap();
            session.wait(ticket).unwrap();
        };
        write(&mut store.session().unwrap(), &mut (0..keys), 0);
        let (ended, passes) = (&AtomicU64::new(0), &AtomicU64::new(0));
        std::thread::scope(|scope| {
            for writer in 0..2u32 {
                scope.spawn(move || {
                    let _ended = Counted(ended);
                    let mut session = store.session().unwrap();
                    // Continue until the reader has met every key while it was being written.
                    for round in 1.. {
                        if round >= rounds && passes.load(Ordering::Relaxed) > 0 {
                            break;
                        }
                        write(&mut session, &mut (writer..keys).step_by(2), round);
                    }
                });
            }
            scope.spawn(move || {
                let mut session = store.session().unwrap();
                let mut newest = vec![0u64; keys as usize];
                while ended.load(Ordering::Relaxed) < 2 {
                    let _pass = Counted(passes);
                    for number in 0..keys {
                        let value = session.get(&number.to_le_bytes()).unwrap().unwrap();
                        let words: Vec<u64> = value
                            .chunks_exact(8)
                            .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
                            .collect();
                        assert!(
                            words.iter().step_by(2).all(|&w| w == words[0]),
                            "torn value"
                        );
                        assert!(
                            words
                                .iter()
                                .skip(1)
                                .step_by(2)
                                .all(|&w| w == u64::from(number))
                        );
                        assert!(words[0] >= newest[number as usize], "a value went back");
                        newest[number as usize] = words[0];
                    }
                }
            });
        });
        store.engine().reclaim().unwrap();
        let stats = store.stats();
        assert_eq!(stats.keys, u64::from(keys));
        // A value of `dstore` takes a whole block.
        let each = match engine {
            EngineKind::Dstore => 4096,
            _ => 700,
        };
        let live = u64::from(keys) * each;
        assert!(
            stats.used_bytes < 3 * live + 600_000,
            "{} bytes in use for {live} bytes of live data",
            stats.used_bytes
        );
        bed.verify(store);
    });
}

fn expired_keys_are_absent_and_swept(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = bed.open();
        let mut session = store.session().unwrap();
        let now = bed.clock.load(Ordering::Relaxed);
        for number in 0..100u32 {
            session
                .put_expiring(&number.to_le_bytes(), b"v", now + 10)
                .unwrap();
        }
        session.put(b"stays", b"v").unwrap();
        assert!(session.contains(&3u32.to_le_bytes()).unwrap());
        bed.clock.store(now + 10, Ordering::Relaxed);
        assert_eq!(session.get(&3u32.to_le_bytes()).unwrap(), None);
        // A clock that jumps back brings no expired key back.
        bed.clock.store(now, Ordering::Relaxed);
        assert_eq!(session.get(&3u32.to_le_bytes()).unwrap(), None);
        let started = std::time::Instant::now();
        while store.len() > 1 {
            assert!(
                started.elapsed().as_secs() < 20,
                "{} keys left",
                store.len()
            );
            std::thread::yield_now();
        }
        assert!(session.contains(b"stays").unwrap());
    });
}

fn sessions_are_limited_and_come_back(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store: Store = bed.open_with(|options| options.sessions_max = 2);
        let held: Vec<_> = (0..8).map_while(|_| store.session().ok()).collect();
        assert_eq!(held.len(), 2);
        assert!(matches!(store.session(), Err(Error::TooManySessions(2))));
        drop(held);
        assert!(store.session().is_ok());
    });
}
