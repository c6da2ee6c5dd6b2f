//! One search through the index, candidate by candidate.
//!
//! The words of a bucket are loaded once, for all tags. A candidate's word is loaded again at its turn, and
//! offered if it still has the tag. So an entry that exists during the whole search is offered, with its
//! location at that moment.

use super::entry::Bucket;
use super::hash::KeyHash;
use super::line::Home;
use super::line::Line;
use super::{Index, Location, PROBE_BUCKETS};
use everdram_pm::Matches;

/// See [`Index::candidates`].
pub(crate) struct Candidates<'a> {
    index: &'a Index,
    hash: KeyHash,
    line: Line<'a>,
    /// The current bucket.
    bucket: Bucket<'a>,
    step: u32,
    /// Its slots still to be offered.
    slots: Matches,
    home: Home,
}

/// The first candidate in its home bucket; `Some(None)` if there is none at all. `None` decides nothing: the
/// search is longer.
#[inline(always)]
pub(super) fn first(index: &Index, hash: KeyHash) -> Option<Option<Location>> {
    let home = index.line(hash).home_at_once(hash)?;
    let bucket = Bucket(index.arena.line(home.line()));
    match bucket.tagged(home.tag).first() {
        Some(slot) => {
            let entry = bucket.entry(slot);
            let location = entry.location()?;
            (entry.tag() == home.tag).then_some(Some(location))
        }
        None => (!bucket.has_more()).then_some(None),
    }
}

impl<'a> Candidates<'a> {
    #[inline(always)]
    pub(super) fn new(index: &'a Index, hash: KeyHash) -> Candidates<'a> {
        let line = index.line(hash);
        let home = line.home(hash);
        let bucket = Bucket(index.arena.line(home.line()));
        Candidates {
            index,
            hash,
            line,
            bucket,
            step: 0,
            slots: bucket.tagged(home.tag),
            home,
        }
    }

    /// Goes to the next bucket, or back to the start if the segment has just been rebuilt; `false` at the
    /// end.
    #[cold]
    fn advance(&mut self) -> bool {
        self.step += 1;
        if self.step >= PROBE_BUCKETS {
            return false;
        }
        match self.index.line_of(self.line, &self.home, self.step) {
            Some(line) => {
                self.bucket = Bucket(self.index.arena.line(line));
                self.slots = self.bucket.tagged(self.home.tag);
            }
            None => *self = Candidates::new(self.index, self.hash),
        }
        true
    }
}

impl Iterator for Candidates<'_> {
    type Item = Location;

    #[inline]
    fn next(&mut self) -> Option<Location> {
        loop {
            for slot in self.slots.by_ref() {
                let entry = self.bucket.entry(slot);
                // An empty slot looks like tag 0.
                if entry.tag() == self.home.tag
                    && let Some(location) = entry.location()
                {
                    return Some(location);
                }
            }
            if !self.bucket.has_more() || !self.advance() {
                return None;
            }
        }
    }
}
