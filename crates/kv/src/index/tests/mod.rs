//! The index against a model and at its limits.
//!
//! Keys are numbers, hashes are computed from them, and a location encodes its key: `key * 16 + version + 1`.

mod threads;

use super::growth::rehash_by;
use super::{DEPTH_FIRST, FOUND, Hasher, Index, IndexError, KeyHash, Location};
use crate::concurrency::epoch::{Epochs, Slot};
use crate::engine::random::Random;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A random number generator that replays: SplitMix64.
struct Draws(u64);

impl Draws {
    /// Seeded from `EVERDRAM_SEED`, or at random; prints the seed, to replay a failure.
    fn new() -> Draws {
        let given = std::env::var("EVERDRAM_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(rand::random);
        println!("replay with EVERDRAM_SEED={seed}");
        Draws(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn location(key: u64, version: u64) -> Location {
    Location::new(key * 16 + version % 16 + 1).unwrap()
}

fn key_of(location: Location) -> u64 {
    (location.get() - 1) / 16
}

/// Enough keys to take an index beyond depth 13 whose hashes share 5 bits.
const CROWD: u64 = 500_000;

/// An index of numbers whose hashes begin with the same `shared` bits.
struct Numbers {
    index: Index,
    shared: u32,
    rehashed: AtomicU64,
}

impl Numbers {
    fn new(sessions: usize) -> Numbers {
        Numbers::crowded(sessions, 0)
    }

    fn crowded(sessions: usize, shared: u32) -> Numbers {
        let index = Index::new(
            Epochs::new(sessions),
            Hasher::new(&Random::default()),
            DEPTH_FIRST,
        )
        .unwrap();
        Numbers {
            index,
            shared,
            rehashed: AtomicU64::new(0),
        }
    }

    fn slot(&self) -> Slot {
        self.index.epochs.register().unwrap()
    }

    fn hash(&self, key: u64) -> KeyHash {
        KeyHash(mix(key + 1) >> self.shared)
    }

    fn insert(&self, key: u64, version: u64) {
        self.index
            .insert(
                self.hash(key),
                location(key, version),
                &mut rehash_by(|at| {
                    self.rehashed.fetch_add(1, Ordering::Relaxed);
                    self.hash(key_of(at))
                }),
                &FOUND,
            )
            .unwrap();
    }

    fn lookup(&self, slot: &Slot, key: u64) -> Option<Location> {
        self.index
            .lookup(self.hash(key), &slot.pin(), |at| key_of(at) == key)
    }

    /// One whole iteration in steps of `count`: how often it visited each key.
    fn scan_all(&self, slot: &Slot, count: usize) -> HashMap<u64, u32> {
        let mut visits = HashMap::new();
        let mut cursor = 0;
        loop {
            let mut step = 0;
            let next = self.index.scan(cursor, count, &slot.pin(), &mut |at| {
                step += 1;
                *visits.entry(key_of(at)).or_default() += 1;
            });
            assert!(
                next == 0 || next > cursor && step >= count,
                "{cursor} -> {next} after {step}"
            );
            if next == 0 {
                return visits;
            }
            cursor = next;
        }
    }
}

#[test]
fn agrees_with_a_hash_map() {
    let mut random = Draws::new();
    let numbers = Numbers::new(1);
    let slot = numbers.slot();
    let mut model: HashMap<u64, Location> = HashMap::new();
    for round in 0..400_000 {
        let (key, version) = (random.below(120_000), random.below(16));
        let (hash, new) = (numbers.hash(key), location(key, version));
        let known = model.get(&key).copied();
        assert_eq!(
            numbers.lookup(&slot, key),
            known,
            "key {key} in round {round}"
        );
        match (known, random.below(4)) {
            (None, _) => {
                assert!(
                    !numbers.index.replace(hash, new, new, &FOUND)
                        && !numbers.index.remove(hash, new, &FOUND)
                );
                numbers.insert(key, version);
                model.insert(key, new);
            }
            (Some(old), 0) => {
                assert!(numbers.index.remove(hash, old, &FOUND));
                assert!(!numbers.index.remove(hash, old, &FOUND));
                model.remove(&key);
            }
            (Some(old), _) => {
                assert!(numbers.index.replace(hash, old, new, &FOUND));
                assert_eq!(numbers.index.replace(hash, old, new, &FOUND), old == new);
                model.insert(key, new);
            }
        }
    }
    let visits = numbers.scan_all(&slot, 7);
    assert_eq!(visits.len(), model.len());
    assert!(
        visits
            .iter()
            .all(|(key, count)| model.contains_key(key) && *count == 1)
    );
}

#[test]
fn an_entry_costs_at_most_12_bytes() {
    let numbers = Numbers::new(1);
    for key in 0..4_800_000 {
        numbers.insert(key, 0);
        if key >= 4_000_000 && key % 40_000 == 0 {
            let each = numbers.index.bytes() as f64 / key as f64;
            assert!(
                (8.0..12.0).contains(&each),
                "{each} bytes for each of {key}"
            );
        }
    }
    assert_eq!(
        numbers.rehashed.into_inner(),
        0,
        "tags alone carry growth this far"
    );
}

#[test]
#[cfg_attr(miri, ignore = "many entries")]
fn room_that_was_made_is_enough_and_not_the_end() {
    // The second count fills the 8 pages of each segment to their target.
    for count in [1, 106_700, 1_000_000] {
        let numbers = Numbers::new(1);
        let slot = numbers.slot();
        numbers.index.make_room(count).unwrap();
        let bytes = numbers.index.bytes();
        assert!(count < 1_000_000 || bytes < 13 * count, "{bytes} bytes");
        (0..count).for_each(|key| numbers.insert(key, 0));
        // By chance a segment is sometimes too full.
        let grown = numbers.index.bytes() - bytes;
        assert!(grown <= bytes / 8, "{grown} of {bytes} bytes for {count}");
        (count..3 * count).for_each(|key| numbers.insert(key, 0));
        assert!((0..3 * count).all(|key| numbers.lookup(&slot, key) == Some(location(key, 0))));
        assert_eq!(numbers.scan_all(&slot, 100).len() as u64, 3 * count);
        numbers.index.clear(&FOUND).unwrap();
        assert_eq!(numbers.lookup(&slot, 0), None);
        (0..count).for_each(|key| numbers.insert(key, 0));
        assert_eq!(numbers.scan_all(&slot, 100).len() as u64, count);
    }
}

#[test]
fn prefetching_changes_nothing() {
    let numbers = Numbers::new(1);
    (0..1000).for_each(|key| numbers.insert(key, 0));
    (0..2000).for_each(|key| numbers.index.prefetch(numbers.hash(key)));
    let slot = numbers.slot();
    assert!((0..2000).all(|key| numbers.lookup(&slot, key).is_some() == (key < 1000)));
}

/// A segment of depth 13 has used up its tags' first anchor; its halves ask for full hashes.
#[test]
fn tags_that_run_out_are_made_anew() {
    let numbers = Numbers::crowded(1, 5);
    let slot = numbers.slot();
    for key in 0..CROWD {
        numbers.insert(key, 0);
    }
    assert!(numbers.index.directory.depth() >= 14);
    assert!(numbers.rehashed.load(Ordering::Relaxed) >= 200_000);
    for key in 0..CROWD {
        assert_eq!(numbers.lookup(&slot, key), Some(location(key, 0)));
        assert_eq!(numbers.lookup(&slot, key + 1_000_000), None);
    }
    let visits = numbers.scan_all(&slot, 1000);
    assert!(visits.len() as u64 == CROWD && visits.values().all(|count| *count == 1));
}

#[test]
fn a_record_with_another_key_is_reported_and_nothing_is_lost() {
    let numbers = Numbers::crowded(1, 5);
    let slot = numbers.slot();
    let wrong = |key: u64| key % 1000 == 999;
    let refused = (0..CROWD).find_map(|key| {
        let mut rehash = |at: &[Location], hashes: &mut Vec<KeyHash>| {
            hashes.extend(at.iter().map(|at| numbers.hash(key_of(*at))));
            let unread = at.iter().find(|at| wrong(key_of(**at)));
            unread.map_or(Ok(()), |at| Err(*at))
        };
        let result = numbers
            .index
            .insert(numbers.hash(key), location(key, 0), &mut rehash, &FOUND);
        result.err().map(|error| (key, error))
    });
    let Some((count, IndexError::Rehash(at))) = refused else {
        panic!("{refused:?}")
    };
    assert!(wrong(key_of(at)));
    assert!((0..count).all(|key| numbers.lookup(&slot, key).is_some()));
    assert_eq!(numbers.lookup(&slot, count), None);
}

#[test]
fn equal_hashes_end_in_an_error_not_in_endless_growth() {
    let index = Index::new(Epochs::new(1), Hasher::new(&Random::default()), DEPTH_FIRST).unwrap();
    let slot = index.epochs.register().unwrap();
    let hash = KeyHash(0x1234_5678_9abc_def0);
    let insert = |key: u64| index.insert(hash, location(key, 0), &mut rehash_by(|_| hash), &FOUND);
    let fitted = (0..1000).take_while(|key| insert(*key).is_ok()).count() as u64;
    assert_eq!(fitted, u64::from(super::PROBE_BUCKETS) * 8);
    assert_eq!(insert(fitted), Err(IndexError::Skewed));
    for key in 0..fitted {
        let found = index.lookup(hash, &slot.pin(), |at| key_of(at) == key);
        assert_eq!(found, Some(location(key, 0)));
    }
    assert!(index.bytes() < 2 << 20, "{}", index.bytes());
}

#[test]
fn pages_are_used_again_when_readers_have_gone() {
    let numbers = Numbers::new(1);
    (0..300_000).for_each(|key| numbers.insert(key, 0));
    let (used, spare) = (
        numbers.index.arena.pages_used() as usize,
        numbers.index.arena.pages_spare(),
    );
    assert!(spare * 50 < used, "{spare} of {used} pages lie idle");

    let slot = numbers.slot();
    let pin = slot.pin();
    (300_000..600_000).for_each(|key| numbers.insert(key, 0));
    let spare = numbers.index.arena.pages_spare();
    assert!(
        spare * 3 > used,
        "a pinned reader keeps old pages: {spare} of {used}"
    );
    drop(pin);
    let used = numbers.index.arena.pages_used();
    (600_000..700_000).for_each(|key| numbers.insert(key, 0));
    assert_eq!(numbers.index.arena.pages_used(), used);
}

/// The generation alone tells a reader that crosses pages whether two words belong together.
#[test]
fn every_rebuilt_segment_has_a_later_generation() {
    let numbers = Numbers::new(1);
    let segment = |key| numbers.index.line(numbers.hash(key)).segment();
    let mut rebuilt = 0;
    for key in 0..200_000 {
        let before = segment(key);
        numbers.insert(key, 0);
        let after = segment(key);
        if (before.shape, before.pages) == (after.shape, after.pages) {
            assert_eq!(before.generation, after.generation);
        } else {
            rebuilt += 1;
            // One insertion may grow its segment more than once.
            assert!(
                after.generation > before.generation,
                "key {key}: {before:?} {after:?}"
            );
        }
    }
    assert!(rebuilt > 500, "{rebuilt}");
}

#[test]
fn clear_removes_everything_and_keeps_the_memory() {
    let numbers = Numbers::new(1);
    let slot = numbers.slot();
    numbers.index.clear(&FOUND).unwrap();
    (0..300_000).for_each(|key| numbers.insert(key, 0));
    let bytes = numbers.index.bytes();
    for version in 1..4 {
        numbers.index.clear(&FOUND).unwrap();
        assert!(numbers.scan_all(&slot, 10).is_empty());
        assert_eq!(numbers.index.random(version, &slot.pin()), None);
        assert!(
            (0..300_000)
                .step_by(101)
                .all(|key| numbers.lookup(&slot, key).is_none())
        );
        (0..300_000).for_each(|key| numbers.insert(key, version));
        assert!((0..300_000).all(|key| numbers.lookup(&slot, key) == Some(location(key, version))));
    }
    assert!(
        numbers.index.bytes() < bytes + bytes / 8,
        "{bytes} became {}",
        numbers.index.bytes()
    );
}

#[test]
fn random_entries_are_spread_evenly() {
    let mut random = Draws::new();
    let numbers = Numbers::new(1);
    let slot = numbers.slot();
    numbers.insert(7, 0);
    assert_eq!(
        numbers.index.random(random.next(), &slot.pin()),
        Some(location(7, 0))
    );

    const KEYS: u64 = 150_000;
    (0..KEYS)
        .filter(|key| *key != 7)
        .for_each(|key| numbers.insert(key, 0));
    // Segments now have 5 to 8 pages: without rejection, keys of small ones would be drawn too often.
    let mut quarters = [0_u64; 4];
    let mut drawn_pages: HashMap<u32, (u64, u64)> = HashMap::new();
    let pages_of = |key| numbers.index.line(numbers.hash(key)).segment().shape.pages;
    (0..KEYS).for_each(|key| drawn_pages.entry(pages_of(key)).or_default().0 += 1);
    const DRAWS: u64 = 400_000;
    for _ in 0..DRAWS {
        let key = key_of(numbers.index.random(random.next(), &slot.pin()).unwrap());
        quarters[(key * 4 / KEYS) as usize] += 1;
        drawn_pages.entry(pages_of(key)).or_default().1 += 1;
    }
    assert!(
        quarters
            .iter()
            .all(|count| count.abs_diff(DRAWS / 4) < DRAWS / 50),
        "{quarters:?}"
    );
    for (pages, (keys, draws)) in drawn_pages {
        let share = draws as f64 * KEYS as f64 / (keys.max(1) as f64 * DRAWS as f64);
        assert!(
            keys < 2000 || (0.9..1.1).contains(&share),
            "{pages} pages: {share} of the fair share"
        );
    }
}
