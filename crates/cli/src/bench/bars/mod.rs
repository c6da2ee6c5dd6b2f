//! `everdram bench bars`: what an engine is to reach, and whether it does. For `viper` everdram's operations
//! as shares of the machine's limits.

mod bullet;
mod dstore;
mod fabric;
mod tiered;

use super::store::{Store, ensure_directory};
use super::{recovery, rows};
use crate::settings::{engine, usage};
use crate::terminal::Progress;
use crate::{Outcome, units};
use anyhow::Context;
use everdram::EngineKind;
use everdram_bench::bars::{self, Group, Host, Settings};
use everdram_bench::{Error, Recovery, Verdict};
use serde::Serialize;
use std::path::PathBuf;
use std::str::FromStr;

/// everdram against this machine's limits.
#[derive(clap::Args)]
#[command(
    long_about = "Measures everdram on emulated persistent memory and, in turns with it, the bare loops that do the \
                  same without a store; prints each operation as a share of its loop, and whether that reaches the \
                  bar. Shares are of processor time; by the clock stands beside it. These are the bars of the engine viper: \
                  its records lie where the loops put theirs.\n\n\
                  With --engine bullet: that engine's bars, which are shares of other systems of its paper, as `everdram \
                  bench figure bullet-5` and `bullet-6` measure them (records of 16 + 100 bytes), and its restart after \
                  a kill.\n\n\
                  With --engine dstore: puts and gets of 4 KiB against bare writes and reads of as much on the same \
                  media, its slowest puts with and without checkpoints, throughput from moment to moment, restarts, \
                  bytes an object, values of 64 KiB against the engine viper and against Redis. Percentiles and rates \
                  leave out what waited for a core. The bars hold for a quiet machine: `modelled` ones spin for a disk \
                  that is not there, and want a core more for the checkpoint.\n\n\
                  With --engine tiered: its calls where everything fits the pool against the engine viper; with four times \
                  as many records as the pool holds, how often the pool has what is asked for, against exact LRU and \
                  Belady's choice over the same trace; gets from the log; bytes to the log; moves of records; its slowest \
                  puts; a flood of puts against bare writes to the disk; its restart after a kill, against viper and \
                  against a redis-server that loads the same keys from its append-only files; DRAM a key.\n\n\
                  With --door fabric: the fabric door against the Redis door of the same server, over loopback, and against \
                  the same messages, writes and reads of libfabric without a store; what idle clients take; GET with a \
                  landing area and without; and the server's time of puts of 64 KiB by way, on an emulated network, as `everdram bench figure rdmp-7` measures it.\n\n\
                  viper needs memory for the records several times over: 5M take some 6 GiB, the group `large` 12 GiB. \
                  dstore takes half of the free memory and of the free disk, at most.\n\n\
                  Examples:\n  \
                  everdram bench bars --only put,get --records 2M\n  \
                  everdram bench bars --engine bullet --quick\n  \
                  everdram bench bars --engine dstore --only put,get --file-dir /mnt/disk\n  \
                  everdram bench bars --door fabric --quick"
)]
pub(crate) struct Arguments {
    /// A directory on the medium: on tmpfs for emulated persistent memory.
    #[arg(long, default_value = "/dev/shm")]
    pub(super) dir: PathBuf,
    /// The engine whose bars are measured.
    #[arg(long, default_value_t, value_parser = engine())]
    engine: EngineKind,
    /// A door whose bars are measured, in the place of an engine's.
    #[arg(long, conflicts_with = "engine")]
    door: Option<Door>,
    /// dstore, tiered: a directory on a disk [default: .]
    #[arg(long)]
    pub(super) file_dir: Option<PathBuf>,
    /// Records of 16 + 200 bytes [default: 5M; 500k with --quick; bullet: what fits into half of the free
    /// memory; dstore: 2M of 16 + 4096 bytes, 100k with --quick, fewer where there is less room; tiered: 2M,
    /// 200k with --quick; fabric: 200k, 20k with --quick]
    #[arg(long, value_parser = units::parse_count)]
    pub(super) records: Option<u64>,
    /// viper, tiered: operations of a repetition that does not go over all records [default: 1M; 300k with
    /// --quick]
    #[arg(long, value_parser = units::parse_count)]
    pub(super) ops: Option<u64>,
    /// bullet, dstore, tiered, fabric: seconds of each point in each repetition [default: 2, others 3; 0.5
    /// with --quick]; dstore watches throughput 20 times as long, 6 times with --quick
    #[arg(long)]
    pub(super) seconds: Option<f64>,
    /// Repetitions.
    #[arg(long, default_value_t = 3)]
    pub(super) repeat: usize,
    /// Seed of all choices.
    #[arg(long, default_value_t = 42)]
    pub(super) seed: u64,
    /// Groups to measure, of viper: put, overwrite, get, absent, update, delete, ycsb, batch, sizes, threads,
    /// large, space, recovery, tail; of dstore: put, checkpoints, cow, steady, threads, get, cold, cpu,
    /// traffic, recovery, space, large, server, range; of tiered: memory, fits, hits, below, written, moves,
    /// tail, flood, restart; of the fabric door: put, bare, idle, resp, inside [default: all]
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Fewer records and operations, for a first look.
    #[arg(long)]
    pub(super) quick: bool,
    /// Write each bar as a JSON line to this file as well.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A door that has bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Door {
    Fabric,
}

