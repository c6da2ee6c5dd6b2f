//! Bugs that were there once. Each test opens with what went wrong.

mod support;

use everdram::{BatchOp, Change, Error};
use std::sync::atomic::{AtomicU64, Ordering};
use support::{Bed, Counted, each_bed};

/// Room left at the end of pages counted as garbage, so blocks of 2 KiB values were compacted into blocks
/// that looked just as bad, for ever.
#[test]
fn compaction_ends_with_values_that_pack_badly() {
    each_bed(|bed| {
        let store = bed.open_with(|options| options.reclaim_background = false);
        let mut session = store.session().unwrap();
        for length in [1_400, 2_100, 3_000, 9_000, 13_000] {
            for number in 0..150u32 {
                session
                    .submit_put(&number.to_le_bytes(), &vec![7; length])
                    .unwrap();
            }
            let ticket = session.commit().unwrap();
            session.wait(ticket).unwrap();
            store.engine().reclaim().unwrap();
            let moved = store.stats().bytes_moved;
            store.engine().reclaim().unwrap();
            let again = store.stats().bytes_moved - moved;
            assert!(
                again < 200_000,
                "{again} bytes moved for nothing, values of {length} bytes"
            );
        }
        bed.verify(&store);
    });
}

/// The block table was as large as the size limit said; reopened with a smaller limit, blocks beyond it
/// were not scanned and their keys vanished.
#[test]
fn a_smaller_size_limit_hides_nothing() {
    each_bed(|bed| {
        let store = bed.open();
        let mut session = store.session().unwrap();
        for number in 0..400u32 {
            session
                .submit_put(&number.to_le_bytes(), &[3; 9_000])
                .unwrap();
        }
        let ticket = session.commit().unwrap();
        session.wait(ticket).unwrap();
        drop(session);
        store.close().unwrap();
        let store = bed.open_with(|options| options.max_bytes = options.initial_bytes);
        assert_eq!(store.len(), 400);
        let mut session = store.session().unwrap();
        assert_eq!(
            session.get(&399u32.to_le_bytes()).unwrap().unwrap(),
            [3; 9_000]
        );
    });
}

/// The pieces of a large value were read after the epoch pin was given back; overwritten meanwhile, their
/// blocks were used for something else and the reader got "damaged pool".
#[test]
fn large_values_read_whole_while_they_are_replaced() {
    each_bed(|bed| {
        let store = bed.open();
        let ended = AtomicU64::new(0);
        let value = |fill: u8| vec![fill; 100_000];
        store.session().unwrap().put(b"large", &value(0)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ended = Counted(&ended);
                let mut session = store.session().unwrap();
                for round in 0..bed.scaled(300) {
                    session.put(b"large", &value(round as u8)).unwrap();
                    session.put(b"other", &value(!(round as u8))).unwrap();
                }
            });
            let mut session = store.session().unwrap();
            while ended.load(Ordering::Relaxed) == 0 {
                let seen = session.get(b"large").unwrap().unwrap();
                assert!(seen.len() == 100_000 && seen.iter().all(|&byte| byte == seen[0]));
            }
        });
    });
}

/// A word changed in place left the version as it was, so a conditional put overwrote what it never saw.
#[test]
fn a_conditional_put_notices_an_edit_in_place() {
    each_bed(|bed| {
        let store = bed.open();
        let mut session = store.session().unwrap();
        // Enough records of the fixed size to seal the block that holds the first.
        for number in 0..2_000u64 {
            session.submit_put(&number.to_le_bytes(), &[0; 16]).unwrap();
        }
        let ticket = session.commit().unwrap();
        session.wait(ticket).unwrap();
        let key = 0u64.to_le_bytes();
        let mut value = Vec::new();
        let version = session.get_into(&key, &mut value).unwrap().unwrap().version;
        let watched = session.engine().watch(&key);
        session.update_word(&key, 8, &mut |word| word + 1).unwrap();
        assert!(!session.put_if_version(&key, &[9; 16], version).unwrap());
        assert_ne!(session.engine().watch(&key), watched);
        // Nor may compaction make the old version look current again.
        store.engine().reclaim().unwrap();
        assert!(!session.put_if_version(&key, &[9; 16], version).unwrap());
        value.clear();
        let version = session.get_into(&key, &mut value).unwrap().unwrap().version;
        assert!(session.put_if_version(&key, &[9; 16], version).unwrap());
    });
}

/// Two sessions with submitted writes waited for each other's keys: reads of values that may be changed in
/// place wait for the key's writer.
#[test]
fn sessions_with_pending_writes_do_not_wait_for_each_other() {
    each_bed(|bed| {
        let store = bed.open();
        let mut session = store.session().unwrap();
        for number in 0..2_000u64 {
            session.submit_put(&number.to_le_bytes(), &[0; 16]).unwrap();
        }
        let _ = session.commit().unwrap();
        let (a, b) = (1u64.to_le_bytes(), 2u64.to_le_bytes());
        session.update_word(&a, 0, &mut |word| word + 1).unwrap();
        session.update_word(&b, 0, &mut |word| word + 1).unwrap();
        std::thread::scope(|scope| {
            for (mine, other) in [(a, b), (b, a)] {
                let store = &store;
                scope.spawn(move || {
                    let mut session = store.session().unwrap();
                    for round in 0..bed.scaled(300) as u8 {
                        session.submit_put(&mine, &[round; 16]).unwrap();
                        session.get(&other).unwrap();
                        let ticket = session.commit().unwrap();
                        session.wait(ticket).unwrap();
                    }
                });
            }
        });
    });
}

