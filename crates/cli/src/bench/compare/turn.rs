//! A turn of one store in a process of its own: the process, and who starts it.

use super::super::recovery;
use super::super::store::Store;
use crate::Outcome;
use crate::output::Standard;
use anyhow::Context;
use everdram_bench::compare::{Part, Turn};
use everdram_bench::{Durability, Workload};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::process::{Child, Command, Stdio};

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

/// Measures, and says each part as a line of JSON on standard output.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let store = &arguments.store;
    let opener = store.opener()?;
    let turn = Turn {
        threads: arguments.threads,
        workloads: arguments.workloads.clone(),
        records: store.records,
        keys: store.keys,
        values: store.values,
        seconds: arguments.seconds,
        seed: store.seed,
        dir: store.dir.clone(),
    };
    turn.take(&*opener, &mut |part| say(&part))?;
    if arguments.recovery && opener.durability() == Durability::EachWrite {
        say(&Part::Recovered(recovery::measure(store)?))?;
    }
    Ok(Outcome::Sound)
}

fn say(part: &Part) -> anyhow::Result<()> {
    let mut out = Standard::lock();
    writeln!(out, "{}", serde_json::to_string(part)?)?;
    Ok(out.flush()?)
}

/// A child that does not outlive its parent's interest in it.
struct Doomed(Child);

impl Drop for Doomed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has a process take the turn; `hear` gets each part as it comes, also those before an end with an error.
///
/// # Errors
/// With what the process said last, if it did not end well.
pub(super) fn have(arguments: &Arguments, hear: &mut dyn FnMut(Part)) -> anyhow::Result<()> {
    let mut errors = tempfile::tempfile().context("making a file for what a turn complains of")?;
    let mut command = command(arguments)?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors.try_clone()?);
    let mut child = Doomed(command.spawn().context("starting a turn")?);
    if let Some(out) = child.0.stdout.take() {
        for line in BufReader::new(out).lines() {
            // A store may print, too.
            if let Ok(part) = serde_json::from_str(&line?) {
                hear(part);
            }
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
        .args(["bench", "turn", "--store", &store.store])
        .args(["--engine", store.engine.name()])
        .args(["--medium", &store.medium.to_string()])
        .arg("--dir")
        .arg(&store.dir)
        .args(["--records", &store.records.to_string()])
        .args(["--key", &store.keys.to_string()])
        .args(["--value", &store.values.to_string()])
        .args(["--seed", &store.seed.to_string()])
        .args(["--threads", &arguments.threads.to_string()])
        .args(["--workloads", &names.join(",")])
        .args(["--seconds", &arguments.seconds.to_string()]);
    if store.fixed {
        command.arg("--fixed");
    }
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
