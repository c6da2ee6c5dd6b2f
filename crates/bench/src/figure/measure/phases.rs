//! Throughput from moment to moment, while phases with other shares of writes follow each other.

use crate::figure::best;
use crate::figure::jobs::{self, Asking};
use crate::figure::progress::Progress;
use crate::figure::store::Data;
use crate::figure::stream::Writes;
use crate::figure::workers::{Span, Workers};
use crate::row::{Metric, Row};
use crate::subject::{Error, Subject};

/// What a store counts of its traffic, and the metric that is its growth each second.
const TRAFFIC: [(&str, Metric); 4] = [
    ("data_written_bytes", Metric::DataWriteRate),
    ("data_read_bytes", Metric::DataReadRate),
    ("log_written_bytes", Metric::LogWriteRate),
    ("checkpoint_written_bytes", Metric::CheckpointWriteRate),
];
/// Throughput and gleaners over time: a row for each phase, with a value for each moment.
pub(super) fn phases(
    data: &Data<'_>,
    store: &dyn Subject,
    progress: &mut Progress<'_>,
) -> Result<Vec<Row>, Error> {
    let settings = data.settings;
    let threads = progress.curve.workers();
    let cores = progress.curve.shared(progress.cores());
    let workers = Workers::new(threads, Writes::of_percent(settings.writes[0]));
    let asking = Asking::all(&workers, &data.corpus, &data.stream);
    let looks = (settings.seconds / settings.sample_seconds)
        .round()
        .max(1.0);
    let (rows, _) = jobs::run(store, &workers, asking, || {
        let (mut second, mut before) = (0.0, traffic(store));
        let mut rows = Vec::new();
        for (phase, percent) in settings.writes.iter().copied().enumerate() {
            let mut row = progress.row(&format!("{percent} %"), percent, threads);
            row.conditions.insert("phase".into(), phase.into());
            workers.set_writes(Writes::of_percent(percent));
            for _ in 0..looks as usize {
                let span = workers.span(0..threads, settings.seconds / looks);
                second += span.seconds;
                span.add_to(&mut row, cores);
                row.push(Metric::Second, second);
                row.push(Metric::Gleaners, workers.gleaners() as f64);
                row.push(Metric::GleaningShare, span.gleaning_share());
                let now = traffic(store);
                add_traffic(&mut row, &span, [before, now]);
                before = now;
            }
            if progress.curve.ground.is_some() {
                let least = row.get(best(&row, Metric::Rate)).min;
                row.push(Metric::LeastRate, least);
            }
            rows.push(row);
        }
        Ok(rows)
    })?;
    Ok(rows)
}

/// What the store has counted of its traffic so far.
fn traffic(store: &dyn Subject) -> [Option<u64>; 4] {
    TRAFFIC.map(|(name, _)| store.own(name))
}

fn add_traffic(row: &mut Row, span: &Span, counts: [[Option<u64>; 4]; 2]) {
    let [before, now] = counts;
    for (number, (_, metric)) in TRAFFIC.into_iter().enumerate() {
        if let (Some(before), Some(now)) = (before[number], now[number]) {
            let grown = now.saturating_sub(before) as f64;
            row.push(metric, grown / span.seconds.max(1e-9));
        }
    }
}
