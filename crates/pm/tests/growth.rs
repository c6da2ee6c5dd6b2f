//! Creation and growth of a pool of files on a failing machine: each write or sync in turn is the last.

#![allow(missing_docs)]
#![cfg(all(feature = "faults", not(miri)))]

use everdram_pm::faults::Faults;
use everdram_pm::{Error, Medium, MediumChoice, Pool, PoolOptions, ROOT_AT};
use std::path::Path;
use std::sync::Arc;

fn options() -> PoolOptions {
    PoolOptions {
        medium: MediumChoice::Only(Medium::File),
        max_bytes: 64 << 20,
        log_bytes: 8 << 20,
        ..PoolOptions::default()
    }
}

fn put(pool: &Arc<Pool>, at: u64, word: u64) -> Result<(), Error> {
    let mut lane = pool.lane();
    let dirty = lane.store_word(at, word);
    let flushed = lane.flush(dirty);
    let ordered = lane.fence(flushed);
    pool.wait(ordered.lsn()).map(|_| ())
}

/// In memory where possible: the faults are simulated, so the disk would only cost time.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// Opens, grows and writes; returns the words acknowledged and the extents granted before something failed.
fn work(path: &Path) -> (Vec<u64>, usize) {
    let mut acknowledged = Vec::new();
    let mut granted = 0;
    let Ok(pool) = Pool::open(path, &options()) else {
        return (acknowledged, granted);
    };
    for owner in 0..3 {
        let Ok(extent) = pool.allocate(owner, 1 << 20, 4096) else {
            break;
        };
        granted += 1;
        if put(&pool, extent.at, extent.at).is_err() {
            break;
        }
        acknowledged.push(extent.at);
    }
    (acknowledged, granted)
}

#[test]
fn growth_survives_a_machine_that_goes_off_at_any_call() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut grants_seen = [false; 4];
    for calls in 0..400 {
        let directory = directory();
        let path = directory.path().join("pool");
        std::fs::create_dir(&path).unwrap();
        let faults = Faults::install(&path);
        faults.lossy();
        faults.off_after(calls);
        let (acknowledged, granted) = work(&path);
        grants_seen[granted] = true;
        let survived_all = acknowledged.len() == 3 && faults.calls() <= calls;
        faults.crash(seed ^ calls).unwrap();
        drop(faults);

        let pool = Pool::open(&path, &options())
            .unwrap_or_else(|error| panic!("after {calls} calls: {error}"));
        let there: usize = (0..3).map(|owner| pool.extents(owner).len()).sum();
        assert!(
            there >= granted,
            "after {calls} calls: {granted} extents granted, {there} there"
        );
        for at in &acknowledged {
            assert_eq!(pool.region().load_word(*at), *at, "after {calls} calls");
        }
        for owner in 0..3 {
            for extent in pool.extents(owner) {
                assert_eq!(
                    pool.region().load_word(extent.at + 8),
                    0,
                    "after {calls} calls"
                );
            }
        }
        let more = pool.allocate(9, 4096, 4096).unwrap();
        put(&pool, more.at, 1).unwrap();
        pool.close().unwrap();
        if survived_all {
            // The checkpointer's calls interleave at random, so one stage may be skipped.
            let stages = grants_seen.iter().filter(|seen| **seen).count();
            assert!(stages >= 3, "stages interrupted: {grants_seen:?}");
            return;
        }
    }
    panic!("400 calls were not enough to get through");
}

#[test]
fn a_failing_sync_stops_the_pool_and_reads_go_on() {
    let directory = directory();
    let faults = Faults::install(directory.path());
    let pool = Pool::open(directory.path(), &options()).unwrap();
    put(&pool, ROOT_AT, 5).unwrap();
    faults.fail_sync_after(0);
    let grown = pool.allocate(1, 4096, 4096);
    assert!(matches!(grown, Err(Error::Poisoned { .. })), "{grown:?}");
    assert!(matches!(pool.healthy(), Err(Error::Poisoned { .. })));
    let again = pool.allocate(1, 4096, 4096);
    assert!(
        matches!(again, Err(Error::Poisoned { .. })),
        "no retry: {again:?}"
    );
    assert!(matches!(pool.close(), Err(Error::Poisoned { .. })));
    assert_eq!(pool.region().load_word(ROOT_AT), 5);
    drop(pool);
    // The device works again.
    drop(faults);
    let pool = Pool::open(directory.path(), &options()).unwrap();
    assert!(!pool.was_clean());
    assert_eq!(pool.region().load_word(ROOT_AT), 5);
}

#[test]
fn a_full_disk_changes_nothing() {
    let directory = directory();
    let faults = Faults::install(directory.path());
    let pool = Pool::open(directory.path(), &options()).unwrap();
    let extent = pool.allocate(1, 4096, 4096).unwrap();
    let len = pool.region().len();
    faults.room(Some(0));
    let refused = pool.allocate(1, 1 << 20, 4096);
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    assert_eq!((pool.region().len(), pool.extents(1)), (len, vec![extent]));
    put(&pool, extent.at, 3).unwrap();
    faults.room(None);
    let next = pool.allocate(1, 1 << 20, 4096).unwrap();
    assert_eq!(next.at, extent.at + 4096);
}
