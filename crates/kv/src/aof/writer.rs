//! Appending: entries go to a batch in memory, and a batch becomes durable as a whole.

use super::entry::{self, Order, Position, Said};
use super::segment::{HEAD, SEAL, Segment, seal};
use super::{Log, location_of};
use crate::error::Error;
use crate::index::Location;
use everdram_pm::ShelfFile;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a batch in memory from which on it is written, to be synced with the rest.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Where an entry will lie, and its bytes in the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) location: Location,
    pub(crate) bytes: u64,
}

/// Gives what is reserved behind the end of a file back to the disk.
fn trim(file: &ShelfFile) -> Result<(), everdram_pm::Error> {
    file.set_len(file.len()?)
}

/// The end of the log. One thread appends at a time.
pub(crate) struct Writer {
    last: Arc<Segment>,
    /// Where `batch` begins in the last segment.
    at: u64,
    /// Entries that are not written yet.
    batch: Vec<u8>,
    /// Segments with written entries that are not synced yet.
    unsynced: Vec<Arc<Segment>>,
    /// The last segment has disk space for so many bytes.
    reserved: u64,
}

impl Writer {
    /// The end of an open log.
    pub(crate) fn of(log: &Log) -> Option<Writer> {
        let last = log.segments().pop()?;
        Some(Writer {
            at: last.bytes.load(Ordering::Relaxed),
            last,
            batch: Vec::new(),
            unsynced: Vec::new(),
            reserved: 0,
        })
    }

    /// Where the next entry will lie.
    pub(crate) fn end(&self) -> Position {
        self.last.at(self.at + self.batch.len() as u64)
    }

    /// Adds a key's state to the batch. Nothing may lead there before [`Writer::sync`].
    ///
    /// # Errors
    /// [`Error::NoSpace`]: the segment is full.
    pub(crate) fn append(
        &mut self,
        log: &Log,
        key: &[u8],
        said: Said<'_>,
        order: Order,
    ) -> Result<Placed, Error> {
        let at = self.end();
        let location = location_of(self.last.slot, at.offset)
            .ok_or_else(|| Error::NoSpace("a segment of the log is full".into()))?;
        let bytes = entry::encode(&mut self.batch, &log.secret, at, key, said, order);
        if let Said::Set { expires_at_ms, .. } = said {
            self.last.note_state(bytes, expires_at_ms);
        }
        Ok(Placed { location, bytes })
    }

    /// Takes disk space for removals of keys of so many bytes together, behind what was appended: once the
    /// index leads to the log, a full disk must not keep them from it.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing counts, and the caller calls [`Writer::go_back`]. [`Error::Pool`].
    pub(crate) fn reserve_removals(
        &mut self,
        log: &Log,
        count: usize,
        key_bytes: usize,
    ) -> Result<(), Error> {
        let removals = count * entry::REMOVAL_MAX + key_bytes;
        let end = self.end().offset + removals as u64;
        if end > self.reserved {
            let bytes = end.max(log.segment_bytes);
            self.last.file.reserve(bytes).map_err(Error::of_pool)?;
            self.reserved = bytes;
        }
        Ok(())
    }

    /// Adds a removal to the batch, in the segment that there is, whatever its length.
    pub(crate) fn append_removal(&mut self, log: &Log, key: &[u8], order: Order) {
        let at = self.end();
        let bytes = entry::encode(&mut self.batch, &log.secret, at, key, Said::Del, order);
        self.last.note_removal(bytes);
    }

    /// Whether the last segment has entries, of which one has expired by `now` or more than `share` of the
    /// bytes are stale.
    pub(crate) fn is_worth_ending(&self, share: f64, now: u64) -> bool {
        let (garbage, bytes) = (self.last.garbage(now, false), self.last.use_of().0);
        let is_worth_it = self.last.has_expired(now) || garbage as f64 > bytes as f64 * share;
        self.end().offset > HEAD && is_worth_it
    }

    /// Writes the batch, not durably yet, if it has so much that it should not wait in memory.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`].
    pub(crate) fn write_if_full(&mut self) -> Result<(), Error> {
        match self.batch.len() < BATCH_BYTES_MAX {
            true => Ok(()),
            false => self.write(),
        }
    }

    /// Whether the last segment is full: [`Writer::next_segment`] comes before the next state.
    pub(crate) fn is_at_end(&self, log: &Log) -> bool {
        self.end().offset >= log.segment_bytes
    }

