//! The work of a log's two threads, a round at a time, for the crash lab, which schedules them.

use super::Log;
use crate::error::Error;

impl Log {
    /// One round of the flusher: makes all appended groups durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub(crate) fn flush_once(&self) -> Result<(), Error> {
        self.shared.flush_to(self.shared.end())
    }

    /// One round of the checkpointer, as after a calm: copies changed pages to the image and gives memory
    /// back.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub(crate) fn checkpoint_once(&self) -> Result<(), Error> {
        self.shared.checkpoint()?;
        self.shared.give_back();
        Ok(())
    }
}