/// A closure of the caller that panicked left its key locked for ever.
#[test]
fn a_panicking_closure_locks_nothing() {
    each_bed(|bed| {
        let store = bed.open();
        let mut other = store.session().unwrap();
        for what in 0..3 {
            let mut session = store.session().unwrap();
            session.put(b"k", &[0; 16]).unwrap();
            let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match what {
                0 => session.update(b"k", &mut |_, _| -> Change { panic!("on purpose") }),
                1 => session
                    .update_word(b"k", 0, &mut |_| panic!("on purpose"))
                    .map(|_| ()),
                _ => session.transaction(everdram::Scope::All, &mut |_| panic!("on purpose")),
            }));
            assert!(attempt.is_err());
            other.put(b"k", b"still writable").unwrap();
        }
    });
}

/// One compaction candidate that could not be read came first in every round, and no other was compacted:
/// a key too long for a page, removed with everything else.
#[test]
fn compaction_goes_on_after_long_keys_were_cleared() {
    each_bed(|bed| {
        let store = bed.open_with(|options| options.reclaim_background = false);
        let mut session = store.session().unwrap();
        for number in 0..40u8 {
            session.put(&vec![number; 50_000], b"v").unwrap();
        }
        let ticket = session.engine().clear().unwrap();
        session.wait(ticket).unwrap();
        for round in 0..5u8 {
            for number in 0..200u32 {
                session
                    .submit_put(&number.to_le_bytes(), &[round; 900])
                    .unwrap();
            }
            let _ = session.commit().unwrap();
        }
        store.engine().reclaim().unwrap();
        assert!(store.stats().blocks_reclaimed > 10, "{:?}", store.stats());
        bed.verify(&store);
    });
}

/// Records that leave a page nearly empty by nature: the slack of such pages counted as garbage, and the
/// background thread moved them round and round on an idle store.
#[test]
fn an_idle_store_does_not_compact() {
    let bed = Bed::emulated();
    let store = bed.open_with(|options| options.reclaim_background = false);
    let mut session = store.session().unwrap();
    for number in 0..600u32 {
        let length = if number % 2 == 0 { 20 } else { 3_990 };
        session
            .submit_put(&number.to_le_bytes(), &vec![7; length])
            .unwrap();
    }
    let _ = session.commit().unwrap();
    store.engine().reclaim().unwrap();
    let moved = store.stats().bytes_moved;
    for _ in 0..5 {
        store.engine().reclaim().unwrap();
    }
    assert_eq!(store.stats().bytes_moved, moved);
}

/// A pool of class `everysec` whose process died right after the first open never opened again: the first
/// word of its root page was not durable, and the extents that needed it were.
#[test]
fn a_weaker_class_survives_a_crash_after_creation() {
    let bed = Bed::file();
    for durability in [everdram::Durability::EverySec, everdram::Durability::None] {
        let path = bed.dir.path().join(durability.to_string());
        let mut options = bed.options();
        options.durability = durability;
        let store = everdram::Store::open(&path, &options).unwrap();
        // As a crash sees it: the files as they are, copied before anything else is written.
        let copy = bed.dir.path().join(format!("{durability}-copy"));
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        drop(store);
        everdram::Store::open(&copy, &options)
            .unwrap()
            .close()
            .unwrap();
    }
}

/// A batch that cannot fit says so before anything happened, and everything is as it was.
#[test]
fn a_batch_without_room_changes_nothing() {
    let bed = Bed::emulated();
    let store = bed.open_with(|options| {
        options.max_bytes = 4 << 20;
        options.initial_bytes = 1 << 20;
    });
    let mut session = store.session().unwrap();
    session.put(b"a", b"before").unwrap();
    let large = vec![1; 1 << 20];
    let keys: Vec<Vec<u8>> = (0..8u8).map(|n| vec![b'a' + n]).collect();
    let put = |key| BatchOp::Put {
        key,
        value: &large,
        expires_at_ms: 0,
    };
    let ops: Vec<BatchOp<'_>> = keys.iter().map(|key| put(key.as_slice())).collect();
    assert!(matches!(session.batch(&ops), Err(Error::NoSpace(_))));
    assert_eq!(session.get(b"a").unwrap().as_deref(), Some(&b"before"[..]));
    assert_eq!(store.len(), 1);
    session.put(b"a", b"after").unwrap();
    drop(session);
    drop(store);
    let store = bed.open();
    let mut session = store.session().unwrap();
    assert_eq!(session.get(b"a").unwrap().as_deref(), Some(&b"after"[..]));
    assert_eq!(store.len(), 1);
    bed.verify(&store);
}

/// A batch that only removed keys which were absent already had nothing to write, and was acknowledged without
/// waiting for the removal that had made them absent: of another session, and not durable yet. After a crash the
/// keys were back.
#[test]
fn a_batch_that_finds_nothing_to_do_waits_for_what_it_found() {
    each_bed(|bed| {
        let store = bed.open();
        let (mut first, mut second) = (store.session().unwrap(), store.session().unwrap());
        first.put(b"key", b"value").unwrap();
        first.submit_delete(b"key").unwrap();
        let removed = first.commit().unwrap();
        let nothing = second
            .engine()
            .batch(&[BatchOp::Delete { key: b"key" }])
            .unwrap();
        assert!(nothing >= removed, "{nothing:?} is before {removed:?}");
    });
}
