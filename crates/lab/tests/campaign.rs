//! Every engine, every workload, on both media: no image that a crash could leave loses anything.
//!
//! `cargo xtask lab` runs this, optimized, over a million different images of all engines together (`EVERDRAM_LAB_IMAGES`);
//! without optimisation it looks at fewer. `EVERDRAM_SEED` repeats a run.

use everdram::{EngineKind, test_each_engine};
use everdram_lab::campaign::{Campaign, Limit, Tally};
use everdram_lab::image::Medium;
use everdram_lab::profile::Profile;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const IMAGES: u64 = if cfg!(debug_assertions) {
    24_000
} else {
    1_000_000
};

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
    let images = from_environment("EVERDRAM_LAB_IMAGES").unwrap_or(IMAGES);
    let images = images.div_ceil(EngineKind::ALL.len() as u64);
    let seed = from_environment("EVERDRAM_SEED").unwrap_or_else(|| rand::random_range(0..1 << 32));
    println!("repeat with EVERDRAM_SEED={seed} cargo xtask lab");
    let kinds = (Medium::ALL.len() * Profile::ALL.len()) as u64;
    let campaign = Campaign {
        engine,
        seed,
        // Short runs, so that it ends soon after the last image that it has to see.
        calls: 45,
        limit: Limit {
            time: None,
            // Runs on memory are looked at to their end, and have several times as many.
            images: Some(images.div_ceil(2 * kinds)),
            images_in_all: Some(images),
            runs: None,
            violations: 1,
        },
        ..Campaign::default()
    };
    let said = Mutex::new(Instant::now());
    let watch = |tally: &Tally| {
        let mut said = said.lock().unwrap();
        if said.elapsed() >= Duration::from_secs(30) {
            *said = Instant::now();
            println!("{} different images so far", tally.sum().totals.unique);
        }
    };
    let tally = campaign.run(&watch, &AtomicBool::new(false));
    show(&tally);
    for finding in &tally.findings {
        println!(
            "{} {} seed {}: {}",
            finding.plan.medium, finding.plan.profile, finding.plan.seed, finding.wrong
        );
    }
    assert!(tally.findings.is_empty());
    let sum = tally.sum();
    assert!(sum.totals.unique >= images, "{} images", sum.totals.unique);
    assert_eq!(sum.totals.depth, 2);
    for ((medium, profile), row) in &tally.rows {
        assert!(row.totals.unique > 0, "{medium} {profile}");
    }
    assert_eq!(tally.rows.len() as u64, kinds);
}
