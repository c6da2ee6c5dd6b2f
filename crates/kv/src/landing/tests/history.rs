//! What threads and remote clients saw must have an order.

use super::{Bed, options, word};
use crate::engine::Change;
use crate::landing::slot;
use crate::{EngineKind, Store, test_each_engine};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

test_each_engine!(what_threads_saw_has_an_order);

/// A call of a history on one key: when it began and ended, what it wrote, or what it saw.
#[derive(Clone, Copy, Debug)]
struct Event {
    begun: u64,
    ended: u64,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Put(u64),
    Delete,
    Saw(Option<u64>),
}

/// Every value is written once. A value may be seen if its put had begun, and no other write lies wholly
/// between the two; nothing may be seen if no put lies wholly behind all deletes.
fn judge(history: &[Event]) {
    let puts: std::collections::HashMap<u64, &Event> = history
        .iter()
        .filter_map(|event| match event.what {
            What::Put(value) => Some((value, event)),
            _ => None,
        })
        .collect();
    let mut sightings = Vec::new();
    for saw in history {
        let What::Saw(value) = saw.what else { continue };
        let Some(value) = value else {
            for put in puts.values().filter(|put| put.ended < saw.begun) {
                let may_be_gone = history.iter().any(|event| {
                    event.what == What::Delete && event.ended > put.begun && event.begun < saw.ended
                });
                assert!(may_be_gone, "{put:?} is lost at {saw:?}");
            }
            continue;
        };
        let put = puts[&value];
        assert!(put.begun < saw.ended, "{saw:?} of the future");
        for other in history
            .iter()
            .filter(|event| !matches!(event.what, What::Saw(_)))
        {
            let is_between = put.ended < other.begun && other.ended < saw.begun;
            assert!(
                !is_between,
                "{saw:?} shows {put:?}, and {other:?} came between"
            );
        }
        sightings.push((saw, put));
    }
    for (one, earlier) in &sightings {
        for (other, later) in &sightings {
            let is_inverted = one.ended < other.begun && later.ended < earlier.begun;
            assert!(
                !is_inverted,
                "{other:?} shows {later:?} after {one:?} had shown {earlier:?}"
            );
        }
    }
}

/// Threads put, delete and get; another one plays clients and their NICs: pieces in any order.
fn what_threads_saw_has_an_order(engine: EngineKind) {
    const KEYS: usize = 4;
    let seed = std::env::var("EVERDRAM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(rand::random);
    println!("repeat with EVERDRAM_SEED={seed}");
    let bed = Bed::new(engine);
    let (clock, values) = (AtomicU64::new(1), AtomicU64::new(1));
    let now = || clock.fetch_add(1, Ordering::SeqCst);
    let (ended, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let locals = |thread: u64| {
        let mut random = StdRng::seed_from_u64(seed ^ thread);
        let mut session = bed.session();
        let mut history = vec![Vec::new(); KEYS];
        for call in 0..1000 {
            while rounds.load(Ordering::Relaxed) < call / 10 {
                std::thread::yield_now();
            }
            let key = random.random_range(0..KEYS);
            let name = [b'k', key as u8];
            let value = values.fetch_add(1, Ordering::Relaxed);
            let begun = now();
            let what = match random.random_range(0..10) {
                0..2 => {
                    session.put(&name, &word(value)).unwrap();
                    What::Put(value)
                }
                2..3 => {
                    session.delete(&name).unwrap();
                    What::Delete
                }
                3..4 => {
                    let update = session.update(&name, &mut |_, new| {
                        new.extend_from_slice(&word(value));
                        Change::Put { expires_at_ms: 0 }
                    });
                    update.unwrap();
                    What::Put(value)
                }
                _ => What::Saw(
                    session
                        .get(&name)
                        .unwrap()
                        .map(|value| u64::from_le_bytes(*value.first_chunk().unwrap())),
                ),
            };
            let ended = now();
            history[key].push(Event { begun, ended, what });
        }
        history
    };
    let remote = || {
        let mut random = StdRng::seed_from_u64(!seed);
        let mut granter = bed.landing.granter();
        let mut history = vec![Vec::new(); KEYS];
        while !ended.load(Ordering::Relaxed) {
            rounds.fetch_add(1, Ordering::Relaxed);
            let mut under_way = Vec::new();
            for _ in 0..random.random_range(1..4) {
                let key = random.random_range(0..KEYS);
                let value = values.fetch_add(1, Ordering::Relaxed);
                let bytes = [&word(value)[..], &vec![3; random.random_range(0..9000)]].concat();
                under_way.push((key, value, bytes, now()));
                let (key, _, bytes, _) = under_way.last().unwrap();
                granter
                    .prepare(&[b'k', *key as u8], bytes.len() as u64, 0)
                    .unwrap();
            }
            let grants = granter.commit().unwrap();
            let mut pieces = Vec::new();
            for (index, ((key, _, bytes, _), grant)) in under_way.iter().zip(&grants).enumerate() {
                let mut whole = Vec::new();
                slot::encode(&mut whole, grant, &[b'k', *key as u8], bytes, 0);
                let cut = random.random_range(1..whole.len());
                for (at, piece) in whole.chunks(cut).enumerate() {
                    pieces.push((index, grant.offset + (at * cut) as u64, piece.to_vec()));
                }
            }
            pieces.shuffle(&mut random);
            let mut left: Vec<usize> = (0..grants.len())
                .map(|index| pieces.iter().filter(|(of, ..)| *of == index).count())
                .collect();
            for (index, at, piece) in pieces {
                bed.landing.deliver(at, &piece).unwrap();
                left[index] -= 1;
                if left[index] == 0 {
                    let (key, value, _, begun) = &under_way[index];
                    bed.landing
                        .persist(grants[index].offset, grants[index].bytes)
                        .unwrap();
                    let (begun, ended, what) = (*begun, now(), What::Put(*value));
                    history[*key].push(Event { begun, ended, what });
                }
                if random.random_range(0..4) == 0 {
                    std::thread::yield_now();
                }
            }
            for grant in grants {
                bed.landing.release(grant.number).unwrap();
            }
        }
        history
    };
    let mut all = vec![Vec::new(); KEYS];
    std::thread::scope(|scope| {
        let remote = scope.spawn(remote);
        let locals: Vec<_> = (0..2)
            .map(|thread| {
                scope.spawn({
                    let locals = &locals;
                    move || locals(thread)
                })
            })
            .collect();
        let mut histories: Vec<_> = locals
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        ended.store(true, Ordering::Relaxed);
        histories.push(remote.join().unwrap());
        for history in histories {
            for (all, mut one) in all.iter_mut().zip(history) {
                all.append(&mut one);
            }
        }
    });
    let killed = bed.killed();
    let again = Store::open(killed.path().join("pool"), &options(engine)).unwrap();
    for session in [&mut bed.session(), &mut again.session().unwrap()] {
        for (key, history) in all.iter_mut().enumerate() {
            let begun = now();
            let value = session.get(&[b'k', key as u8]).unwrap();
            let value = value.map(|value| u64::from_le_bytes(*value.first_chunk().unwrap()));
            let (ended, what) = (now(), What::Saw(value));
            history.push(Event { begun, ended, what });
        }
    }
    all.iter().for_each(|history| judge(history));
    assert!(
        bed.landing.stats().applied > 20,
        "{:?}",
        bed.landing.stats()
    );
    assert_eq!(
        (bed.landing.stats().pages_free, bed.landing.stats().grants),
        (64, 0)
    );
    assert_eq!(again.landing().unwrap().stats().pages_free, 64);
}
