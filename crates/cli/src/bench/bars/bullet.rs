//! The bars of the engine `bullet`: shares of its paper's systems, measured as figures 5 and 6 are, and how
//! soon it is back after a kill.

use super::Arguments;
use crate::bench::figure::print_verdicts;
use crate::bench::recovery;
use crate::bench::store::Store;
use crate::terminal::Progress;
use crate::units;
use anyhow::Context;
use everdram::EngineKind;
use everdram::options::BulletSystem;
use everdram_bench::figure::{self, Figure, Settings, System};
use everdram_bench::{Compared, Sizes, Verdict};

/// Seconds from a kill to the first answer, at most.
const RESTART_SECONDS: f64 = 1.0;

/// Measures and prints; returns the bars.
///
/// # Errors
/// What the stores say, or that there is no room for them.
pub(super) fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Verdict>> {
    use BulletSystem::{HikvHt, Volatile, Wrc};
    let parts = [
        settings(arguments, "bullet-5", &[Volatile, HikvHt, Wrc])?,
        settings(arguments, "bullet-6", &[Volatile, Wrc])?,
    ];
    let records = parts[0].records;
    let shown = Progress::start("bars", 1000, false);
    let mut verdicts = Vec::new();
    for (settings, share) in parts.iter().zip([[0.0, 0.7], [0.7, 0.2]]) {
        settings.ensure_possible()?;
        let rows = figure::measure(settings, &mut |done, what| {
            shown.at(((share[0] + done * share[1]) * 1000.0) as u64, what);
        });
        let rows = rows.with_context(|| settings.figure.name.clone())?;
        verdicts.extend(figure::bars(&rows));
    }
    shown.at(950, "crash");
    verdicts.push(restart(arguments, records)?);
    shown.finish();
    println!(
        "everdram {}, engine bullet, on emulated persistent memory in {}, delays `bullet`: {} records of 16 + 100 bytes, \
         {} workers, {} rounds of {} s; shares are of another system of the same run",
        env!("CARGO_PKG_VERSION"),
        arguments.dir.display(),
        units::count(records),
        parts[0].threads[0],
        parts[0].rounds,
        parts[0].seconds,
    );
    print_verdicts("Bars", &verdicts, true);
    Ok(verdicts)
}

fn settings(
    arguments: &Arguments,
    figure: &str,
    systems: &[BulletSystem],
) -> anyhow::Result<Settings> {
    let figure = Figure::find(figure).map_err(anyhow::Error::msg)?;
    let mut settings = Settings::here(figure, arguments.quick, &arguments.dir, None);
    settings.systems = systems.iter().copied().map(System::Bullet).collect();
    // As many as there are cores: the bars are about the most that the machine gives.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    settings.threads = vec![cores.max(2)];
    settings.records = arguments.records.unwrap_or(settings.records);
    settings.seconds = arguments.seconds.unwrap_or(settings.seconds);
    settings.rounds = arguments.repeat;
    settings.seed = arguments.seed;
    Ok(settings)
}

fn restart(arguments: &Arguments, records: u64) -> anyhow::Result<Verdict> {
    let recovery = recovery::measure(&Store {
        values: Sizes::Fixed(100),
        // To make the pool's pages present takes longer than a restart.
        grow: true,
        no_checkpoint: true,
        ..Store::new(
            "everdram",
            EngineKind::Bullet,
            &arguments.dir,
            records,
            arguments.seed,
        )
    })?;
    let seconds = recovery.wall.as_secs_f64();
    let says = "restart after a kill: the first answer within a second (set for 20M records)";
    let measured = vec![Compared::new("seconds", seconds)];
    Ok(Verdict::new(
        ("bar", says),
        measured,
        (0.0, Some(RESTART_SECONDS)),
        true,
    ))
}
