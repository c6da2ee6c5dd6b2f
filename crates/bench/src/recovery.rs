//! How long a store takes to open after a crash.
//!
//! A crash needs a process that dies: the caller names a command that fills a store and then waits to be
//! killed (its own executable, as a rule, which calls [`fill_and_wait`]).

use crate::pass::load;
use crate::process;
use crate::row::{Metric, Row};
use crate::subject::{Error, Opener, Subject};
use crate::workload::corpus::{Corpus, Maker};
use anyhow::{Context, ensure};
use rustix::process::{Signal, getpid, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the child says when it is full.
const READY: &str = "filled";

/// An opening after a crash.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recovery {
    /// Records that the store held.
    pub records: u64,
    /// From the call to open until the first record was read, by the clock.
    pub wall: Duration,
    /// Processor time of all threads meanwhile.
    pub cpu: Duration,
}

impl Recovery {
    /// Microseconds of processor time a record.
    #[must_use]
    pub fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.records.max(1) as f64
    }

    /// Adds it to a row of the same store.
    pub fn add_to(&self, row: &mut Row) {
        row.push(Metric::RecoveryNs, self.wall.as_nanos() as f64);
        row.push(Metric::RecoveryCpuNs, self.cpu.as_nanos() as f64);
        row.push(Metric::Recovered, self.records as f64);
    }
}

/// The child's part: fills a store in `dir`, says so on standard output, and waits to be killed.
///
/// # Errors
/// What the store says.
pub fn fill_and_wait(
    opener: &dyn Opener,
    corpus: &Corpus,
    dir: &Path,
    records: u64,
) -> Result<(), Error> {
    let subject = opener.open(dir, records, corpus.record_bytes())?;
    load(&*subject, corpus, records, 1)?;
    opener.before_crash(&*subject, corpus, records)?;
    say_ready()?;
    // The parent writes nothing: this returns when the parent ends without having killed this process.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn say_ready() -> Result<(), Error> {
    let mut out = std::io::stdout();
    writeln!(out, "{READY}")?;
    Ok(out.flush()?)
}

/// The same, and kills this process at once: where the moment counts, another would be late.
///
/// # Errors
/// If it cannot say so.
pub(crate) fn be_killed() -> Result<(), Error> {
    say_ready()?;
    Ok(kill_process(getpid(), Signal::KILL)?)
}

/// A child process that is killed when this is dropped.
pub struct ChildGuard(pub Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // One that has ended already is only collected.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has `filler` fill a store in `dir`, kills it, and opens the store.
///
/// # Errors
/// If the filler does not say that it has filled the store, or if a record is not there afterwards.
pub fn measure(
    opener: &dyn Opener,
    corpus: &Corpus,
    filler: &mut Command,
    dir: &Path,
    records: u64,
) -> Result<Recovery, Error> {
    kill(filler)?;
    let (recovery, _) = open(opener, corpus, dir, records)?;
    Ok(recovery)
}

/// Waits until `filler` says that it has filled its store, and kills it, if it has not done so itself.
///
/// # Errors
/// If it ends without saying so.
pub(crate) fn kill(filler: &mut Command) -> Result<(), Error> {
    let child = filler
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", filler.get_program().display()))?;
    let mut child = ChildGuard(child);
    let mut said = String::new();
    if let Some(out) = child.0.stdout.take() {
        BufReader::new(out).read_line(&mut said)?;
    }
    ensure!(
        said.trim() == READY,
        "the process that fills the store ended before it had"
    );
    Ok(())
}

/// Opens a store that holds records, and reads the last of them.
///
/// # Errors
/// What the store says, or that the record is not there.
pub fn reopen(
    opener: &dyn Opener,
    corpus: &Corpus,
    dir: &Path,
    records: u64,
) -> Result<Recovery, Error> {
    Ok(open(opener, corpus, dir, records)?.0)
}

/// As [`reopen`]; returns the store, too.
///
/// # Errors
/// As [`reopen`].
pub(crate) fn open(
    opener: &dyn Opener,
    corpus: &Corpus,
    dir: &Path,
    records: u64,
) -> Result<(Recovery, Box<dyn Subject>), Error> {
    let (mut maker, mut value) = (Maker::new(corpus), Vec::new());
    let last = records.saturating_sub(1);
    let (begun, cpu) = (Instant::now(), process::cpu());
    let subject = opener.open(dir, records, corpus.record_bytes())?;
    let is_there = subject.client()?.get(maker.key(last), &mut value)?;
    let recovery = Recovery {
        records,
        wall: begun.elapsed(),
        cpu: process::cpu().saturating_sub(cpu),
    };
    ensure!(is_there, "record {last} is lost");
    corpus.check(last, &value)?;
    Ok((recovery, subject))
}
