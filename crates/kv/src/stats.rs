//! Counters that every engine fills, and the report of a check: one snapshot type each.

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
    /// Free blocks.
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
    /// After a restart that began with a checkpoint of the index: blocks verified since, and blocks to verify
    /// in total. `None` once all are verified.
    pub verification: Option<(u64, u64)>,
    /// What only this engine counts: a name that ends with its unit, as INFO shows it, and the number.
    /// `None`: there is no bound. `bullet` describes its table in DRAM with `front_used_bytes` and
    /// `front_budget_bytes` (nodes and tables; [`Stats::index_bytes`] is all memory, free room included),
    /// and, since open, `front_hits`, `front_misses` (gets that read the back), `front_filled` (nodes that
    /// those loaded) and `front_evicted`. `dstore` describes its data file, its shadow and its logs, and,
    /// since open, `checkpoints`, `checkpoint_changes`, `checkpoint_written_bytes` (to the shadow, by
    /// checkpoints that have ended), `data_written_bytes` and `data_read_bytes` (by sessions, maps of large
    /// values included), `data_syncs`, `log_written_bytes`, and `log_waits`: how often a write found no room
    /// in the logs.
    pub own: Vec<(&'static str, Option<u64>)>,
    /// What is missing, if the store was opened with [`crate::Options::salvage`].
    pub salvage: Option<SalvageStats>,
}

impl Stats {
    /// A number of [`Stats::own`]; `None`: this engine has none of that name, or it has no bound.
    #[must_use]
    pub fn own(&self, name: &str) -> Option<u64> {
        let one = self.own.iter().find(|(other, _)| *other == name)?;
        one.1
    }
}

/// The extent and result of a check.
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
    /// The damaged file; `None`: the pool's image.
    pub file: Option<PathBuf>,
    /// Byte offset in that file.
    pub offset: u64,
    /// Bytes from there on that are unusable; 0 if unknown.
    pub bytes: u64,
    /// The key concerned, as far as it can be read; `what` says if it may be wrong.
    pub key: Option<Vec<u8>>,
    /// Records missing because of it, as far as they can be counted.
    pub missing: u64,
    /// Whether replaced or removed records may count again because of it.
    pub stale: bool,
    /// What is wrong there.
    pub what: String,
}

impl Finding {
    /// Damage at byte `offset` of the image, with nothing known to be missing.
    pub(crate) fn new(offset: u64, what: impl Into<String>) -> Finding {
        Finding {
            offset,
            what: what.into(),
            ..Finding::default()
        }
    }

    /// The finding as an error.
    pub(crate) fn into_error(self) -> Error {
        corrupt(self.offset, &self.what)
    }
}

/// Losses of a salvaged store ([`crate::Options::salvage`]), in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageStats {
    /// Damaged places.
    pub findings: u64,
    /// Records missing, at least: unreadable ones cannot be counted.
    pub missing_records: u64,
    /// Bytes that were skipped.
    pub skipped_bytes: u64,
    /// Keys whose reads return an error.
    pub doubtful_keys: u64,
}

/// Blocks of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct KindCount {
    /// The engine's name for them.
    pub kind: &'static str,
    /// Blocks.
    pub blocks: u64,
    /// Bytes stored in them.
    pub filled_bytes: u64,
    /// Bytes that are not live any more, or unusable before compaction.
    pub garbage_bytes: u64,
}

/// A file of the log below a pool (engine `tiered`).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LogFile {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes of its entries.
    pub bytes: u64,
    /// Bytes of those that are not the state of their key any more, and of removals: at most `bytes`.
    pub stale_bytes: u64,
}

/// The result of [`inspect`](crate::inspect::inspect).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Inspection {
    /// Superblock and geometry, as (name, value) with units.
    pub fields: Vec<(String, String)>,
    /// Extents: (owner, first byte, bytes).
    pub extents: Vec<(u32, u64, u64)>,
    /// Blocks by kind.
    pub kinds: Vec<KindCount>,
    /// One byte per block, in order: share of live bytes, 0 to 100; 255 = free. Empty if the engine has no
    /// such map.
    pub space_map: Vec<u8>,
    /// Files of the log below the pool, the oldest first.
    pub log_files: Vec<LogFile>,
    /// Totals.
    pub stats: Stats,
}
