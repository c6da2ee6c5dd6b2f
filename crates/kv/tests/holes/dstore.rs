//! The holes of DStore. Blocks of a value have 4 KiB, values up to 512 bytes lie in cells; a background
//! thread makes checkpoints at any time, in addition to the tests.
//!
//! D1 cannot be opened again: replay has no allocator that it could ask. D9 neither: there are no persistent
//! locks. D11 and D12 are about files and settings that the lab does not exchange.

use crate::map;
use crate::support::contents::{Contents, assert_holds, assert_sound, contents};
use crate::support::frozen::{Frozen, changed_words, word};
use crate::support::{Bed, Counted, seed};
use everdram::engine::BatchOp;
use everdram::{Durability, EngineKind, Error, Options, Session, Store};
use everdram_pm::Error as PoolError;
use everdram_pm::faults::Faults;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: usize = 4096;
/// The copies of the ledger, which has the root, the heads and the floor.
const LEDGERS: Range<usize> = 8192 + 512..8192 + 3584;

fn bed() -> Bed {
    Bed::emulated().of(EngineKind::Dstore)
}

/// Nothing is frozen while a checkpoint runs in the background.
fn quiet(options: &mut Options) {
    options.reclaim_background = false;
}

/// The pool after a kill at this moment. Two equal copies prove that nothing changed meanwhile.
fn frozen(bed: &Bed) -> Frozen {
    loop {
        let image = Frozen::take(&bed.path());
        if image == Frozen::take(&bed.path()) {
            return image;
        }
    }
}

fn opened(image: &Frozen) -> (Bed, Store) {
    let elsewhere = bed();
    image.lay(&elsewhere.path());
    let store = elsewhere.open();
    (elsewhere, store)
}

/// A kill at this moment keeps `wanted`; so does another after the recovery.
fn assert_kept(bed: &Bed, wanted: &Contents, when: &str) {
    let (place, store) = opened(&frozen(bed));
    assert_holds(&store, wanted, when);
    let (_again, twice) = opened(&frozen(&place));
    assert_holds(&twice, wanted, when);
}

fn checkpoint(store: &Store) {
    store.engine().checkpoint().unwrap();
}

/// Replay allocated again, in the order of the records that had become durable. The block of a put that a
/// crash had undone went to the next one, and so did that one's block to another object.
#[test]
fn hole_d1_replay_gives_no_block_to_another_object() {
    let bed = bed();
    let store = bed.open_with(quiet);
    let mut model = Contents::new();
    let keys = crate::support::keys::independent_keys::<4>(&store);
    for round in 0..6u8 {
        let mut sessions: Vec<Session> = (0..4).map(|_| store.session().unwrap()).collect();
        // Every other session has taken blocks and commits nothing.
        for (number, (session, key)) in sessions.iter_mut().zip(&keys).enumerate() {
            let value = vec![round * 4 + number as u8; (1 + number) * BLOCK];
            session.submit_put(key, &value).unwrap();
            if number % 2 == usize::from(round % 2) {
                let ticket = session.commit().unwrap();
                session.wait(ticket).unwrap();
                model.insert(key.to_vec(), value);
            }
        }
        assert_kept(&bed, &model, &format!("round {round}"));
        // The others commit as they end.
        drop(sessions);
        for (number, key) in keys.iter().enumerate() {
            let value = vec![round * 4 + number as u8; (1 + number) * BLOCK];
            model.insert(key.to_vec(), value);
        }
        if round % 2 == 1 {
            checkpoint(&store);
            assert_kept(
                &bed,
                &model,
                &format!("round {round}, replayed on the shadow"),
            );
        }
    }
}

