//! The keys of a campaign: what each holds, who writes it, and how the bytes found under it are understood.
//!
//! All of it follows from the number of connections, so that an expected-state file needs to name keys by
//! number only. A *batch* is several names that are always written together: one key here, several there.

use super::expected::Seen;
use crate::client::Reply;
use crate::killing::value;
use std::collections::HashSet;
use std::io;
use std::ops::Range;

/// Documents of each connection; the first [`HOT`] get most of the writes.
const DOCUMENTS: usize = 120;
/// Documents that are overwritten all the time, so that blocks fill with garbage.
const HOT: usize = 8;
/// Documents of each connection whose values may be far larger than a block.
const LARGE: usize = 2;
/// Counters of each connection.
const COUNTERS: usize = 6;
/// Batches of each connection, half of them written by MULTI/EXEC, half by MSET.
const BATCHES: usize = 8;
/// Keys of each connection.
const EACH: usize = DOCUMENTS + LARGE + COUNTERS + BATCHES;
/// Names of a batch.
const MEMBERS: u64 = 4;

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Values that say which write they are.
    Document,
    /// The same, and some of them are large.
    Large,
    /// A number that only INCR changes.
    Counter,
    /// Several names, written by MULTI/EXEC; some writes delete some of them.
    Exec,
    /// Several names, written by MSET.
    Mset,
}

/// The keys of a campaign with this many connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) connections: usize,
}

impl Keys {
    pub(crate) fn len(self) -> usize {
        self.connections * EACH
    }

    pub(crate) fn kind(self, key: usize) -> Kind {
        match key % EACH {
            0..DOCUMENTS => Kind::Document,
            local if local < DOCUMENTS + LARGE => Kind::Large,
            local if local < DOCUMENTS + LARGE + COUNTERS => Kind::Counter,
            local if local.is_multiple_of(2) => Kind::Exec,
            _ => Kind::Mset,
        }
    }

    /// Whether `connection` writes `key`; nobody else does.
    pub(crate) fn is_owned(self, key: usize, connection: usize) -> bool {
        key / EACH == connection
    }

    pub(crate) fn owned_by(self, connection: usize) -> Range<usize> {
        connection * EACH..(connection + 1) * EACH
    }

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

    /// The name of a key that is no batch, and what stands before the member's number in the names of one.
    pub(crate) fn name(self, key: usize) -> String {
        let letter = match self.kind(key) {
            Kind::Document => "document",
            Kind::Large => "large",
            Kind::Counter => "counter",
            Kind::Exec => "exec",
            Kind::Mset => "mset",
        };
        format!("{letter}:{}:{}", key / EACH, key % EACH)
    }

    pub(crate) fn members(self, key: usize) -> impl Iterator<Item = (u64, String)> {
        let name = self.name(key);
        (0..MEMBERS).map(move |member| (member, format!("{name}:{member}")))
    }

    /// Every name that a client may write.
    pub(crate) fn all_names(self) -> HashSet<Vec<u8>> {
        let names = |key: usize| match self.kind(key) {
            Kind::Exec | Kind::Mset => self.members(key).map(|(_, name)| name).collect(),
            Kind::Document | Kind::Large | Kind::Counter => vec![self.name(key)],
        };
        (0..self.len())
            .flat_map(names)
            .map(String::into_bytes)
            .collect()
    }

    /// Whether write `number` of a batch puts a value under `member`, or deletes it. The first always has
    /// one.
    pub(crate) fn is_put(self, key: usize, number: u64, member: u64) -> bool {
        let mixed = (number.wrapping_mul(MEMBERS) + member).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.kind(key) == Kind::Mset || member == 0 || (mixed >> 61) != 0
    }

    /// How many names have a value if `key` has the value `value`.
    pub(crate) fn names(self, key: usize, value: u64) -> u64 {
        match self.kind(key) {
            Kind::Exec | Kind::Mset => (0..MEMBERS)
                .map(|member| u64::from(self.is_put(key, value, member)))
                .sum(),
            Kind::Document | Kind::Large | Kind::Counter => 1,
        }
    }

    /// What the reply to GET says about a key that is no batch.
    pub(crate) fn seen(self, key: usize, reply: Reply) -> io::Result<Seen> {
        let found = match reply.accepted()? {
            Reply::Bulk(found) => found,
            Reply::Null => return Ok(Seen::Absent),
            other => return Err(io::Error::other(format!("GET was answered {other:?}"))),
        };
        let read = if self.kind(key) == Kind::Counter {
            let text = String::from_utf8_lossy(&found);
            text.parse().map_err(|_| format!("counter `{text}`"))
        } else {
            value::read(&found, self.name(key).as_bytes())
        };
        Ok(read.map_or_else(Seen::Damaged, Seen::value))
    }

    /// What the values of a batch say, read together: which write they are, if they are all of one.
    pub(crate) fn seen_together(self, key: usize, replies: Vec<Reply>) -> io::Result<Seen> {
        let mut found = Vec::new();
        for ((_, name), reply) in self.members(key).zip(replies) {
            found.push(match reply.accepted()? {
                Reply::Null => None,
                Reply::Bulk(bytes) => match value::read(&bytes, name.as_bytes()) {
                    Ok(number) => Some(number),
                    Err(what) => return Ok(Seen::Damaged(format!("{name}: {what}"))),
                },
                other => return Err(io::Error::other(format!("GET was answered {other:?}"))),
            });
        }
        Ok(self.together(key, &found))
    }

    fn together(self, key: usize, found: &[Option<u64>]) -> Seen {
        if found.iter().all(Option::is_none) {
            return Seen::Absent;
        }
        let torn = || Seen::Torn(format!("its names hold writes {found:?}"));
        let Some(&Some(number)) = found.first() else {
            return torn();
        };
        let whole = (0..MEMBERS)
            .zip(found)
            .all(|(member, &seen)| seen == self.is_put(key, number, member).then_some(number));
        if whole { Seen::value(number) } else { torn() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    assert!(keys.is_owned(key, connection) && key < keys.len());
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
