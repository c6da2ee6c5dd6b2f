//! Test beds: stores on each medium, small enough that blocks, chunks and growth are met often.
#![allow(dead_code, unreachable_pub)] // each test binary uses its part

pub mod contents;
pub mod frozen;
pub mod history;

use everdram::{Clock, EngineKind, Medium, MediumChoice, Options, Store};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// A place for a store, and its clock.
pub(crate) struct Bed {
    pub name: &'static str,
    pub clock: Arc<AtomicU64>,
    pub dir: TempDir,
    medium: Medium,
    fixed: Option<(u32, u32)>,
    dimms: u32,
}

fn clock_of(time: &Arc<AtomicU64>) -> Clock {
    let time = Arc::clone(time);
    Arc::new(move || time.load(Ordering::Relaxed))
}

/// The seed of a random test: printed, and taken from EVERDRAM_SEED to repeat a run.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("EVERDRAM_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("repeat with EVERDRAM_SEED={seed}");
    seed
}

impl Bed {
    fn new(name: &'static str, medium: Medium, fixed: Option<(u32, u32)>, dimms: u32) -> Bed {
        let memory = PathBuf::from("/dev/shm");
        let dir = match medium {
            Medium::Emulated if memory.is_dir() => TempDir::new_in(memory),
            _ => TempDir::new(),
        };
        let clock = Arc::new(AtomicU64::new(1_000_000));
        Bed {
            name,
            clock,
            dir: dir.unwrap(),
            medium,
            fixed,
            dimms,
        }
    }

    pub(crate) fn emulated() -> Bed {
        Bed::new("emulated", Medium::Emulated, None, 6)
    }

    pub(crate) fn file() -> Bed {
        Bed::new("file", Medium::File, None, 6)
    }

    /// On memory, with blocks of `dimms` pages and perhaps fixed-size records.
    pub(crate) fn shaped(dimms: u32, fixed: Option<(u32, u32)>) -> Bed {
        Bed::new("emulated, of its own shape", Medium::Emulated, fixed, dimms)
    }

    /// The `file` medium on a file system in memory: the same code, and syncs that cost nothing.
    pub(crate) fn file_in_memory() -> Bed {
        let mut bed = Bed::new("file, in memory", Medium::Emulated, None, 6);
        bed.medium = Medium::File;
        bed
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    pub(crate) fn options(&self) -> Options {
        let mut options = Options::default();
        options.medium = MediumChoice::Only(self.medium);
        options.fixed = self.fixed;
        options.dimms = self.dimms;
        options.initial_bytes = 1 << 20;
        options.chunk_bytes = 1 << 20;
        options.max_bytes = 1 << 30;
        options.log_bytes = 16 << 20;
        options.clock = Some(clock_of(&self.clock));
        options
    }

    pub(crate) fn open(&self) -> Store {
        self.open_with(|_| {})
    }

    pub(crate) fn open_with(&self, change: impl FnOnce(&mut Options)) -> Store {
        let mut options = self.options();
        change(&mut options);
        Store::open(self.path(), &options).unwrap()
    }

    /// Whether a store survives being reopened.
    pub(crate) fn keeps(&self) -> bool {
        true
    }

    /// Files cost a sync an acknowledgement: fewer rounds there.
    pub(crate) fn scaled(&self, rounds: usize) -> usize {
        if self.medium == Medium::File {
            rounds / 3
        } else {
            rounds
        }
    }

    /// The store's own check finds nothing.
    pub(crate) fn verify(&self, store: &Store) {
        let report = store.check().unwrap();
        assert!(
            report.findings.is_empty(),
            "{}: {:?}",
            self.name,
            report.findings
        );
    }

    pub(crate) fn model(clock: &Arc<AtomicU64>) -> Store {
        let mut options = Options::default();
        options.engine = EngineKind::Model;
        options.clock = Some(clock_of(clock));
        Store::open("/nowhere", &options).unwrap()
    }
}

/// Runs a test on every bed.
pub(crate) fn each_bed(test: impl Fn(&Bed)) {
    for (name, medium, fixed, dimms) in [
        ("emulated", Medium::Emulated, None, 6),
        (
            "emulated, fixed-size pages",
            Medium::Emulated,
            Some((8, 16)),
            6,
        ),
        ("emulated, one DIMM", Medium::Emulated, None, 1),
        ("file", Medium::File, None, 6),
    ] {
        println!("-- {name}");
        test(&Bed::new(name, medium, fixed, dimms));
    }
}
