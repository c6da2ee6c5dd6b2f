//! A batch of keys whose records a gleaner has read and not applied yet. It looks them up together, so that
//! their cache misses overlap.

use crate::bullet::layout::RecordAt;

/// Keys gathered before they are applied.
const MOST: usize = 24;

/// See the module text.
#[derive(Default)]
pub(in crate::bullet) struct ApplyBatch {
    records: Vec<Record>,
    keys: Vec<u8>,
}

/// A gathered key.
struct Record {
    hash: u64,
    at: RecordAt,
    /// Where its key begins and ends.
    key: [usize; 2],
}

impl Record {
    fn of<'a>(&self, keys: &'a [u8]) -> (u64, RecordAt, &'a [u8]) {
        let [from, to] = self.key;
        let Some(key) = keys.get(from..to) else {
            panic!("a gathered key lies outside of its batch");
        };
        (self.hash, self.at, key)
    }
}

impl ApplyBatch {
    /// Adds a record's key. `false`: the batch is full.
    #[inline]
    pub(in crate::bullet) fn push(&mut self, hash: u64, at: RecordAt, key: &[u8]) -> bool {
        let from = self.keys.len();
        self.keys.extend_from_slice(key);
        let key = [from, self.keys.len()];
        self.records.push(Record { hash, at, key });
        self.records.len() < MOST
    }

    /// Hash, record and key of each, in order.
    pub(in crate::bullet) fn keys(&self) -> impl Iterator<Item = (u64, RecordAt, &[u8])> {
        self.records.iter().map(|record| record.of(&self.keys))
    }

    /// Keeps the keys for which `keeps` is true.
    pub(in crate::bullet) fn retain(
        &mut self,
        mut keeps: impl FnMut(u64, RecordAt, &[u8]) -> bool,
    ) {
        let keys = &self.keys;
        self.records.retain(|record| {
            let (hash, at, key) = record.of(keys);
            keeps(hash, at, key)
        });
    }

    pub(in crate::bullet) fn clear(&mut self) {
        self.records.clear();
        self.keys.clear();
    }
}
