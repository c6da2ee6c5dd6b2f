//! The steps of CI, each a command that anybody can run by hand.
//!
//! A failing step does not stop the later ones: one run says everything that is wrong.

use crate::sanitizers::{self, MIRI, TSAN, rustup_cargo};
use crate::{fuzz, tidy, vm};
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// What a step counts: tests if it runs some, itself otherwise.
#[derive(Clone, Copy)]
pub(crate) enum Counts {
    Step,
    Tests,
}

pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) counts: Counts,
}

const FORMAT: Step = Step {
    name: "fmt",
    arguments: &["fmt", "--all", "--", "--check"],
    counts: Counts::Step,
};
const CLIPPY: Step = Step {
    name: "clippy",
    arguments: &[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ],
    counts: Counts::Step,
};
/// The fuzzing targets are a workspace of their own, and turn on features that nothing else does.
const CLIPPY_FUZZ: Step = Step {
    name: "clippy, fuzz",
    arguments: &[
        "clippy",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--target-dir",
        "target/fuzz/clippy",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ],
    counts: Counts::Step,
};
/// Unit, contract, wire and differential tests of the libraries; then those of the program with the kill
/// loop, whose output is shown because it carries the seeds and the counts.
pub(crate) const TESTS: [Step; 3] = [
    Step {
        name: "test",
        arguments: &[
            "test",
            "--workspace",
            "--exclude",
            "everdram-cli",
            "--exclude",
            "everdram-lab",
            "--features",
            "everdram-pm/faults",
            "--all-targets",
            "--no-fail-fast",
        ],
        counts: Counts::Tests,
    },
    Step {
        name: "kill loop",
        arguments: &[
            "test",
            "--package",
            "everdram-cli",
            "--all-targets",
            "--no-fail-fast",
            "--",
            "--nocapture",
            "--test-threads",
            "1",
        ],
        counts: Counts::Tests,
    },
    Step {
        name: "doc tests",
        arguments: &["test", "--workspace", "--doc", "--no-fail-fast"],
        counts: Counts::Tests,
    },
];

/// The crash lab, in release mode: a million images, the mutation score, the lints, the holes opened on purpose.
/// Its output is shown because it carries the seeds and the counts.
pub(crate) const LAB: [Step; 2] = [
    Step {
        name: "holes",
        arguments: &[
            "test",
            "--package",
            "everdram",
            "--features",
            "broken,lab",
            "--test",
            "broken",
        ],
        counts: Counts::Tests,
    },
    Step {
        name: "lab",
        arguments: &[
            "test",
            "--release",
            "--package",
            "everdram-lab",
            "--features",
            "broken",
            "--tests",
            "--no-fail-fast",
            "--",
            "--nocapture",
            "--test-threads",
            "1",
        ],
        counts: Counts::Tests,
    },
];

#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    failed_steps: Vec<&'static str>,
}

/// Everything.
pub(crate) fn ci() -> ExitCode {
    let begun = Instant::now();
    let mut tally = Tally::default();
    tally.run(&FORMAT);
    tally.tidy();
    tally.run(&CLIPPY);
    tally.run(&CLIPPY_FUZZ);
    TESTS.iter().for_each(|step| tally.run(step));
    LAB.iter().for_each(|step| tally.run(step));
    tally.miri();
    tally.tsan();
    tally.fuzz();
    tally.vm();
    tally.finish(begun)
}

/// Miri alone.
pub(crate) fn miri() -> ExitCode {
    let begun = Instant::now();
    let mut tally = Tally::default();
    tally.miri();
    tally.finish(begun)
}

/// ThreadSanitizer alone.
pub(crate) fn tsan() -> ExitCode {
    let begun = Instant::now();
    let mut tally = Tally::default();
    tally.tsan();
    tally.finish(begun)
}

/// The crash lab alone.
pub(crate) fn lab() -> ExitCode {
    let begun = Instant::now();
    let mut tally = Tally::default();
    LAB.iter().for_each(|step| tally.run(step));
    tally.finish(begun)
}

/// The tests alone.
pub(crate) fn test() -> ExitCode {
    let begun = Instant::now();
    let mut tally = Tally::default();
    TESTS.iter().for_each(|step| tally.run(step));
    tally.finish(begun)
}

