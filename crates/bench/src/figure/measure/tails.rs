//! Single calls, timed: percentiles of gets and of puts in each round.

use crate::figure::jobs::{self, Asking, KINDS};
use crate::figure::progress::Progress;
use crate::figure::store::Data;
use crate::figure::stream::Writes;
use crate::figure::workers::{Span, Workers};
use crate::latency::{self, Latencies, add_percentiles};
use crate::row::{Metric, Row};
use crate::subject::{Error, Subject};
use anyhow::ensure;
use hdrhistogram::Histogram;

/// The load of a row that is of gets and of puts.
pub(super) const ALL: &str = "all";

/// Calls of some workers in a span.
pub(super) struct Calls {
    /// Of gets and of puts.
    pub(super) latencies: [Latencies; 2],
    pub(super) span: Span,
    /// Checkpoints that ended in the span, if the store counts them.
    pub(super) checkpoints: Option<u64>,
}

impl Calls {
    /// Asks a store, and times each call once the first half of a span's time is over.
    pub(super) fn of(
        data: &Data<'_>,
        store: &dyn Subject,
        threads: usize,
        percent: f64,
    ) -> Result<Calls, Error> {
        let settings = data.settings;
        let workers = Workers::new(threads, Writes::of_percent(percent));
        let asking = Asking::all(&workers, &data.corpus, &data.stream);
        let ((span, checkpoints), asked) = jobs::run(store, &workers, asking, || {
            workers.sleep(settings.warm_up_seconds());
            workers.time_from_now();
            let before = store.own("checkpoints");
            let span = workers.span(0..threads, settings.seconds);
            let ended = |now: u64| Some(now - before?);
            Ok((span, store.own("checkpoints").and_then(ended)))
        })?;
        let mut latencies = [Latencies::default(), Latencies::default()];
        for timed in asked.iter().filter_map(|job| job.timed.as_ref()) {
            for (all, timer) in latencies.iter_mut().zip(timed) {
                all.add(&timer.latencies);
            }
        }
        Ok(Calls {
            latencies,
            span,
            checkpoints,
        })
    }
}

/// For each number of workers and each share of writes a row of all calls, and one for each kind of them.
pub(super) fn measure(
    data: &Data<'_>,
    store: &dyn Subject,
    progress: &mut Progress<'_>,
) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for threads in progress.curve.threads().iter().copied() {
        for percent in data.settings.writes.iter().copied() {
            let mut row = progress.row(ALL, percent, threads);
            let calls = Calls::of(data, store, threads, percent)?;
            let cores = progress.curve.shared(progress.cores());
            calls.span.add_to(&mut row, cores);
            if let Some(ended) = calls.checkpoints {
                row.push(Metric::Checkpoints, ended as f64);
            }
            rows.push(row);
            for (kind, latencies) in KINDS.into_iter().zip(&calls.latencies) {
                if latencies.all.is_empty() {
                    continue;
                }
                let mut row = progress.row_of(kind, percent, threads);
                add(latencies, &mut row);
                rows.push(row);
            }
            ensure!(
                calls.latencies.iter().any(|kind| !kind.all.is_empty()),
                "no call ended in {} s",
                data.settings.seconds
            );
        }
    }
    Ok(rows)
}

/// Adds means and percentiles to a row. If no call of a round had a core, those that had none stand for it.
pub(super) fn add(latencies: &Latencies, row: &mut Row) {
    let all = &latencies.all;
    let undisturbed = had_core(latencies);
    row.push(Metric::Operations, all.len() as f64);
    for (calls, mean, percentiles, last) in [
        (all, Metric::MeanNs, latency::ALL, Metric::P9999Ns),
        (
            undisturbed,
            Metric::CoreMeanNs,
            latency::UNDISTURBED,
            Metric::CoreP9999Ns,
        ),
    ] {
        row.push(mean, calls.mean());
        add_percentiles(row, percentiles, calls);
        row.push(last, calls.value_at_quantile(0.9999) as f64);
    }
}

/// Calls that had a core; all calls if none had.
pub(super) fn had_core(latencies: &Latencies) -> &Histogram<u64> {
    match latencies.undisturbed.is_empty() {
        true => &latencies.all,
        false => &latencies.undisturbed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use std::path::Path;

    #[test]
    fn calls_without_a_core_count_where_there_are_no_others() {
        let machine = Machine::here(Path::new("/"));
        let mut row = Row::new("s", "+oe", "put", 1, serde_json::json!({}), &machine);
        let mut latencies = Latencies::default();
        (0..100).for_each(|_| latencies.all.saturating_record(8000));
        add(&latencies, &mut row);
        (0..900).for_each(|_| latencies.all.saturating_record(2000));
        (0..900).for_each(|_| latencies.undisturbed.saturating_record(2000));
        add(&latencies, &mut row);
        let near = |metric, wanted: [f64; 2]| {
            let rounds = row.rounds(metric);
            let is_near = |(found, wanted): (&f64, f64)| (found - wanted).abs() < 10.0;
            assert!(
                rounds.iter().zip(wanted).all(is_near),
                "{metric}: {rounds:?}"
            );
        };
        near(Metric::CoreMeanNs, [8000.0, 2000.0]);
        near(Metric::MeanNs, [8000.0, 2600.0]);
        near(Metric::CoreP9999Ns, [8000.0, 2000.0]);
        near(Metric::P9999Ns, [8000.0, 8000.0]);
        near(Metric::P50Ns, [8000.0, 2000.0]);
        assert_eq!(row.rounds(Metric::Operations), [100.0, 1000.0]);
    }
}
