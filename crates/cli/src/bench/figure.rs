//! `everdram bench figure`: a figure of Bullet's, DStore's, NDHedis', RDMP-KV's or Viper's paper measured on
//! this machine, as tables, rows, a picture and a page.

use super::rows;
use super::store::{ensure_directory, rivals, stand_ins};
use crate::settings::usage;
use crate::terminal::{Progress, Tone, paint};
use crate::{Outcome, units};
use anyhow::{Context, ensure};
use everdram_bench::figure::{self, Curve, Figure, Ground, Measure, Settings, Site, System};
use everdram_bench::{Row, Verdict, row};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Letters in a line of a table: what terminals have, and what can be read.
const LETTERS: usize = 100;

/// A figure of Bullet's, DStore's, NDHedis', RDMP-KV's or Viper's paper, measured on this machine.
#[derive(clap::Args)]
#[command(
    long_about = "Measures a figure of a paper on this machine, on emulated persistent memory with the delays of the \
                  paper's platform.\n\n\
                  Bullet (USENIX ATC 2018, section 5), with keys of 16 bytes and values of 100:\n\
                  bullet-5   latency against throughput at 0, 2, 15 and 50 % writes\n\
                  bullet-6   how long gets and puts take at 15 % writes\n\
                  bullet-7   throughput and gleaners over time, while the share of writes changes\n\
                  bullet-8   throughput by size of the logs\n\
                  bullet-9   latency that independent clients see\n\n\
                  DStore (HPDC 2021, section 5), with keys of 16 bytes and values of 4 KiB:\n\
                  dstore-1   write tails with checkpoints and without\n\
                  dstore-5   mean latency of YCSB A and B, reads and updates\n\
                  dstore-6   what a write takes beyond its data\n\
                  dstore-7   throughput and traffic over time, at 50 and at 100 % writes\n\
                  dstore-8   tail latency of YCSB A and B, reads and updates\n\
                  dstore-9   what each technique does to the latency of writes\n\
                  dstore-10  bytes of DRAM, persistent memory and disk\n\
                  dstore-t3  table 3: the steps of a write (in a build with --features steps)\n\
                  dstore-t4  table 4: opening after a clean stop, and after a kill\n\
                  dstore-t5  table 5: the worst of each system\n\n\
                  NDHedis (SAC 2019, section 5), with keys of 16 bytes and values of 32:\n\
                  ndhedis-3  persistent memory in use, of viper, and of tiered with a pool of 10 MB\n\
                  ndhedis-4  SETs a second of servers by device and size of the values; with redis-always and \
                  redis-everysec; needs --data-dir\n\n\
                  RDMP-KV (2020, sections II and IV), with keys of 20 bytes, on an emulated network:\n\
                  rdmp-2     latency of a put over IPoIB and herd, and the server's time (its parts in a build with \
                  --features steps)\n\
                  rdmp-7     puts by size: latency, and puts a second of a server that never waits\n\
                  rdmp-8     gets, likewise\n\
                  rdmp-9     YCSB A and B with 2 stores and 8 clients\n\
                  rdmp-10    puts and gets beside forca\n\
                  rdmp-11    puts by back end: viper, bullet, phash\n\n\
                  Viper (PVLDB 2021, section 5), with keys of 16 bytes and values of 200:\n\
                  viper-1    how long writes to memory take by their pattern, without a store and with one\n\
                  viper-6    inserts, gets, updates of 8 bytes and deletes by number of threads\n\
                  viper-7    inserts and gets by size of keys and values\n\
                  viper-8    inserts and gets of records whose sizes are normally distributed\n\
                  viper-9    bytes of DRAM and persistent memory\n\
                  viper-10   updates in place and by copy\n\
                  viper-11   where data and index are: all in persistent memory, both, all in DRAM\n\
                  viper-12   what operations take, with slow memory and without (inserts split in a build with \
                  --features steps)\n\
                  viper-13   YCSB with 50 and 90 % writes, uniform and zipfian: latency and throughput\n\
                  viper-reclaim   gets and inserts while room is reclaimed\n\
                  viper-recovery  opening by number of threads\n\n\
                  Keys are asked for by a zipfian distribution of 0.99, of ndhedis-4, of rdmp but rdmp-9, and of \
                  Viper but the half of viper-13 uniformly. \
                  Bullet's systems: volatile, phash and hikv-ht are bounds; static, +lfr, +opt, +dyn and +wrc are its \
                  ladder, of which +wrc is all of it. DStore's: volatile and inline are bounds; physical, +logical, \
                  +dipper and +oe are its ladder, of which +oe is all of it; cow is +oe with copy-on-write checkpoints. \
                  RDMP-KV's are ways of a value to the store: ipoib (the Redis door over loopback), herd, forca, \
                  rdmp-sa, rdmp-cc, rdmp-cc-imm, rdmp-cc-read, rdmp-cc-sa; clients and servers take turns on one thread, \
                  each with a clock of its own, so that the number of cores does not matter. Viper's: viper-fixed has pages for \
                  records of one size and changes 8 bytes in place, viper has pages for any size, viper-dram is \
                  viper-fixed on memory without delays, and viper-scan is viper-fixed without checkpoints; Bullet's +wrc \
                  is in the place of CrlStore, and its phash of indexes in persistent memory; pm and dram are loops \
                  without a store. Systems take turns in \
                  several rounds, each on a fresh store; compare figures of one run with each other. Throughput and \
                  latency leave out the time in which a worker was ready to run and had no core: on a machine of one's \
                  own there is none. By the clock stands beside.\n\n\
                  DStore's values lie on a data file. Ground a has it in memory, with a modelled disk; ground b on a \
                  disk, in the directory --data-dir, where the other stores of a build with --features rivals take part, \
                  and rocksdb-pm, which stands in for PMEM-RocksDB: its log is in memory. On ground c all is on the disk. Those \
                  stores take part in viper-6, viper-9 and viper-13, too.\n\n\
                  Prints tables, what the paper says and whether it is so here; writes FIGURE.jsonl (the rows), FIGURE.svg \
                  (the picture) and FIGURE.md (a page) into --out. What is not said is as large as the machine allows: \
                  half of the free memory, and as many workers as there are cores. All of bullet-5 takes some half an hour \
                  on two cores, as do most of DStore's; --quick some minutes.\n\n\
                  Examples:\n  \
                  everdram bench figure bullet-5 --quick\n  \
                  everdram bench figure bullet-7 --records 1M --seconds 10\n  \
                  everdram bench figure bullet-9 --systems volatile,+wrc --threads 2 --clients 1,2,4\n  \
                  everdram bench figure dstore-8 --quick\n  \
                  everdram bench figure dstore-5 --data-dir . --grounds b --threads 8\n  \
                  everdram bench figure dstore-1 --quick --data-dir .\n  \
                  everdram bench figure rdmp-7 --quick\n  \
                  everdram bench figure viper-6 --quick"
)]
pub(crate) struct Arguments {
    /// Which one: bullet-5 to bullet-9, dstore-1, dstore-5 to dstore-10, dstore-t3 to dstore-t5, ndhedis-3,
    /// ndhedis-4, rdmp-2, rdmp-7 to rdmp-11, viper-1, viper-6 to viper-13, viper-reclaim, viper-recovery.
    #[arg(value_parser = Figure::find)]
    figure: &'static Figure,
    /// Smaller and shorter, for a first look.
    #[arg(long)]
    quick: bool,
    /// Records, such as 5M [default: what fits into half of the free memory; of Bullet's at most 2.5M a core,
    /// 200k with --quick; of DStore's 1M and 50k, and 2M in all; of RDMP-KV's 5k and 1k, 64 MiB of values; of
    /// Viper's 2.5M and 100k, of viper-7 1M in all]
    #[arg(long, value_parser = units::parse_count)]
    records: Option<u64>,
    /// Numbers of workers, such as 1,2,4; figures with one point for each system take the greatest [default:
    /// by the cores; on a disk 1, 2, 8 and 28, 8 with --quick; dstore-1: 28 and 8; dstore-t4: 2]
    #[arg(long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// bullet-9: numbers of clients, such as 1,2,4 [default: up to twice the workers]
    #[arg(long, value_delimiter = ',')]
    clients: Vec<usize>,
    /// Percent of the requests that are puts, such as 0,2,15,50; bullet-7 and dstore-7 go through them one
    /// after another [default: the paper's]
    #[arg(long, value_delimiter = ',')]
    writes: Vec<f64>,
    /// Seconds of each point in each round, of bullet-7 and dstore-7 of each phase [default: 2, 0.5 with
    /// --quick; bullet-7: 30, 3; dstore-7: 60, 5; other figures of DStore 5 to 20, 1 or 2;
    /// ndhedis-4: 4, 0.5; rdmp: 2 or 4, 0.3 or 0.6; viper: 1 to 4, at most, 0.2 to 0.5]
    #[arg(long)]
    seconds: Option<f64>,
    /// Rounds in which the systems take turns [default: 5, 3 with --quick; one where a round is a course of
    /// time or a filled store]
    #[arg(long)]
    rounds: Option<usize>,
    /// Systems: of Bullet volatile, phash, hikv-ht, static, +lfr, +opt, +dyn, +wrc; of DStore volatile,
    /// inline, physical, +logical, +dipper, +oe, cow, and names of rivals; of NDHedis viper, tiered, and of
    /// ndhedis-4 redis-always, redis-everysec; of RDMP-KV ipoib, herd, forca, rdmp-sa, rdmp-cc, rdmp-cc-imm,
    /// rdmp-cc-read, rdmp-cc-sa; of Viper viper-fixed, viper, viper-dram, viper-scan, +wrc, phash, pm, dram,
    /// and names of rivals [default: those of the figure]
    #[arg(long, value_delimiter = ',')]
    systems: Vec<String>,
    /// DStore, NDHedis, viper-6, viper-9, viper-13: what stores lie on: a, b, c [default: a; with --data-dir
    /// those of the figure]
    #[arg(long, value_delimiter = ',')]
    grounds: Vec<Ground>,
    /// Bytes of each log, of which a worker has two; bullet-8 and dstore-1: several, such as 1MiB,64MiB
    /// [default: 64MiB, 8MiB with --quick; bullet-8: 1, 4, 16 and 64 MiB; dstore-1: 4 and 256 MiB; dstore-t4:
    /// 32 MiB; other figures of DStore: 4 MiB]
    #[arg(long, value_delimiter = ',', value_parser = units::parse_bytes)]
    log_bytes: Vec<u64>,
    /// A directory on tmpfs, for emulated persistent memory.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// DStore, NDHedis, viper-6, viper-9, viper-13: a directory on a disk, for data files, logs and rivals.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Where rows, picture and page go.
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// Print the rows as JSON lines instead of tables.
    #[arg(long)]
    json: bool,
    /// Seed of all choices.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Fill a store in this directory and wait to be killed; this program starts itself so.
    #[arg(long, hide = true)]
    fill: Option<PathBuf>,
    /// The directory of what it has elsewhere.
    #[arg(long, hide = true, requires = "fill")]
    fill_beside: Option<PathBuf>,
}

