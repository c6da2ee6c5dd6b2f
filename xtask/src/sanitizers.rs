//! `cargo xtask miri` and `cargo xtask tsan`: tests once more, under something that watches memory.
//!
//! Miri interprets the code: it sees undefined behaviour, data races and leaks, at a thousandth of the speed.
//! So it gets the code with `unsafe`, the structures that threads race on, and the engine over heap memory,
//! each test with its rounds cut. ThreadSanitizer runs compiled code at a tenth of the speed and sees data
//! races only; it gets the contract of the engines and the server. It does not understand fences; ours stand
//! beside atomic accesses, so that no false report comes of them. Both need a nightly toolchain; what is
//! missing is said, with the command that brings it.

use crate::cargo::rustup_cargo;
use crate::step::{Step, Under};
use std::process::{Command, Stdio};

/// What Miri runs.
pub(crate) const MIRI: [Step; 3] = [
    Step::tests(
        "miri, substrate",
        Under::Miri,
        240,
        "test --package everdram-pm --lib -- region:: lane:: cpu:: extent:: dram:: barrier::",
    ),
    Step::tests(
        "miri, key locks, epochs, index words",
        Under::Miri,
        120,
        "test --package everdram --lib -- stripes:: epoch:: index::entry index::line index::directory index::arena index::locks",
    ),
    Step::tests(
        "miri, viper over heap memory",
        Under::Miri,
        400,
        "test --package everdram --lib -- viper::tests viper::layout viper::record viper::batch",
    ),
];

/// What ThreadSanitizer runs.
pub(crate) const TSAN: [Step; 3] = [
    Step::tests(
        "tsan, structures and viper over heap memory",
        Under::Tsan,
        300,
        "test --package everdram --lib -- stripes:: epoch:: viper:: index::arena index::directory index::line index::locks",
    ),
    Step::tests(
        "tsan, contract",
        Under::Tsan,
        300,
        "test --package everdram --test contract",
    ),
    // The test that is left out measures how long a shutdown takes, in seconds that are longer here.
    Step::tests(
        "tsan, server",
        Under::Tsan,
        300,
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
