//! A thread that works for others panics, and no thread waits forever: for the flusher's answer, for room, or
//! for a batch of another thread.

use super::{Bench, DATA, Open};
use crate::error::Error;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// More time than any thread needs, unless it waits forever.
const LONG: Duration = Duration::from_secs(60);

/// The first file of batches. It already exists, so the checkpointer does not write to it.
const FIRST: &str = "log-000000";

/// Checks that every caller is told what panicked.
#[track_caller]
fn check(open: &Open, who: &str) {
    let failure = open.log.healthy();
    let named = matches!(&failure, Err(Error::Panicked { who: named, .. }) if *named == who);
    assert!(named, "{failure:?}");
    let mut group = open.log.group();
    open.line(&mut group, DATA, 9);
    assert!(matches!(
        open.log.wait(group.close()),
        Err(Error::Panicked { .. })
    ));
    assert!(matches!(open.log.checkpoint(), Err(Error::Panicked { .. })));
    assert!(matches!(open.log.close(), Err(Error::Panicked { .. })));
}

/// Runs `work` in its own thread; the channel reports its end, even after a panic.
fn run(work: impl FnOnce() + Send + 'static) -> Receiver<()> {
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    is_done
}

fn ended(receiver: &Receiver<()>) {
    let waited = receiver.recv_timeout(LONG);
    assert_ne!(
        waited,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout),
        "it waits for ever"
    );
}

#[test]
fn subscribers_hear_that_the_flusher_panicked() {
    let bench = Bench::new(1 << 20);
    let open = bench.open().unwrap();
    let (tell, told) = channel();
    open.log.subscribe(Arc::new(move || {
        let _ = tell.send(());
    }));
    bench.faults.panic_at_writes_of(FIRST);
    let mut group = open.log.group();
    open.line(&mut group, DATA, 1);
    open.log.request(group.close());
    told.recv_timeout(LONG).unwrap();
    // It leads like any waiter, so it dies in the batch.
    check(&open, "log writer");
}

#[test]
fn a_subscriber_that_panics_is_no_reason_not_to_tell_the_others() {
    let bench = Bench::new(1 << 20);
    let open = bench.open().unwrap();
    open.log.subscribe(Arc::new(|| panic!("as asked for")));
    let (tell, told) = channel();
    open.log.subscribe(Arc::new(move || {
        let _ = tell.send(());
    }));
    let mut group = open.log.group();
    open.line(&mut group, DATA, 1);
    open.log.request(group.close());
    // Once for what became durable, once for the failure.
    told.recv_timeout(LONG).unwrap();
    told.recv_timeout(LONG).unwrap();
    check(&open, "log writer");
}

/// Writes lines until the log has failed.
fn run_until_failed(writer: Arc<Open>) -> Receiver<()> {
    run(move || {
        let mut group = writer.log.group();
        for line in (0..40_000)
            .cycle()
            .take_while(|_| writer.log.healthy().is_ok())
        {
            writer.line(&mut group, DATA + line * 64, 1);
            group.close();
        }
    })
}

#[test]
fn nobody_waits_for_room_that_no_checkpoint_will_make() {
    let bench = Bench::new(4 << 20);
    let open = Arc::new(bench.open().unwrap());
    bench.faults.panic_at_writes_of("image");
    let written = run_until_failed(Arc::clone(&open));
    ended(&written);
    check(&open, "writer of a checkpoint");
}

/// Only the checkpointer prepares segments.
#[test]
fn nobody_waits_for_room_that_no_thread_will_prepare() {
    let bench = Bench::new(4 << 20);
    let open = Arc::new(bench.open().unwrap());
    // Batches pile up in memory, so that only the checkpointer writes to the log's files.
    let role = open.log.shared.writer.lock();
    bench.faults.panic_at_writes_of("log-");
    let written = run_until_failed(Arc::clone(&open));
    ended(&written);
    drop(role);
    check(&open, "checkpointer");
}

#[test]
fn those_who_wait_for_a_leader_that_panicked_are_told() {
    let bench = Bench::new(1 << 20);
    let open = Arc::new(bench.open().unwrap());
    bench.faults.panic_at_writes_of(FIRST);
    // The leader panics in its own call; the others get an error.
    let waiters: Vec<_> = (0..6)
        .map(|lane| {
            let open = Arc::clone(&open);
            run(move || {
                let mut group = open.log.group();
                open.line(&mut group, DATA + lane * 64, 1);
                let waited = open.log.wait(group.close());
                assert!(matches!(waited, Err(Error::Panicked { .. })), "{waited:?}");
            })
        })
        .collect();
    waiters.iter().for_each(ended);
    check(&open, "log writer");
}

/// A partial group would be taken for the beginning of the next group.
#[test]
fn nothing_follows_a_group_that_was_broken_off() {
    let bench = Bench::new(1 << 20);
    let open = Arc::new(bench.open().unwrap());
    let writer = Arc::clone(&open);
    let written = run(move || {
        let mut group = writer.log.group();
        writer.line(&mut group, DATA, 1);
        // No such place exists.
        group.push_shared(1 << 50, 64);
        group.close();
    });
    ended(&written);
    check(&open, "writer of a group");
}
