//! `everdram bench figure`: a figure of Bullet's paper measured on this machine, as tables, rows, a picture
//! and a page.

use super::rows;
use super::store::ensure_directory;
use crate::settings::usage;
use crate::terminal::{Progress, Tone, paint};
use crate::{Outcome, units};
use anyhow::Context;
use everdram::options::BulletSystem;
use everdram_bench::figure::{self, Figure, Measure, Settings};
use everdram_bench::{Row, Verdict};
use std::path::PathBuf;

/// A figure of Bullet's paper, measured on this machine.
#[derive(clap::Args)]
#[command(
    long_about = "Measures a figure of Bullet's paper (USENIX ATC 2018, section 5) on this machine, on emulated persistent \
                  memory with the delays of its platform: loads of 300 ns and fences of 100 ns.\n\n\
                  bullet-5  latency against throughput at 0, 2, 15 and 50 % writes\n\
                  bullet-6  how long gets and puts take at 15 % writes\n\
                  bullet-7  throughput and gleaners over time, while the share of writes changes\n\
                  bullet-8  throughput by size of the logs\n\
                  bullet-9  latency that independent clients see\n\n\
                  Keys have 16 bytes and values 100, asked for by a zipfian distribution of 0.99. The systems: volatile, \
                  phash and hikv-ht are bounds; static, +lfr, +opt, +dyn and +wrc are Bullet's ladder, of which +wrc is \
                  all of it. They take turns in several short rounds, each on a fresh store; compare figures of one run \
                  with each other. Throughput and latency leave out the time in which a worker was ready to run and had no core: on \
                  a machine of one's own there is none. By the clock stands beside.\n\n\
                  Prints tables, what the paper says and whether it is so here; writes FIGURE.jsonl (the rows), FIGURE.svg \
                  (the picture) and FIGURE.md (a page) into --out. What is not said is as large as the machine allows: \
                  half of the free memory, and as many workers as there are cores. All of bullet-5 takes some half an hour \
                  on two cores, --quick some minutes.\n\n\
                  Examples:\n  \
                  everdram bench figure bullet-5 --quick\n  \
                  everdram bench figure bullet-7 --records 1M --seconds 10\n  \
                  everdram bench figure bullet-9 --systems volatile,+wrc --threads 2 --clients 1,2,4"
)]
pub(crate) struct Arguments {
    /// Which one: bullet-5, bullet-6, bullet-7, bullet-8 or bullet-9.
    #[arg(value_parser = Figure::find)]
    figure: &'static Figure,
    /// Smaller and shorter, for a first look.
    #[arg(long)]
    quick: bool,
    /// Records of 16 + 100 bytes, such as 5M [default: what fits into half of the free memory; at most 2.5M a
    /// core, 200k with --quick]
    #[arg(long, value_parser = units::parse_count)]
    records: Option<u64>,
    /// Numbers of workers, such as 1,2,4; figures with one point for each system take the greatest [default:
    /// by the cores]
    #[arg(long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// bullet-9: numbers of clients, such as 1,2,4 [default: up to twice the workers]
    #[arg(long, value_delimiter = ',')]
    clients: Vec<usize>,
    /// Percent of the requests that are puts, such as 0,2,15,50; bullet-7 goes through them one after another
    /// [default: the paper's]
    #[arg(long, value_delimiter = ',')]
    writes: Vec<f64>,
    /// Seconds of each point in each round, of bullet-7 of each phase [default: 2, 0.5 with --quick;
    /// bullet-7: 30, 3]
    #[arg(long)]
    seconds: Option<f64>,
    /// Rounds in which the systems take turns [default: 5, 3 with --quick; bullet-7: 1]
    #[arg(long)]
    rounds: Option<usize>,
    /// Systems: volatile, phash, hikv-ht, static, +lfr, +opt, +dyn, +wrc [default: all; bullet-7 and -8:
    /// +wrc]
    #[arg(long, value_delimiter = ',')]
    systems: Vec<BulletSystem>,
    /// Bytes of each log, of which a worker has two; bullet-8: several, such as 1MiB,64MiB [default: 64MiB,
    /// 8MiB with --quick; bullet-8: 1, 4, 16 and 64 MiB]
    #[arg(long, value_delimiter = ',', value_parser = units::parse_bytes)]
    log_bytes: Vec<u64>,
    /// A directory on tmpfs, for emulated persistent memory.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Where rows, picture and page go.
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// Print the rows as JSON lines instead of tables.
    #[arg(long)]
    json: bool,
    /// Seed of all choices.
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

impl Arguments {
    fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = Settings::here(self.figure, self.quick, &self.dir);
        let said = |list: &[usize], proposed: Vec<usize>| match list {
            [] => proposed,
            list => list.to_vec(),
        };
        settings.threads = said(&self.threads, settings.threads);
        settings.clients = said(&self.clients, settings.clients);
        if !self.writes.is_empty() {
            settings.writes.clone_from(&self.writes);
        }
        if !self.systems.is_empty() {
            settings.systems.clone_from(&self.systems);
        }
        if !self.log_bytes.is_empty() {
            settings.log_bytes.clone_from(&self.log_bytes);
        }
        settings.records = self.records.unwrap_or(settings.records);
        settings.seconds = self.seconds.unwrap_or(settings.seconds);
        settings.rounds = self.rounds.unwrap_or(settings.rounds);
        settings.seed = self.seed;
        self.check(&settings)?;
        Ok(settings)
    }

