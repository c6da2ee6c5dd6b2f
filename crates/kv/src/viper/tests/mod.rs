//! The engine over heap memory: no files, no mapping, no background threads. Small enough for Miri, which
//! looks for undefined behaviour and data races where the other tests look for wrong answers.

#[cfg(all(test, feature = "lab"))]
pub(super) mod acknowledged;
#[path = "../../../tests/support/model.rs"]
mod model;

use super::Viper;
use super::record::{Order, RecordKind};
use super::session::ViperSession;
use crate::engine::backend::{Backend, with_room};
use crate::engine::kind::EngineKind;
use crate::engine::{BatchOp, Change, Engine, EngineSession, Scope};
use crate::error::Error;
use crate::options::Options;
use everdram_pm::Pool;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps of random work in each part: few under Miri, where they take seconds instead of a millisecond.
const STEPS: usize = if cfg!(miri) { 8 } else { 1000 };
/// Recoveries of the pool.
const PARTS: u64 = if cfg!(miri) { 2 } else { 4 };
/// Changes of the counter by each thread.
const ROUNDS: u64 = if cfg!(miri) { 3 } else { 2000 };

fn options(fixed: Option<(u32, u32)>, clock: &Arc<AtomicU64>) -> Options {
    let clock = Arc::clone(clock);
    Options {
        dimms: 1,
        fixed,
        initial_bytes: 64 << 10,
        chunk_bytes: 64 << 10,
        max_bytes: 4 << 20,
        sessions_max: 4,
        recovery_threads: 1,
        reclaim_background: false,
        clock: Some(Arc::new(move || clock.load(Ordering::Relaxed))),
        ..Options::default()
    }
}

fn pool(options: &Options) -> Arc<Pool> {
    let bytes = if cfg!(miri) { 224 << 10 } else { 4 << 20 };
    let geometry = super::layout::Geometry::new(options.page_bytes, options.dimms, options.fixed);
    Pool::heap(
        bytes,
        EngineKind::Viper.number(),
        geometry.unwrap().to_words(),
    )
}

fn over(pool: &Arc<Pool>, options: &Options) -> Arc<Viper> {
    Viper::over(Arc::clone(pool), Path::new("heap"), options).unwrap()
}

fn value_of(session: &mut dyn EngineSession, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    session.get(key, &mut value).unwrap().map(|_| value)
}

/// One random step, the same on the engine and on the model.
fn step(session: &mut dyn EngineSession, random: &mut StdRng) -> Result<Option<Vec<u8>>, Error> {
    let key = format!("key-{:04}", random.random_range(0..12)).into_bytes();
    let other = format!("key-{:04}", random.random_range(0..12)).into_bytes();
    let length = *[16, 16, 0, 40, 700, 5000]
        .get(random.random_range(0..6))
        .unwrap();
    let value = vec![random.random(); length];
    let expires_at_ms = if random.random_bool(0.1) { 1001 } else { 0 };
    match random.random_range(0..8) {
        0..3 => drop(session.put(&key, &value, expires_at_ms)?),
        3 => drop(session.delete(&key)?),
        4 => session.modify(&key, &mut |current, into| {
            into.extend(
                current
                    .map_or(&b"new"[..], |current| current.value)
                    .iter()
                    .rev(),
            );
            Change::Put { expires_at_ms: 0 }
        })?,
        5 => {
            let operations = [
                BatchOp::Delete { key: &other },
                BatchOp::Put {
                    key: &key,
                    value: &value,
                    expires_at_ms,
                },
            ];
            let _ = session.batch(&operations)?;
        }
        6 => {
            let keys = [key.as_slice(), other.as_slice()];
            let _ = session.transaction(Scope::Keys(&keys), &mut |inside| {
                let mut value = Vec::new();
                inside.get(&key, &mut value)?;
                inside.put(&other, &value, 0)
            })?;
        }
        _ => {
            let _ = session
                .update_word(&key, 8, &mut |word| word ^ 0x5555)
                .or_else(|error| match error {
                    Error::WordOutside { .. } => Ok(None),
                    error => Err(error),
                })?;
        }
    }
    let _ = session.commit()?;
    let mut found = Vec::new();
    Ok(session.get(&key, &mut found)?.map(|_| found))
}

