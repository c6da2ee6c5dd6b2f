//! Whether a pool has failed: one state for all of its files and threads.
//!
//! The kernel reports a failed write-back once, to the first sync. So the thread that sees it tells all
//! others, and no thread takes a later sync for a success.
//!
//! Invariant: the first failure stays, and the log is told, whichever thread met it.

use crate::error::Error;
use rustix::io::Errno;
use std::path::Path;
use std::sync::OnceLock;

/// Called at the first failure.
type Callback = Box<dyn Fn() + Send + Sync>;

/// See the module text.
#[derive(Default)]
pub(crate) struct Poison {
    first: OnceLock<Error>,
    /// Wakes threads that wait for a durability that will not come.
    on_failure: OnceLock<Callback>,
}

impl Poison {
    /// Whether nothing has failed.
    #[inline]
    pub(crate) fn is_healthy(&self) -> bool {
        self.first.get().is_none()
    }

    /// Whether nothing has failed.
    ///
    /// # Errors
    /// The first failure.
    #[inline]
    pub(crate) fn healthy(&self) -> Result<(), Error> {
        match self.first.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// A write or a sync has failed, so the contents of the medium are unknown. Returns the first failure.
    pub(crate) fn fail(&self, path: &Path, source: Errno) -> Error {
        self.set(Error::Poisoned {
            path: path.into(),
            source,
        })
    }

    /// A part that the pool needs has panicked.
    pub(crate) fn panicked(&self, path: &Path, who: &'static str) {
        self.set(Error::Panicked {
            path: path.into(),
            who,
        });
    }

    fn set(&self, error: Error) -> Error {
        if let Ok(()) = self.first.set(error.clone())
            && let Some(on_failure) = self.on_failure.get()
        {
            on_failure();
        }
        self.first.get().cloned().unwrap_or(error)
    }

    /// Calls `callback` at the first failure, on the thread that met it, which may hold locks. Only the first
    /// registration counts.
    pub(crate) fn on_failure(&self, callback: Callback) {
        let _there_is_one_log = self.on_failure.set(callback);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn the_first_failure_stays_and_is_told_once() {
        let poison = Poison::default();
        let told = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&told);
        poison.on_failure(Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        assert!(poison.is_healthy() && poison.healthy().is_ok());
        for (path, source) in [("log", Errno::IO), ("image", Errno::NOSPC)] {
            let error = poison.fail(Path::new(path), source);
            let first = matches!(&error, Error::Poisoned { source: Errno::IO, path } if path == Path::new("log"));
            assert!(first, "{error}");
            assert!(!poison.is_healthy() && poison.healthy().is_err());
        }
        assert_eq!(told.load(Ordering::Relaxed), 1);
    }
}
