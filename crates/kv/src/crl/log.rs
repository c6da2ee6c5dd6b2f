//! The logs: circular, persistent, one writer at a time each.
//!
//! ```text
//!          head                cursor               published      tail
//!  - - - --+-------------------+--------------------+--------------+- - - - -
//!   free   |  applied, not yet |  to be applied     |  being       |  free
//!          |  reclaimed        |                    |  written     |
//! ```
//!
//! A position counts bytes and never repeats; the place in the log is the position modulo the log's size. A
//! writer takes a log for a *group*: the operations between two commits of its session. It appends entries,
//! which nothing needs before the group's fence. After the fence, when their effects can be visible, it
//! raises `published`. The pool has no tail: recovery goes from entry to entry as long as they verify.
//!
//! # Epochs
//! Each entry carries the epoch in which it was appended. Epochs only grow: along a log, and along the
//! records of a key, whose lock the writer holds. An epoch cannot end while a group that may have written in
//! it is open. Reclaiming all logs epoch by epoch therefore never drops a record while an older one of its
//! key remains (B1, B2).
//!
//! A writer takes the log's lock, then loads the epoch. A new epoch is begun by raising it, then reading the
//! locks. All of this is in one order (`SeqCst`): the writer sees the new epoch, or its lock is seen.

use super::entry::{ENTRY_HEAD, EPOCH_AT, RecordAt, seal_entry};
use super::ledger::Ledger;
use crate::concurrency::seam::publishes;
use crossbeam_utils::CachePadded;
use everdram_pm::lock::lock;
use everdram_pm::{Flushed, LINE, Lane, Pool};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const UNLOCKED: u64 = 0;

/// One log's volatile state.
#[derive(Default)]
pub(crate) struct Log {
    /// 0 if no writer holds the log, otherwise the epoch that was current when the lock was taken.
    writer: AtomicU64,
    /// Where the next entry goes; owned by the writer.
    tail: AtomicU64,
    /// Entries before this position are fenced, and their effects can be visible.
    pub(crate) published: AtomicU64,
    /// Entries before this position are reclaimed, durably.
    pub(crate) head: AtomicU64,
    /// Whether the log has a gleaner; at most one at a time.
    gleaning: AtomicBool,
    /// Entries before this position are applied, durably. Owned by the gleaner.
    pub(super) cursor: AtomicU64,
    /// The log has been gleaned up to the end of this epoch.
    pub(super) gleaned: AtomicU64,
}

/// Place and sizes of the logs of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Offset of the first log.
    pub(crate) at: u64,
    pub(crate) count: usize,
    pub(crate) log_bytes: u64,
    /// The longest entry in bytes.
    pub(crate) entry_most: usize,
    /// Bytes of each log that writers leave to gleaners, for entries that are kept in the log.
    pub(crate) reserved: u64,
}

impl Shape {
    /// Whether nothing was ever appended: every entry begins with its check, even the first one of a lap. A
    /// pool without a ledger where this is `false` has lost its ledger.
    pub(crate) fn is_blank(&self, pool: &Pool) -> bool {
        let mut logs = (0..self.count as u64).map(|log| self.at + log * self.log_bytes);
        logs.all(|log| pool.region().load_word(log) == 0)
    }
}

/// The pass in progress.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// The epoch that it reclaims; 0: no pass.
    pub(super) epoch: u64,
    /// No writer holds that epoch any more.
    pub(super) is_over: bool,
}

/// All logs.
pub(crate) struct Logs {
    pub(super) pool: Arc<Pool>,
    shape: Shape,
    logs: Box<[CachePadded<Log>]>,
    epoch: CachePadded<AtomicU64>,
    pub(super) pass: Mutex<Pass>,
    /// The last ledger; its copies in the pool are durable.
    pub(super) ledger: Mutex<Ledger>,
}

/// The entries of a session between two commits.
#[derive(Debug)]
pub(crate) struct Group {
    log: usize,
    /// Where its first entry begins; everything before is fenced.
    start: u64,
    tail: u64,
    /// Limit of the log's bytes for this group.
    most: u64,
}

