//! Reading the log from end to end, in the order in which it was written.

use super::entry::{self, Entry, Position};
use super::segment::{HEAD, Segment};
use super::{Log, location_of};
use crate::error::Error;
use crate::index::Location;
use everdram_pm::Secret;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that are read at a time.
const WINDOW: usize = if cfg!(miri) { 1 << 12 } else { 1 << 20 };

/// Bytes of a disk that are readable together, or not.
const SECTOR: usize = 512;

/// Bytes from which the number of entries is estimated.
const SAMPLE: usize = 64 << 10;

/// An entry that a reader of the whole log meets.
pub(crate) struct Read<'a> {
    pub(crate) entry: &'a Entry,
    /// The bytes that the entry's ranges are of.
    pub(crate) bytes: &'a [u8],
    pub(crate) location: Option<Location>,
}

impl Read<'_> {
    pub(crate) fn key(&self) -> &[u8] {
        &self.bytes[self.entry.key.clone()]
    }

    /// The value; `None` of a removal.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        self.entry.value.clone().map(|range| &self.bytes[range])
    }
}

/// Entries of a segment that lie next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(super) segment: u64,
    /// Offset of the first entry, and that behind the last one.
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Part {
    /// Bytes of the entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.to - self.from
    }
}

impl Log {
    /// Numbers of the segments, the oldest first.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.segments()
            .iter()
            .map(|segment| segment.number)
            .collect()
    }

    /// What lies before a position now, and what from there on, the oldest first.
    pub(crate) fn split_at(&self, position: Position) -> (Vec<Part>, Vec<Part>) {
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        for segment in self.segments() {
            let end = segment.bytes.load(Ordering::Relaxed);
            let middle = match segment.number.cmp(&position.segment) {
                std::cmp::Ordering::Less => end,
                std::cmp::Ordering::Equal => position.offset.clamp(HEAD, end),
                std::cmp::Ordering::Greater => HEAD,
            };
            let add = |parts: &mut Vec<Part>, from, to| {
                if from < to {
                    let segment = segment.number;
                    parts.push(Part { segment, from, to });
                }
            };
            add(&mut before, HEAD, middle);
            add(&mut behind, middle, end);
        }
        (before, behind)
    }

    /// About how many entries the log has: as many as its bytes hold of the length of some.
    pub(crate) fn estimate(&self) -> u64 {
        let segments = self.segments();
        let (total, ..) = self.use_of();
        let Some(middle) = segments.get(segments.len() / 2) else {
            return 0;
        };
        let mut window = vec![0; SAMPLE];
        let count = middle.file.read_some_at(HEAD, &mut window).unwrap_or(0);
        let (mut at, mut entries) = (0, 0);
        while let Some(length) = window.get(at..count).and_then(entry::length) {
            at += length + entry::padding(length as u64) as usize;
            entries += 1;
        }
        total * entries / (at as u64).max(1)
    }

    /// Meets the entries of a segment, up to the end that it has now.
    ///
    /// # Errors
    /// [`Error::Corrupt`] names the file and the offset of an entry that does not verify; what `meet` returns.
    pub(crate) fn replay(
        &self,
        number: u64,
        meet: &mut dyn FnMut(Read<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self.numbered(number) {
            Some(segment) => {
                let end = segment.bytes.load(Ordering::Relaxed);
                self.replay_range(&segment, HEAD..end, meet)
            }
            None => Ok(()),
        }
    }

    /// As [`Log::replay`], of a part of a segment that is read for the first time since the log was opened.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn load_part(
        &self,
        part: &Part,
        meet: &mut dyn FnMut(Read<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(segment) = self.numbered(part.segment) else {
            return Ok(());
        };
        self.replay_range(&segment, part.from..part.to, &mut |read| {
            segment.note(&read);
            meet(read)
        })
    }

    pub(super) fn numbered(&self, number: u64) -> Option<Arc<Segment>> {
        let segments = self.segments();
        segments
            .into_iter()
            .find(|segment| segment.number == number)
    }

    fn replay_range(
        &self,
        segment: &Segment,
        range: Range<u64>,
        meet: &mut dyn FnMut(Read<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut window = Window::new(segment, range.end);
        let mut at = range.start;
        while at < range.end {
            let Some((entry, bytes)) = window.entry_at(&self.secret, at)? else {
                let what = "an entry of the log does not verify";
                return Err(self.damaged(segment.number, at, what));
            };
            at += entry.bytes;
            meet(Read {
                location: location_of(segment.slot, at - entry.bytes),
                entry: &entry,
                bytes,
            })?;
        }
        Ok(())
    }
}

impl Segment {
    /// Notes an entry that is read for the first time since the log was opened.
    pub(super) fn note(&self, read: &Read<'_>) {
        match read.value() {
            Some(_) => self.note_state(read.entry.bytes, read.entry.expires_at_ms),
            None => self.note_removal(read.entry.bytes),
        }
    }
}

/// The bytes of a segment up to some end, which are read in order, and far ahead.
pub(super) struct Window<'a> {
    segment: &'a Segment,
    end: u64,
    bytes: Vec<u8>,
    /// The offset of the first of these bytes.
    from: u64,
    /// Whether what the disk cannot read counts as zeros.
    pub(super) skips_unreadable: bool,
}

impl Window<'_> {
    pub(super) fn new(segment: &Segment, end: u64) -> Window<'_> {
        Window {
            segment,
            end,
            bytes: Vec::new(),
            from: 0,
            skips_unreadable: false,
        }
    }

    /// The bytes from offset `at` on: at least `wanted`, or all up to the end.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub(super) fn bytes_at(&mut self, at: u64, wanted: usize) -> Result<&[u8], Error> {
        let left = self.end.saturating_sub(at);
        let wanted = left.min(wanted as u64);
        let has_all = at >= self.from && at + wanted <= self.from + self.bytes.len() as u64;
        if !has_all {
            self.bytes
                .resize(left.min(wanted.max(WINDOW as u64)) as usize, 0);
            self.from = at;
            let read = self.segment.file.read_at(at, &mut self.bytes);
            match read.map_err(Error::of_pool) {
                Err(Error::Pool(_)) if self.skips_unreadable => self.read_parts(),
                other => other?,
            }
        }
        Ok(self.bytes.get((at - self.from) as usize..).unwrap_or(&[]))
    }

    /// Reads what the disk gives.
    fn read_parts(&mut self) {
        let mut at = self.from;
        for part in self.bytes.chunks_mut(SECTOR) {
            if self.segment.file.read_at(at, part).is_err() {
                part.fill(0);
            }
            at += part.len() as u64;
        }
    }

    /// The entry at offset `at`, if one verifies there, and bytes that begin with it.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub(super) fn entry_at(
        &mut self,
        secret: &Secret,
        at: u64,
    ) -> Result<Option<(Entry, &[u8])>, Error> {
        let (place, end) = (self.segment.at(at), self.end);
        let length = entry::length(self.bytes_at(at, entry::HEAD)?);
        // A damaged length must not cost more memory than the file has.
        let Some(length) = length.filter(|length| at + *length as u64 <= end) else {
            return Ok(None);
        };
        let bytes = self.bytes_at(at, length)?;
        let parsed = entry::parse(bytes, secret, place);
        let parsed = parsed.filter(|entry| at + entry.bytes <= end);
        Ok(parsed.map(|entry| (entry, bytes)))
    }
}