/// Formats the code in place.
pub(crate) fn format() -> ExitCode {
    let status = cargo().args(["fmt", "--all"]).status();
    if status.is_ok_and(|status| status.success()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(tidy::root());
    command
}

impl Tally {
    fn tidy(&mut self) {
        let begun = Instant::now();
        println!("== tidy");
        let findings = tidy::check();
        findings.iter().for_each(|finding| println!("{finding}"));
        self.count_step("tidy", findings.is_empty(), begun);
    }

    fn miri(&mut self) {
        self.watched("miri", sanitizers::miri_lacks(), &MIRI);
    }

    fn tsan(&mut self) {
        self.watched("tsan", sanitizers::tsan_lacks(), &TSAN);
    }

    /// Steps under a tool that may not be there; then this says how to get it and goes on.
    fn watched(&mut self, name: &str, lacks: Option<&str>, steps: &[Step]) {
        match lacks {
            None => steps.iter().for_each(|step| self.run(step)),
            Some(remedy) => println!("== {name}: skipped, it is not installed ({remedy})"),
        }
    }

    /// A minute for each fuzzing target.
    fn fuzz(&mut self) {
        let begun = Instant::now();
        println!("== fuzz");
        if let Some(missing) = fuzz::missing() {
            println!("== fuzz: skipped: {missing}");
            return;
        }
        let outcome = fuzz::minute();
        if let Err(what) = &outcome {
            println!("{what}");
        }
        self.count_step("fuzz", outcome.is_ok(), begun);
    }

    /// The `pmem` medium on emulated NVDIMMs; where that cannot be had, this says why and goes on.
    fn vm(&mut self) {
        let begun = Instant::now();
        println!("== vm");
        match vm::run(vm::Scope::Quick) {
            vm::Outcome::Skipped(why) => println!("== vm: skipped: {why}"),
            vm::Outcome::Ran { passed, failed } => {
                self.passed += passed;
                self.failed += failed;
                if failed > 0 {
                    self.failed_steps.push("vm");
                }
                println!(
                    "-- vm: {passed} passed, {failed} failed, {}",
                    seconds(begun)
                );
            }
        }
    }

    fn run(&mut self, step: &Step) {
        let begun = Instant::now();
        println!("== {}: cargo {}", step.name, step.arguments.join(" "));
        match (run_counting(step), step.counts) {
            (Ok((true, 0, 0)), Counts::Tests) => {
                println!("{}: no test ran", step.name);
                self.count_step(step.name, false, begun);
            }
            (Ok((success, passed, failed)), Counts::Tests) => {
                self.passed += passed;
                // A step that fails without a failed test (it did not compile, it crashed) counts as one.
                self.failed += if success { failed } else { failed.max(1) };
                if !success {
                    self.failed_steps.push(step.name);
                }
                println!(
                    "-- {}: {passed} passed, {failed} failed, {}",
                    step.name,
                    seconds(begun)
                );
            }
            (Ok((success, ..)), Counts::Step) => self.count_step(step.name, success, begun),
            (Err(error), _) => {
                println!("{}: {error}", step.name);
                self.count_step(step.name, false, begun);
            }
        }
    }

    fn count_step(&mut self, name: &'static str, success: bool, begun: Instant) {
        if success {
            self.passed += 1;
        } else {
            self.failed += 1;
            self.failed_steps.push(name);
        }
        println!(
            "-- {name}: {}, {}",
            if success { "ok" } else { "FAILED" },
            seconds(begun)
        );
    }

    fn finish(self, begun: Instant) -> ExitCode {
        println!("== {} in all", seconds(begun));
        if !self.failed_steps.is_empty() {
            println!("failed: {}", self.failed_steps.join(", "));
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

fn seconds(begun: Instant) -> String {
    format!("{:.1} s", begun.elapsed().as_secs_f64())
}

/// Runs a step, passing its output on, and adds up the `test result:` lines in it. Returns whether it
/// succeeded, tests passed, tests failed.
fn run_counting(step: &Step) -> std::io::Result<(bool, u64, u64)> {
    let mut command = match step.arguments.first() {
        Some(&"+nightly") => rustup_cargo(),
        _ => cargo(),
    };
    let mut child = command
        .args(step.arguments)
        .envs(sanitizers::environment(step))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut passed, mut failed) = (0, 0);
    if let Some(output) = child.stdout.take() {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line)? > 0 {
            let text = String::from_utf8_lossy(&line);
            print!("{text}");
            if let Some((more_passed, more_failed)) = test_result(&text) {
                passed += more_passed;
                failed += more_failed;
            }
            line.clear();
        }
    }
    Ok((child.wait()?.success(), passed, failed))
}

/// The counts of a line such as `test result: ok. 3 passed; 0 failed; ...`.
fn test_result(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.split_once("test result: ")?.1.split_once(". ")?;
    let count = |name: &str| {
        let part = counts.split(';').find(|part| part.trim().ends_with(name))?;
        part.trim().strip_suffix(name)?.trim().parse().ok()
    };
    Some((count("passed")?, count("failed")?))
}

#[cfg(test)]
mod tests {
    use super::test_result;

    #[test]
    fn results_are_read_from_the_output() {
        let ok = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        assert_eq!(test_result(ok), Some((12, 0)));
        assert_eq!(
            test_result("test result: FAILED. 3 passed; 2 failed; 0 ignored"),
            Some((3, 2))
        );
        assert_eq!(test_result("test contract ... ok"), None);
        assert_eq!(test_result("test result: "), None);
    }
}
