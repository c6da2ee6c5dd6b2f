//! Recovery (section 3.6): the shadow is copied to DRAM, and everything in the logs is replayed on it.
//!
//! The interrupted checkpoint is not redone first, as in the paper: the last ledger has a whole root, and the
//! logs everything that it lacks. Recovery writes nothing but the ends of the logs, so it can be interrupted
//! at any point.

use super::shadow::Shadow;
use super::{Changes, Collected, Machine};
use crate::crl::{Entry, Logs, Replay};
use crate::engine::persist_on_read::ReadFlusher;
use crate::error::Error;
use everdram_pm::Pool;
use std::sync::Arc;

/// One thread that reads logs.
struct Reader<'a, M: Machine> {
    machine: &'a M,
    collected: Collected<M::Change>,
    found: ReadFlusher,
}

/// What the logs of a pool hold.
pub(crate) struct Found<C> {
    /// By the threads that have read them.
    parts: Vec<Collected<C>>,
}

impl<C: Copy + Send + Sync> Found<C> {
    /// Reads the logs, and prepares them for writers.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(crate) fn read<M: Machine<Change = C>>(
        pool: &Arc<Pool>,
        logs: &Logs,
        machine: &M,
        threads: usize,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Found<C>, Error> {
        let reader = |_| Reader {
            machine,
            collected: Collected::default(),
            found: ReadFlusher::new(pool.lane()),
        };
        let threads = threads.clamp(1, logs.count());
        let mut readers: Vec<Reader<'_, M>> = (0..threads).map(reader).collect();
        logs.recover(&mut readers, progress)?;
        let parts = readers.into_iter().map(|reader| reader.collected);
        Ok(Found {
            parts: parts.collect(),
        })
    }

    /// Changes in the logs.
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(Collected::len).sum()
    }

    /// What was changed up to this LSN does not count: as the root says, or the logs.
    pub(crate) fn floor(&self, shadow: &Shadow) -> u64 {
        let of_logs = self.parts.iter().map(|part| part.floor).max().unwrap_or(0);
        shadow.floor.max(of_logs)
    }

    /// Calls `each` with the changes above `floor`, object after object, on several threads, and `approach`
    /// with an object a while before.
    ///
    /// # Errors
    /// Those of `each`.
    pub(crate) fn by_object(
        &self,
        threads: usize,
        floor: u64,
        approach: &(dyn Fn(u64) + Sync),
        each: impl Fn(Changes<'_, C>) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        super::by_object_together(&self.parts, threads, floor, approach, each)
    }
}

impl<M: Machine> Replay for Reader<'_, M> {
    fn is_sound(&self, entry: &Entry<'_>) -> bool {
        entry.operations == 0 || self.machine.is_sound(entry)
    }

    fn is_there(&self, _entry: &Entry<'_>) -> bool {
        true
    }

    fn replay(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        match entry.operations {
            0 => Ok(()),
            _ => self.machine.read(entry, &mut self.collected),
        }
    }

    fn tolerate(&mut self, error: Error, lost: &Entry<'_>) -> Result<(), Error> {
        self.machine.lose(error, lost)
    }

    fn begins_torn(&mut self, at: u64) {
        self.machine.begins_torn(at);
    }

    fn found(&mut self) -> &mut ReadFlusher {
        &mut self.found
    }
}
