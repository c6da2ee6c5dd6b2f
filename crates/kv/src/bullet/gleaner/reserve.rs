//! Room for what the logs hold: kept ahead of the writers, so that gleaners never run out of it.
//!
//! Whatever is acknowledged must find room in the back. So the heap has a *reserve* of chunks that are wholly
//! free: with twice as many bytes as all logs have, and some more. A record in a log is no shorter than the
//! object it becomes, and objects that are not longer than half a chunk fill chunks to more than a half, so
//! what is in the logs always fits. When a pass has used some of the reserve, the pool grows. If it cannot,
//! it is *tight*: a put then asks first whether there is room, is refused if not, and takes its object's room
//! at once, while removals go on and make room.
//!
//! A record that says only what changed is shorter than the object. What it lacks is *owed*; there is a
//! budget for that, and room in the reserve. When the budget is used up, records say all there is until a
//! pass has reclaimed the others.
//!
//! Objects that are too large for a log take their room when they are written, and leave the reserve alone.

use crate::bullet::Bullet;
use crate::error::Error;
use everdram_pm::LINE;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Lines of chains and bits of padding that a put may need besides its object, in bytes.
const BESIDES: u64 = 512;
/// Of all bytes of the logs, so many may be owed besides.
const OWED_ONE_IN: u64 = 4;

/// How the room of the heap is kept for what the logs hold.
#[derive(Default)]
pub(in crate::bullet) struct Reserve {
    /// Bytes that objects will have more than the log records they come of, by the parity of the epoch.
    owed: [AtomicU64; 2],
    /// The pool cannot grow.
    tight: AtomicBool,
    /// Log records name objects that are not long, from a time when room was short.
    pub(in crate::bullet) names_short: AtomicBool,
    /// Objects and overflow records that log records name and the table does not have yet: offset, bytes.
    /// Whoever takes one out decides what becomes of it, and nobody else: it gets into the table, or it is
    /// freed.
    pub(in crate::bullet) linked: Mutex<HashMap<u64, u64>>,
}

impl Bullet {
    /// Free bytes of the heap that writers of large values leave alone.
    fn reserve(&self) -> u64 {
        2 * (self.logs_bytes() + self.logs_bytes() / OWED_ONE_IN)
    }

    fn logs_bytes(&self) -> u64 {
        self.logs.log_bytes() * self.logs.count() as u64
    }

    /// Bytes that the back will need for what is in the logs.
    fn needed(&self) -> u64 {
        let owed: u64 = self
            .reserve
            .owed
            .iter()
            .map(|owed| owed.load(Ordering::Relaxed))
            .sum();
        self.logs.used_bytes() + owed
    }

    /// Whether a record may say only what changed of a state that becomes an object of so many bytes. If so,
    /// the difference is owed until the record is reclaimed.
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

    /// As [`Bullet::may_owe`], of what is in the logs already.
    pub(in crate::bullet) fn owes(&self, bytes: u64) {
        self.reserve.owed[self.logs.epoch() as usize % 2].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records up to the end of this epoch are reclaimed, and the next one has not ended.
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
            // What is free in a chunk that somebody has claimed, nobody else finds.
            for gleaner in &mut *self.gleaning.gleaners.lock() {
                self.back.heap.let_go(&mut gleaner.claim);
            }
        }
    }

    /// Whether who gleans leaves it to the background to grow the pool: a worker has clients that wait.
    pub(in crate::bullet) fn leaves_growing(&self, urgent: bool) -> bool {
        self.gleaning.by_itself && !urgent && self.gleaning.roles.has_workers()
    }

    /// Whether a put must ask for room.
    #[inline]
    pub(in crate::bullet) fn is_tight(&self) -> bool {
        self.reserve.tight.load(Ordering::Relaxed)
    }

    /// Finds room for a put of so many bytes in a tight pool; the caller holds nothing.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; as [`Bullet::step`].
    #[cold]
    pub(in crate::bullet) fn find_room(&self, bytes: u64) -> Result<(), Error> {
        if self.has_lines(bytes) {
            return Ok(());
        }
        // Perhaps what was removed can be had back, or the medium has room again.
        self.sweep_all_cleared()?;
        self.glean_all()?;
        let _refused = self.back.heap.grow_to(self.reserve() + bytes);
        self.keep_room();
        match self.has_lines(bytes) {
            true => Ok(()),
            false => Err(full(self.pool.region().len())),
        }
    }

    /// As [`Bullet::find_room`], for who holds locks: it looks, and does nothing about it. 0 bytes always
    /// have room.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(in crate::bullet) fn has_room(&self, bytes: u64) -> Result<(), Error> {
        match bytes == 0 || !self.is_tight() || self.has_lines(bytes) {
            true => Ok(()),
            false => Err(full(self.pool.region().len())),
        }
    }

    /// Refuses an object of so many bytes that would eat into the reserve, which the pool cannot grow by. As
    /// long as puts do not ask for room, all of the reserve is theirs; when there is no more than that, they
    /// are to ask.
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

    /// Whether so many bytes can be had beside the whole reserve.
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

    /// Whether so few chunks are wholly free that nothing is put while the logs hold anything.
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
