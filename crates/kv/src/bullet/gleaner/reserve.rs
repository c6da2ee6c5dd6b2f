//! The reserve: heap room for everything in the logs, so that gleaners never run out of it.
//!
//! Every acknowledged write must find room in the back. So the heap keeps a *reserve* of wholly free chunks:
//! twice the bytes of all logs, and some more. A log record is no shorter than the object it becomes. Objects
//! of up to half a chunk fill chunks to more than a half. So the records in the logs always fit. When a pass
//! has used some of the reserve, the pool grows. If it cannot, it is *tight*: a put then asks for room first,
//! is refused if there is none, and allocates its object at once. Removals go on and make room.
//!
//! A record of an edit is shorter than its object. The difference is *owed*; the debt has a budget, and room
//! in the reserve. When the budget is used up, records hold full states until a pass has reclaimed the
//! others.
//!
//! Objects that are too large for a log are allocated when they are written, and do not use the reserve.

use crate::bullet::Bullet;
use crate::concurrency::stripes::Backoff;
use crate::error::Error;
use everdram_pm::LINE;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes that a put may need in addition to its object: lines of chains, padding.
const BESIDES: u64 = 512;
/// How often room is looked for while other threads hold some up: for some 100 milliseconds.
const ATTEMPTS: u32 = 20;
/// The debt is at most one in this many bytes of all logs.
const OWED_ONE_IN: u64 = 4;

/// The state of the reserve.
#[derive(Default)]
pub(in crate::bullet) struct Reserve {
    /// The debt: bytes by which objects will be longer than their log records, by the parity of the epoch.
    owed: [AtomicU64; 2],
    /// The pool cannot grow.
    tight: AtomicBool,
    /// Log records may name short objects, from a time when the pool was tight.
    pub(in crate::bullet) names_short: AtomicBool,
    /// Objects and overflow records that log records name and the table does not have yet: offset, bytes. The
    /// thread that removes one from here alone decides its fate: it goes into the table, or is freed.
    pub(in crate::bullet) linked: Mutex<HashMap<u64, u64>>,
}

impl Bullet {
    /// Free bytes of the heap that writers of large values must not use.
    fn reserve(&self) -> u64 {
        2 * (self.logs_bytes() + self.logs_bytes() / OWED_ONE_IN)
    }

    fn logs_bytes(&self) -> u64 {
        self.logs.log_bytes() * self.logs.count() as u64
    }

    /// Bytes that the back will need for the records in the logs.
    fn needed(&self) -> u64 {
        let owed: u64 = self
            .reserve
            .owed
            .iter()
            .map(|owed| owed.load(Ordering::Relaxed))
            .sum();
        self.logs.used_bytes() + owed
    }

    /// Whether a record may hold only an edit of a state that becomes an object of `object_bytes`. If so, the
    /// difference is owed until the record is reclaimed.
    #[inline]
    pub(in crate::bullet) fn may_owe(&self, object_bytes: u64, record_bytes: u64) -> bool {
        let more = object_bytes.saturating_sub(record_bytes.next_multiple_of(LINE));
        more == 0 || self.owe(more)
    }

    fn owe(&self, bytes: u64) -> bool {
        let owed: u64 = self
            .reserve
            .owed
            .iter()
            .map(|owed| owed.load(Ordering::Relaxed))
            .sum();
        let may = owed + bytes <= self.logs_bytes() / OWED_ONE_IN;
        if may {
            self.owes(bytes);
        }
        may
    }

