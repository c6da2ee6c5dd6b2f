//! The keys in order: which slots have them. Volatile, and touched when keys come and go, not by other
//! writes.
//!
//! Leaves of up to [`LEAF`] slots, each with eight bytes of its key, so that most comparisons need no look at
//! the key. All keys of a leaf begin alike, and the eight bytes are those behind that beginning. A map of the
//! standard library finds the leaf by the key at which it begins.
//!
//! The paper's B-tree has a copy in persistent memory, and each checkpoint changes it. Here a start sorts the
//! keys instead: the order follows from the slots, as free space does.

use super::memory::Memory;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Slots of a leaf.
const LEAF: usize = 256;

/// A slot, with eight bytes of its key.
#[derive(Clone, Copy, Debug)]
struct Entry {
    word: u64,
    slot: u64,
}

#[derive(Debug, Default)]
struct Leaf {
    /// Bytes with which all its keys begin.
    shared: usize,
    entries: Vec<Entry>,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Order {
    /// By the least key that belongs there; the first leaf's is empty.
    leaves: BTreeMap<Box<[u8]>, Leaf>,
}

/// Eight bytes of a key from `from` on, as a number that compares like them; a shorter rest counts as less.
fn word_of(key: &[u8], from: usize) -> u64 {
    let mut word = [0; 8];
    let rest = key.get(from..).unwrap_or(&[]);
    let taken = rest.len().min(8);
    word[..taken].copy_from_slice(&rest[..taken]);
    u64::from_le_bytes(word).swap_bytes()
}

fn shared(one: &[u8], other: &[u8]) -> usize {
    let pairs = one.iter().zip(other);
    pairs.take_while(|(one, other)| one == other).count()
}

impl Default for Order {
    fn default() -> Order {
        Order {
            leaves: BTreeMap::from([(Box::default(), Leaf::default())]),
        }
    }
}

impl Order {
    /// The order of the keys of these slots; and one of two slots with the same key, which no store has.
    pub(super) fn of(memory: &Memory, slots: Vec<u64>) -> (Order, Option<u64>) {
        let key_of = |slot: u64| {
            let mut key = Vec::new();
            memory.key_of(slot, &mut key);
            key
        };
        let Some(first) = slots.first().map(|slot| key_of(*slot)) else {
            return (Order::default(), None);
        };
        let mut begin = first.len();
        let mut key = Vec::new();
        for slot in &slots {
            key.clear();
            memory.key_of(*slot, &mut key);
            begin = shared(&first[..begin], &key);
        }
        let mut entries: Vec<Entry> = Vec::with_capacity(slots.len());
        for slot in slots {
            key.clear();
            memory.key_of(slot, &mut key);
            let word = word_of(&key, begin);
            entries.push(Entry { word, slot });
        }
        entries.sort_unstable_by_key(|entry| entry.word);
        // Keys with the same eight bytes are compared whole.
        let mut twice = None;
        for alike in entries.chunk_by_mut(|one, next| one.word == next.word) {
            if alike.len() > 1 {
                alike.sort_by_cached_key(|entry| key_of(entry.slot));
                let mut pairs = alike.windows(2);
                let same = pairs.find(|pair| key_of(pair[0].slot) == key_of(pair[1].slot));
                twice = same.map(|pair| pair[1].slot).or(twice);
            }
        }
        let mut order = Order::default();
        let mut before: Vec<u8> = Vec::new();
        order.leaves.clear();
        for part in entries.chunks(LEAF * 3 / 4) {
            let [low, high] = [part.first(), part.last()]
                .map(|entry| entry.map_or_else(Vec::new, |entry| key_of(entry.slot)));
            let at = match order.leaves.is_empty() {
                true => Box::default(),
                false => separator(&before, &low),
            };
            let mut leaf = Leaf {
                shared: shared(&low, &high),
                entries: part.to_vec(),
            };
            leaf.reword(memory);
            order.leaves.insert(at, leaf);
            before = high;
        }
        (order, twice)
    }

    /// The leaf of a key, and where the leaf begins.
    fn leaf(&mut self, key: &[u8]) -> (&[u8], &mut Leaf) {
        let upto = (Bound::Unbounded, Bound::Included(key));
        match self.leaves.range_mut::<[u8], _>(upto).next_back() {
            Some((at, leaf)) => (at, leaf),
            None => unreachable!("the first leaf begins before every key"),
        }
    }

