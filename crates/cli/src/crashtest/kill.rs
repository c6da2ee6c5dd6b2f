//! `everdram crashtest --kill N`: a real server, real clients, N SIGKILLs, and what was lost.
//!
//! This module has the command's flags and its steps; [`campaign`] does the work, [`report`] prints it.

mod books;
mod campaign;
mod keys;
mod mix;
mod moment;
mod reader;
mod report;

use crate::killing::place;
use crate::settings::usage;
use crate::terminal::{Progress, Tone, paint};
use crate::{INTERRUPTED, Outcome, units};
use anyhow::Context;
use books::Books;
use campaign::{Plan, Summary};
use signal_hook::consts::SIGINT;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tempfile::TempDir;

/// Flags of the campaign alone.
#[derive(clap::Args)]
pub(crate) struct Flags {
    /// With --kill: connections that load and write
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    /// With --kill: one pool for all kills, kept afterwards; without it, a new small one every few dozen
    /// kills
    #[arg(long, value_name = "DIR", requires = "expected")]
    pool: Option<PathBuf>,
    /// With --kill: the expected-state file. If it is there, its pool is verified by it and the campaign goes
    /// on
    #[arg(long, value_name = "FILE", requires = "pool")]
    expected: Option<PathBuf>,
}

/// What the campaign shares with the other kinds of crash test.
pub(crate) struct Common<'a> {
    pub(crate) medium: &'a str,
    pub(crate) engine: &'a str,
    pub(crate) seed: u64,
    pub(crate) json: bool,
}

pub(crate) fn run(kills: u64, flags: &Flags, common: &Common<'_>) -> anyhow::Result<Outcome> {
    // Refuse impossible options before creating anything.
    check(common)?;
    let pool = flags.pool.as_deref().map(std::path::absolute).transpose()?;
    let given = match (&pool, &flags.expected) {
        (Some(pool), Some(expected)) => Some(Books::of_pool(
            expected,
            pool,
            common.medium,
            common.engine,
        )?),
        _ => None,
    };
    let directory = match common.medium {
        "emulated" => place::for_emulation()?,
        _ => place::for_files()?,
    };
    let plan = plan(kills, flags, common, pool, directory.path())?;
    let books = given.map_or_else(|| Books::open(&plan.expected), Ok)?;
    if !common.json {
        report::print_plan(&plan);
    }
    let begun = Instant::now();
    let summary = watched(&plan, books, common.json);
    let took = begun.elapsed();
    match summary {
        Ok(summary) => {
            if common.json {
                println!("{}", report::to_json(&plan, &summary, took));
            } else {
                report::print(&plan, &summary, took);
            }
            Ok(leave(&plan, directory, &summary, common.json))
        }
        Err(error) => {
            eprintln!("kept: {}", directory.keep().display());
            print_command("same choices again", &report::command(&plan));
            Err(error)
        }
    }
}

fn check(common: &Common<'_>) -> anyhow::Result<()> {
    if !["emulated", "file"].contains(&common.medium) {
        let medium = common.medium;
        let text = format!("--kill runs on the media `file` and `emulated`, not on `{medium}`");
        return Err(usage(text));
    }
    Ok(())
}

fn plan(
    kills: u64,
    flags: &Flags,
    common: &Common<'_>,
    pool: Option<PathBuf>,
    directory: &Path,
) -> anyhow::Result<Plan> {
    let directory = std::path::absolute(directory)?;
    let expected = flags.expected.clone();
    Ok(Plan {
        program: std::env::current_exe().context("finding this program")?,
        pool,
        expected: expected.unwrap_or_else(|| directory.join("expected")),
        directory,
        medium: common.medium.to_owned(),
        engine: common.engine.to_owned(),
        connections: usize::from(flags.connections),
        kills,
        seed: common.seed,
    })
}

/// Runs the plan and shows progress. The first Ctrl-C ends it after the current round, the second at once.
fn watched(plan: &Plan, books: Books, quiet: bool) -> anyhow::Result<Summary> {
    let stop = Arc::new(AtomicBool::new(false));
    let (second, first) = (Arc::clone(&stop), Arc::clone(&stop));
    signal_hook::flag::register_conditional_shutdown(SIGINT, INTERRUPTED.into(), second)
        .and_then(|_| signal_hook::flag::register(SIGINT, first))
        .context("signals")?;
    let progress = Progress::start("kills", plan.kills, quiet);
    progress.begin(&format!("{} to come", units::count(plan.kills)));
    let summary = campaign::run(plan, books, &stop, &|summary| {
        progress.at(summary.kills, &report::progress(plan, summary));
    });
    progress.finish();
    summary
}

/// Removes what the campaign created. A pool that lost something is evidence and stays, and so does a pool
/// that the user named.
fn leave(plan: &Plan, directory: TempDir, summary: &Summary, quiet: bool) -> Outcome {
    if summary.tally.broken() > 0 {
        let pool = report::last_pool(plan, summary);
        eprintln!("pool kept:           {}", pool.display());
        eprintln!("expected state kept: {}", plan.expected.display());
        eprintln!("server log kept:     {}", directory.keep().display());
        print_command("same choices again", &report::command(plan));
        print_command("judge once more", &report::judge_again(plan, summary));
        return Outcome::Damaged;
    }
    if summary.is_interrupted {
        let (kills, all) = (units::count(summary.kills), units::count(plan.kills));
        eprintln!("interrupted after {kills} of {all} kills; nothing was wrong until then");
        print_command("same choices again", &report::command(plan));
        return Outcome::Interrupted;
    }
    if !quiet {
        println!("{}", paint(Tone::Good, "sound"));
    }
    Outcome::Sound
}

/// Prints a command on a line of its own, ready to be copied.
fn print_command(what: &str, command: &str) {
    eprintln!("{what}:\n  {command}");
}
