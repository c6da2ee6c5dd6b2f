//! What recovery finds in a pool: flushed when it is looked at, and fenced before anything is built on it.
//!
//! A process that was killed may have left in the caches what the next one reads, so a power loss could take back what has been acted on by then.
//! Flushes wait for one fence behind all of them: what recovery reads is promised to nobody before recovery is over.

use everdram_pm::{Dirty, Flushed, Lane};

/// See the module text.
pub(crate) struct ReadFlusher {
    /// What recovery writes with. Each of its fences covers what was kept before it.
    pub(crate) lane: Lane,
    flushed: Option<Flushed>,
}

impl ReadFlusher {
    pub(crate) fn new(lane: Lane) -> ReadFlusher {
        ReadFlusher {
            lane,
            flushed: None,
        }
    }

    /// Keeps what is there: durable with the next [`ReadFlusher::settle`].
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn keep(&mut self, at: u64, bytes: u64) {
        let flushed = self.lane.flush_found(at, bytes);
        flushed.join(&mut self.flushed);
    }

    /// As [`ReadFlusher::keep`], of what was stored just now.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn keep_stored(&mut self, dirty: Dirty) {
        let flushed = self.lane.flush(dirty);
        flushed.join(&mut self.flushed);
    }

    /// What was kept is ordered before whatever is stored from here on.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn settle(&mut self) {
        if let Some(flushed) = self.flushed.take() {
            let _ordered = self.lane.fence(flushed);
        }
    }
}
