//! How long the steps of a put take (table 3 of DStore's paper), in a build with clocks between them.

use crate::figure::progress::Progress;
use crate::figure::store::Data;
use crate::row::Row;
use crate::subject::{Error, Subject};

/// What to do about a build without the clocks.
#[cfg(not(feature = "steps"))]
pub(in crate::figure) const BUILD: &str = "this build has no clocks between the steps of a put; one that has: \
                                cargo build --release -p everdram-cli --features steps";

/// Never called: such a build says so before it measures.
#[cfg(not(feature = "steps"))]
pub(super) fn measure(
    _: &Data<'_>,
    _: &dyn Subject,
    _: &mut Progress<'_>,
) -> Result<Vec<Row>, Error> {
    anyhow::bail!(BUILD)
}

/// A row of puts with values of one size.
#[cfg(feature = "steps")]
pub(super) fn measure(
    data: &Data<'_>,
    store: &dyn Subject,
    progress: &mut Progress<'_>,
) -> Result<Vec<Row>, Error> {
    use super::tails::{self, Calls};
    use crate::row::Metric;
    use everdram::steps;
    let load = crate::figure::mib(data.value_bytes as u64);
    let threads = progress.curve.workers();
    let mut row = progress.row(&load, 100.0, threads);
    let before = steps::taken();
    let calls = Calls::of(data, store, threads, 100.0)?;
    let taken = steps::taken().since(before);
    let puts = &calls.latencies[1];
    tails::add(puts, &mut row);
    let each = |ns: u64| ns as f64 / taken.writes.max(1) as f64;
    let mean_ns = puts.all.mean();
    let mut rest_ns = mean_ns;
    for (metric, ns) in [
        (Metric::DataNs, taken.data_ns),
        (Metric::StageNs, taken.stage_ns),
        (Metric::MetadataNs, taken.metadata_ns),
        (Metric::OrderNs, taken.order_ns),
        (Metric::LogNs, taken.log_ns),
    ] {
        row.push(metric, each(ns));
        rest_ns -= each(ns);
    }
    row.push(Metric::RestNs, rest_ns.max(0.0));
    row.push(Metric::DataShare, each(taken.data_ns) / mean_ns);
    Ok(vec![row])
}
