//! The figures of Bullet's paper, measured here: the eight systems under the paper's loads, on emulated
//! persistent memory with the delays of its platform.
//!
//! A worker is one thread with one session that between two requests takes its turn at the store's own work
//! ([`everdram::Session::turn`]). Systems take turns in several short rounds, each on a fresh store; what is
//! said of two systems are ratios within rounds, since the machine may be shared. Lines ([`Line`]) are what
//! was measured; pictures, tables and verdicts are made of lines and of nothing else.

mod board;
mod calls;
mod claims;
mod clients;
mod course;
mod crew;
mod curves;
mod draw;
mod line;
mod page;
mod setup;
mod stand;
mod stream;
mod verdict;

pub use draw::svg;
pub use line::{Calls, Conditions, Distribution, Line, Measured, Moment, Rate, Ratio, Series};
pub use page::{markdown, table};
pub use setup::Settings;
pub use verdict::{Verdict, bars, claims};

use crate::machine::{Machine, commit};
use crate::subject::Error;
use anyhow::ensure;
use everdram::options::BulletSystem;
use serde::{Deserialize, Serialize};
use stand::Stage;
use std::fmt;
use std::str::FromStr;

/// Which figure of the paper's section 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Latency against throughput.
    #[serde(rename = "bullet-5")]
    Bullet5,
    /// Distributions of latency.
    #[serde(rename = "bullet-6")]
    Bullet6,
    /// Throughput and gleaners over time.
    #[serde(rename = "bullet-7")]
    Bullet7,
    /// Throughput by size of the logs.
    #[serde(rename = "bullet-8")]
    Bullet8,
    /// Latency as independent clients see it.
    #[serde(rename = "bullet-9")]
    Bullet9,
}

impl Figure {
    /// All of them.
    pub const ALL: [Figure; 5] = [
        Figure::Bullet5,
        Figure::Bullet6,
        Figure::Bullet7,
        Figure::Bullet8,
        Figure::Bullet9,
    ];

    /// As the command line takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Figure::Bullet5 => "bullet-5",
            Figure::Bullet6 => "bullet-6",
            Figure::Bullet7 => "bullet-7",
            Figure::Bullet8 => "bullet-8",
            Figure::Bullet9 => "bullet-9",
        }
    }

    /// What it shows.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Figure::Bullet5 => "Latency against throughput, a point for each number of workers",
            Figure::Bullet6 => "How long gets and puts take",
            Figure::Bullet7 => "Throughput and gleaners while the share of writes changes",
            Figure::Bullet8 => "Throughput by size of each log",
            Figure::Bullet9 => "Latency that independent clients see",
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Figure {
    type Err = String;

    fn from_str(text: &str) -> Result<Figure, String> {
        let mut all = Figure::ALL.into_iter();
        all.find(|figure| figure.name() == text).ok_or_else(|| {
            let names = Figure::ALL.map(Figure::name);
            format!("figure `{text}`: one of {}", names.join(", "))
        })
    }
}

/// How far a measurement is, and what all its lines have in common.
struct Telling<'a> {
    progress: &'a mut dyn FnMut(f64, &str),
    what: String,
    done: usize,
    points: usize,
    line: Line,
}

impl Telling<'_> {
    /// A store is opened and filled.
    fn step(&mut self, what: &str) {
        self.what = what.to_owned();
        let words = format!("{what}: filling the store");
        (self.progress)(self.done as f64 / self.points.max(1) as f64, &words);
    }

    /// The next point is measured.
    fn point(&mut self) {
        (self.progress)(self.done as f64 / self.points.max(1) as f64, &self.what);
        self.done += 1;
    }

    /// Cores of this machine.
    fn cores(&self) -> usize {
        self.line.machine.cores.max(1)
    }

    /// A line of a system.
    fn line(&self, system: BulletSystem, measured: Measured) -> Line {
        Line {
            system: system.name().into(),
            measured,
            ..self.line.clone()
        }
    }
}

/// Measures a figure, telling `progress` how far it is (0 to 1) and what comes.
///
/// # Errors
/// No room, or what a store says; a wrong answer of it is an error, too.
pub fn measure(
    settings: &Settings,
    progress: &mut dyn FnMut(f64, &str),
) -> Result<Vec<Line>, Error> {
    settings.ensure_room()?;
    let several = [
        settings.systems.len(),
        settings.writes.len(),
        settings.threads.len(),
        settings.log_bytes.len(),
        settings.rounds,
    ];
    ensure!(
        several.iter().all(|count| *count > 0),
        "nothing to measure: {settings:?}"
    );
    let stage = Stage::new(settings);
    let mut telling = Telling {
        progress,
        what: String::new(),
        done: 0,
        points: settings.points(),
        line: line(settings),
    };
    let mut lines = match settings.figure {
        Figure::Bullet5 | Figure::Bullet8 => curves::measure(&stage, &mut telling),
        Figure::Bullet6 => calls::measure(&stage, &mut telling),
        Figure::Bullet7 => course::measure(&stage, &mut telling),
        Figure::Bullet9 => clients::measure(&stage, &mut telling),
    }?;
    line::compare(&mut lines);
    Ok(lines)
}

/// A line without what was measured.
fn line(settings: &Settings) -> Line {
    Line {
        figure: settings.figure,
        system: String::new(),
        writes_percent: settings.writes[0],
        threads: 0,
        clients: None,
        conditions: Conditions {
            version: env!("CARGO_PKG_VERSION").into(),
            medium: "emulated".into(),
            preset: setup::PRESET.into(),
            records: settings.records,
            key_bytes: setup::KEY_BYTES,
            value_bytes: setup::VALUE_BYTES,
            skew: crate::distribution::EXPONENT,
            logs: settings.logs(),
            log_bytes: settings.log_bytes[0],
            seconds: settings.seconds,
            warm_up_seconds: settings.warm_up_seconds(),
            rounds: settings.rounds,
            seed: settings.seed,
        },
        machine: Machine::here(&settings.dir),
        commit: commit(),
        measured: Measured::Course {
            moments: Vec::new(),
        },
    }
}
