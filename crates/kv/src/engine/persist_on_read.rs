//! Makes what recovery reads durable: it flushes each read, and fences before it builds on the bytes.
//!
//! Bytes that recovery reads after a kill may exist only in the caches of the processor. If recovery acts on
//! them and then power fails, they revert. So recovery flushes what it reads, and fences once before it
//! builds on it.

use everdram_pm::{Dirty, Lane, Unfenced};

/// See the module text.
pub(crate) struct ReadFlusher {
    /// The lane with which recovery writes. Each of its fences covers everything kept before.
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

    /// Flushes bytes of the pool: they are durable with the next [`ReadFlusher::settle`].
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn keep(&mut self, at: u64, bytes: u64) {
        self.unfenced.add(self.lane.flush_found(at, bytes));
    }

    /// As [`ReadFlusher::keep`], for bytes that were just stored.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn keep_stored(&mut self, dirty: Dirty) {
        self.unfenced.add(self.lane.flush(dirty));
    }

    /// Orders everything kept before all later stores.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn settle(&mut self) {
        let _ordered = self.unfenced.fence(&mut self.lane);
    }
}
