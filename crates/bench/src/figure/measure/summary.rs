//! The worst of each store (table 5 of DStore's paper): its slowest moment, its slowest calls, its recovery
//! after a kill, and its space.

use super::phases::phases;
use super::tails::{self, Calls};
use super::{footprint, restart};
use crate::figure::progress::Progress;
use crate::figure::store::{Data, Filled, For};
use crate::row::{Metric, Row};
use crate::subject::Error;

/// A row that has all of it. The process had no other store before this one.
pub(super) fn measure(
    data: &Data<'_>,
    small: Filled,
    progress: &mut Progress<'_>,
) -> Result<Vec<Row>, Error> {
    let curve = progress.curve;
    let (threads, percent) = (curve.workers(), data.settings.writes[0]);
    let mut row = progress.row("worst", percent, threads);
    footprint::add(data, &curve, &small, &mut row)?;
    drop(small);
    let filled = data.filled(&curve, For::Speed)?;
    let store = &*filled.subject;
    for moments in phases(data, store, progress)? {
        row.push(Metric::LeastRate, moments.get(Metric::LeastRate).min);
    }
    let calls = Calls::of(data, store, threads, percent)?;
    tails::add(&calls.latencies[1], &mut row);
    drop(filled);
    if curve.system.is_opened_again() {
        row.append(&restart::killed(data, progress)?);
    }
    Ok(vec![row])
}
