//! What was flushed and waits for a fence, gathered, so that one fence covers all of it.

use super::lane::{Flushed, Lane, Ordered, Written};

/// Gathers what the next fence of a lane has to cover, and keeps the last fence.
pub struct Unfenced {
    flushed: Option<Flushed>,
    ordered: Ordered,
}

impl Default for Unfenced {
    fn default() -> Unfenced {
        Unfenced {
            flushed: None,
            ordered: Ordered::when_found(),
        }
    }
}

impl Unfenced {
    /// Adds what was flushed: the next [`Unfenced::fence`] covers it.
    #[inline]
    pub fn add(&mut self, flushed: Flushed) {
        flushed.join(&mut self.flushed);
    }

    /// When the last of what was gathered had been flushed; `None` if there is nothing.
    pub fn written(&self, lane: &Lane) -> Option<Written> {
        self.flushed.as_ref().map(|_| lane.written())
    }

    /// The last fence.
    #[inline]
    pub fn last(&self) -> Ordered {
        self.ordered
    }

    /// Fences what was gathered, if there is anything. Returns the fence that covers all that ever was.
    #[inline]
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn fence(&mut self, lane: &mut Lane) -> Ordered {
        if let Some(flushed) = self.flushed.take() {
            self.ordered = lane.fence(flushed);
        }
        self.ordered
    }
}
