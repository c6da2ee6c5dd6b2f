//! What the machine can do at most: bare loops over the medium, without a store around them.
//!
//! [`records`] holds the limits that a store's figures are shares of, [`machine`] the costs that explain them,
//! [`files`] what a disk makes durable, [`data`] what values on a data file cost. All of them take memory that is present beforehand, and random numbers
//! that depend on no memory, so that nothing but the operation itself is in a loop.

pub mod data;
pub mod files;
pub mod machine;
mod random;
pub mod records;

use crate::machine::Machine;
use crate::row::{LIMITS, Metric, Row};
use crate::show::Table;
use crate::show::words::{bytes, rate, time};
use crate::subject::Error;
use crate::timing::Sample;
use everdram_pm::FlushKind;
use serde_json::json;
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

/// Rows of bare loops, and what they have in common.
struct Limits<'a> {
    settings: &'a Settings,
    machine: Machine,
    rows: Vec<Row>,
}

impl Limits<'_> {
    /// Adds a loop from its repetitions: its group, name and what it does; `unit` is what one operation is.
    fn add(
        &mut self,
        (group, name): (&str, &str),
        what: &str,
        unit: &str,
        samples: &[Sample],
    ) -> &mut Row {
        let settings = self.settings;
        let conditions = json!({
            "group": group,
            "unit": unit,
            "records": settings.records,
            "key": settings.key_bytes,
            "value": settings.value_bytes,
            "quick": settings.quick,
        });
        let mut row = Row::new(LIMITS, name, what, 1, conditions, &self.machine);
        for (metric, of) in [
            (Metric::WallNs, Sample::wall_ns as fn(&Sample) -> f64),
            (Metric::CpuNs, Sample::cpu_ns),
            (Metric::Rate, Sample::rate),
            (Metric::CpuRate, Sample::cpu_rate),
        ] {
            row.extend(metric, samples.iter().map(of));
        }
        self.rows.push(row);
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }
}

/// Measures everything, telling `progress` before each loop what it is and how far the work is (0 to 1).
///
/// # Errors
/// If the memory or the files cannot be had.
pub fn measure(
    settings: &Settings,
    progress: &mut dyn FnMut(f64, &str),
) -> Result<Vec<Row>, Error> {
    let mut limits = Limits {
        settings,
        machine: Machine::here(&settings.dir),
        rows: Vec::new(),
    };
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
        limits.add(("records", kind.name()), kind.what(), "record", samples);
    }
    drop(pool);
    machine::measure(&mut limits, &mut |done, name| {
        progress(0.5 + done * 0.3, name)
    })?;
    data::measure(&mut limits, &mut |done, name| {
        progress(0.8 + done * 0.1, name)
    })?;
    if let Some(dir) = &settings.file_dir {
        files::measure(dir, &mut limits, &mut |done, name| {
            progress(0.9 + done * 0.1, name)
        })?;
    }
    progress(1.0, "done");
    Ok(limits.rows)
}

/// Limits, and how they came about.
#[must_use]
pub fn table<'a>(limits: impl IntoIterator<Item = &'a Row>) -> Table {
    let mut table = Table::new(
        "limit | each | CPU each | a second | best | of CPU | CPU, least to most | bandwidth \
             | p50 | p99 | what the loop does",
    );
    for row in limits {
        let (cpu, speed) = (row.get(Metric::CpuNs), row.get(Metric::Rate));
        let middle = |metric| row.median(metric).map_or(String::new(), time);
        table.push([
            row.subject.clone(),
            time(row.get(Metric::WallNs).median),
            time(cpu.median),
            rate(speed.median),
            rate(speed.max),
            rate(row.get(Metric::CpuRate).median),
            format!("{} to {}", time(cpu.min), time(cpu.max)),
            row.median(Metric::MovedBytes)
                .map_or(String::new(), |each| {
                    format!("{}/s", bytes(each * speed.median))
                }),
            middle(Metric::P50Ns),
            middle(Metric::P99Ns),
            row.workload.clone(),
        ]);
    }
    table
}

/// How lines leave the cache here, and what orders them.
#[must_use]
pub fn instructions() -> String {
    FlushKind::detect().to_string()
}
