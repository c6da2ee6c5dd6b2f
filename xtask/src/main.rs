//! `cargo xtask`: the project's own chores, without dependencies.
//!
//! CI runs only `cargo xtask ci`, so the same command repeats at home whatever CI reports.
#![forbid(unsafe_code)]

mod cargo;
mod child;
mod ci;
mod circles;
mod findings;
mod fuzz;
mod instructions;
mod mutants;
mod sanitizers;
mod step;
mod tally;
mod tidy;
mod vm;

use std::process::ExitCode;

const HELP: &str = "\
Chores of everdram. Usage: cargo xtask <chore>

  ci      all that CI runs: fmt, tidy, clippy, test, lab, miri, tsan, fuzz, vm, each with a limit; ends with what was
          skipped, what failed, and a line `N passed, N failed`
  test    all tests and doc tests, the kill loop included (EVERDRAM_KILLS=N sets its kills)
  lab     the crash lab, optimised: many runs (EVERDRAM_LAB_RUNS=N), the mutation score, lints
  mutants the score that counts: how many of the bugs planted by xtask/mutants are found, by the crash lab in five minutes
          or by a test that the bug names;
          `mutants --quick` tries six, a minute each, and the holes of the published designs, `--holes` those alone.
          Also --only NAME[,NAME], --list, --seconds N, --seed N
  fuzz    all fuzzing targets, 30 s each: pool, bullet, dstore, tiered, ...; also
          `fuzz TARGET --seconds N`, and `fuzz TARGET --input FILE` to see a failure again
  miri    the code with unsafe, what threads race on and viper on the heap under Miri (needs a nightly with miri)
  tsan    key locks, epochs, viper on the heap, the contract of the engines and the server under ThreadSanitizer
          (needs a nightly with rust-src)
  instructions
          how many instructions a put, get, ... of viper takes, counted by callgrind (needs valgrind)
  fmt     format the code
  vm      the pmem medium on emulated NVDIMMs in a QEMU machine; `vm --quick` is the part that CI runs
  tidy    the repository's own rules: file sizes, headers, circles of imports, reasons for dependencies, leftovers
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let chore = arguments.next();
    let asks_for_help = |argument: &String| argument == "--help" || argument == "-h";
    if std::env::args()
        .skip(2)
        .any(|argument| asks_for_help(&argument))
    {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match chore.as_deref() {
        Some("fuzz") => return fuzz::run(arguments),
        Some("mutants") => return mutants::run(arguments),
        _ => {}
    }
    let mut option = arguments.next();
    let mut scope = vm::Scope::Full;
    if chore.as_deref() == Some("vm") && option.as_deref() == Some("--quick") {
        scope = vm::Scope::Quick;
        option = arguments.next();
    }
    if option.is_some() {
        eprint!("one chore at a time\n\n{HELP}");
        return ExitCode::from(2);
    }
    match chore.as_deref() {
        Some("ci") => ci::ci(),
        Some("test") => ci::test(),
        Some("lab") => ci::lab(),
        Some("miri") => ci::miri(),
        Some("tsan") => ci::tsan(),
        Some("fmt") => ci::format(),
        Some("instructions") => instructions::run(),
        Some("vm") => vm::chore(scope),
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