    fn check(&self, settings: &Settings) -> anyhow::Result<()> {
        let is_number = |number: &usize| (1..=1000).contains(number);
        let is_share = |percent: &f64| (0.0..=100.0).contains(percent);
        let is_log = |bytes: &u64| bytes.is_multiple_of(4096) && (4096..=1 << 30).contains(bytes);
        let has_many_logs = settings.log_bytes.len() > 1;
        let measure = self.figure.measure;
        let all = |numbers: &[usize]| numbers.iter().all(is_number);
        let is_length = (0.001..=3600.0).contains(&settings.seconds);
        for (what, is_right) in [
            (
                "--records: 100 to 1G",
                (100..=1_000_000_000).contains(&settings.records),
            ),
            ("--threads: each 1 to 1000", all(&settings.threads)),
            ("--clients: each 1 to 1000", all(&settings.clients)),
            (
                "--clients: bullet-9 alone has clients",
                self.clients.is_empty() || measure == Measure::Clients,
            ),
            (
                "--writes: percent, each 0 to 100",
                settings.writes.iter().all(is_share),
            ),
            (
                "--writes: bullet-6 has one share",
                measure != Measure::Calls || settings.writes.len() == 1,
            ),
            ("--seconds: 0.001 to 3600", is_length),
            ("--rounds: 1 to 1000", is_number(&settings.rounds)),
            (
                "--rounds: bullet-7 is one course of time",
                measure != Measure::Phases || settings.rounds == 1,
            ),
            (
                "--log-bytes: each a multiple of 4 KiB, 4 KiB to 1 GiB",
                settings.log_bytes.iter().all(is_log),
            ),
            (
                "--log-bytes: bullet-8 alone takes several",
                !has_many_logs || self.figure.has_sizes_of_logs(),
            ),
        ] {
            if !is_right {
                return Err(usage(what));
            }
        }
        Ok(())
    }

