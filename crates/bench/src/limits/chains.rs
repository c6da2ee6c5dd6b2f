//! The limits of a store that is asked for one thing after the other: index line, record, and only then the
//! next key.
//!
//! ```text
//!   index line   entry 8 B x 8                            entry: tag 32 bits | place + 1; 0 = empty
//!   record       mark 8 B | check 8 B | key | value              key and value padded to whole words
//!   value        words, each with the number of the next key in its lower half
//! ```
//!
//! Only a record's value says which key comes next, so no call begins before the last one has read its
//! record. The numbers form one random cycle of all keys. A chain hashes the key, searches one line of the
//! index and compares the record's key, as any store must. It has no locks, versions or growth, and waits for
//! no reader.
//!
//! On x86 a fence holds back stores, not the loads of the next call: in a chain as in a store.

use super::Settings;
use super::random::Sequence;
use crate::named::named;
use crate::subject::Error;
use crate::timing::{Sample, Stopwatch};
use everdram_pm::limits::{Memory, Pages, fence, flush};
use everdram_pm::{FlushKind, LINE, Secret};
use std::hint::black_box;

const WORD: usize = 8;
const HEADER_BYTES: usize = 2 * WORD;
const LINE_BYTES: usize = LINE as usize;
const LINE_ENTRIES: usize = LINE_BYTES / WORD;
/// Records for each index line: 16 bytes a record, half of the entries in use.
const LINE_RECORDS: u64 = LINE_ENTRIES as u64 / 2;
/// The half of a value's word that names the next key; the first word counts updates in the other.
const NEXT_BITS: u32 = 32;
const NEXT: u64 = (1 << NEXT_BITS) - 1;
const DEAD: u64 = 1;
/// Marks of overwritten records that are flushed together, as the engine `viper` does.
const MARKS: usize = 64;

named! {
    /// A chain of calls.
    Chain, "chain":
    Get = "chain-get": "index line, then its record, value copied: it names the next key",
    GetChecked = "chain-get-checked": "the same, and the record's checksum",
    Update = "chain-update": "index line, then its record, 8 bytes of it stored and flushed, fence",
    Overwrite = "chain-overwrite": "index line, then its record; another appended and flushed, fence, old one marked, index word",
    Delete = "chain-delete": "index line, then its record, marked and flushed, fence, index word",
}

/// A pool full of records and the index that finds them.
pub struct Chains {
    pool: Memory,
    index: Memory,
    shape: Shape,
    secret: Secret,
    kind: FlushKind,
    records: u64,
    operations: u64,
    /// Which key comes after each.
    cycle: Vec<u32>,
    /// The key of the next call.
    number: u64,
    /// Whether records are not what they were filled with.
    is_changed: bool,
}

/// Where the parts of a record are.
#[derive(Clone, Copy)]
struct Shape {
    key_bytes: usize,
    value_at: usize,
    value_bytes: usize,
    record_bytes: usize,
}

/// A call whose record was found.
struct Found<'a> {
    pool: &'a mut [u8],
    entry: &'a mut u64,
    key: &'a [u8],
    /// First byte of the record.
    at: usize,
}

impl Chains {
    /// Allocates and fills both: memory for the records, and for as many more as a repetition appends.
    ///
    /// # Errors
    /// If there is not as much memory, or keys or values have less than 8 bytes.
    pub fn new(settings: &Settings) -> Result<Chains, Error> {
        let Settings {
            records,
            key_bytes,
            value_bytes,
            ..
        } = *settings;
        anyhow::ensure!(
            (1..1 << 31).contains(&records)
                && key_bytes.min(value_bytes) >= WORD
                && key_bytes.max(value_bytes) < 1 << 20,
            "{records} records of {key_bytes} + {value_bytes} bytes: 1 to 2 billion records, keys and values of 8 \
             bytes to 1 MiB"
        );
        let value_at = HEADER_BYTES + key_bytes.next_multiple_of(WORD);
        let value_bytes = value_bytes.next_multiple_of(WORD);
        let shape = Shape {
            key_bytes,
            value_at,
            value_bytes,
            record_bytes: value_at + value_bytes,
        };
        let operations = settings.operations();
        let pool = Memory::file(
            &settings.dir,
            (records + operations) * shape.record_bytes as u64,
        )?;
        pool.populate(0, pool.len())?;
        let lines = records.div_ceil(LINE_RECORDS);
        let index = Memory::anonymous(lines * LINE, Pages::Huge)?;
        index.populate(0, index.len())?;
        let mut chains = Chains {
            pool,
            index,
            shape,
            secret: Secret::expand(&[9; 32]),
            kind: FlushKind::detect(),
            records,
            operations,
            cycle: cycle(records),
            number: 0,
            is_changed: true,
        };
        chains.fill();
        Ok(chains)
    }

