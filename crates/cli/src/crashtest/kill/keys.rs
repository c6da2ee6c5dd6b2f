//! The keys of a campaign: their number, what each holds, and which connection writes it.
//!
//! All of this follows from the number of connections, so an expected-state file names keys by number only.

use crate::killing::keys::{self, Kind};
use std::borrow::Cow;

/// Documents of each connection; the first [`HOT`] get most of the writes.
const DOCUMENTS: usize = 120;
/// Documents that are overwritten often, so that blocks fill with garbage.
const HOT: usize = 8;
/// Documents of each connection whose values may be far larger than a block.
const LARGE: usize = 2;
/// Counters of each connection.
const COUNTERS: usize = 6;
/// Batches of each connection, half of them written by MULTI/EXEC, half by MSET.
const BATCHES: usize = 8;
/// Keys of each connection.
const EACH: usize = DOCUMENTS + LARGE + COUNTERS + BATCHES;

/// The keys of a campaign with this many connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) connections: usize,
}

impl Keys {
    /// A document of `connection`, most likely a hot one.
    pub(crate) fn document(self, connection: usize, random: usize) -> usize {
        let count = if random.is_multiple_of(8) {
            DOCUMENTS
        } else {
            HOT
        };
        connection * EACH + random / 8 % count
    }

    pub(crate) fn large(self, connection: usize, random: usize) -> usize {
        connection * EACH + DOCUMENTS + random % LARGE
    }

    pub(crate) fn counter(self, connection: usize, random: usize) -> usize {
        connection * EACH + DOCUMENTS + LARGE + random % COUNTERS
    }

    pub(crate) fn batch(self, connection: usize, random: usize) -> usize {
        connection * EACH + DOCUMENTS + LARGE + COUNTERS + random % BATCHES
    }
}

impl keys::Keys for Keys {
    fn connections(&self) -> usize {
        self.connections
    }

    fn len(&self) -> usize {
        self.connections * EACH
    }

    fn kind(&self, key: usize) -> Kind {
        match key % EACH {
            0..DOCUMENTS => Kind::Document,
            local if local < DOCUMENTS + LARGE => Kind::Large,
            local if local < DOCUMENTS + LARGE + COUNTERS => Kind::Counter,
            local if local.is_multiple_of(2) => Kind::Exec,
            _ => Kind::Mset,
        }
    }

    fn writer(&self, key: usize) -> usize {
        key / EACH
    }

    fn name(&self, key: usize) -> Cow<'_, [u8]> {
        let word = match self.kind(key) {
            Kind::Document => "document",
            Kind::Large => "large",
            Kind::Counter => "counter",
            Kind::Exec => "exec",
            Kind::Mset => "mset",
        };
        Cow::Owned(format!("{word}:{}:{}", key / EACH, key % EACH).into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::killing::expected::Seen;
    use crate::killing::keys::{Keys as _, MEMBERS};

    #[test]
    fn every_choice_is_an_own_key_of_its_kind() {
        let keys = Keys { connections: 3 };
        for connection in 0..3 {
            for random in 0..3000 {
                let choices = [
                    (keys.document(connection, random), Kind::Document),
                    (keys.large(connection, random), Kind::Large),
                    (keys.counter(connection, random), Kind::Counter),
                ];
                for (key, kind) in choices {
                    assert!(keys.writer(key) == connection && key < keys.len());
                    assert_eq!(keys.kind(key), kind);
                }
                let batch = keys.batch(connection, random);
                assert!(matches!(keys.kind(batch), Kind::Exec | Kind::Mset));
                assert!(keys.owned_by(connection).contains(&batch));
            }
        }
    }

    #[test]
    fn half_a_batch_is_torn() {
        let keys = Keys { connections: 1 };
        let mset = (0..8).map(|random| keys.batch(0, random));
        let mset = mset.into_iter().find(|&key| keys.kind(key) == Kind::Mset);
        let key = mset.unwrap();
        let together = |found: [Option<u64>; 4]| keys.together(key, &found);
        assert_eq!(together([Some(7); 4]), Seen::value(7));
        assert_eq!(together([None; 4]), Seen::Absent);
        for torn in [
            [Some(7), Some(7), Some(6), Some(7)],
            [Some(7), Some(7), Some(7), None],
            [None, Some(7), Some(7), Some(7)],
        ] {
            assert!(matches!(together(torn), Seen::Torn(_)), "{torn:?}");
        }
    }

    #[test]
    fn deletions_in_a_batch_are_part_of_it() {
        let keys = Keys { connections: 1 };
        let key = (0..8)
            .map(|random| keys.batch(0, random))
            .find(|&key| keys.kind(key) == Kind::Exec)
            .unwrap();
        let states: Vec<Vec<Option<u64>>> = (1..500)
            .map(|n| {
                (0..MEMBERS)
                    .map(|m| keys.is_put(key, n, m).then_some(n))
                    .collect()
            })
            .collect();
        assert!(states.iter().flatten().any(Option::is_none));
        for (state, number) in states.iter().zip(1..) {
            assert_eq!(keys.together(key, state), Seen::value(number));
            let mut undeleted = state.clone();
            if let Some(deleted) = undeleted.iter_mut().find(|found| found.is_none()) {
                *deleted = Some(number - 1);
                assert!(matches!(keys.together(key, &undeleted), Seen::Torn(_)));
            }
        }
    }
}
