//! The command line of everdram: serve a pool, prove that it survives, inspect it, move data.
//!
//! Each subcommand is a module with its arguments (and their help) and a function `run`. Exit codes: 0 all is
//! well; 1 data was lost or is damaged, or the work failed; 2 wrong usage; 3 a salvage of a damaged pool is
//! complete, and data is missing; 130 interrupted.
//!
//! The library exists only for the program and its tests. [`killing`] has the servers that tests start and
//! kill, [`demo`] the campaign of the kill loop test.
#![forbid(unsafe_code)]

#[macro_use]
mod output;

mod bench;
mod check;
pub mod client;
mod crashtest;
pub mod demo;
mod doctor;
mod findings;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inspect;
pub mod killing;
mod pool;
mod remote;
mod serve;
mod settings;
mod terminal;
mod transfer;
mod units;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The commit that the program is built from; with `-dirty` behind it if its sources were not as in that
/// commit, and `unknown` outside of a checkout.
pub const COMMIT: &str = env!("EVERDRAM_COMMIT");

const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("EVERDRAM_COMMIT"),
    ")"
);

/// A key-value store that answers a write only when it is durable.
#[derive(Parser)]
#[command(
    name = "everdram",
    version = VERSION,
    long_about = "A key-value store that answers a write only when it is durable: on persistent memory where there is \
                  some, on ordinary files everywhere else, with the same promise.\n\n\
                  See it survive:   everdram demo\n\
                  Use it:           everdram serve --pool ./data\n\
                  Know your disk:   everdram doctor .",
    after_help = "Exit codes: 0 all is well; 1 data lost or damaged, or the work failed; 2 usage; 3 saved or \
                  tested, but not all of it; 130 interrupted.",
    propagate_version = true,
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<serve::Arguments>),
    Demo(demo::Arguments),
    Crashtest(Box<crashtest::Arguments>),
    Doctor(doctor::Arguments),
    Inspect(inspect::Arguments),
    Check(check::Arguments),
    Import(transfer::import::Arguments),
    Export(transfer::export::Arguments),
    Bench(Box<bench::Arguments>),
    Remote(remote::Arguments),
}

/// Exit code after Ctrl-C, as in shells.
pub(crate) const INTERRUPTED: u8 = 130;

/// Exit code of a command that did all it could, which is not all that was asked for.
pub(crate) const INCOMPLETE: u8 = 3;

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All is well.
    Sound,
    /// Data was lost or is damaged. The command has printed what.
    Damaged,
    /// What could be saved of a damaged pool is saved, or what could be tested in the time is sound. The
    /// command has printed what is missing.
    Incomplete,
    /// All was well until Ctrl-C ended the work early.
    Interrupted,
}

/// Runs the program with the arguments of this process.
#[must_use]
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    everdram_bench::built_from(COMMIT);
    let result = match arguments.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Crashtest(arguments) => crashtest::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Import(arguments) => transfer::import::run(&arguments),
        Command::Export(arguments) => transfer::export::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Remote(arguments) => remote::run(&arguments),
    };
    match result {
        Ok(Outcome::Sound) => ExitCode::SUCCESS,
        Ok(Outcome::Damaged) => ExitCode::from(1),
        Ok(Outcome::Incomplete) => ExitCode::from(INCOMPLETE),
        Ok(Outcome::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) if output::is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("everdram: {error:#}");
            ExitCode::from(if error.is::<settings::UsageError>() {
                2
            } else {
                1
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