    /// Writes all records and their index entries, unless they are as they were.
    fn fill(&mut self) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        let shape = self.shape;
        let index = lines(self.index.words_mut(), self.records);
        index.fill([0; LINE_ENTRIES]);
        let mut key = vec![b'k'; shape.key_bytes];
        let places = self
            .pool
            .bytes_mut()
            .chunks_exact_mut(shape.record_bytes)
            .zip(0..);
        for ((record, place), next) in places.zip(&self.cycle) {
            name(place, &mut key);
            let words = record[shape.value_at..].as_chunks_mut().0;
            words.fill(u64::from(*next).to_le_bytes());
            record[HEADER_BYTES..][..shape.key_bytes].copy_from_slice(&key);
            let check = self.secret.sum(&record[HEADER_BYTES..]);
            store(record, 0, 0);
            store(record, WORD, check);
            put(index, self.secret.sum(&key), place);
        }
    }

    /// One repetition. Goes on at the key that the last one ended at.
    pub fn run(&mut self, chain: Chain) -> Sample {
        self.fill();
        let shape = self.shape;
        match chain {
            Chain::Get => self.get(|_| ()),
            Chain::GetChecked => {
                let secret = self.secret.clone();
                self.get(|record| {
                    let sum = secret.sum(&record[HEADER_BYTES..]);
                    assert_eq!(sum, word(record, WORD), "a record's check");
                })
            }
            Chain::Update => self.update(shape.value_at),
            Chain::Overwrite => self.overwrite(),
            Chain::Delete => self.delete(),
        }
    }

    fn get(&mut self, check: impl Fn(&[u8])) -> Sample {
        let shape = self.shape;
        let mut value = vec![0; shape.value_bytes];
        self.walk(|found| {
            let record = &found.pool[found.at..][..shape.record_bytes];
            check(record);
            value.copy_from_slice(&record[shape.value_at..]);
            next_of(black_box(&value))
        })
    }

    fn update(&mut self, word_at: usize) -> Sample {
        let kind = self.kind;
        self.is_changed = true;
        self.walk(|found| {
            let at = found.at + word_at;
            let before = word(found.pool, at);
            store(found.pool, at, before.wrapping_add(1 << NEXT_BITS));
            flush(kind, &found.pool[at..at + WORD]);
            fence();
            before & NEXT
        })
    }

    fn overwrite(&mut self) -> Sample {
        let Shape {
            key_bytes,
            value_at,
            record_bytes,
            value_bytes,
        } = self.shape;
        let kind = self.kind;
        let value = vec![7; value_bytes];
        let mut marks = Vec::with_capacity(MARKS);
        let mut place = self.records;
        self.is_changed = true;
        self.walk(|found| {
            let Found {
                pool,
                entry,
                key,
                at,
            } = found;
            let next = word(pool, at + value_at) & NEXT;
            let record = &mut pool[place as usize * record_bytes..][..record_bytes];
            record[..HEADER_BYTES].fill(0);
            record[HEADER_BYTES..][..key_bytes].copy_from_slice(key);
            record[value_at..].copy_from_slice(&value);
            flush(kind, record);
            fence();
            store(pool, at, DEAD);
            marks.push(at);
            if marks.len() == MARKS {
                marks
                    .drain(..)
                    .for_each(|at| flush(kind, &pool[at..at + WORD]));
                fence();
            }
            *entry = *entry & !NEXT | (place + 1);
            place += 1;
            next
        })
    }

    fn delete(&mut self) -> Sample {
        let (kind, value_at) = (self.kind, self.shape.value_at);
        self.is_changed = true;
        self.walk(|found| {
            let next = word(found.pool, found.at + value_at) & NEXT;
            store(found.pool, found.at, DEAD);
            flush(kind, &found.pool[found.at..found.at + WORD]);
            fence();
            *found.entry = 0;
            next
        })
    }

    /// Finds the record of one key after another; `call` says which is the next.
    #[inline(always)]
    fn walk(&mut self, mut call: impl FnMut(Found<'_>) -> u64) -> Sample {
        let Shape {
            key_bytes,
            record_bytes,
            ..
        } = self.shape;
        let pool = self.pool.bytes_mut();
        let index = lines(self.index.words_mut(), self.records);
        let mut key = vec![b'k'; key_bytes];
        let mut number = self.number;
        let watch = Stopwatch::start();
        for _ in 0..self.operations {
            name(number, &mut key);
            let has_key = |place: u64| {
                let at = place as usize * record_bytes;
                pool[at + HEADER_BYTES..][..key_bytes] == key[..]
            };
            let found = find(index, self.secret.sum(&key), has_key);
            let Some((entry, place)) = found else {
                unreachable!("a key of the cycle is not in the index");
            };
            number = call(Found {
                entry,
                key: &key,
                at: place as usize * record_bytes,
                pool,
            });
        }
        let sample = watch.stop(self.operations);
        self.number = number;
        sample
    }
}

