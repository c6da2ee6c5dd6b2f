//! One pool, one poison: if any of its files fails, the pool takes no more writes, and no thread keeps
//! waiting.

use super::super::Shared;
use crate::error::Error;
use crate::io::File;
use crate::io::faults::Faults;
use crate::pool::superblock::{DATA_AT, PAGE};
use crate::{Medium, MediumChoice, Pool, PoolOptions};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// More time than any thread needs, unless it waits forever.
const LONG: Duration = Duration::from_secs(60);

struct Bench {
    _directory: tempfile::TempDir,
    faults: Arc<Faults>,
    pool: Arc<Pool>,
}

fn bench() -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::install(directory.path());
    let options = PoolOptions {
        medium: MediumChoice::Only(Medium::File),
        ..PoolOptions::default()
    };
    let pool = Pool::open(directory.path(), &options).unwrap();
    pool.allocate(1, PAGE, PAGE).unwrap();
    Bench {
        _directory: directory,
        faults,
        pool,
    }
}

impl Bench {
    fn shared(&self) -> &Shared {
        &self.pool.log().unwrap().shared
    }

    /// File calls until now, after any call of a background thread has ended.
    fn calls_when_quiet(&self) -> u64 {
        const QUIET: Duration = Duration::from_millis(100);
        let mut calls = self.faults.calls();
        loop {
            std::thread::sleep(QUIET);
            match self.faults.calls() {
                same if same == calls => return calls,
                more => calls = more,
            }
        }
    }

    /// Stores something and waits for it in its own thread; the channel reports the result.
    fn waiter(&self) -> Receiver<Result<(), Error>> {
        let (send, receive) = channel();
        let pool = Arc::clone(&self.pool);
        std::thread::spawn(move || {
            let mut lane = pool.lane();
            let flushed = lane.stream(DATA_AT, &[1; 64]);
            let ordered = lane.fence(flushed);
            let _ = send.send(pool.wait(ordered.lsn()).map(drop));
        });
        receive
    }
}

/// The superblock and the log each had their own flag. When the image failed during growth, waiters for the
/// log kept waiting, and a checkpoint took the next sync of that file for a success.
#[test]
fn those_who_wait_for_the_log_hear_that_the_image_failed() {
    let bench = bench();
    // No other thread can lead, so the waiter sleeps until it is woken.
    let role = bench.shared().writer.lock();
    let waiter = bench.waiter();
    let log = bench.pool.log().unwrap();
    while log.end() == log.durable() {
        std::thread::yield_now();
    }
    bench.faults.fail_sync_after(0);
    let grown = bench.pool.allocate(1, PAGE, PAGE);
    assert!(matches!(grown, Err(Error::Poisoned { .. })), "{grown:?}");
    bench.faults.fail_sync_after(u64::MAX);
    let waited = waiter.recv_timeout(LONG).unwrap();
    assert!(matches!(waited, Err(Error::Poisoned { .. })), "{waited:?}");
    drop(role);
    let calls = bench.calls_when_quiet();
    assert!(bench.pool.checkpoint().is_err() && bench.pool.close().is_err());
    assert!(!bench.pool.is_healthy());
    assert_eq!(bench.faults.calls(), calls, "something was tried again");
}

#[test]
fn the_superblock_takes_nothing_after_the_log_failed() {
    let bench = bench();
    bench.faults.fail_sync_after(0);
    let waited = bench.waiter().recv_timeout(LONG).unwrap();
    assert!(matches!(waited, Err(Error::Poisoned { .. })), "{waited:?}");
    bench.faults.fail_sync_after(u64::MAX);
    let calls = bench.calls_when_quiet();
    assert!(bench.pool.allocate(1, PAGE, PAGE).is_err());
    let header = &bench.pool.header;
    assert!(header.update(|superblock| superblock.clean = true).is_err());
    assert!(header.guard(|| Ok(())).is_err());
    assert_eq!(bench.faults.calls(), calls, "something was tried again");
}

/// A checkpoint's sync of the image failed, and lost what the superblock had just written to the same file.
/// The kernel told the checkpoint alone. So the superblock's own sync succeeded, it overwrote the other copy,
/// too, and a power failure left none.
#[test]
fn a_sync_that_has_failed_fails_for_all_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::install(directory.path());
    let file = File::open(&directory.path().join("image"), true).unwrap();
    file.pwrite_all(0, b"one copy").unwrap();
    faults.fail_sync_after(0);
    let failed = file.data_sync();
    assert!(failed.is_err());
    faults.fail_sync_after(u64::MAX);
    let calls = faults.calls();
    assert_eq!(file.data_sync(), failed);
    assert_eq!(file.sync(), failed);
    assert_eq!(faults.calls(), calls, "the kernel was asked again");
}
