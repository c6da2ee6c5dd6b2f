//! Failing disks: a sync that reports an error, a full disk, a machine that goes off between any two calls.
//! Acknowledged writes are there afterwards, and no caller is told otherwise.

mod support;

use everdram::engine::BatchOp;
use everdram::{EngineKind, Error, Session, Store, test_each_engine};
use everdram_pm::Error as PoolError;
use everdram_pm::faults::Faults;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use support::contents::{Contents, assert_holds, assert_sound, contents};
use support::{Bed, seed};

test_each_engine!(
    a_failed_sync_is_told_and_nothing_acknowledged_is_lost,
    nobody_reads_a_write_whose_sync_failed,
    a_full_disk_refuses_writes_and_loses_nothing,
    a_power_loss_between_any_two_calls_loses_nothing_acknowledged,
);

/// A bed on files with an existing directory and faults installed for it.
fn faulty(engine: EngineKind) -> (Bed, Arc<Faults>) {
    let bed = Bed::file_in_memory().of(engine);
    std::fs::create_dir_all(bed.path()).unwrap();
    let faults = Faults::install(&bed.path());
    (bed, faults)
}

fn key_of(number: u32) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

fn is_poisoned(error: &Error) -> bool {
    matches!(
        error,
        Error::Pool(PoolError::Poisoned { .. }) | Error::Halted(_)
    )
}

