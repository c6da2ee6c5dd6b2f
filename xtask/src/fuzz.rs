//! `cargo xtask fuzz`: builds the targets in `fuzz/` with coverage and runs them, as many at once as there
//! are cores.
//!
//! Coverage comes from the compiler that builds everything else. The fuzzing engine also needs a C++
//! compiler. Inputs that reach new code stay in `target/fuzz/corpus`, those that fail in
//! `target/fuzz/failures`. Each run starts from `fuzz/seeds`, which has every input that once failed.

use crate::cargo::{cargo, root, target};
use crate::child;
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

const TARGETS: [&str; 9] = [
    "pool", "bullet", "dstore", "tiered", "log", "resp", "fabric", "import", "aof",
];
/// Seconds for each target without `--seconds`.
const SECONDS: u64 = 30;
/// The same in CI, which comes often.
const SECONDS_OF_CI: u64 = 12;
/// Longest input, in bytes. Targets take inputs as choices, so short ones do much.
const INPUT_BYTES_MAX: u32 = 4096;
/// An input that takes longer than this, in seconds, hangs.
const TIMEOUT_S: u32 = 10;
/// A run that is not over this long after its seconds hangs in a way that the engine does not detect.
const GRACE: Duration = Duration::from_secs(300);
/// Limit for building the targets, or their tests.
const BUILD_MAX: Duration = Duration::from_secs(900);
/// Resident memory at which a run ends; the targets limit what they allocate themselves.
const MEMORY_MIB_MAX: u32 = 1024;

/// Coverage counts edges in memory, where the engine reads them between inputs.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table";

/// How often, and with what.
struct Plan {
    targets: Vec<&'static str>,
    seconds: u64,
    input: Option<PathBuf>,
}

/// The result of one target.
#[derive(Debug, Default)]
struct Tally {
    executions: u64,
    coverage: u64,
    inputs: u64,
    failed: bool,
}

/// Runs the chore with its own arguments.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let plan = match parse(arguments) {
        Ok(plan) => plan,
        Err(what) => {
            eprintln!("{what}; usage: cargo xtask fuzz [TARGET]... [--seconds N] [--input FILE]");
            eprintln!("targets: {}", TARGETS.join(", "));
            return ExitCode::from(2);
        }
    };
    match fuzz(&plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

/// Runs in CI: every target for a while, and the tests of their common part. Says why if something failed or
/// could not be run.
pub(crate) fn all_in_ci() -> Result<(), String> {
    let fuzzed = fuzz(&Plan {
        targets: TARGETS.to_vec(),
        seconds: SECONDS_OF_CI,
        input: None,
    });
    let tested = test();
    fuzzed.and(tested)
}

/// Why this machine cannot fuzz; `None` if it can.
pub(crate) fn missing() -> Option<&'static str> {
    let there = Command::new("c++")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    (!there).then_some("fuzzing needs a C++ compiler as `c++` (Debian: apt-get install g++)")
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Plan, String> {
    let mut plan = Plan {
        targets: Vec::new(),
        seconds: SECONDS,
        input: None,
    };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => {
                let number = arguments.next().and_then(|number| number.parse().ok());
                plan.seconds = number.ok_or("--seconds takes a number")?;
            }
            "--input" => {
                let file = arguments.next().ok_or("--input takes a file")?;
                plan.input = Some(std::path::absolute(file).map_err(|error| error.to_string())?);
            }
            name => {
                let known = TARGETS.into_iter().find(|target| *target == name);
                plan.targets
                    .push(known.ok_or(format!("no target `{name}`"))?);
            }
        }
    }
    if plan.input.is_some() && plan.targets.len() != 1 {
        return Err("--input needs one target".into());
    }
    if plan.targets.is_empty() {
        plan.targets = TARGETS.to_vec();
    }
    Ok(plan)
}

