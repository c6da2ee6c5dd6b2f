//! everdram against the machine's limits: operations as shares of bare loops, measured in turns within one
//! run.
//!
//! Shares and ratios are of processor time, which other users of a machine disturb less than time by the
//! clock; the latter stands beside it. On a machine of one's own the two agree, but for what threads wait.

pub mod dstore;
pub mod fabric;
mod rates;
mod scale;
mod space;
pub mod tiered;

use crate::everdram::Everdram;
use crate::fixture::{Fixture, Script};
use crate::named::named;
use crate::pace::Timing;
use crate::recovery::Recovery;
use crate::subject::Error;
use crate::timing::{Sample, Spread};
use crate::verdict::{Compared, Verdict};
use crate::workload::Workload;
use crate::workload::corpus::Corpus;
use crate::workload::sizes::Sizes;
use everdram::Medium;
use std::fmt::Display;
use std::path::PathBuf;

named! {
    /// What is measured together.
    Group, "group":
    Put = "put": "New keys, on pages of both kinds",
    Overwrite = "overwrite": "New values of keys that are there",
    Get = "get": "Keys that are there",
    Absent = "absent": "Keys that are not there",
    Update = "update": "8 bytes in place",
    Delete = "delete": "Removals",
    Ycsb = "ycsb": "YCSB A, B and C",
    Batch = "batch": "Several records at once",
    Sizes = "sizes": "Other sizes of records",
    Threads = "threads": "Two threads against one",
    Large = "large": "Four times the records; DRAM a record",
    Space = "space": "Bytes of a pool whose records were overwritten again and again",
    Recovery = "recovery": "Opening after a crash",
    Tail = "tail": "The slowest calls while the pool grows and is compacted",
}

/// What to measure, and over how much.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory on the medium, tmpfs as a rule.
    pub dir: PathBuf,
    /// Records; sizes that are larger than the usual ones take fewer.
    pub records: u64,
    /// Operations of a repetition, where it does not go over all records.
    pub operations: u64,
    /// Repetitions.
    pub repeat: usize,
    /// Seed of all choices.
    pub seed: u64,
    /// What to measure.
    pub groups: Vec<Group>,
}

impl Settings {
    fn has(&self, group: Group) -> bool {
        self.groups.contains(&group)
    }
}

/// Lengths of keys and values that most bars are about.
pub(crate) const USUAL: (usize, usize) = (16, 200);

/// Stores of one kind, with records of one size.
struct Stores<'a> {
    settings: &'a Settings,
    opener: Everdram,
    corpus: Corpus,
    records: u64,
}

impl<'a> Stores<'a> {
    /// Of records with keys and values of these sizes, on pages of one size or not.
    fn new(settings: &'a Settings, sizes: (usize, usize), fixed: bool, records: u64) -> Stores<'a> {
        let (keys, values) = (Sizes::Fixed(sizes.0), Sizes::Fixed(sizes.1));
        Stores {
            settings,
            opener: Everdram {
                fixed: fixed.then_some((sizes.0 as u32, sizes.1 as u32)),
                ..Everdram::on(Medium::Emulated)
            },
            corpus: Corpus::new(keys, values, settings.seed),
            records,
        }
    }

    /// An empty store.
    fn open(&self) -> Result<Fixture<'_>, Error> {
        Fixture::open(&self.opener, &self.settings.dir, &self.corpus, self.records)
    }

    /// A store that holds all records.
    fn filled(&self) -> Result<Fixture<'_>, Error> {
        let fixture = self.open()?;
        fixture.load(self.records, 1)?;
        Ok(fixture)
    }

    fn script(&self, workload: Workload, threads: usize) -> Script {
        Script::new(workload, self.records, threads, self.settings.seed)
    }
}

/// The next `operations` of a script, of all threads.
fn pass(fixture: &mut Fixture<'_>, script: &mut Script, operations: u64) -> Result<Sample, Error> {
    let batch = if script.workload.is_batched() {
        crate::compare::BATCH
    } else {
        1
    };
    let threads = script.threads();
    let steps = script.write(operations / threads.max(1) as u64);
    let how = (batch, Timing::Throughput, threads > 1);
    Ok(fixture.pass(&steps, how)?.sample)
}

/// Millions of operations a second of processor time: the middle one.
fn cpu_rate(samples: &[Sample]) -> f64 {
    Spread::of(samples.iter().map(Sample::cpu_rate)).median / 1e6
}

