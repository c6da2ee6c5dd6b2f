//! The bars of the fabric door: against the Redis door over loopback, and against HERD on a modelled network,
//! as the figures of RDMP-KV measure it.

use super::{Arguments, ensure_bounds};
use crate::bench::store::ensure_directory;
use crate::settings::usage;
use crate::terminal::Progress;
use crate::units;
use anyhow::Context;
use everdram_bench::bars::fabric::{self, Group, Settings};
use everdram_bench::figure::{self, Figure};
use everdram_bench::{Metric, Verdict};

/// The group of the modelled network, beside those of [`Group`].
const INSIDE: &str = "inside";
/// Its figure, and the bytes of the values that its bars are about.
const FIGURE: &str = "rdmp-7";
const VALUE_BYTES: usize = 64 << 10;
/// Its systems; the first is also the one of short values.
const SYSTEMS: [&str; 3] = ["herd", "rdmp-sa", "rdmp-cc-sa"];

/// Measures and prints; returns the bars.
///
/// # Errors
/// What servers, clients and stores say.
pub(super) fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Verdict>> {
    let settings = settings(arguments)?;
    ensure_directory(&settings.dir)?;
    let shown = Progress::start("bars", 0, false);
    let mut done = 0;
    let measured = fabric::measure(&settings, &mut |group| {
        done += 1;
        shown.at(done, &format!("{group}: {}", group.what()));
    });
    let inside = has(arguments, INSIDE).then(|| inside(arguments, &settings, &shown));
    shown.finish();
    let mut measured = measured.with_context(|| format!("seed {}", settings.seed))?;
    measured
        .bars
        .extend(inside.transpose()?.unwrap_or_default());
    println!(
        "everdram {}, fabric door, engine viper on emulated persistent memory in {}: {} keys, values of 200 bytes over \
         loopback (libfabric's tcp) and a modelled network, and of 64 KiB, {} repetitions of {} s",
        env!("CARGO_PKG_VERSION"),
        settings.dir.display(),
        units::count(settings.records),
        settings.repeat,
        settings.seconds,
    );
    print!(
        "\n{}",
        Verdict::table_of_numbers(&measured.bars).text(usize::MAX)
    );
    for (group, why) in &measured.skipped {
        println!("  {group} was not measured: {why}");
    }
    Ok(measured.bars)
}

fn inside(
    arguments: &Arguments,
    beside: &Settings,
    shown: &Progress,
) -> anyhow::Result<Vec<Verdict>> {
    let figure = Figure::find(FIGURE).map_err(anyhow::Error::msg)?;
    let measure = |systems: &[&str], value_bytes, records: Option<u64>| {
        let mut settings = figure::Settings::here(figure, arguments.quick, &arguments.dir, None);
        settings.values = vec![value_bytes];
        settings.records = records.unwrap_or(settings.records);
        settings
            .systems
            .retain(|system| systems.contains(&system.name()));
        settings.rounds = arguments.repeat;
        settings.seed = arguments.seed;
        settings.ensure_possible()?;
        let rows = figure::measure(&settings, &mut |_, what| shown.at(1, what));
        rows.with_context(|| FIGURE.to_owned())
    };
    let mut bars = figure::bars(&measure(&SYSTEMS, VALUE_BYTES, None)?);
    let records = Some(beside.records);
    let short = measure(&SYSTEMS[..1], fabric::SHORT_VALUE_BYTES, records)?;
    let mut worked = short.iter().map(|row| row.rounds(Metric::ServerNs));
    let worked = worked.rfind(|rounds| !rounds.is_empty());
    let worked = worked.context("a figure of puts without the server's time")?;
    bars.push(fabric::put_over_adapters(beside, worked)?);
    Ok(bars)
}

fn has(arguments: &Arguments, group: &str) -> bool {
    arguments.only.is_empty() || arguments.only.iter().any(|name| name == group)
}

fn settings(arguments: &Arguments) -> anyhow::Result<Settings> {
    let (records, seconds) = match arguments.quick {
        true => (20_000, 0.5),
        false => (200_000, 3.0),
    };
    let is_other = |name: &&String| *name != INSIDE;
    let named = arguments.only.iter().filter(is_other);
    let named: Vec<Group> = named
        .map(|name| name.parse().map_err(usage))
        .collect::<anyhow::Result<_>>()?;
    let settings = Settings {
        dir: std::path::absolute(&arguments.dir)?,
        program: std::env::current_exe().context("finding this program")?,
        records: arguments.records.unwrap_or(records),
        repeat: arguments.repeat,
        seconds: arguments.seconds.unwrap_or(seconds),
        seed: arguments.seed,
        groups: match arguments.only.is_empty() {
            true => Group::ALL.to_vec(),
            false => named,
        },
    };
    if arguments.ops.is_some() || arguments.file_dir.is_some() {
        return Err(usage("--ops and --file-dir: not with --door fabric"));
    }
    ensure_bounds(settings.records, settings.repeat, settings.seconds)?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parsed(line: &str) -> Arguments {
        let words = std::iter::once("bars").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().arguments
    }

    #[test]
    fn groups_and_lengths_are_chosen() {
        let all = settings(&parsed("--door fabric --quick")).unwrap();
        assert_eq!(all.groups, Group::ALL);
        assert_eq!((all.records, all.seconds), (20_000, 0.5));
        let some = parsed("--door fabric --only inside,idle --seconds 2");
        assert_eq!(settings(&some).unwrap().groups, [Group::Idle]);
        assert!(has(&some, INSIDE) && !has(&parsed("--only idle"), INSIDE));
        for nonsense in ["--only ycsb", "--ops 1", "--seconds 0", "--file-dir ."] {
            assert!(settings(&parsed(nonsense)).is_err(), "{nonsense}");
        }
    }

    /// The help names every group, and the figure has the systems that bars are about.
    #[test]
    fn groups_are_told_and_systems_are_there() {
        let help = Line::command().render_long_help().to_string();
        for group in Group::ALL.map(Group::name).into_iter().chain([INSIDE]) {
            assert!(help.contains(group), "{group}");
        }
        let systems = Figure::find(FIGURE).unwrap().systems();
        for name in SYSTEMS {
            assert!(systems.iter().any(|system| system.name() == name), "{name}");
        }
    }
}
