//! Opening after a clean stop, and after a kill at the worst moment: while a checkpoint is under way, and
//! logs hold the most.

use super::jobs::{self, Loading};
use super::measure::Progress;
use super::settings::Settings;
use super::store::Data;
use super::stream::Writes;
use super::workers::Workers;
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
/// Checkpoints that are watched, to learn what logs hold at most.
const WATCHED: u64 = 2;
/// How full of that logs are when the process is killed.
const NEARLY: f64 = 0.95;
const LOOK: Duration = Duration::from_micros(200);
/// A store that writes no checkpoint for so long is killed anyway.
const PATIENCE: Duration = Duration::from_secs(60);
/// Writes of a store that does not say what its logs hold.
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
    let filled = data.filled(&curve, false)?;
    let (opening, site) = (curve.opening(&filled.site, false), filled.site);
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
    reopen(data, &curve.opening(&site, false), site.dir(), &mut row)?;
    Ok(row)
}

fn reopen(data: &Data<'_>, opener: &dyn Opener, dir: &Path, row: &mut Row) -> Result<(), Error> {
    let (recovery, store) = recovery::open(opener, &data.corpus, dir, data.settings.records)?;
    if let Some(bytes) = store.own("log_used_bytes") {
        row.push(Metric::LogUsedBytes, bytes as f64);
    }
    recovery.add_to(row);
    Ok(())
}

/// The part of the process that is killed: fills the store that is the first of these settings, overwrites
/// until its logs hold the most, and kills this process in the middle of that.
///
/// # Errors
/// What the store says.
pub fn fill(settings: &Settings, dir: &Path, data_dir: Option<PathBuf>) -> Result<(), Error> {
    let curves = settings.curves();
    let Some(curve) = curves.first() else {
        bail!("nothing to fill: {settings:?}");
    };
    let data = Data::new(settings, curve.value_bytes);
    let opening = super::store::Opening {
        curve: *curve,
        data: data_dir,
        is_present: false,
    };
    let store = data.open(&opening, dir)?;
    data.fill(curve, &*store)?;
    let workers = Workers::new(curve.workers(), Writes::ALL);
    let (next, puts) = (AtomicU64::new(0), (settings.records, u64::MAX / 2));
    let writing = (0..curve.workers())
        .map(|_| Loading::new(&data.corpus, &next, puts, curve.batch()))
        .collect();
    jobs::run(&*store, &workers, writing, || {
        wait_for_logs(&*store);
        recovery::be_killed()
    })?;
    Ok(())
}

/// Returns when logs hold about as much as they ever do.
fn wait_for_logs(store: &dyn Subject) {
    let until = Instant::now() + PATIENCE;
    let checkpoints = || store.own("checkpoints").unwrap_or(0);
    let (first, mut most) = (checkpoints(), 0);
    loop {
        let Some(used) = store.own("log_used_bytes") else {
            return std::thread::sleep(WRITING);
        };
        let has_seen = checkpoints() >= first + WATCHED;
        if (has_seen && used as f64 >= NEARLY * most as f64) || Instant::now() > until {
            return;
        }
        most = most.max(used);
        std::thread::sleep(LOOK);
    }
}
