//! The limit of users' sessions. An engine's own sessions do not count.

use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Issues a limited number of [`Permit`]s.
pub(crate) struct SessionLimit {
    most: usize,
    taken: Arc<AtomicUsize>,
}

/// The permit of one user session; dropping it returns it.
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

    /// The error when there is no permit left.
    #[cold]
    pub(crate) fn reached(&self) -> Error {
        Error::TooManySessions(self.most)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let taken = self.0.fetch_sub(1, Ordering::AcqRel);
        assert_ne!(taken, 0, "a permit is returned that was not issued");
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
