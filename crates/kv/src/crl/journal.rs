//! A journal makes any in-memory map persistent. The logs are the only copy: each key in the map has exactly
//! one live entry in some log.
//!
//! # The story of one put
//! 1. The writer takes a log that has room. So it waits for room before it holds anything.
//! 2. It takes its key's stripe ([`crate::concurrency::stripes`]), for all that follows. So a key's versions,
//!    its entries and the map's values have one order.
//! 3. It appends an entry, fences it, and waits until it is durable. Then the map shows it.
//!
//! # Room
//! A writer that finds no room *cleans*, so the logs do not fill up. It goes through the oldest epoch of each
//! log, and appends the current entries from there again, to the same log. An entry that is not current is
//! useless. So is a removal: the entries it removes are in the same epoch or were reclaimed earlier. When the
//! copies are fenced, the ledger moves all heads at once.
//!
//! Writers reserve more than half of each log for cleaning, and puts leave room for removals, so a map that
//! is too large can shrink. A pass cleans one epoch, the oldest, and appends its copies in a later one. So a
//! log takes copies of what writers put there once, whatever crashes happen meanwhile, and that always fits.
//!
//! What is left in the logs is newer than everything reclaimed, and of a key's entries the one with the
//! greatest version counts. So recovery only reads the logs.

use super::change::Change;
use super::entry::Entry;
use super::ledger::{LEDGERS_AT, LOGS_MAX, Ledger};
use super::log::{Logs, Shape};
use super::recover::Replay;
use crate::concurrency::stripes::{STRIPES, StripeId, Stripes};
use crate::engine::halt::Halt;
use crate::engine::kind::JOURNAL;
use crate::engine::persist_on_read::ReadFlusher;
use crate::engine::pool::pool_of;
use crate::error::{Error, corrupt};
use crate::options::Options;
use crossbeam_utils::CachePadded;
use everdram_pm::Pool;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Owner of the extent of the logs.
pub(super) const OWNER: u32 = 1;
/// The format version that this code writes.
const FORMAT: u64 = 1;

/// A map in DRAM that a [`Journal`] makes persistent. It must keep a number for each key: the version of its
/// value.
///
/// Calls for one key are sequential; calls for different keys may be concurrent. These methods must not write
/// through the journal.
pub trait Volatile: Sync {
    /// Sets or removes the key. The change is durable, so readers may see it at once; while a journal is
    /// being opened, only after that.
    fn show(&self, key: &[u8], version: u64, value: Option<&[u8]>);

    /// The version with which the key's value was shown; `None`: no such key.
    fn version(&self, key: &[u8]) -> Option<u64>;
}

/// See the module text. The program reads its map in its own way, and writes it through a
/// [`Writer`](super::Writer).
pub struct Journal<V> {
    pub(super) pool: Arc<Pool>,
    pub(super) logs: Logs,
    pub(super) stripes: Stripes,
    /// Why it takes no more writes, once a write failed half-way.
    pub(super) halted: Halt,
    /// Puts and removals since it was opened, by log; the log's holder counts.
    pub(super) counts: Box<[CachePadded<AtomicU64>]>,
    map: V,
}

/// The shape of the logs, from the geometry words.
fn shape([format, count, log_bytes, ..]: [u64; 8], at: u64) -> Option<Shape> {
    let is_sound = format == FORMAT
        && (1..=LOGS_MAX as u64).contains(&count)
        && log_bytes.is_multiple_of(4096)
        && (4096..=1 << 30).contains(&log_bytes);
    let entry_most = (log_bytes / 32).min(192 << 10) / 64 * 64;
    is_sound.then_some(Shape {
        at,
        count: count as usize,
        log_bytes,
        entry_most: entry_most as usize,
        // A removal, copies of everything current, and padding; each append asks for the room of two entries.
        reserved: log_bytes / 2 + 4 * entry_most,
    })
}

/// Number and geometry words in the superblock of a new journal's pool.
///
/// # Errors
/// [`Error::Options`].
#[doc(hidden)]
pub fn identity(options: &Options) -> Result<(u32, [u64; 8]), Error> {
    let (count, log_bytes) = (u64::from(options.bullet.logs), options.bullet.log_bytes);
    let geometry = [FORMAT, count, log_bytes, 0, 0, 0, 0, 0];
    match shape(geometry, 0) {
        Some(_) => Ok((JOURNAL, geometry)),
        None => Err(Error::Options(format!(
            "a journal of {count} logs of {log_bytes} bytes: 1 to {LOGS_MAX}, of 4 KiB to 1 GiB in steps of 4 KiB"
        ))),
    }
}

