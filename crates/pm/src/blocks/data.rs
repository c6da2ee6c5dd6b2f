//! The file behind blocks, and how far it is synced. One sync serves all threads that wait for it; it begins
//! after their writes have returned.

use crate::io::File;
use crate::poison::Poison;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file, and how far it is synced: what sessions and the redo log share.
pub(crate) struct Data {
    pub(super) file: File,
    pub(super) poison: Arc<Poison>,
    /// Writes that have returned.
    pub(super) written: AtomicU64,
    /// Of these, so many are durable.
    pub(super) synced: AtomicU64,
    turn: Mutex<Turn>,
    /// A sync has ended.
    ended: Condvar,
    /// Syncs of the file; written by whoever has the turn.
    pub(super) syncs: AtomicU64,
}

/// Whose turn it is to sync.
#[derive(Default)]
struct Turn {
    /// A thread syncs; nobody holds the lock meanwhile.
    is_taken: bool,
    /// The first failure.
    failed: Option<Errno>,
}

impl Data {
    pub(super) fn new(file: File, poison: Arc<Poison>) -> Data {
        Data {
            file,
            poison,
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            turn: Mutex::default(),
            ended: Condvar::new(),
            syncs: AtomicU64::new(0),
        }
    }

    /// Makes every write durable that has returned by now.
    ///
    /// # Errors
    /// The file and the failure, which is not yet known to the pool.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn sync_all(&self) -> Result<(), (PathBuf, Errno)> {
        self.sync_to(self.written.load(Ordering::Acquire))
    }

    #[cfg_attr(feature = "lab", track_caller)]
    pub(super) fn sync_to(&self, mark: u64) -> Result<(), (PathBuf, Errno)> {
        if self.synced.load(Ordering::Acquire) >= mark {
            return Ok(());
        }
        let mut turn = self.turn.lock();
        loop {
            if let Some(source) = turn.failed {
                return Err((self.file.path().to_path_buf(), source));
            }
            // Another thread's sync may have covered the write meanwhile.
            if self.synced.load(Ordering::Acquire) >= mark {
                return Ok(());
            }
            if !turn.is_taken {
                break;
            }
            #[cfg(feature = "lab")]
            {
                drop(turn);
                let is_scheduled = crate::lab::waiting();
                turn = self.turn.lock();
                if is_scheduled || !turn.is_taken {
                    continue;
                }
            }
            self.ended.wait(&mut turn);
        }
        turn.is_taken = true;
        drop(turn);
        let _end = EndOfTurn(self);
        let covered = self.written.load(Ordering::Acquire);
        assert!(covered >= mark, "a write is synced before it was made");
        match self.file.data_sync() {
            Ok(()) => {
                self.synced.store(covered, Ordering::Release);
                let syncs = self.syncs.load(Ordering::Relaxed) + 1;
                self.syncs.store(syncs, Ordering::Relaxed);
                Ok(())
            }
            Err(source) => {
                // A later sync would not write what this one has lost.
                self.turn.lock().failed = Some(source);
                Err((self.file.path().to_path_buf(), source))
            }
        }
    }
}

/// Ends a sync, also by a panic; wakes all who wait, since it may have covered their writes.
struct EndOfTurn<'d>(&'d Data);

impl Drop for EndOfTurn<'_> {
    fn drop(&mut self) {
        self.0.turn.lock().is_taken = false;
        self.0.ended.notify_all();
    }
}