    fn file(&self, end: &str) -> PathBuf {
        self.out.join(format!("{}.{end}", self.figure.name))
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let settings = arguments.settings()?;
    ensure_directory(&settings.dir)?;
    ensure_directory(&arguments.out)?;
    settings.ensure_room()?;
    let (rows_file, picture, page) = (
        arguments.file("jsonl"),
        arguments.file("svg"),
        arguments.file("md"),
    );
    // An hour of work is not to end at a file that cannot be written.
    for path in [&rows_file, &picture, &page] {
        rows::file(path, "")?;
    }
    let shown = Progress::start(&arguments.figure.name, 1000, false);
    let measured = figure::measure(&settings, &mut |done, what| {
        shown.at((done * 1000.0) as u64, what);
    });
    shown.finish();
    let named = || format!("{}, seed {}", settings.figure.name, settings.seed);
    let measured = measured.with_context(named)?;
    let text = rows::lines(&measured)?;
    rows::file(&rows_file, &text)?;
    rows::file(&picture, &figure::svg(&measured))?;
    let name = picture.file_name().unwrap_or_default().to_string_lossy();
    rows::file(&page, &figure::markdown(&measured, &name))?;
    if arguments.json {
        println!("{}", text.trim_end());
    } else {
        print(settings.figure, &measured);
        println!(
            "\nRows are in {}, the picture in {}, and a page in {}.",
            rows_file.display(),
            picture.display(),
            page.display()
        );
    }
    Ok(Outcome::Sound)
}

fn print(figure: &Figure, measured: &[Row]) {
    let Some(first) = measured.first() else {
        return;
    };
    let say = |condition| first.say(condition);
    println!(
        "{}: {}\n{} persistent memory, delays `{}`; {} records of {} + {} bytes; {} logs; {} x {} s; {} cores\n",
        paint(Tone::Strong, &figure.name),
        figure.what,
        say("medium"),
        say("delays"),
        units::count(first.number("records") as u64),
        say("key"),
        say("value"),
        say("logs"),
        say("rounds"),
        say("seconds"),
        first.machine.cores,
    );
    // The page has room for the others.
    print!("{}", figure::table(measured).text(12));
    print_verdicts("What the paper says", &figure::claims(measured), false);
    print_verdicts("Bars", &figure::bars(measured), true);
}

pub(super) fn print_verdicts(title: &str, verdicts: &[Verdict], are_bars: bool) {
    if !verdicts.is_empty() {
        println!("\n{}", paint(Tone::Strong, title));
        print!("{}", Verdict::table(verdicts, are_bars).text(4));
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

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        let words = std::iter::once("figure").chain(line.split_whitespace());
        Ok(Command::try_parse_from(words)?.arguments)
    }

    #[test]
    fn what_is_said_counts() {
        let said = parse(
            "bullet-8 --quick --records 20k --threads 1,3 --seconds 0.1 --rounds 2 --systems volatile,+wrc --log-bytes 64KiB,1MiB",
        );
        let said = said.unwrap().settings().unwrap();
        assert_eq!(said.figure.name, "bullet-8");
        assert_eq!((said.records, said.seconds, said.rounds), (20_000, 0.1, 2));
        assert_eq!(said.threads, [1, 3]);
        assert_eq!(said.systems, [BulletSystem::Volatile, BulletSystem::Wrc]);
        assert_eq!(said.log_bytes, [64 << 10, 1 << 20]);
        let proposed = parse("bullet-5").unwrap().settings().unwrap();
        assert_eq!(proposed.systems, BulletSystem::ALL);
        assert_eq!(proposed.writes, [0.0, 2.0, 15.0, 50.0]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "",
            "bullet-4",
            "bullet-5 --systems redis",
            "bullet-5 --threads x",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        for line in [
            "bullet-5 --records 1",
            "bullet-5 --threads 0",
            "bullet-5 --clients 2",
            "bullet-5 --writes 101",
            "bullet-6 --writes 2,15",
            "bullet-5 --seconds NaN",
            "bullet-5 --rounds 0",
            "bullet-7 --rounds 2",
            "bullet-5 --log-bytes 1000",
            "bullet-6 --log-bytes 1MiB,4MiB",
        ] {
            let error = parse(line).unwrap().settings().unwrap_err();
            assert!(error.is::<crate::settings::UsageError>(), "{line}");
        }
    }

    /// The help names every figure and every system.
    #[test]
    fn help_tells_all_there_is() {
        use clap::CommandFactory;
        let help = Command::command().render_long_help().to_string();
        let figures = Figure::all();
        let figures = figures.iter().map(|figure| &*figure.name);
        for name in figures.chain(BulletSystem::ALL.iter().map(|system| system.name())) {
            assert!(help.contains(name), "{name}");
        }
    }
}
