//! What a restart has left to read while the store is in use, and how far that is.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts work in any unit, such as blocks or bytes. It runs until [`CatchingUp::end`], also when no unit is
/// left: there may be a last step.
#[derive(Default)]
pub(crate) struct CatchingUp {
    /// Units at the start.
    total: AtomicU64,
    /// Units left, and one more; 0: nothing runs.
    left: AtomicU64,
}

impl CatchingUp {
    /// Begins with so many units. What it is about is in place before.
    pub(crate) fn begin(&self, units: u64) {
        self.total.store(units, Ordering::Relaxed);
        self.left.store(units + 1, Ordering::Release);
    }

    /// Notes units that are done; before the beginning, nothing.
    pub(crate) fn advance(&self, units: u64) {
        let _not_begun = self
            .left
            .fetch_update(Ordering::Release, Ordering::Relaxed, |left| {
                (left > units).then(|| left - units)
            });
    }

    /// Everything is done.
    pub(crate) fn end(&self) {
        self.left.store(0, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.left.load(Ordering::Acquire) != 0
    }

    /// Units done, and units in all; `None` if nothing runs.
    pub(crate) fn progress(&self) -> Option<(u64, u64)> {
        let left = self.left.load(Ordering::Acquire);
        let total = self.total.load(Ordering::Relaxed);
        (left != 0).then(|| ((total + 1).saturating_sub(left).min(total), total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_until_it_is_ended() {
        let work = CatchingUp::default();
        work.advance(3);
        assert_eq!((work.is_running(), work.progress()), (false, None));
        work.begin(5);
        work.advance(3);
        assert_eq!(work.progress(), Some((3, 5)));
        work.advance(2);
        assert!(work.is_running() && work.progress() == Some((5, 5)));
        work.end();
        assert_eq!(work.progress(), None);
    }
}
