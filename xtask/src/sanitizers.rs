//! `cargo xtask miri` and `cargo xtask tsan`: tests once more, under something that watches memory.
//!
//! Miri interprets the code: it sees undefined behaviour, data races and leaks, at a thousandth of the speed. So it
//! gets the code with `unsafe`, the structures that threads race on, and the engine over heap memory, each test with
//! its rounds cut. ThreadSanitizer runs compiled code at a tenth of the speed and sees data races only; it gets the
//! contract of the engines and the server. Both need a nightly toolchain; what is missing is said, with the command
//! that brings it.
//!
//! ThreadSanitizer does not understand fences. Where it takes one for nothing, `xtask/tsan.supp` says so.

use crate::ci::{Counts, Step};
use crate::tidy;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What Miri runs.
pub(crate) const MIRI: [Step; 3] = [
    Step {
        name: "miri, substrate",
        arguments: &[
            "+nightly",
            "miri",
            "test",
            "--package",
            "everdram-pm",
            "--lib",
            "--",
            "region::",
            "lane::",
            "cpu::",
            "extent::",
        ],
        counts: Counts::Tests,
    },
    Step {
        name: "miri, key locks, epochs, index words",
        arguments: &[
            "+nightly",
            "miri",
            "test",
            "--package",
            "everdram",
            "--lib",
            "--",
            "stripe::",
            "epoch::",
            "index::entry",
        ],
        counts: Counts::Tests,
    },
    Step {
        name: "miri, viper over heap memory",
        arguments: &[
            "+nightly",
            "miri",
            "test",
            "--package",
            "everdram",
            "--lib",
            "--",
            "viper::tests",
            "viper::layout",
            "viper::record",
            "viper::batch",
        ],
        counts: Counts::Tests,
    },
];

/// What ThreadSanitizer runs. The standard library is built again with it: what is not, it takes for races.
pub(crate) const TSAN: [Step; 3] = [
    Step {
        name: "tsan, structures and viper over heap memory",
        arguments: &[
            "+nightly",
            "test",
            BUILD_STD,
            "--target",
            "host-tuple",
            "--package",
            "everdram",
            "--lib",
            "--",
            "stripe::",
            "epoch::",
            "viper::",
            "index::arena",
            "index::directory",
        ],
        counts: Counts::Tests,
    },
    Step {
        name: "tsan, contract",
        arguments: &[
            "+nightly",
            "test",
            BUILD_STD,
            "--target",
            "host-tuple",
            "--package",
            "everdram",
            "--test",
            "contract",
        ],
        counts: Counts::Tests,
    },
    Step {
        name: "tsan, server",
        arguments: &[
            "+nightly",
            "test",
            BUILD_STD,
            "--target",
            "host-tuple",
            "--package",
            "everdram-resp",
            "--lib",
            "--test",
            "wire",
            "--",
            // It measures how long a shutdown takes, in seconds that are longer here.
            "--skip",
            "cannot_hold_up_a_shutdown",
        ],
        counts: Counts::Tests,
    },
];

const BUILD_STD: &str = "-Zbuild-std";

/// What the environment of a step must have besides.
pub(crate) fn environment(step: &Step) -> Vec<(&'static str, String)> {
    if !step.arguments.contains(&BUILD_STD) {
        return Vec::new();
    }
    let suppressions = tidy::root().join("xtask/tsan.supp");
    // What is built with it goes with nothing else.
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| tidy::root().join("target"));
    let target = target.join("tsan");
    vec![
        ("RUSTFLAGS", "-Zsanitizer=thread".to_owned()),
        (
            "TSAN_OPTIONS",
            format!("suppressions={}", suppressions.display()),
        ),
        ("CARGO_TARGET_DIR", target.display().to_string()),
    ]
}

/// The `cargo` that understands `+nightly`: rustup's, not the one of a toolchain.
pub(crate) fn rustup_cargo() -> Command {
    let mut command = Command::new("cargo");
    command
        .current_dir(tidy::root())
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("RUSTC");
    command
}

/// What Miri lacks here, and how to get it.
pub(crate) fn miri_lacks() -> Option<&'static str> {
    let there = rustup_cargo()
        .args(["+nightly", "miri", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    (!there).then_some("rustup toolchain install nightly --component miri,rust-src")
}

/// What ThreadSanitizer lacks here, and how to get it.
pub(crate) fn tsan_lacks() -> Option<&'static str> {
    let output = Command::new("rustup")
        .args(["component", "list", "--toolchain", "nightly", "--installed"])
        .output();
    let there =
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("rust-src"));
    (!there).then_some("rustup toolchain install nightly --component rust-src")
}