impl Logs {
    /// The logs of a pool, empty according to the ledger; see [`Logs::recover`].
    pub(crate) fn new(pool: Arc<Pool>, shape: Shape, ledger: Ledger) -> Logs {
        // A pool that is salvaged may have lost its ledger.
        let heads = ledger.heads.len();
        assert!(
            heads == shape.count || heads == 0,
            "the ledger has another number of logs"
        );
        assert!(
            2 * shape.entry_most as u64 + shape.reserved <= shape.log_bytes,
            "the logs never have room for an entry"
        );
        Logs {
            pool,
            shape,
            logs: (0..shape.count).map(|_| CachePadded::default()).collect(),
            epoch: CachePadded::new(AtomicU64::new(1)),
            pass: Mutex::default(),
            ledger: Mutex::new(ledger),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.shape.count
    }

    pub(crate) fn log(&self, number: usize) -> &Log {
        &self.logs[number]
    }

    /// The longest entry in bytes.
    pub(crate) fn entry_most(&self) -> usize {
        self.shape.entry_most
    }

    /// The pool offset of a position of a log.
    #[inline]
    pub(crate) fn place(&self, log: usize, position: u64) -> u64 {
        self.shape.at + log as u64 * self.shape.log_bytes + position % self.shape.log_bytes
    }

    /// Bytes from a position to the end of the lap.
    pub(crate) fn to_end(&self, position: u64) -> u64 {
        self.shape.log_bytes - position % self.shape.log_bytes
    }

    pub(crate) fn log_bytes(&self) -> u64 {
        self.shape.log_bytes
    }

    /// Room that an append may need: the entry, and as much padding before it.
    fn room_needed(&self) -> u64 {
        2 * self.shape.entry_most as u64
    }

    /// Most bytes of one log for its writers.
    pub(crate) fn most(&self) -> u64 {
        self.shape.log_bytes - self.shape.reserved
    }

    /// Takes a log that has room, if possible the wanted one. `None`: there is none.
    pub(crate) fn begin(&self, wanted: usize) -> Option<Group> {
        self.begin_up_to(wanted, self.most())
    }

    /// As [`Logs::begin`], if a log may hold `most` bytes.
    pub(super) fn begin_up_to(&self, wanted: usize, most: u64) -> Option<Group> {
        let count = self.logs.len();
        for nth in 0..count {
            let log = (wanted + nth) % count;
            let Some(group) = self.lock(log, most) else {
                continue;
            };
            if self.fits(&group) {
                return Some(group);
            }
            self.end(group);
        }
        None
    }

    /// Takes this log, with the room that writers leave; `None`: a writer holds it.
    pub(super) fn begin_reserved(&self, log: usize) -> Option<Group> {
        self.lock(log, self.shape.log_bytes)
    }

    fn lock(&self, log: usize, most: u64) -> Option<Group> {
        let state = &self.logs[log];
        let writer = &state.writer;
        if writer.load(Ordering::Relaxed) != UNLOCKED {
            return None;
        }
        let epoch = self.epoch.load(Ordering::SeqCst);
        publishes!();
        writer
            .compare_exchange(UNLOCKED, epoch, Ordering::SeqCst, Ordering::Relaxed)
            .ok()?;
        let tail = state.tail.load(Ordering::Relaxed);
        Some(Group {
            log,
            start: tail,
            tail,
            most,
        })
    }

    /// Whether one more entry of any length fits into the group's log.
    #[inline]
    pub(crate) fn fits(&self, group: &Group) -> bool {
        let head = self.logs[group.log].head.load(Ordering::Acquire);
        group.tail + self.room_needed() <= head + group.most
    }

    /// Appends an entry: `bytes` has room for its head, then `operations` operations. The next fence makes it
    /// durable and part of the log. The caller has checked that it fits. Returns the entry's position.
    pub(crate) fn append(
        &self,
        lane: &mut Lane,
        group: &mut Group,
        bytes: &mut Vec<u8>,
        operations: u32,
    ) -> (RecordAt, Flushed) {
        assert!(bytes.len() <= self.shape.entry_most && self.fits(group));
        assert!(operations > 0, "an entry has no operations, like padding");
        debug_assert!(
            self.is_held(group.log),
            "an entry is appended to an unlocked log"
        );
        bytes.resize(bytes.len().next_multiple_of(LINE as usize), 0);
        let mut padding_flushed = None;
        let left = self.to_end(group.tail);
        if left < bytes.len() as u64 {
            let mut padding = [0; LINE as usize];
            let sizes = [(left / LINE) as u32, 0];
            padding_flushed = Some(self.stream(lane, group, sizes, &mut padding, ENTRY_HEAD));
            group.tail += left;
        }
        let position = group.tail;
        let (lines, sealed) = ((bytes.len() as u64 / LINE) as u32, bytes.len());
        let entry = self.stream(lane, group, [lines, operations], bytes, sealed);
        group.tail += bytes.len() as u64;
        let flushed = match padding_flushed {
            Some(padding) => padding.and(entry),
            None => entry,
        };
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
        debug_assert!(
            bytes.len() as u64 <= self.to_end(group.tail) && at.is_multiple_of(LINE),
            "an entry crosses the end of its log, or is not at a line"
        );
        // The current epoch, read while the key's row is held: the group may have begun long before another
        // writer wrote this key.
        let marks = [self.epoch(), group.start];
        let secret = self.pool.secret();
        seal_entry(secret, [at, group.tail], marks, sizes, &mut bytes[..sealed]);
        lane.stream(at, bytes)
    }

    /// Ends a group whose entries are fenced and whose effects are visible: gleaners may take them, and
    /// another writer may take the log.
    #[inline]
    pub(crate) fn end(&self, group: Group) -> usize {
        let log = &self.logs[group.log];
        assert!(self.is_held(group.log), "unlock of an unlocked log");
        assert!(
            log.published.load(Ordering::Relaxed) <= group.tail,
            "the published position of a log decreases"
        );
        log.tail.store(group.tail, Ordering::Relaxed);
        publishes!();
        log.published.store(group.tail, Ordering::Release);
        publishes!();
        log.writer.store(UNLOCKED, Ordering::SeqCst);
        group.log
    }

    /// The current epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// The last reclaimed epoch.
    pub(crate) fn reclaimed(&self) -> u64 {
        lock(&self.ledger).epoch
    }

    /// Begins a new epoch; returns the one that ends.
    pub(crate) fn next_epoch(&self) -> u64 {
        publishes!();
        self.epoch.fetch_add(1, Ordering::SeqCst)
    }

    fn is_held(&self, log: usize) -> bool {
        self.logs[log].writer.load(Ordering::Relaxed) != UNLOCKED
    }

    /// Sets the epoch, before anything runs.
    pub(super) fn set_epoch(&self, epoch: u64) {
        assert!(epoch > self.reclaimed(), "a log epoch is used twice");
        assert!(
            !(0..self.count()).any(|log| self.is_held(log)),
            "an epoch is set while a writer holds a log"
        );
        self.epoch.store(epoch, Ordering::SeqCst);
    }

    /// Whether no group is being written that began in this epoch or an older one.
    pub(super) fn is_over(&self, epoch: u64) -> bool {
        self.logs.iter().all(|log| {
            let writer = log.writer.load(Ordering::SeqCst);
            writer == UNLOCKED || writer > epoch
        })
    }

    /// Sets a log to the entries that recovery found.
    pub(super) fn restore(&self, log: usize, head: u64, tail: u64) {
        assert!(
            head <= tail && tail - head <= self.shape.log_bytes,
            "a recovered log ends before it begins, or exceeds its size"
        );
        assert!(
            (head | tail).is_multiple_of(LINE),
            "a recovered log does not end at a line"
        );
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

    /// Used bytes of all logs, in percent of their sizes.
    pub(crate) fn fill(&self) -> u64 {
        self.used_bytes() * 100 / (self.shape.log_bytes * self.logs.len() as u64)
    }

    /// Used bytes of the fullest log, in percent of its size.
    pub(crate) fn occupancy(&self) -> u64 {
        let used = self.logs.iter().map(|log| {
            let published = log.published.load(Ordering::Relaxed);
            published.saturating_sub(log.head.load(Ordering::Relaxed))
        });
        used.max().unwrap_or(0) * 100 / self.shape.log_bytes
    }

    /// Whether a group has filled its log to so many percent, and was the first to do so since the last
    /// reclamation.
    #[inline]
    pub(crate) fn fills(&self, group: &Group, percent: u64) -> bool {
        let head = self.logs[group.log].head.load(Ordering::Relaxed);
        let mark = head + self.shape.log_bytes / 100 * percent;
        group.start < mark && group.tail >= mark
    }

    /// Bytes ever written: a different number proves that a writer has written.
    pub(crate) fn written(&self) -> u64 {
        let tails = self.logs.iter().map(|log| log.tail.load(Ordering::Relaxed));
        tails.fold(0, u64::wrapping_add)
    }

    /// A number that changes with any progress in any log, almost certainly.
    pub(crate) fn marks(&self) -> u64 {
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

    /// Used bytes of all logs.
    pub(crate) fn used_bytes(&self) -> u64 {
        let used = self.logs.iter().map(|log| {
            let tail = log.tail.load(Ordering::Acquire);
            tail.saturating_sub(log.head.load(Ordering::Acquire))
        });
        used.sum()
    }

    /// Whether no log has room for a writer, including logs that are held.
    pub(crate) fn are_full(&self) -> bool {
        self.logs.iter().all(|log| {
            let (tail, head) = (
                log.tail.load(Ordering::Acquire),
                log.head.load(Ordering::Acquire),
            );
            tail + self.room_needed() > head + self.most()
        })
    }

    /// The epoch of the first entry of a log; `None` if the log is empty.
    pub(crate) fn first_epoch(&self, number: usize) -> Option<u64> {
        let log = self.log(number);
        let (head, limit) = (
            log.head.load(Ordering::Acquire),
            log.published.load(Ordering::Acquire),
        );
        (head < limit).then(|| {
            let mut word = [0; 8];
            let at = self.place(number, head);
            self.pool.region().load(at + EPOCH_AT, &mut word);
            u64::from_le_bytes(word)
        })
    }

    /// Whether every entry has been reclaimed.
    pub(crate) fn are_empty(&self) -> bool {
        self.logs
            .iter()
            .all(|log| log.published.load(Ordering::Acquire) == log.head.load(Ordering::Acquire))
    }
}

impl Group {
    /// Number of its log.
    pub(crate) fn log(&self) -> usize {
        self.log
    }
}

impl Log {
    /// Whether it has a gleaner now.
    pub(super) fn is_gleaned(&self) -> bool {
        self.gleaning.load(Ordering::Relaxed)
    }

    /// Becomes its gleaner, if it has none.
    pub(super) fn try_glean(&self) -> bool {
        !self.gleaning.load(Ordering::Relaxed) && !self.gleaning.swap(true, Ordering::Acquire)
    }

    pub(super) fn stop_gleaning(&self) {
        assert!(self.is_gleaned(), "a log is released that has no gleaner");
        publishes!();
        self.gleaning.store(false, Ordering::Release);
    }
}
