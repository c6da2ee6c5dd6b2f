//! The log writer: a role that whoever waits takes over, so that a single session pays no hand-over.
//!
//! The leader takes what is pending, seals its frames, writes them, syncs, publishes the new durable
//! position and wakes those who waited for this batch; one waiter of the next batch is woken too, to lead
//! it. Waiters sleep on the count of finished batches, and each batch has a bit of the futex's set, so
//! nobody is woken for nothing.
//!
//! Nobody is forgotten: a waiter reads the count, finds its position not durable and the role taken, and
//! sleeps only if the count has not changed. The leader gives the role back before it raises the count.

use super::Shared;
use super::frame::{BLOCK, Header};
use super::pending::Batch;
use super::recover::Recovered;
use super::segment::write_synced;
use crate::error::Error;
use crate::lock::lock;
use parking_lot::MutexGuard;
use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What the leader owns.
pub(super) struct Writer {
    /// The buffer that is not being filled.
    batch: Batch,
    /// Checksum of the last frame written.
    chain: u64,
    /// Position behind the last frame that is durable.
    end: u64,
    /// Groups of the two batches before.
    groups_before: [u32; 2],
}

impl Writer {
    pub(super) fn new(recovered: &Recovered) -> Writer {
        Writer {
            batch: Batch::default(),
            chain: recovered.chain,
            end: recovered.end,
            groups_before: [0; 2],
        }
    }
}

impl Shared {
    /// Blocks until the log is durable up to `lsn`; writes it itself if nobody else does.
    pub(super) fn wait_durable(&self, lsn: u64) -> Result<(), Error> {
        self.wait_leading(lsn, true)
    }

    /// As [`Shared::wait_durable`], for the flusher: those it writes for do not wait in `wait_durable`, so
    /// there is nobody to gather.
    pub(super) fn flush_to(&self, lsn: u64) -> Result<(), Error> {
        self.wait_leading(lsn, false)
    }

    fn wait_leading(&self, lsn: u64, gather: bool) -> Result<(), Error> {
        loop {
            let completed = self.completed.load(Ordering::Acquire);
            if self.durable.load(Ordering::Acquire) >= lsn {
                return Ok(());
            }
            self.healthy()?;
            if let Some(writer) = self.writer.try_lock() {
                self.lead(writer, gather && self.options.setup.has_threads());
                continue;
            }
            #[cfg(feature = "lab")]
            if crate::lab::waiting() {
                continue;
            }
            let number = self.pending.lock().number_of(lsn);
            // A changed count, a signal or a wake-up: the loop looks again in each case.
            let _ = futex::wait_bitset(
                &self.completed,
                Flags::PRIVATE,
                completed,
                None,
                bit(number),
            );
        }
    }

    /// Writes one batch, if anything is pending.
    fn lead(&self, mut writer: MutexGuard<'_, Writer>, gather: bool) {
        if self.failed.get().is_some() {
            return;
        }
        if gather {
            self.gather(&writer);
        }
        let Some(number) = self.pending.lock().take(&mut writer.batch) else {
            return;
        };
        writer.seal(self);
        match self.write(&writer.batch) {
            Ok(()) => {
                writer.end = writer.batch.end_of_frames();
                let [before, _] = writer.groups_before;
                writer.groups_before = [writer.batch.groups, before];
                self.durable.store(writer.batch.end(), Ordering::Release);
                drop(writer);
                self.finish(number);
            }
            // The role is given back afterwards: whoever takes it next sees the failure first.
            Err((path, source)) => self.fail(&path, source),
        }
    }

    /// Lets the threads that the last batches woke append first, if there were many: syncs then cover even
    /// shares of them. Bounded by a share of what a sync costs.
    fn gather(&self, writer: &Writer) {
        let [last, before] = writer.groups_before;
        let expected = (last + before).div_ceil(2);
        if expected < 2 {
            return;
        }
        let bound = Duration::from_nanos(self.sync_ns.load(Ordering::Relaxed) / 2);
        let begun = Instant::now();
        let mut groups = self.pending.lock().groups();
        while groups < expected && begun.elapsed() < bound {
            std::thread::yield_now();
            groups = self.pending.lock().groups();
        }
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

    /// Publishes a finished batch.
    fn finish(&self, number: u32) {
        self.completed.fetch_add(1, Ordering::AcqRel);
        // Waking nobody is fine, and the calls have no other way to fail on a valid address.
        let _ = futex::wake_bitset(
            &self.completed,
            Flags::PRIVATE,
            i32::MAX as u32,
            bit(number),
        );
        let _ = futex::wake_bitset(
            &self.completed,
            Flags::PRIVATE,
            1,
            bit(number.wrapping_add(1)),
        );
        self.tell_subscribers();
    }

    /// Poisons the log with its first failure and tells everybody who waits.
    pub(super) fn fail(&self, path: &Path, source: Errno) {
        let error = Error::Poisoned {
            path: path.into(),
            source,
        };
        // Whoever failed first tells everybody.
        if self.failed.set(error).is_err() {
            return;
        }
        self.completed.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&self.completed, Flags::PRIVATE, i32::MAX as u32);
        // Under the lock, so that nobody is between its look at `failed` and its sleep.
        let segments = lock(&self.segments);
        self.room.notify_all();
        drop(segments);
        self.tell_subscribers();
    }

    fn tell_subscribers(&self) {
        for subscriber in self.subscribers.read().iter() {
            subscriber();
        }
    }
}

impl Batch {
    /// Position behind the last frame, without the padding.
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

/// The futex bit of a batch. Only two batches have waiters at any time, so 32 bits are plenty.
fn bit(number: u32) -> NonZeroU32 {
    NonZeroU32::new(1 << (number % 32)).unwrap_or(NonZeroU32::MIN)
}