fn fuzz(plan: &Plan) -> Result<(), String> {
    if let Some(missing) = missing() {
        return Err(missing.into());
    }
    let programs = build()?;
    if let (Some(input), [target]) = (&plan.input, plan.targets.as_slice()) {
        let status = Command::new(programs.join(target)).arg(input).status();
        let sound = status.map_err(|error| error.to_string())?.success();
        return if sound {
            Ok(())
        } else {
            Err(format!("{target} fails on {}", input.display()))
        };
    }
    let waiting = Mutex::new(VecDeque::from(plan.targets.clone()));
    let done = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = || {
        waiting
            .lock()
            .ok()
            .and_then(|mut waiting| waiting.pop_front())
    };
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(target) = next() {
                    let outcome = one(&programs, target, plan.seconds);
                    if let Ok(mut done) = done.lock() {
                        done.push((target, outcome));
                    }
                }
            });
        }
    });
    report(plan, done.into_inner().unwrap_or_default())
}

/// Builds all targets and returns their places.
fn build() -> Result<PathBuf, String> {
    let triple = host()?;
    run_cargo(&triple, ["build", "--bins"], "the build of the targets")?;
    Ok(place("build").join(triple).join("release"))
}

/// Runs the tests of the common part, built in the same way as the targets.
fn test() -> Result<(), String> {
    run_cargo(
        &host()?,
        ["test", "--lib"],
        "the test of what the targets share",
    )
}

/// Runs cargo in the workspace of the targets.
fn run_cargo(triple: &str, arguments: [&str; 2], what: &str) -> Result<(), String> {
    let mut command = cargo();
    command
        .args(arguments)
        .args(["--release", "--target", triple])
        .args(["--manifest-path", "fuzz/Cargo.toml"])
        .env("CARGO_TARGET_DIR", place("build"))
        .env("RUSTFLAGS", COVERAGE)
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    let mut show = |bytes: &[u8]| print!("{}", String::from_utf8_lossy(bytes));
    match child::follow(&mut command, Some(BUILD_MAX), &mut show) {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("{what} failed")),
        Err(trouble) => Err(format!("{what} {trouble}")),
    }
}

