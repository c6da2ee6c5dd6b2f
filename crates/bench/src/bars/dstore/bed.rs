//! A store that is measured, the file with its values, and the bare loop on the same media.

use super::{Group, Outcome, Settings};
use crate::everdram::Everdram;
use crate::fixture::{Fixture, Place, Script};
use crate::limits::data::{self, BarePut, DELAYS, Places};
use crate::pace::Timing;
use crate::pass::Passed;
use crate::process;
use crate::subject::Error;
use crate::workload::Workload;
use crate::workload::corpus::Corpus;
use crate::workload::sizes::Sizes;
use anyhow::Context;
use everdram::{EngineKind, Medium, Store};
use everdram_pm::limits::Slowness;
use std::path::{Path, PathBuf};

/// Bytes of the keys.
const KEY_BYTES: usize = 16;
/// Bytes of an object beside its value, generously: slot, key and their shadow, index, order.
const BESIDE_BYTES: u64 = 512;
/// Operations of the first part of a warm-up, which says how many there can be.
const FIRST: u64 = 256;

/// The media of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// Emulated memory and a data file on tmpfs, with the delays of the paper's devices.
    Modelled,
    /// The same without delays.
    Memory,
    /// Emulated memory, the data file on the disk.
    Disk,
    /// Pool and data file on the disk.
    Files,
}

impl Ground {
    /// As bars call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Ground::Modelled => "modelled",
            Ground::Memory => "memory",
            Ground::Disk => "disk",
            Ground::Files => "files",
        }
    }

    pub(super) fn slowness(self) -> Result<Slowness, Error> {
        match self {
            Ground::Modelled => data::delays(),
            _ => Ok(Slowness::default()),
        }
    }

    /// How stores on it are opened, but for the data file.
    pub(super) fn opener(self) -> Everdram {
        let medium = match self {
            Ground::Files => Medium::File,
            _ => Medium::Emulated,
        };
        let mut opener = Everdram {
            engine: EngineKind::Dstore,
            ..Everdram::on(medium)
        };
        if self == Ground::Modelled {
            opener.delay = Some(DELAYS.0.into());
            opener.dstore.data_delay = Some(DELAYS.1.into());
        }
        opener
    }

    fn pool_dir(self, settings: &Settings) -> &Path {
        match self {
            Ground::Files => &settings.file_dir,
            _ => &settings.dir,
        }
    }

    pub(super) fn data_dir(self, settings: &Settings) -> &Path {
        match self {
            Ground::Modelled | Ground::Memory => &settings.dir,
            Ground::Disk | Ground::Files => &settings.file_dir,
        }
    }

    /// Objects with values of `bytes` for so many stores at a time: what half of the room takes.
    pub(super) fn records(
        self,
        settings: &Settings,
        bytes: usize,
        stores: u64,
    ) -> Result<u64, Error> {
        let value_bytes = bytes as u64;
        let memory_bytes = process::available_bytes() / 2 / stores;
        let records = match self {
            Ground::Modelled | Ground::Memory => memory_bytes / (value_bytes + BESIDE_BYTES),
            Ground::Disk | Ground::Files => {
                let dir = &settings.file_dir;
                let room = rustix::fs::statvfs(dir)
                    .with_context(|| format!("asking for the room in {}", dir.display()))?;
                let disk_bytes = room.f_bavail * room.f_frsize / 2 / stores;
                (disk_bytes / value_bytes).min(memory_bytes / BESIDE_BYTES)
            }
        };
        Ok(records.min(settings.records).max(1))
    }

    /// The bare write of a value of `bytes` on it.
    pub(super) fn bare_put(
        self,
        settings: &Settings,
        bytes: usize,
        places: Places,
    ) -> Result<BarePut, Error> {
        let dir = self.data_dir(settings);
        BarePut::new(&settings.dir, dir, (bytes, places), &self.slowness()?)
    }
}

/// Objects with values of this size.
pub(super) fn corpus(settings: &Settings, bytes: usize) -> Corpus {
    let (keys, values) = (Sizes::Fixed(KEY_BYTES), Sizes::Fixed(bytes));
    Corpus::new(keys, values, settings.seed)
}

/// A store that holds its objects.
pub(super) struct Bed<'a> {
    pub(super) fixture: Fixture<'a>,
    pub(super) records: u64,
    // After the store, which has it open.
    data: Place,
    settings: &'a Settings,
    group: Group,
}

impl<'a> Bed<'a> {
    /// On these media, with whatever `set` changes.
    pub(super) fn filled(
        (settings, group): (&'a Settings, Group),
        ground: Ground,
        (corpus, records): (&'a Corpus, u64),
        set: impl FnOnce(&mut Everdram),
    ) -> Result<Bed<'a>, Error> {
        let data = Place::within(ground.data_dir(settings))?;
        let mut opener = ground.opener();
        set(&mut opener);
        if opener.engine == EngineKind::Dstore {
            opener.dstore.data = Some(data_file(&data));
        }
        let fixture = Fixture::open(&opener, ground.pool_dir(settings), corpus, records)?;
        fixture.load(records, 1)?;
        Ok(Bed {
            fixture,
            records,
            data,
            settings,
            group,
        })
    }

    /// The file with its values.
    pub(super) fn data_path(&self) -> PathBuf {
        data_file(&self.data)
    }

    pub(super) fn store(&self) -> Result<&Store, Error> {
        self.fixture.subject.store().context("no store of everdram")
    }

    /// One of its own counters.
    pub(super) fn count(&self, name: &str) -> Result<u64, Error> {
        let stats = self.store()?.stats();
        stats
            .own(name)
            .with_context(|| format!("no counter {name}"))
    }

    pub(super) fn script(&self, workload: Workload, threads: usize) -> Script {
        Script::new(workload, self.records, threads, self.settings.seed)
    }

    /// Asks for a while, and says how many operations take as long as a measurement.
    pub(super) fn warm_up(
        &mut self,
        script: &mut Script,
        how: (usize, Timing),
    ) -> Result<u64, Error> {
        let mut operations = FIRST * how.0 as u64;
        let mut passed = Passed::default();
        for part in [8.0, 1.0] {
            let steps = script.write(operations.div_ceil(script.threads() as u64));
            passed = self.fixture.pass(&steps, (how.0, how.1, false))?;
            operations = (passed.sample.rate() * self.settings.seconds / part) as u64;
            operations = operations.max(FIRST);
        }
        drop(passed);
        Ok(operations)
    }

    /// The next operations of a script.
    pub(super) fn pass(
        &mut self,
        script: &mut Script,
        operations: u64,
        (batch, timing): (usize, Timing),
        outcome: &mut Outcome,
    ) -> Result<Passed, Error> {
        let threads = script.threads();
        let steps = script.write(operations.div_ceil(threads as u64));
        let passed = self.fixture.pass(&steps, (batch, timing, false))?;
        outcome.note(self.group, &passed, threads);
        Ok(passed)
    }
}

fn data_file(place: &Place) -> PathBuf {
    place.path().join("data")
}
