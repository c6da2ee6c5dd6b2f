//! Stores larger than their pool.

mod moving;
mod restart;
mod room;

use crate::engine::kind::EngineKind;
use crate::engine::open;
use crate::engine::{BatchOp, Engine, EngineSession};
use crate::error::Error;
use crate::options::{Loading, Options, Policy, Promote};
use crate::store::Store;
use crate::viper::Viper;
use crate::viper::below::evict::Victim;
use crate::viper::below::load;
use crate::viper::lookup::look_up;
use crate::viper::session::ViperSession;
use everdram_pm::faults::Faults;
use everdram_pm::{Medium, MediumChoice};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
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

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// The engine over a pool, without threads: the log is read when the test says so.
fn over(path: &Path, loading: Loading) -> Arc<Viper> {
    let mut options = options();
    options.tiered.loading = loading;
    let pool = open::pool(path, &options).unwrap();
    Viper::over(pool, path, &options).unwrap()
}