/// A value was written over the one before: half of the new one was there, and the old one was not.
#[test]
fn hole_d2_a_torn_write_is_no_write() {
    // In one block, and in blocks with a map.
    for blocks in [1, 3] {
        let bed = bed();
        let store = bed.open_with(quiet);
        let mut session = store.session().unwrap();
        session.put(b"key", &vec![1; blocks * BLOCK]).unwrap();
        let before = frozen(&bed);
        session.put(b"key", &vec![2; blocks * BLOCK]).unwrap();
        let after = frozen(&bed);
        let sectors: Vec<usize> = (0..after.file("data").len())
            .step_by(512)
            .filter(|&at| before.file("data")[at..at + 512] != after.file("data")[at..at + 512])
            .collect();
        assert!(sectors.len() >= blocks * BLOCK / 512, "{}", sectors.len());
        // Any sectors of the data file are written, and the record is not.
        let old = map(&[(b"key", &vec![1; blocks * BLOCK])]);
        for some in 0..=sectors.len() {
            let mut torn = before.clone();
            for &at in &sectors[..some] {
                let new = &after.file("data")[at..at + 512];
                torn.file_mut("data")[at..at + 512].copy_from_slice(new);
            }
            let (_place, store) = opened(&torn);
            assert_holds(&store, &old, &format!("{some} sectors"));
        }
        let (_place, store) = opened(&after);
        let new = map(&[(b"key", &vec![2; blocks * BLOCK])]);
        assert_holds(&store, &new, "all of it");
    }
}

/// A block was given to the next value while a reader was reading it, or before the record that had freed it
/// survived: a crash brought the old value back, without its bytes.
#[test]
fn hole_d3_a_freed_block_is_whole_until_nobody_needs_it() {
    let bed = bed();
    let store = bed.open_with(|options| options.dstore.data_bytes_max = 8 << 20);
    let ended = AtomicU64::new(0);
    let value = |key: u8, round: u8| [key, round].repeat(BLOCK / 2 + usize::from(round) * 16);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = store.session().unwrap();
            while ended.load(Ordering::Relaxed) == 0 {
                for key in 0..8u8 {
                    if let Some(found) = session.get(&[key]).unwrap() {
                        assert_eq!(found, value(key, found[1]), "a torn or foreign value");
                    }
                }
            }
        });
        scope.spawn(|| {
            let _ended = Counted(&ended);
            let mut session = store.session().unwrap();
            for round in (0..=255u8).cycle().take(600) {
                for key in 0..8u8 {
                    // What a reader keeps that does not run at the moment may be all that is free.
                    while let Err(error) = session.put(&[key], &value(key, round)) {
                        assert!(matches!(error, Error::NoSpace(_)), "{error}");
                        std::thread::yield_now();
                    }
                }
            }
        });
    });
    let model = (0..8u8).map(|key| (vec![key], value(key, 87))).collect();
    assert_kept(&bed, &model, "killed");
    // What was acknowledged may be lost here, but not what it replaced.
    let seed = seed();
    for round in 0..8 {
        let bed = Bed::file_in_memory().of(EngineKind::Dstore);
        std::fs::create_dir_all(bed.path()).unwrap();
        let faults = Faults::install(&bed.path());
        faults.lossy();
        let store = bed.open_with(|options| {
            options.dstore.data_bytes_max = 512 << 10;
            options.durability = Durability::EverySec;
        });
        let mut session = store.session().unwrap();
        for key in 0..8u8 {
            session.put(&[key], &value(key, 0)).unwrap();
        }
        store.engine().sync().unwrap();
        for round in 1..60u8 {
            for key in 0..8u8 {
                session.put(&[key], &value(key, round)).unwrap();
            }
        }
        faults.off_after(0);
        drop((session, store));
        faults.crash(seed ^ round).unwrap();
        let store = bed.open();
        let found = contents(&mut store.session().unwrap()).unwrap();
        assert_eq!(found.len(), 8, "seed {seed}, round {round}");
        for (key, found) in found {
            assert_eq!(found, value(key[0], found[1]), "seed {seed}, round {round}");
        }
    }
}

/// The slot was shown before its record was durable: a reader saw it, then it was lost.
#[test]
fn hole_d4_nobody_builds_on_what_is_not_durable() {
    for (old, new) in [(&[1; 20][..], &[2; 20][..]), (&[3; 5000], &[4; 5000])] {
        let bed = Bed::file_in_memory().of(EngineKind::Dstore);
        std::fs::create_dir_all(bed.path()).unwrap();
        let faults = Faults::install(&bed.path());
        faults.lossy();
        let store = bed.open_with(quiet);
        let (mut writer, mut reader) = (store.session().unwrap(), store.session().unwrap());
        writer.put(b"key", old).unwrap();
        writer.submit_put(b"key", new).unwrap();
        assert_eq!(
            reader.get(b"key").unwrap().as_deref(),
            Some(old),
            "submitted"
        );
        // The record is written, and does not survive.
        faults.off_after(0);
        let committed = writer.commit().and_then(|ticket| writer.wait(ticket));
        assert!(committed.is_err(), "the disk is off");
        if let Ok(found) = reader.get(b"key") {
            assert_eq!(
                found.as_deref(),
                Some(old),
                "a reader was shown what is lost"
            );
        }
        drop((writer, reader, store));
        faults.crash(seed()).unwrap();
        assert_eq!(bed.open().len(), 1);
    }
}

