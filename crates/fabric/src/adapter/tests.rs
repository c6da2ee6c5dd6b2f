//! What an adapter does to a pool, as the crash lab sees it.

use super::*;
use everdram_pm::Pool;
use everdram_pm::Region;
use everdram_pm::lab::{self, Actor, Event, Perform, Seed, Source, Tap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Notes who does what.
#[derive(Default)]
struct Notes {
    actors: AtomicU32,
    events: Mutex<Vec<(Actor, Noted)>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Noted {
    Store(u64, usize),
    Flush(u64, u64),
    Fence,
}

impl Tap for Notes {
    fn actor(&self) -> Actor {
        self.actors.fetch_add(1, Ordering::Relaxed)
    }

    fn event(&self, _: &Region, source: Source, event: Event<'_>, perform: Perform<'_>) -> bool {
        let noted = match event {
            Event::Store { at, bytes, .. } => Noted::Store(at, bytes.len()),
            Event::Flush { at, bytes } => Noted::Flush(at, bytes),
            Event::Fence => Noted::Fence,
        };
        self.events.lock().unwrap().push((source.actor, noted));
        perform()
    }

    fn load(&self, _: &Region, _: u64, _: u64) {}
}

/// A pool of the lab with a window, and the notes of what happens from now on.
fn pool() -> (Arc<Pool>, Arc<Window>, Arc<Notes>) {
    let notes = Arc::new(Notes::default());
    let image = lab::create(Seed(1), 0, [0; 8]).unwrap();
    let pool = lab::open(&image, 1 << 20, Some(notes.clone())).unwrap();
    let at = pool.allocate(100, 1 << 16, 4096).unwrap().at;
    let window = Arc::new(pool.window(at, 1 << 16).unwrap());
    notes.events.lock().unwrap().clear();
    (pool, window, notes)
}

fn taken(notes: &Notes) -> Vec<(Actor, Noted)> {
    std::mem::take(&mut *notes.events.lock().unwrap())
}

#[test]
fn a_durable_write_is_flushed_and_fenced_by_an_actor_of_its_own() {
    let (pool, window, notes) = pool();
    let mut lane = pool.lane();
    let _dirty = lane.store_word(window.at(), 1);
    let [(owner, _)] = taken(&notes)[..] else {
        panic!("one store")
    };
    let mut adapter = Adapter::default();
    let key = adapter.expose_part(&window, 0..window.len(), Access::Write);
    assert!(adapter.write(key, 60, &[7; 100], false));
    let plain = taken(&notes);
    let [(actor, Noted::Store(at, 104))] = plain[..] else {
        panic!("{plain:?}")
    };
    assert_eq!(at, window.at() + 56);
    assert_ne!(actor, owner);
    assert!(adapter.write(key, 60, &[8; 100], true));
    let durable = taken(&notes);
    // The lines of all words that were stored, and one fence behind them.
    let expected = [
        Noted::Store(window.at() + 56, 104),
        Noted::Flush(window.at(), 192),
        Noted::Fence,
    ];
    assert_eq!(durable, expected.map(|noted| (actor, noted)));
    // A write of nothing is durable, without any.
    assert!(adapter.write(key, 0, &[], true));
    assert_eq!(taken(&notes), []);
}

/// The stores of some writes with a seed, as places in the window.
fn stores(seed: u64) -> Vec<(u64, usize)> {
    let (_pool, window, notes) = pool();
    let mut adapter = Adapter::seeded(seed);
    let key = adapter.expose_part(&window, 0..window.len(), Access::Write);
    let mut stores = Vec::new();
    for round in 1..=8_u8 {
        assert!(adapter.write(key, 0, &[round; 4096], true));
        let mut seen = vec![0; 4096];
        window.pool().region().load(window.at(), &mut seen);
        assert_eq!(seen, [round; 4096]);
        let noted = taken(&notes);
        let (mut pieces, mut flushed) = (0, 0);
        for (_, noted) in &noted {
            match noted {
                Noted::Store(at, bytes) => {
                    stores.push((at - window.at(), *bytes));
                    pieces += bytes;
                }
                Noted::Flush(_, bytes) => flushed += bytes,
                Noted::Fence => {}
            }
        }
        assert!(pieces == 4096 && flushed >= 4096, "{noted:?}");
        let is_last = matches!(noted.last(), Some((_, Noted::Fence)));
        assert!(is_last, "one fence covers all: {noted:?}");
    }
    stores
}

#[test]
fn a_seed_cuts_and_orders_writes_and_repeats_that() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let first = stores(seed);
    assert_eq!(first, stores(seed));
    assert!(first.len() > 8, "{first:?}");
    assert!(!first.is_sorted(), "{first:?}");
    assert_ne!(first, stores(seed ^ 1));
}

#[test]
fn what_is_not_exposed_is_not_reached() {
    let (_pool, window, notes) = pool();
    let mut adapter = Adapter::default();
    let key = adapter.expose_part(&window, 0..window.len(), Access::ReadWrite);
    assert!(!adapter.write(key ^ 1, 0, &[1], true));
    assert!(!adapter.write(key, (1 << 16) - 7, &[1; 8], false));
    assert!(!adapter.write(key, u64::MAX, &[1; 8], false));
    assert_eq!(adapter.read(key, 1 << 16, 1), None);
    assert_eq!(adapter.read(key, u64::MAX, 2), None);
    assert_eq!(adapter.read(key, 1 << 16, 0), Some(Vec::new()));
    adapter.unexpose(key);
    assert!(!adapter.write(key, 0, &[1], true));
    assert_eq!(adapter.read(key, 0, 1), None);
    assert_eq!(taken(&notes), []);
}