/// The engine answers like the model, before and after compaction and recovery.
fn as_the_model(fixed: Option<(u32, u32)>) {
    let seed = std::env::var("EVERDRAM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("repeat with EVERDRAM_SEED={seed}");
    let clock = Arc::new(AtomicU64::new(1000));
    let options = options(fixed, &clock);
    let model = model::store(options.clock.clone().unwrap());
    let mut model = Arc::clone(model.engine()).session().unwrap();
    let pool = pool(&options);
    let mut random = StdRng::seed_from_u64(seed);
    for part in 0..PARTS {
        let viper = over(&pool, &options);
        let engine: Arc<dyn Engine> = Arc::clone(&viper) as _;
        let mut session = Arc::clone(&engine).session().unwrap();
        for number in 0..STEPS {
            let same: u64 = random.random();
            let expected = step(&mut *model, &mut StdRng::seed_from_u64(same)).unwrap();
            let found = step(&mut *session, &mut StdRng::seed_from_u64(same)).unwrap();
            assert!(
                found == expected,
                "step {number} of part {part}, seed {seed}"
            );
        }
        engine.reclaim().unwrap();
        clock.fetch_add(part % 2, Ordering::Relaxed);
        for number in 0..12 {
            let key = format!("key-{number:04}").into_bytes();
            let (found, expected) = (value_of(&mut *session, &key), value_of(&mut *model, &key));
            assert!(
                found == expected,
                "key {number} after part {part}, seed {seed}"
            );
        }
        assert_eq!(engine.check().unwrap().findings, []);
        // Dropping the engine keeps the pool's memory; the next engine recovers from it.
    }
}

#[test]
fn the_engine_answers_as_the_model_does() {
    as_the_model(None);
}

#[test]
fn fixed_size_pages_answer_as_the_model_does() {
    as_the_model(Some((8, 16)));
}

/// Writers of one key, a reader, and compaction run at the same time: each change counts once.
#[test]
fn threads_meet_on_a_key() {
    let clock = Arc::new(AtomicU64::new(1000));
    let options = options(None, &clock);
    let pool = pool(&options);
    let engine: Arc<dyn Engine> = over(&pool, &options);
    let count = || {
        let mut session = Arc::clone(&engine).session().unwrap();
        for round in 0..ROUNDS {
            session
                .modify(b"count", &mut |current, into| {
                    let old = current.map_or(0, |current| {
                        u64::from_le_bytes(current.value.try_into().unwrap())
                    });
                    into.extend((old + 1).to_le_bytes());
                    Change::Put { expires_at_ms: 0 }
                })
                .unwrap();
            let _ = session.commit().unwrap();
            if round % 3 == 1 {
                engine.reclaim().unwrap();
            }
        }
    };
    let read = |session: &mut dyn EngineSession| {
        let value = value_of(session, b"count");
        value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
    };
    let mut session = Arc::clone(&engine).session().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(count);
        scope.spawn(count);
        let mut last = 0;
        for _ in 0..ROUNDS {
            let now = read(&mut *session);
            assert!(now >= last, "a count of {now} after {last}");
            last = now;
        }
    });
    assert_eq!(read(&mut *session), 2 * ROUNDS);
}

/// Found by fuzzing: a journal named a later version than its own record had. Recovery applied it, and then
/// gave out versions from before it. Later writes looked older than the journal's, so the next recovery
/// skipped them.
#[test]
fn what_follows_a_journal_is_newer_than_what_it_names() {
    let options = options(None, &Arc::default());
    let pool = pool(&options);
    let (key, value, version) = (b"key", b"from the journal", 255_u64);
    let head = [1 | (key.len() as u64) << 8, value.len() as u64, version, 0];
    let head: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
    let payload = [&head[..], key, value].concat();
    let mut session = ViperSession::new(over(&pool, &options)).unwrap();
    session
        .write(RecordKind::Journal, b"j", &payload, 0, Order::new(1, false))
        .unwrap();
    let _ordered = session.settle_and_fence();
    drop(session);
    let engine: Arc<dyn Engine> = over(&pool, &options);
    let mut session = Arc::clone(&engine).session().unwrap();
    assert_eq!(value_of(&mut *session, key).as_deref(), Some(&value[..]));
    session.put(key, b"later", 0).unwrap();
    let _ = session.commit().unwrap();
    drop((session, engine));
    let engine: Arc<dyn Engine> = over(&pool, &options);
    let mut session = engine.session().unwrap();
    assert_eq!(value_of(&mut *session, key).as_deref(), Some(&b"later"[..]));
}

