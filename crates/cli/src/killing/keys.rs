//! The keys of a campaign: what each holds, which connection writes it, and how a reader interprets its
//! bytes.
//!
//! A *batch* is a group of names that are always written together: one key here, several in the store.

use super::expected::Seen;
use super::value;
use crate::client::Reply;
use std::borrow::Cow;
use std::collections::HashSet;
use std::io;

/// Names of a batch.
pub(crate) const MEMBERS: u64 = 4;

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Values that name their write.
    Document,
    /// Documents, some of them large.
    Large,
    /// A number; only INCR changes it.
    Counter,
    /// Several names, written by MULTI/EXEC; some writes delete some of them.
    Exec,
    /// Several names, written by MSET.
    Mset,
}

/// The keys of a campaign, by number.
pub(crate) trait Keys: Sync {
    /// Connections that write.
    fn connections(&self) -> usize;

    fn len(&self) -> usize;

    fn kind(&self, key: usize) -> Kind;

    /// The only connection that writes `key`.
    fn writer(&self, key: usize) -> usize;

    /// The name of the key in the store. For a batch, the part before the member's number.
    fn name(&self, key: usize) -> Cow<'_, [u8]>;

    /// The number of the write whose value a document holds, read from the bytes `found`.
    ///
    /// # Errors
    /// Why the bytes do not verify.
    fn write_of(&self, key: usize, found: &[u8]) -> Result<u64, String> {
        value::read(found, &self.name(key))
    }

    fn is_batch(&self, key: usize) -> bool {
        matches!(self.kind(key), Kind::Exec | Kind::Mset)
    }

    fn owned_by(&self, connection: usize) -> Vec<usize> {
        let all = 0..self.len();
        all.filter(|&key| self.writer(key) == connection).collect()
    }

    /// The key's names in the store, in the order of its members.
    fn names(&self, key: usize) -> Vec<Vec<u8>> {
        let name = self.name(key).into_owned();
        if !self.is_batch(key) {
            return vec![name];
        }
        let member = |member| [&name[..], format!(":{member}").as_bytes()].concat();
        (0..MEMBERS).map(member).collect()
    }

    /// Every name that a client may write.
    fn all_names(&self) -> HashSet<Vec<u8>> {
        (0..self.len()).flat_map(|key| self.names(key)).collect()
    }

    /// Whether write `number` of a batch puts a value under `member` or deletes it. The first member always
    /// gets a value.
    fn is_put(&self, key: usize, number: u64, member: u64) -> bool {
        let mixed = (number.wrapping_mul(MEMBERS) + member).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.kind(key) == Kind::Mset || member == 0 || (mixed >> 61) != 0
    }

    /// The number of names with a value while `key` has the value `value`.
    fn names_with_value(&self, key: usize, value: u64) -> u64 {
        if !self.is_batch(key) {
            return 1;
        }
        (0..MEMBERS)
            .map(|member| u64::from(self.is_put(key, value, member)))
            .sum()
    }

    /// What the reply to GET shows of a key that is no batch.
    fn seen(&self, key: usize, reply: Reply) -> io::Result<Seen> {
        let found = match reply.accepted()? {
            Reply::Bulk(found) => found,
            Reply::Null => return Ok(Seen::Absent),
            other => return Err(io::Error::other(format!("GET was answered {other:?}"))),
        };
        let read = if self.kind(key) == Kind::Counter {
            let text = String::from_utf8_lossy(&found);
            text.parse().map_err(|_| format!("counter `{text}`"))
        } else {
            self.write_of(key, &found)
        };
        Ok(read.map_or_else(Seen::Damaged, Seen::value))
    }

    /// What the values of a batch show when read together: the number of their write, if it is the same for
    /// all.
    fn seen_together(&self, key: usize, replies: Vec<Reply>) -> io::Result<Seen> {
        let mut found = Vec::new();
        for (name, reply) in self.names(key).into_iter().zip(replies) {
            found.push(match reply.accepted()? {
                Reply::Null => None,
                Reply::Bulk(bytes) => match value::read(&bytes, &name) {
                    Ok(number) => Some(number),
                    Err(what) => {
                        let name = name.escape_ascii();
                        return Ok(Seen::Damaged(format!("{name}: {what}")));
                    }
                },
                other => return Err(io::Error::other(format!("GET was answered {other:?}"))),
            });
        }
        Ok(self.together(key, &found))
    }

    fn together(&self, key: usize, found: &[Option<u64>]) -> Seen {
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
