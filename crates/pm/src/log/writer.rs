//! The log writer: a role that a waiter takes over, so that a single session pays no hand-over.
//!
//! The leader takes what is pending, seals its frames, writes them, syncs, publishes the new durable
//! position and wakes its waiters. `wait.rs` has how the others wait, and who leads next.

use super::Shared;
use super::frame::{BLOCK, Header};
use super::pending::Batch;
use super::recover::Recovered;
use super::segment::write_synced;
use crate::error::Error;
use crate::lock::lock;
use parking_lot::MutexGuard;
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The leader's state.
pub(super) struct Writer {
    /// The buffer that is not being filled.
    batch: Batch,
    /// Checksum of the last frame written.
    chain: u64,
    /// Position after the last durable frame.
    end: u64,
}

impl Writer {
    pub(super) fn new(recovered: &Recovered) -> Writer {
        Writer {
            batch: Batch::default(),
            chain: recovered.chain,
            end: recovered.end,
        }
    }
}

impl Shared {
    /// Writes one batch, if anything is pending.
    pub(super) fn lead(&self, mut writer: MutexGuard<'_, Writer>) {
        if !self.is_healthy() {
            return;
        }
        let watch = self.watch("log writer");
        let Some(number) = self.pending.lock().take(&mut writer.batch) else {
            drop(writer);
            self.wake_all();
            return watch.over();
        };
        assert!(
            writer.batch.start >= writer.end,
            "a batch overlaps durable frames"
        );
        writer.seal(self);
        // The groups of the batch were appended by now, so the writes of all blocks they name have returned.
        match self.sync_data().and_then(|()| self.write(&writer.batch)) {
            Ok(()) => {
                writer.end = writer.batch.end_of_frames();
                self.pending.lock().expect_again(writer.batch.groups);
                let end = writer.batch.end();
                assert!(
                    end > self.durable.load(Ordering::Relaxed),
                    "the durable position decreases"
                );
                self.durable.store(end, Ordering::Release);
                drop(writer);
                self.wake_after(number);
                if let Err(panic) = self.notify_subscribers() {
                    resume_unwind(panic);
                }
            }
            // The role is released afterwards: its next holder sees the failure first.
            Err((path, source)) => {
                self.fail(&path, source);
            }
        }
        watch.over();
    }

    fn write(&self, batch: &Batch) -> Result<(), (std::path::PathBuf, Errno)> {
        let begun = Instant::now();
        let mut at = batch.start;
        let mut rest = batch.bytes.as_slice();
        while !rest.is_empty() {
            let segment = self.options.setup.segment_bytes;
            let room = segment - at % segment;
            let (now, later) = rest.split_at(rest.len().min(room as usize));
            let Some(file) = lock(&self.segments).file(at) else {
                return Err((self.options.directory.path().into(), Errno::NOSPC));
            };
            write_synced(&file, at % segment, now)
                .map_err(|source| (file.path().to_path_buf(), source))?;
            at += now.len() as u64;
            rest = later;
        }
        let took = begun.elapsed().as_nanos() as u64;
        let average = self.sync_ns.load(Ordering::Relaxed);
        self.sync_ns
            .store(average - average / 8 + took / 8, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the blocks durable that were written to the data file, if there is one.
    pub(super) fn sync_data(&self) -> Result<(), (std::path::PathBuf, Errno)> {
        self.data.get().map_or(Ok(()), |data| data.sync_all())
    }

    /// Poisons the pool; returns the first failure.
    pub(super) fn fail(&self, path: &Path, source: Errno) -> Error {
        self.options.poison.fail(path, source)
    }

    /// Wakes every waiter of a poisoned pool.
    pub(super) fn wake_after_failure(&self) {
        self.wake_all();
        // Take the lock: otherwise a waiter could be between its check of the poison and its sleep.
        let segments = lock(&self.segments);
        self.room.notify_all();
        drop(segments);
        // A panic of a subscriber cannot make it worse now.
        let _ = self.notify_subscribers();
    }

    /// Calls all subscribers, even if one of them panics.
    fn notify_subscribers(&self) -> std::thread::Result<()> {
        let mut told = Ok(());
        for subscriber in self.subscribers.read().iter() {
            told = told.and(catch_unwind(AssertUnwindSafe(|| subscriber())));
        }
        told
    }
}

impl Batch {
    /// Position after the last frame, without the padding.
    fn end_of_frames(&self) -> u64 {
        self.start + self.frames.last().map_or(0, |&(_, end)| end as u64)
    }
}

impl Writer {
    /// Fills in the headers of the batch and pads it to whole blocks.
    fn seal(&mut self, log: &Shared) {
        for &(from, end) in &self.batch.frames {
            let header = Header {
                lsn: self.batch.start + from as u64,
                body_bytes: (end - from - super::frame::HEADER) as u64,
                durable: self.end,
                incarnation: log.options.incarnation,
                chain: self.chain,
            };
            self.chain = header.seal(&mut self.batch.bytes[from..end], &log.options.secret);
        }
        let padded = self.batch.bytes.len().next_multiple_of(BLOCK as usize);
        self.batch.bytes.resize(padded, 0);
    }
}