/// Found by fuzzing: two records led to one chain of pieces. The pool opened, and overwriting one of them
/// destroyed the other's value.
#[test]
fn two_values_do_not_share_their_pieces() {
    let options = options(None, &Arc::default());
    let pool = pool(&options);
    let viper = over(&pool, &options);
    let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
    let long = vec![7; 6000];
    session
        .write(RecordKind::Value, b"one", &long, 0, Order::new(1, false))
        .unwrap();
    let _ordered = session.settle_and_fence();
    drop((session, viper));
    let viper = over(&pool, &options);
    let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
    let (_, record) = session.find(viper.hash(b"one"), b"one").unwrap().unwrap();
    let chain = session.scratch[record.value()].to_vec();
    session
        .write(RecordKind::Chained, b"two", &chain, 0, Order::new(2, false))
        .unwrap();
    let _ordered = session.settle_and_fence();
    drop((session, viper));
    let refused = Viper::over(Arc::clone(&pool), Path::new("heap"), &options).map(|_| ());
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
}

/// A writer that finds the replaced record's mark word damaged has written its own record already. The
/// committing call may be another one. The write counts all the same: the newer of two records of a key wins.
#[test]
fn a_write_replaces_what_it_cannot_mark() {
    let options = options(None, &Arc::default());
    let pool = pool(&options);
    let viper = over(&pool, &options);
    let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
    session.put(b"key", b"old", 0).unwrap();
    let _ = session.commit().unwrap();
    let (old, _) = session.find(viper.hash(b"key"), b"key").unwrap().unwrap();
    let sound = pool.region().load_word(old.mark.unwrap().at);
    let _ = session
        .lane
        .store_word(old.mark.unwrap().at, sound ^ 1 << 50);
    session.put(b"beside", b"1", 0).unwrap();
    session.put(b"key", b"new", 0).unwrap();
    session.put(b"behind", b"2", 0).unwrap();
    let _ = session.commit().unwrap();
    session.put(b"later", b"3", 0).unwrap();
    let _ = session.commit().unwrap();
    let all = [
        (&b"beside"[..], &b"1"[..]),
        (b"behind", b"2"),
        (b"later", b"3"),
        (b"key", b"new"),
    ];
    for (key, value) in all {
        assert_eq!(value_of(&mut session, key).as_deref(), Some(value));
    }
    // With the mark word mended, the pool opens again.
    let _ = session.lane.store_word(old.mark.unwrap().at, sound);
    drop((session, viper));
    let engine: Arc<dyn Engine> = over(&pool, &options);
    let mut session = engine.session().unwrap();
    for (key, value) in all {
        assert_eq!(value_of(&mut *session, key).as_deref(), Some(value));
    }
}

/// Records in all kinds of blocks, more at once than DRAM stages for a fence, with overwrites. Read together
/// and one by one, before and after recovery.
#[test]
#[cfg_attr(miri, ignore = "needs more room than a heap has there")]
fn many_writes_under_one_fence_are_all_there() {
    let options = Options {
        dimms: 4,
        ..options(None, &Arc::default())
    };
    let pool = pool(&options);
    let keys: Vec<Vec<u8>> = (0..if cfg!(miri) { 8 } else { 60 })
        .map(|number| format!("key-{number:04}").into_bytes())
        .collect();
    let value = |number: usize, round: usize| {
        let lengths = [0, 40, 700, 3000, 5000, 12_000, 40_000];
        vec![(number + round) as u8; lengths[(number + round) % lengths.len()]]
    };
    let holds = |session: &mut dyn EngineSession, round| {
        let mut asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        asked.push(b"absent");
        for from in 0..asked.len() {
            let (mut values, mut found) = (Vec::new(), Vec::new());
            let some = &asked[from..asked.len().min(from + 5)];
            session.get_many(some, &mut values, &mut found).unwrap();
            let mut start = 0;
            for (number, (one, end)) in (from..).zip(found) {
                let wanted = (number < keys.len()).then(|| value(number, round));
                let bytes = one.map(|_| values[start..end].to_vec());
                assert!(bytes == wanted, "key {number} among several");
                assert!(value_of(session, asked[number]) == wanted, "key {number}");
                start = end;
            }
        }
    };
    let rounds = if cfg!(miri) { 2 } else { 7 };
    let engine: Arc<dyn Engine> = over(&pool, &options);
    let mut session = Arc::clone(&engine).session().unwrap();
    for round in 0..rounds {
        for (number, key) in keys.iter().enumerate() {
            session.put(key, &value(number, round), 0).unwrap();
        }
        let _ = session.commit().unwrap();
        holds(&mut *session, round);
        assert_eq!(engine.len(), keys.len() as u64);
        engine.reclaim().unwrap();
    }
    drop((session, engine));
    let engine: Arc<dyn Engine> = over(&pool, &options);
    holds(&mut *Arc::clone(&engine).session().unwrap(), rounds - 1);
    assert_eq!(engine.len(), keys.len() as u64);
    assert_eq!(engine.check().unwrap().findings, []);
}

