//! Hunts one planted bug at a time: the crash lab, killed servers, a workload of its own in the lab or a test
//! run against the program with the bug.

use super::plan::{By, Mutant};
use super::tree;
use crate::child::{self, Trouble};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The engines.
const ENGINES: [&str; 4] = ["viper", "bullet", "dstore", "tiered"];
/// Limit of a workload of its own; half a minute is enough for all of them.
const TEETH_MAX: Duration = Duration::from_secs(300);
/// Limit of a test with its build.
const TEST_MAX: Duration = Duration::from_secs(900);
/// Exit code of cargo if a test fails.
const FAILED_TEST: i32 = 101;
/// A run that is not over this long after its time hangs.
const GRACE: Duration = Duration::from_secs(60);
/// Exit code of a run that found nothing, and met not every kind of run in its time.
const INCOMPLETE: i32 = 3;
/// More kills than fit into any time.
const KILLS: &str = "1000000";

/// Letters kept of a broken promise.
const WORDS_MAX: usize = 80;

/// The result of a mutant.
pub(super) enum Verdict {
    /// Found after this time, by this test.
    Caught(Duration, String),
    /// Its time has ended.
    Survived,
    /// The program could not be run.
    Trouble(String),
}

/// What one run of the program has to do.
struct Order<'a> {
    layer: usize,
    mutant: Option<&'a Mutant>,
    by: By,
    engine: &'a str,
    time: Duration,
    seed: u64,
}

/// Where the program runs and leaves its findings.
fn place() -> PathBuf {
    tree::directory().join("runs")
}

/// Removes what earlier runs left.
pub(super) fn clear() {
    let _nothing_was_left = std::fs::remove_dir_all(place());
}

/// Checks that the program without any mutant is sound, in the lab or as killed servers, with the engines of
/// these mutants. Without this, its findings about them would prove nothing.
pub(super) fn sound<'a>(
    layer: usize,
    by: By,
    mutants: impl Iterator<Item = &'a &'a Mutant> + Clone,
    time: Duration,
    seed: u64,
) -> Result<(), String> {
    let is_asked = |engine: &&str| {
        let of = |mutant: &&Mutant| mutant.engine.as_deref().is_none_or(|one| one == *engine);
        mutants.clone().any(of)
    };
    for engine in ENGINES.into_iter().filter(is_asked) {
        let order = Order {
            layer,
            mutant: None,
            by,
            engine,
            time,
            seed,
        };
        match order.carry_out() {
            Verdict::Survived => {}
            Verdict::Caught(_, by) => return Err(format!("without a mutant: {engine}: {by}")),
            Verdict::Trouble(what) => return Err(format!("without a mutant: {engine}: {what}")),
        }
    }
    Ok(())
}

/// Looks for a mutant, at most for this time.
pub(super) fn hunt(layer: usize, mutant: &Mutant, time: Duration, seed: u64) -> Verdict {
    match mutant.by {
        By::Lab | By::Kill => {}
        By::Teeth => return bite(layer, mutant),
        By::Test => return ask_test(&mutant.test, &mutant.name),
    }
    let begun = Instant::now();
    let engines: Vec<&str> = match &mutant.engine {
        Some(engine) => vec![engine],
        None => ENGINES.to_vec(),
    };
    for (nth, &engine) in engines.iter().enumerate() {
        let left = time.saturating_sub(begun.elapsed());
        let order = Order {
            layer,
            mutant: Some(mutant),
            by: mutant.by,
            engine,
            time: left / (engines.len() - nth) as u32,
            seed,
        };
        match order.carry_out() {
            Verdict::Survived => {}
            Verdict::Caught(_, by) => {
                return Verdict::Caught(begun.elapsed(), format!("{engine} {by}"));
            }
            trouble => return trouble,
        }
    }
    Verdict::Survived
}

/// Runs the workloads that must find a mutant, and find nothing while it is off. Returns their output.
fn bite(layer: usize, mutant: &Mutant) -> Verdict {
    let begun = Instant::now();
    let mut command = Command::new(tree::program(layer, By::Teeth));
    command.arg(&mutant.name).env(tree::CHOICE, &mutant.name);
    let ended = child::listen(&mut command, TEETH_MAX, &mut |line| {
        println!("{line}");
        false
    });
    match ended.map(|status| status.and_then(|status| status.code())) {
        Ok(Some(0)) => Verdict::Caught(begun.elapsed(), "teeth".into()),
        Ok(Some(1)) => Verdict::Survived,
        Ok(code) => Verdict::Trouble(format!("exit code {code:?}")),
        Err(trouble) => Verdict::Trouble(trouble.to_string()),
    }
}

