//! Reads a log entry by entry, as long as they verify, and hands batches of entries to gleaners.

use super::entry::{ENTRY_HEAD, Entry, EntryHead, RecordAt};
use super::log::Logs;
use crate::concurrency::seam::few;
use crate::error::{Error, corrupt};
use everdram_pm::LINE;

/// Bytes read at once: many entries share the latency of one read.
const WINDOW: u64 = 16 << 10;
/// The same for a reader of single entries, which are seldom longer.
const ONE_ENTRY: u64 = 4 * LINE;
/// Operations per batch; after a batch the log's cursor moves.
const BATCH: usize = 256;

/// Reads a log's entries in order, many at a time.
#[derive(Default)]
pub(crate) struct Cursor {
    log: usize,
    /// Bytes to read at once, unless an entry is longer.
    window: u64,
    /// Position of the first of `bytes`.
    from: u64,
    bytes: Vec<u8>,
}

/// What a cursor finds at a position.
pub(crate) enum Next<'a> {
    /// An entry, and the position after it.
    Entry(Entry<'a>, u64),
    /// Bytes that do not verify.
    Nothing,
}

/// A batch of a log's entries, up to the end of an epoch: what a gleaner applies at once.
pub(crate) struct Entries<'a> {
    logs: &'a Logs,
    cursor: &'a mut Cursor,
    /// Position after the last returned entry.
    pub(super) position: u64,
    limit: u64,
    epoch: u64,
    /// Operations returned so far.
    operations: usize,
    /// Whether the log has no more of them.
    pub(super) is_end: bool,
}

impl<'a> Entries<'a> {
    /// Entries from `position` on, of epochs up to `epoch`.
    pub(super) fn new(
        logs: &'a Logs,
        cursor: &'a mut Cursor,
        [position, limit]: [u64; 2],
        epoch: u64,
    ) -> Entries<'a> {
        Entries {
            logs,
            cursor,
            position,
            limit,
            epoch,
            operations: 0,
            is_end: false,
        }
    }

    /// Their log.
    pub(crate) fn log(&self) -> usize {
        self.cursor.log
    }

    /// The next entry of the batch.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(crate) fn next(&mut self) -> Result<Option<Entry<'_>>, Error> {
        self.is_end = self.is_end || self.position >= self.limit;
        if self.is_end || self.operations >= few!(BATCH) {
            return Ok(None);
        }
        let at = self.logs.place(self.cursor.log, self.position);
        match self.cursor.next(self.logs, self.position, self.limit) {
            Next::Entry(entry, _) if entry.head.epoch > self.epoch => {
                self.is_end = true;
                Ok(None)
            }
            Next::Entry(entry, next) => {
                self.operations += entry.operations as usize;
                self.position = next;
                Ok(Some(entry))
            }
            Next::Nothing => Err(corrupt(at, "a published log record is damaged")),
        }
    }
}

impl Cursor {
    pub(crate) fn new(log: usize) -> Cursor {
        Cursor {
            log,
            window: WINDOW,
            ..Cursor::default()
        }
    }

    /// For a reader that goes from log to log, one entry each.
    pub(crate) fn of_one(log: usize) -> Cursor {
        Cursor {
            window: ONE_ENTRY,
            ..Cursor::new(log)
        }
    }

    /// Switches to this log, and drops the bytes read before: they may have been overwritten.
    pub(super) fn switch_to(&mut self, log: usize) {
        self.log = log;
        self.bytes.clear();
    }

    /// The entry at `position`; reads nothing at or after `limit`.
    pub(crate) fn next(&mut self, logs: &Logs, position: u64, limit: u64) -> Next<'_> {
        let most = logs.to_end(position).min(limit.saturating_sub(position));
        if most < LINE || !self.fill(logs, position, LINE, most) {
            return Next::Nothing;
        }
        let head = EntryHead::read(self.at(position, LINE));
        let bytes = head.bytes();
        let padding = head.operations == 0;
        // Padding ends where a lap ends. Only in a forged pool does it continue past the limit.
        let fits = bytes <= most && (!padding || bytes == logs.to_end(position));
        if bytes == 0 || !fits || !padding && bytes > logs.entry_most() as u64 {
            return Next::Nothing;
        }
        let sealed = if padding { ENTRY_HEAD as u64 } else { bytes };
        self.fill(logs, position, sealed, most);
        let entry = self.at(position, sealed);
        let at = logs.place(self.log, position);
        if !head.verifies(logs.pool.secret(), at, position, entry) {
            return Next::Nothing;
        }
        let entry = Entry {
            at: RecordAt::new(self.log, position),
            head,
            operations: head.operations,
            bytes: &entry[ENTRY_HEAD..],
        };
        Next::Entry(entry, position + bytes)
    }

    /// The head at `position`, not verified.
    pub(super) fn head(&mut self, logs: &Logs, position: u64, limit: u64) -> EntryHead {
        let most = logs.to_end(position).min(limit.saturating_sub(position));
        EntryHead::read(match self.fill(logs, position, LINE, most) {
            true => self.at(position, LINE),
            false => &[],
        })
    }

    /// Reads `needed` bytes from `position` on, unless they are in `bytes` already; at most `most` can be
    /// read.
    fn fill(&mut self, logs: &Logs, position: u64, needed: u64, most: u64) -> bool {
        let end = self.from + self.bytes.len() as u64;
        if position >= self.from && position + needed <= end {
            return true;
        }
        let bytes = self.window.max(needed).min(most).max(needed);
        if bytes > logs.to_end(position) {
            return false;
        }
        self.from = position;
        self.bytes.clear();
        let region = logs.pool.region();
        region.load_behind(logs.place(self.log, position), bytes, &mut self.bytes);
        true
    }

    fn at(&self, position: u64, bytes: u64) -> &[u8] {
        let from = (position - self.from) as usize;
        let Some(read) = self.bytes.get(from..from + bytes as usize) else {
            panic!("bytes of a log are used that were not read");
        };
        read
    }
}