/// In the field any sync may fail; here each of the first ones fails in turn.
fn a_failed_sync_is_told_and_nothing_acknowledged_is_lost(engine: EngineKind) {
    for survive in 0..12 {
        let (bed, faults) = faulty(engine);
        faults.lossy();
        let store = bed.open_with(|options| options.log_bytes = 4 << 20);
        let mut session = store.session().unwrap();
        let mut model = Contents::new();
        for number in 0..5 {
            session.put(&key_of(number), b"before").unwrap();
            model.insert(key_of(number), b"before".to_vec());
        }
        faults.fail_sync_after(survive);
        let mut refused = None;
        for number in 5..60 {
            match session.put(&key_of(number), b"after") {
                Ok(_) => _ = model.insert(key_of(number), b"after".to_vec()),
                Err(error) => {
                    refused = Some((number, error));
                    break;
                }
            }
        }
        let (number, error) =
            refused.unwrap_or_else(|| panic!("sync {survive} did not fail anything"));
        assert!(is_poisoned(&error), "{error}");
        assert!(error.to_string().contains("reopen"), "what to do: {error}");
        // Every later write is refused, by every session and in every way; reads of what was durable go on.
        let mut other = store.session().unwrap();
        assert!(is_poisoned(&session.put(b"later", b"v").unwrap_err()));
        assert!(is_poisoned(&other.put(b"later", b"v").unwrap_err()));
        assert!(is_poisoned(&other.delete(&key_of(0)).unwrap_err()));
        let op = BatchOp::Put {
            key: b"later",
            value: b"v",
            expires_at_ms: 0,
        };
        assert!(is_poisoned(
            &other
                .batch(&[op, BatchOp::Delete { key: b"x" }])
                .unwrap_err()
        ));
        assert!(store.sync().is_err());
        // A key may share its key lock with the key whose write failed, and engines track dependencies per
        // lock.
        let mut refused = 0;
        for (key, value) in &model {
            match other.get(key) {
                Ok(found) => assert_eq!(found.as_ref(), Some(value), "sync {survive}"),
                Err(error) => {
                    assert!(is_poisoned(&error), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(refused <= 1, "sync {survive}: {refused} reads refused");
        drop((session, other));
        assert!(
            store.close().is_err(),
            "a poisoned store does not close cleanly"
        );
        // The machine goes off with the data of the failed sync, which may or may not have reached the disk.
        faults.crash(survive).unwrap();
        let store = bed.open();
        let mut session = store.session().unwrap();
        if session.contains(&key_of(number)).unwrap() {
            model.insert(key_of(number), b"after".to_vec());
        }
        session.put(b"again", b"writable").unwrap();
        model.insert(b"again".to_vec(), b"writable".to_vec());
        drop(session);
        assert_holds(
            &store,
            &model,
            &format!("reopened after sync {survive} failed"),
        );
    }
}

/// A reader must not be shown what a failed sync may have lost.
fn nobody_reads_a_write_whose_sync_failed(engine: EngineKind) {
    let (bed, faults) = faulty(engine);
    let store = bed.open();
    let (mut writer, mut reader) = (store.session().unwrap(), store.session().unwrap());
    writer.put(b"key", b"durable").unwrap();
    faults.fail_sync_after(0);
    // The failing sync may be one of the log's own, for a segment ahead: then the first call gets the error.
    let refused = writer
        .submit_put(b"key", b"lost")
        .and_then(|_| writer.commit())
        .and_then(|ticket| writer.wait(ticket))
        .unwrap_err();
    assert!(is_poisoned(&refused), "{refused}");
    match reader.get(b"key") {
        Ok(value) => assert_eq!(value.as_deref(), Some(&b"durable"[..])),
        Err(error) => assert!(is_poisoned(&error), "{error}"),
    }
}

fn a_full_disk_refuses_writes_and_loses_nothing(engine: EngineKind) {
    let (bed, faults) = faulty(engine);
    let store = bed.open_with(|options| {
        options.initial_bytes = 1 << 20;
        options.bullet.log_bytes = 64 << 10;
    });
    let mut session = store.session().unwrap();
    faults.room(Some(0));
    // What the pool has no room for goes to another directory of the same disk.
    let below = bed.path().join("tier2");
    let below = below.is_dir().then(|| Faults::install(&below));
    let rooms = || below.iter().chain([&faults]);
    rooms().for_each(|faults| faults.room(Some(0)));
    let mut model = Contents::new();
    let mut number = 0;
    let error = loop {
        let (key, value) = (key_of(number), vec![number as u8; 3_000]);
        match session.put(&key, &value) {
            Ok(_) => _ = model.insert(key, value),
            Err(error) => break error,
        }
        number += 1;
        assert!(number < 10_000, "the disk never fills");
    };
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert!(!error.to_string().is_empty() && number > 100);
    let refused = session.put(b"large", &vec![1; 200_000]).unwrap_err();
    assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
    assert_eq!(contents(&mut session).unwrap(), model, "reads go on");
    // Deletes need no room. The room they free is reused.
    for gone in (0..number).filter(|n| n % 2 == 0) {
        assert!(session.delete(&key_of(gone)).unwrap());
        model.remove(&key_of(gone));
    }
    store.engine().reclaim().unwrap();
    // Cleaning the log of a lower tier needs room, so only the pool's is reused.
    let share = if below.is_some() { 8 } else { 4 };
    for new in 0..number / share {
        let (key, value) = (format!("new-{new}").into_bytes(), vec![7; 3_000]);
        session
            .put(&key, &value)
            .unwrap_or_else(|error| panic!("{new} of {number}: {error}"));
        model.insert(key, value);
    }
    drop(session);
    assert_holds(&store, &model, "on the full disk");
    drop(store);
    for e in std::fs::read_dir(bed.path()).unwrap() {
        let e = e.unwrap();
        println!("{:?} {}", e.file_name(), e.metadata().unwrap().len());
    }
    let store = bed.open();
    assert_holds(&store, &model, "reopened on the full disk");
    faults.room(None);
    let mut session = store.session().unwrap();
    session.put(b"large", &vec![1; 500_000]).unwrap();
    model.insert(b"large".to_vec(), vec![1; 500_000]);
    drop(session);
    assert_holds(&store, &model, "with room again");
}

/// The possible states of a key after a crash: the acknowledged value, or that of a write in flight.
type Possible = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

/// Random writes until one fails. Updates the acknowledged state; returns the possible states after the
/// failed one.
fn write_until_off(random: &mut StdRng, session: &mut Session, model: &mut Contents) -> Possible {
    loop {
        let keys: Vec<Vec<u8>> = (0..3).map(|_| key_of(random.random_range(0..30))).collect();
        let length = [0, 10, 300, 2_000, 6_000, 60_000][random.random_range(0..6)];
        let value = vec![random.random(); length];
        let mut next = model.clone();
        let done = match random.random_range(0..10) {
            0..6 => {
                next.insert(keys[0].clone(), value.clone());
                session.put(&keys[0], &value).map(|_| ())
            }
            6..8 => {
                next.remove(&keys[0]);
                session.delete(&keys[0]).map(|_| ())
            }
            _ => {
                let ops: Vec<BatchOp<'_>> = keys
                    .iter()
                    .map(|key| BatchOp::Put {
                        key,
                        value: &value,
                        expires_at_ms: 0,
                    })
                    .collect();
                next.extend(keys.iter().map(|key| (key.clone(), value.clone())));
                session.batch(&ops)
            }
        };
        if done.is_ok() {
            *model = next;
            continue;
        }
        let keys = model.keys().chain(next.keys());
        let both = |key: &Vec<u8>| vec![model.get(key).cloned(), next.get(key).cloned()];
        return keys.map(|key| (key.clone(), both(key))).collect();
    }
}

/// After a power loss the store has everything acknowledged; a write in flight is there whole or not at all.
/// `None`: power went during the reads; an iteration waits for other sessions' fences.
fn assert_possible(store: &Store, possible: &Possible, when: &str) -> Option<Contents> {
    let found = match contents(&mut store.session().unwrap()) {
        Ok(found) => found,
        Err(Error::Pool(_)) => return None,
        Err(error) => panic!("{when}: {error}"),
    };
    let states = [0, 1].map(|state| {
        let of = |(key, values): (&Vec<u8>, &Vec<Option<Vec<u8>>>)| {
            Some((key.clone(), values[state].clone()?))
        };
        possible.iter().filter_map(of).collect::<Contents>()
    });
    assert!(
        states.contains(&found),
        "{when}: {}\n-- nor {}",
        support::contents::difference(&found, &states[0]),
        support::contents::difference(&found, &states[1])
    );
    assert_sound(store, when);
    Some(found)
}

fn a_power_loss_between_any_two_calls_loses_nothing_acknowledged(engine: EngineKind) {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let mut cut_while_opening = 0;
    for campaign in 0..12 {
        let (bed, faults) = faulty(engine);
        faults.lossy();
        let mut model = Contents::new();
        let mut possible = Possible::new();
        for round in 0..10 {
            let when = format!("campaign {campaign}, round {round}");
            // Some crashes come during the open.
            let calls = if random.random_bool(0.2) { 30 } else { 400 };
            if round > 0 {
                faults.off_after(random.random_range(0..calls));
            }
            let mut options = bed.options();
            options.initial_bytes = 400 << 10;
            options.log_bytes = 4 << 20;
            match Store::open(bed.path(), &options) {
                Ok(store) => {
                    let found = match round {
                        0 => {
                            faults.off_after(random.random_range(20..400));
                            Some(model.clone())
                        }
                        _ => assert_possible(&store, &possible, &when),
                    };
                    // Otherwise the earlier possibilities remain.
                    if let Some(found) = found {
                        model = found;
                        let mut session = store.session().unwrap();
                        possible = write_until_off(&mut random, &mut session, &mut model);
                    }
                }
                Err(Error::Pool(_)) => cut_while_opening += 1,
                Err(error) => panic!("{when}: {error}"),
            }
            faults.crash(random.random()).unwrap();
        }
        let store = bed.open();
        let when = format!("campaign {campaign}, at the end");
        assert!(
            assert_possible(&store, &possible, &when).is_some(),
            "{when}"
        );
    }
    assert!(
        cut_while_opening > 0,
        "no crash came while a pool was opened"
    );
}