/// A rate by processor time as a share of another, and the same by the clock.
fn share(
    group: &str,
    operation: &str,
    ours: &[Sample],
    (name, others): (&str, &[Sample]),
    least: f64,
) -> Verdict {
    let clock = |samples: &[Sample]| Spread::of(samples.iter().map(Sample::rate)).median;
    let (one, other) = (cpu_rate(ours), cpu_rate(others));
    let share = Compared {
        by_clock: Some(clock(ours) / clock(others)),
        made_of: Some((one, "M/s".into())),
        against: Some((other, name.into())),
        ..Compared::new(operation, one / other)
    };
    Verdict::new((group, operation), vec![share], (least, None), true)
}

/// Something that must not be more than the bar, and is compared with nothing.
fn at_most(group: Group, operation: &str, unit: &str, value: f64, most: f64) -> Verdict {
    alone((group, operation), (value, unit), (0.0, Some(most)))
}

/// What is measured by itself.
fn alone(
    (group, says): (impl Display, &str),
    (value, unit): (f64, &str),
    bounds: (f64, Option<f64>),
) -> Verdict {
    let measured = Compared {
        made_of: Some((value, unit.into())),
        ..Compared::new(says, value)
    };
    Verdict::new((&group.to_string(), says), vec![measured], bounds, true)
}

/// What is measured as a multiple of something else; 0 as `least`, and no `most`: no bar, for comparison.
fn ratio(
    (group, says): (impl Display, &str),
    (one, unit): (f64, &str),
    (other, name): (f64, &str),
    bounds: (f64, Option<f64>),
) -> Verdict {
    let measured = Compared {
        made_of: Some((one, unit.into())),
        against: Some((other, name.into())),
        ..Compared::new(says, one / other)
    };
    Verdict::new((&group.to_string(), says), vec![measured], bounds, true)
}

/// Something that was asked for and could not be measured, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// What.
    pub group: Group,
    /// Why.
    pub why: String,
}

/// What bars came out of.
#[derive(Default)]
pub struct Outcome {
    /// In order.
    pub bars: Vec<Verdict>,
    /// What is missing.
    pub skipped: Vec<Skipped>,
}

/// What the caller does for the bars, since it has processes and a terminal.
pub trait Host {
    /// The next measurement begins.
    fn begin(&mut self, group: Group, what: &str);
    /// Has a process fill a store of so many usual records, with or without checkpoints of its index, kills
    /// it, and opens the store.
    ///
    /// # Errors
    /// What went wrong.
    fn crash(&mut self, records: u64, checkpoint: bool) -> Result<Recovery, Error>;
}

/// Measures what is asked for.
///
/// # Errors
/// If a store or the memory for limits cannot be had, or an answer was wrong.
pub fn measure(settings: &Settings, host: &mut dyn Host) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    rates::measure(settings, host, &mut outcome)?;
    if settings.has(Group::Threads) {
        scale::threads(settings, host, &mut outcome)?;
    }
    if settings.has(Group::Large) {
        scale::large(settings, host, &mut outcome)?;
    }
    if settings.has(Group::Space) {
        space::overwritten(settings, host, &mut outcome)?;
    }
    if settings.has(Group::Recovery) {
        host.begin(Group::Recovery, "crash");
        let recovery = host.crash(settings.records, false)?;
        let each = recovery.wall.as_secs_f64() * 1e6 / recovery.records.max(1) as f64;
        let name = "recovery, CPU a record";
        let mut bar = at_most(Group::Recovery, name, "us", recovery.cpu_us(), 0.10);
        bar.measured[0].by_clock = Some(each);
        outcome.bars.push(bar);
        host.begin(Group::Recovery, "crash, with a checkpoint");
        let restart = host.crash(settings.records, true)?.wall.as_secs_f64();
        let bar = at_most(Group::Recovery, "restart, first read", "s", restart, 1.0);
        outcome.bars.push(bar);
    }
    if settings.has(Group::Tail) {
        space::tail(settings, host, &mut outcome)?;
    }
    Ok(outcome)
}

/// Records of `sizes` that take about as many bytes as `records` of the usual ones, at most as many.
fn records_of(settings: &Settings, sizes: (usize, usize)) -> u64 {
    let usual = (USUAL.0 + USUAL.1) as u64;
    let bytes = (sizes.0 + sizes.1) as u64;
    (settings.records * usual / bytes)
        .min(settings.records)
        .max(1)
}