/// The index may offer a record of another key with the same tag.
#[test]
fn a_record_of_another_key_is_not_taken_for_this_one() {
    let options = options(None, &Arc::default());
    let viper = over(&pool(&options), &options);
    let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
    session.put(b"this", b"1", 0).unwrap();
    session.put(b"that", b"2", 0).unwrap();
    let _ = session.commit().unwrap();
    let mut location = |key: &[u8]| {
        let (old, _) = session.find(viper.hash(key), key).unwrap().unwrap();
        old.location
    };
    let (this, that) = (location(b"this"), location(b"that"));
    let ordered = everdram_pm::Ordered::when_found();
    assert!(
        viper
            .index
            .replace(viper.hash(b"this"), this, that, &ordered)
    );
    assert_eq!(value_of(&mut session, b"this"), None);
    let (mut values, mut found) = (Vec::new(), Vec::new());
    let keys = [&b"this"[..], b"that"];
    session.get_many(&keys, &mut values, &mut found).unwrap();
    let is_there: Vec<bool> = found.iter().map(|(one, _)| one.is_some()).collect();
    assert_eq!((is_there, values), (vec![false, true], b"2".to_vec()));
}

/// A write without room waited while another thread's compaction freed everything there was. Its own
/// compaction then freed nothing, and it reported a full pool although most of it was free.
#[test]
fn room_that_another_thread_made_is_used() {
    let options = options(None, &Arc::default());
    let viper = over(&pool(&options), &options);
    let mut session = ViperSession::new(viper).unwrap();
    let mut tries = 0;
    let outcome = with_room(&mut session, 1, |_| {
        tries += 1;
        match tries {
            1 => Err(Error::NoSpace("until the other thread is done".into())),
            _ => Ok(()),
        }
    });
    assert!(outcome.is_ok(), "{outcome:?}");
}

/// A panic in the middle of a write was caught, and the session dropped later: its key stayed locked forever.
#[test]
fn a_session_that_ends_with_a_key_halts_the_engine_and_gives_it_back() {
    let options = options(None, &Arc::default());
    let viper = over(&pool(&options), &options);
    let mut session = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    let stripe = viper.stripe(viper.hash(b"k"));
    session.acquire(stripe).unwrap();
    drop(session);
    assert!(!viper.stripes.is_locked(stripe));
    let refused = viper.healthy();
    assert!(matches!(refused, Err(Error::Halted(_))), "{refused:?}");
}

/// See the test of this name in `bullet/session.rs`.
#[test]
#[cfg(debug_assertions)]
fn a_panic_in_a_batch_halts_the_engine() {
    let options = options(None, &Arc::default());
    let viper = over(&pool(&options), &options);
    let mut session = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    session.counters().publishing.begin();
    let ops = [b"a", b"b"].map(|key| BatchOp::Put {
        key,
        value: b"1",
        expires_at_ms: 0,
    });
    let batch = std::panic::AssertUnwindSafe(|| session.batch(&ops));
    assert!(std::panic::catch_unwind(batch).is_err());
    let mut other = ViperSession::of_user(viper).unwrap();
    let scanned = other.scan(0, 10, &mut |_, _, _| {});
    assert!(matches!(scanned, Err(Error::Halted(_))), "{scanned:?}");
}