    /// Adds to the debt of the current epoch, whatever the budget.
    pub(in crate::bullet) fn owes(&self, bytes: u64) {
        self.reserve.owed[self.logs.epoch() as usize % 2].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Cancels the debt of an epoch: its records are reclaimed, and the next epoch has not ended.
    pub(in crate::bullet) fn paid(&self, epoch: u64) {
        self.reserve.owed[epoch as usize % 2].store(0, Ordering::Relaxed);
    }

    /// Fills the reserve. A pool that cannot grow is tight from here on.
    pub(in crate::bullet) fn keep_room(&self) {
        let wanted = self.reserve();
        let is_tight =
            self.back.heap.free_whole_bytes() < wanted && self.back.heap.grow_to(wanted).is_err();
        self.reserve.tight.store(is_tight, Ordering::Release);
        if is_tight {
            // Free lines of a claimed chunk are lost to other threads.
            for gleaner in &mut *self.gleaning.gleaners.lock() {
                self.back.heap.let_go(&mut gleaner.claim);
            }
        }
    }

    /// Whether the caller leaves growing the pool to the background: a worker has clients that wait.
    pub(in crate::bullet) fn leaves_growing(&self, urgent: bool) -> bool {
        self.gleaning.by_itself && !urgent && self.gleaning.roles.has_workers()
    }

    /// Whether a put must ask for room.
    #[inline]
    pub(in crate::bullet) fn is_tight(&self) -> bool {
        self.reserve.tight.load(Ordering::Relaxed)
    }

    /// Makes room for a put of `bytes` bytes in a tight pool; the caller holds nothing. It tries again while
    /// other threads hold up what could be freed: one of them may have no core just now, or take the room
    /// that was made.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; as [`Bullet::step`].
    #[cold]
    pub(in crate::bullet) fn find_room(&self, bytes: u64) -> Result<(), Error> {
        let attempts = match self.back.heap.could_hold(bytes) {
            true => ATTEMPTS,
            false => 0,
        };
        for _ in 0..attempts {
            if self.has_lines(bytes) {
                return Ok(());
            }
            // Removed keys may free room, or the medium may have room again.
            self.sweep_all_cleared()?;
            self.glean_all()?;
            let _refused = self.back.heap.grow_to(self.reserve() + bytes);
            self.keep_room();
            if self.has_lines(bytes) {
                return Ok(());
            }
            if self.is_tidy() {
                break;
            }
            Backoff::rest();
        }
        Err(full(self.pool.region().len()))
    }

    /// As [`Bullet::find_room`], for a caller that holds locks: it makes no room. 0 bytes always fit.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(in crate::bullet) fn has_room(&self, bytes: u64) -> Result<(), Error> {
        match bytes == 0 || !self.is_tight() || self.has_lines(bytes) {
            true => Ok(()),
            false => Err(full(self.pool.region().len())),
        }
    }

    /// Refuses an object that finds no room. While puts do not ask for room, the whole reserve is theirs. An
    /// object that fits only into the reserve makes the pool tight: from then on, puts ask.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(in crate::bullet) fn spare(&self, bytes: u64) -> Result<(), Error> {
        if !self.is_tight() {
            if self.afford(bytes).is_ok() {
                return Ok(());
            }
            self.reserve.tight.store(true, Ordering::Release);
        }
        if self.has_lines(bytes) || self.back.heap.grow_to(self.reserve() + bytes).is_ok() {
            return Ok(());
        }
        Err(full(self.pool.region().len()))
    }

    /// Whether `bytes` bytes are free beside the whole reserve, or the pool can grow by them.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(in crate::bullet) fn afford(&self, bytes: u64) -> Result<(), Error> {
        let (heap, wanted) = (&self.back.heap, self.reserve() + bytes);
        match heap.free_whole_bytes() >= wanted || heap.grow_to(wanted).is_ok() {
            true => Ok(()),
            false => Err(full(self.pool.region().len())),
        }
    }

    /// Whether too few chunks are wholly free for any put while the logs hold records.
    #[cfg(feature = "lab")]
    pub(in crate::bullet) fn is_scattered(&self) -> bool {
        let heap = &self.back.heap;
        heap.free_whole_bytes() < 2 * self.needed() + heap.chunk_bytes()
    }

    /// Whether `bytes` can be allocated and the heap can still hold every record in the logs. Logged objects
    /// need lines in a row, so only wholly free chunks count as their reserve: no logged object is much
    /// longer than half of a chunk. The caller allocates its `bytes` now, or fails.
    fn has_lines(&self, bytes: u64) -> bool {
        let (heap, owed) = (&self.back.heap, 2 * self.needed());
        heap.free_bytes() >= owed + bytes + BESIDES
            && (self.needed() == 0
                || heap.free_whole_bytes() >= owed + bytes.min(heap.chunk_bytes()))
    }
}

fn full(bytes: u64) -> Error {
    Error::NoSpace(format!(
        "it has {bytes} bytes and cannot grow; delete something, raise Options::max_bytes, or make room on the medium"
    ))
}
