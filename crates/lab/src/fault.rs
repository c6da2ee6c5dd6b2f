//! What goes wrong with a disk: a sync that fails once, a disk that gets full.

use everdram_pm::lab::{Answer, DiskEvent, Errno};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Faults to come. None by default.
#[derive(Debug)]
pub struct Faults {
    /// Syncs that still succeed before one fails; negative: none fails.
    syncs: AtomicI64,
    /// Whether the sync that fails was never made: the process died before it.
    killed: AtomicBool,
    /// Bytes that files may still grow by.
    room: AtomicI64,
    /// How many calls failed.
    struck: AtomicU64,
    /// By file.
    lengths: Mutex<HashMap<u32, u64>>,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            syncs: AtomicI64::new(-1),
            killed: AtomicBool::new(false),
            room: AtomicI64::new(i64::MAX),
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

    /// After so many more syncs, the process dies before one.
    pub fn die_before_sync(&self, syncs: u32) {
        self.killed.store(true, Ordering::Relaxed);
        self.fail_sync_after(syncs);
    }

    /// Whether a sync that fails never reaches the disk.
    #[must_use]
    pub fn is_death(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    /// The disk is full after so many more bytes.
    pub fn room(&self, bytes: u64) {
        self.room
            .store(bytes.min(i64::MAX as u64) as i64, Ordering::Relaxed);
    }

    /// How many calls failed.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    pub(crate) fn answer(&self, event: &DiskEvent<'_>) -> Answer {
        let fault = match *event {
            DiskEvent::Sync { .. } | DiskEvent::SyncDirectory => {
                // Below zero it only gets further away.
                (self.syncs.fetch_sub(1, Ordering::Relaxed) == 0).then_some(Errno::IO)
            }
            DiskEvent::Allocate { file, at, bytes } => self.grow(file.0, at + bytes),
            DiskEvent::Write { file, at, bytes } => self.grow(file.0, at + bytes.len() as u64),
            DiskEvent::SetLen { file, bytes } => {
                self.lengths.lock().insert(file.0, bytes);
                None
            }
            DiskEvent::Create { .. } | DiskEvent::Unlink { .. } => None,
        };
        match fault {
            None => Answer::Go,
            Some(errno) => {
                self.struck.fetch_add(1, Ordering::Relaxed);
                Answer::Fail(errno)
            }
        }
    }

    /// Takes the room for a file to reach `end`.
    fn grow(&self, file: u32, end: u64) -> Option<Errno> {
        let mut lengths = self.lengths.lock();
        let length = lengths.entry(file).or_default();
        let more = end.saturating_sub(*length) as i64;
        if more > 0 && self.room.load(Ordering::Relaxed) < more {
            return Some(Errno::NOSPC);
        }
        self.room.fetch_sub(more, Ordering::Relaxed);
        *length = end.max(*length);
        None
    }
}
