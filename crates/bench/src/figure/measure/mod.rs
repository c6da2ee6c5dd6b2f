//! A figure, system by system and round by round. What takes more than some lines to measure has a file.

mod clients;
mod fabric;
mod footprint;
mod growth;
pub(super) mod operations;
mod overhead;
pub(super) mod patterns;
mod phases;
mod reclaiming;
mod recovery;
mod restart;
mod servers;
pub(super) mod steps;
mod summary;
mod tails;

pub use restart::fill;

use crate::figure::Measure;
use crate::figure::jobs::{self, Asking, KINDS};
use crate::figure::progress::Progress;
use crate::figure::settings::Settings;
use crate::figure::store::{Data, For};
use crate::figure::stream::Writes;
use crate::figure::workers::Workers;
use crate::latency::{ALL, add_percentiles, histogram};
use crate::row::{Metric, Row, merged};
use crate::subject::{Error, Subject};
use anyhow::ensure;
use hdrhistogram::Histogram;
use phases::phases;
use tails::Calls;

/// Shares of the calls at which a distribution is told; beyond the last step, the tail.
const STEPS: u32 = 50;
const TAIL: [f64; 4] = [0.99, 0.995, 0.999, 0.9999];

/// Measures a figure, telling `tell` how far it is (0 to 1) and what comes.
///
/// # Errors
/// No room, or what a store says; a wrong answer of it is an error, too.
pub fn measure(settings: &Settings, tell: &mut dyn FnMut(f64, &str)) -> Result<Vec<Row>, Error> {
    settings.ensure_possible()?;
    let curves = settings.curves();
    let Some(first) = curves.first().filter(|_| settings.points() > 0) else {
        anyhow::bail!("nothing to measure: {settings:?}");
    };
    let mut progress = Progress::new(settings, *first, tell);
    let mut rows = Vec::new();
    let mut calls: Vec<[Histogram<u64>; 2]> = Vec::new();
    calls.resize_with(curves.len(), || [histogram(), histogram()]);
    let mut data = Data::new(settings, first);
    for round in 0..settings.rounds {
        for (curve, calls) in curves.iter().zip(&mut calls) {
            if !data.is_for(curve) {
                data = Data::new(settings, curve);
            }
            progress.step(round, *curve);
            rows.extend(turn(&data, &mut progress, calls)?);
        }
    }
    let mut rows = merged(rows);
    for (curve, calls) in curves.iter().zip(&calls) {
        for (kind, calls) in KINDS.into_iter().zip(calls) {
            let same = |row: &&mut Row| row.subject == curve.system.name() && row.workload == kind;
            if let Some(row) = rows.iter_mut().find(same).filter(|_| !calls.is_empty()) {
                add_distribution(row, calls);
            }
        }
    }
    rows.extend(settings.left_out_rows());
    Ok(rows)
}

/// A round of one curve. Adds the latencies that are told as a distribution of all rounds to `all`.
fn turn(
    data: &Data<'_>,
    progress: &mut Progress<'_>,
    all: &mut [Histogram<u64>; 2],
) -> Result<Vec<Row>, Error> {
    let (settings, curve) = (data.settings, progress.curve);
    match settings.figure.measure {
        Measure::Restart => return restart::measure(data, progress),
        Measure::Growth => return growth::measure(data, progress),
        Measure::Servers => return servers::measure(data, progress),
        Measure::Fabric => return fabric::measure(data, progress),
        Measure::Patterns => return patterns::measure(data, progress),
        Measure::Operations => return operations::measure(data, progress),
        Measure::Reclaiming => return reclaiming::measure(data, progress),
        Measure::Recovery => return recovery::measure(data, progress),
        _ => {}
    }
    let what_for = match settings.figure.wants_own_process() {
        true => For::Room,
        false => For::Speed,
    };
    let filled = data.filled(&curve, what_for)?;
    let store = &*filled.subject;
    match settings.figure.measure {
        Measure::Points => points(data, store, progress),
        Measure::Calls => timed(data, store, progress, all),
        Measure::Phases => phases(data, store, progress),
        Measure::Clients => {
            let mut rows = Vec::new();
            for count in settings.clients.iter().copied() {
                rows.extend(clients::measure(data, store, count, progress)?);
            }
            Ok(rows)
        }
        Measure::Tails => tails::measure(data, store, progress),
        Measure::Overhead => overhead::measure(data, &filled, progress),
        Measure::Steps => steps::measure(data, store, progress),
        Measure::Footprint => footprint::measure(data, &filled, progress),
        Measure::Summary => summary::measure(data, filled, progress),
        Measure::Restart
        | Measure::Growth
        | Measure::Servers
        | Measure::Fabric
        | Measure::Patterns
        | Measure::Operations
        | Measure::Reclaiming
        | Measure::Recovery => unreachable!("they open their stores themselves"),
    }
}