    /// Adds the slot of a new key.
    pub(super) fn insert(&mut self, memory: &Memory, key: &[u8], slot: u64) {
        let (_, leaf) = self.leaf(key);
        leaf.include(memory, key);
        let place = match leaf.find(memory, key) {
            Ok(_) => unreachable!("a key comes that is in order already"),
            Err(place) => place,
        };
        let word = word_of(key, leaf.shared);
        leaf.entries.insert(place, Entry { word, slot });
        if leaf.entries.len() < LEAF {
            return;
        }
        // Keys that come in ascending order leave full leaves behind.
        let middle = match place + 1 == leaf.entries.len() {
            true => LEAF - 1,
            false => LEAF / 2,
        };
        let mut upper = Leaf {
            shared: 0,
            entries: leaf.entries.split_off(middle),
        };
        let ends = [
            leaf.entries.last(),
            upper.entries.first(),
            upper.entries.last(),
        ];
        let [high, low, top] = ends.map(|entry| {
            let mut key = Vec::new();
            if let Some(entry) = entry {
                memory.key_of(entry.slot, &mut key);
            }
            key
        });
        leaf.share(memory);
        upper.shared = shared(&low, &top);
        upper.reword(memory);
        self.leaves.insert(separator(&high, &low), upper);
    }

    /// Removes the slot of a key.
    pub(super) fn remove(&mut self, memory: &Memory, key: &[u8], slot: u64) {
        let (at, leaf) = self.leaf(key);
        let place = leaf.find(memory, key);
        let Ok(place) = place else {
            unreachable!("a key goes that is not in order");
        };
        let gone = leaf.entries.remove(place);
        assert!(gone.slot == slot, "another slot has the key in order");
        if leaf.entries.is_empty() && !at.is_empty() {
            let at: Box<[u8]> = at.into();
            self.leaves.remove(&at);
        }
    }

    /// Up to `count` slots in order, with keys from `from` on. Slots change meanwhile: who shows them checks
    /// their keys.
    pub(super) fn from(
        &self,
        memory: &Memory,
        from: Bound<&[u8]>,
        count: usize,
        into: &mut Vec<u64>,
    ) {
        let key = match from {
            Bound::Unbounded => &[][..],
            Bound::Included(key) | Bound::Excluded(key) => key,
        };
        let upto = (Bound::Unbounded, Bound::Included(key));
        let Some((first, leaf)) = self.leaves.range::<[u8], _>(upto).next_back() else {
            return;
        };
        let place = match (leaf.find(memory, key), from) {
            (Ok(place), Bound::Excluded(_)) => place + 1,
            (Ok(place) | Err(place), _) => place,
        };
        into.extend(leaf.entries.iter().skip(place).map(|entry| entry.slot));
        let behind = (Bound::Excluded(&**first), Bound::Unbounded);
        for (_, leaf) in self.leaves.range::<[u8], _>(behind) {
            if into.len() >= count {
                break;
            }
            into.extend(leaf.entries.iter().map(|entry| entry.slot));
        }
        into.truncate(count);
    }

    /// Bytes in DRAM, nearly.
    pub(super) fn bytes(&self) -> u64 {
        let leaves = self.leaves.iter();
        let of_leaf =
            leaves.map(|(at, leaf)| at.len() + 64 + leaf.entries.capacity() * size_of::<Entry>());
        of_leaf.sum::<usize>() as u64
    }

    /// Slots in order.
    pub(super) fn slots(&self) -> impl Iterator<Item = u64> {
        let entries = self.leaves.values().flat_map(|leaf| &leaf.entries);
        entries.map(|entry| entry.slot)
    }
}

/// The shortest key that is above `low` and not above `high`.
fn separator(low: &[u8], high: &[u8]) -> Box<[u8]> {
    high.get(..=shared(low, high)).unwrap_or(high).into()
}

impl Leaf {
    /// The place of a key, or where it would be.
    fn find(&self, memory: &Memory, key: &[u8]) -> Result<usize, usize> {
        let mut own = Vec::new();
        // A key that does not begin like the others is before or after all of them.
        if let Some(first) = self.entries.first()
            && self.shared > 0
        {
            memory.key_of(first.slot, &mut own);
            let begin = &own[..self.shared];
            if !key.starts_with(begin) {
                return Err(if key < begin { 0 } else { self.entries.len() });
            }
        }
        let word = word_of(key, self.shared);
        self.entries.binary_search_by(|entry| {
            entry.word.cmp(&word).then_with(|| {
                own.clear();
                memory.key_of(entry.slot, &mut own);
                own.as_slice().cmp(key)
            })
        })
    }

    /// Shortens the common beginning until `key` has it.
    fn include(&mut self, memory: &Memory, key: &[u8]) {
        let Some(first) = self.entries.first() else {
            self.shared = key.len();
            return;
        };
        let mut own = Vec::new();
        memory.key_of(first.slot, &mut own);
        let both = shared(&own, key);
        if both < self.shared {
            self.shared = both;
            self.reword(memory);
        }
    }

