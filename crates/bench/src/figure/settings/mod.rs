//! What is measured and how much of it: as asked for, and otherwise as large as the machine allows.

pub(crate) mod curve;

use crate::figure::fabric::{MISSING, POOL_BYTES};
use crate::figure::pattern;
use crate::figure::{Figure, Ground, Measure, Paper, System, Workers};
use crate::machine::Machine;
use crate::process;
use crate::row::Row;
use crate::subject::Error;
use crate::workload::sizes::Sizes;
use anyhow::{Context, bail};
use curve::{Curve, Site};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes that a record takes in the pool and beside it, generously.
const POOL_BYTES_A_RECORD: u64 = 320;
const DRAM_BYTES_A_RECORD: u64 = 320;
/// Bytes that a record takes beside its key and value, in the pool of a store that is half as large at first.
const BESIDE_RECORD_BYTES: u64 = 96;
/// Bytes of a pool beside records and logs, and of a process beside its store.
const BESIDE_BYTES: u64 = 128 << 20;
/// Percent of the records at which a store that is filled is looked at.
pub(super) const PERCENTS: [u64; 6] = [5, 10, 25, 50, 75, 100];
/// The least limit of a pool that has a log below it.
const LIMIT_BYTES: u64 = 2 << 20;
/// Bytes of values that a server is given at most before it is measured, and as many while it is.
pub(super) const SERVED_BYTES: u64 = 1 << 30;
/// Disks write whole blocks.
const BLOCK_BYTES: u64 = 4096;
/// What a rival takes on a disk for each byte of data, before it has compacted; and of memory as its cache.
const RIVAL_DISK: u64 = 3;
const RIVAL_DRAM: u64 = 2;
/// Logs that a rival keeps to use them again, where they are in memory.
const RIVAL_LOG_BYTES: u64 = 512 << 20;

/// A process that fills a store and waits to be killed.
pub type Filler = fn(&Settings, &Curve<'_>, &Site) -> Result<Command, Error>;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which figure.
    pub figure: &'static Figure,
    /// Directory that plays persistent memory: on tmpfs.
    pub dir: PathBuf,
    /// Directory on a disk, for figures that have a use for one.
    pub data_dir: Option<PathBuf>,
    /// Systems, in the order in which they take turns.
    pub systems: Vec<System>,
    /// What stores lie on, for figures that tell.
    pub grounds: Vec<Ground>,
    /// Delay models of the emulated medium, where they are several.
    pub delays: Vec<String>,
    /// Engines behind a fabric door, or systems of them, where they are several.
    pub back_ends: Vec<String>,
    /// Bytes of a value.
    pub values: Vec<usize>,
    /// Percent of the requests that are puts. Phases go through them one after another.
    pub writes: Vec<f64>,
    /// Numbers of workers; figures with one point for each system use the greatest.
    pub threads: Vec<usize>,
    /// The same where they wait for a disk.
    pub disk_threads: Vec<usize>,
    /// Numbers of clients, where there are clients.
    pub clients: Vec<usize>,
    /// Records that a store holds.
    pub records: u64,
    /// Bytes of a log.
    pub log_bytes: Vec<u64>,
    /// Seconds of each point or phase in each round.
    pub seconds: f64,
    /// Rounds in which the systems take turns.
    pub rounds: usize,
    /// Seconds between two looks at throughput and gleaners, of phases.
    pub sample_seconds: f64,
    /// Seed of all choices.
    pub seed: u64,
    /// How to start a process that is to be killed, for figures that kill one.
    pub filler: Option<Filler>,
    /// The program `everdram`, for figures of servers.
    pub program: Option<PathBuf>,
}

/// Bytes that a store needs.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    /// In the directory that plays persistent memory.
    emulated: u64,
    disk: u64,
    dram: u64,
}

