//! How long a store takes to open after a crash.
//!
//! A crash needs a process that dies: the caller names a command that fills a store and then waits to be
//! killed (its own executable, as a rule, which calls [`fill_and_wait`]).

use crate::pass::load;
use crate::process;
use crate::row::{Metric, Row};
use crate::subject::{Error, Opener};
use crate::workload::corpus::{Corpus, Maker};
use anyhow::{Context, ensure};
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
    let mut out = std::io::stdout();
    writeln!(out, "{READY}")?;
    out.flush()?;
    // The parent writes nothing: this returns when the parent ends without having killed this process.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
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
    drop(child);
    reopen(opener, corpus, dir, records)
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
    let (begun, cpu) = (Instant::now(), process::cpu());
    let subject = opener.open(dir, records, corpus.record_bytes())?;
    let mut client = subject.client()?;
    let (mut maker, mut value) = (Maker::new(corpus), Vec::new());
    let last = records.saturating_sub(1);
    ensure!(
        client.get(maker.key(last), &mut value)?,
        "record {last} is lost"
    );
    let recovery = Recovery {
        records,
        wall: begun.elapsed(),
        cpu: process::cpu().saturating_sub(cpu),
    };
    corpus.check(last, &value)?;
    Ok(recovery)
}