    /// Finds the common beginning anew.
    fn share(&mut self, memory: &Memory) {
        let key_of = |entry: Option<&Entry>| {
            let mut key = Vec::new();
            if let Some(entry) = entry {
                memory.key_of(entry.slot, &mut key);
            }
            key
        };
        let [low, high] = [self.entries.first(), self.entries.last()].map(key_of);
        self.shared = shared(&low, &high);
        self.reword(memory);
    }

    /// Reads the eight bytes of each key.
    fn reword(&mut self, memory: &Memory) {
        let mut key = Vec::new();
        for entry in &mut self.entries {
            key.clear();
            memory.key_of(entry.slot, &mut key);
            entry.word = word_of(&key, self.shared);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{GRAIN_BYTES, Slot, grains};
    use super::*;
    use std::collections::BTreeSet;

    /// Gives keys slots and cells, one after the other.
    struct Keys {
        memory: Memory,
        slots: u64,
        grains: u64,
    }

    impl Keys {
        fn new() -> Keys {
            let memory = Memory::new().unwrap();
            memory.grow(0, 1 << 20).unwrap();
            memory.grow(1, 8 << 20).unwrap();
            let (slots, grains) = (1, 1);
            Keys {
                memory,
                slots,
                grains,
            }
        }

        fn add(&mut self, key: &[u8]) -> u64 {
            let slot = Slot {
                lsn: 1,
                key_cell: self.grains,
                key_bytes: key.len() as u32,
                ..Slot::default()
            };
            assert!(self.grains * GRAIN_BYTES < 8 << 20);
            self.memory.publish(self.slots, &slot, Some(key), None);
            self.slots += 1;
            self.grains += u64::from(grains(key.len()));
            self.slots - 1
        }
    }

    fn key(random: &mut u64) -> Vec<u8> {
        *random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let word = *random >> 40;
        let begin = match word % 4 {
            0 => Vec::new(),
            1 => b"user:".to_vec(),
            2 => vec![0; (word % 7) as usize],
            _ => vec![b'x'; 1100],
        };
        [begin, (word % 3000).to_string().into_bytes()].concat()
    }

    #[test]
    fn keys_stay_in_order_as_they_come_and_go() {
        let (mut keys, mut order, mut random) = (Keys::new(), Order::default(), 7);
        let mut model: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for round in 0..12_000 {
            let key = key(&mut random);
            if let Some(slot) = model.get(&key).copied() {
                if round % 3 == 0 {
                    order.remove(&keys.memory, &key, slot);
                    model.remove(&key);
                }
                continue;
            }
            let slot = keys.add(&key);
            order.insert(&keys.memory, &key, slot);
            model.insert(key, slot);
        }
        let expected: Vec<u64> = model.values().copied().collect();
        assert_eq!(order.slots().collect::<Vec<u64>>(), expected);
        let (sorted, twice) = Order::of(
            &keys.memory,
            order.slots().collect::<BTreeSet<_>>().into_iter().collect(),
        );
        assert_eq!(
            (sorted.slots().collect::<Vec<u64>>(), twice),
            (expected.clone(), None)
        );
        let (first, again) = (expected[0], expected[expected.len() / 2]);
        let (_, twice) = Order::of(&keys.memory, vec![first, again, again]);
        assert_eq!(twice, Some(again));
        for order in [&order, &sorted] {
            for _ in 0..300 {
                let from = key(&mut random);
                for bound in [Bound::Included(&from[..]), Bound::Excluded(&from[..])] {
                    let mut found = Vec::new();
                    order.from(&keys.memory, bound, 300, &mut found);
                    let range = model.range::<[u8], _>((bound, Bound::Unbounded));
                    let expected: Vec<u64> = range.map(|(_, slot)| *slot).take(300).collect();
                    assert_eq!(found, expected, "{bound:?}");
                }
            }
        }
        for (key, slot) in &model {
            order.remove(&keys.memory, key, *slot);
        }
        assert_eq!((order.slots().count(), order.leaves.len()), (0, 1));
    }

    #[test]
    fn ascending_keys_fill_their_leaves() {
        let (mut keys, mut order) = (Keys::new(), Order::default());
        for number in 0..10_000_u32 {
            let key = format!("{number:08}").into_bytes();
            let slot = keys.add(&key);
            order.insert(&keys.memory, &key, slot);
        }
        assert!(
            order.leaves.len() < 10_000 / LEAF + 3,
            "{}",
            order.leaves.len()
        );
    }
}
