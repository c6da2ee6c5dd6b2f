//! What the machine can do at most: bare loops over the medium, without a store around them.
//!
//! [`records`] holds the limits that a store's figures are shares of, [`machine`] the costs that explain them,
//! [`files`] what a disk makes durable. All of them take memory that is present beforehand, and random numbers
//! that depend on no memory, so that nothing but the operation itself is in a loop.

pub mod files;
pub mod machine;
mod random;
pub mod records;

use crate::latency::Latency;
use crate::show::Table;
use crate::show::words::{bytes, rate, time};
use crate::subject::Error;
use crate::timing::{Sample, Spread};
use everdram_pm::FlushKind;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

pub use records::{Kind, Records};

/// What to measure, and over how much.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory on the medium that emulated persistent memory would lie on.
    pub dir: PathBuf,
    /// Directory on a disk, if that is to be measured.
    pub file_dir: Option<PathBuf>,
    /// Records in the pool.
    pub records: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Bytes over which loads are made that depend on one another.
    pub load_bytes: u64,
    /// Repetitions of each loop.
    pub repeat: usize,
    /// Shorter loops, for a first look.
    pub quick: bool,
}

/// A limit that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// `records`, `machine` or `files`.
    pub group: String,
    /// What it is called, for programs.
    pub name: String,
    /// What was done in the loop, for people.
    pub what: String,
    /// What one operation is: `record`, `load`, `page`, ...
    pub unit: String,
    /// Nanoseconds an operation, by the clock.
    pub wall_ns: Spread,
    /// Nanoseconds of the thread's processor time an operation.
    pub cpu_ns: Spread,
    /// Operations a second, by the clock.
    pub rate: Spread,
    /// Operations a second of the thread's processor time: steadier where others use the machine, too.
    pub cpu_rate: Spread,
    /// Bytes an operation moves, where the limit is one of bandwidth.
    pub bytes: Option<u64>,
    /// Latency of single operations in nanoseconds, where they were timed one by one.
    pub latency_ns: Option<Latency>,
}

impl Limit {
    /// From the repetitions of one loop.
    pub(crate) fn new(
        group: &str,
        name: &str,
        what: impl Into<String>,
        unit: &str,
        samples: &[Sample],
    ) -> Limit {
        Limit {
            group: group.into(),
            name: name.into(),
            what: what.into(),
            unit: unit.into(),
            wall_ns: Spread::of(samples.iter().map(Sample::wall_ns)),
            cpu_ns: Spread::of(samples.iter().map(Sample::cpu_ns)),
            rate: Spread::of(samples.iter().map(Sample::rate)),
            cpu_rate: Spread::of(samples.iter().map(Sample::cpu_rate)),
            bytes: None,
            latency_ns: None,
        }
    }
}

/// Measures everything, telling `progress` before each loop what it is and how far the work is (0 to 1).
///
/// # Errors
/// If the memory or the files cannot be had.
pub fn measure(
    settings: &Settings,
    progress: &mut dyn FnMut(f64, &str),
) -> Result<Vec<Limit>, Error> {
    let mut limits = Vec::new();
    let mut pool = Records::new(settings)?;
    let kinds = Kind::ALL.len() as f64;
    let mut samples = vec![Vec::new(); Kind::ALL.len()];
    // Repetitions go round all kinds, so that a disturbance does not hit one kind alone.
    for round in 0..settings.repeat {
        for (index, (kind, samples)) in Kind::ALL.iter().zip(&mut samples).enumerate() {
            let done = (round as f64 + index as f64 / kinds) / settings.repeat as f64;
            progress(done * 0.5, kind.name());
            samples.push(pool.run(*kind));
        }
    }
    for (kind, samples) in Kind::ALL.iter().zip(&samples) {
        limits.push(Limit::new(
            "records",
            kind.name(),
            kind.what(),
            "record",
            samples,
        ));
    }
    drop(pool);
    machine::measure(settings, &mut limits, &mut |done, name| {
        progress(0.5 + done * 0.4, name)
    })?;
    if let Some(dir) = &settings.file_dir {
        files::measure(dir, settings, &mut limits, &mut |done, name| {
            progress(0.9 + done * 0.1, name)
        })?;
    }
    progress(1.0, "done");
    Ok(limits)
}

/// Limits, and how they came about.
#[must_use]
pub fn table<'a>(limits: impl IntoIterator<Item = &'a Limit>) -> Table {
    let mut table = Table::new(
        "limit | each | CPU each | a second | best | of CPU | CPU, least to most | bandwidth \
             | p50 | p99 | what the loop does",
    );
    for limit in limits {
        let (cpu, latency) = (limit.cpu_ns, limit.latency_ns);
        table.push([
            limit.name.clone(),
            time(limit.wall_ns.median),
            time(cpu.median),
            rate(limit.rate.median),
            rate(limit.rate.max),
            rate(limit.cpu_rate.median),
            format!("{} to {}", time(cpu.min), time(cpu.max)),
            limit.bytes.map_or(String::new(), |each| {
                format!("{}/s", bytes(each as f64 * limit.rate.median))
            }),
            latency.map_or(String::new(), |latency| time(latency.p50 as f64)),
            latency.map_or(String::new(), |latency| time(latency.p99 as f64)),
            limit.what.clone(),
        ]);
    }
    table
}

/// How lines leave the cache here, and what orders them.
#[must_use]
pub fn instructions() -> String {
    FlushKind::detect().to_string()
}
