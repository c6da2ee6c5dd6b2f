//! What recovery finds in a pool: flushed when it is looked at, and fenced before anything is built on it.
//!
//! Bytes that recovery reads after a kill may exist only in the caches of the processor. If recovery acts on
//! them and then power fails, they revert. So recovery flushes what it reads, and fences once before it
//! builds on it.

use everdram_pm::{Dirty, Lane, Unfenced};

/// See the module text.
pub(crate) struct ReadFlusher {
    /// What recovery writes with. Each of its fences covers what was kept before it.
    pub(crate) lane: Lane,
    unfenced: Unfenced,
}

impl ReadFlusher {
    pub(crate) fn new(lane: Lane) -> ReadFlusher {
        ReadFlusher {
            lane,
            unfenced: Unfenced::default(),
        }
    }

    /// Keeps what is there: durable with the next [`ReadFlusher::settle`].
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn keep(&mut self, at: u64, bytes: u64) {
        self.unfenced.add(self.lane.flush_found(at, bytes));
    }

    /// As [`ReadFlusher::keep`], of what was stored just now.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn keep_stored(&mut self, dirty: Dirty) {
        self.unfenced.add(self.lane.flush(dirty));
    }

    /// What was kept is ordered before whatever is stored from here on.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn settle(&mut self) {
        let _ordered = self.unfenced.fence(&mut self.lane);
    }
}
