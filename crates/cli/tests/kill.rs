//! The kill loop: the real program, under load from several connections, killed with SIGKILL again and again.
//!
//! After each kill every acknowledged write must be there, no answer may have been older than an earlier one,
//! and nothing deleted may be back. `EVERDRAM_KILLS` sets the number of kills of each engine over both media
//! (50), `EVERDRAM_SEED` repeats a run's choices. The campaigns of `everdram crashtest --kill` are run here,
//! too, as a user runs them: few kills, but every kind of write.

#[path = "support/forgetful.rs"]
mod forgetful;
#[path = "support/kill_loop.rs"]
mod kill_loop;

use everdram::{EngineKind, test_each_engine};
use everdram_cli::client::Client;
use everdram_cli::killing::place;
use everdram_cli::killing::process::Launch;
use forgetful::forgetful;
use kill_loop::{DOCUMENTS, from_environment, launch, must_be_sound, run, seed};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

test_each_engine!(
    kills_on_files_lose_nothing,
    kills_on_emulated_memory_lose_nothing,
    campaigns_lose_nothing
);

/// A server of a pool in `directory`.
fn server(directory: &TempDir, medium: &str, engine: EngineKind) -> Launch {
    let arguments = [
        "--medium",
        medium,
        "--engine",
        engine.name(),
        "--durability",
        "always",
    ];
    launch(directory, directory.path().join("pool"), &arguments)
}

/// Half of the kills of a test run, at least one.
fn nothing_is_lost(directory: TempDir, medium: &str, engine: EngineKind) {
    let kills = from_environment("EVERDRAM_KILLS").unwrap_or(30);
    let kills = kills.div_ceil(2).max(1).try_into().unwrap();
    let launch = server(&directory, medium, engine);
    must_be_sound(directory, launch, kills, seed("kill"));
}

fn kills_on_files_lose_nothing(engine: EngineKind) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    nothing_is_lost(directory, "file", engine);
}

fn kills_on_emulated_memory_lose_nothing(engine: EngineKind) {
    match place::for_emulation() {
        Ok(directory) => nothing_is_lost(directory, "emulated", engine),
        Err(reason) => println!("skipped: {reason:#}"),
    }
}

/// A run over a server that keeps nothing shows that this test can fail.
#[test]
fn a_store_that_loses_everything_is_found_out() {
    let directory = tempfile::tempdir().unwrap();
    let launch = server(&directory, "file", EngineKind::default());
    let summary = run(forgetful(launch, directory.path()), 1, seed("kill"));
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

fn campaigns_lose_nothing(engine: EngineKind) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let seed = seed("kill").to_string();
    for medium in ["file", "emulated"] {
        let arguments = [
            "--kill",
            "20",
            "--medium",
            medium,
            "--engine",
            engine.name(),
            "--seed",
            &seed,
        ];
        let output = crashtest(directory.path(), &arguments).output().unwrap();
        let summary = summary(&output);
        println!("{summary}");
        if output.status.code() != Some(0) {
            panic!("kept {}: {summary}", directory.keep().display());
        }
        assert_eq!(summary["kills"], 20);
        for count in [
            "lost",
            "resurrected",
            "damaged",
            "inconsistent",
            "findings_in_pools",
            "failures",
        ] {
            assert_eq!(summary[count], 0, "{count}");
        }
        assert_eq!(summary["complete"], true);
        for count in [
            "writes_acknowledged",
            "reads_under_load",
            "reads_after_start",
        ] {
            assert!(summary[count].as_u64().unwrap() > 1000, "{count}");
        }
    }
}

/// Somebody removes the pool. Everything a person needs to look into the loss is said and kept.
#[test]
fn a_campaign_convicts_and_keeps_the_evidence() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name| directory.path().join(name);
    let (pool, expected) = (path("pool"), path("expected"));
    let run = |kills| {
        let mut command = crashtest(directory.path(), &["--kill", kills, "--seed", "3"]);
        let command = command.arg("--pool").arg(&pool);
        command.arg("--expected").arg(&expected).output().unwrap()
    };
    assert_eq!(run("3").status.code(), Some(0));
    std::fs::remove_dir_all(&pool).unwrap();
    let output = run("5");
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
    let again = command_after(&error, "judge once more:");
    assert!(again.contains("--pool") && again.contains(kept.unwrap()));
    let again = command_after(&error, "same choices again:");
    assert_eq!(again, summary["repeat"].as_str().unwrap());
}

/// A command to be copied is a line of its own.
fn command_after<'a>(text: &'a str, title: &str) -> &'a str {
    let mut lines = text.lines().skip_while(|&line| line != title).skip(1);
    lines.next().expect(text).trim()
}

