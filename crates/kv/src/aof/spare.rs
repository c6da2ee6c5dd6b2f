//! The spare: disk room for one more segment, which only cleaning may use.
//!
//! Cleaning writes what still counts of a segment again before the segment goes, so a full disk would keep
//! its garbage for ever. The spare is an empty file with room reserved for a segment and for the manifest
//! that names it. Who needs room to clean unlinks it, and takes the room of the segment that went for the
//! next spare. A log that found no room is *short*. While it is, and has no spare, nothing else may be
//! appended to it: that would take the room that makes more.
//!
//! Where a file system cannot reserve room, the spare has none.

use super::Log;
use super::segment::{HEAD, SEAL};
use crate::error::Error;
use std::sync::atomic::Ordering;

/// The name of the file.
pub(super) const NAME: &str = "everdram.aof.spare";
/// Bytes in which a file system gives room.
const PAGE: u64 = 4096;
/// Pages that a new segment, its manifest and the seal of the last one may take beside their bytes.
const PAGES_MORE: u64 = 4;
/// Bytes of a manifest for each segment, at most.
const LINE: u64 = 64;

/// Whether `kept` bytes find room at the end of the log, which has room for `rest` more, beside a seal.
pub(crate) fn has_room(kept: u64, rest: u64) -> bool {
    kept == 0 || kept + SEAL <= rest
}

impl Log {
    /// Whether the disk had no room for something, and no segment for what leaves the pool has begun since.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Notes that something could not be appended since the disk had no room.
    pub(crate) fn note_short(&self) {
        self.short.store(true, Ordering::Relaxed);
    }

    /// Notes whether a segment could begin.
    pub(crate) fn note_begun(&self, begun: &Result<(), Error>) {
        match begun {
            Err(Error::NoSpace(_)) => self.note_short(),
            // Not with the room of the spare.
            Ok(()) if self.has_spare() => {
                self.short.store(false, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Takes room for a spare, unless the log has one.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: the log is short from here on; it may have a spare for a shorter manifest. Cleaning
    /// works with that. [`Error::Pool`].
    pub(crate) fn keep_spare(&self) -> Result<(), Error> {
        let least = self.segment_bytes.next_multiple_of(PAGE) + PAGES_MORE * PAGE;
        let bytes = least + self.manifest_bytes();
        if self.spare.load(Ordering::Relaxed) >= bytes {
            return Ok(());
        }
        let is_there = self.names()?.iter().any(|name| name == NAME);
        let file = match is_there {
            true => self.shelf.open_file(NAME),
            false => self.shelf.create(NAME),
        };
        let reserve = |bytes| -> Result<(), Error> {
            let file = file
                .as_ref()
                .map_err(|error| Error::of_pool(error.clone()))?;
            file.reserve(bytes).map_err(Error::of_pool)?;
            self.spare.store(bytes, Ordering::Relaxed);
            Ok(())
        };
        let reserved = reserve(bytes);
        if reserved.is_err() {
            self.note_begun(&reserved);
            if reserve(least).is_err() {
                // A part of the room is of no use to anybody.
                self.spare.store(0, Ordering::Relaxed);
                let _ = self.shelf.unlink(NAME);
            }
        }
        reserved
    }

    /// Room for a manifest of so many segments as there are.
    fn manifest_bytes(&self) -> u64 {
        let segments = self.table.read().iter().flatten().count() as u64;
        (segments * LINE).next_multiple_of(PAGE)
    }

    /// Whether the log has a spare, if only for a shorter manifest.
    pub(crate) fn has_spare(&self) -> bool {
        self.spare.load(Ordering::Relaxed) > 0
    }

    /// Gives the room of the spare to the disk; `false`: there is none.
    fn give_spare(&self) -> Result<bool, Error> {
        self.spare.store(0, Ordering::Relaxed);
        self.note_short();
        let is_there = self.names()?.iter().any(|name| name == NAME);
        if is_there {
            self.shelf.unlink(NAME).map_err(Error::of_pool)?;
        }
        Ok(is_there)
    }

    /// Does what cleaning needs, and does it again with the room of the spare if there is no other.
    ///
    /// # Errors
    /// Those of the work.
    pub(crate) fn with_spare<T>(
        &self,
        mut work: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match work() {
            Err(error @ Error::NoSpace(_)) => match self.give_spare()? {
                true => work(),
                false => Err(error),
            },
            other => other,
        }
    }

    /// Whether cleaning a segment of so many bytes, of which `kept` are written again, makes room. The end of
    /// the log has room for `rest` bytes more.
    pub(crate) fn makes_room(&self, bytes: u64, kept: u64, rest: u64) -> bool {
        let begun = HEAD + kept + SEAL;
        // A segment begins for what is kept, with the room of the spare; that of the cleaned one is the next.
        let makes_a_spare = begun <= self.segment_bytes
            && begun.next_multiple_of(PAGE) + PAGE <= bytes.next_multiple_of(PAGE);
        has_room(kept, rest) || makes_a_spare
    }

    /// Bytes that a segment takes from the disk when it begins: `kept`, all that it is to have, if given.
    pub(super) fn begun_bytes(&self, kept: Option<u64>) -> u64 {
        kept.map_or(self.segment_bytes, |kept| {
            (HEAD + kept + SEAL).min(self.segment_bytes)
        })
    }
}
