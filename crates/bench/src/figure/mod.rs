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
use crate::named::named;
use crate::subject::Error;
use anyhow::ensure;
use everdram::options::BulletSystem;
use stand::Stage;

named! {
    /// Which figure of the paper's section 5.
    Figure, "figure":
    Bullet5 = "bullet-5": "Latency against throughput, a point for each number of workers",
    Bullet6 = "bullet-6": "How long gets and puts take",
    Bullet7 = "bullet-7": "Throughput and gleaners while the share of writes changes",
    Bullet8 = "bullet-8": "Throughput by size of each log",
    Bullet9 = "bullet-9": "Latency that independent clients see",
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
            skew: crate::workload::distribution::EXPONENT,
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
