//! The ledger's counters, and how the records of a log change them.

use super::layout::{Keys, Opcode, Operation, word_at};
use crate::concurrency::stripes::STORED_VERSION_MAX;
use crate::crl::Notes;

/// See the module text.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::bullet) struct LedgerCounters {
    /// Keys added less keys removed, by all records before the heads.
    pub(in crate::bullet) keys: u64,
    /// The greatest version of the records before the heads, or more.
    pub(in crate::bullet) version_max: u64,
    /// Versions up to this one do not count (FLUSHALL).
    pub(in crate::bullet) floor: u64,
    /// Keys of versions up to this one that do not count are no longer in the back.
    pub(in crate::bullet) swept: u64,
}

impl LedgerCounters {
    pub(in crate::bullet) fn to_words(self) -> Notes {
        [self.keys, self.version_max, self.floor, self.swept]
    }

    pub(in crate::bullet) fn from_words(
        [keys, version_max, floor, swept]: Notes,
    ) -> LedgerCounters {
        LedgerCounters {
            keys,
            version_max,
            floor,
            swept,
        }
    }

    /// Whether an engine can have written these values.
    pub(in crate::bullet) fn is_sound(&self) -> bool {
        let versions = [self.version_max, self.floor, self.swept];
        versions
            .into_iter()
            .all(|version| version <= STORED_VERSION_MAX)
    }
}

/// How a run of log records changes the counters.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::bullet) struct Sum {
    pub(in crate::bullet) keys: i64,
    pub(in crate::bullet) version_max: u64,
}

impl Sum {
    /// Counts an operation.
    pub(in crate::bullet) fn add(&mut self, operation: &Operation<'_>) {
        self.version_max = self.version_max.max(operation.version);
        let more = match (operation.opcode, operation.keys) {
            (Opcode::Clear, _) => (word_at(operation.payload, 0) as i64).wrapping_neg(),
            (_, Keys::More) => 1,
            (_, Keys::Fewer) => -1,
            (_, Keys::Same) => 0,
        };
        self.keys = self.keys.wrapping_add(more);
    }
}