/// Throughput and latency for each number of workers and each share of writes, over one store.
///
/// Each point begins when what the one before left in the logs has been gleaned, and goes on until puts have
/// filled so much of them, with a pause or two between, that gleaning has its share.
fn points(
    data: &Data<'_>,
    store: &dyn Subject,
    progress: &mut Progress<'_>,
) -> Result<Vec<Row>, Error> {
    let settings = data.settings;
    let (curve, cores) = (progress.curve, progress.cores());
    let mut rows = Vec::new();
    for threads in settings.threads.iter().copied() {
        let workers = Workers::new(threads, Writes::of_percent(settings.writes[0]));
        let asking = Asking::all(&workers, &data.corpus, &data.stream);
        jobs::run(store, &workers, asking, || {
            for percent in settings.writes.iter().copied() {
                let mut row = progress.row("", percent, threads);
                if curve.system.has_dynamic_roles() {
                    workers.set_writes(Writes::of_percent(0.0));
                    workers.settle();
                }
                workers.set_writes(Writes::of_percent(percent));
                workers.sleep(settings.warm_up_seconds());
                let wanted = match curve.system.gleans() && percent > 0.0 {
                    true => curve.all_log_bytes() / settings.paper().logged_bytes,
                    false => 0,
                };
                let span = workers.span_of(0..threads, settings.seconds, wanted * 6 / 10);
                span.add_to(&mut row, Some(cores));
                row.push(Metric::GleaningShare, span.gleaning_share());
                row.push(Metric::LogTurns, progress.log_turns(span.puts));
                rows.push(row);
            }
            Ok(())
        })?;
    }
    Ok(rows)
}

/// How long single calls take: a row for each kind of call.
fn timed(
    data: &Data<'_>,
    store: &dyn Subject,
    progress: &mut Progress<'_>,
    all: &mut [Histogram<u64>; 2],
) -> Result<Vec<Row>, Error> {
    let (threads, percent) = (progress.curve.workers(), data.settings.writes[0]);
    progress.row("", percent, threads);
    let calls = Calls::of(data, store, threads, percent)?;
    let mut rows = Vec::new();
    for (number, (kind, all)) in KINDS.into_iter().zip(all).enumerate() {
        let latencies = &calls.latencies[number];
        if latencies.all.is_empty() {
            continue;
        }
        let mut row = progress.row_of(kind, percent, threads);
        row.push(Metric::Operations, latencies.all.len() as f64);
        row.push(Metric::MeanNs, latencies.all.mean());
        row.extend(Metric::CoreMeanNs, usual_mean(&latencies.undisturbed));
        all.add(&latencies.all)?;
        rows.push(row);
    }
    ensure!(
        !rows.is_empty(),
        "no call ended in {} s",
        data.settings.seconds
    );
    Ok(rows)
}

/// Percentiles and the distribution of the calls of all rounds.
fn add_distribution(row: &mut Row, calls: &Histogram<u64>) {
    add_percentiles(row, ALL, calls);
    let steps = (1..STEPS).map(|step| f64::from(step) / f64::from(STEPS));
    let shares = steps.chain(TAIL);
    row.cdf = shares
        .map(|share| (calls.value_at_quantile(share), share))
        .collect();
}

/// The mean without the slowest hundredth, which waited for a thread that had no core; `None` without calls.
fn usual_mean(calls: &Histogram<u64>) -> Option<f64> {
    let most = calls.value_at_quantile(0.99);
    let (mut count, mut sum) = (0u64, 0.0);
    for value in calls.iter_recorded() {
        if value.value_iterated_to() <= most {
            count += value.count_at_value();
            sum += value.count_at_value() as f64 * value.value_iterated_to() as f64;
        }
    }
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stall_does_not_make_the_mean() {
        let mut calls = histogram();
        (0..1000).for_each(|_| calls.saturating_record(500));
        calls.saturating_record(50_000_000);
        let mean = usual_mean(&calls).unwrap();
        assert!((499.0..501.0).contains(&mean), "{mean}");
        assert_eq!(usual_mean(&histogram()), None);
    }
}
