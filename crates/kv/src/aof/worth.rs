//! Which segment is cleaned next, and whether one is.

use super::Log;
use super::segment::{SEAL, Segment};
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

/// A segment that is to be cleaned.
pub(crate) struct Dirty {
    pub(crate) number: u64,
    /// Its length.
    pub(crate) bytes: u64,
}

impl Log {
    /// The segment to clean at `now` (Unix milliseconds), of those before number `before`; `None`: it is not
    /// worth it. On a full disk only segments count whose cleaning makes room: where that of the one with
    /// most garbage makes none, another one's may. The end of the log has room for `rest` bytes more. None of
    /// `but` is chosen.
    pub(crate) fn worth_cleaning(
        &self,
        worth: Worth,
        now: u64,
        before: u64,
        rest: u64,
        but: &[u64],
    ) -> Option<Dirty> {
        let mut segments = self.segments();
        segments.retain(|segment| segment.number < before);
        let oldest = Arc::clone(segments.first()?);
        segments.retain(|segment| !but.contains(&segment.number));
        let garbage = |segment: &Segment| segment.garbage(now, segment.number == oldest.number);
        let kept = |segment: &Segment| segment.use_of().0.saturating_sub(garbage(segment));
        let bytes = |one: &Segment| one.bytes.load(Ordering::Relaxed) + SEAL;
        if self.is_short() {
            segments.retain(|one| self.makes_room(bytes(one), kept(one), rest));
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
        Some(Dirty {
            number: chosen.number,
            bytes: bytes(chosen),
        })
    }

    /// Whether no segment is older.
    pub(crate) fn is_oldest(&self, number: u64) -> bool {
        self.segments()
            .first()
            .is_some_and(|segment| segment.number == number)
    }
}
