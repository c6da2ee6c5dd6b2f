//! Appending a group: one short critical section that copies, marks pages and assigns the LSN.
//!
//! Pages are marked dirty only here and where recovery applies a group: see `checkpoint.rs` for why.

use super::Shared;
use super::content::Content;
use super::pending::Pending;
use std::sync::atomic::Ordering;

/// Limit of bytes that wait to be written; an append that finds more writes them first.
const PENDING_BYTES_MAX: usize = 32 << 20;

impl Shared {
    /// Appends `content` and empties it; returns its LSN. Waits only if the log has no room, or if the writer
    /// falls behind. On a failed log the group is dropped and its LSN never becomes durable.
    pub(super) fn append(&self, content: &mut Content) -> u64 {
        let footprint = content.footprint();
        let lsn = loop {
            if !self.is_healthy() {
                break u64::MAX;
            }
            let mut pending = self.pending.lock();
            if self.has_room(&pending, footprint) {
                break self.push(&mut pending, content);
            }
            let end = pending.end();
            let full = pending.bytes() >= PENDING_BYTES_MAX;
            drop(pending);
            if full {
                // The top of the loop detects a failure.
                let _ = self.wait_durable(end);
            } else {
                self.wait_for_room(end + footprint);
            }
        };
        content.clear();
        self.call_checkpointer(lsn);
        lsn
    }

    /// As [`Shared::append`], without waiting: for the checkpointer, which makes room for all others. Returns
    /// whether there was room; `content` is empty in either case.
    pub(super) fn append_if_room(&self, content: &mut Content) -> bool {
        let footprint = content.footprint();
        let mut pending = self.pending.lock();
        let room = self.is_healthy() && self.has_room(&pending, footprint);
        if room {
            self.push(&mut pending, content);
        }
        drop(pending);
        content.clear();
        room
    }

    #[inline]
    fn has_room(&self, pending: &Pending, footprint: u64) -> bool {
        let prepared_end = self.prepared_end.load(Ordering::Acquire);
        pending.bytes() < PENDING_BYTES_MAX && pending.end() + footprint <= prepared_end
    }

    #[inline]
    fn push(&self, pending: &mut Pending, content: &Content) -> u64 {
        // Without this, half a group would become part of the next one.
        let watch = self.watch("writer of a group");
        let begun = pending.end();
        let mut rest = content.bytes.as_slice();
        for &(at, bytes) in &content.own {
            let (lines, later) = rest.split_at(bytes as usize);
            pending.push_lines(at, lines);
            self.dirty.mark(at, bytes);
            rest = later;
        }
        for &(at, bytes) in &content.shared {
            pending.push_image(at, bytes, &self.options.region);
            self.dirty.mark(at, bytes);
        }
        debug_assert!(rest.is_empty(), "a group has lines without a place");
        let end = pending.finish_group();
        assert!(
            end - begun <= content.footprint(),
            "a group exceeds its footprint in the log"
        );
        watch.over();
        end
    }

    /// Wakes the checkpointer if segments run short or the log is half used.
    #[inline]
    fn call_checkpointer(&self, end: u64) {
        let used = end.saturating_sub(self.checkpoint_lsn.load(Ordering::Relaxed));
        let ahead = self
            .prepared_end
            .load(Ordering::Relaxed)
            .saturating_sub(end);
        if used >= self.options.log_bytes / 2
            || ahead < super::segment::AHEAD * self.options.setup.segment_bytes
        {
            self.checkpointer.ring();
        }
    }

    /// Blocks until positions up to `end` have segments, or the log has failed.
    fn wait_for_room(&self, end: u64) {
        if !self.options.setup.has_threads() {
            return self.make_room(end);
        }
        self.starving.fetch_add(1, Ordering::SeqCst);
        let mut segments = self.segments.lock();
        while segments.end() < end && self.is_healthy() {
            self.checkpointer.ring();
            self.room.wait(&mut segments);
        }
        drop(segments);
        self.starving.fetch_sub(1, Ordering::SeqCst);
    }
}
