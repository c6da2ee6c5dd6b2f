//! A step of CI: a command of cargo's, what runs it, what it counts, and how long it may take.

use crate::cargo::{cargo, rustup_cargo, target};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The day, counted from 1970: what is not run every day is chosen by it.
pub(crate) fn today() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() / (24 * 60 * 60))
}

/// What a step counts: tests if it runs some, itself otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counts {
    Step,
    Tests,
}

/// What the code runs under.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Under {
    Plain,
    /// The interpreter that sees undefined behaviour.
    Miri,
    /// ThreadSanitizer. The standard library is built again with it: what is not, it takes for races.
    Tsan,
}

pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) under: Under,
    /// Arguments for cargo, without those that `under` brings.
    pub(crate) arguments: &'static str,
    pub(crate) counts: Counts,
    /// CI ends it after this many seconds: some three times what it takes on two cores that build everything
    /// first.
    pub(crate) limit_s: u64,
}

impl Step {
    /// A step that counts tests.
    pub(crate) const fn tests(
        name: &'static str,
        under: Under,
        limit_s: u64,
        arguments: &'static str,
    ) -> Step {
        Step {
            name,
            under,
            arguments,
            counts: Counts::Tests,
            limit_s,
        }
    }

    /// A step that counts as one.
    pub(crate) const fn check(name: &'static str, limit_s: u64, arguments: &'static str) -> Step {
        Step {
            name,
            under: Under::Plain,
            arguments,
            counts: Counts::Step,
            limit_s,
        }
    }

    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.limit_s)
    }

    /// All arguments of cargo's.
    pub(crate) fn words(&self) -> Vec<&'static str> {
        let (prefix, besides) = match self.under {
            Under::Plain => ("", ""),
            Under::Miri => ("+nightly miri", ""),
            Under::Tsan => ("+nightly", "-Zbuild-std --target host-tuple"),
        };
        let mut words: Vec<_> = prefix.split_whitespace().collect();
        let mut own = self.arguments.split_whitespace();
        words.extend(own.next());
        words.extend(besides.split_whitespace());
        words.extend(own);
        words
    }

    /// What runs the step.
    pub(crate) fn command(&self) -> Command {
        let mut command = match self.under {
            Under::Plain => cargo(),
            Under::Miri | Under::Tsan => rustup_cargo(),
        };
        if self.under == Under::Tsan {
            command.env("RUSTFLAGS", "-Zsanitizer=thread");
            // What is built with it goes with nothing else.
            command.env("CARGO_TARGET_DIR", target().join("tsan"));
        }
        command.args(self.words());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_brings_its_own_words() {
        let words = |under| {
            Step::tests("x", under, 1, "test --lib -- a::")
                .words()
                .join(" ")
        };
        assert_eq!(words(Under::Plain), "test --lib -- a::");
        assert_eq!(words(Under::Miri), "+nightly miri test --lib -- a::");
        assert_eq!(
            words(Under::Tsan),
            "+nightly test -Zbuild-std --target host-tuple --lib -- a::"
        );
    }
}
