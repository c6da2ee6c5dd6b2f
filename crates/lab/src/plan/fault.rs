//! Faults of a disk: a sync that fails once, a disk that is full.

use crate::medium::sectors::SECTOR;
use everdram_pm::lab::{Answer, DiskEvent, Errno};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Faults to come. None by default.
#[derive(Debug)]
pub struct Faults {
    /// Syncs that still succeed before one fails; negative: none fails.
    syncs: AtomicI64,
    /// Bytes that files may still grow by.
    room: AtomicI64,
    /// How many calls a full disk still refuses before it has room again; negative: it never has.
    refusals: AtomicI64,
    /// How many calls failed.
    struck: AtomicU64,
    /// By file.
    lengths: Mutex<HashMap<u32, u64>>,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            syncs: AtomicI64::new(-1),
            room: AtomicI64::new(i64::MAX),
            refusals: AtomicI64::new(-1),
            struck: AtomicU64::new(0),
            lengths: Mutex::default(),
        }
    }
}

impl Faults {
    /// After so many more syncs, one fails.
    pub fn fail_sync_after(&self, syncs: u32) {
        self.syncs.store(i64::from(syncs), Ordering::Relaxed);
    }

    /// The disk is full after so many more bytes. A write that does not fit leaves what there was room for.
    pub fn room(&self, bytes: u64) {
        self.room
            .store(bytes.min(i64::MAX as u64) as i64, Ordering::Relaxed);
    }

    /// The same, until it has refused so many calls: then somebody makes room.
    pub fn room_until(&self, bytes: u64, refusals: u32) {
        self.refusals.store(i64::from(refusals), Ordering::Relaxed);
        self.room(bytes);
    }

    /// How many calls failed.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    /// The outcome of a call of the disk.
    pub fn answer(&self, event: &DiskEvent<'_>) -> Answer {
        let answer = match *event {
            // Below zero it never becomes zero again.
            DiskEvent::Sync { .. } | DiskEvent::SyncDirectory { .. } => {
                match self.syncs.fetch_sub(1, Ordering::Relaxed) {
                    0 => Answer::Fail(Errno::IO),
                    _ => Answer::Go,
                }
            }
            DiskEvent::Allocate { file, at, bytes } => self.allocate(file.0, at + bytes),
            DiskEvent::Reserve { file, bytes } => self.allocate(file.0, bytes),
            DiskEvent::Write { file, at, bytes } => {
                match self.grow(file.0, at + bytes.len() as u64) {
                    None => Answer::Go,
                    Some(end) => self.cut(file.0, at, end),
                }
            }
            DiskEvent::SetLen { file, bytes } => {
                self.set_length(file.0, bytes);
                Answer::Go
            }
            DiskEvent::Unlink { file } => {
                self.set_length(file.0, 0);
                Answer::Go
            }
            DiskEvent::Create { .. } | DiskEvent::Rename { .. } => Answer::Go,
        };
        if answer != Answer::Go {
            self.struck.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    /// What a file had and no longer has is room for others. A longer one has holes.
    fn set_length(&self, file: u32, bytes: u64) {
        let had = self.lengths.lock().insert(file, bytes).unwrap_or(0);
        let freed = had.saturating_sub(bytes) as i64;
        let add = |room: i64| Some(room.saturating_add(freed));
        let _room = self
            .room
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    fn allocate(&self, file: u32, end: u64) -> Answer {
        match self.grow(file, end) {
            None => Answer::Go,
            Some(_) => Answer::Fail(Errno::NOSPC),
        }
    }

    /// Takes the room for a file to grow to `end`. If there is too little, returns the end that it can have.
    fn grow(&self, file: u32, end: u64) -> Option<u64> {
        let mut lengths = self.lengths.lock();
        let length = lengths.entry(file).or_default();
        let more = end.saturating_sub(*length) as i64;
        let room = self.room.load(Ordering::Relaxed);
        if more > 0 && room < more {
            // Below zero it never becomes one again.
            if self.refusals.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.room.store(i64::MAX, Ordering::Relaxed);
            }
            return Some(*length + room as u64);
        }
        self.room.fetch_sub(more, Ordering::Relaxed);
        *length = end.max(*length);
        None
    }

    /// A write at `at` that fails after the last whole sector before `end`.
    fn cut(&self, file: u32, at: u64, end: u64) -> Answer {
        let end = end / SECTOR as u64 * SECTOR as u64;
        match end.checked_sub(at) {
            None | Some(0) => Answer::Fail(Errno::NOSPC),
            Some(bytes) => {
                let taken = self.grow(file, end);
                debug_assert_eq!(taken, None, "there is room for what there is room for");
                Answer::FailAfter(bytes, Errno::NOSPC)
            }
        }
    }
}
