//! The `everdram` program: parses its arguments and does what they say.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    everdram_cli::run()
}
