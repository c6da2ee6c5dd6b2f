//! `cargo xtask instructions`: instructions of each call, counted by callgrind.
//!
//! Time on a shared machine differs by a tenth from run to run; counts of instructions of one program differ
//! by a thousandth, since pools have random keys. The program is `crates/bench/examples/calls.rs`. callgrind
//! writes a file of counts at the end of each of its passes, and the program a line.

use crate::cargo::{cargo, root, target};
use crate::child::output;
use crate::tally::Tally;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// The function that callgrind counts in.
const MEASURED: &str = "calls::measured";
const LIMIT: Duration = Duration::from_secs(600);

/// Builds the program, counts, and prints a table.
pub(crate) fn run() -> ExitCode {
    if !Command::new("valgrind")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        let mut tally = Tally::default();
        tally.skip(
            "instructions",
            "valgrind is not installed; apt-get install valgrind",
        );
        return tally.finish();
    }
    match count() {
        Ok(rows) => {
            print!("{}", table(&rows));
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("instructions: {why}");
            ExitCode::FAILURE
        }
    }
}

/// A call, and its instructions.
type Row = (String, f64);

fn count() -> Result<Vec<Row>, String> {
    let built = cargo()
        .args("build --release --package everdram-bench --example calls".split(' '))
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the program that makes the calls was not built".into());
    }
    let results = target().join("instructions");
    let memory = Path::new("/dev/shm");
    let pools = if memory.is_dir() { memory } else { &results };
    let pools = pools.join(format!("everdram-calls-{}", std::process::id()));
    let _was_not_there = fs::remove_dir_all(&results);
    let made = fs::create_dir_all(&results).and_then(|()| fs::create_dir_all(&pools));
    made.map_err(|error| format!("{}: {error}", pools.display()))?;
    let counted = count_in(&results, &pools);
    fs::remove_dir_all(&pools).map_err(|error| format!("{}: {error}", pools.display()))?;
    counted
}

fn count_in(results: &Path, pools: &Path) -> Result<Vec<Row>, String> {
    let counts = results.join("counts");
    let mut command = Command::new("valgrind");
    command
        .current_dir(root())
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(format!("--toggle-collect={MEASURED}"))
        .arg(format!("--dump-after={MEASURED}"))
        .arg(target().join("release/examples/calls"))
        .arg(pools);
    let ended = output(&mut command, LIMIT).map_err(|trouble| format!("callgrind {trouble}"))?;
    if !ended.status.success() {
        return Err(format!(
            "callgrind failed\n{}",
            String::from_utf8_lossy(&ended.stderr)
        ));
    }
    let passes = String::from_utf8_lossy(&ended.stdout).into_owned();
    let each = (1..).zip(passes.lines());
    each.map(|(number, pass)| {
        let file = counts.with_extension(number.to_string());
        let counted =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        row(pass, &counted).ok_or_else(|| format!("{}: no counts of `{pass}`", file.display()))
    })
    .collect()
}

/// A row from a line of the program, the name of a call and how often it was made, and callgrind's counts.
fn row(pass: &str, counted: &str) -> Option<Row> {
    let (name, calls) = pass.split_once('\t')?;
    let calls: f64 = calls.parse().ok().filter(|calls| *calls > 0.0)?;
    let mut totals = counted
        .lines()
        .filter_map(|line| line.strip_prefix("totals: "));
    let total: f64 = totals.next()?.trim().parse().ok()?;
    (total > 0.0).then(|| (name.into(), total / calls))
}

fn table(rows: &[Row]) -> String {
    let line = |(name, each): &Row| format!("| {name} | {each:.0} |\n");
    let lines: String = rows.iter().map(line).collect();
    format!("| call | instructions |\n| --- | --- |\n{lines}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTED: &str = "events: Ir\nfn=(1) calls::measured\n5 100\n\ntotals: 4500\n";

    #[test]
    fn totals_are_divided_by_calls() {
        assert_eq!(
            row("get, fixed\t10", COUNTED),
            Some(("get, fixed".into(), 450.0))
        );
    }

    #[test]
    fn a_pass_without_counts_is_no_row() {
        assert_eq!(row("get\t10", "events: Ir\n"), None);
        assert_eq!(row("get\t10", "totals: 0\n"), None);
        assert_eq!(row("get\t0", COUNTED), None);
        assert_eq!(row("get", COUNTED), None);
    }

    #[test]
    fn a_table_has_whole_instructions() {
        let rows = [("get".into(), 449.6), ("put".into(), 2000.0)];
        assert_eq!(
            table(&rows),
            "| call | instructions |\n| --- | --- |\n| get | 450 |\n| put | 2000 |\n"
        );
    }
}
