//! What a put takes beyond the write of its data (figure 6 of DStore's paper).
//!
//! Puts overwrite values of one block on a data file in memory, without a modelled disk; the bare loop writes
//! and syncs blocks of a file beside it. What is left is the store's own work. A disk would hide it: its
//! writes take longer, and are never twice as long.

use super::tails::{self, Calls};
use crate::figure::jobs::KINDS;
use crate::figure::progress::Progress;
use crate::figure::store::{Data, Filled};
use crate::fixture::Place;
use crate::pace::Timer;
use crate::row::{Metric, Row};
use crate::subject::Error;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of the file of the bare loop, at most.
const FILE_BYTES: u64 = 256 << 20;

/// A row of puts.
pub(super) fn measure(
    data: &Data<'_>,
    filled: &Filled,
    progress: &mut Progress<'_>,
) -> Result<Vec<Row>, Error> {
    let (threads, put) = (progress.curve.workers(), KINDS[1]);
    let mut row = progress.row(put, 100.0, threads);
    let calls = Calls::of(data, &*filled.subject, threads, 100.0)?;
    let puts = &calls.latencies[1];
    tails::add(puts, &mut row);
    let bare_ns = bare_write_ns(filled.site.dir(), data)?;
    row.push(Metric::DataWriteNs, bare_ns);
    row.push(Metric::OverheadNs, tails::had_core(puts).mean() - bare_ns);
    Ok(vec![row])
}

/// Nanoseconds of a write of a value's bytes to a random place of a file, and its sync: the mean of those
/// that had a core.
fn bare_write_ns(dir: &Path, data: &Data<'_>) -> Result<f64, Error> {
    let place = Place::within(dir)?;
    let file = File::create_new(place.path().join("bare"))?;
    let value = vec![7; data.value_bytes];
    let count = (FILE_BYTES / data.value_bytes as u64).clamp(1, data.settings.records);
    for number in 0..count {
        file.write_all_at(&value, number * data.value_bytes as u64)?;
    }
    file.sync_all()?;
    let mut random = SmallRng::seed_from_u64(data.settings.seed);
    let (mut timer, begun) = (Timer::new(), Instant::now());
    let length = Duration::from_secs_f64(data.settings.seconds);
    while timer.latencies.undisturbed.is_empty() || begun.elapsed() < length {
        let number = random.random_range(0..count);
        let from = Instant::now();
        file.write_all_at(&value, number * data.value_bytes as u64)?;
        file.sync_data()?;
        timer.record(from.elapsed());
    }
    Ok(timer.latencies.undisturbed.mean())
}
