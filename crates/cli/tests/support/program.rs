//! The program under test.

use std::process::{Command, Output};

/// Without the settings of whoever runs the tests.
pub(crate) fn everdram() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everdram"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("EVERDRAM_")) {
        command.env_remove(name);
    }
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    everdram().args(arguments).output().unwrap()
}
