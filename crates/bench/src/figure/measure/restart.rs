//! Opening after a clean stop, and after a kill at the worst moment: all logs are full, and the checkpoint
//! that this forced is under way.

use crate::figure::jobs::{self, Loading};
use crate::figure::progress::Progress;
use crate::figure::settings::Settings;
use crate::figure::store::{Data, For, Opening};
use crate::figure::stream::Writes;
use crate::figure::workers::Workers;
use crate::recovery;
use crate::row::{Metric, Row};
use crate::subject::{Error, Opener, Subject};
use anyhow::{Context, bail, ensure};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Loads of rows.
pub(super) const CLEAN: &str = "clean";
pub(super) const KILLED: &str = "killed";
/// Parts of a recovery that have nothing to do with logs, and those that have, as stores name them.
const METADATA: [&str; 3] = ["recovery_copy_us", "recovery_slots_us", "recovery_order_us"];
const REPLAY: [&str; 1] = ["recovery_logs_us"];
/// How much of all logs is used when they are full: another writer may hold one that is not.
const NEARLY: f64 = 0.75;
const LOOK: Duration = Duration::from_micros(200);
/// A store whose logs do not get full for so long is killed anyway.
const PATIENCE: Duration = Duration::from_secs(180);
/// Writes of a store that does not say whether its logs are full.
const WRITING: Duration = Duration::from_secs(2);

/// Two rows: one for each way to stop.
pub(super) fn measure(data: &Data<'_>, progress: &mut Progress<'_>) -> Result<Vec<Row>, Error> {
    let curve = progress.curve;
    ensure!(
        curve.system.is_opened_again(),
        "a pool of the system {} is opened once: leave it out with --systems",
        curve.system.name()
    );
    let mut clean = progress.row(CLEAN, 100.0, curve.workers());
    let filled = data.filled(&curve, For::Room)?;
    let (opening, site) = (Opening::of(&curve, &filled.site, For::Room), filled.site);
    drop(filled.subject);
    reopen(data, &opening, site.dir(), &mut clean)?;
    drop(site);
    let killed = killed(data, progress)?;
    Ok(vec![clean, killed])
}

/// A row of a store whose process was killed.
pub(super) fn killed(data: &Data<'_>, progress: &mut Progress<'_>) -> Result<Row, Error> {
    let (settings, curve) = (data.settings, progress.curve);
    let mut row = progress.row(KILLED, 100.0, curve.workers());
    let filler = settings.filler.context("no program to be killed")?;
    let site = curve.site()?;
    recovery::kill(&mut filler(settings, &curve, &site)?)?;
    reopen(
        data,
        &Opening::of(&curve, &site, For::Room),
        site.dir(),
        &mut row,
    )?;
    Ok(row)
}

/// Opens a store that was stopped, and adds to a row how long that took.
pub(super) fn reopen(
    data: &Data<'_>,
    opener: &dyn Opener,
    dir: &Path,
    row: &mut Row,
) -> Result<(), Error> {
    let (recovery, store) = recovery::open(opener, &data.corpus, dir, data.records)?;
    if let Some(bytes) = store.own("log_used_bytes") {
        row.push(Metric::LogUsedBytes, bytes as f64);
    }
    if let Some(own) = store.store() {
        row.push(Metric::Replayed, own.stats().recovered_records as f64);
    }
    recovery.add_to(row);
    for (metric, parts) in [
        (Metric::RecoveryMetadataNs, &METADATA[..]),
        (Metric::RecoveryReplayNs, &REPLAY),
    ] {
        let microseconds: Option<u64> = parts.iter().map(|part| store.own(part)).sum();
        if let Some(microseconds) = microseconds {
            row.push(metric, microseconds as f64 * 1e3);
        }
    }
    Ok(())
}

/// The part of the process that is killed: fills the store that is the first of these settings, overwrites
/// until its logs are full, and kills this process in the checkpoint that follows.
///
/// # Errors
/// What the store says.
pub fn fill(settings: &Settings, dir: &Path, beside: Option<PathBuf>) -> Result<(), Error> {
    let curves = settings.curves();
    let Some(curve) = curves.first() else {
        bail!("nothing to fill: {settings:?}");
    };
    let data = Data::new(settings, curve);
    let opening = Opening {
        curve: *curve,
        beside,
        what_for: For::Kill,
        recovery_threads: 0,
    };
    let store = data.open(&opening, dir)?;
    data.fill(curve, &*store)?;
    let workers = Workers::new(curve.workers(), Writes::ALL);
    let (next, puts) = (AtomicU64::new(0), (settings.records, u64::MAX / 2));
    let writing = (0..curve.workers())
        .map(|_| Loading::new(&data.corpus, &next, puts, curve.batch()))
        .collect();
    jobs::run(&*store, &workers, writing, || {
        wait_for_logs(&*store, curve.all_log_bytes());
        recovery::be_killed()
    })?;
    Ok(())
}

/// Returns when a writer has found all logs full, and begins the checkpoint that makes room: none begins
/// before ([`For::Kill`]). A checkpoint of small logs may have ended when it is noticed; then another is
/// waited for.
fn wait_for_logs(store: &dyn Subject, all_bytes: u64) {
    let until = Instant::now() + PATIENCE;
    let Some(mut before) = store.own("log_waits") else {
        return std::thread::sleep(WRITING);
    };
    while Instant::now() < until {
        let waits = store.own("log_waits").unwrap_or(before);
        let used = store.own("log_used_bytes").unwrap_or(0);
        if waits != before && used as f64 >= NEARLY * all_bytes as f64 {
            return;
        }
        before = waits;
        std::thread::sleep(LOOK);
    }
}
