//! Whether an engine takes writes. After a write has failed half-way, nothing may be built upon it; the next
//! recovery finishes or undoes it.

use crate::error::Error;
use everdram_pm::Pool;
use std::sync::{Arc, OnceLock};

/// The reason after a thread panicked.
pub(crate) const PANICKED: &str = "a thread panicked in the middle of a write";

/// Why an engine takes no more writes, once it has halted. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Halt(Arc<OnceLock<String>>);

/// See [`Halt::on_panic`].
pub(crate) struct OnPanic<'a>(&'a Halt);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set(PANICKED);
        }
    }
}

impl Halt {
    /// Stops all further writes. The first reason stays.
    #[cold]
    pub(crate) fn set(&self, why: impl Into<String>) {
        let _ = self.0.set(why.into());
    }

    /// Halts the engine if the thread panics before this guard is dropped.
    pub(crate) fn on_panic(&self) -> OnPanic<'_> {
        OnPanic(self)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    /// # Errors
    /// [`Error::Halted`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.0.get() {
            None => Ok(()),
            Some(why) => Err(Error::Halted(why.clone())),
        }
    }

    /// Also refuses writes if the pool's medium has failed, or the pool is read-only.
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::ReadOnly`], [`Error::Halted`].
    #[inline]
    pub(crate) fn healthy(&self, pool: &Pool) -> Result<(), Error> {
        if pool.is_healthy() && !pool.is_read_only() && !self.is_set() {
            return Ok(());
        }
        self.refuse(pool)
    }

    #[cold]
    fn refuse(&self, pool: &Pool) -> Result<(), Error> {
        pool.healthy()?;
        if pool.is_read_only() {
            return Err(Error::ReadOnly);
        }
        self.check()
    }
}