impl Arguments {
    fn settings(&self) -> anyhow::Result<Settings> {
        let data_dir = self.data_dir.as_deref();
        let mut settings = Settings::here(self.figure, self.quick, &self.dir, data_dir);
        if !self.grounds.is_empty() {
            settings.grounds.clone_from(&self.grounds);
        }
        let said = |list: &[usize], proposed: Vec<usize>| match list {
            [] => proposed,
            list => list.to_vec(),
        };
        settings.threads = said(&self.threads, settings.threads);
        settings.disk_threads = said(&self.threads, settings.disk_threads);
        settings.clients = said(&self.clients, settings.clients);
        if !self.writes.is_empty() {
            settings.writes.clone_from(&self.writes);
        }
        let rivals = self.rivals(&settings.grounds);
        if self.systems.is_empty() {
            settings.systems.extend(rivals);
        } else {
            let all = [self.figure.systems(), rivals].concat();
            let named = self.systems.iter().map(|name| find(&all, name));
            settings.systems = named.collect::<anyhow::Result<_>>()?;
        }
        if !self.log_bytes.is_empty() {
            settings.log_bytes.clone_from(&self.log_bytes);
        }
        settings.records = self.records.unwrap_or(settings.records);
        settings.seconds = self.seconds.unwrap_or(settings.seconds);
        settings.rounds = self.rounds.unwrap_or(settings.rounds);
        settings.seed = self.seed;
        settings.filler = Some(filler);
        settings.program = std::env::current_exe().ok();
        self.check(&settings)?;
        Ok(settings)
    }