/// A reader took the length and the place from one version and the bytes from the next.
#[test]
fn hole_d5_a_reader_that_comes_late_sees_one_version() {
    let store = bed().open();
    let ended = AtomicU64::new(0);
    // In one cell, in cells of other sizes, in blocks, and away.
    let lengths = [500, 499, 480, 30, 500, 5000, 10_000, 500];
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut session = store.session().unwrap();
                while ended.load(Ordering::Relaxed) == 0 {
                    if let Some(found) = session.get(b"key").unwrap() {
                        let round = found[0];
                        let length = lengths[usize::from(round) % lengths.len()];
                        assert_eq!(found, vec![round; length], "parts of several versions");
                    }
                }
            });
        }
        scope.spawn(|| {
            let _ended = Counted(&ended);
            let mut session = store.session().unwrap();
            for round in (0..=255u8).cycle().take(40_000) {
                let length = lengths[usize::from(round) % lengths.len()];
                session.put(b"key", &vec![round; length]).unwrap();
                if round % 16 == 7 {
                    session.delete(b"key").unwrap();
                }
            }
        });
    });
}

/// After the end of a log there was a record of an earlier lap, or half of one, and it counted.
#[test]
fn hole_d6_no_former_lap_counts() {
    let bed = bed();
    let small = |options: &mut Options| options.dstore.log_bytes = 16 << 10;
    let store = bed.open_with(small);
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    // Records have one length, so that those of a former lap begin where a log ends. Those of the long key
    // name blocks, which other values get once the records do not count.
    for round in 0..4000u32 {
        let key = match round % 8 {
            7 => vec![7; 3000],
            _ => vec![(round % 50) as u8],
        };
        if round % 16 == 15 {
            session.delete(&key).unwrap();
            model.remove(&key);
        } else {
            let value = round.to_le_bytes().repeat(150);
            session.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        if round % 199 == 198 {
            assert_kept(&bed, &model, &format!("round {round}"));
        }
    }
    assert!(
        store.stats().own("checkpoints") > Some(20),
        "{:?}",
        store.stats()
    );
    drop((session, store));
    // Of one more record any part is durable.
    let store = bed.open_with(quiet);
    let before = frozen(&bed);
    store.session().unwrap().put(b"torn", &[7; 200]).unwrap();
    let after = frozen(&bed);
    let changed = changed_words(before.image(), after.image());
    for forwards in [false, true] {
        for some in 1..changed.len() {
            let mut image = before.clone();
            for (nth, &at) in changed.iter().enumerate() {
                if (nth < some) == forwards {
                    image.image_mut()[at..at + 8].copy_from_slice(&after.image()[at..at + 8]);
                }
            }
            let (_place, store) = opened(&image);
            assert_holds(&store, &model, &format!("{some} of {changed:?}"));
        }
    }
}

/// The logs were swapped, and the records in the old one whose writers had not committed moved to the new
/// one: one of them was lost, or counted twice.
#[test]
fn hole_d7_an_epoch_waits_for_who_writes_in_it() {
    let bed = bed();
    let store = bed.open_with(|options| {
        quiet(options);
        options.dstore.log_bytes = 1 << 20;
    });
    let keys = crate::support::keys::independent_keys::<251>(&store);
    let (other, keys) = keys.split_last().unwrap();
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    for (nth, round) in (0..=255u8).cycle().take(600).enumerate() {
        let (begin, ended) = (Barrier::new(2), AtomicU64::new(0));
        let is_begun = std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ended = Counted(&ended);
                let mut session = store.session().unwrap();
                for key in keys {
                    session.submit_put(key, &[round; 500]).unwrap();
                }
                begin.wait();
                // One record after the other goes to a log, and epochs end meanwhile.
                let ticket = session.commit().unwrap();
                session.wait(ticket).unwrap();
            });
            let written = || store.stats().own("log_written_bytes").unwrap();
            let before = written();
            begin.wait();
            while written() < before + 2_000 {}
            // Records of the first one still count. Logs that are empty are not checkpointed.
            for _ in 0..2 {
                session.put(other, &[round; 20]).unwrap();
                checkpoint(&store);
            }
            ended.load(Ordering::Relaxed) == 0
        });
        // Nothing can be lost if all records were there before.
        if is_begun || nth % 50 == 49 {
            model.extend(keys.iter().map(|key| (key.clone(), vec![round; 500])));
            model.insert(other.clone(), vec![round; 20]);
            let (_place, killed) = opened(&frozen(&bed));
            assert_holds(&killed, &model, &format!("killed, round {nth}"));
        }
        checkpoint(&store);
    }
    assert_kept(&bed, &model, "killed twice");
}

