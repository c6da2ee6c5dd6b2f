//! `everdram crashtest` without `--kill`: workloads on recorded pools, the images that a crash could leave,
//! and the real recovery of each.
//!
//! Here are the command's flags and its course; the lab does the work. [`report`] prints what was done,
//! [`finding`] saves, makes small and explains what was found, and [`again`] does a saved plan again. It is
//! sound only if something was judged, nobody interrupted it, and nothing was found.

mod again;
mod finding;
mod plan_file;
mod report;

use crate::settings::usage;
use crate::terminal::{Progress, Tone, paint, row};
use crate::{INTERRUPTED, Outcome, units};
use anyhow::Context;
use everdram::EngineKind;
use everdram_lab::campaign::{Campaign, IMAGES, Limit, Tally};
use everdram_lab::examine::ExploreOptions;
use everdram_lab::image::Medium;
use everdram_lab::profile::Profile;
use signal_hook::consts::SIGINT;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time, if nothing else says when to stop.
const BUDGET: Duration = Duration::from_secs(60);
/// Threads that examine images, at most.
const THREADS: i64 = 256;

/// Flags of exploring alone.
#[derive(clap::Args)]
#[group(id = "exploring", multiple = true, conflicts_with = "kill")]
pub(crate) struct Flags {
    /// Kinds of workloads, with commas between: threads, fixed, variable, large, batch, expiry, reclamation,
    /// growth, narrow
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    profile: Vec<Profile>,
    /// Calls of a run; one in five makes three times as many
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    ops: u32,
    /// Time, such as 60s, 30m or 2h; 60s unless --images or --runs says when to stop
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    budget: Option<Duration>,
    /// Stop after this many different images of each medium and profile
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    images: Option<u64>,
    /// Look at so many images of one run in four, spread over it, and at an eighth of that of the others:
    /// more runs find more than more images of one; those of crashes in recoveries come on top
    #[arg(long, value_name = "N", default_value_t = IMAGES, value_parser = clap::value_parser!(u64).range(1..))]
    images_per_run: u64,
    /// Stop after this many runs of each medium and profile
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    runs: Option<u64>,
    /// How deep crashes nest: 1 is a crash, 2 one more during recovery or the use after it, 3 another one
    /// after that
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3))]
    depth: u32,
    /// Threads that examine images; 0 is two for each core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=THREADS))]
    threads: u16,
    /// Do again what this file says, which an earlier run has written when it found something; --budget and
    /// --depth count if the saved crash cannot happen any more and the whole run is examined instead
    #[arg(
        long, value_name = "FILE",
        conflicts_with_all = ["medium", "seed", "profile", "ops", "images", "runs", "threads"]
    )]
    plan: Option<PathBuf>,
}

/// What exploring shares with the other kinds of crash test.
pub(crate) struct Common<'a> {
    pub(crate) medium: Option<&'a str>,
    pub(crate) engine: EngineKind,
    pub(crate) seed: u64,
    pub(crate) json: bool,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// What was asked for was done, and nothing is wrong.
    Sound,
    /// Something is.
    Defect,
    /// Ctrl-C came before there was an answer.
    Interrupted,
    /// Time was up before there was an answer: of some pair of a medium and a profile nothing was judged.
    TooSoon,
}

pub(crate) fn run(flags: &Flags, common: &Common<'_>) -> anyhow::Result<Outcome> {
    if !EngineKind::ALL.contains(&common.engine) {
        let text = format!("engine `{}`: it has no pools to explore", common.engine);
        return Err(usage(text));
    }
    let options = ExploreOptions {
        depth: flags.depth,
        images: Some(flags.images_per_run),
        ..ExploreOptions::default()
    };
    let end = match &flags.plan {
        Some(file) => {
            let budget = flags.budget.unwrap_or(BUDGET);
            again::replay(file, &options, budget, &*interruption()?, common.json)?
        }
        None => {
            let campaign = campaign(flags, common, options)?;
            explore(&campaign, Path::new(""), &*interruption()?, common.json)
        }
    };
    match end {
        End::Sound => Ok(Outcome::Sound),
        End::Defect => Ok(Outcome::Damaged),
        End::Interrupted => Ok(Outcome::Interrupted),
        End::TooSoon => {
            eprintln!("everdram: time was up before there was an answer: allow more with --budget");
            Ok(Outcome::Incomplete)
        }
    }
}

/// Set by Ctrl-C, which ends things early; a second one ends the process.
fn interruption() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let second = Arc::clone(&stop);
    signal_hook::flag::register_conditional_shutdown(SIGINT, INTERRUPTED.into(), second)
        .context("signals")?;
    signal_hook::flag::register(SIGINT, Arc::clone(&stop)).context("signals")?;
    Ok(stop)
}

/// A time in which something can be done.
fn some_time(text: &str) -> Result<Duration, String> {
    match units::parse_time(text)? {
        Duration::ZERO => Err(format!("time `{text}`: nothing can be judged in no time")),
        time => Ok(time),
    }
}

/// Explores, and says what came of it; plans of what was found go to `directory`.
fn explore(campaign: &Campaign, directory: &Path, stop: &AtomicBool, json: bool) -> End {
    if !json {
        print_plan(campaign);
    }
    let begun = Instant::now();
    let tally = watched(campaign, stop, json);
    let took = begun.elapsed();
    if !json {
        report::print(&tally, took);
    }
    let found = tally.findings.iter();
    let followed: Vec<_> = found
        .map(|found| finding::follow(found, campaign, directory, stop, json))
        .collect();
    let is_interrupted = stop.load(Ordering::Relaxed);
    let end = match report::not_reached(campaign, &tally)[..] {
        _ if !followed.is_empty() || !tally.unmade.is_empty() => End::Defect,
        _ if is_interrupted => End::Interrupted,
        [] => End::Sound,
        _ => End::TooSoon,
    };
    let done = report::Done {
        campaign,
        tally: &tally,
        took,
        end,
        is_interrupted,
    };
    if json {
        println!("{}", done.to_json(&followed));
    } else {
        done.print_verdict();
    }
    end
}

fn campaign(
    flags: &Flags,
    common: &Common<'_>,
    options: ExploreOptions,
) -> anyhow::Result<Campaign> {
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
        profiles = Profile::of(common.engine);
    }
    let known = Profile::of(common.engine);
    if let Some(profile) = profiles.iter().find(|profile| !known.contains(profile)) {
        return Err(usage(format!(
            "profile `{profile}`: the engine {} keeps keys in no order",
            common.engine
        )));
    }
    let has_end = flags.images.is_some() || flags.runs.is_some();
    Ok(Campaign {
        engine: common.engine,
        media,
        profiles,
        seed: common.seed,
        calls: flags.ops as usize,
        by_hand: flags.profile.is_empty() && flags.runs.is_none(),
        options,
        workers: usize::from(flags.threads),
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
    row("engine", campaign.engine);
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

/// Runs the campaign with a progress line.
fn watched(campaign: &Campaign, stop: &AtomicBool, quiet: bool) -> Tally {
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
        stop,
    );
    progress.finish();
    tally
}

#[cfg(test)]
mod tests;
