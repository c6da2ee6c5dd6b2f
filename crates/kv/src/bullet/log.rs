//! The cross-referencing logs (section 2.3): circular, persistent, one writer at a time each.
//!
//! ```text
//!          head                cursor               published      tail
//!  - - - --+-------------------+--------------------+--------------+- - - - -
//!   free   |  applied, not yet |  to be applied     |  being       |  free
//!          |  reclaimed        |                    |  written     |
//! ```
//!
//! A position counts bytes and never repeats; the place in the log is the position modulo the log's size. A writer takes a log for a
//! *group*: the operations between two commits of its session. It appends entries, which nobody needs before the group's fence,
//! and raises `published` after the fence, when the front table shows what they did. There is no tail in the pool: recovery goes from entry to entry as
//! long as they verify.
//!
//! # Epochs
//! Each entry carries the epoch in which it was appended. Epochs only grow: along a log, and along the records of a key, whose
//! row its writer holds then. A group keeps every epoch from ending that it may have written in. So what is reclaimed epoch by epoch is reclaimed in the order in which it was written, in all logs together, and
//! never leaves an older record of a key behind without the newer (B1, B2).
//!
//! A writer takes the log's lock, then loads the epoch; whoever begins a new epoch raises it, then looks at the locks. All in
//! one order (`SeqCst`), so either the writer sees the new epoch or is seen.

