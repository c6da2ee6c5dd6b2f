//! Waiting under a scheduler: a thread that waits for another says so, and the scheduler lets the other run.
//!
//! Under the lab's scheduler one thread runs at a time. A thread that spins, naps or sleeps on a futex until
//! somebody else has done something would keep that somebody from running; so whoever waits calls [`waiting`]
//! first, and waits its own way only if nobody schedules it.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::Arc;

/// Lets others run, and returns when this thread may go on.
pub trait Waiter {
    /// The calling thread cannot go on by itself.
    fn wait(&self);

    /// The calling thread is about to store something to DRAM that others go by, there; it can go on, and so
    /// could another.
    fn step(&self, _there: &'static Location<'static>) {}

    /// How many things to do at once, of so many that would be good for speed.
    fn few(&self, most: usize) -> usize {
        most
    }
}

thread_local! {
    static WAITER: RefCell<Option<Arc<dyn Waiter>>> = const { RefCell::new(None) };
    static IS_SCHEDULED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` with this thread scheduled by `waiter`, and then as it was before.
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

/// Lets other threads run if this one is scheduled; `false` if it is not, and has to wait its own way.
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

/// Says that the calling thread is about to store something to DRAM that others go by: where it is scheduled,
/// another one may come first. Anywhere else it is a load and a branch.
#[inline(always)]
#[track_caller]
pub fn step() {
    if IS_SCHEDULED.get() {
        take_step(Location::caller());
    }
}

/// How many things the calling thread is to do at once, of so many that would be good for speed: all of them,
/// unless it is scheduled.
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
