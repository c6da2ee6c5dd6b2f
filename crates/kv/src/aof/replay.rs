//! Reading the log from end to end, in the order in which it was written.

use super::entry::{self, Entry, Position};
use super::segment::{HEAD, Segment};
use super::{Log, location_of};
use crate::error::Error;
use crate::index::Location;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that are read at a time.
const WINDOW: usize = if cfg!(miri) { 1 << 12 } else { 1 << 20 };

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
    segment: u64,
    /// Offset of the first entry, and that behind the last one.
    from: u64,
    to: u64,
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
            match read.value() {
                Some(_) => segment.note_state(read.entry.bytes, read.entry.expires_at_ms),
                None => segment.note_removal(read.entry.bytes),
            }
            meet(read)
        })
    }

    fn numbered(&self, number: u64) -> Option<Arc<Segment>> {
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
        let end = range.end;
        let mut window = Vec::new();
        // The window begins at this offset.
        let mut from = range.start;
        let mut at = range.start;
        while at < end {
            let rest = window.get((at - from) as usize..).unwrap_or(&[]);
            let length = entry::length(rest);
            let wanted = length.unwrap_or(entry::HEAD).max(entry::HEAD);
            if rest.len() < wanted {
                if at + wanted as u64 > end {
                    return Err(self.damaged(
                        segment.number,
                        at,
                        "an entry of the log reaches past its end",
                    ));
                }
                let bytes = (WINDOW.max(wanted) as u64).min(end - at) as usize;
                window.resize(bytes, 0);
                segment
                    .file
                    .read_at(at, &mut window)
                    .map_err(Error::of_pool)?;
                from = at;
                // Now that the head is there, the length may ask for more.
                if length.is_none() && entry::length(&window).is_some() {
                    continue;
                }
            }
            let bytes = &window[(at - from) as usize..];
            let parsed = entry::parse(bytes, &self.secret, segment.at(at));
            let Some(entry) = parsed.filter(|entry| at + entry.bytes <= end) else {
                return Err(self.damaged(
                    segment.number,
                    at,
                    "an entry of the log does not verify",
                ));
            };
            meet(Read {
                entry: &entry,
                bytes,
                location: location_of(segment.slot, at),
            })?;
            at += entry.bytes;
        }
        Ok(())
    }
}
