//! What is measured and how much of it: as asked for, and otherwise as large as the machine allows.

use super::{Figure, Measure, Paper, Workers};
use crate::process;
use crate::subject::Error;
use crate::workload::sizes::Sizes;
use anyhow::{Context, bail};
use everdram::options::BulletSystem;
use std::path::{Path, PathBuf};

/// Logs of a store, at least and at most.
const LOGS: std::ops::RangeInclusive<usize> = 4..=128;
/// Bytes that a record takes in the pool and beside it, generously.
const POOL_BYTES_A_RECORD: u64 = 320;
const DRAM_BYTES_A_RECORD: u64 = 320;
/// Bytes of a pool beside records and logs, and of a process beside its store.
const BESIDE_BYTES: u64 = 128 << 20;

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Which figure.
    pub figure: &'static Figure,
    /// Directory that plays persistent memory: on tmpfs.
    pub dir: PathBuf,
    /// Systems, in the order in which they take turns.
    pub systems: Vec<BulletSystem>,
    /// Percent of the requests that are puts. Phases go through them one after another.
    pub writes: Vec<f64>,
    /// Numbers of workers; figures with one point for each system use the greatest.
    pub threads: Vec<usize>,
    /// Numbers of clients, where there are clients.
    pub clients: Vec<usize>,
    /// Records that a store holds.
    pub records: u64,
    /// Bytes of a log, of which a worker has two.
    pub log_bytes: Vec<u64>,
    /// Seconds of each point or phase in each round.
    pub seconds: f64,
    /// Rounds in which the systems take turns.
    pub rounds: usize,
    /// Seconds between two looks at throughput and gleaners, of phases.
    pub sample_seconds: f64,
    /// Seed of all choices.
    pub seed: u64,
}

impl Settings {
    /// For this machine; smaller and shorter if it is to be quick.
    #[must_use]
    pub fn here(figure: &'static Figure, quick: bool, dir: &Path) -> Settings {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Settings::of(figure, quick, dir, cores, process::available_bytes())
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
        // Half of what is there: others have to live, too.
        let fit = available_bytes / 2 / (POOL_BYTES_A_RECORD + DRAM_BYTES_A_RECORD);
        let records = wanted.min(fit).clamp(1000, paper.records);
        let named = figure.systems.iter().map(|name| name.parse());
        let named: Vec<BulletSystem> = named.map(|name| name.expect("a system")).collect();
        Settings {
            figure,
            dir: dir.to_owned(),
            systems: match named.len() {
                0 => BulletSystem::ALL.to_vec(),
                _ => named,
            },
            writes: figure.writes.clone(),
            threads: match figure.workers {
                Workers::Doubling => doubling(if cores < 4 { 2 * cores } else { cores }),
                Workers::Cores => vec![cores.max(2)],
                Workers::Half => vec![(cores / 2).max(2)],
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
            sample_seconds: if quick { 0.25 } else { 1.0 },
            seed: 42,
        }
    }

    pub(super) fn paper(&self) -> &'static Paper {
        self.figure.paper()
    }

    /// Seconds before each point that do not count.
    pub(super) fn warm_up_seconds(&self) -> f64 {
        self.seconds / 2.0
    }

    /// The greatest number of workers.
    pub(super) fn workers(&self) -> usize {
        self.threads.iter().copied().max().unwrap_or(1)
    }

    /// Logs of a store.
    pub(super) fn logs(&self) -> usize {
        (self.paper().logs_a_worker * self.workers()).clamp(*LOGS.start(), *LOGS.end())
    }

    pub(super) fn keys(&self) -> (Sizes, Sizes) {
        let paper = self.paper();
        (
            Sizes::Fixed(paper.key_bytes),
            Sizes::Fixed(paper.value_bytes),
        )
    }

    /// Bytes of the pool of a system with logs of so many bytes.
    pub(super) fn pool_bytes(&self, system: BulletSystem, log_bytes: u64) -> u64 {
        if system == BulletSystem::Volatile {
            return BESIDE_BYTES;
        }
        let logs = self.logs() as u64 * log_bytes;
        (self.records * POOL_BYTES_A_RECORD + logs + BESIDE_BYTES).next_multiple_of(1 << 20)
    }

    /// Points, or phases, that are measured in all.
    pub(super) fn points(&self) -> usize {
        let curve = match self.figure.measure {
            Measure::Points => self.threads.len() * self.writes.len(),
            Measure::Calls => self.writes.len().min(1),
            Measure::Phases => self.writes.len(),
            Measure::Clients => self.clients.len() * self.writes.len(),
        };
        self.rounds * self.systems.len() * self.log_bytes.len() * curve
    }

    /// Whether there is room for the largest store.
    ///
    /// # Errors
    /// Says what is needed, what there is, and what would help.
    pub fn ensure_room(&self) -> Result<(), Error> {
        let dir = self.dir.display();
        let room = rustix::fs::statvfs(&self.dir)
            .with_context(|| format!("asking for the room in {dir}"))?;
        self.ensure_room_of(room.f_bavail * room.f_frsize, process::available_bytes())
    }

    fn ensure_room_of(&self, dir_bytes: u64, memory_bytes: u64) -> Result<(), Error> {
        let log_bytes = self.log_bytes.iter().copied().max().unwrap_or(0);
        let pools = self
            .systems
            .iter()
            .map(|system| self.pool_bytes(*system, log_bytes));
        let pool = pools.max().unwrap_or(0);
        let dram = self.records * DRAM_BYTES_A_RECORD + BESIDE_BYTES;
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let remedy = "ask for fewer --records, or smaller logs with --log-bytes";
        if pool > dir_bytes {
            bail!(
                "{}: a store of {} records with {} logs needs {} MiB there, and {} MiB are free: {remedy}",
                self.dir.display(),
                self.records,
                self.logs(),
                mib(pool),
                mib(dir_bytes),
            );
        }
        // Memory that plays persistent memory is memory.
        if pool + dram > memory_bytes {
            bail!(
                "a store of {} records with {} logs needs {} MiB of memory, {} MiB of it as persistent memory, and {} MiB \
                 are free: {remedy}",
                self.records,
                self.logs(),
                mib(pool + dram),
                mib(pool),
                mib(memory_bytes),
            );
        }
        Ok(())
    }
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
        assert_eq!((here.logs(), here.systems.len()), (8, 8));
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
            small.ensure_room_of(memory / 2, memory).unwrap();
        }
    }

    /// What figures say of systems is true.
    #[test]
    fn every_figure_can_be_measured() {
        for figure in Figure::all() {
            let settings = Settings::of(figure, true, Path::new("/nowhere"), 2, GIB);
            assert!(settings.points() > 0 && !settings.systems.is_empty());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_is_needed() {
        let figure = Figure::find("bullet-6").unwrap();
        let mut here = Settings::of(figure, false, Path::new("/there"), 2, 20 * GIB);
        here.records = 10_000_000;
        let text = here.ensure_room_of(GIB, 20 * GIB).unwrap_err().to_string();
        assert!(
            text.contains("/there") && text.contains("1024 MiB are free"),
            "{text}"
        );
        let text = here
            .ensure_room_of(20 * GIB, 4 * GIB)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("--records") && text.contains("of memory"),
            "{text}"
        );
        here.systems = vec![BulletSystem::Volatile];
        here.ensure_room_of(GIB, 4 * GIB).unwrap();
    }
}
