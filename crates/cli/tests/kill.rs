//! The kill loop: the real program, under load from several connections, killed with SIGKILL again and again.
//!
//! After each kill every acknowledged write must be there, no answer may have been older than an earlier one,
//! and nothing deleted may be back. `EVERDRAM_KILLS` sets the number of kills over both media (50),
//! `EVERDRAM_SEED` repeats a run's choices. The campaigns of `everdram crashtest --kill` are run here, too, as a user
//! runs them: few kills, but every kind of write.

use everdram_cli::demo::campaign::{self, Plan, Summary};
use everdram_cli::demo::corpus::Corpus;
use everdram_cli::demo::place;
use everdram_cli::demo::process::Launch;
use rand::RngExt;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

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

fn run(directory: &Path, medium: &str, engine: &str, kills: usize) -> Summary {
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
            pool: directory.join("pool"),
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

/// The pool is kept as evidence if a promise was broken.
fn must_be_sound(directory: tempfile::TempDir, medium: &str) {
    let kills = kills_for_one_medium();
    let summary = run(directory.path(), medium, "viper", kills);
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

/// The engine `model` keeps nothing: a run over it shows that this test can fail.
#[test]
fn a_store_that_loses_everything_is_found_out() {
    let directory = tempfile::tempdir().unwrap();
    let summary = run(directory.path(), "emulated", "model", 1);
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

/// `everdram crashtest` with its temporary files in `directory`.
fn crashtest(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everdram"));
    command
        .args(["crashtest", "--json"])
        .args(arguments)
        .env("TMPDIR", directory)
        .current_dir(directory);
    command
}

fn summary(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{error}"))
}

#[test]
fn campaigns_lose_nothing() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let seed = seed().to_string();
    for medium in ["file", "emulated"] {
        let arguments = ["--kill", "20", "--medium", medium, "--seed", &seed];
        let output = crashtest(directory.path(), &arguments).output().unwrap();
        let summary = summary(&output);
        println!("{summary}");
        if output.status.code() != Some(0) {
            panic!("kept {}: {summary}", directory.keep().display());
        }
        assert_eq!(summary["kills"], 20);
        for count in ["lost", "resurrected", "damaged", "inconsistent"] {
            assert_eq!(summary[count], 0, "{count}");
        }
        for count in [
            "writes_acknowledged",
            "reads_under_load",
            "reads_after_start",
        ] {
            assert!(summary[count].as_u64().unwrap() > 1000, "{count}");
        }
    }
}

/// Everything a person needs to look into a loss is said and kept.
#[test]
fn a_campaign_convicts_and_keeps_the_evidence() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--kill", "5", "--engine", "model", "--seed", "3"];
    let output = crashtest(directory.path(), &arguments).output().unwrap();
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(1), "{summary}");
    assert!(summary["lost"].as_u64().unwrap() > 100, "{summary}");
    assert!(summary["repeat"].as_str().unwrap().contains("--seed 3"));
    let first = summary["broken"][0].as_str().unwrap();
    assert!(first.contains("LOST: promised was"), "{first}");
    let error = String::from_utf8(output.stderr).unwrap();
    let kept = error
        .lines()
        .find_map(|line| line.strip_prefix("expected state kept: "));
    let text = std::fs::read_to_string(kept.expect(&error)).unwrap();
    assert!(text.lines().any(|line| line.starts_with("K ")), "no kill");
    assert!(error.contains("judge once more:"), "{error}");
}

/// The campaign itself is killed; what it wrote down is enough to go on, and to judge.
#[test]
fn a_killed_campaign_goes_on_where_it_was() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (pool, expected) = (
        directory.path().join("pool"),
        directory.path().join("expected"),
    );
    let run = |kills: &str| {
        let mut command = crashtest(directory.path(), &["--kill", kills, "--seed", "5"]);
        let command = command.arg("--pool").arg(&pool);
        let command = command.arg("--expected").arg(&expected);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut first = run("1000");
    let kills = || {
        let text = std::fs::read_to_string(&expected).unwrap_or_default();
        text.lines().filter(|line| line.starts_with("K ")).count()
    };
    wait_until("two kills were survived", || kills() >= 2);
    first.kill().unwrap();
    first.wait().unwrap();
    // Its server notices and ends in order; whoever goes on waits for that.
    let before = kills();
    for more in [0, 3] {
        let output = run(&more.to_string()).wait_with_output().unwrap();
        let summary = summary(&output);
        assert_eq!(output.status.code(), Some(0), "{summary}");
        assert_eq!(summary["kills"], more);
        assert!(summary["reads_after_start"].as_u64().unwrap() > 1000);
    }
    assert_eq!(kills(), before + 3);
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
