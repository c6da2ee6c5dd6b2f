//! `cargo xtask miri` and `cargo xtask tsan`: runs tests again under tools that check memory accesses.
//!
//! Miri interprets the code and detects undefined behaviour, data races and leaks, at a thousandth of the
//! speed. So it runs the code with `unsafe`, the concurrent structures, and the engine over heap memory, each
//! test with fewer rounds. ThreadSanitizer runs compiled code at a tenth of the speed and detects only data
//! races. It runs the contract of the engines and the server. It does not understand fences; all fences here
//! stand beside atomic accesses, so it reports nothing false. Both need a nightly toolchain. If something is
//! missing, the chore prints the command that installs it.

use crate::cargo::rustup_cargo;
use crate::step::{Step, Under};
use std::process::{Command, Stdio};

/// What Miri runs.
pub(crate) const MIRI: [Step; 4] = [
    Step::tests(
        "miri, substrate",
        Under::Miri,
        400,
        "test --package everdram-pm --lib -- region:: lane:: cpu:: extent:: dram:: barrier::",
    ),
    Step::tests(
        "miri, key locks, epochs, index words",
        Under::Miri,
        300,
        "test --package everdram --lib -- stripes:: epoch:: index::entry index::line index::directory index::arena index::locks",
    ),
    Step::tests(
        "miri, viper over heap memory",
        Under::Miri,
        600,
        "test --package everdram --lib -- viper::tests viper::layout viper::record viper::batch",
    ),
    Step::tests(
        "miri, boundary to C",
        Under::Miri,
        300,
        "test --package everdram-fabric-c --lib -- boundary::",
    ),
];

/// What ThreadSanitizer runs.
pub(crate) const TSAN: [Step; 3] = [
    Step::tests(
        "tsan, structures and viper over heap memory",
        Under::Tsan,
        500,
        "test --package everdram --lib -- stripes:: epoch:: viper:: index::arena index::directory index::line index::locks",
    ),
    Step::tests(
        "tsan, contract",
        Under::Tsan,
        500,
        "test --package everdram --test contract",
    ),
    // The test that is left out measures how long a shutdown takes, in seconds that are longer here.
    Step::tests(
        "tsan, server",
        Under::Tsan,
        500,
        "test --package everdram-resp --lib --test wire -- --skip cannot_hold_up_a_shutdown",
    ),
];

/// What Miri lacks here, and how to get it.
pub(crate) fn miri_lacks() -> Option<String> {
    let there = rustup_cargo()
        .args(["+nightly", "miri", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let remedy = "rustup toolchain install nightly --component miri,rust-src";
    (!there).then(|| format!("it is not installed; {remedy}"))
}

/// What ThreadSanitizer lacks here, and how to get it.
pub(crate) fn tsan_lacks() -> Option<String> {
    let output = Command::new("rustup")
        .args(["component", "list", "--toolchain", "nightly", "--installed"])
        .output();
    let there =
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("rust-src"));
    let remedy = "rustup toolchain install nightly --component rust-src";
    (!there).then(|| format!("it needs rust-src for nightly; {remedy}"))
}