use super::layout::{ENTRY_HEAD, EntryHead, Geometry, Opcode, Operation, RecordAt, seal_entry};
use crate::broken::Opened;
use crossbeam_utils::CachePadded;
use everdram_pm::{Flushed, LINE, Lane, Pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const UNLOCKED: u64 = 0;

/// One log's volatile state.
#[derive(Default)]
pub(super) struct Log {
    /// Who writes: 0 nobody, otherwise the epoch that was current when the lock was taken.
    writer: AtomicU64,
    /// Where the next entry goes; the writer's.
    tail: AtomicU64,
    /// Entries before this position are fenced and shown by the front table.
    pub(super) published: AtomicU64,
    /// Entries before this position are reclaimed, durably.
    pub(super) head: AtomicU64,
    /// One gleaner at a time.
    gleaning: AtomicBool,
    /// Entries before this position are applied, durably. The gleaner's.
    pub(super) cursor: AtomicU64,
    /// The log has been gleaned up to the end of this epoch.
    pub(super) gleaned: AtomicU64,
}

/// All logs.
pub(super) struct Logs {
    pool: Arc<Pool>,
    /// Offset of the first log.
    at: u64,
    log_bytes: u64,
    entry_most: usize,
    logs: Box<[CachePadded<Log>]>,
    epoch: CachePadded<AtomicU64>,
    pub(super) broken: Opened,
}

/// What a session appends between two commits.
#[derive(Debug)]
pub(super) struct Group {
    log: usize,
    /// Where its first entry begins: everything before is fenced.
    start: u64,
    tail: u64,
}

impl Logs {
    /// The logs of a pool, empty, from offset `at` on.
    pub(super) fn new(pool: Arc<Pool>, at: u64, geometry: &Geometry, broken: Opened) -> Logs {
        Logs {
            pool,
            at,
            log_bytes: geometry.log_bytes,
            entry_most: geometry.entry_most(),
            logs: (0..geometry.logs).map(|_| CachePadded::default()).collect(),
            epoch: CachePadded::new(AtomicU64::new(1)),
            broken,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.logs.len()
    }

    pub(super) fn log(&self, number: usize) -> &Log {
        &self.logs[number]
    }

    /// The longest entry in bytes.
    pub(super) fn entry_most(&self) -> usize {
        self.entry_most
    }

    /// Where in the pool a position of a log is.
    #[inline]
    pub(super) fn place(&self, log: usize, position: u64) -> u64 {
        self.at + log as u64 * self.log_bytes + position % self.log_bytes
    }

    /// Bytes from a position to where the log ends and begins again.
    pub(super) fn to_end(&self, position: u64) -> u64 {
        self.log_bytes - position % self.log_bytes
    }

    pub(super) fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// Room that an append may need: the entry, and as much padding in front of it.
    fn room_needed(&self) -> u64 {
        2 * self.entry_most as u64
    }

    fn has_room(&self, log: usize, tail: u64) -> bool {
        tail + self.room_needed() <= self.logs[log].head.load(Ordering::Acquire) + self.log_bytes
    }

    /// Takes a log that has room, the wanted one if it is free. `None`: there is none.
    pub(super) fn begin(&self, wanted: usize) -> Option<Group> {
        let count = self.logs.len();
        for nth in 0..count {
            let log = (wanted + nth) % count;
            let Some(group) = self.lock(log) else {
                continue;
            };
            if self.has_room(log, group.tail) {
                return Some(group);
            }
            self.end(group);
        }
        None
    }

    fn lock(&self, log: usize) -> Option<Group> {
        let state = &self.logs[log];
        let writer = &state.writer;
        if writer.load(Ordering::Relaxed) != UNLOCKED {
            return None;
        }
        let epoch = self.epoch.load(Ordering::SeqCst);
        writer
            .compare_exchange(UNLOCKED, epoch, Ordering::SeqCst, Ordering::Relaxed)
            .ok()?;
        let tail = state.tail.load(Ordering::Relaxed);
        Some(Group {
            log,
            start: tail,
            tail,
        })
    }

    /// Whether one more entry of any length fits into the group's log.
    #[inline]
    pub(super) fn fits(&self, group: &Group) -> bool {
        self.has_room(group.log, group.tail)
    }

    /// Appends an entry: `bytes` has room for its head, then `operations` operations. Durable, and part of the log, with the next
    /// fence. The caller has seen that it fits. Returns where the entry is.
    pub(super) fn append(
        &self,
        lane: &mut Lane,
        group: &mut Group,
        bytes: &mut Vec<u8>,
        operations: u32,
    ) -> (RecordAt, Flushed) {
        assert!(bytes.len() <= self.entry_most && self.fits(group));
        bytes.resize(bytes.len().next_multiple_of(LINE as usize), 0);
        let mut flushed = None;
        let left = self.to_end(group.tail);
        if left < bytes.len() as u64 {
            let mut padding = [0; LINE as usize];
            let sizes = [(left / LINE) as u32, 0];
            flushed = Some(self.stream(lane, group, sizes, &mut padding, ENTRY_HEAD));
            group.tail += left;
        }
        let position = group.tail;
        let (lines, sealed) = ((bytes.len() as u64 / LINE) as u32, bytes.len());
        let entry = self.stream(lane, group, [lines, operations], bytes, sealed);
        group.tail += bytes.len() as u64;
        let flushed = flushed.map_or(entry, |padding: Flushed| padding);
        (RecordAt::new(group.log, position), flushed)
    }

    fn stream(
        &self,
        lane: &mut Lane,
        group: &Group,
        sizes: [u32; 2],
        bytes: &mut [u8],
        sealed: usize,
    ) -> Flushed {
        let at = self.place(group.log, group.tail);
        // The epoch of now, while the key's row is held: a group may have begun long before its key was written by another.
        let marks = [self.epoch(), group.start];
        let secret = self.pool.secret();
        let position = self.sealed(group.tail);
        seal_entry(secret, [at, position], marks, sizes, &mut bytes[..sealed]);
        lane.stream(at, bytes)
    }

    /// The group's entries are fenced and the front table shows them: gleaners may take them, and somebody else may write.
    #[inline]
    pub(super) fn end(&self, group: Group) -> usize {
        let log = &self.logs[group.log];
        log.tail.store(group.tail, Ordering::Relaxed);
        log.published.store(group.tail, Ordering::Release);
        log.writer.store(UNLOCKED, Ordering::SeqCst);
        group.log
    }

    /// The current epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Begins a new epoch; returns the one that ends.
    pub(super) fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::SeqCst)
    }

    /// Sets the epoch, before anything runs.
    pub(super) fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::SeqCst);
    }

    /// Whether no group of this epoch, or an older one, is being written.
    pub(super) fn is_over(&self, epoch: u64) -> bool {
        self.logs.iter().all(|log| {
            let writer = log.writer.load(Ordering::SeqCst);
            writer == UNLOCKED || writer > epoch
        })
    }

    /// Puts a log to where recovery found its entries.
    pub(super) fn restore(&self, log: usize, head: u64, tail: u64) {
        let log = &self.logs[log];
        for (place, position) in [
            (&log.head, head),
            (&log.cursor, head),
            (&log.published, tail),
            (&log.tail, tail),
        ] {
            place.store(position, Ordering::Relaxed);
        }
    }

    /// Bytes that are in all logs, as a share of their sizes in percent.
    pub(super) fn fill(&self) -> u64 {
        self.used_bytes() * 100 / (self.log_bytes * self.logs.len() as u64)
    }

    /// Bytes that are in the fullest log, as a share of its size in percent.
    pub(super) fn occupancy(&self) -> u64 {
        let used = self.logs.iter().map(|log| {
            let published = log.published.load(Ordering::Relaxed);
            published.saturating_sub(log.head.load(Ordering::Relaxed))
        });
        used.max().unwrap_or(0) * 100 / self.log_bytes
    }

    /// Bytes ever written: who finds another number knows that somebody has written.
    pub(super) fn written(&self) -> u64 {
        let tails = self.logs.iter().map(|log| log.tail.load(Ordering::Relaxed));
        tails.fold(0, u64::wrapping_add)
    }

    /// A number that changes when anything goes on in any log, or most likely does.
    pub(super) fn marks(&self) -> u64 {
        let marks = self.logs.iter().flat_map(|log| {
            let places = [
                &log.tail,
                &log.published,
                &log.head,
                &log.cursor,
                &log.gleaned,
            ];
            places.map(|place| place.load(Ordering::Relaxed))
        });
        marks.fold(self.epoch(), u64::wrapping_add)
    }

    /// Bytes that are in the logs.
    pub(super) fn used_bytes(&self) -> u64 {
        let used = self.logs.iter().map(|log| {
            let tail = log.tail.load(Ordering::Acquire);
            tail.saturating_sub(log.head.load(Ordering::Acquire))
        });
        used.sum()
    }

    /// Whether every entry has been reclaimed.
    pub(super) fn are_empty(&self) -> bool {
        self.logs
            .iter()
            .all(|log| log.published.load(Ordering::Acquire) == log.head.load(Ordering::Acquire))
    }
}