impl Settings {
    /// For this machine; smaller and shorter if it is to be quick. Without a directory on a disk, what lies
    /// on one is left out.
    #[must_use]
    pub fn here(
        figure: &'static Figure,
        quick: bool,
        dir: &Path,
        data_dir: Option<&Path>,
    ) -> Settings {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Servers run in directories of their own, and are told these.
        let whole = |dir: &Path| std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        let mut settings = Settings::of(
            figure,
            quick,
            &whole(dir),
            cores,
            process::available_bytes(),
        );
        settings.data_dir = data_dir.map(whole);
        if data_dir.is_some() {
            settings.grounds = figure.grounds.clone();
        }
        settings.systems.retain(System::is_installed);
        settings
    }

    fn of(
        figure: &'static Figure,
        quick: bool,
        dir: &Path,
        cores: usize,
        available_bytes: u64,
    ) -> Settings {
        let paper = figure.paper();
        let which = usize::from(quick);
        let wanted = paper.records_a_core[which] * cores as u64;
        let values = match figure.values.len() {
            0 => vec![paper.value_bytes],
            _ => figure.values.clone(),
        };
        let has_data = paper.systems.have_data_files();
        let data = match has_data && figure.grounds.contains(&Ground::Modelled) {
            true => data_bytes(1, values.iter().copied().max().unwrap_or(0)),
            false => 0,
        };
        // Half of what is there: others have to live, too.
        let fit = available_bytes / 2 / (POOL_BYTES_A_RECORD + DRAM_BYTES_A_RECORD + data);
        let most = figure.records.unwrap_or(paper.records);
        let records = wanted.min(fit).clamp(1000, most);
        let all = figure.systems().into_iter();
        Settings {
            figure,
            dir: dir.to_owned(),
            data_dir: None,
            systems: all.filter(|system| figure.compares(system)).collect(),
            grounds: figure
                .grounds
                .iter()
                .copied()
                .filter(|ground| !ground.is_on_disk())
                .collect(),
            delays: figure.delays.clone(),
            back_ends: figure.back_ends.clone(),
            values,
            writes: figure.writes.clone(),
            disk_threads: match figure.workers {
                Workers::One => vec![1],
                _ => figure.disk_workers.as_ref().unwrap_or(&paper.disk_workers)[which].clone(),
            },
            threads: match figure.workers {
                Workers::One => vec![1],
                Workers::Doubling => doubling(if cores < 4 { 2 * cores } else { cores }),
                Workers::Cores => vec![cores.max(2)],
                Workers::Half => vec![(cores / 2).max(2)],
                Workers::ButOne => vec![(cores - 1).max(1)],
            },
            clients: match figure.measure {
                Measure::Clients => doubling(2 * (cores / 2).max(2)),
                _ => Vec::new(),
            },
            records,
            log_bytes: match figure.log_mib.len() {
                0 => vec![paper.log_mib[which] << 20],
                _ => figure.log_mib.iter().map(|mib| mib << 20).collect(),
            },
            seconds: figure.seconds[which],
            rounds: figure.rounds[which],
            sample_seconds: match paper.disk {
                Some(_) => 0.1,
                None if quick => 0.25,
                None => 1.0,
            },
            seed: 42,
            filler: None,
            program: None,
        }
    }

