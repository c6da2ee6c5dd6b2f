//! Every engine, every workload, on both media: no image that a crash could leave loses anything.
//!
//! `cargo xtask lab` runs this, optimized, for so many seconds of each engine (`EVERDRAM_LAB_SECONDS`), media
//! and profiles in turn; without optimisation there are two runs of each. The seed is that of the day;
//! `EVERDRAM_LAB_SEED` repeats another one, and `EVERDRAM_LAB_RUNS` makes so many runs of each instead.

use everdram::{EngineKind, test_each_engine};
use everdram_lab::campaign::{Campaign, Limit, Tally};
use everdram_lab::image::Medium;
use everdram_lab::profile::Profile;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

/// Runs of each medium and profile, without optimisation; there are at least so many.
const RUNS: u64 = 2;
/// Seconds for each engine.
const SECONDS: u64 = 18;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

fn show(tally: &Tally) {
    println!(
        "{:6} {:12} {:>5} {:>6} {:>8} {:>9} {:>9} {:>8} {:>8} {:>7} {:>10}",
        "medium",
        "profile",
        "runs",
        "calls",
        "points",
        "images",
        "unique",
        "nested",
        "lazy",
        "cpu s",
        "violations"
    );
    let line = |medium: &str, profile: &str, row: &everdram_lab::campaign::Row| {
        let totals = &row.totals;
        println!(
            "{medium:6} {profile:12} {:>5} {:>6} {:>8} {:>9} {:>9} {:>8} {:>8} {:>7.1} {:>10}",
            totals.runs,
            totals.calls,
            totals.points,
            totals.judged,
            totals.unique,
            totals.nested,
            totals.lazy,
            row.time.as_secs_f64(),
            row.violations
        );
    };
    for ((medium, profile), row) in &tally.rows {
        line(&medium.to_string(), profile.name(), row);
    }
    line("both", "all", &tally.sum());
}

test_each_engine!(no_crash_loses_anything);

fn no_crash_loses_anything(engine: EngineKind) {
    let asked = from_environment("EVERDRAM_LAB_RUNS");
    let has_budget = cfg!(feature = "thorough") && asked.is_none();
    let seconds = from_environment("EVERDRAM_LAB_SECONDS").unwrap_or(SECONDS);
    let runs = (!has_budget).then_some(asked.unwrap_or(RUNS));
    let seed = from_environment("EVERDRAM_LAB_SEED").unwrap_or_else(of_the_day);
    println!("repeat with EVERDRAM_LAB_SEED={seed} cargo xtask lab");
    let profiles = Profile::of(engine);
    let kinds = Medium::ALL.len() * profiles.len();
    let campaign = Campaign {
        engine,
        profiles,
        seed,
        limit: Limit {
            time: has_budget.then_some(Duration::from_secs(seconds)),
            runs,
            ..Campaign::default().limit
        },
        ..Campaign::default()
    };
    let said = Mutex::new(Instant::now());
    let watch = |tally: &Tally| {
        let mut said = said.lock().unwrap();
        if said.elapsed() >= Duration::from_secs(30) {
            *said = Instant::now();
            println!("{} runs so far", tally.sum().totals.runs);
        }
    };
    let tally = campaign.run(&watch, &AtomicBool::new(false));
    show(&tally);
    for finding in &tally.findings {
        println!(
            "{} {} seed {}: {}",
            finding.plan.medium, finding.plan.profile, finding.plan.seed, finding.defect
        );
    }
    assert!(tally.findings.is_empty());
    assert_eq!(tally.sum().totals.depth, 2);
    assert_eq!(tally.rows.len(), kinds);
    for ((medium, profile), row) in &tally.rows {
        match runs {
            Some(runs) => assert_eq!(row.totals.runs, runs, "{medium} {profile}"),
            None => assert!(row.totals.runs >= RUNS, "{medium} {profile}"),
        }
        assert!(row.totals.unique > 0, "{medium} {profile}");
    }
}

/// Another seed each day, so that a failure can be repeated on that day.
fn of_the_day() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // Runs take the seeds that follow.
    since.map_or(0, |since| since.as_secs() / (24 * 3600) * 1000)
}
