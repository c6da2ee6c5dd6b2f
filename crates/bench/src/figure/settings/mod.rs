//! What is measured and how much of it: as asked for, and otherwise as large as the machine allows.

pub(crate) mod curve;
mod left_out;
mod room;
mod turns;

pub(super) use room::SERVED_BYTES;
pub(super) use turns::PERCENTS;

use crate::figure::{Figure, Ground, Measure, Paper, System, Workers};
use crate::process;
use crate::subject::Error;
use anyhow::Context;
use curve::{Curve, Site};
use room::{DRAM_BYTES_A_RECORD, POOL_BYTES_A_RECORD, data_bytes};
use std::path::{Path, PathBuf};
use std::process::Command;

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

    pub(super) fn paper(&self) -> &'static Paper {
        self.figure.paper()
    }

    /// Seconds before each point that do not count.
    pub(super) fn warm_up_seconds(&self) -> f64 {
        self.seconds / 2.0
    }

    pub(super) fn data_dir(&self) -> Result<&Path, Error> {
        let dir = self.data_dir.as_deref();
        dir.context("no directory on a disk was given: --data-dir DIR")
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

    /// A server that is told to put its log below `.` would put it into its own directory.
    #[test]
    fn directories_are_told_whole() {
        let figure = Figure::find("ndhedis-4").unwrap();
        let here = Settings::here(figure, true, Path::new("."), Some(Path::new("logs")));
        assert!(here.dir.is_absolute() && here.data_dir.unwrap().is_absolute());
    }
}
