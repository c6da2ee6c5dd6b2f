//! Salvage: the log of a pool as far as it verifies.
//!
//! The sum of an entry covers its segment and place, so any bytes that verify are a real entry. The length of
//! one that does not verify cannot be trusted, so salvage looks for the next place that does. It needs no
//! manifest: the names of the files say which segments there are.
//!
//! Invariants:
//! - Nothing is written, and nothing is taken that does not verify.
//! - What is skipped is noted, with the key that the bytes seem to hold.
//! - Of a log of another pool, or of another moment, nothing is taken: that is no damage.

use super::entry::{self, GRAIN, HEAD as ENTRY_HEAD, Position};
use super::manifest;
use super::open::End;
use super::replay::Window;
use super::segment::{HEAD, Segment};
use super::{Known, Log, Part, Read, location_of};
use crate::engine::limits::KEY_BYTES_MAX;
use crate::error::Error;
use crate::stats::Finding;
use everdram_pm::{Secret, Shelf};
use std::ops::Range;

/// Bytes of an entry up to the end of the longest key and the line behind it.
const CLAIM_BYTES: usize = ENTRY_HEAD + KEY_BYTES_MAX + 64;
/// Bytes that may be read again and again in search of entries, for each byte of a part: in damaged bytes,
/// any place may look like a long entry.
const SEARCH: u64 = 16;
/// What a part of the log may have held that is gone.
const UNKNOWN: &str =
    "so keys may be missing or show an earlier value, and what was removed may be there again";

/// What is wrong with an entry whose key can be read.
const UNSURE: &str =
    "an entry of the log does not verify, so the key that is read in it may be wrong";

/// Takes findings.
pub(crate) type Note<'a> = &'a mut dyn FnMut(Finding);

impl Log {
    /// Opens what is there of the log of a pool, to be read. Without what the pool knew, all of it counts.
    ///
    /// # Errors
    /// [`Error::Options`]: log and pool do not belong together, or one of them is an older copy.
    /// [`Error::Pool`].
    pub(crate) fn salvage(
        shelf: Shelf,
        secret: &Secret,
        incarnation: u64,
        segment_bytes: u64,
        known: Option<Known>,
        note: Note<'_>,
    ) -> Result<Log, Error> {
        let log = Log::new(shelf, secret, incarnation, segment_bytes);
        let mut numbers = match log.read_manifest() {
            Ok(Some(manifest)) => {
                if let Some(known) = known {
                    log.check_moment(&manifest, known)?;
                }
                manifest.segments
            }
            _ => {
                let numbers = log.segments_by_name()?;
                log.check_any(&numbers)?;
                let what = format!(
                    "the manifest is missing or damaged, and the names of the files say which segments there are: if one of \
                     them is missing, too, nobody knows, {UNKNOWN}"
                );
                note(log.finding(manifest::NAME, 0, what).stale());
                numbers
            }
        };
        let settled = known.map(|known| known.settled);
        if let Some(Position { segment, .. }) = settled {
            numbers.retain(|number| *number < segment);
            numbers.push(segment);
        }
        let last = numbers.last().copied();
        for number in numbers {
            let counts_to = match settled {
                Some(settled) if Some(number) == last => Some(settled.offset),
                // Nobody knows how far the last one counts.
                None if Some(number) == last => Some(u64::MAX),
                _ => None,
            };
            log.salvage_segment(number, counts_to, note)?;
        }
        Ok(log)
    }