    /// What each turn is about, in order; systems take turns within a ground.
    pub(super) fn curves(&self) -> Vec<Curve<'_>> {
        let grounds: Vec<Option<Ground>> = match self.grounds.as_slice() {
            [] if self.figure.grounds.is_empty() => vec![None],
            grounds => grounds.iter().copied().map(Some).collect(),
        };
        let mut curves = Vec::new();
        let usual = std::slice::from_ref(&self.paper().delays);
        let delays = match self.delays.as_slice() {
            [] => usual,
            delays => delays,
        };
        let media = self.sizes().into_iter();
        let media = media.flat_map(|sizes| delays.iter().map(move |delays| (sizes, delays)));
        for (sizes, delays) in media {
            for ground in grounds.iter().copied() {
                let systems = self.systems.iter().copied();
                for system in systems.filter(|system| self.is_on(*system, ground)) {
                    let of = |log_bytes| {
                        Curve::new(self, system, ground, log_bytes, sizes).with_delays(delays)
                    };
                    if !self.back_ends.is_empty() {
                        let one = of(self.log_bytes[0]);
                        let all = self.back_ends.iter();
                        curves.extend(all.map(|back_end| one.with_back_end(back_end)));
                    } else if system.is_rival() {
                        curves.extend(self.sized(of(self.log_bytes[0])));
                    } else {
                        curves.extend(self.log_bytes.iter().copied().map(of));
                    }
                }
            }
        }
        curves.into_iter().flat_map(|one| self.asked(one)).collect()
    }

    /// A curve, by each distribution of keys of the figure; of rivals by the last alone.
    fn asked<'a>(&self, curve: Curve<'a>) -> Vec<Curve<'a>> {
        let keys = match (curve.system.is_rival(), self.figure.keys.as_slice()) {
            (_, []) => return vec![curve],
            (true, [.., last]) => std::slice::from_ref(last),
            (false, keys) => keys,
        };
        keys.iter().map(|keys| curve.with_keys(*keys)).collect()
    }

    /// Sizes of keys and values.
    fn sizes(&self) -> Vec<(Sizes, Sizes)> {
        let key = Sizes::Fixed(self.paper().key_bytes);
        let values = self.values.iter().map(|bytes| (key, Sizes::Fixed(*bytes)));
        match self.figure.sizes.is_empty() {
            true => values.collect(),
            false => self.figure.sizes.clone(),
        }
    }

    /// Whether a system is measured on a ground.
    #[must_use]
    pub fn is_on(&self, system: System, ground: Option<Ground>) -> bool {
        let is_alone = ground.is_some_and(|ground| self.figure.rivals_alone.contains(&ground));
        system.is_on(ground) && (system.is_rival() || !is_alone)
    }

    /// A rival, with memtables of each size that the figure wants.
    fn sized<'a>(&self, curve: Curve<'a>) -> Vec<Curve<'a>> {
        let sizes = self.figure.memtable_mib.iter();
        match self.figure.memtable_mib.is_empty() {
            true => vec![curve],
            false => sizes.map(|mib| curve.with_memtables(mib << 20)).collect(),
        }
    }

    /// Whether there is something to measure.
    #[must_use]
    pub fn has_turns(&self) -> bool {
        !self.curves().is_empty()
    }

    /// What of the figure is not measured, and what would change that.
    #[must_use]
    pub fn left_out(&self) -> Vec<(String, String)> {
        let mut left_out = Vec::new();
        for ground in &self.figure.grounds {
            if !self.grounds.contains(ground) {
                let why = match ground.is_on_disk() && self.data_dir.is_none() {
                    true => "give a directory on a disk: --data-dir DIR",
                    false => "not asked for",
                };
                let what = format!("ground {}, {}", ground.name().to_uppercase(), ground.what());
                left_out.push((what, why.into()));
            }
        }
        for ground in self
            .grounds
            .iter()
            .filter(|ground| **ground == Ground::Files)
        {
            let own = self.systems.iter().filter(|system| !system.is_rival());
            for system in own.filter(|system| !system.is_on(Some(*ground))) {
                let what = format!("{}, ground {}", system.name(), ground.name().to_uppercase());
                left_out.push((what, "it exists to be measured on memory".into()));
            }
        }
        for system in self.figure.systems() {
            if self.figure.compares(&system) && !system.is_installed() {
                let why = "redis-server is not installed; apt-get install redis-server";
                left_out.push((system.name().into(), why.into()));
            }
        }
        if self.figure.measure == Measure::Fabric {
            let missing = MISSING.map(|(what, why)| (what.to_owned(), why.to_owned()));
            left_out.extend(missing);
        }
        left_out.extend(self.figure.missing.iter().cloned());
        let has_rivals = self.systems.iter().any(System::is_rival);
        if self.figure.rivals && self.grounds.contains(&Ground::Disk) && !has_rivals {
            let why = "not asked for, or not in this build: cargo build --release -p everdram-cli --features rivals";
            left_out.push(("rivals".into(), why.into()));
        }
        left_out
    }

    pub(super) fn paper(&self) -> &'static Paper {
        self.figure.paper()
    }

    /// Seconds before each point that do not count.
    pub(super) fn warm_up_seconds(&self) -> f64 {
        self.seconds / 2.0
    }

    /// The same as rows.
    #[must_use]
    pub fn left_out_rows(&self) -> Vec<Row> {
        let machine = Machine::here(&self.dir);
        let left_out = self.left_out().into_iter();
        let row = |(what, why): (String, String)| Row::left_out(&what, &why, &machine);
        left_out.map(row).collect()
    }

    pub(super) fn data_dir(&self) -> Result<&Path, Error> {
        let dir = self.data_dir.as_deref();
        dir.context("no directory on a disk was given: --data-dir DIR")
    }

    /// Points, or phases, that are measured in all.
    pub(super) fn points(&self) -> usize {
        let of = |curve: &Curve<'_>| match self.figure.measure {
            Measure::Points | Measure::Tails => curve.threads().len() * self.writes.len(),
            Measure::Calls => self.writes.len().min(1),
            Measure::Phases => self.writes.len(),
            Measure::Clients => self.clients.len() * self.writes.len(),
            Measure::Fabric => self.writes.len(),
            Measure::Restart => 2,
            Measure::Growth => PERCENTS.len(),
            Measure::Overhead | Measure::Footprint | Measure::Servers | Measure::Steps => 1,
            Measure::Summary => 3,
            Measure::Patterns => curve.threads().len() * pattern::of(curve.system),
            Measure::Operations => curve.threads().len() * self.figure.operations.len(),
            Measure::Reclaiming => 4,
            Measure::Recovery => curve.threads().len(),
        };
        self.rounds * self.curves().iter().map(of).sum::<usize>()
    }

    fn needs(&self, curve: &Curve<'_>) -> Needs {
        let is_served = self.figure.measure == Measure::Servers;
        let has_data = self.paper().systems.have_data_files();
        let records = curve.records();
        let (data, pool) = match is_served {
            true => (
                2 * SERVED_BYTES + BESIDE_BYTES,
                3 * SERVED_BYTES + BESIDE_BYTES,
            ),
            false if has_data => (
                data_bytes(records, curve.value_bytes()) + BESIDE_BYTES,
                self.pool_bytes(curve),
            ),
            false => (
                records * (curve.record_bytes() + BESIDE_RECORD_BYTES) + BESIDE_BYTES,
                self.pool_bytes(curve),
            ),
        };
        let mut needs = Needs {
            dram: records * DRAM_BYTES_A_RECORD + BESIDE_BYTES,
            ..Needs::default()
        };
        match curve.ground {
            _ if curve.system.is_rival() => {
                let memtable = curve.memtable_bytes.unwrap_or(0);
                needs.disk = RIVAL_DISK * data + memtable;
                needs.dram = RIVAL_DRAM * data + memtable;
                if curve.system.stands_in_for().is_some() {
                    needs.emulated = memtable + RIVAL_LOG_BYTES;
                }
            }
            None => needs.emulated = pool,
            Some(Ground::Modelled) if has_data => needs.emulated = pool + data,
            Some(Ground::Modelled) => needs.emulated = pool,
            Some(Ground::Disk) => (needs.emulated, needs.disk) = (pool, data),
            // The redo log of the files is at most as large as what it is about.
            Some(Ground::Files) => needs.disk = 2 * pool + data,
        }
        needs
    }

    /// Limit of a pool that has a log below it.
    pub(super) fn limit_bytes(&self) -> Option<u64> {
        let records = self.figure.records.unwrap_or(self.paper().records);
        let bytes = self.figure.pool_bytes? * self.records / records;
        Some(bytes.max(LIMIT_BYTES))
    }

    /// Bytes of the pool of a system.
    pub(super) fn pool_bytes(&self, curve: &Curve<'_>) -> u64 {
        if self.figure.measure == Measure::Fabric {
            return POOL_BYTES * self.figure.topology.stores() as u64;
        }
        if curve.system.has_empty_pool() {
            return BESIDE_BYTES;
        }
        let each = match self.figure.measure {
            // Half as many records more are inserted.
            Measure::Operations | Measure::Reclaiming => {
                curve.record_bytes() * 3 / 2 + BESIDE_RECORD_BYTES
            }
            _ => POOL_BYTES_A_RECORD,
        };
        let bytes = curve.records() * each + curve.all_log_bytes() + BESIDE_BYTES;
        bytes.next_multiple_of(1 << 20)
    }

    /// Whether this build can measure it, and whether there is room for the largest store.
    ///
    /// # Errors
    /// Says what is needed, what there is, and what would help.
    pub fn ensure_possible(&self) -> Result<(), Error> {
        #[cfg(not(feature = "steps"))]
        if self.figure.measure == Measure::Steps {
            bail!(crate::figure::measure::steps::BUILD);
        }
        let disk_bytes = match &self.data_dir {
            Some(dir) => room_in(dir)?,
            None => 0,
        };
        let memory_bytes = process::available_bytes();
        self.ensure_room_of(room_in(&self.dir)?, disk_bytes, memory_bytes)
    }

    fn ensure_room_of(
        &self,
        dir_bytes: u64,
        disk_bytes: u64,
        memory_bytes: u64,
    ) -> Result<(), Error> {
        let curves = self.curves();
        let most = |of: fn(Needs) -> u64| {
            let all = curves.iter().map(|curve| of(self.needs(curve)));
            all.max().unwrap_or(0)
        };
        let (pool, disk) = (most(|needs| needs.emulated), most(|needs| needs.disk));
        // Memory that plays persistent memory is memory.
        let memory = most(|needs| needs.emulated + needs.dram);
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let logs = curves.iter().map(Curve::logs).max().unwrap_or(0);
        let what = format!("a store of {} records with {logs} logs", self.records);
        let remedy = match self.figure.measure {
            Measure::Servers => "name other directories with --dir and --data-dir",
            _ => "ask for fewer --records, or smaller logs with --log-bytes",
        };
        let needs = |dir: &Path, needed, free| {
            format!(
                "{}: {what} needs {} MiB there, and {} MiB are free: {remedy}",
                dir.display(),
                mib(needed),
                mib(free),
            )
        };
        if pool > dir_bytes {
            bail!(needs(&self.dir, pool, dir_bytes));
        }
        if let Some(dir) = self.data_dir.as_ref().filter(|_| disk > disk_bytes) {
            bail!(needs(dir, disk, disk_bytes));
        }
        if memory > memory_bytes {
            bail!(
                "{what} needs {} MiB of memory, {} MiB of it as persistent memory, and {} MiB are free: {remedy}",
                mib(memory),
                mib(pool),
                mib(memory_bytes),
            );
        }
        Ok(())
    }
}

