//! `everdram crashtest` without `--kill`: workloads on recorded pools, the images that a crash could leave, and the
//! real recovery of each.
//!
//! Here are the command's flags and its course; the lab does the work. [`report`] prints what was done, [`finding`]
//! makes small, explains and saves what was found, and does it again.

mod finding;
mod report;

use crate::settings::usage;
use crate::terminal::{Progress, Tone, paint, row};
use crate::{Outcome, units};
use anyhow::Context;
use everdram_lab::campaign::{Campaign, Limit, Tally};
use everdram_lab::examine::Scrutiny;
use everdram_lab::image::Medium;
use everdram_lab::profile::Profile;
use signal_hook::consts::SIGINT;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Time, if nothing else says when to stop.
const BUDGET: Duration = Duration::from_secs(60);
/// Exit code of a second Ctrl-C, as shells have it.
const INTERRUPTED: i32 = 130;

/// Flags of exploring alone.
#[derive(clap::Args)]
#[group(id = "exploring", multiple = true, conflicts_with = "kill")]
pub(crate) struct Flags {
    /// Kinds of workloads, with commas between: fixed, variable, large, batch, expiry, reclamation, growth, threads
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    profile: Vec<Profile>,
    /// Calls of a run
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    ops: u32,
    /// Time, such as 60s, 30m or 2h; 60s unless --images or --runs says when to stop
    #[arg(long, value_name = "TIME", value_parser = units::parse_time)]
    budget: Option<Duration>,
    /// Stop after this many different images of each medium and profile
    #[arg(long, value_name = "N")]
    images: Option<u64>,
    /// Stop after this many runs of each medium and profile
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
    /// How deep crashes nest: 1 is a crash, 2 one more during recovery, 3 another one during the recovery from that
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3))]
    depth: u32,
    /// Threads that examine images; 0 is one for each core
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Do again what this file says, which an earlier run has written when it found something
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
}

/// What exploring shares with the other kinds of crash test.
pub(crate) struct Common<'a> {
    pub(crate) medium: Option<&'a str>,
    pub(crate) engine: &'a str,
    pub(crate) seed: u64,
    pub(crate) json: bool,
}

pub(crate) fn run(flags: &Flags, common: &Common<'_>) -> anyhow::Result<Outcome> {
    if common.engine != "viper" {
        let text = format!("engine `{}`: there is `viper`", common.engine);
        return Err(usage(text));
    }
    let scrutiny = Scrutiny {
        depth: flags.depth,
        ..Scrutiny::default()
    };
    if let Some(file) = &flags.plan {
        return finding::replay(file, &scrutiny, flags.budget.unwrap_or(BUDGET), common.json);
    }
    let campaign = campaign(flags, common, scrutiny)?;
    if !common.json {
        print_plan(&campaign);
    }
    let begun = Instant::now();
    let tally = explore(&campaign, common.json)?;
    let took = begun.elapsed();
    let mut findings = Vec::new();
    if !common.json {
        report::print(&tally, took);
    }
    for found in &tally.findings {
        findings.push(finding::follow(found, &campaign, common.json)?);
    }
    if common.json {
        println!("{}", report::to_json(&campaign, &tally, took, &findings));
    } else {
        report::verdict(&tally, took);
    }
    Ok(if tally.findings.is_empty() {
        Outcome::Sound
    } else {
        Outcome::Damaged
    })
}

fn campaign(flags: &Flags, common: &Common<'_>, scrutiny: Scrutiny) -> anyhow::Result<Campaign> {
    let media = match common.medium {
        None | Some("both") => Medium::ALL.to_vec(),
        Some(name) => vec![name.parse().map_err(|_| {
            usage(format!(
                "medium `{name}`: `pmem`, `file` or `both`; other media are for --kill N"
            ))
        })?],
    };
    let mut profiles = flags.profile.clone();
    profiles.sort_unstable();
    profiles.dedup();
    if profiles.is_empty() {
        profiles = Profile::ALL.to_vec();
    }
    let has_end = flags.images.is_some() || flags.runs.is_some();
    Ok(Campaign {
        media,
        profiles,
        seed: common.seed,
        calls: flags.ops as usize,
        scrutiny,
        workers: flags.threads,
        limit: Limit {
            time: flags.budget.or((!has_end).then_some(BUDGET)),
            images: flags.images,
            runs: flags.runs,
            ..Campaign::default().limit
        },
        ..Campaign::default()
    })
}

fn print_plan(campaign: &Campaign) {
    println!("{}", paint(Tone::Strong, "everdram crashtest"));
    let names = |names: Vec<String>| names.join(", ");
    row(
        "media",
        names(campaign.media.iter().map(Medium::to_string).collect()),
    );
    row(
        "profiles",
        names(campaign.profiles.iter().map(Profile::to_string).collect()),
    );
    row("calls of a run", campaign.calls);
    row("seed", campaign.seed);
    if let Some(time) = campaign.limit.time {
        row("budget", units::time(time));
    }
}

/// Runs the campaign with a progress line; Ctrl-C ends it early, and a second one ends the process.
fn explore(campaign: &Campaign, quiet: bool) -> anyhow::Result<Tally> {
    let stop = Arc::new(AtomicBool::new(false));
    let second =
        signal_hook::flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&stop));
    second.context("signals")?;
    signal_hook::flag::register(SIGINT, Arc::clone(&stop)).context("signals")?;
    let begun = Instant::now();
    let total = campaign
        .limit
        .time
        .map_or(0, |time| time.as_millis() as u64);
    let progress = Progress::start("exploring", total, quiet);
    progress.begin("the first run");
    let tally = campaign.run(
        &|tally| {
            let elapsed = begun.elapsed();
            progress.at(
                elapsed.as_millis() as u64,
                &report::progress(tally, elapsed),
            );
        },
        &stop,
    );
    progress.finish();
    Ok(tally)
}
