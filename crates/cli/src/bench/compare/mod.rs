//! `everdram bench compare`: everdram, its rivals and the machine's limits in one run, as a table, as rows
//! and as a page.

mod run;
mod turn;

pub(crate) use turn::Arguments as TurnArguments;
pub(crate) use turn::run as turn;

use super::rows;
use super::store::ensure_directory;
use crate::settings::{engine, usage};
use crate::terminal::{Progress, Tone, paint};
use crate::{Outcome, units};
use everdram::EngineKind;
use everdram_bench::compare::{Duels, groups, tables};
use everdram_bench::row::{LEFT_OUT, SERVERS};
use everdram_bench::{Machine, Row, server};
use std::path::PathBuf;

/// everdram beside its rivals, as a table, rows and a page.
#[derive(clap::Args)]
#[command(
    long_about = "Measures everdram, the rivals that this build has, Redis and Valkey where they are installed, and the \
                  limits of this machine: on the same medium, with the same durability, in one run, in alternating \
                  order. Each store has a process of its own for each turn. Prints a table, and writes rows (JSON lines) \
                  and a page (HTML) that needs nothing else.\n\n\
                  With --quick it takes less than ten minutes on two cores, without it one to two hours. Rivals are \
                  RocksDB, LMDB, redb, fjall, sled and scc: a build with --features rivals has them.\n\n\
                  Example: everdram bench compare --quick --dir ."
)]
pub(crate) struct Arguments {
    /// A directory on a disk.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// A directory on tmpfs, for emulated persistent memory.
    #[arg(long, default_value = "/dev/shm")]
    emulated_dir: PathBuf,
    /// Engine of everdram.
    #[arg(long, default_value_t, value_parser = engine())]
    engine: EngineKind,
    /// All of it, but small.
    #[arg(long)]
    quick: bool,
    /// Only stores and servers whose names contain one of these, such as `everdram,redis`.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Records of 16 + 200 bytes [default: 5M; 200k with --quick]. On a disk a tenth of them.
    #[arg(long, value_parser = units::parse_count)]
    records: Option<u64>,
    /// Seconds of each measurement [default: 2; 0.25 with --quick].
    #[arg(long)]
    seconds: Option<f64>,
    /// Repetitions.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Seed of all choices.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Where the rows go.
    #[arg(long, default_value = "everdram-compare.jsonl")]
    rows: PathBuf,
    /// Where the page goes.
    #[arg(long, default_value = "everdram-compare.html")]
    report: PathBuf,
}

/// What rivals this build lacks, and how to have them.
const WITHOUT_RIVALS: &str = "not in this build: apt-get install librocksdb-dev libclang-dev, then build with \
                              `cargo build --release -p everdram-cli --features rivals`";

impl Arguments {
    fn records(&self) -> u64 {
        let usual = if self.quick { 200_000 } else { 5_000_000 };
        self.records.unwrap_or(usual)
    }

    fn seconds(&self) -> f64 {
        let usual = if self.quick { 0.25 } else { 2.0 };
        self.seconds.unwrap_or(usual)
    }

    fn check(&self) -> anyhow::Result<()> {
        let is_time = (0.001..=600.0).contains(&self.seconds());
        if self.records() < 1000 || self.repeat == 0 || !is_time {
            return Err(usage(
                "--records: at least 1000; --repeat: at least 1; --seconds: 0.001 to 600",
            ));
        }
        Ok(())
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    arguments.check()?;
    ensure_directory(&arguments.dir)?;
    ensure_directory(&arguments.emulated_dir)?;
    // Hours of work are not to end at a file that cannot be written.
    for path in [&arguments.rows, &arguments.report] {
        rows::file(path, "")?;
    }
    let mut measured = Vec::new();
    if cfg!(not(feature = "rivals")) {
        let rivals = "RocksDB, LMDB, redb, fjall, sled, scc";
        let machine = Machine::here(&arguments.dir);
        measured.push(Row::left_out(rivals, WITHOUT_RIVALS, &machine));
    }
    let progress = Progress::start("compare", 1000, false);
    run::measure(arguments, &progress, &mut measured)?;
    progress.finish();
    rows::file(&arguments.rows, &rows::lines(&measured)?)?;
    rows::file(&arguments.report, &everdram_bench::report::html(&measured))?;
    print(&measured);
    println!(
        "\nRows are in {}, and the page in {}.",
        arguments.rows.display(),
        arguments.report.display()
    );
    Ok(Outcome::Sound)
}

/// Prints stores, servers, what came out in sentences, and what was left out.
fn print(rows: &[Row]) {
    let groups = groups(rows);
    for (scenario, table) in tables(&groups) {
        println!("\n{}", paint(Tone::Strong, &scenario));
        print!("{}", table.text(9));
    }
    let of_suite = |suite| rows.iter().filter(move |row| row.suite == suite).cloned();
    let servers: Vec<Row> = of_suite(SERVERS).collect();
    if !servers.is_empty() {
        println!("\n{}", paint(Tone::Strong, "Servers over sockets"));
        println!("{}", server::text(&servers).trim_end());
    }
    println!("\nshare: of the machine's limit. * = an answered write may be lost.");
    for duels in [Duels::of_stores(&groups), Duels::of_servers(rows)] {
        for sentence in duels.sentences() {
            println!("{sentence}");
        }
    }
    for row in of_suite(LEFT_OUT) {
        let (word, why) = (paint(Tone::Bad, "left out"), row.say("why"));
        println!("{word} {}: {why}", row.subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    pub(super) fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Arguments {
        let words = std::iter::once("compare").chain(words);
        Command::try_parse_from(words).unwrap().arguments
    }

    #[test]
    fn quick_is_smaller_and_what_is_said_counts() {
        let quick = parse(["--quick"]);
        assert_eq!((quick.records(), quick.repeat), (200_000, 3));
        let said = parse("--quick --records 5k --seconds 1 --repeat 5".split(' '));
        assert_eq!(
            (said.records(), said.seconds(), said.repeat),
            (5000, 1.0, 5)
        );
        assert!(said.check().is_ok() && parse([]).records() > quick.records());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "--records 10",
            "--repeat 0",
            "--seconds 0",
            "--seconds NaN",
            "--seconds 1e9",
        ] {
            assert!(parse(line.split(' ')).check().is_err(), "{line}");
        }
    }
}
