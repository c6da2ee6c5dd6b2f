//! A turn of one store in a process of its own: the process itself, and how it is started.

use super::super::store::Store;
use super::super::{recovery, rows};
use crate::Outcome;
use crate::output::Standard;
use anyhow::Context;
use everdram_bench::compare::BATCH;
use everdram_bench::recovery::ChildGuard;
use everdram_bench::{Durability, Extent, Plan, Row, Workload, row};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::process::{Command, Stdio};

/// Workload of the row that says how opening after a crash went.
pub(super) const RECOVERY: &str = "recovery";

/// Take one turn of a comparison; `bench compare` starts this itself.
#[derive(clap::Args, Clone)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(super) store: Store,
    /// Threads that ask.
    #[arg(long)]
    pub(super) threads: usize,
    /// What they ask for.
    #[arg(long, value_delimiter = ',')]
    pub(super) workloads: Vec<Workload>,
    /// Seconds of each workload.
    #[arg(long)]
    pub(super) seconds: f64,
    /// Also time opening after a crash.
    #[arg(long)]
    pub(super) recovery: bool,
}

/// Measures, and says each row as a line of JSON on standard output.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let store = &arguments.store;
    let opener = store.opener()?;
    let plan = Plan {
        workloads: arguments.workloads.clone(),
        records: store.records,
        extent: Extent::Seconds(arguments.seconds),
        threads: arguments.threads,
        keys: store.keys,
        values: store.values,
        batch: BATCH,
        rate: None,
        repeat: 1,
        seed: store.seed,
        pin: false,
        dir: store.dir.clone(),
    };
    let mut last = None;
    plan.measure(&*opener, &mut |_, _| {}, &mut |row| {
        last = Some(row.clone());
        say(&row)
    })?;
    let does_recover = arguments.recovery && opener.durability() == Durability::EachWrite;
    if let Some(mut row) = last.filter(|_| does_recover) {
        row.workload = RECOVERY.into();
        row.values.clear();
        recovery::measure(store)?.add_to(&mut row);
        say(&row)?;
    }
    Ok(Outcome::Sound)
}

fn say(row: &Row) -> anyhow::Result<()> {
    let mut out = Standard::lock();
    write!(out, "{}", rows::lines([row])?)?;
    Ok(out.flush()?)
}

/// Has a process take the turn; `hear` gets each row as it comes, also those before an end with an error.
///
/// # Errors
/// With what the process said last, if it did not end well.
pub(super) fn have(arguments: &Arguments, hear: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let mut errors = tempfile::tempfile().context("making a file for what a turn complains of")?;
    let mut command = command(arguments)?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors.try_clone()?);
    let mut child = ChildGuard(command.spawn().context("starting a turn")?);
    if let Some(out) = child.0.stdout.take() {
        for line in BufReader::new(out).lines() {
            // A store may print, too.
            row::read(&line?).into_iter().flatten().for_each(&mut *hear);
        }
    }
    let status = child.0.wait()?;
    if status.success() {
        return Ok(());
    }
    let words = last_words(&mut errors)?;
    let words = if words.is_empty() {
        "it said nothing"
    } else {
        &words
    };
    anyhow::bail!("{status}: {words}")
}

fn command(arguments: &Arguments) -> anyhow::Result<Command> {
    let store = &arguments.store;
    let program = std::env::current_exe().context("finding this program, to start it again")?;
    let mut command = Command::new(program);
    let names: Vec<&str> = arguments.workloads.iter().map(|w| w.name()).collect();
    command
        .args(["bench", "turn"])
        .args(store.arguments(&store.dir))
        .args(["--threads", &arguments.threads.to_string()])
        .args(["--workloads", &names.join(",")])
        .args(["--seconds", &arguments.seconds.to_string()]);
    if arguments.recovery {
        command.arg("--recovery");
    }
    Ok(command)
}

/// The end of what a process complained of, as one line.
fn last_words(errors: &mut File) -> anyhow::Result<String> {
    const LINES: usize = 6;
    let mut bytes = Vec::new();
    errors.rewind()?;
    errors.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    let from = lines.len().saturating_sub(LINES);
    Ok(lines[from..].join(" "))
}
