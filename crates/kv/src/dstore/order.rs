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
use crate::concurrency::shares::{share, share_out};
use crate::error::Error;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Slots of a leaf.
const LEAF: usize = 256;
/// Slots of a group, the part that a thread of a start sorts at a time; beyond so many groups, they grow.
const GROUP: usize = 1 << 17;
const GROUPS_MAX: usize = 1 << 8;
/// So many words of a new leaf may be like the one before.
const ALIKE_ONE_IN: usize = 16;
/// Keys that are looked at to part them into groups.
const LOOKS: usize = 1 << 12;

/// A slot, with eight bytes of its key.
#[derive(Clone, Copy, Debug)]
struct Entry {
    word: u64,
    slot: u64,
}

/// How keys begin, as far as some of them have been looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Beginning(Option<Vec<u8>>);

/// How keys are expected to begin, and the words that part them into groups of about the same size.
#[derive(Clone, Debug, Default)]
pub(super) struct Parting {
    /// The words of the entries are those behind this.
    guess: Vec<u8>,
    /// Group `n` has the words below word `n`, and not below the one before it.
    ends: Vec<u64>,
}

/// Keys that one thread has met, on their way into order.
#[derive(Debug, Default)]
pub(super) struct Keys {
    parting: Parting,
    /// Bytes of the guess with which all of them do begin.
    shared: usize,
    groups: Vec<Vec<Entry>>,
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
    let rest = key.get(from..).unwrap_or(&[]);
    if let Some(word) = rest.first_chunk() {
        return u64::from_le_bytes(*word).swap_bytes();
    }
    let mut word = [0; 8];
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

impl Beginning {
    /// Shortens the beginning until this key has it.
    pub(super) fn meet(&mut self, key: &[u8]) {
        match &mut self.0 {
            Some(beginning) => beginning.truncate(shared(beginning, key)),
            None => self.0 = Some(key.to_vec()),
        }
    }
}

impl Parting {
    /// For about so many keys, as those of these slots are.
    pub(super) fn of(memory: &Memory, beginning: Beginning, looks: &[u64], keys: u64) -> Parting {
        let guess = beginning.0.unwrap_or_default();
        let mut key = Vec::new();
        let word = |slot: &u64| {
            key.clear();
            memory.key_of(*slot, &mut key);
            word_of(&key, guess.len())
        };
        let words = looks.iter().map(word).collect();
        Parting::by(words, keys, guess)
    }

    fn by(mut words: Vec<u64>, keys: u64, guess: Vec<u8>) -> Parting {
        let groups = (keys as usize / GROUP).clamp(1, GROUPS_MAX);
        words.sort_unstable();
        let ends = (1..groups).filter_map(|nth| words.get(nth * words.len() / groups).copied());
        let ends = ends.collect();
        Parting { guess, ends }
    }
}

impl Keys {
    pub(super) fn new(parting: &Parting) -> Keys {
        Keys {
            shared: parting.guess.len(),
            groups: vec![Vec::new(); parting.ends.len() + 1],
            parting: parting.clone(),
        }
    }

    /// Adds the key of a slot.
    #[inline]
    pub(super) fn add(&mut self, key: &[u8], number: u64) {
        let guess = &self.parting.guess;
        if self.shared > 0 && !key.starts_with(&guess[..self.shared]) {
            self.shared = shared(guess, key);
        }
        let word = word_of(key, guess.len());
        self.push(Entry { word, slot: number });
    }

    #[inline]
    fn push(&mut self, entry: Entry) {
        let ends = &self.parting.ends;
        let group = ends.partition_point(|end| *end <= entry.word);
        let Some(group) = self.groups.get_mut(group) else {
            unreachable!("there is a group behind the last end");
        };
        group.push(entry);
    }