    /// Bytes that may be appended to the last segment with the room on the disk that it has. If it may take
    /// more, it takes that of a whole segment, where there is so much.
    pub(crate) fn rest(&mut self, log: &Log, may_take: bool) -> u64 {
        let had = std::mem::take(&mut self.reserved);
        let takes = may_take && had < log.segment_bytes;
        let file = &self.last.file;
        if !takes {
            self.reserved = had;
        } else if file.reserve(log.segment_bytes).is_ok() {
            self.reserved = log.segment_bytes;
        } else if trim(file).and_then(|()| file.reserve(had)).is_ok() {
            // A file system may have given a part of it, which is of no use.
            self.reserved = had;
        }
        // What is reserved for removals may lie behind the end of a whole segment.
        let reserved = self.reserved.min(log.segment_bytes);
        reserved.saturating_sub(self.end().offset)
    }

    /// Begins the next segment; its file and the manifest are durable when this returns. It takes room for
    /// `kept` bytes of entries, if given.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`].
    pub(crate) fn next_segment(&mut self, log: &Log, kept: Option<u64>) -> Result<(), Error> {
        self.write()?;
        let bytes = log.begun_bytes(kept);
        let next = log.new_segment(bytes)?;
        // The seal is synced with what comes next, so before that counts.
        let sealed = self.seal(log, Arc::clone(&self.last));
        let entered = sealed.and_then(|()| log.write_manifest(&log.numbers()));
        if let Err(error) = entered {
            log.forget(&next);
            return Err(error);
        }
        // If it cannot be trimmed, the disk has less room, and that is all.
        let _ = trim(&self.last.file);
        self.last = next;
        self.at = HEAD;
        self.reserved = bytes;
        Ok(())
    }

    /// Ends a segment that another one follows.
    fn seal(&mut self, log: &Log, segment: Arc<Segment>) -> Result<(), Error> {
        let end = segment.at(segment.bytes.load(Ordering::Relaxed));
        segment
            .file
            .write_at(end.offset, &seal(&log.secret, end))
            .map_err(Error::of_pool)?;
        self.note_unsynced(segment);
        Ok(())
    }

    fn note_unsynced(&mut self, segment: Arc<Segment>) {
        let is_noted = |other: &Arc<Segment>| Arc::ptr_eq(other, &segment);
        if !self.unsynced.iter().any(is_noted) {
            self.unsynced.push(segment);
        }
    }

    /// Whether everything that was appended is durable.
    pub(crate) fn is_synced(&self) -> bool {
        self.batch.is_empty() && self.unsynced.is_empty()
    }

    /// Writes the batch, not durably yet.
    fn write(&mut self) -> Result<(), Error> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.note_unsynced(Arc::clone(&self.last));
        self.last
            .file
            .write_at(self.at, &self.batch)
            .map_err(Error::of_pool)?;
        self.at += self.batch.len() as u64;
        self.last.bytes.store(self.at, Ordering::Relaxed);
        self.batch.clear();
        self.batch.shrink_to(2 * BATCH_BYTES_MAX);
        Ok(())
    }

    /// Makes everything appended durable. From here on locations may lead there.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing counts, and the caller calls [`Writer::go_back`]. [`Error::Pool`]: the log
    /// takes no more writes.
    pub(crate) fn sync(&mut self, log: &Log) -> Result<Position, Error> {
        log.healthy()?;
        self.write()?;
        for segment in &self.unsynced {
            segment.file.data_sync().map_err(Error::of_pool)?;
        }
        self.unsynced.clear();
        Ok(self.end())
    }

    /// Drops everything that was appended since the log ended at `end`; nothing leads there.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub(crate) fn go_back(&mut self, log: &Log, end: Position) -> Result<(), Error> {
        self.batch.clear();
        self.unsynced.clear();
        // Files are cut, and what was reserved behind is given back.
        self.reserved = 0;
        for segment in log.segments() {
            let to = match segment.number.cmp(&end.segment) {
                std::cmp::Ordering::Less => continue,
                std::cmp::Ordering::Equal => end.offset,
                std::cmp::Ordering::Greater => HEAD,
            };
            segment.bytes.store(to, Ordering::Relaxed);
            let is_last = segment.number == self.last.number;
            let length = match is_last {
                true => to,
                false => to + SEAL,
            };
            if segment.number > end.segment {
                segment.removals.store(0, Ordering::Relaxed);
            }
            if is_last {
                self.at = to;
            } else {
                // Over what is there, since a full disk has no room for it.
                self.seal(log, Arc::clone(&segment))?;
            }
            segment.file.set_len(length).map_err(Error::of_pool)?;
        }
        Ok(())
    }
}