/// The root pointed to the new shadow, and the heads of the logs did not move with it, or before it.
#[test]
fn hole_d8_root_and_heads_change_together() {
    let bed = bed();
    let store = bed.open_with(quiet);
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    for number in 0..120u8 {
        session
            .put(&[number], &vec![number; 40 * usize::from(number)])
            .unwrap();
        model.insert(vec![number], vec![number; 40 * usize::from(number)]);
    }
    checkpoint(&store);
    for number in (0..120u8).step_by(3) {
        session.delete(&[number]).unwrap();
        model.remove(&[number][..]);
    }
    let before = frozen(&bed);
    checkpoint(&store);
    let after = frozen(&bed);
    assert!(store.stats().own("checkpoints") >= Some(2));
    let sequence = |frozen: &Frozen| word(frozen.image(), LEDGERS.start + 8);
    assert_eq!(
        sequence(&after),
        sequence(&before) + 1,
        "one ledger has both"
    );
    // Pages are fenced before the ledger: any part of the pages, and then any of the ledger.
    let changed = changed_words(before.image(), after.image());
    let (ledger, pages): (Vec<usize>, Vec<usize>) =
        changed.iter().partition(|at| LEDGERS.contains(at));
    assert!(
        ledger.len() > 4 && pages.len() > 100,
        "{} {}",
        ledger.len(),
        pages.len()
    );
    let mut image = before.clone();
    for words in [&pages, &ledger] {
        let step = words.len().div_ceil(40);
        for (nth, &at) in words.iter().enumerate() {
            image.image_mut()[at..at + 8].copy_from_slice(&after.image()[at..at + 8]);
            if nth % step == 0 {
                let (_place, store) = opened(&image);
                assert_holds(&store, &model, &format!("{nth} of {} words", words.len()));
            }
        }
    }
}

/// A lock was a record of the log, and a crash left it locked.
#[test]
fn hole_d9_no_lock_survives_a_crash() {
    let bed = bed();
    let store = bed.open();
    let mut sessions: Vec<Session> = (0..4).map(|_| store.session().unwrap()).collect();
    let keys = crate::support::keys::independent_keys::<4>(&store);
    for (session, key) in sessions.iter_mut().zip(&keys) {
        session.put(key, b"value").unwrap();
        session.submit_put(key, b"in flight").unwrap();
    }
    let used = |store: &Store| store.stats().own("log_used_bytes");
    let before = used(&store);
    let (place, killed) = opened(&frozen(&bed));
    let mut session = killed.session().unwrap();
    for key in &keys {
        assert!(!session.put(key, b"new").unwrap());
        assert!(session.delete(key).unwrap());
    }
    assert_kept(&place, &Contents::new(), "removed and killed");
    assert_eq!(
        used(&store),
        before,
        "what is not committed takes room in the logs"
    );
}

