//! The bars of the engine `dstore`: against bare loops on the same media, other settings of itself, `viper`
//! and Redis, and how soon it is back after a kill.

use super::{Arguments, ensure_bounds};
use crate::bench::recovery;
use crate::bench::store::{Store, ensure_directory};
use crate::settings::usage;
use crate::terminal::Progress;
use crate::units;
use anyhow::Context;
use everdram::EngineKind;
use everdram_bench::bars::dstore::{self, Crash, Group, Host, Settings};
use everdram_bench::limits::data::{BLOCK_BYTES, DELAYS};
use everdram_bench::{Error, Machine, Recovery, Sizes, Verdict};
use std::path::{Path, PathBuf};

/// Progress on the terminal, and the processes.
struct Watcher<'a> {
    shown: Progress,
    done: u64,
    dir: &'a Path,
    seed: u64,
}

impl Host for Watcher<'_> {
    fn begin(&mut self, group: Group, what: &str) {
        self.done += 1;
        self.shown.at(self.done, &format!("{group}: {what}"));
    }

    fn crash(&mut self, crash: &Crash) -> Result<Recovery, Error> {
        recovery::measure(&Store {
            values: Sizes::Fixed(BLOCK_BYTES),
            grow: true,
            delay: Some(crash.delay.into()),
            log_bytes: Some(crash.log_bytes),
            logged_bytes: Some(crash.logged_bytes),
            ..Store::new(
                "everdram",
                EngineKind::Dstore,
                self.dir,
                crash.records,
                self.seed,
            )
        })
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
        dir: &settings.dir,
        seed: settings.seed,
    };
    let measured = dstore::measure(&settings, &mut watcher);
    watcher.shown.finish();
    let measured = measured.with_context(|| format!("seed {}", settings.seed))?;
    let (memory, disk) = (settings.dir.display(), settings.file_dir.display());
    println!(
        "everdram {}, engine dstore, up to {} objects of 16 + 4096 bytes, {} repetitions of {} s\n\
         modelled: emulated persistent memory and data file in {memory}, with the delays {} and {}\n\
         memory: the same without delays; disk: the data file in {disk}; files: all in {disk}, {}\n",
        env!("CARGO_PKG_VERSION"),
        units::count(settings.records),
        settings.repeat,
        settings.seconds,
        DELAYS.0,
        DELAYS.1,
        Machine::here(&settings.file_dir).filesystem,
    );
    print!(
        "{}",
        Verdict::table_of_numbers(&measured.bars).text(usize::MAX)
    );
    for (group, why) in &measured.skipped {
        println!("  {group} was not measured: {why}");
    }
    if measured.bars.iter().any(|bar| bar.holds.is_none()) {
        println!("  not measured: with too few calls or checkpoints; take more --seconds");
    }
    let waits = measured.waited.iter();
    let waits: Vec<_> = waits
        .map(|(group, share)| format!("{group} {:.1} %", share * 100.0))
        .collect();
    println!("\nWithout a core, at most: {}", waits.join(", "));
    Ok(measured.bars)
}

fn settings(arguments: &Arguments) -> anyhow::Result<Settings> {
    let (records, seconds, course) = match arguments.quick {
        true => (100_000, 0.5, 3.0),
        false => (2_000_000, 3.0, 60.0),
    };
    let settings = Settings {
        dir: arguments.dir.clone(),
        file_dir: arguments.file_dir.clone().unwrap_or_else(|| ".".into()),
        records: arguments.records.unwrap_or(records),
        repeat: arguments.repeat,
        seconds: arguments.seconds.unwrap_or(seconds),
        // As many times longer as it usually is.
        course_seconds: arguments
            .seconds
            .map_or(course, |said| said * course / seconds),
        seed: arguments.seed,
        groups: arguments.groups(&Group::ALL)?,
    };
    ensure_bounds(settings.records, settings.repeat, settings.seconds)?;
    if arguments.ops.is_some() {
        return Err(usage("--ops: not with --engine dstore; give --seconds"));
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
        let all = settings("--engine dstore --quick").unwrap();
        assert_eq!(all.groups, Group::ALL);
        assert_eq!((all.seconds, all.course_seconds), (0.5, 3.0));
        let some = settings("--only cold,put --records 2M --seconds 6").unwrap();
        assert_eq!(some.groups, [Group::Cold, Group::Put]);
        assert_eq!((some.records, some.course_seconds), (2_000_000, 120.0));
        for nonsense in ["--only ycsb", "--ops 1k", "--seconds 0", "--records 1"] {
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
