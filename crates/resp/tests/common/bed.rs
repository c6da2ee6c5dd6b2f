//! Where tests put their stores: which engine, on which medium.
//!
//! Tests run over viper, on emulated persistent memory and on files. `EVERDRAM_TEST_ENGINE=model` takes the
//! model instead; `EVERDRAM_TEST_MEDIUM=file` (or `emulated`) runs everything on that medium.

use everdram::{EngineKind, Medium, MediumChoice, Options, Store};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const MEMORY: &str = "/dev/shm";

/// A place for a store.
pub(crate) struct Bed {
    directory: TempDir,
    medium: Medium,
}

/// The medium that was asked for, if any.
pub(crate) fn asked_medium() -> Option<Medium> {
    match std::env::var("EVERDRAM_TEST_MEDIUM").ok()?.as_str() {
        "file" => Some(Medium::File),
        "emulated" => Some(Medium::Emulated),
        other => panic!("EVERDRAM_TEST_MEDIUM={other}: `file` or `emulated`"),
    }
}

fn engine() -> EngineKind {
    match std::env::var("EVERDRAM_TEST_ENGINE") {
        Ok(name) => name.parse().expect("EVERDRAM_TEST_ENGINE names an engine"),
        Err(_) => EngineKind::Viper,
    }
}

impl Bed {
    pub(crate) fn new(medium: Medium) -> Bed {
        let directory = match medium {
            Medium::Emulated if Path::new(MEMORY).is_dir() => TempDir::new_in(MEMORY),
            _ => TempDir::new(),
        };
        Bed {
            directory: directory.expect("a temporary directory"),
            medium,
        }
    }

    /// Where the store's files are.
    pub(crate) fn pool(&self) -> PathBuf {
        self.directory.path().join("pool")
    }

    pub(crate) fn open(&self) -> Store {
        let mut options = Options::default();
        options.engine = engine();
        options.medium = MediumChoice::Only(self.medium);
        options.initial_bytes = 16 << 20;
        options.log_bytes = 16 << 20;
        Store::open(self.pool(), &options).expect("a new pool opens")
    }
}
