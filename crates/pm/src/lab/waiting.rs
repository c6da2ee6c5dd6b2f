//! Waiting under a scheduler: a thread that waits for another says so, and the scheduler lets the other run.
//!
//! Under the lab's scheduler one thread runs at a time. A thread that spins, naps or sleeps on a futex until
//! somebody else has done something would keep that somebody from running; so whoever waits calls [`waiting`]
//! first, and waits its own way only if nobody schedules it.

use std::cell::RefCell;
use std::sync::Arc;

/// Lets others run, and returns when this thread may go on.
pub trait Waiter {
    /// The calling thread cannot go on by itself.
    fn wait(&self);
}

thread_local! {
    static WAITER: RefCell<Option<Arc<dyn Waiter>>> = const { RefCell::new(None) };
}

/// Runs `body` with this thread scheduled by `waiter`.
pub fn wait_as<T>(waiter: Arc<dyn Waiter>, body: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            WAITER.with_borrow_mut(Option::take);
        }
    }
    WAITER.with_borrow_mut(|slot| *slot = Some(waiter));
    let _reset = Reset;
    body()
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
