//! What the index costs, in time and in DRAM:
//! `cargo test --release -p everdram index::cost -- --ignored --nocapture`

use super::growth::rehash_by;
use super::{DEPTH_FIRST, FOUND, Hasher, Index, KeyHash, Location};
use crate::concurrency::epoch::Epochs;
use crate::engine::random::Random;
use std::hint::black_box;
use std::time::Instant;

const LOOKUPS: u64 = 1_000_000;
const CHECKPOINTS: [u64; 8] = [1, 2, 3, 5, 7, 10, 14, 20];

fn location(number: u64) -> Location {
    Location::new(number + 1).unwrap()
}

fn hash_of(index: &Index, number: u64) -> KeyHash {
    index.hash(&number.to_le_bytes())
}

/// Nanoseconds per lookup of a key that exists, or not, in random order.
fn lookup_ns(index: &Index, first: u64, count: u64, hit: bool) -> f64 {
    let slot = index.epochs.register().unwrap();
    let start = Instant::now();
    for i in 0..LOOKUPS {
        let number = first + i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % count;
        let pin = slot.pin();
        let found = index.lookup(hash_of(index, number), &pin, |at| at == location(number));
        assert_eq!(black_box(found).is_some(), hit);
    }
    start.elapsed().as_secs_f64() * 1e9 / LOOKUPS as f64
}

/// Nanoseconds per look-up and replacement of a key, in random order.
fn replace_ns(index: &Index, count: u64) -> f64 {
    let slot = index.epochs.register().unwrap();
    let start = Instant::now();
    for i in 0..LOOKUPS {
        let number = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % count;
        let (hash, at) = (hash_of(index, number), location(number));
        let pin = slot.pin();
        assert!(index.candidates(hash, &pin).any(|found| found == at));
        assert!(index.replace(hash, at, at, &FOUND));
    }
    start.elapsed().as_secs_f64() * 1e9 / LOOKUPS as f64
}

#[test]
#[ignore = "a measurement: run it alone, in release"]
fn table() {
    let index = Index::new(Epochs::new(4), Hasher::new(&Random::default()), DEPTH_FIRST).unwrap();
    let (mut number, mut fullest, mut slowest_us) = (0_u64, 0_f64, 0_f64);
    println!(
        "   records  ns/insert   hit ns  miss ns  hit + replace ns  bytes/record  max since 1 M  slowest us"
    );
    for millions in CHECKPOINTS {
        let (from, start) = (number, Instant::now());
        while number < millions * 1_000_000 {
            let began = Instant::now();
            for _ in 0..1000 {
                let hash = hash_of(&index, number);
                let mut rehash = rehash_by(|at| hash_of(&index, at.get() - 1));
                index
                    .insert(hash, location(number), &mut rehash, &FOUND)
                    .unwrap();
                number += 1;
            }
            slowest_us = slowest_us.max(began.elapsed().as_secs_f64() * 1e6);
            if number >= 1_000_000 {
                fullest = fullest.max(index.bytes() as f64 / number as f64);
            }
        }
        let insert_ns = start.elapsed().as_secs_f64() * 1e9 / (number - from) as f64;
        let (hit, miss) = (
            lookup_ns(&index, 0, number, true),
            lookup_ns(&index, 1 << 39, number, false),
        );
        let replace = replace_ns(&index, number);
        let bytes = index.bytes() as f64 / number as f64;
        println!(
            "{number:>10} {insert_ns:>10.1} {hit:>8.1} {miss:>8.1} {replace:>17.1} {bytes:>13.2} {fullest:>14.2} {slowest_us:>11.0}"
        );
    }
}