/// A pool that does not open after a kill was an error of the campaign; it is a finding like lost writes.
#[test]
fn a_pool_that_does_not_open_is_a_broken_promise() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name| directory.path().join(name).display().to_string();
    let (pool, expected) = (path("a pool"), path("expected"));
    let run = |kills| {
        let arguments = ["--kill", kills, "--pool", &pool, "--expected", &expected];
        crashtest(directory.path(), &arguments).output().unwrap()
    };
    assert_eq!(run("1").status.code(), Some(0));
    let image = directory.path().join("a pool/image");
    let bytes = std::fs::metadata(&image).unwrap().len();
    std::fs::write(&image, vec![0xa5; bytes.try_into().unwrap()]).unwrap();
    let output = run("0");
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(1), "{summary}");
    assert_eq!(summary["failures"], 1, "{summary}");
    let words = summary["broken"][0].as_str().unwrap();
    assert!(words.contains("the server did not start"), "{words}");
    assert!(words.contains("Its log ends:"), "{words}");
    let repeat = summary["repeat"].as_str().unwrap();
    let given = format!("--pool '{pool}' --expected {expected}");
    assert!(repeat.ends_with(&given), "{repeat}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(command_after(&error, "same choices again:"), repeat);
}

/// A key that no client asked for is read by nobody.
#[test]
fn a_key_that_nobody_asked_for_is_a_broken_promise() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (pool, expected) = (
        directory.path().join("pool"),
        directory.path().join("expected"),
    );
    let run = |kills| {
        let mut command = crashtest(directory.path(), &["--kill", kills]);
        let command = command.arg("--pool").arg(&pool);
        command.arg("--expected").arg(&expected).output().unwrap()
    };
    assert_eq!(run("1").status.code(), Some(0));
    let server = server(&directory, "file", EngineKind::default())
        .start()
        .unwrap();
    let mut client = Client::connect(("127.0.0.1", server.port)).unwrap();
    client.call(&[b"SET", b"whence?", b"value"]).unwrap();
    server.close().unwrap();
    let output = run("0");
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(1), "{summary}");
    assert_ne!(summary["resurrected"], 0, "{summary}");
    let words = summary["broken"][0].as_str().unwrap();
    assert!(words.contains("which nobody wrote"), "{words}");
}

/// What cannot be is refused before anything is made, and what is there stays as it is.
#[test]
fn campaigns_that_cannot_be_are_refused_as_usage() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (pool, expected, letter) = (path("pool"), path("expected"), path("letter"));
    let new = path("new");
    let made = ["--kill", "0", "--pool", &pool, "--expected", &expected];
    let made = crashtest(directory.path(), &made).output().unwrap();
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    std::fs::write(&letter, "Dear reader").unwrap();
    let before = contents(directory.path());
    for arguments in [
        &["--engine", "steam"][..],
        &["--medium", "tape"],
        &["--medium", "pmem"],
        &["--pool", &pool, "--expected", &new],
        &["--pool", &new, "--expected", &expected],
        &["--pool", &pool, "--expected", &letter],
        &["--pool", &new, "--expected", &letter],
        &[
            "--pool",
            &pool,
            "--expected",
            &expected,
            "--medium",
            "emulated",
        ],
    ] {
        let mut command = crashtest(directory.path(), &["--kill", "1"]);
        let output = command.args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert_eq!(contents(directory.path()), before, "{arguments:?}");
    }
}

/// Names and lengths of what is in a directory.
fn contents(directory: &Path) -> Vec<(String, u64)> {
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, entry.metadata().unwrap().len())
        })
        .collect();
    names.sort();
    names
}

/// Ctrl-C: the round is finished, what was found is said, and nothing is left behind.
#[test]
fn an_interrupted_campaign_says_so_and_cleans_up() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = crashtest(directory.path(), &["--kill", "100000", "--seed", "6"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let campaign = command.process_group(0).spawn().unwrap();
    wait_until("a kill was survived, and a server is under load", || {
        let mut files = std::fs::read_dir(directory.path()).unwrap();
        files.any(|entry| is_loaded_again(&entry.unwrap().path().join("expected")))
    });
    // To the whole group, as a terminal does it: the server must not hear it.
    let group = format!("-{}", campaign.id());
    let sent = Command::new("kill").args(["-INT", "--", &group]).status();
    assert!(sent.unwrap().success());
    let output = campaign.wait_with_output().unwrap();
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(summary["complete"], false);
    assert_eq!(summary["failures"], 0, "{summary}");
    assert!(summary["kills"].as_u64().unwrap() > 0);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("interrupted after"), "{error}");
    command_after(&error, "same choices again:");
    assert_eq!(contents(directory.path()), [], "something was left behind");
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
    let kills = || kills_in(&expected);
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

/// Whether writes were acknowledged after the last of some kills.
fn is_loaded_again(expected: &Path) -> bool {
    let text = std::fs::read_to_string(expected).unwrap_or_default();
    let since = text.rsplit_once("\nK ");
    since.is_some_and(|(_, since)| since.contains("\nA "))
}

/// Kills that an expected-state file knows of.
fn kills_in(expected: &Path) -> u64 {
    let text = std::fs::read_to_string(expected).unwrap_or_default();
    let kills = text.lines().filter(|line| line.starts_with("K "));
    kills.count() as u64
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
