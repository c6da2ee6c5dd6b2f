//! Runs steps and counts their results.

use crate::child::{self, Lines};
use crate::findings::Findings;
use crate::step::{Counts, Step, today};
use crate::{fuzz, tidy, vm};
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The counts so far.
pub(crate) struct Tally {
    begun: Instant,
    /// Whether steps have limits.
    bounded: bool,
    passed: u64,
    failed: u64,
    failed_steps: Vec<&'static str>,
    /// What the failed steps found, repeated at the end: a reader may have nothing but the last lines.
    findings: Vec<String>,
    /// Steps left out, and why.
    skipped: Vec<String>,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            begun: Instant::now(),
            bounded: false,
            passed: 0,
            failed: 0,
            failed_steps: Vec::new(),
            findings: Vec::new(),
            skipped: Vec::new(),
        }
    }
}

impl Tally {
    /// A tally whose steps have limits. Once `all` is over, no further step begins.
    pub(crate) fn bounded(all: Duration) -> Tally {
        let tally = Tally {
            bounded: true,
            ..Tally::default()
        };
        child::none_after(tally.begun + all);
        tally
    }

    pub(crate) fn tidy(&mut self) {
        let begun = Instant::now();
        println!("== tidy");
        let findings = tidy::check();
        findings.iter().for_each(|finding| println!("{finding}"));
        self.count_step("tidy", findings.is_empty(), begun);
        self.findings.extend(findings);
    }

    /// Runs steps that need something which may be missing. If it is, prints how to get it and goes on.
    pub(crate) fn run_unless(&mut self, lacks: Option<&str>, steps: &[Step]) {
        for step in steps {
            match lacks {
                None => self.run(step),
                Some(why) => self.skip(step.name, why),
            }
        }
    }

    /// Runs one of `steps`, another each day.
    pub(crate) fn run_one_unless(&mut self, lacks: Option<&str>, steps: &[Step]) {
        let due = today() % steps.len().max(1) as u64;
        for (number, step) in (0..).zip(steps) {
            match lacks {
                Some(why) => self.skip(step.name, why),
                None if number == due => self.run(step),
                None => self.skip(step.name, "another day"),
            }
        }
    }

    /// Records what is left out, and prints it.
    pub(crate) fn skip(&mut self, what: &str, why: &str) {
        println!("== {what}: skipped: {why}");
        self.skipped.push(format!("{what} ({why})"));
    }

    /// The tests of the fuzzing targets' common part, and some seconds for each target.
    pub(crate) fn fuzz(&mut self, lacks: Option<String>) {
        if let Some(why) = lacks {
            return self.skip("fuzz", &why);
        }
        let begun = Instant::now();
        println!("== fuzz");
        let outcome = fuzz::all_in_ci();
        if let Err(what) = &outcome {
            println!("{what}");
            self.findings.push(what.clone());
        }
        self.count_step("fuzz", outcome.is_ok(), begun);
    }

    /// The `pmem` medium on emulated NVDIMMs.
    pub(crate) fn vm(&mut self) {
        let begun = Instant::now();
        println!("== vm");
        match vm::run(vm::Scope::Quick) {
            vm::Outcome::Skipped(why) => self.skip("vm", &why),
            vm::Outcome::Ran {
                passed,
                failed,
                left_out,
            } => {
                for (what, why) in left_out {
                    self.skip(&format!("vm, {what}"), &why);
                }
                self.count_tests("vm", failed == 0, (passed, failed), begun);
            }
        }
    }

