//! The steps of CI, each a command that anybody can run by hand.
//!
//! A failing step does not stop the later ones: one run says everything that is wrong. A step that hangs is
//! ended, and has failed; by hand no step has a limit.

use crate::cargo::cargo;
use crate::fuzz;
use crate::sanitizers::{self, MIRI, TSAN};
use crate::step::{Step, Under};
use crate::tally::Tally;
use crate::vm::has;
use std::process::ExitCode;
use std::time::Duration;

/// CI has ended after this time, whatever hangs.
const CI_MAX: Duration = Duration::from_secs(85 * 60);

const FORMAT: Step = Step::check("fmt", 60, "fmt --all -- --check");
/// The fuzzing targets are a workspace of their own, and turn on features that nothing else does.
const FORMAT_FUZZ: Step = Step::check(
    "fmt, fuzz",
    60,
    "fmt --manifest-path fuzz/Cargo.toml -- --check",
);
const CLIPPY: Step = Step::check(
    "clippy",
    800,
    "clippy --workspace --all-targets -- -D warnings",
);
const CLIPPY_FUZZ: Step = Step::check(
    "clippy, fuzz",
    400,
    "clippy --manifest-path fuzz/Cargo.toml --all-targets -- -D warnings",
);

/// Unit, contract, wire and differential tests of the libraries, those of the program with the kill loop, and
/// the examples in the documentation. All in one build: with other packages dependencies would have other
/// features, and everything would be built twice.
pub(crate) const TESTS: [Step; 2] = [
    Step::tests(
        "test",
        Under::Plain,
        2000,
        "test --workspace --exclude everdram-lab --features everdram-pm/faults --all-targets --no-fail-fast \
         -- --test-threads 2",
    ),
    Step::tests(
        "doc tests",
        Under::Plain,
        120,
        "test --workspace --exclude everdram-lab --features everdram-pm/faults --doc --no-fail-fast",
    ),
];

/// What the crash lab has among the tests of the libraries: the simulated disk by itself, and crashes at
/// single moments.
const LAB_TESTS: [Step; 2] = [
    Step::tests(
        "simulated disk",
        Under::Plain,
        180,
        "test --package everdram-pm --features lab --test disk",
    ),
    Step::tests(
        "moments",
        Under::Plain,
        420,
        "test --package everdram --features lab --lib --test moments --test restart",
    ),
];

/// The crash lab, optimised: a million images, the mutation score, the lints. Its output is shown because it
/// carries the seeds and the counts.
const LAB: Step = Step::tests(
    "lab",
    Under::Plain,
    1500,
    "test --profile lab --package everdram-lab --features thorough --tests --no-fail-fast -- --nocapture \
     --test-threads 1",
);

/// Bugs that are planted, a few of them each day, and holes of the published designs, each every third day:
/// whether the lab still has teeth.
const MUTANTS: Step = Step::check("planted bugs", 1200, "xtask mutants --quick");

/// Everything, but of what the sanitizers run a third each day.
pub(crate) fn ci() -> ExitCode {
    let mut tally = Tally::bounded(CI_MAX);
    let fuzz_lacks = fuzz::missing().map(str::to_owned);
    tally.run(&FORMAT);
    tally.run(&FORMAT_FUZZ);
    tally.tidy();
    tally.run(&CLIPPY);
    tally.run_unless(fuzz_lacks.as_deref(), &[CLIPPY_FUZZ]);
    test_with(&mut tally);
    tally.run(&LAB);
    tally.run(&MUTANTS);
    tally.run_one_unless(sanitizers::miri_lacks().as_deref(), &MIRI);
    tally.run_one_unless(sanitizers::tsan_lacks().as_deref(), &TSAN);
    tally.fuzz(fuzz_lacks);
    tally.vm();
    tally.finish()
}

/// Miri alone.
pub(crate) fn miri() -> ExitCode {
    let mut tally = Tally::default();
    tally.run_unless(sanitizers::miri_lacks().as_deref(), &MIRI);
    tally.finish()
}

/// ThreadSanitizer alone.
pub(crate) fn tsan() -> ExitCode {
    let mut tally = Tally::default();
    tally.run_unless(sanitizers::tsan_lacks().as_deref(), &TSAN);
    tally.finish()
}

/// The crash lab alone.
pub(crate) fn lab() -> ExitCode {
    let mut tally = Tally::default();
    LAB_TESTS.iter().for_each(|step| tally.run(step));
    tally.run(&LAB);
    tally.finish()
}

/// The tests alone.
pub(crate) fn test() -> ExitCode {
    let mut tally = Tally::default();
    test_with(&mut tally);
    tally.finish()
}

/// Formats the code in place.
pub(crate) fn format() -> ExitCode {
    let formatted = |arguments: &[&str]| {
        let status = cargo().arg("fmt").args(arguments).status();
        status.is_ok_and(|status| status.success())
    };
    // Both, whatever comes of the first.
    let (ours, fuzz) = (
        formatted(&["--all"]),
        formatted(&["--manifest-path", "fuzz/Cargo.toml"]),
    );
    if ours && fuzz {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The tests, and what they leave out: nobody sees what a test says that passes.
fn test_with(tally: &mut Tally) {
    TESTS.iter().for_each(|step| tally.run(step));
    // As `crates/bench/tests/pages` looks for it.
    let browsers = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ];
    for (is_there, part, package) in [
        (
            has("redis-server"),
            "comparison with redis-server",
            "redis-server",
        ),
        (has("redis-cli"), "the server with redis-cli", "redis-tools"),
        (
            browsers.into_iter().any(has),
            "pages in a browser",
            "chromium",
        ),
    ] {
        if !is_there {
            tally.skip(
                part,
                &format!("it is not installed; apt-get install {package}"),
            );
        }
    }
}