/// One random cycle through all numbers below `records` (Sattolo).
fn cycle(records: u64) -> Vec<u32> {
    let mut random = Sequence::new(1);
    let mut next: Vec<u32> = (0..records as u32).collect();
    for number in (1..next.len()).rev() {
        next.swap(number, random.below(number as u64));
    }
    next
}

/// Makes `key` that of a number.
#[inline]
fn name(number: u64, key: &mut [u8]) {
    store(key, 0, number);
}

/// The next key by a value that was read: by a word of each of its lines, so that all of them have arrived.
#[inline]
fn next_of(value: &[u8]) -> u64 {
    let mut next = word(value, value.len() - WORD);
    for at in (0..value.len()).step_by(LINE_BYTES) {
        next &= word(value, at);
    }
    next & NEXT
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; WORD];
    word.copy_from_slice(&bytes[at..at + WORD]);
    u64::from_le_bytes(word)
}

#[inline]
fn store(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + WORD].copy_from_slice(&word.to_le_bytes());
}

fn lines(words: &mut [u64], records: u64) -> &mut [[u64; LINE_ENTRIES]] {
    &mut words.as_chunks_mut().0[..records.div_ceil(LINE_RECORDS) as usize]
}

/// Where the search for a hash begins, and its tag, in place.
#[inline]
fn home(lines: usize, hash: u64) -> (usize, u64) {
    let line = (u128::from(hash) * lines as u128) >> 64;
    (line as usize, hash << NEXT_BITS)
}

/// The entry under a hash that leads to the place that `is` accepts, and that place. What is not there takes
/// a walk of the whole index.
#[inline(always)]
fn find(
    index: &mut [[u64; LINE_ENTRIES]],
    hash: u64,
    is: impl Fn(u64) -> bool,
) -> Option<(&mut u64, u64)> {
    let (home, tag) = home(index.len(), hash);
    let mut line = home;
    loop {
        let entries = &index[line];
        let mut tagged = 0u32;
        for (slot, entry) in entries.iter().enumerate() {
            tagged |= u32::from(entry & !NEXT == tag) << slot;
        }
        while tagged != 0 {
            let slot = tagged.trailing_zeros() as usize;
            tagged &= tagged - 1;
            // An empty entry looks like tag 0.
            if let Some(place) = (entries[slot] & NEXT).checked_sub(1)
                && is(place)
            {
                return Some((&mut index[line][slot], place));
            }
        }
        line = (line + 1) % index.len();
        if line == home {
            return None;
        }
    }
}

