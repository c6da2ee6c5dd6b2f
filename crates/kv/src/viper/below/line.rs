//! What the pool knows of its log: a line of the root page, and its copy in another sector. The copy is
//! written when the line is durable, so of those that verify the one with the higher number counts: a
//! crash may tear one of them, and later damage of one shows the same in the other.
//!
//! ```text
//! | number | settled: segment, offset | generation | clock | check | freed: segment, offset |     8 bytes each
//! ```

use crate::aof::{Known, NUMBER_END, Position};
use crate::viper::recovery::scan::VERSION_SOUND;
use everdram_pm::{LINE, Lane, Ordered, ROOT_AT, ROOT_BYTES, Region, Secret};

/// Offsets of the line, behind those that name checkpoints of the index, and of its copy.
pub(super) const LINES_AT: [u64; 2] = [ROOT_AT + 4 * LINE, ROOT_AT + 2048];
const SALT: u64 = 0x74_6c;

const _: () = {
    assert!(LINES_AT[0].is_multiple_of(LINE) && LINES_AT[1].is_multiple_of(LINE));
    assert!(LINES_AT[0] / 512 != LINES_AT[1] / 512);
    assert!(LINES_AT[1] + LINE <= ROOT_AT + ROOT_BYTES && LINE == 8 * 8);
};

/// See the module text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TierLine {
    number: u64,
    pub(super) known: Known,
    /// Of what the log has before this position, the pool has no live record any more.
    pub(super) freed: Position,
    /// No entry of the log has a greater version.
    pub(super) clock: u64,
}

impl TierLine {
    fn to_words(self, secret: &Secret) -> [u64; 8] {
        let Known {
            settled,
            generation,
        } = self.known;
        let first = secret.sum_words([SALT, self.number, settled.segment]);
        let second = secret.sum_words([first, settled.offset, generation]);
        let Position { segment, offset } = self.freed;
        let third = secret.sum_words([second, self.clock, segment]);
        let check = secret.sum_words([third, offset, 0]);
        [
            self.number,
            settled.segment,
            settled.offset,
            generation,
            self.clock,
            check,
            segment,
            offset,
        ]
    }

    /// Whether the store may have written it.
    fn is_sound(&self) -> bool {
        let Known {
            settled,
            generation,
        } = self.known;
        let is_counted = self.number < NUMBER_END && generation < NUMBER_END;
        let has_places = settled.is_sound() && self.freed.is_sound() && self.freed <= settled;
        is_counted && has_places && self.clock <= VERSION_SOUND
    }

    /// The line that counts; `None`: the pool has none yet.
    pub(super) fn read(secret: &Secret, region: &Region) -> Option<TierLine> {
        let read = |at: u64| {
            let word = |index: u64| region.load_word(at + 8 * index);
            let line = TierLine {
                number: word(0),
                known: Known {
                    settled: Position {
                        segment: word(1),
                        offset: word(2),
                    },
                    generation: word(3),
                },
                freed: Position {
                    segment: word(6),
                    offset: word(7),
                },
                clock: word(4),
            };
            let is_whole = line.number != 0 && line.to_words(secret)[5] == word(5);
            (is_whole && line.is_sound()).then_some(line)
        };
        LINES_AT
            .into_iter()
            .filter_map(read)
            .max_by_key(|line| line.number)
    }

    /// Whether the pool never had a line, but for one that a crash tore.
    pub(super) fn is_new(region: &Region) -> bool {
        let is_blank = |at: u64| (0..LINE / 8).all(|index| region.load_word(at + 8 * index) == 0);
        LINES_AT.into_iter().any(is_blank)
    }

    /// Makes the line that was found durable, since a killed process may have left it in a cache, and then
    /// its copy the same. Only then may anything rely on it.
    pub(super) fn adopt(self, lane: &mut Lane) {
        let mut found = LINES_AT.map(|at| lane.flush_found(at, LINE)).into_iter();
        if let (Some(first), Some(copy)) = (found.next(), found.next()) {
            let _ordered = lane.fence(first.and(copy));
        }
        let words = self.to_words(lane.pool().secret());
        for at in LINES_AT {
            let is_same = (0..)
                .zip(words)
                .all(|(index, word)| lane.pool().region().load_word(at + 8 * index) == word);
            if !is_same {
                let dirty = lane.store(at, words.map(u64::to_le_bytes).as_flattened());
                let flushed = lane.flush(dirty);
                let _ordered = lane.fence(flushed);
            }
        }
    }

    /// Writes the next line, with these contents, and its copy, and fences each.
    pub(super) fn advance(
        &mut self,
        lane: &mut Lane,
        known: Known,
        freed: Position,
        clock: u64,
    ) -> Ordered {
        assert!(
            known.settled >= self.known.settled && known.generation >= self.known.generation,
            "the log becomes shorter than the pool knows it"
        );
        assert!(
            self.freed <= freed && freed <= known.settled,
            "blocks are freed whose records the log does not have"
        );
        *self = TierLine {
            number: self.number + 1,
            known,
            freed,
            clock: clock.max(self.clock),
        };
        let bytes = self.to_words(lane.pool().secret()).map(u64::to_le_bytes);
        let [first, copy] = LINES_AT.map(|at| {
            let dirty = lane.store(at, bytes.as_flattened());
            let flushed = lane.flush(dirty);
            lane.fence(flushed)
        });
        debug_assert!(
            first.lsn() <= copy.lsn(),
            "the copy of a line comes before it"
        );
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_a_forger_writes_is_no_line() {
        let at = |segment, offset| Position { segment, offset };
        let line = |settled, freed| TierLine {
            number: 1,
            known: Known {
                settled,
                generation: 1,
            },
            freed,
            clock: 1,
        };
        let sound = line(at(3, 96), at(2, 80));
        assert!(sound.is_sound() && line(at(1, 80), at(1, 80)).is_sound());
        let freed_too_far = line(at(3, 96), at(3, 112));
        let in_the_head = [line(at(3, 64), at(2, 80)), line(at(3, 96), at(3, 0))];
        let endless = [
            line(at(3, u64::MAX), at(2, 80)),
            line(at(u64::MAX, 96), at(2, 80)),
        ];
        let mut late = [sound; 3];
        late[0].number = u64::MAX;
        late[1].known.generation = u64::MAX;
        late[2].clock = u64::MAX;
        let all = [[freed_too_far].as_slice(), &in_the_head, &endless, &late].concat();
        for forged in all {
            assert!(!forged.is_sound(), "{forged:?}");
        }
    }
}
