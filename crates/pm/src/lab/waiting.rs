//! Waiting under a scheduler: a waiting thread says so, and the scheduler lets another run.
//!
//! Under the lab's scheduler one thread runs at a time. A thread that spins, sleeps or waits on a futex for
//! another thread would keep that thread from running. So it calls [`waiting`] first, and waits by itself
//! only if no scheduler runs it.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::Arc;

/// Lets other threads run, and returns when this one may continue.
pub trait Waiter {
    /// The calling thread cannot continue by itself.
    fn wait(&self);

    /// The calling thread is about to store to DRAM that other threads read, at `there`; it can continue, and
    /// so could another.
    fn step(&self, _there: &'static Location<'static>) {}

    /// How many of `most` operations to do at once; more is faster.
    fn few(&self, most: usize) -> usize {
        most
    }
}

thread_local! {
    static WAITER: RefCell<Option<Arc<dyn Waiter>>> = const { RefCell::new(None) };
    static IS_SCHEDULED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` with this thread scheduled by `waiter`, then restores the old state.
pub fn wait_as<T>(waiter: Arc<dyn Waiter>, body: impl FnOnce() -> T) -> T {
    struct Reset(Option<Arc<dyn Waiter>>);
    impl Drop for Reset {
        fn drop(&mut self) {
            schedule_by(self.0.take());
        }
    }
    let _reset = Reset(schedule_by(Some(waiter)));
    body()
}

fn schedule_by(waiter: Option<Arc<dyn Waiter>>) -> Option<Arc<dyn Waiter>> {
    IS_SCHEDULED.set(waiter.is_some());
    WAITER.replace(waiter)
}

/// Lets other threads run if this one is scheduled; `false` if it is not, and must wait by itself.
pub fn waiting() -> bool {
    let waiter = WAITER.with_borrow(Option::clone);
    match waiter {
        None => false,
        Some(waiter) => {
            waiter.wait();
            true
        }
    }
}

/// Announces a store to DRAM that other threads read: a scheduled thread may be preempted here. Otherwise it
/// costs a load and a branch.
#[inline(always)]
#[track_caller]
pub fn step() {
    if IS_SCHEDULED.get() {
        take_step(Location::caller());
    }
}

/// How many of `most` operations to do at once: all, unless this thread is scheduled.
#[inline(always)]
#[must_use]
pub fn few(most: usize) -> usize {
    match IS_SCHEDULED.get() {
        true => take_few(most),
        false => most,
    }
}

#[cold]
fn take_few(most: usize) -> usize {
    let waiter = WAITER.with_borrow(Option::clone);
    waiter.map_or(most, |waiter| waiter.few(most))
}

#[cold]
fn take_step(there: &'static Location<'static>) {
    let waiter = WAITER.with_borrow(Option::clone);
    if let Some(waiter) = waiter {
        waiter.step(there);
    }
}
