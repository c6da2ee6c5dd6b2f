//! Holes that a crash between two stores opens.

use crate::support::Bed;
use crate::support::contents::{Contents, assert_holds, assert_sound, contents};
use crate::support::frozen::{Frozen, changed_words};
use crate::support::history::{Part, part};
use crate::support::keys::independent_keys;
use crate::{BLOCK, after_kill, map, opened, quiet, without_marks};
use everdram::{Error, Session, Store};

/// A crash after the new copy was durable and before the old one was marked dead leaves two copies. Recovery
/// picked one and ignored the other; a later delete removed only the first, and the next crash brought the
/// other back.
#[test]
fn hole_v1_losers_do_not_resurrect() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    session.put(b"key", b"old").unwrap();
    let before = Frozen::take(&bed.path());
    session.put(b"key", b"new").unwrap();
    let crashed = without_marks(&Frozen::take(&bed.path()), &before);
    let (place, store) = opened(&crashed);
    assert_eq!(store.stats().recovered_losers, 1);
    assert_holds(&store, &map(&[(b"key", b"new")]), "the newer copy wins");
    // The loser is dead for good before any answer, so a crash now changes nothing.
    let (_again, twice) = after_kill(&place);
    assert_eq!(twice.stats().recovered_losers, 0);
    assert!(store.session().unwrap().delete(b"key").unwrap());
    let (_last, deleted) = after_kill(&place);
    assert_holds(&deleted, &Contents::new(), "deleted and killed");
    assert_eq!(deleted.stats().recovered_losers, 0);
}

/// The same crash with the newer copy deleted: its delete was durable, the mark of the older copy was not. A
/// dead record must keep everything older dead.
#[test]
fn hole_v1_a_delete_outlives_the_copies_before_it() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    session.put(b"key", b"old").unwrap();
    session.put(b"fills the page", &[1; 3_900]).unwrap();
    let before = Frozen::take(&bed.path());
    session.put(b"key", b"new").unwrap();
    let overwritten = Frozen::take(&bed.path());
    assert!(session.delete(b"key").unwrap());
    let mut crashed = Frozen::take(&bed.path());
    for at in changed_words(before.image(), overwritten.image()) {
        if part(BLOCK, at, overwritten.image()) == Part::Mark {
            crashed.image_mut()[at..at + 8].copy_from_slice(&before.image()[at..at + 8]);
        }
    }
    let model = map(&[(b"fills the page", &[1; 3_900])]);
    let (place, killed) = opened(&crashed);
    assert_eq!(killed.stats().recovered_losers, 1);
    assert_holds(&killed, &model, "the delete holds");
    // Even after the tombstone itself is gone.
    killed
        .session()
        .unwrap()
        .put(b"fills the page", b"")
        .unwrap();
    killed.engine().reclaim().unwrap();
    let (_again, killed) = after_kill(&place);
    assert_holds(
        &killed,
        &map(&[(b"fills the page", b"")]),
        "compacted and killed",
    );
}

/// On files the marks of replaced records stay in caches for long. The newer record is removed, and
/// compaction drops it: the marks of its predecessors must be durable by then.
#[test]
fn hole_v1_on_files_a_dropped_tombstone_leaves_its_elders_dead() {
    let bed = Bed::file_in_memory();
    let quiet = |bed: &Bed| {
        bed.open_with(|options| {
            options.reclaim_background = false;
            // So large that nothing is copied to the image: marks that the log lacks are lost.
            options.log_bytes = 64 << 20;
        })
    };
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    session.put(b"key", b"old").unwrap();
    // The page is full, and is not flushed again on its own.
    session.put(b"fills the page", &[1; 3_900]).unwrap();
    session.put(b"the next page", &[2; 3_900]).unwrap();
    let mut other = store.session().unwrap();
    other.put(b"key", b"new").unwrap();
    for number in 0..20u32 {
        other.put(&number.to_le_bytes(), &[3; 3_900]).unwrap();
    }
    for number in 0..20u32 {
        assert!(other.delete(&number.to_le_bytes()).unwrap());
    }
    let before = store.engine().stats().blocks_reclaimed;
    assert!(session.delete(b"key").unwrap());
    store.engine().reclaim().unwrap();
    assert!(store.engine().stats().blocks_reclaimed > before);
    store.engine().sync().unwrap();
    let frozen = Frozen::take(&bed.path());
    let elsewhere = Bed::file_in_memory();
    frozen.lay(&elsewhere.path());
    let killed = quiet(&elsewhere);
    let model = map(&[
        (b"fills the page", &[1; 3_900]),
        (b"the next page", &[2; 3_900]),
    ]);
    assert_holds(&killed, &model, "compacted and killed");
}

