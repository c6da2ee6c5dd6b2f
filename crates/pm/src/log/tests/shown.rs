//! What one recovery shows is there after the next, whatever happened to the page cache meanwhile.

use super::{Bench, DATA, Open};
use crate::error::Error;

const LOGGED: u64 = DATA;
const NOT_LOGGED: u64 = DATA + 64;
const LATER: u64 = DATA + 128;

fn put(open: &Open, at: u64, value: u64) {
    let mut group = open.log.group();
    open.line(&mut group, at, value);
    open.log.wait(group.close()).unwrap();
}

/// A pool that died because the sync of its image failed. A checkpoint had written a page with a store that
/// no group of the log has: it was submitted, and never fenced. The page cache shows it, and no sync will
/// ever write it.
fn after_a_failed_sync() -> Bench {
    let bench = Bench::new(64 << 10);
    let open = bench.open().unwrap();
    put(&open, LOGGED, 1);
    open.region.store_word(NOT_LOGGED, 2);
    bench.faults.fail_sync_after(0);
    assert!(matches!(open.log.checkpoint(), Err(Error::Poisoned { .. })));
    bench.faults.fail_sync_after(u64::MAX);
    drop(open);
    bench
}

/// The second process showed the store and built on it: its own writes to the same page were durable in the
/// log. Then power failed, and the store under them was gone.
#[test]
fn what_was_shown_after_a_failed_sync_survives() {
    for seed in 0..12 {
        let bench = after_a_failed_sync();
        let open = bench.open().unwrap();
        let shown = open.region.load_word(NOT_LOGGED);
        put(&open, LATER, shown + 1);
        drop(open);
        bench.faults.crash(seed).unwrap();
        let open = bench.open().unwrap();
        let found = [LOGGED, NOT_LOGGED, LATER].map(|at| open.region.load_word(at));
        assert_eq!(found, [1, shown, shown + 1], "seed {seed}");
    }
}

/// An open fails if it cannot make durable what it would show. No reader saw anything, and the next open
/// continues from the same files. Whatever survives of the unfenced store, the groups of the log are there.
#[test]
fn an_open_that_cannot_write_the_image_fails_and_can_be_repeated() {
    for syncs in 0..20 {
        let bench = after_a_failed_sync();
        bench.faults.fail_sync_after(syncs);
        let first = bench.open().map(drop);
        bench.faults.fail_sync_after(u64::MAX);
        if let Err(error) = &first {
            assert!(matches!(error, Error::Io { .. }), "{syncs} syncs: {error}");
            let open = bench.open().unwrap();
            let shown = open.region.load_word(NOT_LOGGED);
            put(&open, LATER, 3);
            drop(open);
            bench.faults.crash(syncs).unwrap();
            let open = bench.open().unwrap();
            let found = [LOGGED, NOT_LOGGED, LATER].map(|at| open.region.load_word(at));
            assert_eq!(found, [1, shown, 3], "{syncs} syncs");
        }
        assert!(syncs > 3 || first.is_err(), "{syncs} syncs");
    }
}
