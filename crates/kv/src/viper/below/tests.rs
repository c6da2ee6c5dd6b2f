//! Stores larger than their pool: what leaves, what comes back, what a restart finds.

use crate::engine::kind::EngineKind;
use crate::options::Options;
use crate::store::Store;
use everdram_pm::{Medium, MediumChoice};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::path::Path;
use tempfile::TempDir;

fn options() -> Options {
    let mut options = Options {
        engine: Some(EngineKind::Tiered),
        medium: MediumChoice::Only(Medium::Emulated),
        initial_bytes: 1 << 20,
        chunk_bytes: 1 << 20,
        max_bytes: 2 << 20,
        ..Options::default()
    };
    options.tiered.segment_bytes = 1 << 20;
    options
}

fn open(directory: &Path) -> Store {
    Store::open(directory.join("pool"), &options()).unwrap()
}

fn compare(store: &Store, model: &HashMap<Vec<u8>, Vec<u8>>) {
    let mut session = store.session().unwrap();
    for (key, value) in model {
        assert_eq!(session.get(key).unwrap().as_ref(), Some(value), "{key:?}");
    }
    assert_eq!(store.len(), model.len() as u64);
    let mut met = 0;
    for key in session.keys() {
        assert!(model.contains_key(&key.unwrap()));
        met += 1;
    }
    assert_eq!(met, model.len());
}

#[test]
fn a_store_larger_than_its_pool_keeps_everything() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let mut random = StdRng::seed_from_u64(7);
    let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    for round in 0..4u32 {
        let store = open(directory.path());
        compare(&store, &model);
        let mut session = store.session().unwrap();
        for turn in 0..10_000u32 {
            let key = random.random_range(0..20_000u32).to_le_bytes().to_vec();
            match random.random_range(0..10) {
                0..6 => {
                    let value = vec![(round + turn) as u8; random.random_range(0..900)];
                    session.put(&key, &value).unwrap();
                    model.insert(key, value);
                }
                6..8 => {
                    assert_eq!(session.delete(&key).unwrap(), model.remove(&key).is_some());
                }
                _ => assert_eq!(session.get(&key).unwrap().as_ref(), model.get(&key)),
            }
        }
        drop(session);
        compare(&store, &model);
        let stats = store.stats();
        println!("{round}: {:?}", stats.own);
        assert!(stats.own("evicted_records").unwrap() > 1000);
        store.close().unwrap();
    }
}
