//! The stores of tests: which engine, on which medium.
//!
//! Tests run over every engine, on emulated persistent memory and on files. `EVERDRAM_TEST_ENGINE=model`
//! takes the model instead; `EVERDRAM_TEST_MEDIUM=file` (or `emulated`) runs everything on that medium.

use everdram::{EngineKind, Medium, MediumChoice, Options, Store};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const MEMORY: &str = "/dev/shm";

/// A place for a store.
pub(crate) struct Bed {
    directory: TempDir,
    engine: EngineKind,
    medium: Medium,
}

/// The medium in the environment, if any.
pub(crate) fn asked_medium() -> Option<Medium> {
    match std::env::var("EVERDRAM_TEST_MEDIUM").ok()?.as_str() {
        "file" => Some(Medium::File),
        "emulated" => Some(Medium::Emulated),
        other => panic!("EVERDRAM_TEST_MEDIUM={other}: `file` or `emulated`"),
    }
}

/// The only engine to test, if the environment names one.
fn asked_engine() -> Option<EngineKind> {
    let name = std::env::var("EVERDRAM_TEST_ENGINE").ok()?;
    Some(name.parse().expect("EVERDRAM_TEST_ENGINE names an engine"))
}

impl Bed {
    pub(crate) fn new(engine: EngineKind, medium: Medium) -> Bed {
        let directory = match medium {
            Medium::Emulated if Path::new(MEMORY).is_dir() => TempDir::new_in(MEMORY),
            _ => TempDir::new(),
        };
        Bed {
            directory: directory.expect("a temporary directory"),
            engine: asked_engine().unwrap_or(engine),
            medium,
        }
    }

    /// Where the store's files are.
    pub(crate) fn pool(&self) -> PathBuf {
        self.directory.path().join("pool")
    }

    pub(crate) fn open(&self) -> Store {
        self.open_with(|_| {})
    }

    /// As [`Bed::open`], with other options.
    pub(crate) fn open_with(&self, change: impl FnOnce(&mut Options)) -> Store {
        let mut options = Options::default();
        options.engine = Some(self.engine);
        options.medium = MediumChoice::Only(self.medium);
        options.initial_bytes = 16 << 20;
        options.log_bytes = 16 << 20;
        change(&mut options);
        Store::open(self.pool(), &options).expect("a new pool opens")
    }
}