/// The disk's cache was taken for the disk: a record named a block that a power failure took.
#[test]
fn hole_d10_data_before_their_record() {
    let seed = seed();
    for make in [Bed::emulated, Bed::file_in_memory] {
        for round in 0..6 {
            let bed = make().of(EngineKind::Dstore);
            std::fs::create_dir_all(bed.path()).unwrap();
            let faults = Faults::install(&bed.path());
            faults.lossy();
            let store = bed.open_with(quiet);
            let mut session = store.session().unwrap();
            let mut model = Contents::new();
            for number in 0..30u8 {
                let value = vec![number; 700 * usize::from(number % 9)];
                session.put(&[number % 12], &value).unwrap();
                model.insert(vec![number % 12], value);
            }
            let put = |key| BatchOp::Put {
                key,
                value: &[9; 3000],
                expires_at_ms: 0,
            };
            session.batch(&[put(b"one"), put(b"two")]).unwrap();
            model.extend(map(&[(b"one", &[9; 3000]), (b"two", &[9; 3000])]));
            faults.off_after(0);
            drop((session, store));
            faults.crash(seed ^ round).unwrap();
            assert_holds(&bed.open(), &model, &format!("seed {seed}, round {round}"));
        }
    }
}

/// The data file, or the pool, was restored from an older copy, or came from another pool: values were those
/// of other objects.
#[test]
fn hole_d11_an_older_half_is_refused() {
    let bed = bed();
    let write = |round: u8| {
        let store = bed.open_with(quiet);
        let mut session = store.session().unwrap();
        for key in 0..20u8 {
            session.put(&[key], &[key ^ round; 5000]).unwrap();
        }
        // A kill, not a close: nothing is written after this.
        frozen(&bed)
    };
    let (old, new) = (write(1), write(2));
    let (_place, store) = opened(&new);
    assert_eq!(store.len(), 20);
    let other = {
        let bed = self::bed();
        let store = bed.open_with(quiet);
        store.session().unwrap().put(b"key", &[1; 5000]).unwrap();
        frozen(&bed)
    };
    let with = |image: &Frozen, data: &[u8]| {
        let mut mixed = image.clone();
        *mixed.file_mut("data") = data.to_vec();
        mixed
    };
    for (what, mixed) in [
        ("an older data file", with(&new, old.file("data"))),
        ("an older pool", with(&old, new.file("data"))),
        ("another pool's data file", with(&new, other.file("data"))),
        ("an empty data file", with(&new, &[])),
        (
            "a data file without headers",
            with(&new, &vec![0; new.file("data").len()]),
        ),
    ] {
        let elsewhere = self::bed();
        mixed.lay(&elsewhere.path());
        let refused = Store::open(elsewhere.path(), &elsewhere.options()).map(drop);
        let is_refused = matches!(refused, Err(Error::Pool(PoolError::Unpaired { .. })));
        assert!(is_refused, "{what}: {refused:?}");
        let left = Frozen::take(&elsewhere.path());
        assert!(
            left.file("data") == mixed.file("data"),
            "{what}: it was changed"
        );
    }
}

/// Replay had other inputs than the first time: other random numbers, another clock, another order of
/// threads. It made another state of the same log.
#[test]
fn hole_d12_another_secret_clock_and_thread_count_recover_the_same() {
    let bed = bed();
    let store = bed.open_with(quiet);
    let mut random = StdRng::seed_from_u64(seed());
    let mut sessions: Vec<Session> = (0..4).map(|_| store.session().unwrap()).collect();
    let mut model = Contents::new();
    for round in 0..1500 {
        let session = &mut sessions[round % 4];
        let (key, length) = (random.random_range(0..60u8), random.random_range(0..3000));
        match random.random_range(0..5) {
            0 => {
                session.delete(&[key]).unwrap();
                model.remove(&[key][..]);
            }
            1 if round % 300 == 1 => {
                let ticket = session.engine().clear().unwrap();
                session.wait(ticket).unwrap();
                model.clear();
            }
            _ => {
                session.put(&[key], &vec![key; length]).unwrap();
                model.insert(vec![key], vec![key; length]);
            }
        }
    }
    let killed = frozen(&bed);
    // The index draws its secret at each start.
    for (threads, later) in [(1, 1), (2, 7), (4, 99), (3, 3)] {
        let elsewhere = self::bed();
        killed.lay(&elsewhere.path());
        elsewhere.clock.fetch_add(later << 20, Ordering::Relaxed);
        let store = elsewhere.open_with(|options| {
            options.recovery_threads = threads;
            options.stripes = 64 << threads;
        });
        assert_holds(&store, &model, &format!("{threads} threads"));
        assert_sound(&store, "recovered");
    }
}
