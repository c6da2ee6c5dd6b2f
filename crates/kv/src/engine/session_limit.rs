//! How many sessions users may have at once. What an engine needs for itself does not count.

use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Gives out [`Permit`]s, so many at once.
pub(crate) struct SessionLimit {
    most: usize,
    taken: Arc<AtomicUsize>,
}

/// One session of a user; given back when it is dropped.
pub(crate) struct Permit(Arc<AtomicUsize>);

impl SessionLimit {
    pub(crate) fn new(most: usize) -> SessionLimit {
        SessionLimit {
            most,
            taken: Arc::default(),
        }
    }

    /// # Errors
    /// [`Error::TooManySessions`].
    pub(crate) fn take(&self) -> Result<Permit, Error> {
        let permit = Permit(Arc::clone(&self.taken));
        match self.taken.fetch_add(1, Ordering::AcqRel) < self.most {
            true => Ok(permit),
            false => Err(self.reached()),
        }
    }

    /// Why there is no session.
    #[cold]
    pub(crate) fn reached(&self) -> Error {
        Error::TooManySessions(self.most)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let taken = self.0.fetch_sub(1, Ordering::AcqRel);
        assert_ne!(taken, 0, "a session is given back that nobody took");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_at_once() {
        let limit = SessionLimit::new(2);
        let (first, second) = (limit.take(), limit.take());
        assert!(first.is_ok() && second.is_ok());
        for _ in 0..3 {
            assert!(matches!(limit.take(), Err(Error::TooManySessions(2))));
        }
        drop(first);
        assert!(limit.take().is_ok());
    }
}
