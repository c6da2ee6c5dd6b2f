//! The bars of the engine `tiered`: against `viper`, caches that know more, bare writes to the disk, and
//! Redis.

use super::Arguments;
use crate::bench::store::{Store, ensure_directory};
use crate::settings::usage;
use crate::terminal::Progress;
use crate::units;
use anyhow::Context;
use everdram::EngineKind;
use everdram_bench::bars::tiered::{self, Fill, Group, Host, Settings};
use everdram_bench::{Error, Machine, Verdict};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Progress on the terminal, and the processes.
struct Watcher {
    shown: Progress,
    done: u64,
    seed: u64,
}

impl Host for Watcher {
    fn begin(&mut self, group: Group, what: &str) {
        self.done += 1;
        self.shown.at(self.done, &format!("{group}: {what}"));
    }

    fn filler(&self, fill: &Fill<'_>, dir: &Path) -> Result<Command, Error> {
        let engine = match fill.tiers {
            Some(_) => EngineKind::Tiered,
            None => EngineKind::Viper,
        };
        let store = Store {
            grow: true,
            max_bytes: fill.tiers.map(|(bytes, _)| bytes),
            below: fill.tiers.map(|(_, below)| below.to_owned()),
            ..Store::new("everdram", engine, dir, fill.records, self.seed)
        };
        let mut filler = Command::new(self.program()?);
        filler.args(["bench", "fill"]).args(store.arguments(dir));
        Ok(filler)
    }

    fn program(&self) -> Result<PathBuf, Error> {
        std::env::current_exe().context("finding this program")
    }
}

/// Measures and prints; returns the bars.
///
/// # Errors
/// What the stores say.
pub(super) fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Verdict>> {
    let settings = settings(arguments)?;
    ensure_directory(&settings.dir)?;
    ensure_directory(&settings.file_dir)?;
    let mut watcher = Watcher {
        shown: Progress::start("bars", 0, false),
        done: 0,
        seed: settings.seed,
    };
    let measured = tiered::measure(&settings, &mut watcher);
    watcher.shown.finish();
    let measured = measured.with_context(|| format!("seed {}", settings.seed))?;
    println!(
        "everdram {}, engine tiered, {} records of 16 + 200 bytes, medians of {} repetitions: emulated persistent memory \
         in {}, the log in {}, {}\n",
        env!("CARGO_PKG_VERSION"),
        units::count(settings.records),
        settings.repeat,
        settings.dir.display(),
        settings.file_dir.display(),
        Machine::here(&settings.file_dir).filesystem,
    );
    print!(
        "{}",
        Verdict::table_of_numbers(&measured.bars).text(usize::MAX)
    );
    for (group, why) in &measured.skipped {
        println!("  {group} is incomplete: {why}");
    }
    Ok(measured.bars)
}

fn settings(arguments: &Arguments) -> anyhow::Result<Settings> {
    let (records, operations, seconds) = match arguments.quick {
        true => (200_000, 300_000, 0.5),
        false => (2_000_000, 1_000_000, 3.0),
    };
    let settings = Settings {
        dir: arguments.dir.clone(),
        file_dir: arguments.file_dir.clone().unwrap_or_else(|| ".".into()),
        records: arguments.records.unwrap_or(records),
        operations: arguments.ops.unwrap_or(operations),
        repeat: arguments.repeat,
        seconds: arguments.seconds.unwrap_or(seconds),
        seed: arguments.seed,
        groups: arguments.groups(&Group::ALL)?,
    };
    // Fewer would leave a pool of so few blocks that eviction has no choice.
    if settings.records < 20_000
        || settings.operations < 100
        || settings.repeat == 0
        || !(0.001..=3600.0).contains(&settings.seconds)
    {
        return Err(usage(
            "--records: at least 20k; --ops: at least 100; --repeat: at least 1; --seconds: 0.001 to 3600",
        ));
    }
    Ok(settings)
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

    fn settings(line: &str) -> anyhow::Result<Settings> {
        let words = std::iter::once("bars").chain(line.split_whitespace());
        super::settings(&Line::try_parse_from(words).unwrap().arguments)
    }

    #[test]
    fn groups_and_lengths_are_chosen() {
        let all = settings("--engine tiered --quick").unwrap();
        assert_eq!(all.groups, Group::ALL);
        assert_eq!((all.records, all.seconds), (200_000, 0.5));
        let some = settings("--only tail,hits --records 3M --seconds 6").unwrap();
        assert_eq!(some.groups, [Group::Tail, Group::Hits]);
        assert_eq!(some.records, 3_000_000);
        for nonsense in ["--only ycsb", "--ops 1", "--seconds 0", "--records 1"] {
            assert!(settings(nonsense).is_err(), "{nonsense}");
        }
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
