//! everdram against the machine's limits: operations as shares of bare loops, measured in turns within one
//! run.
//!
//! Shares and ratios are of processor time, which other users of a machine disturb less than time by the
//! clock; the latter stands beside it. On a machine of one's own the two agree, but for what threads wait.

mod rates;
mod scale;
mod space;
mod stage;

use crate::named::named;
use crate::recovery::Recovery;
use crate::show::Table;
use crate::sizes::Sizes;
use crate::subject::Error;
use serde::{Deserialize, Serialize};
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

/// A bar and where everdram stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// What it was measured with.
    pub group: Group,
    /// The operation, with what distinguishes it.
    pub operation: String,
    /// What was measured.
    pub measured: f64,
    /// Its unit: `M/s` of processor time, `B`, `us`, ...
    pub unit: String,
    /// What it is compared with, in the same unit.
    pub reference: Option<f64>,
    /// What that is.
    pub reference_name: Option<String>,
    /// Measured by reference, or measured itself if there is none: what the bar is about.
    pub value: f64,
    /// The same by the clock, for rates.
    pub wall_value: Option<f64>,
    /// The bar.
    pub bar: f64,
    /// Whether it must not be exceeded, instead of reached.
    pub at_most: bool,
}

impl Bar {
    /// Of something that must not be more than the bar, and is compared with nothing.
    fn at_most(group: Group, operation: String, unit: &str, value: f64, bar: f64) -> Bar {
        Bar {
            group,
            operation,
            measured: value,
            unit: unit.into(),
            reference: None,
            reference_name: None,
            value,
            wall_value: None,
            bar,
            at_most: true,
        }
    }

    /// Whether it holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        if self.at_most {
            self.value <= self.bar
        } else {
            self.value >= self.bar
        }
    }
}

/// Bars, and whether they hold.
#[must_use]
pub fn table(bars: &[Bar]) -> Table {
    let mut table = Table::new(
        "bar | measured | against | share | by clock | is to be |  | measured in turns with",
    );
    for bar in bars {
        let share = bar.reference.map_or(String::new(), |_| number(bar.value));
        table.push([
            bar.operation.clone(),
            format!("{} {}", number(bar.measured), bar.unit),
            bar.reference.map_or(String::new(), number),
            share,
            bar.wall_value.map_or(String::new(), number),
            format!(
                "{} {}",
                if bar.at_most { "<" } else { ">" },
                number(bar.bar)
            ),
            if bar.holds() { "ok" } else { "short" }.into(),
            bar.reference_name.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
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
    pub bars: Vec<Bar>,
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
        let name = "recovery, CPU a record".into();
        outcome.bars.push(Bar {
            wall_value: Some(each),
            ..Bar::at_most(Group::Recovery, name, "us", recovery.cpu_us(), 0.10)
        });
        host.begin(Group::Recovery, "crash, with a checkpoint");
        let restart = host.crash(settings.records, true)?.wall.as_secs_f64();
        let name = "restart, first read".into();
        let bar = Bar::at_most(Group::Recovery, name, "s", restart, 1.0);
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

fn fixed(sizes: (usize, usize)) -> (Sizes, Sizes) {
    (Sizes::Fixed(sizes.0), Sizes::Fixed(sizes.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_whether_it_holds() {
        let mut bar = Bar {
            group: Group::Get,
            operation: "get".into(),
            measured: 6.0,
            unit: "M/s".into(),
            reference: Some(8.0),
            reference_name: Some("get".into()),
            value: 0.75,
            wall_value: Some(0.74),
            bar: 0.70,
            at_most: false,
        };
        let text = |bar: &Bar| table(std::slice::from_ref(bar)).markdown();
        assert!(text(&bar).contains("| 0.75 | 0.74 | > 0.70 | ok |"));
        bar.at_most = true;
        assert!(text(&bar).contains("| < 0.70 | short |"));
    }
}
