//! What the machine can do at most: bare loops over the medium, without a store around them.
//!
//! [`records`] and [`chains`] hold the limits that a store's figures are shares of, [`machine`] the costs that
//! explain them, [`files`] what a disk makes durable, [`data`] what values on a data file cost. All of them
//! take memory that is present beforehand, and all but the chains random numbers that depend on no memory, so
//! that nothing but the operation itself is in a loop.

pub mod chains;
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

pub use chains::{Chain, Chains};
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

impl Settings {
    /// Records that a repetition of a loop goes over.
    fn operations(&self) -> u64 {
        match self.quick {
            true => self.records.min(1 << 20),
            false => self.records,
        }
    }
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

    /// Adds loops over records: a group, and the names of its loops and what they do; `run` is one repetition
    /// of a loop by its number. Repetitions go round all loops, so that a disturbance does not hit one alone.
    fn in_turns(
        &mut self,
        (group, names): (&str, &[(&str, &str)]),
        run: &mut dyn FnMut(usize) -> Sample,
        progress: &mut dyn FnMut(f64, &str),
    ) {
        let mut samples = vec![Vec::new(); names.len()];
        let rounds = self.settings.repeat;
        for round in 0..rounds {
            for (at, ((name, _), samples)) in names.iter().zip(&mut samples).enumerate() {
                progress(
                    (round as f64 + at as f64 / names.len() as f64) / rounds as f64,
                    name,
                );
                samples.push(run(at));
            }
        }
        for ((name, what), samples) in names.iter().zip(&samples) {
            self.add((group, name), what, "record", samples);
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
) -> Result<Vec<Row>, Error> {
    let mut limits = Limits {
        settings,
        machine: Machine::here(&settings.dir),
        rows: Vec::new(),
    };
    let names = Kind::ALL.map(|kind| (kind.name(), kind.what()));
    let mut pool = Records::new(settings)?;
    limits.in_turns(
        ("records", &names),
        &mut |at| pool.run(Kind::ALL[at]),
        &mut |done, name| progress(done * 0.3, name),
    );
    drop(pool);
    let names = Chain::ALL.map(|chain| (chain.name(), chain.what()));
    let mut chains = Chains::new(settings)?;
    limits.in_turns(
        ("chains", &names),
        &mut |at| chains.run(Chain::ALL[at]),
        &mut |done, name| progress(0.3 + done * 0.2, name),
    );
    drop(chains);
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
