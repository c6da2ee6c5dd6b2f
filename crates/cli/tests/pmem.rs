//! The kill loop on real persistent memory: `EVERDRAM_TEST_PMEM` names a directory on a DAX file system, or a
//! devdax device, whose pool is erased.
//!
//! `EVERDRAM_KILLS` sets the number of kills (20), `EVERDRAM_SEED` repeats a run's choices. `cargo xtask vm` runs
//! this in a machine with emulated NVDIMMs.

use everdram_cli::demo::campaign::{self, Plan};
use everdram_cli::demo::corpus::Corpus;
use everdram_cli::demo::process::Launch;
use rand::RngExt;
use std::path::PathBuf;

const CONNECTIONS: usize = 6;
const DOCUMENTS: usize = 2000;

fn number_from(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

#[test]
fn kills_on_persistent_memory_lose_nothing() {
    let Some(place) = std::env::var_os("EVERDRAM_TEST_PMEM").map(PathBuf::from) else {
        println!("skipped: EVERDRAM_TEST_PMEM names no persistent memory");
        return;
    };
    let seed = number_from("EVERDRAM_SEED").unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    println!("repeat with EVERDRAM_SEED={seed}");
    let (directory, pool) = if place.is_dir() {
        let directory = tempfile::tempdir_in(place).unwrap();
        let pool = directory.path().join("pool");
        (directory, pool)
    } else {
        everdram_pm::erase(&place).unwrap();
        (tempfile::tempdir().unwrap(), place)
    };
    let kills = usize::try_from(number_from("EVERDRAM_KILLS").unwrap_or(20)).unwrap();
    let plan = Plan {
        launch: Launch {
            program: env!("CARGO_BIN_EXE_everdram").into(),
            pool,
            log: directory.path().join("server.log"),
            arguments: ["--medium", "pmem"].map(str::to_owned).to_vec(),
        },
        corpus: Corpus::generated(DOCUMENTS, seed),
        connections: CONNECTIONS,
        kills,
        stretch_ms: 30..=400,
        kill_in_recovery: true,
        seed,
    };
    let summary = campaign::run(&plan, &|_, _, _| ()).unwrap_or_else(|error| panic!("{error:#}"));
    println!(
        "{} kills, {} writes acknowledged, {} verified, {} reads judged, {} lost, {} inconsistent",
        summary.kills,
        summary.acknowledged,
        summary.verified,
        summary.reads,
        summary.lost,
        summary.inconsistent
    );
    if !summary.is_sound() {
        panic!(
            "kept {}:\n{}",
            directory.keep().display(),
            summary.told.join("\n")
        );
    }
    assert_eq!(summary.kills, kills as u64);
    assert_eq!(summary.verified, summary.acknowledged);
    assert!(
        summary.reads > 0 && summary.acknowledged > DOCUMENTS as u64,
        "the load did happen"
    );
}
