//! Checkpoints: changed pages go to the image file while writers continue.
//!
//! The order of the steps makes this safe.
//!
//! 1. Make the log durable and take its end as L0. Every group before L0 marked its pages before it got its
//!    LSN. So each page is copied now, or is still marked for the next checkpoint by a group at or after L0.
//! 2. Copy a run of pages. Make the log durable up to its end *then*. Only then write the run (the
//!    write-ahead rule).
//! 3. When all runs are written and the image is synced, record L0 in the superblock. The log before L0 is
//!    free.
//!
//! A page is copied whole, including stores that are not fenced yet, so the image may have bytes that no
//! group of the log has. After a crash they may exist only in the page cache: the process died before its
//! sync, or the sync failed, and the kernel then takes the page for clean and never writes it again. So
//! opening ends with a checkpoint ([`Shared::settle`]). It writes every page that the run of groups touches
//! once more, from the memory that readers are about to see, and syncs. No other page needs that, because
//!
//! - a page goes to the image only if it is marked. Only appending or applying a group that touches the page
//!   sets its mark (`append.rs`, `recover.rs`), before any thread learns the LSN;
//! - when the superblock recorded L0, all earlier page writes were synced, and every mark older than L0 had
//!   been cleared and its page copied: a page written later has a mark of a group at or after L0;
//! - that group was durable when the page was written, so every later recovery that starts at L0 has it in
//!   its run. And recovery itself writes only pages of its run.
//!
//! The run itself is durable by then (`recover.rs`), so the write-ahead rule holds. If this checkpoint is
//! interrupted or fails, the next open finds the same log, and the same pages to write.

use super::Shared;
use super::dirty::PAGE;
use crate::error::Error;
use crate::io::File;
use crate::lock::lock;
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// Pages copied and written together.
const RUN_PAGES: usize = 256;
/// Pages written between two syncs of the image: a long queue at the device would slow the log's syncs.
const SYNC_PAGES: usize = 16 * RUN_PAGES;

/// Pages copied from the image, not yet written.
struct Run {
    pages: Vec<u64>,
    bytes: Vec<u8>,
    unsynced: usize,
}

impl Shared {
    /// Brings the image up to date and frees the log. One checkpoint runs at a time; writers never wait for
    /// it.
    pub(super) fn checkpoint(&self) -> Result<(), Error> {
        let _alone = lock(&self.checkpointing);
        self.watched("writer of a checkpoint", || self.checkpoint_alone())
    }

    fn checkpoint_alone(&self) -> Result<(), Error> {
        self.healthy()?;
        self.wait_durable(self.end())?;
        let lsn = self.pending.lock().start();
        let mut run = Run {
            pages: Vec::new(),
            bytes: Vec::new(),
            unsynced: 0,
        };
        self.dirty.drain(|page| {
            if let Some(memory) = &self.memory {
                memory.chunks.disturb(page * PAGE);
            }
            self.copy_page(page, &mut run);
            if run.pages.len() < RUN_PAGES {
                return Ok(());
            }
            self.write_run(&mut run)?;
            // Writers must not run out of segments meanwhile. A full disk is no reason to stop: this
            // checkpoint makes room.
            self.prepare_what_fits().map(drop)
        })?;
        self.write_run(&mut run)?;
        let recorded = lsn == self.checkpoint_lsn.load(Ordering::Acquire);
        // Sync even if the log has nothing new: the holder of `checkpointing` then knows that the image is
        // synced, or that the log failed.
        if !recorded || run.unsynced > 0 {
            self.image_call(|image| image.data_sync())?;
        }
        if recorded {
            return Ok(());
        }
        assert!(
            lsn > self.checkpoint_lsn.load(Ordering::Acquire),
            "a checkpoint is older than the one before"
        );
        self.record(lsn)?;
        self.checkpoint_lsn.store(lsn, Ordering::Release);
        self.release_segments(lsn);
        Ok(())
    }

    /// Makes the recovered memory durable in the image before any reader sees it: see the module text. The
    /// log is empty afterwards.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::NoSpace`]: the log is unchanged, and must not be used.
    pub(super) fn settle(&self) -> Result<(), Error> {
        self.checkpoint().map_err(|error| match error {
            Error::Poisoned { path, source } => {
                Error::io(&path, "write what was recovered")(source)
            }
            other => other,
        })
    }

    fn copy_page(&self, page: u64, run: &mut Run) {
        let region = &self.options.region;
        let at = page * PAGE;
        assert!(at < region.len(), "a page outside the pool is dirty");
        debug_assert!(
            run.pages.last().is_none_or(|&last| last < page),
            "pages are written out of order"
        );
        let bytes = PAGE.min(region.len().saturating_sub(at)) as usize;
        let from = run.bytes.len();
        run.bytes.resize(from + bytes, 0);
        region.copy_out(at, &mut run.bytes[from..]);
        run.pages.push(page);
    }

    fn write_run(&self, run: &mut Run) -> Result<(), Error> {
        if run.pages.is_empty() {
            return Ok(());
        }
        assert_eq!(
            run.bytes.len().div_ceil(PAGE as usize),
            run.pages.len(),
            "only the last page of a pool may be short"
        );
        if self.options.setup.writes_ahead() {
            self.wait_durable(self.end())?;
        }
        // A page may have a record that no group has yet; the blocks that it names were written before.
        self.sync_data()
            .map_err(|(path, source)| self.fail(&path, source))?;
        let mut from = 0;
        while from < run.pages.len() {
            let adjacent = run.pages[from..]
                .windows(2)
                .take_while(|pair| pair[1] == pair[0] + 1)
                .count()
                + 1;
            let bytes =
                from * PAGE as usize..run.bytes.len().min((from + adjacent) * PAGE as usize);
            self.image_call(|image| image.pwrite_all(run.pages[from] * PAGE, &run.bytes[bytes]))?;
            from += adjacent;
        }
        run.unsynced += run.pages.len();
        run.pages.clear();
        run.bytes.clear();
        if run.unsynced >= SYNC_PAGES {
            run.unsynced = 0;
            self.image_call(|image| image.data_sync())?;
        }
        Ok(())
    }

    /// A call on the image; a failure poisons the log.
    fn image_call(&self, call: impl FnOnce(&File) -> Result<(), Errno>) -> Result<(), Error> {
        self.healthy()?;
        let image = &self.options.image;
        call(image).map_err(|source| self.fail(image.path(), source))
    }

    fn record(&self, lsn: u64) -> Result<(), Error> {
        (self.options.record_checkpoint)(lsn).inspect_err(|error| {
            let (path, source) = match error {
                Error::Io { path, source, .. } | Error::Poisoned { path, source } => {
                    (path.as_path(), *source)
                }
                _ => (self.options.image.path(), Errno::IO),
            };
            self.fail(path, source);
        })
    }
}
