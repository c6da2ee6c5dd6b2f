//! `everdram crashtest` without `--kill`, as a script sees it: tables, JSON, plans, exit codes.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn crashtest(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everdram"));
    command
        .arg("crashtest")
        .args(arguments)
        .current_dir(directory);
    command.output().unwrap()
}

fn said(output: &Output, code: i32) -> String {
    let said = [&*output.stdout, &*output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// A plan that nothing is wrong with.
const PLAN: &str = "everdram crash plan 1\nmedium pmem\nprofile variable\nseed 7\nfault none\n\
                    value 3 00ff10\n\ncall s0 put k1 v3\ncall s1 batch k2=v3 k1-\ncall s0 kill\n";

#[test]
fn one_run_gives_a_table_with_what_was_done() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = "--runs 1 --profile fixed --medium pmem --ops 6 --seed 5".split(' ');
    let arguments: Vec<&str> = arguments.collect();
    let table = said(&crashtest(directory.path(), &arguments), 0);
    for words in [
        "crash points",
        "pmem   fixed",
        "total",
        "sound: no violation",
    ] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let json = crashtest(directory.path(), &[&arguments[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let row = &json["rows"][0];
    assert_eq!((&row["runs"], &row["medium"]), (&1.into(), &"pmem".into()));
    assert!(row["unique_images"].as_u64() > Some(10), "{json}");
    assert_eq!((&json["sound"], &json["seed"]), (&true.into(), &5.into()));
    assert_eq!(json["complete"], true);
    assert_eq!(json["not_reached"].as_array().map(Vec::len), Some(0));
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 0, "nothing was found, and nothing is saved");
}

#[test]
fn both_media_and_several_profiles_are_explored_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "--runs",
        "1",
        "--profile",
        "batch,expiry",
        "--ops",
        "3",
        "--json",
    ];
    let json = crashtest(directory.path(), &arguments);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let kinds: Vec<_> = rows
        .iter()
        .map(|row| (row["medium"].as_str(), row["profile"].as_str()))
        .collect();
    let (pmem, file) = (Some("pmem"), Some("file"));
    let (batch, expiry) = (Some("batch"), Some("expiry"));
    assert_eq!(
        kinds,
        [(pmem, batch), (pmem, expiry), (file, batch), (file, expiry)]
    );
}

#[test]
fn a_saved_plan_is_done_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("saved.plan");
    std::fs::write(&file, PLAN).unwrap();
    let plan = ["--plan", "saved.plan"];
    let text = said(&crashtest(directory.path(), &plan), 0);
    assert!(text.contains("names no crash"), "{text}");
    assert!(text.contains("nothing is wrong in this run"), "{text}");

    std::fs::write(
        &file,
        format!("{PLAN}crash 5 0123456789abcdef\nhold 9 00\n"),
    )
    .unwrap();
    let text = said(&crashtest(directory.path(), &plan), 0);
    assert!(text.contains("took another way"), "{text}");
}

#[test]
fn an_interrupted_exploration_is_not_called_sound() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everdram"));
    let mut child = command
        .args(["crashtest", "--budget", "2h", "--profile", "fixed"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It is said once Ctrl-C is listened to.
    let mut first = String::new();
    let mut told = BufReader::new(child.stderr.take().unwrap());
    told.read_line(&mut first).unwrap();
    assert!(first.contains("the first run"), "{first}");
    let interrupt = ["-INT", &child.id().to_string()];
    let sent = Command::new("kill").args(interrupt).status().unwrap();
    assert!(sent.success());
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    let text = said(&child.wait_with_output().unwrap(), 130);
    assert!(text.contains("interrupted"), "{text}");
    assert!(!text.contains("sound"), "{text}");
}

#[test]
fn what_makes_no_sense_is_refused_as_usage() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("bad.plan"),
        PLAN.replace("k2=v3", "k2=v4"),
    )
    .unwrap();
    for (arguments, words) in [
        (&["--medium", "tape"][..], "`pmem`, `file` or `both`"),
        (&["--medium", "emulated"], "--kill"),
        (&["--profile", "strange"], "reclamation"),
        (&["--budget", "60"], "30m"),
        (&["--budget", "0s"], "in no time"),
        (&["--runs", "0"], "not in 1.."),
        (&["--images", "0"], "not in 1.."),
        (&["--threads", "1000000"], "0..=256"),
        (&["--depth", "4"], "1..=3"),
        (&["--ops", "0"], "1..="),
        (&["--engine", "steam"], "viper"),
        (&["--kill", "1", "--medium", "pmem"], "emulated"),
        (&["--kill", "1", "--runs", "1"], "cannot be used with"),
        (&["--pool", "x", "--expected", "y"], "--kill"),
        (
            &["--plan", "bad.plan"],
            "bad.plan: line 9: expected a value",
        ),
    ] {
        let text = said(&crashtest(directory.path(), arguments), 2);
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
    for flag in [
        ["--seed", "1"],
        ["--profile", "fixed"],
        ["--medium", "pmem"],
        ["--ops", "9"],
        ["--images", "9"],
        ["--runs", "9"],
        ["--threads", "2"],
        ["--kill", "1"],
    ] {
        let arguments = [&["--plan", "bad.plan"], &flag[..]].concat();
        let text = said(&crashtest(directory.path(), &arguments), 2);
        assert!(text.contains("cannot be used with"), "{flag:?}: {text}");
    }
    let text = said(&crashtest(directory.path(), &["--plan", "none.plan"]), 1);
    assert!(text.contains("reading none.plan"), "{text}");
}
