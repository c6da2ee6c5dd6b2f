//! The figures of papers, measured here. Which there are, what each measures and draws (`bullet.json`,
//! `dstore.json`, `ndhedis.json`, `rdmp.json`, `viper.json`), and what the papers say of them
//! (`bullet-claims.jsonl` and so on) is data.
//!
//! A worker is one thread with one client that between two requests takes its turn at the store's own work
//! ([`crate::Client::turn`]). Systems take turns in several short rounds, each on a fresh store; what is said
//! of two systems are ratios within rounds, since the machine may be shared.

mod claims;
mod fabric;
mod jobs;
mod measure;
mod page;
mod pattern;
mod picture;
mod progress;
mod settings;
mod store;
mod stream;
mod system;
mod workers;

pub use crate::workload::distribution::Keys;
pub use claims::{bars, claims};
pub use measure::operations::Operation;
pub use measure::{fill, measure};
pub use page::{left_out, markdown, table};
pub use pattern::Pattern;
pub use picture::{note, svg};
pub use settings::curve::{Curve, Site};
pub use settings::{Filler, Settings};
pub use system::{Ground, System, Viper};

use crate::row::{self, Metric, Row};
use crate::show::Table;
use crate::subject::{Durability, Opener};
use crate::timing::Spread;
use crate::workload::sizes::Sizes;
use fabric::Topology;
use serde::Deserialize;
use std::sync::LazyLock;
use system::Systems;

/// The system that others are compared with in tables.
const BASE: &str = "volatile";

/// A paper and its figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Paper {
    paper: String,
    short: String,
    /// What it compares.
    systems: Systems,
    /// Delay preset of its platform, and the model of its disk.
    delays: String,
    disk: Option<String>,
    key_bytes: usize,
    value_bytes: usize,
    /// Bytes of one write in a log, which say how often the logs turn over.
    logged_bytes: u64,
    /// Records of the paper.
    records: u64,
    /// Records here, so that loading takes seconds and not minutes; and where it is to be quick.
    records_a_core: [u64; 2],
    /// Size of each log in the paper; a quick run would fill none of these.
    log_mib: [u64; 2],
    /// Logs for each worker.
    logs_a_worker: usize,
    /// Numbers of workers that wait for a disk, and where it is to be quick.
    #[serde(default)]
    disk_workers: [Vec<usize>; 2],
    /// What rows were measured with, for a page and below a picture; conditions stand in braces.
    conditions: String,
    note: String,
    /// What the figures beside claims are.
    compared: String,
    figures: Vec<Figure>,
}

static PAPERS: LazyLock<Vec<Paper>> = LazyLock::new(|| {
    let papers = [
        include_str!("bullet.json"),
        include_str!("dstore.json"),
        include_str!("ndhedis.json"),
        include_str!("rdmp.json"),
        include_str!("viper.json"),
    ];
    let read = |text| serde_json::from_str(text).expect("a description of a paper's figures");
    papers.into_iter().map(read).collect()
});

