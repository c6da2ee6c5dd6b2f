//! The front of the engine `bullet` with a budget: it keeps to the budget, gives the same answers, and keeps
//! frequently read keys.

mod support;

use everdram::engine::Change;
use everdram::options::BulletSystem;
use everdram::{EngineKind, Error, Options, Session, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::contents::{Contents, contents};
use support::{Bed, Counted, seed};

const MIB: u64 = 1 << 20;
/// What a session may use before the budget is checked.
const CHUNK: u64 = 256 << 10;

fn bed(front_bytes: u64) -> Bed {
    Bed::emulated()
        .of(EngineKind::Bullet)
        .with_front(front_bytes)
}

#[derive(Debug)]
struct Front {
    used_bytes: u64,
    budget_bytes: Option<u64>,
    misses: u64,
    filled: u64,
    evicted: u64,
}

fn front(store: &Store) -> Front {
    let stats = store.stats();
    let count = |name| stats.own(name).unwrap();
    Front {
        used_bytes: count("front_used_bytes"),
        budget_bytes: stats.own("front_budget_bytes"),
        misses: count("front_misses"),
        filled: count("front_filled"),
        evicted: count("front_evicted"),
    }
}

/// Waits until the front is within its budget.
fn settle(store: &Store) {
    let begun = Instant::now();
    let budget = front(store).budget_bytes.unwrap();
    while front(store).used_bytes > budget {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{:?}",
            front(store)
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn key_of(number: u32) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

fn value_of(number: u32, version: u64) -> Vec<u8> {
    let mut value = version.to_le_bytes().to_vec();
    value.extend_from_slice(&number.to_le_bytes().repeat(20 + number as usize % 60));
    value
}

/// Puts each key once, and gleans everything into the back.
fn loaded(bed: &Bed, keys: u32) -> Store {
    let store = bed.open();
    let mut session = store.session().unwrap();
    for number in 0..keys {
        session.put(&key_of(number), &value_of(number, 0)).unwrap();
    }
    drop(session);
    store.engine().reclaim().unwrap();
    store
}

/// Number of look-ups of these keys that the front could not answer.
fn misses(store: &Store, session: &mut Session, keys: impl Iterator<Item = u32>) -> u64 {
    let before = front(store).misses;
    for number in keys {
        let found = session.get(&key_of(number)).unwrap();
        assert_eq!(found, Some(value_of(number, 0)), "{number}");
    }
    front(store).misses - before
}

#[test]
fn ten_times_the_budget_is_answered_from_both_tables() {
    const KEYS: u32 = 40_000;
    let bed = bed(MIB);
    let store = bed.open();
    let mut session = store.session().unwrap();
    let mut most = 0;
    for number in 0..KEYS {
        session.put(&key_of(number), &value_of(number, 0)).unwrap();
        if number % 500 == 0 {
            most = most.max(front(&store).used_bytes);
        }
    }
    // The contents of four logs of 64 KiB may stay, and a session and a gleaner may use a chunk before the
    // check.
    assert!(most <= MIB + 2 * CHUNK + 2 * 4 * (64 << 10), "{most}");
    assert_eq!(store.len(), u64::from(KEYS));
    store.engine().reclaim().unwrap();
    settle(&store);
    let evicted = front(&store).evicted;
    assert!(evicted > u64::from(KEYS) / 2, "{evicted}");
    for number in 0..KEYS {
        let found = session.get(&key_of(number)).unwrap();
        assert_eq!(found, Some(value_of(number, 0)), "{number}");
        assert_eq!(
            session
                .get(&[b"no", key_of(number).as_slice()].concat())
                .unwrap(),
            None
        );
    }
    settle(&store);
    assert!(front(&store).filled > 0);
    // Keys of the back are changed like those of the front.
    let mut model = Contents::new();
    let mut removed = 0;
    for number in 0..KEYS {
        let key = key_of(number);
        let mut value = value_of(number, 0);
        match number % 7 {
            0 => {
                assert!(session.delete(&key).unwrap());
                assert!(!session.delete(&key).unwrap());
                removed += 1;
                continue;
            }
            1 => {
                assert_eq!(session.append(&key, b"more").unwrap(), value.len() + 4);
                value.extend_from_slice(b"more");
            }
            2 => {
                assert_eq!(session.increment(&key, 0, 7).unwrap(), Some(7));
                value[..8].copy_from_slice(&7u64.to_le_bytes());
            }
            3 => {
                assert!(!session.put_if_absent(&key, b"x").unwrap());
                value = value_of(number, 9);
                assert!(session.put_if_present(&key, &value).unwrap());
            }
            4 => {
                value = b"expires".to_vec();
                let at = bed.clock.load(Ordering::Relaxed) + 1_000;
                assert!(!session.put_expiring(&key, &value, at).unwrap());
            }
            _ => {}
        }
        model.insert(key, value);
    }
    assert_eq!(store.len(), u64::from(KEYS - removed));
    assert_eq!(contents(&mut session).unwrap(), model);
    bed.clock.fetch_add(2_000, Ordering::Relaxed);
    model.retain(|_, value| value != b"expires");
    assert_eq!(contents(&mut session).unwrap(), model);
    // Expired keys are swept in the background, from both tables.
    let begun = Instant::now();
    while store.len() != model.len() as u64 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{}", store.len());
        std::thread::sleep(Duration::from_millis(5));
    }
    bed.verify(&store);
    drop(session);
    drop(store);
    let store = bed.open();
    assert_eq!(store.len(), model.len() as u64);
    let mut session = store.session().unwrap();
    assert_eq!(contents(&mut session).unwrap(), model);
    settle(&store);
    let cleared = session.engine().clear().unwrap();
    session.wait(cleared).unwrap();
    assert_eq!(
        (store.len(), contents(&mut session).unwrap()),
        (0, Contents::new())
    );
    assert!(model.keys().all(|key| session.get(key).unwrap().is_none()));
}

#[test]
fn large_values_leave_and_are_read_where_they_are() {
    const KEYS: u32 = 60;
    let bed = bed(MIB);
    // Shorter and longer than what the front would hold.
    let value = |number: u32, version: u8| vec![version; 40_000 + 500 * number as usize];
    for version in 0..3 {
        let store = bed.open();
        let mut session = store.session().unwrap();
        for number in 0..KEYS {
            session
                .put(&key_of(number), &value(number, version))
                .unwrap();
        }
        drop((session, store));
        // The front is empty now.
        let store = bed.open();
        let mut session = store.session().unwrap();
        for number in (0..KEYS).chain(0..KEYS) {
            let found = session.get(&key_of(number)).unwrap();
            assert_eq!(found, Some(value(number, version)));
        }
        settle(&store);
        assert!(front(&store).evicted > 0);
        bed.verify(&store);
    }
}

/// Read twice, and then not during a walk over everything.
#[test]
fn a_walk_over_all_keys_leaves_what_is_asked_for() {
    const KEYS: u32 = 40_000;
    const HOT: u32 = 600;
    let bed = bed(MIB);
    drop(loaded(&bed, KEYS));
    // The front is empty now, and nothing was read.
    let store = bed.open();
    let mut session = store.session().unwrap();
    assert_eq!(misses(&store, &mut session, 0..HOT), u64::from(HOT));
    assert_eq!(misses(&store, &mut session, 0..HOT), 0);
    let walked = misses(&store, &mut session, HOT..KEYS);
    assert_eq!(walked, u64::from(KEYS - HOT), "each is asked for once");
    settle(&store);
    assert!(front(&store).evicted > u64::from(KEYS) / 2);
    let lost = misses(&store, &mut session, 0..HOT);
    assert_eq!(lost, 0, "a walk takes the place of what is asked for");
    // Iterating neither fills nor evicts.
    let before = front(&store);
    assert!(session.keys().all(|key| key.is_ok()));
    assert_eq!(front(&store).filled, before.filled);
}

/// Keys that are not read any more make room for others.
#[test]
fn the_front_follows_what_is_asked_for() {
    const KEYS: u32 = 40_000;
    const HOT: u32 = 1_500;
    let bed = bed(MIB);
    drop(loaded(&bed, KEYS));
    let store = bed.open();
    let mut session = store.session().unwrap();
    for from in [0, 10_000, 20_000] {
        let hot = || from..from + HOT;
        for _ in 0..20 {
            misses(&store, &mut session, hot());
        }
        settle(&store);
        let missed = misses(&store, &mut session, hot());
        // Without ghosts it is most of them. The exact number depends on the background thread's timing.
        assert!(missed < u64::from(HOT / 3), "{missed} from {from}");
    }
}

/// B7: nodes that the back lacks stay, however small the front's budget; removals, too.
#[test]
fn what_is_not_applied_stays() {
    const KEYS: u32 = 600;
    // The array's size, and a little more.
    let bed = bed(290 << 10);
    drop(loaded(&bed, KEYS));
    // The back has everything, the front nothing, and no gleaner runs.
    let store = bed.open_with(|options| {
        options.reclaim_background = false;
        options.bullet.log_bytes = 1 << 20;
    });
    let mut session = store.session().unwrap();
    let mut model = BTreeMap::new();
    misses(&store, &mut session, 0..KEYS);
    for number in 0..KEYS {
        let key = key_of(number);
        match number % 3 {
            0 => assert!(session.delete(&key).unwrap()),
            1 => {
                session.put(&key, &value_of(number, 1)).unwrap();
                model.insert(key, value_of(number, 1));
            }
            _ => {
                model.insert(key, value_of(number, 0));
            }
        }
    }
    for _ in 0..3 {
        // Long enough for the background thread to evict what may leave.
        std::thread::sleep(Duration::from_millis(30));
        for number in 0..KEYS {
            let key = key_of(number);
            assert_eq!(
                session.get(&key).unwrap().as_ref(),
                model.get(&key),
                "{number}"
            );
        }
        assert_eq!(store.len(), model.len() as u64);
        assert_eq!(contents(&mut session).unwrap(), model);
    }
    // All the others have been evicted.
    let stayed = misses_of(
        &store,
        &mut session,
        (0..KEYS).filter(|number| number % 3 < 2),
    );
    assert_eq!(stayed, 0);
    assert!(front(&store).evicted > 0, "{:?}", front(&store));
    store.engine().reclaim().unwrap();
    assert_eq!(contents(&mut session).unwrap(), model);
}

fn misses_of(store: &Store, session: &mut Session, keys: impl Iterator<Item = u32>) -> u64 {
    let before = front(store).misses;
    for number in keys {
        session.get(&key_of(number)).unwrap();
    }
    front(store).misses - before
}

/// Writers with keys of their own, and readers who never see one decrease.
#[test]
fn readers_and_writers_agree_while_nodes_come_and_go() {
    const WRITERS: u32 = 2;
    const KEYS: u32 = 1_500;
    let seed = seed();
    for front_bytes in [1, 360 << 10, 600 << 10] {
        let bed = bed(front_bytes);
        let store = bed.open();
        let ended = AtomicU64::new(0);
        let mut model = Contents::new();
        std::thread::scope(|scope| {
            let (store, ended) = (&store, &ended);
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    scope.spawn(move || {
                        let _ended = Counted(ended);
                        write(store, writer * KEYS..(writer + 1) * KEYS, seed)
                    })
                })
                .collect();
            for reader in 0..2 {
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed ^ reader);
                    let mut session = store.session().unwrap();
                    let mut newest = vec![0; (WRITERS * KEYS) as usize];
                    while ended.load(Ordering::Relaxed) < u64::from(WRITERS) {
                        let number = random.random_range(0..WRITERS * KEYS);
                        let Some(value) = session.get(&key_of(number)).unwrap() else {
                            continue;
                        };
                        let version = u64::from_le_bytes(*value.first_chunk().unwrap());
                        assert_eq!(value, value_of(number, version), "{number}");
                        let before = std::mem::replace(&mut newest[number as usize], version);
                        assert!(version >= before, "{number}: {version} after {before}");
                    }
                });
            }
            for writer in writers {
                model.append(&mut writer.join().unwrap());
            }
        });
        let mut session = store.session().unwrap();
        assert_eq!(store.len(), model.len() as u64);
        assert_eq!(contents(&mut session).unwrap(), model);
        let stats = front(&store);
        assert!(stats.evicted > 0, "{stats:?}");
        // With almost no budget, hardly a byte is unused.
        match front_bytes {
            1 => assert!(stats.filled < stats.evicted / 100, "{stats:?}"),
            _ => assert!(stats.filled > 0, "{stats:?}"),
        }
        bed.verify(&store);
        drop((session, store));
        let store = bed.open();
        assert_eq!(store.len(), model.len() as u64);
        let mut session = store.session().unwrap();
        assert_eq!(contents(&mut session).unwrap(), model);
    }
}

