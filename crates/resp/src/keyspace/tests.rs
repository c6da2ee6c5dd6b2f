//! What commands rely on: work on several keys is atomic, watching detects writes, and scans in a transaction
//! see its own writes.

use super::{Demand, Direct, EVERY_KEY, Keyspace, Scratch};
use crate::model;
use everdram::{EngineKind, Error, Medium, MediumChoice, Options, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs `check` over a new store of the model, and of each engine on emulated memory and on files.
fn with_stores(clock: &Arc<AtomicU64>, check: impl Fn(&Store)) {
    let media = [Medium::Emulated, Medium::File];
    let engines = EngineKind::ALL.iter();
    let clock_at_start = || {
        clock.store(1_000, Ordering::SeqCst);
        let time = Arc::clone(clock);
        Arc::new(move || time.load(Ordering::SeqCst))
    };
    check(&model::store(clock_at_start()));
    for (engine, medium) in engines.flat_map(|&engine| media.map(|medium| (engine, medium))) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut options = Options::default();
        options.engine = Some(engine);
        options.medium = MediumChoice::Only(medium);
        options.clock = Some(clock_at_start());
        check(&Store::open(directory.path().join("pool"), &options).expect("a new store opens"));
    }
}

/// As [`with_stores`], with the keys of one session.
fn with_each(clock: &Arc<AtomicU64>, check: impl Fn(&mut Direct<'_>)) {
    with_stores(clock, |store| with_keys(store, |keys| check(keys)));
}

fn with_keys<T>(store: &Store, work: impl FnOnce(&mut Direct<'_>) -> T) -> T {
    let mut session = store.session().expect("a session");
    let mut scratch = Scratch::default();
    work(&mut Direct::new(
        session.engine(),
        store.engine().as_ref(),
        &mut scratch,
    ))
}

fn value_of(keys: &mut dyn Keyspace, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    keys.get(key, &mut value).expect("a read").map(|_| value)
}

fn watched(keys: &mut dyn Keyspace, key: &[u8]) -> Vec<(Vec<u8>, u64)> {
    vec![(key.to_vec(), keys.watch(key).expect("a number"))]
}

/// Runs an empty transaction over `a`, as EXEC would; returns whether it ran.
fn runs(keys: &mut dyn Keyspace, watched: &[(Vec<u8>, u64)]) -> bool {
    let demand = Demand {
        keys: &[b"a"],
        watched,
        ..Demand::default()
    };
    keys.atomically(&demand, &mut |_| Ok(()))
        .expect("a transaction")
}

#[test]
fn work_that_fails_leaves_nothing_behind() {
    with_each(&Arc::default(), |keys| {
        let demand = Demand {
            keys: &[b"a", b"b"],
            ..Demand::default()
        };
        let outcome = keys.atomically(&demand, &mut |inside| {
            inside.put(b"a", b"1", 0)?;
            Err(Error::NoSpace("full".into()))
        });
        assert!(matches!(outcome, Err(Error::NoSpace(_))));
        assert_eq!(value_of(keys, b"a"), None);
    });
}

#[test]
fn a_watched_key_that_changed_stops_the_work() {
    let clock = Arc::default();
    with_each(&clock, |keys| {
        keys.put(b"a", b"1", 2000).expect("a put");
        let before = watched(keys, b"a");
        assert!(runs(keys, &before), "nothing happened to it");
        clock.store(3000, Ordering::SeqCst);
        assert!(!runs(keys, &before), "it expired");
        let absent = watched(keys, b"a");
        keys.put(b"a", b"2", 0).expect("a put");
        assert!(!runs(keys, &absent), "it appeared");
        let again = watched(keys, b"a");
        keys.put(b"a", b"2", 0).expect("a put");
        assert!(!runs(keys, &again), "it was written with the same value");
        let before = watched(keys, b"a");
        keys.clear().expect("a removal of everything");
        assert!(!runs(keys, &before), "it went with all the others");
    });
}

#[test]
fn scans_inside_see_the_transaction() {
    with_each(&Arc::default(), |keys| {
        for key in [&b"old"[..], b"gone"] {
            keys.put(key, b"", 0).expect("a put");
        }
        let demand = Demand {
            keys: &[],
            any_key: true,
            ..Demand::default()
        };
        let work = keys.atomically(&demand, &mut |inside| {
            inside.delete(b"gone")?;
            inside.put(b"new", b"", 0)?;
            inside.put(b"old", b"", 0)?;
            let mut all = Vec::new();
            assert_eq!(inside.scan(0, EVERY_KEY, &mut |_| true, &mut all)?, 0);
            all.sort();
            assert_eq!(all, [b"new", b"old"]);
            assert_eq!(inside.len().unwrap(), 2);
            let mut page = Vec::new();
            inside.scan(0, 1, &mut |key| key == b"new", &mut page)?;
            assert_eq!(page, [b"new"], "no page may miss it");
            let mut picked = Vec::new();
            assert!(inside.random_key(&mut picked)?);
            assert!(all.contains(&picked), "{}", picked.escape_ascii());
            inside.clear()?;
            inside.put(b"old", b"", 0)?;
            all.clear();
            inside.scan(0, EVERY_KEY, &mut |_| true, &mut all)?;
            assert_eq!((inside.len().unwrap(), all), (1, vec![b"old".to_vec()]));
            Ok(())
        });
        assert!(work.expect("a transaction"));
    });
}

#[test]
fn optimistic_counters_lose_nothing() {
    const THREADS: u64 = 2;
    const ROUNDS: u64 = 3_000;
    with_stores(&Arc::default(), |store| {
        let refused: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| (0..ROUNDS).map(|_| with_keys(store, count_up)).sum::<u64>())
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a thread"))
                .sum()
        });
        let total = with_keys(store, |keys| value_of(keys, b"a"));
        assert_eq!(
            total,
            Some((THREADS * ROUNDS).to_string().into_bytes()),
            "{refused} tries were refused"
        );
    });
}

/// Adds one by watching, reading, and writing; returns how often it had to start over.
fn count_up(keys: &mut Direct<'_>) -> u64 {
    for refused in 0.. {
        let watched = watched(keys, b"a");
        let before: u64 = value_of(keys, b"a")
            .and_then(|value| String::from_utf8(value).ok()?.parse().ok())
            .unwrap_or(0);
        let next = (before + 1).to_string();
        let demand = Demand {
            keys: &[b"a"],
            watched: &watched,
            ..Demand::default()
        };
        let done = keys.atomically(&demand, &mut |inside| inside.put(b"a", next.as_bytes(), 0));
        if done.expect("a transaction") {
            return refused;
        }
    }
    0
}
