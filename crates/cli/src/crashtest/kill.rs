//! `everdram crashtest --kill N`: a real server, real clients, N SIGKILLs, and what was lost.
//!
//! Here are the command's flags and what it prints; [`campaign`] is what it does.

mod campaign;
mod expected;
mod journal;
mod keys;
mod load;
mod moment;
mod verify;

use crate::demo::place;
use crate::settings::usage;
use crate::terminal::{Progress, Tone, paint, row};
use crate::{Outcome, units};
use anyhow::Context;
use campaign::{Plan, Summary};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Flags of the campaign alone.
#[derive(clap::Args)]
pub(crate) struct Flags {
    /// With --kill: connections that load and write
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    /// With --kill: one pool for all kills, kept afterwards; without it, a new small one every few dozen kills
    #[arg(long, value_name = "DIR", requires = "expected")]
    pool: Option<PathBuf>,
    /// With --kill: the expected-state file. If it is there, its pool is verified by it and the campaign goes on
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
    let directory = match common.medium {
        "emulated" => place::for_emulation()?,
        "file" => place::for_files()?,
        other => {
            let text = format!("--kill runs on the media `file` and `emulated`, not on `{other}`");
            return Err(usage(text));
        }
    };
    let expected = flags.expected.clone();
    let plan = Plan {
        program: std::env::current_exe().context("finding this program")?,
        directory: directory.path().to_owned(),
        pool: flags.pool.as_deref().map(std::path::absolute).transpose()?,
        expected: expected.unwrap_or_else(|| directory.path().join("expected")),
        medium: common.medium.to_owned(),
        engine: common.engine.to_owned(),
        connections: usize::from(flags.connections),
        kills,
        seed: common.seed,
    };
    if !common.json {
        print_plan(&plan);
    }
    let begun = Instant::now();
    let summary = watched(&plan, common.json);
    let took = begun.elapsed();
    match summary {
        Ok(summary) => {
            if common.json {
                println!("{}", to_json(&plan, &summary, took));
            } else {
                print(&plan, &summary, took);
            }
            Ok(leave(&plan, directory, &summary, common.json))
        }
        Err(error) => {
            eprintln!("kept: {}", directory.keep().display());
            Err(error.context(format!("repeat with: {}", command(&plan))))
        }
    }
}

fn print_plan(plan: &Plan) {
    println!("{}", paint(Tone::Strong, "everdram crashtest --kill"));
    match &plan.pool {
        Some(pool) => row("pool", pool.display()),
        None => row("pools in", plan.directory.display()),
    }
    row("expected state in", plan.expected.display());
    row("medium", &plan.medium);
    row("seed", plan.seed);
}

