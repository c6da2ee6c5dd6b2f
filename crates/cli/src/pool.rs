//! Opens a pool for a command: shows the progress of recovery, and prints the report.

use crate::terminal::{Progress, row};
use crate::units;
use everdram::options::Create;
use everdram::stats::{CheckReport, Report};
use everdram::{Options, Store};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Opens the pool at `path` with `options`, showing the progress of recovery unless `quiet`.
pub(crate) fn open(path: &Path, mut options: Options, quiet: bool) -> anyhow::Result<Store> {
    let (progress, hear) = recovery(quiet);
    options.progress = Some(hear);
    let store = Store::open(path, &options);
    progress.finish();
    Ok(store?)
}

/// Verifies the pool at `path`, with whichever engine it has. Returns the engine's name and the report. Shows
/// the progress of recovery unless `quiet`.
pub(crate) fn check(path: &Path, quiet: bool) -> anyhow::Result<(&'static str, CheckReport)> {
    let (progress, hear) = recovery(quiet);
    let checked = everdram::inspect::check(path, Some(hear));
    progress.finish();
    Ok(checked?)
}

/// The progress of recovery, and the callback that updates it.
fn recovery(quiet: bool) -> (Arc<Progress>, everdram::options::Progress) {
    let progress = Arc::new(Progress::start("recovery", 100, quiet));
    let shown = Arc::clone(&progress);
    let hear = move |done: u64, total: u64| {
        let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100);
        let words = format!("{} of {} blocks", units::count(done), units::count(total));
        shown.at(percent, &words);
    };
    (progress, Arc::new(hear))
}

/// Opens an existing pool for reading and changes nothing of it. With `salvage`, opens whatever of it
/// verifies.
pub(crate) fn open_existing(path: &Path, salvage: bool, quiet: bool) -> anyhow::Result<Store> {
    let mut options = Options::default();
    options.create = Create::Never;
    options.read_only = true;
    options.salvage = salvage;
    options.reclaim_background = false;
    open(path, options, quiet)
}

/// Prints the report as rows of a table.
pub(crate) fn print_report(report: &Report) {
    row("medium", format_args!("{}: {}", report.medium, report.why));
    row("persists by", &report.persist);
    row("durability", report.durability);
    row(
        "latency",
        format_args!(
            "{} for one small durable write",
            units::time(report.latency)
        ),
    );
    if let Some(delay) = &report.delay {
        row("delay model", delay);
    }
    if let Some(data) = &report.data {
        row("data file", data.display());
    }
    if let Some(delay) = &report.data_delay {
        row("data delay", delay);
    }
    row("an answer means", &report.acknowledgement);
}

/// The report as JSON.
pub(crate) fn report_json(report: &Report) -> Value {
    json!({
        "medium": report.medium.to_string(),
        "why": report.why,
        "persist": report.persist,
        "durability": report.durability.to_string(),
        "latency_ns": u64::try_from(report.latency.as_nanos()).unwrap_or(u64::MAX),
        "acknowledgement": report.acknowledgement,
        "delay": report.delay,
        "data": report.data,
        "data_delay": report.data_delay,
    })
}