/// The number of used blocks became durable as a count, after a block was handed out. A record acknowledged
/// in a later block was never scanned when an earlier block's owner was slower.
#[test]
fn hole_v4_a_block_is_scanned_whoever_was_first() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut sessions: Vec<Session> = (0..12).map(|_| store.session().unwrap()).collect();
    // One thread has all the sessions, so none may wait for another's lock.
    let keys = independent_keys::<12>(&store);
    let mut model = Contents::new();
    for (number, (session, key)) in sessions.iter_mut().zip(keys).enumerate().rev() {
        if number % 2 == 0 {
            session.put(&key, b"acknowledged").unwrap();
            model.insert(key, b"acknowledged".to_vec());
        } else {
            session.submit_put(&key, b"never committed").unwrap();
        }
    }
    let (_place, killed) = after_kill(&bed);
    let found = contents(&mut killed.session().unwrap()).unwrap();
    assert!(
        model
            .iter()
            .all(|(key, value)| found.get(key) == Some(value)),
        "{found:?}"
    );
    assert_sound(&killed, "killed");
}

/// Lock bytes and owner bits were in persistent memory. After a crash they named a dead owner: readers waited
/// forever, and the block was never reclaimed.
#[test]
fn hole_v5_no_lock_survives_a_crash() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    for number in 0..200u32 {
        session.put(&number.to_le_bytes(), &[1; 500]).unwrap();
    }
    session
        .submit_put(&7u32.to_le_bytes(), b"in flight")
        .unwrap();
    session.submit_delete(&8u32.to_le_bytes()).unwrap();
    let (_place, killed) = after_kill(&bed);
    let mut other = killed.session().unwrap();
    for number in 0..200u32 {
        assert!(other.contains(&number.to_le_bytes()).unwrap());
        assert!(other.delete(&number.to_le_bytes()).unwrap());
    }
    drop(other);
    killed.engine().reclaim().unwrap();
    assert!(killed.stats().blocks_reclaimed >= 4, "{:?}", killed.stats());
}

/// Other sessions read the new value before the old record was dead. After a crash the copy at the higher
/// place won, which was the old one: read, then lost.
#[test]
fn hole_v12_what_was_read_stays_wherever_the_old_copy_lies() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let (mut low, mut high) = (store.session().unwrap(), store.session().unwrap());
    low.put(b"opens the lower block", b"").unwrap();
    high.put(b"opens the higher block", b"").unwrap();
    for (first, second) in [(&mut low, &mut high)] {
        for turn in 0..2u8 {
            let (old, new) = if turn == 0 {
                (&mut *first, &mut *second)
            } else {
                (&mut *second, &mut *first)
            };
            old.put(&[turn], b"old").unwrap();
            let before = Frozen::take(&bed.path());
            new.put(&[turn], b"new").unwrap();
            assert_eq!(old.get(&[turn]).unwrap().as_deref(), Some(&b"new"[..]));
            let crashed = without_marks(&Frozen::take(&bed.path()), &before);
            let (_place, killed) = opened(&crashed);
            assert_eq!(
                killed.session().unwrap().get(&[turn]).unwrap().as_deref(),
                Some(&b"new"[..])
            );
            assert!(killed.stats().recovered_losers >= 1);
        }
    }
}

/// A grown file contradicted its metadata: bytes after the end of the image, or an image that ends before the
/// pool does.
#[test]
fn hole_v17_a_growth_cut_short_is_no_growth() {
    for bed in [Bed::emulated(), Bed::file_in_memory()] {
        let store = quiet(&bed);
        store.session().unwrap().put(b"key", b"value").unwrap();
        store.close().unwrap();
        let mut frozen = Frozen::take(&bed.path());
        let length = frozen.image().len();
        frozen.image_mut().extend_from_slice(&[0xee; 5_000]);
        frozen.lay(&bed.path());
        let store = quiet(&bed);
        let mut session = store.session().unwrap();
        let mut model = map(&[(b"key", b"value")]);
        for number in 0..400u32 {
            session.put(&number.to_le_bytes(), &[5; 4_000]).unwrap();
            model.insert(number.to_le_bytes().to_vec(), vec![5; 4_000]);
        }
        drop(session);
        assert_holds(&store, &model, "grown over what was left");
        drop(store);
        frozen.image_mut().truncate(length - 1);
        frozen.lay(&bed.path());
        assert!(matches!(
            Store::open(bed.path(), &bed.options()),
            Err(Error::Pool(everdram_pm::Error::Corrupt { .. }))
        ));
    }
}