/// Progress on the terminal, and the process that dies.
struct Watcher {
    shown: Progress,
    done: u64,
    dir: PathBuf,
    seed: u64,
}

impl Host for Watcher {
    fn begin(&mut self, group: Group, what: &str) {
        self.done += 1;
        self.shown.at(self.done, &format!("{group}: {what}"));
    }

    fn crash(&mut self, records: u64, checkpoint: bool) -> Result<Recovery, Error> {
        recovery::measure(&Store {
            // To make the pool's pages present takes longer than a restart.
            grow: checkpoint,
            no_checkpoint: !checkpoint,
            ..Store::new("everdram", EngineKind::Viper, &self.dir, records, self.seed)
        })
    }
}

/// Whether there is enough to be measured, and it ends.
fn ensure_bounds(records: u64, repeat: usize, seconds: f64) -> anyhow::Result<()> {
    if records < 100 || repeat == 0 || !(0.001..=3600.0).contains(&seconds) {
        return Err(usage(
            "--records: at least 100; --repeat: at least 1; --seconds: 0.001 to 3600",
        ));
    }
    Ok(())
}

impl Arguments {
    /// The groups that are asked for, of these.
    pub(super) fn groups<G: Copy + FromStr<Err = String>>(
        &self,
        all: &[G],
    ) -> anyhow::Result<Vec<G>> {
        if self.only.is_empty() {
            return Ok(all.to_vec());
        }
        let named = self.only.iter().map(|name| name.parse().map_err(usage));
        named.collect()
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let (records, operations) = if self.quick {
            (500_000, 300_000)
        } else {
            (5_000_000, 1_000_000)
        };
        let records = self.records.unwrap_or(records);
        let operations = self.ops.unwrap_or(operations);
        if self.seconds.is_some() {
            return Err(usage(
                "--seconds: only with --engine bullet, dstore or tiered",
            ));
        }
        if self.file_dir.is_some() {
            return Err(usage("--file-dir: only with --engine dstore or tiered"));
        }
        if records < 100 || operations < 100 || self.repeat == 0 {
            return Err(usage(
                "--records and --ops: at least 100; --repeat: at least 1",
            ));
        }
        Ok(Settings {
            dir: self.dir.clone(),
            records,
            operations,
            repeat: self.repeat,
            seed: self.seed,
            groups: self.groups(&Group::ALL)?,
        })
    }