impl Log {
    /// Becomes its gleaner, if there is none.
    pub(super) fn try_glean(&self) -> bool {
        !self.gleaning.load(Ordering::Relaxed) && !self.gleaning.swap(true, Ordering::Acquire)
    }

    pub(super) fn stop_gleaning(&self) {
        self.gleaning.store(false, Ordering::Release);
    }
}

/// Reads a log's entries in order, many at a time.
pub(super) struct Cursor {
    log: usize,
    /// Positions that `bytes` holds.
    from: u64,
    bytes: Vec<u8>,
}

/// What a cursor finds at a position.
pub(super) enum Next<'a> {
    /// An entry, its operations, and the position behind it.
    Entry(EntryHead, &'a [u8], u64),
    /// Nothing that verifies.
    Nothing,
}

/// Bytes read at once: what hides the latency of one read behind many entries.
const WINDOW: u64 = 16 << 10;

impl Cursor {
    pub(super) fn new(log: usize) -> Cursor {
        Cursor {
            log,
            from: 0,
            bytes: Vec::new(),
        }
    }

    /// Whose entries it reads.
    pub(super) fn log(&self) -> usize {
        self.log
    }

    /// Forgets what was read: it may be written anew.
    pub(super) fn forget(&mut self) {
        self.bytes.clear();
    }

    /// The entry at `position`. Nothing behind `limit` is looked at.
    pub(super) fn next(&mut self, logs: &Logs, position: u64, limit: u64) -> Next<'_> {
        let most = logs.to_end(position).min(limit.saturating_sub(position));
        if most < LINE || !self.fill(logs, position, LINE, most) {
            return Next::Nothing;
        }
        let head = EntryHead::read(self.at(position, LINE));
        let bytes = head.bytes();
        let padding = head.operations == 0;
        let fits = if padding {
            bytes == logs.to_end(position)
        } else {
            bytes <= most
        };
        if bytes == 0 || !fits || !padding && bytes > logs.entry_most as u64 {
            return Next::Nothing;
        }
        let sealed = if padding { ENTRY_HEAD as u64 } else { bytes };
        self.fill(logs, position, sealed, most);
        let entry = self.at(position, sealed);
        let at = logs.place(self.log, position);
        if !head.verifies(logs.pool.secret(), at, logs.sealed(position), entry) {
            return Next::Nothing;
        }
        Next::Entry(head, &entry[ENTRY_HEAD..], position + bytes)
    }

    /// The line at `position`, whatever is there.
    pub(super) fn peek(&mut self, logs: &Logs, position: u64, limit: u64) -> &[u8] {
        let most = logs.to_end(position).min(limit.saturating_sub(position));
        match self.fill(logs, position, LINE, most) {
            true => self.at(position, LINE),
            false => &[],
        }
    }

    /// Makes sure that `needed` bytes from `position` on are there; of those that can be read, there are `most`.
    fn fill(&mut self, logs: &Logs, position: u64, needed: u64, most: u64) -> bool {
        let end = self.from + self.bytes.len() as u64;
        if position >= self.from && position + needed <= end {
            return true;
        }
        let bytes = WINDOW.max(needed).min(most).max(needed);
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
        self.bytes.get(from..from + bytes as usize).unwrap_or(&[])
    }
}

/// Whether a writer can have put these operations together: so many of them, or in a parcel as many as there are, and nothing behind them
/// but padding.
pub(super) fn are_sound(mut bytes: &[u8], count: Option<u32>) -> bool {
    let mut left = count.unwrap_or(u32::MAX);
    while left > 0 && (count.is_some() || !bytes.is_empty()) {
        match Operation::parse(bytes) {
            // A parcel in a parcel could be itself.
            Some((operation, _)) if count.is_none() && operation.opcode == Opcode::Parcel => {
                return false;
            }
            Some((operation, rest)) if operation.is_sound() => bytes = rest,
            _ => return false,
        }
        left -= 1;
    }
    bytes.len() < LINE as usize
}

/// The operations of an entry, in order. Ends early if they do not parse, which they do if the entry verifies.
pub(super) fn operations(mut bytes: &[u8], count: u32) -> impl Iterator<Item = Operation<'_>> {
    (0..count).map_while(move |_| {
        let (operation, rest) = Operation::parse(bytes)?;
        bytes = rest;
        Some(operation)
    })
}