/// Adds an entry, in the first line from its home that has room.
fn put(index: &mut [[u64; LINE_ENTRIES]], hash: u64, place: u64) {
    let (home, tag) = home(index.len(), hash);
    let (before, after) = index.split_at_mut(home);
    let mut entries = after.iter_mut().chain(before).flatten();
    if let Some(entry) = entries.find(|entry| **entry == 0) {
        *entry = tag | (place + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: u64 = 1000;

    fn chains(dir: &tempfile::TempDir, sizes: (usize, usize), operations: u64) -> Chains {
        let mut chains = Chains::new(&Settings {
            dir: dir.path().into(),
            file_dir: None,
            records: RECORDS,
            key_bytes: sizes.0,
            value_bytes: sizes.1,
            load_bytes: 0,
            repeat: 1,
            quick: true,
        })
        .unwrap();
        chains.operations = operations;
        chains
    }

    /// The keys of the next calls, as the cycle has them.
    fn ahead(chains: &Chains) -> Vec<u64> {
        let mut keys = vec![chains.number];
        for at in 0..chains.operations as usize {
            keys.push(u64::from(chains.cycle[keys[at] as usize]));
        }
        keys
    }

    /// Where the index says that the record of a key is.
    fn place(chains: &mut Chains, number: u64) -> Option<u64> {
        let Chains {
            pool,
            index,
            shape,
            secret,
            ..
        } = chains;
        let mut key = vec![b'k'; shape.key_bytes];
        name(number, &mut key);
        let has_key = |place: u64| {
            let record = &pool.bytes()[place as usize * shape.record_bytes..];
            record[HEADER_BYTES..].starts_with(&key)
        };
        let index = lines(index.words_mut(), RECORDS);
        find(index, secret.sum(&key), has_key).map(|(_, place)| place)
    }

    /// A word of the record at a place.
    fn word_of(chains: &Chains, place: u64, at: usize) -> u64 {
        let record = place as usize * chains.shape.record_bytes;
        word(chains.pool.bytes(), record + at)
    }

    #[test]
    fn the_cycle_goes_through_all_keys_in_no_order() {
        for records in [1, 2, 3, 64, RECORDS] {
            let next = cycle(records);
            let (mut at, mut steps) = (0, 0);
            loop {
                at = next[at] as usize;
                steps += 1;
                if at == 0 {
                    break;
                }
            }
            assert_eq!(steps, records);
        }
        let next = cycle(RECORDS);
        let near = next.windows(2).filter(|two| two[0].abs_diff(two[1]) < 8);
        assert!(near.count() < 40);
    }

    /// As many entries under one hash as three lines take, from the last line on: only the caller tells them
    /// apart.
    #[test]
    fn an_entry_is_found_among_others_of_its_tag() {
        let mut index = [[0; LINE_ENTRIES]; 3];
        (0..24).for_each(|place| put(&mut index, !0, place));
        for wanted in 0..24 {
            let found = find(&mut index, !0, |place| place == wanted);
            assert_eq!(found.map(|(_, place)| place), Some(wanted));
        }
        assert_eq!(find(&mut index, !0, |place| place == 24), None);
        assert_eq!(find(&mut index, !1, |_| true), None, "another tag");
        assert_eq!(index[2][0] & NEXT, 1, "not where the search begins");
    }

    #[test]
    fn every_chain_goes_where_the_records_say() {
        let dir = tempfile::tempdir().unwrap();
        for sizes in [(16, 200), (8, 8), (9, 65)] {
            for operations in [1, 300, RECORDS] {
                let mut chains = chains(&dir, sizes, operations);
                for chain in Chain::ALL {
                    let keys = ahead(&chains);
                    let sample = chains.run(chain);
                    assert_eq!(sample.operations, operations, "{chain}");
                    assert_eq!(Some(&chains.number), keys.last(), "{chain} {sizes:?}");
                }
            }
        }
    }

    /// A value of 200 bytes lies in four lines and a part: a chain that did not wait for one of them would go
    /// on as if nothing was.
    #[test]
    fn a_get_depends_on_each_line_of_the_value() {
        let dir = tempfile::tempdir().unwrap();
        for at in [0, 64, 128, 192] {
            let mut chains = chains(&dir, (16, 200), 1);
            let first = chains.number;
            let elsewhere = u64::from(chains.cycle[first as usize]) & (first + 0x155);
            let word_at = first as usize * chains.shape.record_bytes + chains.shape.value_at + at;
            store(chains.pool.bytes_mut(), word_at, elsewhere);
            chains.run(Chain::Get);
            assert_eq!(chains.number, elsewhere, "the word at {at}");
            assert_ne!(elsewhere, u64::from(chains.cycle[first as usize]));
        }
    }

    #[test]
    #[should_panic(expected = "a record's check")]
    fn a_checked_get_sums_the_record() {
        let dir = tempfile::tempdir().unwrap();
        let mut chains = chains(&dir, (16, 200), 1);
        let byte = chains.shape.value_at + 100;
        chains.pool.bytes_mut()[byte] ^= 1;
        chains.run(Chain::GetChecked);
    }

    #[test]
    fn an_update_changes_the_record_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let mut chains = chains(&dir, (16, 200), 300);
        let keys = ahead(&chains);
        chains.run(Chain::Update);
        let updated = |chains: &Chains, key| word_of(chains, key, chains.shape.value_at) >> 32;
        let sum: u64 = (0..RECORDS).map(|key| updated(&chains, key)).sum();
        assert_eq!(sum, 300);
        assert!(keys[..300].iter().all(|key| updated(&chains, *key) == 1));
        chains.run(Chain::Get);
        assert_eq!(updated(&chains, keys[0]), 0, "not as it was filled");
    }

    #[test]
    fn an_overwrite_leaves_a_mark_and_another_record() {
        let dir = tempfile::tempdir().unwrap();
        let mut chains = chains(&dir, (16, 200), 300);
        let keys = ahead(&chains);
        chains.run(Chain::Overwrite);
        for (key, number) in keys[..300].iter().zip(RECORDS..) {
            assert_eq!(place(&mut chains, *key), Some(number), "in order");
            assert_eq!(word_of(&chains, *key, 0), DEAD);
            assert_eq!(word_of(&chains, number, 0), 0);
            let last = chains.shape.record_bytes - WORD;
            assert_eq!(word_of(&chains, number, last), u64::from_le_bytes([7; 8]));
        }
        assert_eq!(place(&mut chains, keys[300]), Some(keys[300]));
        assert_eq!(word_of(&chains, keys[300], 0), 0);
    }

    #[test]
    fn a_delete_leaves_a_mark_and_no_entry() {
        let dir = tempfile::tempdir().unwrap();
        let mut chains = chains(&dir, (16, 200), 300);
        let keys = ahead(&chains);
        chains.run(Chain::Delete);
        for key in &keys[..300] {
            assert_eq!(place(&mut chains, *key), None);
            assert_eq!(word_of(&chains, *key, 0), DEAD);
        }
        assert_eq!(place(&mut chains, keys[300]), Some(keys[300]));
        chains.run(Chain::Get);
        assert_eq!(place(&mut chains, keys[0]), Some(keys[0]));
    }

    #[test]
    fn records_that_are_too_small_for_a_chain_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let settings = |key_bytes, value_bytes| Settings {
            dir: dir.path().into(),
            file_dir: None,
            records: 1,
            key_bytes,
            value_bytes,
            load_bytes: 0,
            repeat: 1,
            quick: true,
        };
        Chains::new(&settings(8, 8)).unwrap();
        for (key, value) in [(7, 200), (16, 7), (16, 1 << 20)] {
            Chains::new(&settings(key, value)).err().unwrap();
        }
    }
}