/// A figure: what is measured, and how it is drawn.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// As the command line takes it; also the suite of its rows.
    pub name: String,
    /// In the paper.
    number: String,
    /// What it shows.
    pub what: String,
    /// What is measured.
    pub measure: Measure,
    /// Systems; none = all.
    #[serde(default)]
    systems: Vec<String>,
    /// Whether rivals take part, where there are any.
    #[serde(default)]
    rivals: bool,
    /// Delay models of the emulated medium, where they are several; none = the paper's usual one.
    #[serde(default)]
    delays: Vec<String>,
    /// What stores lie on; none = emulated persistent memory alone.
    #[serde(default)]
    grounds: Vec<Ground>,
    /// Those of them on which rivals alone are measured.
    #[serde(default)]
    rivals_alone: Vec<Ground>,
    /// Engines behind a fabric door, or systems of them, where it is not `viper` alone.
    #[serde(default)]
    back_ends: Vec<String>,
    /// Stores and clients, of a fabric door.
    #[serde(default)]
    topology: Topology,
    /// Bytes of a value, where it is not the paper's usual one.
    #[serde(default)]
    values: Vec<usize>,
    /// Sizes of keys and values, where keys have several or sizes are no fixed ones; then there are as many
    /// bytes of records of each, and not as many records.
    #[serde(default)]
    sizes: Vec<(Sizes, Sizes)>,
    /// By which distributions keys are asked for; none = zipfian. Rivals are asked by the last alone.
    #[serde(default)]
    keys: Vec<Keys>,
    /// What stores are asked for, where it is one operation after another.
    #[serde(default)]
    operations: Vec<Operation>,
    /// Percent of the requests that are puts.
    writes: Vec<f64>,
    workers: Workers,
    /// Numbers of workers that wait for a disk, and where it is to be quick; none = the paper's usual ones.
    disk_workers: Option<[Vec<usize>; 2]>,
    /// Records, where they are to be fewer than the paper's.
    records: Option<u64>,
    /// Sizes of logs, where they are not the paper's usual one.
    #[serde(default)]
    log_mib: Vec<u64>,
    /// Limit of a pool that has a log below it, for all records of the figure; less in proportion for fewer.
    pool_bytes: Option<u64>,
    /// Sizes of the memtables of rivals, which then take part only if they have some; none = as always.
    #[serde(default)]
    memtable_mib: Vec<u64>,
    /// Of each point in each round, and where it is to be quick.
    seconds: [f64; 2],
    rounds: [usize; 2],
    /// What tells a curve from others where claims speak of them.
    curves: String,
    /// What the table shows of each row; none = as rows of this kind are shown.
    #[serde(default)]
    columns: Vec<Metric>,
    picture: picture::Drawing,
    /// What the paper measured, for systems that are not to be had.
    printed: Option<Printed>,
    /// What is not as in the paper, and why.
    #[serde(default)]
    differs: String,
    /// What of it cannot be measured here, and why.
    #[serde(default)]
    missing: Vec<(String, String)>,
}

/// A table of the paper: heads, and a row for each of its systems.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Printed {
    heads: String,
    rows: Vec<Vec<String>>,
}

/// What is measured of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Throughput and latency for each number of workers and each share of writes.
    Points,
    /// How long single calls take.
    Calls,
    /// Throughput and gleaners over time, while the share of writes changes.
    Phases,
    /// What independent clients see, for each number of them and each share of writes.
    Clients,
    /// Percentiles of gets and of puts in each round, for each number of workers and each share of writes.
    Tails,
    /// What a put takes beyond the write of its data.
    Overhead,
    /// Bytes of DRAM, persistent memory and disk.
    Footprint,
    /// Bytes of a pool that are in use, while a store is filled.
    Growth,
    /// SETs a second of a server.
    Servers,
    /// Latency and work of the server by the way in which clients of a fabric door ask.
    Fabric,
    /// How long the steps of a put take.
    Steps,
    /// Opening after a clean stop and after a kill.
    Restart,
    /// The worst throughput, the worst latency, recovery and space.
    Summary,
    /// How long stores to memory take, by their pattern, without a store.
    Patterns,
    /// How many of each operation there are a second, for each number of workers.
    Operations,
    /// Throughput while room is reclaimed, and before.
    Reclaiming,
    /// Opening by numbers of threads.
    Recovery,
}

/// How many workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Workers {
    /// From one to as many as there are cores; on a small machine to twice as many.
    Doubling,
    /// One.
    One,
    /// As many as there are cores.
    Cores,
    /// Half of that: the other half of the cores is the clients', as in the paper half of the sockets.
    Half,
    /// All but one, which is for the store's own work.
    ButOne,
}

