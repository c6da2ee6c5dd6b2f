//! The engine `tiered` against `viper`, against caches that know more, against bare writes to the disk, and
//! against Redis: each in turns within one run.
//!
//! Pools are emulated, without delays; their logs are on the disk. Where records leave the pool, there are
//! four times as many as it holds.

mod bed;
mod calls;
mod log;
mod restart;
mod trace;

use super::{alone, ratio};
use crate::named::named;
use crate::subject::Error;
use crate::verdict::Verdict;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

named! {
    /// What is measured together.
    Group, "group":
    Memory = "memory": "DRAM a key, with three of four keys in the log",
    Fits = "fits": "Calls where everything fits the pool, against viper",
    Hits = "hits": "Gets that the pool answers, against caches of the same bytes",
    Below = "below": "Gets from the log, in the page cache",
    Written = "written": "Bytes to the log for what leaves the pool",
    Moves = "moves": "Records that are moved within the pool",
    Tail = "tail": "The slowest puts while records leave, against viper whose pool grows",
    Flood = "flood": "More writes than the disk takes, against bare writes",
    Restart = "restart": "Opening after a kill, against viper and Redis",
}

/// What to measure, and over how much.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory on tmpfs, for emulated persistent memory.
    pub dir: PathBuf,
    /// Directory on a disk, for logs.
    pub file_dir: PathBuf,
    /// Records.
    pub records: u64,
    /// Operations of a repetition, where it goes neither over all records nor by time.
    pub operations: u64,
    /// Repetitions.
    pub repeat: usize,
    /// Seconds of a measurement that goes by time, in each repetition.
    pub seconds: f64,
    /// Seed of all choices.
    pub seed: u64,
    /// What to measure.
    pub groups: Vec<Group>,
}

impl Settings {
    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// A store that a process fills before it is killed.
#[derive(Clone, Debug)]
pub struct Fill<'a> {
    /// Records of 16 + 200 bytes.
    pub records: u64,
    /// Of the engine `tiered`: the pool's limit, and where the log is. Otherwise it is one of `viper`.
    pub tiers: Option<(u64, &'a Path)>,
}

/// What the caller does for the bars, since it has processes and a terminal.
pub trait Host {
    /// The next measurement begins.
    fn begin(&mut self, group: Group, what: &str);
    /// The command that fills a store in a directory and waits to be killed.
    ///
    /// # Errors
    /// This program cannot be found.
    fn filler(&self, fill: &Fill<'_>, dir: &Path) -> Result<Command, Error>;
    /// The program `everdram`.
    ///
    /// # Errors
    /// It cannot be found.
    fn program(&self) -> Result<PathBuf, Error>;
}

/// What bars came out of.
#[derive(Default)]
pub struct Outcome {
    /// In order.
    pub bars: Vec<Verdict>,
    /// What is missing, and why.
    pub skipped: Vec<(Group, String)>,
}

/// Measures what is asked for.
///
/// # Errors
/// If a store or the memory for bare loops cannot be had, or an answer was wrong.
pub fn measure(settings: &Settings, host: &mut dyn Host) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    for group in &settings.groups {
        let measure = match group {
            Group::Memory => restart::memory,
            Group::Fits => calls::fits,
            Group::Hits => trace::hits,
            Group::Below => calls::below,
            Group::Written => log::written,
            Group::Moves => log::moves,
            Group::Tail => calls::tail,
            Group::Flood => log::flood,
            Group::Restart => restart::measure,
        };
        measure(settings, host, &mut outcome)?;
    }
    Ok(outcome)
}
