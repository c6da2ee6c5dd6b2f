//! What the ledger says besides how far the logs are reclaimed, and what the records of a log change of it.

use super::layout::{Keys, Opcode, Operation, word_at};
use crate::concurrency::stripes::STORED_VERSION_MAX;
use crate::crl::Notes;

/// See the module text.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::bullet) struct LedgerCounters {
    /// Keys that came less keys that went, of all records before the heads.
    pub(in crate::bullet) keys: u64,
    /// No version of a record before the heads is greater.
    pub(in crate::bullet) version_max: u64,
    /// Versions up to this one do not count (FLUSHALL).
    pub(in crate::bullet) floor: u64,
    /// Up to this version, what does not count is not in the back any more.
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

    /// Whether an engine can have written them.
    pub(in crate::bullet) fn is_sound(&self) -> bool {
        let versions = [self.version_max, self.floor, self.swept];
        versions
            .into_iter()
            .all(|version| version <= STORED_VERSION_MAX)
    }
}

/// How a log's records up to some position change the books.
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