    /// What the bars of the engine `bullet` do not allow.
    fn check_bullet(&self) -> anyhow::Result<()> {
        if !self.only.is_empty() || self.ops.is_some() || self.file_dir.is_some() {
            return Err(usage(
                "--only, --ops and --file-dir: not with --engine bullet",
            ));
        }
        let seconds = self.seconds.unwrap_or(1.0);
        if self.records.is_some_and(|records| records < 100)
            || self.repeat == 0
            || !(0.001..=3600.0).contains(&seconds)
        {
            return Err(usage(
                "--records: at least 100; --repeat: at least 1; --seconds: 0.001 to 3600",
            ));
        }
        Ok(())
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    if let Some(Door::Fabric) = arguments.door {
        return write_of(arguments, "fabric", &fabric::measure(arguments)?);
    }
    match arguments.engine {
        EngineKind::Bullet => {
            arguments.check_bullet()?;
            ensure_directory(&arguments.dir)?;
            return write(arguments, &bullet::measure(arguments)?);
        }
        EngineKind::Dstore => return write(arguments, &dstore::measure(arguments)?),
        EngineKind::Tiered => return write(arguments, &tiered::measure(arguments)?),
        _ => {}
    }
    let settings = arguments.settings()?;
    ensure_directory(&settings.dir)?;
    let mut watcher = Watcher {
        shown: Progress::start("bars", 0, false),
        done: 0,
        dir: settings.dir.clone(),
        seed: settings.seed,
    };
    let measured = bars::measure(&settings, &mut watcher);
    watcher.shown.finish();
    let measured = measured.with_context(|| format!("seed {}", settings.seed))?;
    println!(
        "everdram {}, engine viper, on emulated persistent memory in {}: {} records of 16 + 200 bytes, medians of {} repetitions\n",
        env!("CARGO_PKG_VERSION"),
        settings.dir.display(),
        units::count(settings.records),
        settings.repeat,
    );
    print!(
        "{}",
        Verdict::table_of_numbers(&measured.bars).text(usize::MAX)
    );
    for skipped in &measured.skipped {
        println!("  {} was not measured: {}", skipped.group, skipped.why);
    }
    write(arguments, &measured.bars)
}

/// Bars as rows.
fn write(arguments: &Arguments, bars: &[Verdict]) -> anyhow::Result<Outcome> {
    write_of(arguments, arguments.engine.name(), bars)
}

fn write_of(
    arguments: &Arguments,
    engine: &'static str,
    bars: &[Verdict],
) -> anyhow::Result<Outcome> {
    let rows = bars.iter().map(|bar| OfEngine { engine, bar });
    rows::write(arguments.json.as_deref(), &rows::lines(rows)?)?;
    Ok(Outcome::Sound)
}

/// A bar as a row.
#[derive(Serialize)]
struct OfEngine<'a> {
    engine: &'static str,
    #[serde(flatten)]
    bar: &'a Verdict,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn groups_are_chosen_by_name() {
        let parse = |line: &str| {
            Line::try_parse_from(std::iter::once("bars").chain(line.split_whitespace()))
                .map(|line| line.arguments)
        };
        let some = parse("--only put,ycsb --records 2M").unwrap().settings();
        let some = some.unwrap();
        assert_eq!(some.groups, [Group::Put, Group::Ycsb]);
        assert_eq!(some.records, 2_000_000);
        assert_eq!(
            parse("--quick").unwrap().settings().unwrap().groups,
            Group::ALL
        );
        assert!(parse("--only nothing").unwrap().settings().is_err());
        assert!(parse("--file-dir .").unwrap().settings().is_err());
        assert!(parse("--records 1").unwrap().settings().is_err());
    }

    /// The help names every group.
    #[test]
    fn help_tells_all_groups() {
        use clap::CommandFactory;
        let help = Line::command().render_long_help().to_string();
        for group in Group::ALL {
            assert!(help.contains(group.name()), "{group}");
        }
    }
}