fn room_in(dir: &Path) -> Result<u64, Error> {
    let room = rustix::fs::statvfs(dir)
        .with_context(|| format!("asking for the room in {}", dir.display()))?;
    Ok(room.f_bavail * room.f_frsize)
}

/// Bytes of so many values in blocks; a twentieth more for blocks that are free and not yet used again.
fn data_bytes(records: u64, value_bytes: usize) -> u64 {
    records * (value_bytes as u64).next_multiple_of(BLOCK_BYTES) * 21 / 20
}

/// 1, 2, 4 and so on, and `most` itself.
fn doubling(most: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |number| Some(number * 2));
    let mut numbers: Vec<usize> = powers.take_while(|number| *number < most).collect();
    numbers.push(most);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{Durability, Opener, Subject};
    use everdram::options::BulletSystem;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_run_is_as_large_as_the_machine_allows() {
        let of = |figure, quick, cores, memory| {
            let figure = Figure::find(figure).unwrap();
            Settings::of(figure, quick, Path::new("/nowhere"), cores, memory)
        };
        let here = of("bullet-5", false, 2, 20 * GIB);
        assert_eq!(here.records, 5_000_000);
        assert_eq!(here.threads, [1, 2, 4]);
        assert_eq!((here.curves()[0].logs(), here.systems.len()), (8, 8));
        assert_eq!(of("bullet-5", false, 64, 500 * GIB).records, 50_000_000);
        assert!(of("bullet-5", false, 16, 2 * GIB).records < 2_000_000);
        assert_eq!(of("bullet-5", false, 12, GIB).threads, [1, 2, 4, 8, 12]);
        assert_eq!(of("bullet-5", true, 2, 20 * GIB).records, 400_000);
        let last = of("bullet-9", true, 16, 20 * GIB);
        assert_eq!(
            (last.threads, last.clients),
            (vec![8], vec![1, 2, 4, 8, 16])
        );
        assert_eq!(of("bullet-7", false, 2, GIB).seconds, 30.0);
        // What it proposes fits.
        for memory in [GIB, 4 * GIB, 64 * GIB] {
            let small = of("bullet-5", true, 2, memory);
            small.ensure_room_of(memory / 2, 0, memory).unwrap();
        }
    }

    #[test]
    fn a_disk_without_room_is_refused_before_anything_is_measured() {
        let figure = Figure::find("dstore-8").unwrap();
        let mut here = Settings::of(figure, false, Path::new("/there"), 2, 22 * GIB);
        assert_eq!(here.records, 2_000_000);
        here.ensure_room_of(12 * GIB, 0, 22 * GIB).unwrap();
        here.data_dir = Some("/disk".into());
        here.grounds = figure.grounds.clone();
        let text = here.ensure_room_of(12 * GIB, 5 * GIB, 22 * GIB);
        let text = text.unwrap_err().to_string();
        assert!(
            text.contains("/disk") && text.contains("5120 MiB are free"),
            "{text}"
        );
        here.ensure_room_of(12 * GIB, 20 * GIB, 22 * GIB).unwrap();
    }

    /// A server that is told to put its log below `.` would put it into its own directory.
    #[test]
    fn directories_are_told_whole() {
        let figure = Figure::find("ndhedis-4").unwrap();
        let here = Settings::here(figure, true, Path::new("."), Some(Path::new("logs")));
        assert!(here.dir.is_absolute() && here.data_dir.unwrap().is_absolute());
    }

    /// Each system is measured with each size of logs, on each ground.
    #[test]
    fn turns_are_of_systems_on_grounds() {
        let of = |name: &str| {
            let figure = Figure::find(name).unwrap();
            Settings::of(figure, true, Path::new("/there"), 2, GIB)
        };
        let labels = |settings: &Settings| {
            let curves = settings.curves().into_iter();
            curves.map(|curve| curve.label()).collect::<Vec<_>>()
        };
        assert_eq!(
            labels(&of("dstore-1")),
            [
                "+oe, ground A, logs of 4 MiB",
                "+oe, ground A, logs of 256 MiB",
                "cow, ground A, logs of 4 MiB",
                "cow, ground A, logs of 256 MiB",
            ]
        );
        // A bound is on memory alone, and a run of all grounds does not end at it.
        let mut all = of("dstore-8");
        all.grounds = all.figure.grounds.clone();
        let on_files = |label: &String| label.ends_with("ground C");
        let on_files: Vec<String> = labels(&all).into_iter().filter(on_files).collect();
        assert_eq!(on_files, ["+oe, ground C", "cow, ground C"]);
        assert_eq!(all.left_out()[0].0, "inline, ground C");
        let mut both = of("dstore-t3");
        assert_eq!(
            labels(&both),
            [
                "+oe, ground A, values of 4 KiB",
                "+oe, ground A, values of 16 KiB"
            ]
        );
        both.grounds = vec![Ground::Modelled, Ground::Disk];
        assert_eq!(both.curves().len(), 4);
        assert_eq!(labels(&of("bullet-7")), ["+wrc"]);
    }

    /// Sizes are compared by as many bytes of records, and rivals are asked by one distribution of keys.
    #[test]
    fn turns_are_of_sizes_and_of_distributions() {
        let of = |name: &str| {
            let figure = Figure::find(name).unwrap();
            Settings::of(figure, true, Path::new("/there"), 2, 20 * GIB)
        };
        let mut sizes = of("viper-7");
        sizes.systems.truncate(1);
        let curves = sizes.curves();
        let labels: Vec<String> = curves.iter().map(Curve::label).collect();
        assert_eq!(labels[0], "viper-fixed, 8 + 8 B");
        assert_eq!(labels[3], "viper-fixed, 100 + 900 B");
        for curve in &curves {
            let bytes = curve.records() * curve.record_bytes();
            let wanted = sizes.records * 216;
            assert!(
                (wanted - curve.record_bytes()..=wanted).contains(&bytes),
                "{curve:?}"
            );
        }
        let mut asked = of("viper-13");
        asked.grounds.clone_from(&asked.figure.grounds);
        asked.systems = vec![asked.systems[0], System::Rival(&Rival)];
        let labels: Vec<String> = asked.curves().iter().map(Curve::label).collect();
        assert_eq!(
            labels,
            [
                "viper-fixed, ground A, uniform",
                "viper-fixed, ground A, zipfian",
                "rival, ground B, zipfian"
            ]
        );
        // No file of data blocks is beside a pool, and a rival has no block for each value.
        let curves = asked.curves();
        assert!(asked.needs(&curves[0]).emulated < GIB / 2);
        assert!(asked.needs(&curves[2]).disk < GIB);
    }

    /// A store with memtables, whose log is elsewhere.
    struct Rival;

    impl Opener for Rival {
        fn name(&self) -> &'static str {
            "rival"
        }
        fn version(&self) -> String {
            String::new()
        }
        fn durability(&self) -> Durability {
            Durability::EachWrite
        }
        fn open(&self, _: &Path, _: u64, _: usize) -> Result<Box<dyn Subject>, Error> {
            bail!("never opened")
        }
        fn stands_in_for(&self) -> Option<&'static str> {
            Some("another")
        }
        fn has_memtables(&self) -> bool {
            true
        }
    }

    #[test]
    fn rivals_go_both_ways_where_systems_do() {
        let figure = Figure::find("dstore-1").unwrap();
        assert!(figure.takes(&Rival));
        let mut here = Settings::of(figure, true, Path::new("/there"), 2, GIB);
        here.grounds = figure.grounds.clone();
        here.data_dir = Some("/disk".into());
        here.systems = vec![here.systems[0], System::Rival(&Rival)];
        let labels = |settings: &Settings| {
            let curves = settings.curves().into_iter();
            curves.map(|curve| curve.label()).collect::<Vec<_>>()
        };
        assert_eq!(
            labels(&here),
            [
                "+oe, ground A, logs of 4 MiB",
                "+oe, ground A, logs of 256 MiB",
                "rival, ground B, memtables of 4 MiB",
                "rival, ground B, memtables of 4 GiB",
            ]
        );
        // What stays in a memtable is in memory twice, if the log is in memory, too.
        let needs = |curve: usize| here.needs(&here.curves()[curve]);
        assert!(needs(3).dram > 4 * GIB && needs(3).emulated > 4 * GIB);
        assert!(needs(2).dram < 2 * GIB && needs(2).emulated < GIB);
        here.grounds = vec![Ground::Disk];
        assert!(here.has_turns());
        here.systems.truncate(1);
        assert!(!here.has_turns());
        // In other figures, memtables are as always.
        here.figure = Figure::find("dstore-8").unwrap();
        here.systems = vec![System::Rival(&Rival)];
        here.log_bytes.truncate(1);
        assert_eq!(labels(&here), ["rival, ground B"]);
    }

    /// What figures say of systems is true.
    #[test]
    fn every_figure_can_be_measured() {
        for figure in Figure::all() {
            let mut settings = Settings::of(figure, true, Path::new("/nowhere"), 2, GIB);
            settings.grounds.clone_from(&figure.grounds);
            assert!(settings.points() > 0 && !settings.systems.is_empty());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_is_needed() {
        let figure = Figure::find("bullet-6").unwrap();
        let mut here = Settings::of(figure, false, Path::new("/there"), 2, 20 * GIB);
        here.records = 10_000_000;
        let text = here
            .ensure_room_of(GIB, 0, 20 * GIB)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("/there") && text.contains("1024 MiB are free"),
            "{text}"
        );
        let text = here
            .ensure_room_of(20 * GIB, 0, 4 * GIB)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("--records") && text.contains("of memory"),
            "{text}"
        );
        here.systems = vec![System::Bullet(BulletSystem::Volatile)];
        here.ensure_room_of(GIB, 0, 4 * GIB).unwrap();
    }
}
