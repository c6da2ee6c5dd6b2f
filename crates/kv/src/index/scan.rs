//! Walks through the index in the order of hashes.
//!
//! A cursor is a hash: everything below it has been visited. It always falls between two home buckets. So
//! entries with equal known bits are never separated, and the cursor keeps its meaning after any growth.
//! Within a segment the walk reads the pages it found at first; an entry that exists all the time is in them,
//! whatever happens to the segment.

use super::entry::{BUCKET_ENTRIES, Entry, Location};
use super::hash::KeyHash;
use super::line::Segment;
use super::shape::PAGE_BUCKETS;
use super::shape::PAGES_MAX;
use super::{Index, PROBE_BUCKETS};
use crate::concurrency::epoch::Pin;

/// Random draws before a walk to the next entry replaces them.
const DRAWS: u32 = 256;

impl Index {
    /// Visits entries from `cursor` (0 = the start) on, at least `count` if as many remain, and returns the
    /// next cursor (0 = done). Entries that exist during a whole iteration are visited at least once, however
    /// the index grows. Entries that come or go, or whose segment grows, may be visited twice.
    pub(crate) fn scan(
        &self,
        cursor: u64,
        count: usize,
        pin: &Pin<'_>,
        visit: &mut dyn FnMut(Location),
    ) -> u64 {
        debug_assert!(pin.is_of(&self.epochs));
        let mut visited = 0;
        let mut at = Some(cursor);
        while let Some(hash) = at.map(KeyHash)
            && visited < count.max(1)
        {
            at = self.scan_segment(hash, count.max(1), &mut visited, visit);
        }
        at.unwrap_or(0)
    }

    /// Visits from `from` to the end of its segment, or to the end of the bucket that reaches `count`.
    fn scan_segment(
        &self,
        from: KeyHash,
        count: usize,
        visited: &mut usize,
        visit: &mut dyn FnMut(Location),
    ) -> Option<u64> {
        let segment = self.line(from).segment();
        let shape = segment.shape;
        let mut home = shape.home(shape.tag(from));
        while home < shape.buckets() && *visited < count {
            self.visit_home(&segment, home, &mut |location| {
                *visited += 1;
                visit(location);
            });
            home += 1;
        }
        shape.hash_of_home(from, home)
    }

    /// Visits the entries whose home is this bucket.
    fn visit_home(&self, segment: &Segment, home: u32, visit: &mut dyn FnMut(Location)) {
        let buckets = segment.shape.buckets();
        for step in 0..PROBE_BUCKETS {
            let (entries, more) = self.bucket_of(segment, (home + step) % buckets);
            for entry in entries {
                if let Some(location) = entry.location()
                    && segment.shape.home(entry.tag()) == home
                {
                    visit(location);
                }
            }
            if !more {
                return;
            }
        }
    }

    fn bucket_of(&self, segment: &Segment, number: u32) -> ([Entry; BUCKET_ENTRIES], bool) {
        let page = segment
            .pages
            .as_slice()
            .get((number / PAGE_BUCKETS) as usize);
        match page.map(|page| self.arena.bucket(*page, number)) {
            Some(bucket) => (bucket.entries(), bucket.has_more()),
            None => unreachable!(
                "bucket {number} of a segment of {} pages",
                segment.shape.pages
            ),
        }
    }

    /// A random entry, each with nearly the same probability; `None` if the index is empty.
    pub(crate) fn random(&self, seed: u64, pin: &Pin<'_>) -> Option<Location> {
        let mut state = seed;
        for _ in 0..DRAWS {
            if let Some(location) = self.draw(next_random(&mut state), next_random(&mut state)) {
                return Some(location);
            }
        }
        // Nearly empty: take the next entry.
        let start = next_random(&mut state);
        let mut found = None;
        for cursor in [start, 0] {
            self.scan(cursor, 1, pin, &mut |location| {
                found = found.or(Some(location))
            });
            if found.is_some() {
                break;
            }
        }
        found
    }

    /// Draws a slot, each with the same probability; `None` if it is empty.
    fn draw(&self, hash: u64, choice: u64) -> Option<Location> {
        let segment = self.line(KeyHash(hash)).segment();
        // A hash finds a segment by its share of all hashes, not by its pages. To even that out, some draws
        // of small and of shallow segments are rejected.
        let spread = self
            .directory
            .depth()
            .saturating_sub(segment.shape.depth)
            .min(28);
        let (keep, place) = (choice >> 32, choice & u64::from(u32::MAX));
        let scaled = (keep * ((PAGES_MAX as u64) << spread)) >> 32;
        let kept = scaled < u64::from(segment.shape.pages);
        if kept {
            self.slot(&segment, place)
        } else {
            None
        }
    }

    /// The slot at a share of the segment, given as a 32-bit fraction.
    fn slot(&self, segment: &Segment, place: u64) -> Option<Location> {
        let slots = segment.shape.buckets() as usize * BUCKET_ENTRIES;
        let slot = ((place * slots as u64) >> 32) as usize;
        let (entries, _) = self.bucket_of(segment, (slot / BUCKET_ENTRIES) as u32);
        entries
            .get(slot % BUCKET_ENTRIES)
            .and_then(|entry| entry.location())
    }
}

/// A step of SplitMix64.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
