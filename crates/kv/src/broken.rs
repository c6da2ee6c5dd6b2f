//! Deliberately broken variants of the engine: what the crash lab has to notice (feature `broken`).
//!
//! Each [`Hole`] takes out one thing that closes a hole of the published design (`docs/engines.md`, "Holes"),
//! and nothing else. A store opened with `Options::broken` loses data when it crashes, or earlier; without
//! the feature the option is not there, and the engine is never broken.

#[cfg(feature = "broken")]
use crate::engine::kind::EngineKind;

/// One hole, by its number in `docs/engines.md`, and what is left out to open it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(feature = "broken"),
    allow(unreachable_pub, reason = "public with the feature")
)]
pub enum Hole {
    /// Recovery does not mark losers dead, the greater position wins instead of the higher version, and a
    /// dead record says nothing about older ones.
    V1,
    /// Compaction copies a record without its key's lock, and puts the copy over whatever the index has by
    /// then.
    V2,
    /// Deletes and updates act on what they found before they had the key's lock, and do not look again.
    V3,
    /// Recovery believes a persistent count of used blocks, which is raised after a block was handed out.
    V4,
    /// A page's lock lies in its header: it is persisted when it is taken, not when it is given back, and
    /// recovery believes it.
    V5,
    /// Records go through the cache and are flushed in steps of a line from their own, unaligned offset: the
    /// line that holds the end of one may be missed.
    V7,
    /// A compacted block begins its next life under the same epoch: what the earlier life left verifies.
    V10,
    /// Index entries are changed before the fence that covers their records.
    V12,
    /// A compacted block is free at once: without a durable free page word, and whoever still reads in it.
    V14,
    /// A pass moves the heads of the logs one after the other, each durably, instead of all at once.
    B1,
    /// Recovery replays one log after the other, and a later record counts whatever its LSN is.
    B2,
    /// A gleaner passes over a record whose key lies in a row that another gleaner has locked.
    B3,
    /// Recovery does not ask an object's LSN which changes it has already.
    B4,
    /// A removal that recovery replays leaves nothing in front that says up to which LSN the key is gone.
    B5,
    /// The front shows a write before the fence that covers its record.
    B6,
    /// A removed key's node leaves the front at once, not when the back has the removal; and eviction does
    /// not ask whether the back has what it takes out.
    B7,
    /// The check of a log entry does not cover its lap, and recovery does not look at epochs.
    B8,
    /// A transaction's record is retired before the words that it changes are durable.
    B12,
    /// A batch is an entry for each of its keys.
    B13,
}

/// Which hole a store was opened with, for its engine to ask. Without the feature there is none, and asking
/// is a constant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Opened {
    #[cfg(feature = "broken")]
    hole: Option<Hole>,
}

impl Opened {
    #[cfg(feature = "broken")]
    pub(crate) fn by(options: &crate::Options) -> Opened {
        Opened {
            hole: options.broken,
        }
    }

    #[cfg(not(feature = "broken"))]
    pub(crate) fn by(_options: &crate::Options) -> Opened {
        Opened {}
    }

    /// Whether it is this one.
    #[cfg(feature = "broken")]
    pub(crate) fn is(self, hole: Hole) -> bool {
        self.hole == Some(hole)
    }

    /// Whether it is this one: never.
    #[cfg(not(feature = "broken"))]
    #[inline(always)]
    pub(crate) const fn is(self, _hole: Hole) -> bool {
        false
    }
}

#[cfg(feature = "broken")]
impl Hole {
    /// Every hole there is.
    pub const ALL: [Hole; 19] = [
        Hole::V1,
        Hole::V2,
        Hole::V3,
        Hole::V4,
        Hole::V5,
        Hole::V7,
        Hole::V10,
        Hole::V12,
        Hole::V14,
        Hole::B1,
        Hole::B2,
        Hole::B3,
        Hole::B4,
        Hole::B5,
        Hole::B6,
        Hole::B7,
        Hole::B8,
        Hole::B12,
        Hole::B13,
    ];

    /// The engine that has it.
    #[must_use]
    pub fn engine(self) -> EngineKind {
        match self.to_string().starts_with('B') {
            true => EngineKind::Bullet,
            false => EngineKind::Viper,
        }
    }
}

#[cfg(feature = "broken")]
impl std::fmt::Display for Hole {
    fn fmt(&self, into: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(into, "{self:?}")
    }
}

#[cfg(feature = "broken")]
impl std::str::FromStr for Hole {
    type Err = String;
    fn from_str(name: &str) -> Result<Hole, String> {
        Hole::ALL
            .into_iter()
            .find(|hole| hole.to_string() == name)
            .ok_or_else(|| {
                let known = Hole::ALL.map(|hole| hole.to_string()).join(", ");
                format!("hole `{name}`: there are {known}")
            })
    }
}

#[cfg(all(test, feature = "broken"))]
mod tests {
    use super::Hole;

    #[test]
    fn each_hole_has_a_name_of_its_own() {
        for hole in Hole::ALL {
            assert_eq!(hole.to_string().parse(), Ok(hole));
        }
        assert!("V6".parse::<Hole>().is_err_and(|why| why.contains("B13")));
    }
}