    fn is_empty(&self) -> bool {
        self.groups.iter().all(Vec::is_empty)
    }
}

/// The same keys, with the words behind byte `begin`: they do not begin as was expected.
fn part_anew(
    memory: &Memory,
    threads: usize,
    met: Vec<Keys>,
    begin: usize,
) -> Result<Vec<Keys>, Error> {
    let groups = met.into_iter().flat_map(|keys| keys.groups);
    let groups: Vec<Mutex<Vec<Entry>>> = groups.map(Mutex::new).collect();
    let groups = share_out(threads, groups.len(), |number| {
        let mut group = std::mem::take(&mut *groups[number].lock());
        reword(memory, &mut group, begin);
        Ok(group)
    })?;
    let count: usize = groups.iter().map(Vec::len).sum();
    let looks = groups.iter().flatten().step_by(count / LOOKS + 1);
    let words = looks.map(|entry| entry.word).collect();
    let parting = Parting::by(words, count as u64, Vec::new());
    let begin = || Keys::new(&parting);
    share(threads, groups.len(), begin, |keys, number| {
        groups[number].iter().for_each(|entry| keys.push(*entry));
        Ok(())
    })
}

/// The leaves of a group.
#[derive(Default)]
struct Group {
    /// With the least key that belongs to each. That of the first one follows from the group before.
    leaves: Vec<(Box<[u8]>, Leaf)>,
    /// The first and the last key, if there are keys.
    low: Vec<u8>,
    high: Vec<u8>,
    /// One of two slots with the same key.
    twice: Option<u64>,
}

impl Group {
    /// Of entries whose words lie behind byte `begin` of the keys.
    fn of(memory: &Memory, mut entries: Vec<Entry>, begin: usize) -> Group {
        let mut group = Group::default();
        entries.sort_unstable_by_key(|entry| entry.word);
        for alike in entries.chunk_by_mut(|one, next| one.word == next.word) {
            if alike.len() > 1 {
                alike.sort_by_cached_key(|entry| key_of(memory, entry));
                let mut pairs = alike.windows(2);
                let same = pairs.find(|pair| key_of(memory, &pair[0]) == key_of(memory, &pair[1]));
                group.twice = same.map(|pair| pair[1].slot).or(group.twice);
            }
        }
        for part in entries.chunks(LEAF * 3 / 4) {
            let mut leaf = Leaf {
                shared: begin,
                entries: part.to_vec(),
            };
            // Words that are alike make look-ups read keys. To find others takes a look at each key.
            let pairs = part.windows(2);
            let alike = pairs.filter(|pair| pair[0].word == pair[1].word).count();
            if alike > part.len() / ALIKE_ONE_IN {
                leaf.share(memory);
            }
            let [low, high] = leaf.ends(memory);
            let at = match group.leaves.is_empty() {
                true => Box::default(),
                false => separator(&group.high, &low),
            };
            if group.leaves.is_empty() {
                group.low = low;
            }
            group.high = high;
            group.leaves.push((at, leaf));
        }
        group
    }
}

fn key_of(memory: &Memory, entry: &Entry) -> Vec<u8> {
    let mut key = Vec::new();
    memory.key_of(entry.slot, &mut key);
    key
}

/// Reads the eight bytes of each key behind byte `from`.
fn reword(memory: &Memory, entries: &mut [Entry], from: usize) {
    let mut key = Vec::new();
    for entry in entries {
        key.clear();
        memory.key_of(entry.slot, &mut key);
        entry.word = word_of(&key, from);
    }
}

impl Order {
    /// The order of keys that several threads have met; and one of two slots with the same key, which no
    /// store has.
    ///
    /// # Errors
    /// None.
    pub(super) fn of(
        memory: &Memory,
        threads: usize,
        met: Vec<Keys>,
    ) -> Result<(Order, Option<u64>), Error> {
        let begins = met.iter().filter(|keys| !keys.is_empty());
        let Some(begin) = begins.map(|keys| keys.shared).min() else {
            return Ok((Order::default(), None));
        };
        let is_as_expected = met.iter().all(|keys| keys.parting.guess.len() == begin);
        let met = match is_as_expected {
            true => met,
            false => part_anew(memory, threads, met, begin)?,
        };
        let met: Vec<Vec<Mutex<Vec<Entry>>>> = met
            .into_iter()
            .map(|keys| keys.groups.into_iter().map(Mutex::new).collect())
            .collect();
        let groups = share_out(threads, met.first().map_or(0, Vec::len), |number| {
            let own = |groups: &Vec<Mutex<_>>| std::mem::take(&mut *groups[number].lock());
            let mut groups = met.iter().map(own);
            let mut entries: Vec<Entry> = groups.next().unwrap_or_default();
            groups.for_each(|mut more| entries.append(&mut more));
            Ok(Group::of(memory, entries, begin))
        })?;
        let (mut leaves, mut twice) = (Vec::new(), None);
        let mut before: Option<Vec<u8>> = None;
        for mut group in groups {
            twice = twice.or(group.twice);
            let Some((at, _)) = group.leaves.first_mut() else {
                continue;
            };
            if let Some(before) = &before {
                *at = separator(before, &group.low);
            }
            before = Some(group.high);
            leaves.append(&mut group.leaves);
        }
        let leaves = leaves.into_iter().collect();
        Ok((Order { leaves }, twice))
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
        if leaf.entries.len() == leaf.entries.capacity() {
            leaf.entries.reserve_exact(LEAF / 8);
        }
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
        leaf.entries.shrink_to_fit();
        leaf.share(memory);
        upper.share(memory);
        let ([_, high], [low, _]) = (leaf.ends(memory), upper.ends(memory));
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
            reword(memory, &mut self.entries, both);
        }
    }

