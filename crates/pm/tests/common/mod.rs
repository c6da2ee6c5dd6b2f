//! Pools as most tests of them want them.

use everdram_pm::{Medium, MediumChoice, Pool, PoolOptions};
use std::path::Path;
use std::sync::Arc;

pub(crate) fn options(medium: Medium) -> PoolOptions {
    PoolOptions {
        medium: MediumChoice::Only(medium),
        max_bytes: 1 << 30,
        log_bytes: 8 << 20,
        engine: 7,
        geometry: [1, 2, 3, 4, 5, 6, 7, 8],
        ..PoolOptions::default()
    }
}

pub(crate) fn open(path: &Path, medium: Medium) -> Arc<Pool> {
    Pool::open(path, &options(medium)).unwrap()
}

/// One durable word.
pub(crate) fn put(pool: &Arc<Pool>, at: u64, word: u64) {
    let mut lane = pool.lane();
    let dirty = lane.store_word(at, word);
    let flushed = lane.flush(dirty);
    let ordered = lane.fence(flushed);
    pool.wait(ordered.lsn()).unwrap();
}
