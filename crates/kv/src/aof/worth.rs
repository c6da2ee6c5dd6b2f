//! Which segment is cleaned next, and whether one is.

use super::Log;
use super::segment::Segment;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Share of garbage from which a segment costs nothing to clean.
const NEARLY_ALL: f64 = 0.95;
/// Share of removals in the log from which the oldest segments are cleaned, whatever is in them.
const REMOVALS: f64 = 0.25;

/// When cleaning is worth it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Worth {
    /// As long as more than this share of the log's bytes is garbage.
    All(f64),
    /// As long as more than this share of a segment's bytes is garbage, or one of its entries has expired.
    Each(f64),
    /// For room on a full disk: as long as more than this share of a segment's bytes is garbage.
    Room(f64),
}

impl Log {
    /// The segment to clean at `now` (Unix milliseconds), of those before the end (number and offset),
    /// and how many of its bytes will be kept; `None`: it is not worth it. On a full disk only segments count
    /// whose kept bytes have room: where the one with most garbage has none, another makes some.
    pub(crate) fn worth_cleaning(
        &self,
        worth: Worth,
        now: u64,
        (before, offset): (u64, u64),
    ) -> Option<(u64, u64)> {
        let mut segments = self.segments();
        segments.retain(|segment| segment.number < before);
        let oldest = Arc::clone(segments.first()?);
        let garbage = |segment: &Segment| segment.garbage(now, segment.number == oldest.number);
        let kept = |segment: &Segment| segment.use_of().0.saturating_sub(garbage(segment));
        if let Worth::Room(_) = worth {
            // The spare is for a segment whose own room makes up for it: otherwise it would be gone.
            let (rest, room) = (
                self.segment_bytes.saturating_sub(offset),
                self.room_to_clean(offset),
            );
            // And what is kept may be a little more than is known.
            let most = self.segment_bytes / 16 * 15;
            let is_full = |segment: &Segment| segment.use_of().0 >= self.segment_bytes;
            segments.retain(|one| kept(one) <= rest || is_full(one) && kept(one) <= room.min(most));
        }
        // What a refused batch leaves is a segment without entries, which is all garbage.
        let share = |segment: &Segment| match segment.use_of().0 {
            0 => 1.0,
            bytes => garbage(segment) as f64 / bytes as f64,
        };
        // Of equals, the oldest.
        let by_share =
            |one: &&Arc<Segment>, other: &&Arc<Segment>| share(one).total_cmp(&share(other));
        let worst = segments.iter().rev().max_by(by_share)?;
        let chosen = match worth {
            Worth::Each(least) => {
                let expired = segments.iter().find(|segment| segment.has_expired(now));
                let worst = (share(worst) > least).then_some(worst);
                expired.or(worst)?
            }
            Worth::Room(least) => (share(worst) > least).then_some(worst)?,
            Worth::All(least) => {
                let sum = |of: &dyn Fn(&Segment) -> u64| -> f64 {
                    segments.iter().map(|segment| of(segment)).sum::<u64>() as f64
                };
                let removals = sum(&|segment| segment.removals.load(Ordering::Relaxed));
                let bytes = sum(&|segment| segment.use_of().0);
                if removals > bytes * REMOVALS {
                    // They can go once nothing is left that is older.
                    &oldest
                } else {
                    let is_worth_it = sum(&garbage) > bytes * least || share(worst) > NEARLY_ALL;
                    is_worth_it.then_some(worst)?
                }
            }
        };
        Some((chosen.number, kept(chosen)))
    }

    /// Whether no segment is older.
    pub(crate) fn is_oldest(&self, number: u64) -> bool {
        self.segments()
            .first()
            .is_some_and(|segment| segment.number == number)
    }
}