    /// Other stores that take part, and stand-ins for those that are not to be had.
    fn rivals(&self, grounds: &[Ground]) -> Vec<System> {
        let has_disk = grounds.contains(&Ground::Disk);
        let others = rivals().iter().chain(stand_ins());
        others
            .filter(|other| has_disk && self.figure.takes(&***other))
            .map(|other| System::Rival(&**other))
            .collect()
    }

    fn check(&self, settings: &Settings) -> anyhow::Result<()> {
        let is_number = |number: &usize| (1..=1000).contains(number);
        let is_share = |percent: &f64| (0.0..=100.0).contains(percent);
        let is_log = |bytes: &u64| bytes.is_multiple_of(4096) && (4096..=1 << 30).contains(bytes);
        let has_many_logs = settings.log_bytes.len() > 1;
        let measure = self.figure.measure;
        let has_operations = matches!(
            measure,
            Measure::Operations | Measure::Patterns | Measure::Reclaiming | Measure::Recovery
        );
        let all = |numbers: &[usize]| numbers.iter().all(is_number);
        let is_length = (0.001..=3600.0).contains(&settings.seconds);
        let is_ground = |ground: &Ground| self.figure.grounds().contains(ground);
        let is_on_disk = settings.grounds.iter().any(|ground| ground.is_on_disk());
        for (what, is_right) in [
            (
                "--grounds: those of the figure; Bullet's, RDMP-KV's and most of Viper's have none, and c is for dstore-5, -7 and -8",
                settings.grounds.iter().all(is_ground),
            ),
            (
                "--grounds: b and c need a directory on a disk: --data-dir DIR",
                !is_on_disk || self.data_dir.is_some(),
            ),
            (
                "--data-dir: Bullet's, RDMP-KV's and most of Viper's figures have no use for a disk",
                self.data_dir.is_none() || !self.figure.grounds().is_empty(),
            ),
            (
                "--systems: rivals are measured on ground b alone, and nothing else was asked for",
                settings.grounds.contains(&Ground::Disk)
                    || settings.systems.iter().any(|system| !system.is_rival()),
            ),
            (
                "--systems: redis-always and redis-everysec are for ndhedis-4",
                measure == Measure::Servers || !settings.systems.iter().any(System::is_server),
            ),
            (
                "--systems, --grounds: nothing is left to measure; ground b needs --data-dir DIR, and dstore-1 has rivals alone there",
                settings.has_turns(),
            ),
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
            (
                "--writes: of Viper's figures viper-13 alone has shares",
                self.writes.is_empty() || !has_operations,
            ),
            ("--seconds: 0.001 to 3600", is_length),
            ("--rounds: 1 to 1000", is_number(&settings.rounds)),
            (
                "--rounds: bullet-7 and dstore-7 are one course of time",
                measure != Measure::Phases || settings.rounds == 1,
            ),
            (
                "--log-bytes: each a multiple of 4 KiB, 4 KiB to 1 GiB",
                settings.log_bytes.iter().all(is_log),
            ),
            (
                "--log-bytes: bullet-8 and dstore-1 alone take several",
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
    if let Some(dir) = &arguments.fill {
        figure::fill(&settings, dir, arguments.fill_beside.clone())?;
        return Ok(Outcome::Sound);
    }
    ensure_directory(&settings.dir)?;
    ensure_directory(&arguments.out)?;
    settings
        .data_dir
        .iter()
        .try_for_each(|dir| ensure_directory(dir))?;
    settings.ensure_possible()?;
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
    let mut tell = |done: f64, what: &str| shown.at((done * 1000.0) as u64, what);
    let measured = match settings.figure.wants_own_process() && settings.systems.len() > 1 {
        true => apart(&settings, &mut tell),
        false => figure::measure(&settings, &mut tell),
    };
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
    println!(
        "{}: {}\n{}\n",
        paint(Tone::Strong, &figure.name),
        figure.what,
        figure::note(measured),
    );
    let mut table = figure::table(measured);
    let common = table.take_common();
    if !common.is_empty() {
        println!("Of all lines: {common}. The page has all columns.\n");
    }
    print!("{}", table.text_within(LETTERS));
    if let Some(printed) = figure.printed() {
        println!(
            "\n{}",
            paint(Tone::Strong, "The paper's figures, of its machine")
        );
        print!("{}", printed.text_within(LETTERS));
    }
    print_verdicts("What the paper says", &figure::claims(measured), false);
    print_verdicts("Bars", &figure::bars(measured), true);
    for line in figure::left_out(measured) {
        println!("left out: {line}");
    }
}

/// The system of this name.
fn find(all: &[System], name: &str) -> anyhow::Result<System> {
    let mut named = all.iter().filter(|system| system.name() == name);
    named.next().copied().ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(System::name).collect();
        usage(format!(
            "system `{name}`: use one of {}; rivals are in a build with --features rivals, on ground b",
            names.join(", ")
        ))
    })
}

/// This program, to measure one system with otherwise the same settings.
fn this_program(settings: &Settings, system: System) -> anyhow::Result<Command> {
    fn list<T: ToString>(all: &[T]) -> String {
        let all: Vec<String> = all.iter().map(T::to_string).collect();
        all.join(",")
    }
    let program = std::env::current_exe().context("finding this program, to start it again")?;
    let mut command = Command::new(program);
    command.args(["bench", "figure", &settings.figure.name]);
    let mut say = |name: &str, value: OsString| {
        command.arg(name).arg(value);
    };
    say("--systems", system.name().into());
    say("--records", settings.records.to_string().into());
    say("--writes", list(&settings.writes).into());
    say("--seconds", settings.seconds.to_string().into());
    say("--rounds", settings.rounds.to_string().into());
    say("--log-bytes", list(&settings.log_bytes).into());
    say("--seed", settings.seed.to_string().into());
    say("--dir", settings.dir.clone().into());
    if let Some(dir) = &settings.data_dir {
        say("--data-dir", dir.clone().into());
    }
    Ok(command)
}

/// A process that fills the store of a curve, and waits to be killed.
fn filler(settings: &Settings, curve: &Curve<'_>, site: &Site) -> anyhow::Result<Command> {
    let mut command = this_program(settings, curve.system)?;
    if let Some(ground) = curve.ground {
        command.args(["--grounds", ground.name()]);
    }
    command.args(["--threads", &curve.workers().to_string()]);
    command.arg("--fill").arg(site.dir());
    if let Some(dir) = site.beside() {
        command.arg("--fill-beside").arg(dir);
    }
    Ok(command)
}

/// Measures each system on each ground in a process of its own, whose memory is that store's.
fn apart(settings: &Settings, tell: &mut dyn FnMut(f64, &str)) -> anyhow::Result<Vec<Row>> {
    let mut measured = Vec::new();
    let turns: Vec<(Ground, System)> = (settings.grounds.iter())
        .flat_map(|ground| settings.systems.iter().map(|system| (*ground, *system)))
        .filter(|(ground, system)| settings.is_on(*system, Some(*ground)))
        .collect();
    for (number, (ground, system)) in turns.iter().enumerate() {
        let what = format!("{}, ground {}", system.name(), ground.name().to_uppercase());
        tell(number as f64 / turns.len() as f64, &what);
        let out = everdram_bench::Place::within(Path::new(&std::env::temp_dir()))?;
        let threads = match ground.is_on_disk() {
            true => &settings.disk_threads,
            false => &settings.threads,
        };
        let threads = threads.iter().max().copied().unwrap_or(1);
        let turn = this_program(settings, *system)?
            .args(["--grounds", ground.name(), "--json", "--out"])
            .arg(out.path())
            .args(["--threads", &threads.to_string()])
            .output()
            .context("starting this program again")?;
        let says = String::from_utf8_lossy(&turn.stderr);
        ensure!(
            turn.status.success(),
            "{what}: {}: {}",
            turn.status,
            says.trim()
        );
        let rows = row::read(&String::from_utf8(turn.stdout)?)?;
        measured.extend(rows.into_iter().filter(|row| row.suite != row::LEFT_OUT));
    }
    measured.extend(settings.left_out_rows());
    Ok(measured)
}

pub(super) fn print_verdicts(title: &str, verdicts: &[Verdict], are_bars: bool) {
    if !verdicts.is_empty() {
        println!("\n{}", paint(Tone::Strong, title));
        print!(
            "{}",
            Verdict::table(verdicts, are_bars).text_within(LETTERS)
        );
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
        assert_eq!(names(&said), ["volatile", "+wrc"]);
        assert_eq!(said.log_bytes, [64 << 10, 1 << 20]);
        let proposed = parse("bullet-5").unwrap().settings().unwrap();
        assert_eq!(proposed.systems, proposed.figure.systems());
        assert_eq!(proposed.writes, [0.0, 2.0, 15.0, 50.0]);
    }

    fn names(settings: &Settings) -> Vec<&str> {
        settings.systems.iter().map(System::name).collect()
    }

    #[test]
    fn a_disk_adds_what_lies_on_it() {
        let proposed = |line| parse(line).unwrap().settings().unwrap();
        let without = proposed("dstore-8 --quick");
        assert_eq!(without.grounds, [Ground::Modelled]);
        assert_eq!(names(&without), ["inline", "+oe", "cow"]);
        let left_out = without.left_out();
        assert!(left_out[0].1.contains("--data-dir"), "{left_out:?}");
        let with = proposed("dstore-8 --quick --data-dir .");
        assert_eq!(with.grounds, without.figure.grounds());
        assert_eq!(with.disk_threads, [8]);
        let has_rivals = with.systems.iter().any(System::is_rival);
        assert_eq!(has_rivals, cfg!(feature = "rivals"));
        let first = names(&proposed("dstore-1 --data-dir .")).join(" ");
        let both = ["+oe cow", "+oe cow rocksdb rocksdb-pm"];
        assert_eq!(first, both[usize::from(has_rivals)]);
        let says = |what| with.left_out().iter().any(|(left, _)| left == what);
        assert_eq!(says("rivals"), !has_rivals);
        let said = proposed("dstore-1 --systems cow --threads 3 --log-bytes 64KiB,1MiB");
        assert_eq!(
            (said.threads, said.log_bytes),
            (vec![3], vec![64 << 10, 1 << 20])
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "",
            "bullet-4",
            "dstore-8 --grounds d",
            "bullet-5 --threads x",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        for line in [
            "bullet-5 --systems redis",
            "bullet-5 --systems +oe",
            "bullet-5 --grounds a",
            "bullet-5 --data-dir .",
            "dstore-8 --systems +wrc",
            "dstore-8 --grounds b",
            "dstore-1 --grounds b --data-dir . --systems +oe",
            "dstore-6 --grounds b --data-dir .",
            "dstore-7 --rounds 2",
            "dstore-8 --log-bytes 1MiB,4MiB",
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
            "viper-1 --data-dir .",
            "viper-6 --writes 50",
            "viper-6 --grounds c --data-dir .",
            "viper-6 --grounds b --data-dir . --systems viper-fixed",
            "viper-13 --systems +oe",
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
        for figure in figures {
            // With what it shows behind it.
            let listed = help.lines().any(|line| {
                let mut words = line.split_whitespace();
                words.next() == Some(&*figure.name) && words.next().is_some()
            });
            assert!(listed, "{}", figure.name);
            for system in figure.systems() {
                let mut words = help.split(|c: char| c.is_whitespace() || ",;:".contains(c));
                assert!(words.any(|word| word == system.name()), "{system:?}");
            }
        }
    }
}