fn write(store: &Store, keys: std::ops::Range<u32>, seed: u64) -> Contents {
    let mut random = StdRng::seed_from_u64(seed ^ u64::from(keys.start));
    let mut session = store.session().unwrap();
    let mut model: BTreeMap<u32, u64> = BTreeMap::new();
    for version in 1..40_000u64 {
        let number = random.random_range(keys.clone());
        let key = key_of(number);
        match random.random_range(0..8) {
            0 => {
                let was_there = session.delete(&key).unwrap();
                assert_eq!(was_there, model.remove(&number).is_some(), "{number}");
            }
            1 => {
                let found = session.get(&key).unwrap();
                let wanted = model.get(&number).map(|version| value_of(number, *version));
                assert_eq!(found, wanted, "{number}");
            }
            2 => {
                // By one: the word is the version.
                let by = model.get(&number).map_or(0, |before| version - before);
                let after = session.increment(&key, 0, by).unwrap();
                assert_eq!(after, model.get(&number).map(|_| version), "{number}");
                model.entry(number).and_modify(|before| *before = version);
            }
            3 => {
                let wanted = model.get(&number).copied();
                session
                    .update(&key, &mut |current, into| {
                        let found = current.map(|current| current.value.to_vec());
                        assert_eq!(found, wanted.map(|version| value_of(number, version)));
                        into.extend_from_slice(&value_of(number, version));
                        Change::Put { expires_at_ms: 0 }
                    })
                    .unwrap();
                model.insert(number, version);
            }
            _ => {
                session.put(&key, &value_of(number, version)).unwrap();
                model.insert(number, version);
            }
        }
    }
    let pairs = model.into_iter();
    pairs
        .map(|(number, version)| (key_of(number), value_of(number, version)))
        .collect()
}

