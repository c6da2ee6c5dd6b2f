//! Test beds: stores on each medium, small enough that blocks, chunks and growth are met often.
#![allow(dead_code, unreachable_pub)] // each test binary uses its part

pub mod bullet;
pub mod contents;
pub mod frozen;
pub mod history;
pub mod keys;
mod model;

use everdram::options::Clock;
use everdram::{EngineKind, Medium, MediumChoice, Options, Store};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// A place for a store, and its clock.
pub(crate) struct Bed {
    pub name: &'static str,
    pub clock: Arc<AtomicU64>,
    pub dir: TempDir,
    /// Engine of a new pool, and the one that is asked for.
    engine: EngineKind,
    medium: Medium,
    fixed: Option<(u32, u32)>,
    dimms: u32,
    /// Bytes that the front of the engine `bullet` may use.
    front_bytes: Option<u64>,
    /// The devdax device that is the pool, if it is not in `dir`.
    device: Option<PathBuf>,
    /// Where the values of the engine `dstore` are, if that is not beside the pool.
    data: Option<PathBuf>,
}

pub(crate) fn clock_of(time: &Arc<AtomicU64>) -> Clock {
    let time = Arc::clone(time);
    Arc::new(move || time.load(Ordering::Relaxed))
}

/// Counts one when it is dropped, also by a panic: a thread that goes on until others have ended has to end,
/// too.
pub(crate) struct Counted<'a>(pub &'a AtomicU64);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
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
            engine: EngineKind::default(),
            medium,
            fixed,
            dimms,
            front_bytes: None,
            device: None,
            data: None,
        }
    }

    /// On a DAX file system, or on a device, from which the pool before is erased.
    fn on_persistent_memory(
        name: &'static str,
        place: &Path,
        fixed: Option<(u32, u32)>,
        dimms: u32,
    ) -> Bed {
        let mut bed = Bed::new(name, Medium::Emulated, fixed, dimms);
        bed.medium = Medium::Pmem;
        if place.is_dir() {
            bed.dir = TempDir::new_in(place).unwrap();
        } else {
            everdram_pm::erase(place).unwrap();
            bed.device = Some(place.into());
            // A device has no directory, and files below real memory must be on a real disk.
            bed.dir = TempDir::new().unwrap();
            bed.data = Some(bed.dir.path().join("data"));
        }
        bed
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

    /// The same, with this engine.
    pub(crate) fn of(self, engine: EngineKind) -> Bed {
        let mut bed = Bed { engine, ..self };
        if let Some(device) = block_device()
            && engine == EngineKind::Dstore
        {
            println!("-- values on {}", device.display());
            forget_data(&device);
            bed.data = Some(device);
        }
        bed
    }

    /// The same, with a front of so many bytes.
    pub(crate) fn with_front(self, bytes: u64) -> Bed {
        Bed {
            front_bytes: Some(bytes),
            ..self
        }
    }

    pub(crate) fn medium(&self) -> Medium {
        self.medium
    }

    /// Whether the pool is a device, of which no copy is made.
    pub(crate) fn is_on_device(&self) -> bool {
        self.device.is_some()
    }

    pub(crate) fn path(&self) -> PathBuf {
        match &self.device {
            Some(device) => device.clone(),
            None => self.dir.path().join("pool"),
        }
    }

    pub(crate) fn options(&self) -> Options {
        let mut options = Options::default();
        options.engine = Some(self.engine);
        options.medium = MediumChoice::Only(self.medium);
        options.fixed = self.fixed;
        options.dimms = self.dimms;
        options.initial_bytes = 1 << 20;
        options.chunk_bytes = 1 << 20;
        options.max_bytes = 1 << 30;
        options.log_bytes = 16 << 20;
        // Small, so that logs are full all the time, buckets have several keys, and tables grow.
        options.bullet.logs = 4;
        options.bullet.log_bytes = 64 << 10;
        options.bullet.transaction_bytes = 8 << 10;
        options.bullet.depth = 10;
        options.bullet.front_bytes = self.front_bytes;
        options.dstore.logs = 4;
        options.dstore.log_bytes = 64 << 10;
        if self.engine == EngineKind::Dstore {
            options.dstore.data.clone_from(&self.data);
        }
        if self.engine == EngineKind::Tiered {
            // Nearly every record leaves the pool as soon as its block is full.
            options.max_bytes = 32 << 20;
            options.tiered.free = 0.9;
            options.tiered.segment_bytes = 1 << 20;
            // A device has no directory.
            options.tiered.below = self.device.as_ref().map(|_| self.dir.path().join("tier2"));
        }
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
        model::store(clock_of(clock))
    }
}

/// Makes a pool that is as a crash would leave this one: the files as they are.
pub(crate) fn copy_pool(from: &Path, to: &Path) {
    frozen::Frozen::take(from).lay(to);
}

/// The place of persistent memory that tests are asked to use by EVERDRAM_TEST_PMEM: a directory on a DAX
/// file system, or a devdax device. A device holds one pool, so tests that use one have to run one at a time.
fn persistent_memory() -> Option<PathBuf> {
    std::env::var_os("EVERDRAM_TEST_PMEM").map(PathBuf::from)
}

/// The block device that tests of the engine `dstore` are asked to keep their values on, by
/// EVERDRAM_TEST_DATA. It holds the values of one pool, so they have to run one at a time.
fn block_device() -> Option<PathBuf> {
    std::env::var_os("EVERDRAM_TEST_DATA").map(PathBuf::from)
}

/// Clears the beginning, as a new pool asks for.
fn forget_data(device: &Path) {
    let file = std::fs::File::options().write(true).open(device).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
}

/// Runs a test of an engine on every bed; on those of persistent memory alone if there is some.
pub(crate) fn each_bed(engine: EngineKind, test: impl Fn(&Bed)) {
    if let Some(place) = persistent_memory() {
        for (name, fixed, dimms) in [
            ("pmem", None, 6),
            ("pmem, fixed-size pages", Some((8, 16)), 6),
            ("pmem, one DIMM", None, 1),
        ] {
            println!("-- {name}, {}", place.display());
            test(&Bed::on_persistent_memory(name, &place, fixed, dimms).of(engine));
        }
        return;
    }
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
        test(&Bed::new(name, medium, fixed, dimms).of(engine));
    }
    if engine == EngineKind::Bullet {
        // Whatever may leave the front leaves it at once, or soon: the array takes 256 KiB.
        for front_bytes in [1, 320 << 10] {
            println!("-- emulated, {front_bytes} bytes in front");
            test(&Bed::emulated().of(engine).with_front(front_bytes));
        }
    }
}
