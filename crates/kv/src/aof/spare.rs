//! The spare: disk room for one more segment, which only cleaning may use.
//!
//! Cleaning writes what still counts of a segment again before the segment goes, so a full disk would keep
//! its garbage for ever. The spare is an empty file with room reserved. Who needs room to clean unlinks it,
//! and takes the room of the segment that went for the next spare. A log that found no room is *short*. While
//! it is, and has no spare, nothing else may be appended to it: that would take the room that makes more.
//!
//! Where a file system cannot reserve room, the spare has none.

use super::Log;
use crate::error::Error;
use std::sync::atomic::Ordering;

/// The name of the file.
pub(super) const NAME: &str = "everdram.aof.spare";

impl Log {
    /// Whether the disk had no room when a segment was to begin, and none has begun since.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Notes whether a segment could begin.
    pub(crate) fn note_begun(&self, begun: &Result<(), Error>) {
        match begun {
            Err(Error::NoSpace(_)) => self.short.store(true, Ordering::Relaxed),
            // Not with the room of the spare.
            Ok(()) if self.has_spare.load(Ordering::Relaxed) => {
                self.short.store(false, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Takes room for a spare, unless the log has one.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: the log is short from here on. [`Error::Pool`].
    pub(crate) fn keep_spare(&self) -> Result<(), Error> {
        if self.has_spare.load(Ordering::Relaxed) {
            return Ok(());
        }
        let is_there = self.names()?.iter().any(|name| name == NAME);
        let file = match is_there {
            true => self.shelf.open_file(NAME),
            false => self.shelf.create(NAME),
        };
        let reserved = file.and_then(|file| file.reserve(self.segment_bytes));
        let reserved = reserved.map_err(Error::of_pool);
        self.has_spare.store(reserved.is_ok(), Ordering::Relaxed);
        if reserved.is_err() {
            self.note_begun(&reserved);
            // A part of the room is of no use to anybody.
            let _ = self.shelf.unlink(NAME);
        }
        reserved
    }

    /// Gives the room of the spare to the disk; `false`: there is none.
    fn give_spare(&self) -> Result<bool, Error> {
        self.has_spare.store(false, Ordering::Relaxed);
        self.short.store(true, Ordering::Relaxed);
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

    /// Bytes that cleaning may append behind an end at `offset` of the last segment without more disk room
    /// than the log has.
    pub(crate) fn room_to_clean(&self, offset: u64) -> u64 {
        let rest = self.segment_bytes.saturating_sub(offset);
        match self.is_short() && !self.has_spare.load(Ordering::Relaxed) {
            true => rest,
            false => u64::MAX,
        }
    }
}
