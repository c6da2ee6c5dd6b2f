//! What happens if a thread panics that writes the log for all others.
//!
//! Without this the waiters would wait forever: no other thread does its work. An interrupted checkpoint has
//! forgotten which pages it was to write, and an interrupted batch leaves a gap. So a panic poisons the pool,
//! before it unwinds further and before it releases the locks of that work.

use super::Shared;

/// Poisons the pool when dropped, unless the work is over.
pub(super) struct Watch<'a> {
    log: &'a Shared,
    who: &'static str,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let path = self.log.options.directory.path();
        self.log.options.poison.panicked(path, self.who);
    }
}

impl Watch<'_> {
    /// The work is done, or need not be done.
    #[inline]
    pub(super) fn over(self) {
        std::mem::forget(self);
    }
}

impl Shared {
    /// Watches work that others depend on. Take it after the locks of that work.
    #[inline]
    pub(super) fn watch(&self, who: &'static str) -> Watch<'_> {
        Watch { log: self, who }
    }

    /// Does `work` that others depend on.
    pub(super) fn watched<T>(&self, who: &'static str, work: impl FnOnce() -> T) -> T {
        let watch = self.watch(who);
        let outcome = work();
        watch.over();
        outcome
    }
}