impl Figure {
    /// All figures.
    #[must_use]
    pub fn all() -> Vec<&'static Figure> {
        PAPERS.iter().flat_map(|paper| &paper.figures).collect()
    }

    /// The paper that it is of.
    fn paper(&self) -> &'static Paper {
        let mut papers = PAPERS.iter();
        let paper = papers.find(|paper| paper.figures.iter().any(|other| other.name == self.name));
        paper.expect("figures come from papers")
    }

    /// What the paper compares.
    #[must_use]
    pub fn systems(&self) -> Vec<System> {
        System::all(self.paper().systems)
    }

    /// Whether it compares this system of the paper.
    fn compares(&self, system: &System) -> bool {
        self.systems.is_empty() || self.systems.iter().any(|name| name == system.name())
    }

    /// Whether rivals take part in it, where they are built in and there is a disk.
    #[must_use]
    pub fn has_rivals(&self) -> bool {
        self.rivals
    }

    /// Whether this one can.
    #[must_use]
    pub fn takes(&self, rival: &dyn Opener) -> bool {
        let is_sized = self.memtable_mib.is_empty() || rival.has_memtables();
        self.rivals && is_sized && rival.durability() == Durability::EachWrite
    }

    /// What stores of it may lie on; none: it does not tell.
    #[must_use]
    pub fn grounds(&self) -> &[Ground] {
        &self.grounds
    }

    /// Whether memory of the process is measured, so that each system needs a process of its own.
    #[must_use]
    pub fn wants_own_process(&self) -> bool {
        matches!(self.measure, Measure::Footprint | Measure::Summary)
    }

    /// The one of this name.
    ///
    /// # Errors
    /// Says which there are.
    pub fn find(name: &str) -> Result<&'static Figure, String> {
        let mut all = Figure::all().into_iter();
        all.find(|figure| figure.name == name).ok_or_else(|| {
            let names: Vec<&str> = Figure::all().iter().map(|other| &*other.name).collect();
            format!("figure `{name}`: one of {}", names.join(", "))
        })
    }

    /// Whether stores with logs of several sizes are compared.
    #[must_use]
    pub fn has_sizes_of_logs(&self) -> bool {
        self.log_mib.len() > 1
    }

    /// Where it is in the paper.
    fn place(&self) -> String {
        match self.number.starts_with(char::is_alphabetic) {
            true => self.number.clone(),
            false => format!("figure {}", self.number),
        }
    }

    /// Where it is from: `figure 5 of Bullet (USENIX ATC 2018)`.
    #[must_use]
    pub fn source(&self) -> String {
        format!(
            "{} of {}",
            self.place(),
            self.paper().paper.replace('*', "")
        )
    }

    /// What is not as in the paper, and why.
    #[must_use]
    pub fn differs(&self) -> Option<&str> {
        Some(&*self.differs).filter(|text| !text.is_empty())
    }

    /// What the paper measured, for what is not to be had here, if it prints that.
    #[must_use]
    pub fn printed(&self) -> Option<Table> {
        let printed = self.printed.as_ref()?;
        let mut table = Table::new(&printed.heads);
        for row in &printed.rows {
            table.push_all(row.clone());
        }
        Some(table)
    }

    /// The figure that rows are of.
    fn of(rows: &[Row]) -> Option<&'static Figure> {
        Figure::find(&rows.first()?.suite).ok()
    }
}

/// Rows of what was measured; others say what was left out.
fn measured(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter().filter(|row| row.suite != row::LEFT_OUT)
}

/// What tells a row from others, as labels of curves and panels say it; several things with commas between.
fn label(row: &Row, by: &str) -> String {
    let parts: Vec<String> = by.split(", ").map(|part| label_of(row, part)).collect();
    parts.join(", ")
}

fn label_of(row: &Row, by: &str) -> String {
    match by {
        "system" if is_stand_in(row) => format!("{} (stand-in)", row.subject),
        "system" => row.subject.clone(),
        "workload" => row.workload.clone(),
        "writes" => format!("{} % writes", row.say("writes")),
        "back end" => row.say("engine"),
        "log_bytes" if row.number("memtable_bytes") > 0.0 => {
            mib(row.number("memtable_bytes") as u64)
        }
        "log_bytes" => mib(row.number("log_bytes") as u64),
        "ground" => format!("ground {}", row.say("ground").to_uppercase()),
        by => row.say(by),
    }
}

