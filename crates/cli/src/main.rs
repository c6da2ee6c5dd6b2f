//! The `everdram` program: parses its arguments and runs the command.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    everdram_cli::run()
}