/// The paper's ladder, each rung with a front that has a budget.
#[test]
fn every_rung_may_have_a_part_in_front() {
    for &system in BulletSystem::ALL {
        let bed = bed(1);
        let change = |options: &mut Options| {
            options.bullet.system = system;
            options.bullet.log_bytes = 16 << 10;
        };
        let mut options = bed.options();
        change(&mut options);
        let opened = Store::open(bed.path(), &options);
        if matches!(system.name(), "volatile" | "phash" | "hikv-ht") {
            let refused = opened.map(drop).unwrap_err();
            assert!(matches!(refused, Error::Options(_)), "{system}: {refused}");
            continue;
        }
        let store = opened.unwrap();
        let model = write(&store, 0..400, 7);
        let mut session = store.session().unwrap();
        assert_eq!(contents(&mut session).unwrap(), model, "{system}");
        assert_eq!(store.len(), model.len() as u64);
        assert!(front(&store).evicted > 0, "{system}");
    }
}

/// Without a budget everything stays, and no get reads the back.
#[test]
fn a_front_without_a_budget_has_everything() {
    let bed = Bed::emulated().of(EngineKind::Bullet);
    let store = loaded(&bed, 5_000);
    let mut session = store.session().unwrap();
    assert_eq!(misses(&store, &mut session, 0..5_000), 0);
    let stats = front(&store);
    assert_eq!(
        (stats.budget_bytes, stats.evicted, stats.filled),
        (None, 0, 0)
    );
}
