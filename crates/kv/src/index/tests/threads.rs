//! The index while several threads use it.

use super::super::FOUND;
use super::{Draws, Numbers, location};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Writers grow the index and churn their own keys; the stable keys must be found by every lookup.
#[test]
fn readers_find_what_is_there_while_writers_change_the_rest() {
    const STABLE: u64 = if cfg!(miri) { 30 } else { 20_000 };
    const OWN: u64 = if cfg!(miri) { 40 } else { 150_000 };
    let mut random = Draws::new();
    // A few keys in one segment make it grow like many keys in many segments.
    let numbers = Arc::new(Numbers::crowded(8, if cfg!(miri) { 2 } else { 0 }));
    (0..STABLE).for_each(|key| numbers.insert(key, 0));
    let stop = AtomicBool::new(false);
    let hits = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in [random.next(), random.next()] {
            let (numbers, stop, hits) = (&numbers, &stop, &hits);
            scope.spawn(move || {
                let (mut random, slot) = (Draws(seed), numbers.slot());
                while !stop.load(Ordering::Relaxed) {
                    let key = random.below(STABLE);
                    assert!(
                        numbers.lookup(&slot, key).is_some(),
                        "key {key} was there all the time"
                    );
                    hits.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (seed, numbers) = (random.next(), &numbers);
                scope.spawn(move || write_and_verify(numbers, seed, writer, STABLE, OWN))
            })
            .collect();
        let failed = writers
            .into_iter()
            .map(|writer| writer.join())
            .filter(Result::is_err)
            .count();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(failed, 0, "writers failed");
    });
    assert!(hits.into_inner() > STABLE / 20, "the readers did run");
}

/// One writer: overwrites its share of the stable keys, and inserts, replaces and removes its own.
fn write_and_verify(numbers: &Numbers, seed: u64, writer: u64, stable: u64, own: u64) {
    let (mut random, slot) = (Draws(seed), numbers.slot());
    let mut model = HashMap::new();
    for _ in 0..own * 2 {
        let mine = random.below(stable / 3) * 3 + writer;
        if mine < stable {
            let old = numbers.lookup(&slot, mine).unwrap();
            assert!(numbers.index.replace(
                numbers.hash(mine),
                old,
                location(mine, random.below(16)),
                &FOUND,
            ));
        }
        let (key, version) = (
            1_000_000 * (writer + 1) + random.below(own),
            random.below(16),
        );
        assert_eq!(numbers.lookup(&slot, key), model.get(&key).copied());
        match model.get(&key) {
            None => {
                numbers.insert(key, version);
                model.insert(key, location(key, version));
            }
            Some(old) if version < 4 => {
                assert!(numbers.index.remove(numbers.hash(key), *old, &FOUND));
                model.remove(&key);
            }
            Some(old) => {
                assert!(numbers.index.replace(
                    numbers.hash(key),
                    *old,
                    location(key, version),
                    &FOUND
                ));
                model.insert(key, location(key, version));
            }
        }
    }
    for (key, at) in model {
        assert_eq!(numbers.lookup(&slot, key), Some(at));
    }
}

/// Iterations that run while the index grows many times visit every key that existed before.
#[test]
fn a_scan_misses_nothing_while_the_index_grows() {
    const STABLE: u64 = 10_000;
    let mut random = Draws::new();
    // Crowded, so that splits, doublings and new anchors happen during the scan.
    let numbers = Numbers::crowded(4, 5);
    (0..STABLE).for_each(|key| numbers.insert(key, 0));
    let expected: HashSet<u64> = (0..STABLE).collect();
    let growing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let (numbers, growing) = (&numbers, &growing);
        scope.spawn(move || {
            (STABLE..55 * STABLE).for_each(|key| numbers.insert(key, 0));
            growing.store(false, Ordering::Release);
        });
        let slot = numbers.slot();
        let mut last = false;
        while !last {
            last = !growing.load(Ordering::Acquire);
            let visits = numbers.scan_all(&slot, 1 + random.below(500) as usize);
            assert!(expected.iter().all(|key| visits.contains_key(key)));
        }
    });
    assert!(numbers.index.directory.depth() >= 14);
}
