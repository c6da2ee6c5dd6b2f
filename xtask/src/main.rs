//! `cargo xtask`: the project's own chores, without dependencies.
//!
//! CI runs `cargo xtask ci` and nothing else, so whatever CI says can be had at home with the same words.
#![forbid(unsafe_code)]

mod ci;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
Chores of everdram. Usage: cargo xtask <chore>

  ci      all that CI runs: fmt, tidy, clippy, test, miri; ends with a line `N passed, N failed`
  test    all tests and doc tests, the kill loop included (EVERDRAM_KILLS=N sets its kills)
  miri    the racing structures and the code with unsafe under Miri (needs a nightly with miri)
  fmt     format the code
  tidy    the repository's own rules: file sizes, headers, reasons for dependencies, leftovers
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let chore = arguments.next();
    if arguments.next().is_some() {
        eprint!("one chore at a time\n\n{HELP}");
        return ExitCode::from(2);
    }
    match chore.as_deref() {
        Some("ci") => ci::ci(),
        Some("test") => ci::test(),
        Some("miri") => ci::miri(),
        Some("fmt") => ci::format(),
        Some("tidy") => tidy::run(),
        None | Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Some(other) => {
            eprint!("no chore `{other}`\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}