/// The compiler's own platform. With an explicit target, build scripts and macros get no coverage.
fn host() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output();
    let output = output.map_err(|error| format!("rustc: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| "rustc does not say what it runs on".into())
}

/// A directory for what fuzzing keeps between runs.
fn place(name: &str) -> PathBuf {
    target().join("fuzz").join(name)
}

fn one(programs: &Path, target: &'static str, seconds: u64) -> Result<Tally, String> {
    let io = |error: std::io::Error| format!("{target}: {error}");
    let (corpus, failures) = (place("corpus").join(target), place("failures").join(target));
    std::fs::create_dir_all(&corpus).map_err(io)?;
    std::fs::create_dir_all(&failures).map_err(io)?;
    let log = place(target).with_extension("log");
    let mut command = Command::new(programs.join(target));
    let dictionary = root().join("fuzz").join(target).with_extension("dict");
    if dictionary.exists() {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    command
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-timeout={TIMEOUT_S}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .arg(format!("-artifact_prefix={}/", failures.display()))
        .arg("-print_final_stats=1")
        .args([corpus, root().join("fuzz/seeds").join(target)])
        .stderr(File::create(&log).map_err(io)?);
    let limit = Duration::from_secs(seconds).saturating_add(GRACE);
    let ended = child::follow(&mut command, Some(limit), &mut |_| ());
    let text = std::fs::read(&log).map_err(io)?;
    let text = String::from_utf8_lossy(&text);
    let mut tally = read_log(&text);
    tally.failed = !ended.as_ref().is_ok_and(ExitStatus::success);
    if tally.failed {
        println!("{}", evidence(&text, target));
    }
    if let Err(trouble) = ended {
        println!("fuzz {target} {trouble}");
    }
    println!(
        "-- fuzz {target}: {} executions in {seconds} s",
        tally.executions
    );
    Ok(tally)
}

/// The numbers in what the engine prints.
fn read_log(text: &str) -> Tally {
    let mut tally = Tally::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |name: &str| {
            let at = words.iter().position(|word| *word == name)?;
            words.get(at + 1)?.split('/').next()?.parse().ok()
        };
        if line.starts_with('#') {
            tally.coverage = after("cov:").unwrap_or(tally.coverage);
            tally.inputs = after("corp:").unwrap_or(tally.inputs);
        }
        tally.executions = after("stat::number_of_executed_units:").unwrap_or(tally.executions);
    }
    tally
}

/// What a failing run said of its failure, and how to repeat it.
fn evidence(text: &str, target: &str) -> String {
    const LINES: usize = 60;
    let lines: Vec<&str> = text.lines().collect();
    let first = lines
        .iter()
        .position(|line| line.contains("panicked at") || line.contains("ERROR:"));
    let first = first.unwrap_or(lines.len().saturating_sub(LINES));
    let shown = lines.iter().skip(first).take(LINES);
    let mut shown: String = shown.flat_map(|line| [*line, "\n"]).collect();
    if let Some(written) = lines
        .iter()
        .find_map(|line| line.split_once("Test unit written to "))
    {
        shown += &format!("again: cargo xtask fuzz {target} --input {}\n", written.1);
    }
    shown
}

fn report(plan: &Plan, done: Vec<(&'static str, Result<Tally, String>)>) -> Result<(), String> {
    let mut failed = Vec::new();
    println!("target    executions       each second   places reached   inputs kept");
    for (target, outcome) in done {
        match outcome {
            Ok(tally) => {
                let rate = tally.executions / plan.seconds.max(1);
                let (reached, kept) = (tally.coverage, tally.inputs);
                println!(
                    "{target:<8}{:>12}{rate:>20}{reached:>17}{kept:>14}",
                    tally.executions
                );
                // A run that executed nothing has failed, whatever its exit code.
                if tally.failed || tally.executions == 0 {
                    failed.push(target);
                }
            }
            Err(what) => {
                println!("{what}");
                failed.push(target);
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "fuzzing found something, or did not run: {}",
        failed.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_the_output() {
        let tally = read_log(
            "#12\tNEW    cov: 30 ft: 40 corp: 5/60b lim: 4\n#99\tDONE   cov: 31 ft: 44 corp: 6/70b\n\
             stat::number_of_executed_units: 1234\n",
        );
        assert_eq!(
            (tally.executions, tally.coverage, tally.inputs),
            (1234, 31, 6)
        );
    }

    #[test]
    fn a_target_that_failed_or_did_nothing_is_reported() {
        let outcome = |executions, failed| {
            let plan = Plan {
                targets: vec!["log"],
                seconds: 1,
                input: None,
            };
            let tally = Tally {
                executions,
                failed,
                ..Tally::default()
            };
            report(&plan, vec![("log", Ok(tally))])
        };
        assert!(outcome(1, false).is_ok());
        assert!(outcome(1, true).is_err());
        assert!(outcome(0, false).is_err());
    }

    #[test]
    fn arguments_are_understood() {
        let plan = |words: &str| parse(words.split_whitespace().map(str::to_owned));
        assert!(plan("").is_ok_and(|plan| plan.targets == TARGETS && plan.seconds == SECONDS));
        assert!(
            plan("log --seconds 5").is_ok_and(|plan| plan.targets == ["log"] && plan.seconds == 5)
        );
        for wrong in [
            "nothing",
            "--seconds",
            "--seconds x",
            "--input file",
            "log pool --input file",
        ] {
            assert!(plan(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn failures_are_shown_with_the_way_back() {
        let text = "a\nthread panicked at x\nb\nTest unit written to f/crash-1\n";
        let shown = evidence(text, "log");
        assert!(shown.starts_with("thread panicked"));
        assert!(shown.ends_with("again: cargo xtask fuzz log --input f/crash-1\n"));
    }
}
