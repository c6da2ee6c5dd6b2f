//! Flushes that wait for a fence, gathered so that one fence covers all of them.

use super::lane::{Flushed, Lane, Ordered, Written};

/// Gathers what the next fence of a lane must cover, and keeps the last fence.
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
    /// Adds a flush: the next [`Unfenced::fence`] covers it.
    #[inline]
    pub fn add(&mut self, flushed: Flushed) {
        flushed.join(&mut self.flushed);
    }

    /// What a fence now would cover; `None` if nothing was gathered.
    pub fn written(&self, lane: &Lane) -> Option<Written> {
        self.flushed.as_ref().map(|_| lane.written())
    }

    /// The last fence.
    #[inline]
    pub fn last(&self) -> Ordered {
        self.ordered
    }

    /// Fences what was gathered, if anything. The returned fence covers everything ever added.
    #[inline]
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn fence(&mut self, lane: &mut Lane) -> Ordered {
        if let Some(flushed) = self.flushed.take() {
            self.ordered = lane.fence(flushed);
        }
        self.ordered
    }
}