/// Runs the plan with a progress line.
fn watched(plan: &Plan, quiet: bool) -> anyhow::Result<Summary> {
    let progress = Progress::start("kills", plan.kills, quiet);
    progress.begin(&format!("{} to come", units::count(plan.kills)));
    let summary = campaign::run(plan, &|summary| {
        let acknowledged = read(&summary.tally.acknowledged);
        let words = format!(
            "{} of {}, {} writes acknowledged, {} promises broken",
            units::count(summary.kills),
            units::count(plan.kills),
            units::count(acknowledged),
            summary.broken()
        );
        progress.at(summary.kills, &words);
    });
    progress.finish();
    summary
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn told(summary: &Summary) -> Vec<String> {
    let told = summary.tally.told.lock();
    told.unwrap_or_else(PoisonError::into_inner).clone()
}

/// The command that makes the same choices again. The moment of a kill is never the same twice.
fn command(plan: &Plan) -> String {
    format!(
        "everdram crashtest --kill {} --medium {} --engine {} --connections {} --seed {}",
        plan.kills, plan.medium, plan.engine, plan.connections, plan.seed
    )
}

fn print(plan: &Plan, summary: &Summary, took: Duration) {
    let (tally, findings) = (&summary.tally, &summary.findings);
    row("kills (SIGKILL)", units::count(summary.kills));
    let (recovery, compaction) = (summary.kills_in_recovery, summary.kills_in_compaction);
    row("  while starting", units::count(recovery));
    row("  while compacting", units::count(compaction));
    row("  while growing", units::count(summary.kills_in_growth));
    if plan.medium == "file" {
        let image = units::count(summary.kills_in_image_write);
        row(
            "  while writing image",
            format_args!("{image} (checkpoints, growth)"),
        );
    }
    let reclaimed = units::count(summary.blocks_reclaimed);
    let grown = units::bytes(summary.grown_bytes);
    row(
        "pools",
        format_args!(
            "{}, grown by {grown}, {reclaimed} blocks compacted",
            summary.pools
        ),
    );
    row(
        "writes acknowledged",
        units::count(read(&tally.acknowledged)),
    );
    row("reads under load", units::count(read(&tally.reads)));
    row("reads after a start", units::count(read(&findings.checked)));
    let verdict = |name: &str, broken: u64| {
        let tone = if broken == 0 { Tone::Good } else { Tone::Bad };
        row(name, paint(tone, &units::count(broken)));
    };
    verdict("lost", read(&findings.lost));
    verdict("resurrected", read(&findings.resurrected));
    verdict("torn or damaged", read(&findings.damaged));
    verdict("inconsistent reads", read(&tally.inconsistent));
    verdict("damage in pools", summary.findings_in_pools);
    row(
        "longest recovery",
        format_args!(
            "{} from start to first reply, {} of it the pool",
            units::time(summary.longest_start),
            units::time(summary.longest_recovery)
        ),
    );
    row("time", units::time(took));
    for words in told(summary) {
        println!("  {} {words}", paint(Tone::Bad, "broken:"));
    }
}

fn to_json(plan: &Plan, summary: &Summary, took: Duration) -> Value {
    let (tally, findings) = (&summary.tally, &summary.findings);
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    json!({
        "seed": plan.seed, "medium": plan.medium, "engine": plan.engine, "connections": plan.connections,
        "kills": summary.kills, "kills_in_recovery": summary.kills_in_recovery,
        "kills_in_compaction": summary.kills_in_compaction, "kills_in_growth": summary.kills_in_growth,
        "kills_in_image_write": summary.kills_in_image_write,
        "pools": summary.pools, "pools_checked": summary.pools_checked,
        "blocks_reclaimed": summary.blocks_reclaimed, "grown_bytes": summary.grown_bytes,
        "writes_acknowledged": read(&tally.acknowledged), "reads_under_load": read(&tally.reads),
        "reads_after_start": read(&findings.checked),
        "lost": read(&findings.lost), "resurrected": read(&findings.resurrected),
        "damaged": read(&findings.damaged), "inconsistent": read(&tally.inconsistent),
        "findings_in_pools": summary.findings_in_pools,
        "longest_start_ns": nanoseconds(summary.longest_start),
        "longest_recovery_ns": nanoseconds(summary.longest_recovery),
        "time_ns": nanoseconds(took), "broken": told(summary), "repeat": command(plan),
    })
}

/// What lost something is evidence: it is never removed.
fn leave(plan: &Plan, directory: TempDir, summary: &Summary, quiet: bool) -> Outcome {
    if summary.broken() == 0 {
        if !quiet {
            println!("{}", paint(Tone::Good, "sound"));
        }
        return Outcome::Sound;
    }
    let own = format!("pool-{}", summary.pools);
    let pool = plan.pool.clone();
    let pool = pool.unwrap_or_else(|| plan.directory.join(own));
    eprintln!("pool kept:           {}", pool.display());
    eprintln!("expected state kept: {}", plan.expected.display());
    eprintln!("server log kept:     {}", directory.keep().display());
    eprintln!("same choices again:  {}", command(plan));
    eprintln!(
        "judge once more:     everdram crashtest --kill 0 --medium {} --pool {} --expected {}",
        plan.medium,
        pool.display(),
        plan.expected.display()
    );
    Outcome::Damaged
}