    /// Runs a step, passes its output on, and adds up the output's `test result:` lines.
    pub(crate) fn run(&mut self, step: &Step) {
        let begun = Instant::now();
        println!("== {}: cargo {}", step.name, step.words().join(" "));
        let limit = self.bounded.then(|| step.limit());
        let (mut passed, mut failed, mut lines) = (0, 0, Lines::default());
        let mut findings = Findings::default();
        let ended = child::follow(&mut step.command(), limit, &mut |bytes| {
            // Pass beginnings of lines on at once. If a test hangs, its name is all that shows.
            let mut here = std::io::stdout();
            let _nobody_reads = here.write_all(bytes).and_then(|()| here.flush());
            lines.take(bytes, &mut |line| {
                let (more_passed, more_failed) = test_result(line).unwrap_or_default();
                passed += more_passed;
                failed += more_failed;
                findings.hear(line);
            });
        });
        let mut success = ended.as_ref().is_ok_and(|status| status.success());
        if let Err(trouble) = ended {
            println!("\n{} {trouble}", step.name);
            findings.note(format!("it {trouble}"));
        }
        if step.counts == Counts::Tests && success && passed + failed == 0 {
            println!("{}: no test ran", step.name);
            success = false;
        }
        if !success {
            self.findings.extend(findings.of(step.name));
        }
        match step.counts {
            Counts::Step => self.count_step(step.name, success, begun),
            Counts::Tests => self.count_tests(step.name, success, (passed, failed), begun),
        }
    }

    fn count_tests(
        &mut self,
        name: &'static str,
        success: bool,
        (passed, failed): (u64, u64),
        begun: Instant,
    ) {
        // A step that fails without a failed test (it did not compile, it crashed, it hung) counts as one.
        let failed = if success { failed } else { failed.max(1) };
        self.passed += passed;
        self.failed += failed;
        if failed > 0 {
            self.failed_steps.push(name);
        }
        println!(
            "-- {name}: {passed} passed, {failed} failed, {}",
            seconds(begun)
        );
    }

    fn count_step(&mut self, name: &'static str, success: bool, begun: Instant) {
        if success {
            self.passed += 1;
        } else {
            self.failed += 1;
            self.failed_steps.push(name);
        }
        let verdict = if success { "ok" } else { "FAILED" };
        println!("-- {name}: {verdict}, {}", seconds(begun));
    }

    /// Prints the results. A step that was left out is no failure, but is listed.
    pub(crate) fn finish(self) -> ExitCode {
        println!("== {} in all", seconds(self.begun));
        if !self.skipped.is_empty() {
            println!("skipped: {}", self.skipped.join("; "));
        }
        self.findings.iter().for_each(|line| println!("{line}"));
        if !self.failed_steps.is_empty() {
            println!("failed: {}", self.failed_steps.join("; "));
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
    use super::*;
    use crate::step::Under;

    #[test]
    fn results_are_read_from_the_output() {
        let ok = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(test_result(ok), Some((12, 0)));
        assert_eq!(
            test_result("test result: FAILED. 3 passed; 2 failed; 0 ignored"),
            Some((3, 2))
        );
        assert_eq!(test_result("test contract ... ok"), None);
        assert_eq!(test_result("test result: "), None);
    }

    #[test]
    fn a_step_fails_that_says_nothing_or_ends_badly() {
        let mut tally = Tally::default();
        tally.run(&Step::check("help", 600, "--version"));
        assert_eq!((tally.passed, tally.failed), (1, 0));
        tally.run(&Step::check("no such command", 600, "no-such-command"));
        tally.run(&Step::tests("no tests", Under::Plain, 600, "--version"));
        assert_eq!((tally.passed, tally.failed), (1, 2));
        assert_eq!(tally.failed_steps, ["no such command", "no tests"]);
    }

    #[test]
    fn a_step_out_of_time_has_failed_and_one_left_out_has_not() {
        let mut tally = Tally {
            bounded: true,
            ..Tally::default()
        };
        tally.run(&Step::check("no time", 0, "--version"));
        assert_eq!((tally.passed, tally.failed), (0, 1));
        let step = Step::check("no tool", 600, "no-such-command");
        tally.run_unless(Some("it is not here"), &[step]);
        assert_eq!((tally.passed, tally.failed), (0, 1));
        assert_eq!(tally.skipped, ["no tool (it is not here)"]);
        let steps = ["one", "two"].map(|name| Step::check(name, 600, "--version"));
        let mut tally = Tally::default();
        tally.run_one_unless(None, &steps);
        assert_eq!((tally.passed, tally.skipped.len()), (1, 1));
        tally.run_one_unless(Some("it is not here"), &steps);
        assert_eq!((tally.passed, tally.skipped.len()), (1, 3));
    }
}