    /// The first and the last key.
    fn ends(&self, memory: &Memory) -> [Vec<u8>; 2] {
        [self.entries.first(), self.entries.last()]
            .map(|entry| entry.map_or_else(Vec::new, |entry| key_of(memory, entry)))
    }

    /// Finds the common beginning anew.
    fn share(&mut self, memory: &Memory) {
        let [low, high] = self.ends(memory);
        self.shared = shared(&low, &high);
        reword(memory, &mut self.entries, self.shared);
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

        /// The order of these slots, which several threads have met in another order.
        fn sorted(&self, threads: usize, looks: usize, slots: &[u64]) -> Order {
            let mut slots = slots.to_vec();
            slots.sort_unstable();
            let mut beginning = Beginning::default();
            let key_of = |slot: u64| {
                let mut key = Vec::new();
                self.memory.key_of(slot, &mut key);
                key
            };
            let looks = &slots[..looks.min(slots.len())];
            looks.iter().for_each(|slot| beginning.meet(&key_of(*slot)));
            // Several groups, although there are few keys.
            let parting = Parting::of(&self.memory, beginning, looks, 9 * GROUP as u64);
            let mut met: Vec<super::Keys> =
                (0..threads).map(|_| super::Keys::new(&parting)).collect();
            for &number in &slots {
                met[number as usize % threads].add(&key_of(number), number);
            }
            let (order, twice) = Order::of(&self.memory, threads, met).unwrap();
            let distinct: BTreeSet<u64> = slots.iter().copied().collect();
            assert_eq!(twice.is_some(), distinct.len() < slots.len(), "{twice:?}");
            order
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
        // As after a start: of three threads, which have guessed well or badly how keys begin, or of one.
        let sorted = [
            (1, 0),
            (3, 0),
            (3, 1),
            (3, 5),
            (1, usize::MAX),
            (3, usize::MAX),
        ];
        let sorted = sorted.map(|(threads, looks)| keys.sorted(threads, looks, &expected));
        for order in std::iter::once(&order).chain(&sorted) {
            assert_eq!(order.slots().collect::<Vec<u64>>(), expected);
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
        let again = [&expected[..], &expected[expected.len() / 2..][..1]].concat();
        keys.sorted(3, 5, &again);
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