impl<V: Volatile> Journal<V> {
    /// Opens or creates the pool at `path` and replays it into `map`, which must be empty. Uses the options
    /// of the pool and its medium, and `bullet.logs` and `bullet.log_bytes` for a new pool. Live entries
    /// (key, value and 48 bytes, rounded up to lines of 64) must fit into three eighths of the logs.
    ///
    /// # Errors
    /// See [`Error`]; a pool that cannot be opened is unchanged.
    pub fn open(path: impl AsRef<Path>, options: &Options, map: V) -> Result<Journal<V>, Error> {
        let path = path.as_ref();
        if options.read_only {
            return Err(Error::Options(
                "a journal has no read-only mode; open it without `read_only`".into(),
            ));
        }
        let pool = pool_of(path, options, identity(options)?, vec![JOURNAL])?;
        Journal::over(pool, map).map_err(|error| error.at_path(path))
    }

    /// A journal over an open pool.
    ///
    /// # Errors
    /// As [`Journal::open`], without the path.
    #[doc(hidden)]
    pub fn over(pool: Arc<Pool>, map: V) -> Result<Journal<V>, Error> {
        Journal::read(pool, map, &|_, _| {})
    }

    /// As [`Journal::over`]; `progress` is called with logs begun and logs in total.
    pub(super) fn read(
        pool: Arc<Pool>,
        map: V,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Journal<V>, Error> {
        let damaged = |at, what| Err(corrupt(at, what));
        let Some(shape) = shape(pool.geometry(), 0) else {
            return damaged(0, "the geometry in the superblock makes no sense");
        };
        let bytes = shape.count as u64 * shape.log_bytes;
        let at = match pool.extents(OWNER).as_slice() {
            [] => pool.allocate(OWNER, bytes, 4096)?.at,
            [extent] if extent.bytes == bytes => extent.at,
            _ => return damaged(0, "the extent of the logs has the wrong size"),
        };
        let mut found = ReadFlusher::new(pool.lane());
        let shape = Shape { at, ..shape };
        let ledger = match Ledger::find(&pool, &mut found, shape.count)? {
            Some(ledger) => ledger,
            None if shape.is_blank(&pool) => Ledger::first(&mut found.lane, shape.count),
            None => return damaged(LEDGERS_AT, "both ledgers are damaged"),
        };
        let logs = Logs::new(Arc::clone(&pool), shape, ledger);
        let stripes = Stripes::new(STRIPES);
        found.settle();
        let mut recovery = [Recovery {
            map: &map,
            found,
            newest: HashMap::new(),
            version_max: 0,
        }];
        logs.recover(&mut recovery, progress)?;
        let version_max = recovery[0].version_max;
        stripes
            .all()
            .for_each(|stripe| stripes.raise(stripe, version_max));
        Ok(Journal {
            pool,
            counts: (0..logs.count()).map(|_| CachePadded::default()).collect(),
            logs,
            stripes,
            halted: Halt::default(),
            map,
        })
    }

    /// The map, to read it.
    pub fn map(&self) -> &V {
        &self.map
    }

    /// Most bytes of one log before a removal.
    pub(super) fn most_to_remove(&self) -> u64 {
        self.logs.most() + 2 * self.logs.entry_most() as u64
    }

    /// Bytes in the logs, and the bytes at which cleaning starts.
    pub fn used_bytes(&self) -> (u64, u64) {
        let most = self.logs.most() * self.logs.count() as u64;
        (self.logs.used_bytes(), most)
    }

    /// Makes everything durable in the pool's files, and closes the pool. Without it nothing is lost, but the
    /// next open takes longer.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn close(self) -> Result<(), Error> {
        Ok(self.pool.close()?)
    }

    pub(super) fn stripe(&self, key: &[u8]) -> StripeId {
        self.stripes.of(self.pool.secret().sum(key))
    }

    /// Puts and removals since it was opened.
    pub(super) fn written(&self) -> u64 {
        let counts = self.counts.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The epoch of the oldest entry in the logs.
    pub(super) fn oldest_epoch(&self) -> u64 {
        let oldest = (0..self.logs.count()).filter_map(|log| self.logs.first_epoch(log));
        oldest.min().unwrap_or(u64::MAX)
    }

    /// Refuses writes once the medium has failed, or a write failed half-way.
    pub(super) fn healthy(&self) -> Result<(), Error> {
        self.halted.healthy(&self.pool)
    }
}

/// A recovery in progress.
struct Recovery<'a, V> {
    map: &'a V,
    found: ReadFlusher,
    /// The current version of each key so far, including removed keys.
    newest: HashMap<Vec<u8>, u64>,
    version_max: u64,
}

impl<V: Volatile> Replay for Recovery<'_, V> {
    fn is_sound(&self, entry: &Entry<'_>) -> bool {
        entry.operations == 0 || Change::read(entry).is_some()
    }

    fn is_there(&self, _entry: &Entry<'_>) -> bool {
        true
    }

    fn replay(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        let Some(Change {
            version,
            key,
            value,
        }) = Change::read(entry)
        else {
            return Ok(());
        };
        self.version_max = self.version_max.max(version);
        match self.newest.get_mut(key) {
            Some(newest) if *newest >= version => return Ok(()),
            Some(newest) => *newest = version,
            None => drop(self.newest.insert(key.to_vec(), version)),
        }
        self.map.show(key, version, value);
        Ok(())
    }

    fn found(&mut self) -> &mut ReadFlusher {
        &mut self.found
    }
}
