//! What the two threads of a log do, a round at a time, for whoever schedules them: the crash lab.

use super::Log;
use crate::error::Error;

impl Log {
    /// One round of the flusher: makes durable what was appended until now.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub(crate) fn flush_once(&self) -> Result<(), Error> {
        self.shared.flush_to(self.shared.end())
    }

    /// One round of the checkpointer, as after a calm: copies what changed to the image and gives memory
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
