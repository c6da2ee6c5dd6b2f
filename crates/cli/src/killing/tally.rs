//! The counts of a campaign, and its first broken promises in words.

use super::expected::Breach;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Broken promises kept in words. The counts include all.
const TOLD_MAX: usize = 20;

/// A counter that all connections share.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What was counted over a campaign.
#[derive(Default)]
pub(crate) struct Tally {
    /// Writes that were acknowledged.
    pub(crate) acknowledged: Count,
    /// Requests that were answered under load.
    pub(crate) answered: Count,
    /// Reads under load that were judged.
    pub(crate) reads: Count,
    /// Keys read and judged after a start.
    pub(crate) checked: Count,
    pub(crate) lost: Count,
    pub(crate) resurrected: Count,
    /// Torn batches, bytes that no client wrote, wrong expiries.
    pub(crate) damaged: Count,
    /// Answers under load that were older than what had been promised, or wrong.
    pub(crate) inconsistent: Count,
    /// Damage found by complete checks of pools.
    pub(crate) in_pools: Count,
    /// Servers that did not come up, did not close, ended by themselves, or did not answer.
    pub(crate) failures: Count,
    told: Mutex<Vec<String>>,
}

impl Tally {
    /// Broken promises of every kind.
    pub(crate) fn broken(&self) -> u64 {
        let kinds = [
            &self.lost,
            &self.resurrected,
            &self.damaged,
            &self.inconsistent,
            &self.in_pools,
            &self.failures,
        ];
        kinds.into_iter().map(Count::get).sum()
    }

    /// Records a promise broken by what a key holds after a start.
    pub(crate) fn convict(&self, breach: Breach, words: String) {
        let kind = match breach {
            Breach::Lost => &self.lost,
            Breach::Resurrected => &self.resurrected,
            Breach::Damaged => &self.damaged,
        };
        self.convict_of(kind, words);
    }

    /// Records a promise broken by a read under load. A value older than promised counts as inconsistent,
    /// since the newer one may be lost or only hidden.
    pub(crate) fn convict_under_load(&self, breach: Breach, words: String) {
        match breach {
            Breach::Lost => self.convict_of(&self.inconsistent, words),
            Breach::Resurrected | Breach::Damaged => self.convict(breach, words),
        }
    }

    /// Records a broken promise under `kind`, one of this tally's counters.
    pub(crate) fn convict_of(&self, kind: &Count, words: String) {
        kind.add(1);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < TOLD_MAX {
            told.push(words);
        }
    }

    /// The first broken promises, in words.
    pub(crate) fn told(&self) -> Vec<String> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_torn_or_back_under_load_is_called_so() {
        let tally = Tally::default();
        for breach in [Breach::Lost, Breach::Resurrected, Breach::Damaged] {
            tally.convict_under_load(breach, String::new());
        }
        let counts = [
            tally.lost.get(),
            tally.inconsistent.get(),
            tally.resurrected.get(),
            tally.damaged.get(),
        ];
        assert_eq!(counts, [0, 1, 1, 1]);
        assert_eq!(tally.broken(), 3);
        (0..2 * TOLD_MAX).for_each(|_| tally.convict(Breach::Lost, String::new()));
        assert_eq!(tally.told().len(), TOLD_MAX);
        assert_eq!(tally.lost.get(), 2 * TOLD_MAX as u64);
    }
}
