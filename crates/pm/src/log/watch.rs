//! What if one of those panics who write the log for all others?
//!
//! Nobody else would do its work, and those who wait for it would wait for ever; a checkpoint that is broken
//! off has forgotten which pages it was to write, and behind a batch that is broken off there is a gap. So a
//! panic poisons the pool before it goes on, and before it gives back what it had locked for the work.

use super::Shared;

/// Poisons the pool when it is dropped, unless the work is over.
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
    /// Watches what follows, which others depend on. To be taken after the locks that the work needs.
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
