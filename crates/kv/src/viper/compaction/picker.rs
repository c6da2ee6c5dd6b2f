//! The choice of blocks to compact. Compaction costs what it has to move, so the blocks with the most garbage
//! come first.

use crate::concurrency::seam::few;
use crate::viper::block_table::State;
use crate::viper::space::Space;

/// The goal of compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::viper) enum Goal {
    /// Every block whose own share of garbage is over the threshold.
    Threshold,
    /// Room for writers, as long as the pool as a whole has more garbage than the threshold allows.
    Room,
    /// As little garbage as is worth moving records for, in quiet times.
    Dense,
    /// Room for writers, with records leaving to the tier below.
    Evict,
}

/// Share of garbage from which a block is compacted in quiet times.
const DENSE: f64 = 1.0 / 16.0;
/// A generation for [`Goal::Room`] has this fraction of the pool's blocks. Blocks that wait meanwhile collect
/// more garbage, so fewer of them need compaction.
const GENERATION: usize = 64;

/// Room of a pool, in bytes for records.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::viper) struct Room {
    all: u64,
    /// The bytes of `all` that are free or garbage.
    unused: u64,
}

impl Room {
    /// Whether more than `share` of it is unused.
    fn is_over(self, share: f64) -> bool {
        self.unused as f64 > self.all as f64 * share
    }

    /// Bytes of growth until `share` of the pool is unused.
    fn until(self, share: f64) -> u64 {
        ((self.all as f64 * share - self.unused as f64) / (1.0 - share).max(0.01)).max(0.0) as u64
    }
}

/// The pool's room, and its sealed blocks with at least the share `least` of garbage, as (garbage, block).
/// The garbage of spared blocks is not looked at.
fn survey(space: &Space, least: f64, spared: impl Fn(u32) -> bool) -> (Room, Vec<(u32, u32)>) {
    let mut found: Vec<(u32, u32)> = Vec::new();
    let mut room = Room::default();
    for block in space.blocks.all() {
        let Some(entry) = space.blocks.get(block) else {
            continue;
        };
        let info = entry.info();
        let pages = space.geometry.pages_of(info.kind);
        let bytes = pages.room() * pages.count;
        if info.state != State::Outside {
            room.all += bytes;
        }
        match info.state {
            State::Free => room.unused += bytes,
            State::Sealed if !spared(block) => {
                let garbage = entry.garbage();
                room.unused += u64::from(garbage);
                if f64::from(garbage) >= bytes as f64 * least {
                    found.push((garbage, block));
                }
            }
            _ => {}
        }
    }
    (room, found)
}

/// Blocks to compact for `goal`, none of them spared, the one with the most garbage last.
pub(in crate::viper) fn victims(
    space: &Space,
    goal: Goal,
    threshold: f64,
    spared: impl Fn(u32) -> bool,
) -> Vec<u32> {
    let least = match goal {
        Goal::Threshold => threshold,
        Goal::Room | Goal::Dense | Goal::Evict => threshold.min(DENSE),
    };
    let (room, mut found) = survey(space, least, spared);
    if goal == Goal::Room {
        if !room.is_over(threshold) {
            return Vec::new();
        }
        let count = (space.blocks.total() as usize / GENERATION).max(few!(GENERATION));
        if count < found.len() {
            found.select_nth_unstable_by(count, |one, other| other.cmp(one));
            found.truncate(count);
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, block)| block).collect()
}

/// Blocks of a generation for [`Goal::Evict`].
pub(in crate::viper) fn evicted_at_once(space: &Space) -> usize {
    let total = space.blocks.total() as usize;
    (total / GENERATION)
        .max(few!(GENERATION))
        .min(total / 4)
        .max(1)
}

/// Blocks by which the pool may grow before its unused room exceeds the threshold. At least a few, so that
/// the pool still grows where compaction cannot make room.
pub(in crate::viper) fn growth(space: &Space, threshold: f64) -> u64 {
    let step = space.blocks.step();
    let (room, _) = survey(space, 1.0, |_| false);
    let blocks = room.until(threshold) / space.geometry.block_bytes;
    blocks.clamp((step / 8).max(1), step)
}
