//! The engine `dstore` against bare loops that do the same to the same media, against itself with another
//! setting, against `viper`, and against Redis: each in turns within one run.
//!
//! Percentiles and rates leave out calls and time in which a thread had no core. By the clock stands beside.

mod bed;
mod calls;
mod course;
mod disk;
mod restart;
mod room;
mod tails;

pub(super) use calls::percentile;

use super::{alone, ratio};
use crate::named::named;
use crate::pass::Passed;
use crate::process::Waited;
use crate::recovery::Recovery;
use crate::subject::Error;
use crate::verdict::Verdict;
use std::path::PathBuf;
use std::time::Duration;

named! {
    /// What is measured together.
    Group, "group":
    Put = "put": "Puts of 4 and 16 KiB against the bare write of as much",
    Checkpoints = "checkpoints": "The slowest puts with checkpoints against those without",
    Cow = "cow": "The slowest puts with copy-on-write checkpoints against those with DIPPER's",
    Steady = "steady": "Throughput from moment to moment",
    Threads = "threads": "Eight threads against one, on a disk",
    Get = "get": "Gets against the bare read of a block",
    Cold = "cold": "16 gets at once against single ones, from a disk",
    Cpu = "cpu": "Processor time of a put",
    Traffic = "traffic": "What a checkpoint gets done, and what a put writes to persistent memory",
    Recovery = "recovery": "Opening after a clean stop, and after a kill with full logs",
    Space = "space": "Bytes an object",
    Large = "large": "Values of 64 KiB on files, against viper",
    Server = "server": "SET of 64 KiB on files, against Redis with a sync before each reply",
    Range = "range": "1000 keys in order",
}

/// What to measure, and over how much.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory on tmpfs, for emulated persistent memory.
    pub dir: PathBuf,
    /// Directory on a disk.
    pub file_dir: PathBuf,
    /// Objects, at most: where there is too little room, fewer.
    pub records: u64,
    /// Repetitions.
    pub repeat: usize,
    /// Seconds of a measurement in each repetition.
    pub seconds: f64,
    /// Seconds of the runs that are watched from moment to moment.
    pub course_seconds: f64,
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

/// What the caller does for the bars, since it has processes and a terminal.
pub trait Host {
    /// The next measurement begins.
    fn begin(&mut self, group: Group, what: &str);
    /// Has a process fill a store, kills it, and opens the store.
    ///
    /// # Errors
    /// What went wrong.
    fn crash(&mut self, crash: &Crash) -> Result<Recovery, Error>;
    /// The program `everdram`.
    ///
    /// # Errors
    /// It cannot be found.
    fn program(&self) -> Result<PathBuf, Error>;
}

/// A store in emulated memory that is killed.
#[derive(Clone, Debug)]
pub struct Crash {
    /// Objects of 16 + 4096 bytes in it.
    pub records: u64,
    /// Delay model of its memory.
    pub delay: &'static str,
    /// Bytes of each log.
    pub log_bytes: u64,
    /// Bytes in all logs when it is killed, at least.
    pub logged_bytes: u64,
}

/// What bars came out of.
#[derive(Default)]
pub struct Outcome {
    /// In order.
    pub bars: Vec<Verdict>,
    /// What is missing, and why.
    pub skipped: Vec<(Group, String)>,
    /// Share of the time in which threads that asked had no core: the most of each group.
    pub waited: Vec<(Group, f64)>,
}

impl Outcome {
    /// Threads of a group waited for a core for so much of their time.
    fn note_wait(&mut self, group: Group, waited: Waited, time: Duration) {
        let share = waited.ns as f64 / time.as_nanos().max(1) as f64;
        match self.waited.iter_mut().find(|(of, _)| *of == group) {
            Some((_, most)) => *most = most.max(share),
            None => self.waited.push((group, share)),
        }
    }

    /// As [`Outcome::note_wait`], of a pass.
    fn note(&mut self, group: Group, passed: &Passed, threads: usize) {
        let time = passed.sample.wall * threads.max(1) as u32;
        self.note_wait(group, passed.waited, time);
    }
}

/// Measures what is asked for.
///
/// # Errors
/// If a store or the memory for bare loops cannot be had, or an answer was wrong.
pub fn measure(settings: &Settings, host: &mut dyn Host) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    for group in &settings.groups {
        let measure = match group {
            Group::Put => calls::puts,
            Group::Checkpoints => tails::checkpoints,
            Group::Cow => tails::systems,
            Group::Steady => course::measure,
            Group::Threads => calls::threads,
            Group::Get => calls::gets,
            Group::Cold => calls::cold,
            Group::Cpu => calls::processor,
            Group::Traffic => room::traffic,
            Group::Recovery => restart::measure,
            Group::Space => room::space,
            Group::Large => disk::against_viper,
            Group::Server => disk::against_redis,
            Group::Range => calls::range,
        };
        measure(settings, host, &mut outcome)?;
    }
    Ok(outcome)
}