/// Whether it was measured in the place of something that is not to be had.
fn is_stand_in(row: &Row) -> bool {
    !row.say("stands_in_for").is_empty()
}

/// `4 GiB`, `4 MiB`, `512 KiB`, `64 B`.
fn mib(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 30) {
        format!("{} GiB", bytes >> 30)
    } else if bytes.is_multiple_of(1 << 20) {
        format!("{} MiB", bytes >> 20)
    } else if bytes < 1 << 10 {
        format!("{bytes} B")
    } else {
        format!("{} KiB", bytes >> 10)
    }
}

/// Conditions in the braces of a text.
fn filled_in(text: &str, row: &Row) -> String {
    let mut parts = text.split('{');
    let mut filled = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let (condition, rest) = part.split_once('}').unwrap_or((part, ""));
        filled.push_str(&match condition {
            "cores" => row.machine.cores.to_string(),
            "records in short" => match row.number("records") {
                records if records >= 1e6 => format!("{:.1} M", records / 1e6),
                records => format!("{:.0} k", records / 1e3),
            },
            "rounds in words" if row.number("rounds") == 1.0 => "1 round".into(),
            "rounds in words" => format!("{} rounds", row.say("rounds")),
            condition => row.say(condition),
        });
        filled.push_str(rest);
    }
    filled
}

/// A metric without the time in which workers had no core, where that is known: what is drawn and judged.
fn best(row: &Row, metric: Metric) -> Metric {
    let undisturbed = match metric {
        Metric::Rate => Metric::CoreRate,
        Metric::MeanNs => Metric::CoreMeanNs,
        Metric::P50Ns => Metric::CoreP50Ns,
        Metric::P99Ns => Metric::CoreP99Ns,
        Metric::P999Ns => Metric::CoreP999Ns,
        Metric::P9999Ns => Metric::CoreP9999Ns,
        metric => metric,
    };
    match row.spread(undisturbed) {
        Some(_) => undisturbed,
        None => metric,
    }
}

/// The median of what one is of the other in the same round; `None` without a round.
fn ratio(one: &[f64], other: &[f64]) -> Option<f64> {
    let pairs = one.iter().zip(other).filter(|(_, other)| **other > 0.0);
    let ratios: Vec<f64> = pairs.map(|(one, other)| one / other).collect();
    (!ratios.is_empty()).then(|| Spread::of(ratios).median)
}

/// A metric of a row beside the same of `volatile` under the same load, if that was measured.
#[must_use]
pub fn of_volatile(rows: &[Row], row: &Row, metric: Metric) -> Option<f64> {
    let key = |row: &Row| (row.threads, row.workload.clone());
    let is_base = |base: &&Row| {
        base.subject == BASE && key(base) == key(row) && base.conditions == row.conditions
    };
    let base = rows.iter().find(is_base)?;
    ratio(row.rounds(metric), base.rounds(metric))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        // A machine that is slow in one round is slow for both.
        assert_eq!(ratio(&[1.0, 10.0, 2.0], &[2.0, 20.0, 4.0]), Some(0.5));
        assert_eq!(ratio(&[1.0, 8.0, 1.0], &[2.0, 2.0, 2.0]), Some(0.5));
        assert_eq!(ratio(&[], &[1.0]), None);
        assert_eq!(ratio(&[1.0], &[0.0]), None);
    }

    #[test]
    fn logs_are_named_by_their_size() {
        assert_eq!(
            [mib(4 << 30), mib(4 << 20), mib(64 << 10)],
            ["4 GiB", "4 MiB", "64 KiB"]
        );
    }

    #[test]
    fn figures_are_found_by_name() {
        for figure in Figure::all() {
            assert_eq!(Figure::find(&figure.name), Ok(figure));
        }
        assert!(Figure::find("bullet-4").unwrap_err().contains("bullet-5"));
    }
}
