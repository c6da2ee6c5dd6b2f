//! The figures of papers, measured here. Which there are, what each measures and draws (`bullet.json`), and
//! what the paper says of them (`bullet-claims.jsonl`) is data.
//!
//! A worker is one thread with one client that between two requests takes its turn at the store's own work
//! ([`crate::Client::turn`]). Systems take turns in several short rounds, each on a fresh store; what is said
//! of two systems are ratios within rounds, since the machine may be shared.

mod claims;
mod clients;
mod jobs;
mod measure;
mod page;
mod picture;
mod settings;
mod store;
mod stream;
mod workers;

pub use claims::{bars, claims};
pub use measure::measure;
pub use page::{markdown, table};
pub use picture::svg;
pub use settings::Settings;

use crate::row::{Metric, Row};
use crate::timing::Spread;
use serde::Deserialize;
use std::sync::LazyLock;

/// The system that others are compared with in tables.
const BASE: &str = "volatile";

/// A paper and its figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Paper {
    paper: String,
    short: String,
    /// Delay preset of its platform.
    delays: String,
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
    figures: Vec<Figure>,
}

static PAPERS: LazyLock<Vec<Paper>> = LazyLock::new(|| {
    let papers = [include_str!("bullet.json")];
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
    /// Percent of the requests that are puts.
    writes: Vec<f64>,
    workers: Workers,
    /// Sizes of logs, where these are what is compared.
    #[serde(default)]
    log_mib: Vec<u64>,
    /// Of each point in each round, and where it is to be quick.
    seconds: [f64; 2],
    rounds: [usize; 2],
    /// What tells a curve from others where claims speak of them.
    curves: String,
    picture: picture::Drawing,
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
}

/// How many workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Workers {
    /// From one to as many as there are cores; on a small machine to twice as many.
    Doubling,
    /// As many as there are cores.
    Cores,
    /// Half of that: the other half of the cores is the clients', as in the paper half of the sockets.
    Half,
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
        !self.log_mib.is_empty()
    }

    /// The figure that rows are of.
    fn of(rows: &[Row]) -> Option<&'static Figure> {
        Figure::find(&rows.first()?.suite).ok()
    }
}

/// What tells a row from others, as labels of curves and panels say it.
fn label(row: &Row, by: &str) -> String {
    match by {
        "system" => row.subject.clone(),
        "workload" => row.workload.clone(),
        "writes" => format!("{} % writes", row.say("writes")),
        "log_bytes" => mib(row.number("log_bytes") as u64),
        by => row.say(by),
    }
}

/// `4 MiB`, `512 KiB`.
fn mib(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{} KiB", bytes >> 10)
    }
}

/// A metric without the time in which workers had no core, where that is known: what is drawn and judged.
fn best(row: &Row, metric: Metric) -> Metric {
    let undisturbed = match metric {
        Metric::Rate => Metric::CoreRate,
        Metric::MeanNs => Metric::CoreMeanNs,
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
            (mib(4 << 20), mib(64 << 10)),
            ("4 MiB".into(), "64 KiB".into())
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
