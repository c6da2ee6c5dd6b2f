//! Counters every engine fills, and the report of a check: one snapshot type each.

use crate::error::{Error, corrupt};
pub use everdram_pm::Report;
use std::path::PathBuf;

/// A snapshot of an engine's counters and sizes.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Live keys.
    pub keys: u64,
    /// Bytes of the medium that the pool's image occupies.
    pub pool_bytes: u64,
    /// Bytes of blocks in use (open, sealed or being compacted).
    pub used_bytes: u64,
    /// Bytes of live records, headers included.
    pub live_bytes: u64,
    /// Bytes of the volatile index in DRAM.
    pub index_bytes: u64,
    /// Bytes of blocks in use that hold the checkpoint of the index.
    pub checkpoint_bytes: u64,
    /// Blocks by state.
    pub blocks_free: u64,
    /// Blocks that a session writes into.
    pub blocks_open: u64,
    /// Full blocks.
    pub blocks_sealed: u64,
    /// Puts since open.
    pub puts: u64,
    /// Gets since open.
    pub gets: u64,
    /// Gets since open that found nothing.
    pub misses: u64,
    /// Deletes since open that removed something.
    pub deletes: u64,
    /// Keys removed because they had expired, since open.
    pub expired: u64,
    /// Blocks compacted and freed since open.
    pub blocks_reclaimed: u64,
    /// Bytes of live records moved by compaction since open.
    pub bytes_moved: u64,
    /// Time recovery took at open, in microseconds.
    pub recovery_us: u64,
    /// Records recovery indexed at open.
    pub recovered_records: u64,
    /// Older copies that recovery found and invalidated at open.
    pub recovered_losers: u64,
    /// After a restart that began with a checkpoint of the index: blocks verified since, and how many there
    /// are to verify in all. `None` when everything has been.
    pub verification: Option<(u64, u64)>,
    /// Of engine `bullet`: its table in DRAM.
    pub front: Option<FrontStats>,
    /// What the store lacks, if it was opened with [`crate::Options::salvage`].
    pub salvage: Option<SalvageStats>,
}

/// What the front of engine `bullet` holds and does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrontStats {
    /// Bytes of DRAM that nodes and tables use: what is held against the budget. [`Stats::index_bytes`] is
    /// what the front has, free room between nodes included.
    pub used_bytes: u64,
    /// Bytes it may use; `None`: all that the data need.
    pub budget_bytes: Option<u64>,
    /// Gets since open that the front could not answer by itself: they looked into the back.
    pub misses: u64,
    /// Nodes since open that such a get brought into the front.
    pub filled: u64,
    /// Nodes since open that made room.
    pub evicted: u64,
}

/// What a check walked and found.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Blocks read.
    pub blocks: u64,
    /// Records whose checksum was verified.
    pub records: u64,
    /// Records that are live.
    pub live: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Damage found; empty = sound.
    pub findings: Vec<Finding>,
}

/// One piece of damage.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Finding {
    /// The file that it is in; `None`: the pool's image.
    pub file: Option<PathBuf>,
    /// Byte offset in that file.
    pub offset: u64,
    /// Bytes from there on that are of no use; 0 if that is not known.
    pub bytes: u64,
    /// The key that it belongs to, as far as it can be read; `what` says if it may be wrong.
    pub key: Option<Vec<u8>>,
    /// Records that are missing for it, as far as they can be counted.
    pub missing: u64,
    /// Records that had been replaced or removed may count again for it.
    pub stale: bool,
    /// What is wrong there.
    pub what: String,
}

impl Finding {
    /// Damage at byte `offset` of the image, for which nothing is known to be missing.
    pub(crate) fn new(offset: u64, what: impl Into<String>) -> Finding {
        Finding {
            offset,
            what: what.into(),
            ..Finding::default()
        }
    }

    /// The same, as an error.
    pub(crate) fn into_error(self) -> Error {
        corrupt(self.offset, &self.what)
    }
}

/// What a salvaged store ([`crate::Options::salvage`]) lacks, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageStats {
    /// Places that are damaged.
    pub findings: u64,
    /// Records that are missing for them: at least so many, since what cannot be read cannot be counted.
    pub missing_records: u64,
    /// Bytes that were skipped.
    pub skipped_bytes: u64,
    /// Keys for which an error answers.
    pub doubtful_keys: u64,
}

/// Blocks of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct KindCount {
    /// What the engine calls them.
    pub kind: &'static str,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of what is stored in them.
    pub filled_bytes: u64,
    /// Bytes of what is not live any more, or cannot be used before it is compacted.
    pub garbage_bytes: u64,
}

/// What [`inspect`](crate::inspect::inspect) found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Inspection {
    /// Superblock and geometry, as (name, value) with units.
    pub fields: Vec<(String, String)>,
    /// Extents: (owner, first byte, bytes).
    pub extents: Vec<(u32, u64, u64)>,
    /// Blocks by kind.
    pub kinds: Vec<KindCount>,
    /// One byte for each block, in order: share of live bytes, 0 to 100; 255 = free. Empty if the engine has
    /// no such map.
    pub space_map: Vec<u8>,
    /// Totals.
    pub stats: Stats,
}
