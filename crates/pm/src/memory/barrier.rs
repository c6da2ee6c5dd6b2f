//! A memory barrier with two ends: nearly free on the frequent side, costly on the rare one.
//!
//! Two threads that each store one word and then load the other's need a full fence between store and load,
//! on both sides. A full fence waits for every store before it, streamed records among them: in each read and
//! write of a store it would cost more than everything else. Linux can execute that fence on the other
//! running threads on demand (`membarrier`), so that only the rare side pays: [`Barrier::light`] keeps the
//! compiler from moving accesses, and [`Barrier::heavy`] fences all processors.
//!
//! Both ends are full fences where the system lacks `membarrier`, under Miri, and in the crash lab, which
//! recovers thousands of images a second and reads little of each.

use std::sync::atomic::{Ordering, compiler_fence, fence};

/// Which kind of barrier this process has.
#[derive(Clone, Copy, Debug)]
pub struct Barrier {
    asymmetric: bool,
}

impl Barrier {
    /// Asks the system. Except for threads of the crash lab, the answer is the same for the life of the
    /// process.
    #[must_use]
    pub fn new() -> Barrier {
        #[cfg(all(feature = "lab", not(miri)))]
        if crate::lab::does_this_thread_simulate() {
            return Barrier { asymmetric: false };
        }
        Barrier {
            asymmetric: register(),
        }
    }

    /// The cheap end. A [`Barrier::heavy`] of another thread sees the accesses before and after it in this
    /// order.
    #[inline]
    pub fn light(self) {
        if self.asymmetric {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// The costly end (some microseconds). It is totally ordered with each [`Barrier::light`] of another
    /// thread: the later side sees everything before the earlier one. `false`: the system refused (out of
    /// memory), and nothing is promised.
    #[must_use]
    pub fn heavy(self) -> bool {
        fence(Ordering::SeqCst);
        let done = !self.asymmetric || interrupt();
        fence(Ordering::SeqCst);
        done
    }
}

impl Default for Barrier {
    fn default() -> Barrier {
        Barrier::new()
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn register() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier};
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

#[cfg(all(target_os = "linux", not(miri)))]
fn interrupt() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier};
    membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

#[cfg(any(not(target_os = "linux"), miri))]
fn register() -> bool {
    false
}

#[cfg(any(not(target_os = "linux"), miri))]
fn interrupt() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Each side stores its word and loads the other's: at least one sees the other's store.
    #[test]
    fn one_of_two_sides_sees_the_other() {
        let barrier = Barrier::new();
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let (mine, other) = (AtomicU32::new(0), AtomicU32::new(0));
        let (go, done) = (AtomicU32::new(0), AtomicU32::new(0));
        let missed = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    while go.load(Ordering::Acquire) != round {
                        std::thread::yield_now();
                    }
                    mine.store(round, Ordering::Relaxed);
                    barrier.light();
                    missed.store(other.load(Ordering::Relaxed), Ordering::Relaxed);
                    done.store(round, Ordering::Release);
                }
            });
            for round in 1..=rounds {
                go.store(round, Ordering::Release);
                other.store(round, Ordering::Relaxed);
                assert!(barrier.heavy());
                let seen = mine.load(Ordering::Relaxed);
                while done.load(Ordering::Acquire) != round {
                    std::thread::yield_now();
                }
                let there = missed.load(Ordering::Relaxed);
                assert!(
                    seen == round || there == round,
                    "round {round}: {seen} {there}"
                );
            }
        });
    }
}