/// Runs the test that must fail with a mutant, and pass without it.
fn ask_test(test: &str, mutant: &str) -> Verdict {
    let begun = Instant::now();
    let run = |command: &mut Command| child::output(command, TEST_MAX);
    match run(&mut tree::test(test)) {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains(" 1 passed;") => {}
        Ok(output) => {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            return Verdict::Trouble(format!("`{test}` does not pass without it"));
        }
        Err(trouble) => return Verdict::Trouble(trouble.to_string()),
    }
    match run(tree::test(test).env(tree::CHOICE, mutant)) {
        Ok(output) if output.status.code() == Some(FAILED_TEST) => {
            let name = test.rsplit("::").next().unwrap_or(test);
            Verdict::Caught(begun.elapsed(), name.to_owned())
        }
        Ok(output) if output.status.success() => Verdict::Survived,
        Ok(output) => Verdict::Trouble(format!("`{test}`: {}", output.status)),
        Err(trouble) => Verdict::Trouble(trouble.to_string()),
    }
}

impl Order<'_> {
    /// The file for the program's own output.
    fn log(&self) -> PathBuf {
        let name = self.mutant.map_or("sound", |mutant| &mutant.name);
        tree::directory().join(format!("logs/{name}-{}.txt", self.engine))
    }

    fn carry_out(&self) -> Verdict {
        let begun = Instant::now();
        let mut command = match self.command() {
            Ok(command) => command,
            Err(error) => return Verdict::Trouble(error.to_string()),
        };
        let mut first = None;
        let ended = child::listen(&mut command, self.time + GRACE, &mut |line| {
            if first.is_none() {
                first = violation(line);
            }
            // The program goes on to shrink its finding, which takes a while.
            first.is_some()
        });
        let caught = |by: &str| Verdict::Caught(begun.elapsed(), by.to_owned());
        match (first, ended) {
            (Some(by), _) => caught(&by),
            (None, Err(Trouble::OutOfTime(_))) => caught("it hangs"),
            (None, Err(trouble)) => Verdict::Trouble(trouble.to_string()),
            (None, Ok(status)) => match status.and_then(|status| status.code()) {
                // The time may be too short for every kind of run.
                Some(0 | INCOMPLETE | 130) => Verdict::Survived,
                Some(101) => caught("it panics"),
                None => caught("it is killed"),
                Some(code) => {
                    Verdict::Trouble(format!("exit code {code}, see {}", self.log().display()))
                }
            },
        }
    }

    fn command(&self) -> std::io::Result<Command> {
        let (runs, log) = (place(), self.log());
        std::fs::create_dir_all(&runs)?;
        if let Some(logs) = log.parent() {
            std::fs::create_dir_all(logs)?;
        }
        let (seconds, seed) = (self.time.as_secs().max(1), self.seed.to_string());
        let program = tree::program(self.layer, self.by);
        let mut command = match self.by == By::Kill {
            true => {
                // Asked to stop, the program ends its server first.
                let mut command = Command::new("timeout");
                command.args(["--preserve-status", "--foreground", "--signal=INT"]);
                command.args(["--kill-after=30", &seconds.to_string()]);
                command.arg(program);
                command
            }
            false => Command::new(program),
        };
        command.args(["crashtest", "--engine", self.engine, "--seed", &seed]);
        match self.by == By::Kill {
            true => command.args(["--kill", KILLS]),
            false => command.args(["--budget", &format!("{seconds}s")]),
        };
        if let Some(mutant) = self.mutant {
            command.env(tree::CHOICE, &mutant.name);
            if let Some(medium) = &mutant.medium {
                command.args(["--medium", medium]);
            }
            if let Some(profile) = &mutant.profile {
                command.args(["--profile", profile]);
            }
        }
        // The program saves its findings, which are not needed here.
        command.current_dir(&runs).env("TMPDIR", &runs);
        command.stderr(Stdio::from(File::create(log)?));
        Ok(command)
    }
}

/// The finding in a line of output: medium and profile, or a promise.
fn violation(line: &str) -> Option<String> {
    if let Some((_, words)) = line.split_once("broken: ") {
        return Some(words.trim().chars().take(WORDS_MAX).collect());
    }
    // A row of the table: medium, profile, figures; violations are the last one.
    let mut words = line.split_whitespace();
    let (medium, profile) = (words.next()?, words.next()?);
    let is_row = ["pmem", "file"].contains(&medium) && words.clone().count() >= 8;
    let violations: u64 = words.next_back()?.parse().ok()?;
    (is_row && violations > 0).then(|| format!("{medium} {profile}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_are_heard_of() {
        let row = "  file   large    0      17       6         120          90      40 (depth 2)        1.2 s          1";
        assert_eq!(violation(row).as_deref(), Some("file large"));
        let sound = row.replace("          1", "          0");
        assert_eq!(violation(&sound), None);
        let total = row.replace("file   large", "total       ");
        assert_eq!(violation(&total), None);
        let broken = "  broken: exec:2 is half there";
        assert_eq!(violation(broken).as_deref(), Some("exec:2 is half there"));
        assert_eq!(violation("media                 pmem, file"), None);
    }
}
