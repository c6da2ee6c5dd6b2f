//! What nobody can find any more, and what readers may still be looking at.

use crate::concurrency::epoch::Epochs;
use crate::concurrency::seam::{few, publishes};
use std::collections::VecDeque;

/// Things that were taken out of the readers' sight wait for a stamp together, so many of them.
const TOGETHER: usize = 64;
/// Of so many lots one may be waiting for readers although there may be none.
const WAITING_MAX: usize = 8;

/// A queue of things that can be used again later.
pub(crate) struct Retired<T> {
    fresh: Vec<T>,
    /// With the stamp after which nobody can be looking at them.
    waiting: VecDeque<(u64, Vec<T>)>,
}

impl<T> Default for Retired<T> {
    fn default() -> Retired<T> {
        Retired {
            fresh: Vec::new(),
            waiting: VecDeque::new(),
        }
    }
}

impl<T> Retired<T> {
    /// Adds what was unlinked just now.
    #[inline]
    pub(crate) fn push(&mut self, thing: T) {
        publishes!();
        self.fresh.push(thing);
    }

    /// Whether nothing waits for readers.
    pub(crate) fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.waiting.is_empty()
    }

    /// Whether it is time for [`Retired::take`].
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.fresh.len() >= few!(TOGETHER)
    }

    /// Calls `free` with what nobody can be looking at any more, as far as that is known or cheap to find
    /// out.
    pub(crate) fn take(&mut self, epochs: &Epochs, free: impl FnMut(T)) {
        // Asking interrupts every core, so it is done for many at once.
        self.take_if(epochs, self.waiting.len() >= few!(WAITING_MAX), free);
    }

    /// As [`Retired::take`], after finding out.
    pub(crate) fn take_now(&mut self, epochs: &Epochs, free: impl FnMut(T)) {
        self.take_if(epochs, true, free);
    }

    fn take_if(&mut self, epochs: &Epochs, ask: bool, mut free: impl FnMut(T)) {
        if !self.fresh.is_empty() {
            let fresh = std::mem::take(&mut self.fresh);
            self.waiting.push_back((epochs.advance(), fresh));
        }
        if ask {
            epochs.ask(self.waiting.back().map(|(stamp, _)| *stamp));
        }
        while let Some((stamp, _)) = self.waiting.front()
            && epochs.is_known_to_have_passed(*stamp)
        {
            let things = self.waiting.pop_front().map(|(_, things)| things);
            things.into_iter().flatten().for_each(&mut free);
        }
    }

    /// Everything that waits, for somebody else to wait with.
    pub(crate) fn append(&mut self, other: &mut Retired<T>) {
        self.fresh.append(&mut other.fresh);
        self.waiting.append(&mut other.waiting);
    }
}
