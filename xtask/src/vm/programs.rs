//! The program and the test binaries that go into the test machine.

use crate::cargo::cargo;
use crate::child::{self, Lines};
use crate::ci;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// CI's step with the tests. The same arguments reuse its build.
const STEP: &str = "test";
/// Limit of one build; CI has built the tests already.
const BUILD_MAX: Duration = Duration::from_secs(1200);
const RELEASE: [&str; 6] = [
    "build",
    "--release",
    "--package",
    "everdram-cli",
    "--bin",
    "everdram",
];

/// Executables, by the names of their targets.
pub(crate) struct Programs {
    built: BTreeMap<String, PathBuf>,
    /// The program under test: the release build, or the one of the tests.
    pub(crate) everdram: PathBuf,
    /// Where the program's tests look for it.
    pub(crate) everdram_of_tests: PathBuf,
}

impl Programs {
    /// Builds everything needed.
    pub(crate) fn build(with_release: bool) -> Result<Programs, String> {
        let built = executables(&words(STEP)?)?;
        let name = "everdram";
        let everdram_of_tests = built.get(name).cloned().ok_or("cargo built no everdram")?;
        let everdram = if with_release {
            executables(&RELEASE)?
                .remove(name)
                .ok_or("cargo built no release of everdram")?
        } else {
            everdram_of_tests.clone()
        };
        Ok(Programs {
            built,
            everdram,
            everdram_of_tests,
        })
    }

    /// The binary of an integration test.
    pub(crate) fn test(&self, name: &str) -> Result<&Path, String> {
        let found = self.built.get(name).map(PathBuf::as_path);
        found.ok_or_else(|| format!("cargo built no test `{name}`"))
    }
}

/// The command that builds the tests of a step of CI without running them.
fn words(step: &str) -> Result<Vec<&'static str>, String> {
    let found = ci::TESTS.iter().find(|found| found.name == step);
    let step = found.ok_or_else(|| format!("CI has no step `{step}`"))?;
    let words = step.words().into_iter().take_while(|word| *word != "--");
    Ok(words.chain(["--no-run"]).collect())
}

fn executables(arguments: &[&str]) -> Result<BTreeMap<String, PathBuf>, String> {
    println!("cargo {}", arguments.join(" "));
    let mut command = cargo();
    command
        .args(arguments)
        .arg("--message-format=json-render-diagnostics");
    let (mut found, mut lines) = (BTreeMap::new(), Lines::default());
    let ended = child::follow(&mut command, Some(BUILD_MAX), &mut |bytes| {
        lines.take(bytes, &mut |line| found.extend(executable(line)));
    });
    match ended {
        Ok(status) if status.success() => Ok(found),
        Ok(_) => Err(format!("cargo {} failed", arguments.join(" "))),
        Err(trouble) => Err(format!("cargo {} {trouble}", arguments.join(" "))),
    }
}

/// Name and executable of an integration test or a program, from a line of cargo's messages. Skips their unit
/// tests, which have the same names.
fn executable(line: &str) -> Option<(String, PathBuf)> {
    let (_, target) = line.split_once("\"target\":{")?;
    let (target, rest) = target.split_once("\"profile\":{")?;
    let (profile, _) = rest.split_once('}')?;
    let is_harness = profile.contains("\"test\":true");
    let is_meant = match text_after(target, "\"kind\":[\"")? {
        "test" => is_harness,
        "bin" => !is_harness,
        _ => false,
    };
    let name = text_after(target, "\"name\":\"")?;
    let path = text_after(rest, "\"executable\":\"")?;
    is_meant.then(|| (name.to_owned(), path.into()))
}

/// The text between `before` and the next quotation mark. Does not understand paths with escapes.
fn text_after<'a>(line: &'a str, before: &str) -> Option<&'a str> {
    let (_, after) = line.split_once(before)?;
    after.split_once('"').map(|(text, _)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_of_ci_is_built_and_not_run() {
        let words = words(STEP).unwrap();
        assert_eq!(
            (words.first(), words.last()),
            (Some(&"test"), Some(&"--no-run"))
        );
        assert!(!words.contains(&"--"), "{words:?}");
    }

    #[test]
    fn executables_are_read_from_cargos_messages() {
        let message = |kind: &str, test: bool, executable: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"target\":{{\"kind\":[\"{kind}\"],\"name\":\"x\",\"test\":true}},\
                 \"profile\":{{\"opt_level\":\"1\",\"test\":{test}}},\"features\":[],\"executable\":{executable}}}"
            )
        };
        let wanted = Some(("x".to_owned(), PathBuf::from("/t/x-1")));
        assert_eq!(executable(&message("test", true, "\"/t/x-1\"")), wanted);
        assert_eq!(executable(&message("bin", false, "\"/t/x-1\"")), wanted);
        assert_eq!(
            executable(&message("bin", true, "\"/t/x-1\"")),
            None,
            "unit tests of the program"
        );
        assert_eq!(executable(&message("lib", true, "\"/t/x-1\"")), None);
        assert_eq!(executable(&message("lib", false, "null")), None);
        assert_eq!(
            executable("{\"reason\":\"build-finished\",\"success\":true}"),
            None
        );
    }
}
