//! Syncs that fail and disks that are full.

use super::{Bench, DATA};
use crate::error::Error;
use crate::medium::Durability;
use crate::memory::position::Lsn;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn the_first_failed_sync_is_the_last() {
    let bench = Bench::new(1 << 20);
    let open = bench.open().unwrap();
    let mut group = open.log.group();
    open.line(&mut group, DATA, 1);
    let kept = group.close();
    open.log.wait(kept).unwrap();
    let told = Arc::new(AtomicU32::new(0));
    let tell = Arc::clone(&told);
    open.log.subscribe(Arc::new(move || {
        tell.fetch_add(1, Ordering::SeqCst);
    }));
    bench.faults.fail_sync_after(0);
    open.line(&mut group, DATA, 2);
    let lost = group.close();
    assert!(matches!(open.log.wait(lost), Err(Error::Poisoned { .. })));
    assert!(matches!(open.log.healthy(), Err(Error::Poisoned { .. })));
    assert_eq!(
        open.log.fenced(),
        Lsn(u64::MAX),
        "what is fenced now is dropped"
    );
    // Stop the log's threads, so that only calls after the failure are counted. By then the first thread to
    // meet it has told; later failures are not told again.
    assert!(matches!(open.log.close(), Err(Error::Poisoned { .. })));
    open.log.shared.fail(bench.path(), Errno::IO);
    assert_eq!(told.load(Ordering::SeqCst), 1);
    let calls = bench.faults.calls();
    open.line(&mut group, DATA, 3);
    let later = group.close();
    assert!(matches!(open.log.wait(later), Err(Error::Poisoned { .. })));
    assert!(matches!(open.log.checkpoint(), Err(Error::Poisoned { .. })));
    assert!(matches!(open.log.close(), Err(Error::Poisoned { .. })));
    assert_eq!(bench.faults.calls(), calls, "a failed sync was retried");
    open.log.wait(kept).unwrap();
    assert_eq!(open.region.load_word(DATA), 3, "reads go on");
    drop(group);
    drop(open);
    bench.faults.crash(1).unwrap();
    let value = bench.open().unwrap().region.load_word(DATA);
    assert!(value == 1 || value == 2, "{value}");
}

#[test]
fn waiters_asleep_hear_of_a_failure() {
    let bench = Bench::new(1 << 20);
    let open = bench.open().unwrap();
    bench.faults.fail_sync_after(20);
    std::thread::scope(|scope| {
        for lane in 0..8 {
            let open = &open;
            scope.spawn(move || {
                let mut group = open.log.group();
                for value in 1.. {
                    open.line(&mut group, DATA + lane * 64, value);
                    if open.log.wait(group.close()).is_err() {
                        break;
                    }
                }
            });
        }
    });
    assert!(open.log.healthy().is_err());
}

#[test]
fn a_full_disk_slows_writers_and_loses_nothing() {
    let bench = Bench::new(4 << 20);
    let open = bench.open().unwrap();
    bench.faults.room(Some(0));
    let files = open.log.usage().1;
    let mut group = open.log.group();
    for round in 1..=20 {
        for line in 0..2000 {
            open.line(&mut group, DATA + line * 64, round);
            group.close();
        }
    }
    open.log.sync().unwrap();
    assert_eq!(open.log.usage().1, files, "the log grew on a full disk");
    drop(group);
    drop(open);
    bench.faults.crash(2).unwrap();
    let open = bench.open().unwrap();
    for line in 0..2000 {
        assert_eq!(open.region.load_word(DATA + line * 64), 20);
    }
}

#[test]
fn a_log_that_outruns_its_checkpoints_grows_and_shrinks_again() {
    let bench = Bench::new(4 << 20);
    let open = bench.open().unwrap();
    let mut group = open.log.group();
    let holds_back = open.log.shared.checkpointing.lock();
    let mut last = Lsn(0);
    for line in 0..4000 {
        // The checkpointer may be waiting for its turn, and then prepares no segments.
        if line % 64 == 0 {
            open.log.shared.prepare_segments().unwrap();
        }
        open.line(&mut group, DATA + line * 64, 1);
        last = group.close();
    }
    open.log.wait(last).unwrap();
    assert!(open.log.usage().1 > open.log.shared.options.log_bytes);
    drop(holds_back);
    open.log.checkpoint().unwrap();
    assert!(open.log.usage().1 <= open.log.shared.options.log_bytes);
}

#[test]
fn requests_are_made_durable_without_a_waiter() {
    let bench = Bench::new(1 << 20);
    let open = bench.open().unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    open.log.subscribe(Arc::new(move || {
        let _ = send.send(());
    }));
    let mut group = open.log.group();
    for value in 1..100 {
        open.line(&mut group, DATA, value);
        let lsn = group.close();
        open.log.request(lsn);
        while open.log.durable() < lsn {
            receive.recv().unwrap();
        }
    }
}

#[test]
fn weaker_classes_do_not_wait_and_still_sync() {
    for durability in [Durability::EverySec, Durability::None] {
        let mut bench = Bench::new(1 << 20);
        bench.durability = durability;
        let open = bench.open().unwrap();
        let mut group = open.log.group();
        open.line(&mut group, DATA, 5);
        let lsn = group.close();
        open.log.wait(lsn).unwrap();
        assert!(open.log.acknowledged() >= lsn && open.log.durable() < lsn);
        open.log.sync().unwrap();
        assert!(open.log.durable() >= lsn);
        drop(group);
        drop(open);
        bench.faults.crash(3).unwrap();
        assert_eq!(bench.open().unwrap().region.load_word(DATA), 5);
    }
}

/// During a checkpoint, and while memory was given back, the sync of the directory failed that was to make a
/// new segment's name durable, and the error was ignored. The next sync succeeded, and groups were
/// acknowledged in a file that a power loss could take.
#[test]
fn a_segment_whose_name_may_be_lost_is_a_failure() {
    let bench = Bench::new(8 << 20);
    let open = bench.open().unwrap();
    let shared = &open.log.shared;
    // This thread does the checkpointer's work.
    let background = open.log.background.lock().take().unwrap();
    background.stop(shared);
    let mut group = open.log.group();
    let mut last = Lsn(0);
    // As many pages as a checkpoint copies at once, and a few more: it prepares segments then.
    for page in 0..300 {
        shared.prepare_segments().unwrap();
        open.line(&mut group, DATA + page * 4096, 1);
        last = group.close();
    }
    open.log.wait(last).unwrap();
    bench.faults.fail_directory_syncs(true);
    // Use up the segments that were prepared ahead, so that new ones are needed.
    let end = shared.segments.lock().end();
    while open.log.end().0 + bench.segment_bytes < end {
        open.line(&mut group, DATA, 2);
        group.close();
    }
    let written = open.log.checkpoint();
    assert!(
        matches!(written, Err(Error::Poisoned { .. })),
        "{written:?}"
    );
    assert!(open.log.healthy().is_err());
}
