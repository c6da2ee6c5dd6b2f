//! The kill loop: the real program, under load from several connections, killed with SIGKILL again and again.
//!
//! After each kill every acknowledged write must be there, no answer may have been older than an earlier one,
//! and nothing deleted may be back. `EVERDRAM_KILLS` sets the number of kills over both media (50),
//! `EVERDRAM_SEED` repeats a run's choices.

use everdram_cli::demo::campaign::{self, Plan, Summary};
use everdram_cli::demo::corpus::Corpus;
use everdram_cli::demo::place;
use everdram_cli::demo::process::Launch;
use rand::RngExt;
use std::path::{Path, PathBuf};

const CONNECTIONS: usize = 6;
const DOCUMENTS: usize = 2000;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

fn seed() -> u64 {
    let seed =
        from_environment("EVERDRAM_SEED").unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    println!("repeat with EVERDRAM_SEED={seed} cargo test -p everdram-cli --test kill");
    seed
}

/// Half of the kills of a test run, at least one.
fn kills_for_one_medium() -> usize {
    usize::try_from(from_environment("EVERDRAM_KILLS").unwrap_or(50))
        .unwrap()
        .div_ceil(2)
        .max(1)
}

fn run(directory: &Path, pool: PathBuf, medium: &str, engine: &str, kills: usize) -> Summary {
    let seed = seed();
    let arguments = [
        "--medium",
        medium,
        "--engine",
        engine,
        "--durability",
        "always",
    ];
    let plan = Plan {
        launch: Launch {
            program: env!("CARGO_BIN_EXE_everdram").into(),
            pool,
            log: directory.join("server.log"),
            arguments: arguments.map(str::to_owned).to_vec(),
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
        "{medium}: {} kills, {} writes acknowledged, {} verified, {} reads judged, {} lost, {} inconsistent",
        summary.kills,
        summary.acknowledged,
        summary.verified,
        summary.reads,
        summary.lost,
        summary.inconsistent
    );
    summary
}

fn must_be_sound(directory: tempfile::TempDir, medium: &str) {
    let pool = directory.path().join("pool");
    must_be_sound_at(directory, pool, medium);
}

/// The pool is kept as evidence if a promise was broken.
fn must_be_sound_at(directory: tempfile::TempDir, pool: PathBuf, medium: &str) {
    let kills = kills_for_one_medium();
    let summary = run(directory.path(), pool, medium, "viper", kills);
    if !summary.is_sound() {
        panic!(
            "kept {}:\n{}",
            directory.keep().display(),
            summary.told.join("\n")
        );
    }
    assert_eq!(summary.kills, kills as u64);
    assert_eq!(
        summary.verified, summary.acknowledged,
        "every acknowledged write is accounted for"
    );
    assert!(
        summary.reads > 0 && summary.acknowledged > DOCUMENTS as u64,
        "the load did happen"
    );
}

#[test]
fn kills_on_files_lose_nothing() {
    must_be_sound(
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
        "file",
    );
}

#[test]
fn kills_on_emulated_memory_lose_nothing() {
    match place::for_emulation() {
        Ok(directory) => must_be_sound(directory, "emulated"),
        Err(reason) => println!("skipped: {reason:#}"),
    }
}

/// `EVERDRAM_TEST_PMEM` names a directory on a DAX file system or a devdax device, whose pool is erased.
#[test]
fn kills_on_persistent_memory_lose_nothing() {
    let Some(place) = std::env::var_os("EVERDRAM_TEST_PMEM").map(PathBuf::from) else {
        println!("skipped: EVERDRAM_TEST_PMEM names no persistent memory");
        return;
    };
    if place.is_dir() {
        must_be_sound(tempfile::tempdir_in(place).unwrap(), "pmem");
    } else {
        everdram_pm::erase(&place).unwrap();
        must_be_sound_at(tempfile::tempdir().unwrap(), place, "pmem");
    }
}

/// The engine `model` keeps nothing: a run over it shows that this test can fail.
#[test]
fn a_store_that_loses_everything_is_found_out() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    let summary = run(directory.path(), pool, "emulated", "model", 1);
    assert!(!summary.is_sound());
    assert!(
        summary.lost > DOCUMENTS as u64 / 2,
        "{} keys were found lost",
        summary.lost
    );
    assert!(
        summary.told.iter().any(|broken| broken.contains("LOST")),
        "{:?}",
        summary.told
    );
}
