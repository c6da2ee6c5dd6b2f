//! Reading a log: entry by entry, as long as they verify; and the lots that gleaners get.

use super::entry::{ENTRY_HEAD, Entry, EntryHead, RecordAt};
use super::log::Logs;
use crate::concurrency::seam::few;
use crate::error::{Error, corrupt};
use everdram_pm::LINE;

/// Bytes read at once: what hides the latency of one read behind many entries.
const WINDOW: u64 = 16 << 10;
/// The same for who wants one entry, which is seldom longer.
const GLANCE: u64 = 4 * LINE;
/// Operations of a lot, after which its log's cursor moves.
const LOT: usize = 256;

/// Reads a log's entries in order, many at a time.
#[derive(Default)]
pub(crate) struct Cursor {
    log: usize,
    /// Bytes read at once, if an entry is not longer.
    window: u64,
    /// Positions that `bytes` holds.
    from: u64,
    bytes: Vec<u8>,
}

/// What a cursor finds at a position.
pub(crate) enum Next<'a> {
    /// An entry, and the position behind it.
    Entry(Entry<'a>, u64),
    /// Nothing that verifies.
    Nothing,
}

/// Some entries of a log, up to the end of an epoch: what a gleaner applies at once.
pub(crate) struct Entries<'a> {
    logs: &'a Logs,
    cursor: &'a mut Cursor,
    /// Behind the last one that was given out.
    pub(super) position: u64,
    limit: u64,
    epoch: u64,
    /// Operations that were given out.
    operations: usize,
    /// There are no more of them in the log.
    pub(super) are_all: bool,
}

impl<'a> Entries<'a> {
    /// Those from `position` on, of epochs up to `epoch`.
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
            are_all: false,
        }
    }

    /// The log that they are in.
    pub(crate) fn log(&self) -> usize {
        self.cursor.log
    }

    /// The next one.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(crate) fn next(&mut self) -> Result<Option<Entry<'_>>, Error> {
        self.are_all = self.are_all || self.position >= self.limit;
        if self.are_all || self.operations >= few!(LOT) {
            return Ok(None);
        }
        let at = self.logs.place(self.cursor.log, self.position);
        match self.cursor.next(self.logs, self.position, self.limit) {
            Next::Entry(entry, _) if entry.head.epoch > self.epoch => {
                self.are_all = true;
                Ok(None)
            }
            Next::Entry(entry, next) => {
                self.operations += entry.operations as usize;
                self.position = next;
                Ok(Some(entry))
            }
            Next::Nothing => Err(corrupt(at, "a log record that was written is damaged")),
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

    /// Of who goes from log to log, and wants one entry of each.
    pub(crate) fn of_one(log: usize) -> Cursor {
        Cursor {
            window: GLANCE,
            ..Cursor::new(log)
        }
    }

    /// Reads this log from now on, and again what it has read: that may have been written anew.
    pub(super) fn turn_to(&mut self, log: usize) {
        self.log = log;
        self.bytes.clear();
    }

    /// The entry at `position`. Nothing behind `limit` is looked at.
    pub(crate) fn next(&mut self, logs: &Logs, position: u64, limit: u64) -> Next<'_> {
        let most = logs.to_end(position).min(limit.saturating_sub(position));
        if most < LINE || !self.fill(logs, position, LINE, most) {
            return Next::Nothing;
        }
        let head = EntryHead::read(self.at(position, LINE));
        let bytes = head.bytes();
        let padding = head.operations == 0;
        // Padding goes up to the end of a lap. Only a pool that lies has some that goes on behind the limit.
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

    /// What would be the head of an entry at `position`.
    pub(super) fn head(&mut self, logs: &Logs, position: u64, limit: u64) -> EntryHead {
        let most = logs.to_end(position).min(limit.saturating_sub(position));
        EntryHead::read(match self.fill(logs, position, LINE, most) {
            true => self.at(position, LINE),
            false => &[],
        })
    }

    /// Makes sure that `needed` bytes from `position` on are there; of those that can be read, there are
    /// `most`.
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
            panic!("bytes of a log are looked at that were not read");
        };
        read
    }
}