    /// Numbers of the segments whose files are there, ascending.
    fn segments_by_name(&self) -> Result<Vec<u64>, Error> {
        let names = self.names()?;
        let numbers = names.iter();
        let mut numbers: Vec<u64> = numbers
            .filter_map(|name| manifest::segment_number(name))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// Refuses files of which none begins as a segment of this pool does.
    fn check_any(&self, numbers: &[u64]) -> Result<(), Error> {
        let is_ours = |number: &u64| {
            let file = self.shelf.open_to_read(&manifest::segment_name(*number));
            file.is_ok_and(|file| matches!(self.head_of(&file, *number), Ok(Some(_))))
        };
        match numbers.is_empty() || numbers.iter().any(is_ours) {
            true => Ok(()),
            false => Err(self.refused(
                "it holds the log of another pool: name the directory of this pool's log",
            )),
        }
    }

    fn finding(&self, name: &str, offset: u64, what: impl Into<String>) -> Finding {
        Finding {
            file: Some(self.shelf.path().join(name)),
            ..Finding::new(offset, what)
        }
    }

    /// Opens a segment. It counts up to an offset (`u64::MAX`: nobody knows which), or, as those do that
    /// others follow, up to its seal.
    fn salvage_segment(
        &self,
        number: u64,
        counts_to: Option<u64>,
        note: Note<'_>,
    ) -> Result<(), Error> {
        let name = manifest::segment_name(number);
        let finding = |offset, what: String| self.finding(&name, offset, what);
        if !self.names()?.contains(&name) {
            let what =
                format!("a segment is missing: other files do not say what was in it, {UNKNOWN}");
            note(finding(0, what).missing(1).stale());
            return Ok(());
        }
        let file = self.shelf.open_to_read(&name).map_err(Error::of_pool)?;
        let length = file.len().map_err(Error::of_pool)?;
        match self.head_of(&file, number) {
            Ok(Some(incarnation)) => self.check_incarnation(incarnation)?,
            _ => {
                let what = "the head of a segment does not verify; entries verify by themselves, so nothing is missing for it";
                note(Finding {
                    bytes: HEAD.min(length),
                    ..finding(0, what.into())
                });
            }
        }
        let end = match counts_to {
            Some(u64::MAX) => Some(length),
            Some(end) => (end <= length).then_some(end),
            None => match self.end_of(&file, number, length) {
                Ok(End::Sealed(end)) => Some(end),
                Ok(End::Blurred(end)) => {
                    let what =
                        "the seal of a segment does not verify, and nothing is missing for it";
                    note(finding(end, what.into()));
                    Some(end)
                }
                _ => None,
            },
        };
        let end = end.unwrap_or_else(|| {
            let what = format!(
                "the end of a segment is gone: other bytes do not say what was there, {UNKNOWN}"
            );
            note(finding(length, what).missing(1).stale());
            length
        });
        self.enter(number, file, end.max(HEAD)).map(drop)
    }

    /// As [`Log::load_part`], of a part that may be damaged anywhere.
    ///
    /// # Errors
    /// What `meet` returns; [`Error::Pool`].
    pub(crate) fn salvage_part(
        &self,
        part: &Part,
        meet: &mut dyn FnMut(Read<'_>) -> Result<(), Error>,
        note: Note<'_>,
    ) -> Result<(), Error> {
        let segment = self.numbered(part.segment);
        let mut meet_first = |read: Read<'_>| {
            if let Some(segment) = &segment {
                segment.note(&read);
            }
            meet(read)
        };
        self.check_part(part, &mut meet_first, note)
    }

    /// Meets the entries that verify, and notes what lies between them.
    ///
    /// # Errors
    /// What `meet` returns; [`Error::Pool`].
    pub(crate) fn check_part(
        &self,
        part: &Part,
        meet: &mut dyn FnMut(Read<'_>) -> Result<(), Error>,
        note: Note<'_>,
    ) -> Result<(), Error> {
        let Some(segment) = self.numbered(part.segment) else {
            return Ok(());
        };
        let mut window = Window::new(&segment, part.to);
        window.skips_unreadable = true;
        let mut budget = SEARCH * part.bytes();
        let mut at = part.from;
        while at < part.to {
            if let Some((entry, bytes)) = window.entry_at(&self.secret, at)? {
                let read = Read {
                    entry: &entry,
                    bytes,
                    location: location_of(segment.slot, at),
                };
                meet(read)?;
                at += entry.bytes;
                continue;
            }
            let next = self.next_sound(&mut window, at + GRAIN..part.to, &mut budget)?;
            self.note_lost(&segment, &mut window, at..next, note)?;
            at = next;
        }
        Ok(())
    }

    /// The first place in a range where an entry verifies, or its end.
    fn next_sound(
        &self,
        window: &mut Window<'_>,
        range: Range<u64>,
        budget: &mut u64,
    ) -> Result<u64, Error> {
        for at in range.clone().step_by(GRAIN as usize) {
            let Some(length) = entry::length(window.bytes_at(at, ENTRY_HEAD)?) else {
                continue;
            };
            if length as u64 > (range.end - at).min(*budget) {
                continue;
            }
            if window.entry_at(&self.secret, at)?.is_some() {
                return Ok(at);
            }
            *budget -= length as u64;
        }
        Ok(range.end)
    }

    /// Notes bytes that do not verify, as the entries that they claim to be: one after the other, as long as
    /// it is clear where the next one begins.
    fn note_lost(
        &self,
        segment: &Segment,
        window: &mut Window<'_>,
        range: Range<u64>,
        note: Note<'_>,
    ) -> Result<(), Error> {
        let name = manifest::segment_name(segment.number);
        let mut at = range.start;
        while at < range.end {
            let bytes = window.bytes_at(at, CLAIM_BYTES)?;
            let claim = entry::claim(bytes);
            let key = claim.key.filter(|key| key.len() <= KEY_BYTES_MAX);
            let Some(key) = key.and_then(|key| bytes.get(key)).map(<[u8]>::to_vec) else {
                break;
            };
            let mut end = None;
            for claimed in claim.bytes.into_iter().flatten().map(|bytes| at + bytes) {
                let is_next = claimed < range.end
                    && entry::length(window.bytes_at(claimed, ENTRY_HEAD)?).is_some();
                if claimed == range.end || is_next {
                    end = Some(claimed);
                    break;
                }
            }
            note(Finding {
                bytes: end.unwrap_or(range.end) - at,
                key: Some(key),
                ..self.finding(&name, at, UNSURE).missing(1)
            });
            at = match end {
                Some(end) => end,
                None => {
                    // Of the key and what is behind it.
                    let what = format!(
                        "bytes behind the head of an entry do not verify, and do not say what they were, {UNKNOWN}"
                    );
                    note(self.finding(&name, at, what).missing(1).stale());
                    range.end
                }
            };
        }
        if at < range.end {
            let what = format!(
                "bytes between entries do not verify, and do not say what they were, {UNKNOWN}"
            );
            note(Finding {
                bytes: range.end - at,
                ..self.finding(&name, at, what).missing(1).stale()
            });
        }
        Ok(())
    }
}

impl Finding {
    fn missing(self, records: u64) -> Finding {
        Finding {
            missing: records,
            ..self
        }
    }

    fn stale(self) -> Finding {
        Finding {
            stale: true,
            ..self
        }
    }
}
