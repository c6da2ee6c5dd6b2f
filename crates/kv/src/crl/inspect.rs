//! The contents of a journal's pool, for display: read as recovery reads them, into private memory, without
//! the map that the pool belongs to.
//!
//! Recovery judges the geometry, the ledger and the end of each log. If it refuses, that is damage, and
//! nothing else is known of the pool. If it accepts, this walks the logs once more, entry by entry: which
//! entries are current, and how full the logs are.

use super::change::Change;
use super::cursor::{Cursor, Next};
use super::journal::{Journal, OWNER, Volatile};
use crate::engine::kind::JOURNAL;
use crate::engine::pool::pool_of;
use crate::error::Error;
use crate::options::{Create, Options, Progress};
use crate::stats::{CheckReport, Finding, Stats};
use crate::stats::{Inspection, KindCount};
use everdram_pm::Pool;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The name shown instead of an engine's.
pub(crate) const NAME: &str = "journal";

/// The current version of each key.
#[derive(Default)]
struct Newest(Mutex<HashMap<Vec<u8>, u64>>);

impl Volatile for Newest {
    fn show(&self, key: &[u8], version: u64, value: Option<&[u8]>) {
        let mut newest = self.0.lock();
        match value {
            Some(_) => newest.insert(key.to_vec(), version),
            None => newest.remove(key),
        };
    }

    fn version(&self, key: &[u8]) -> Option<u64> {
        self.0.lock().get(key).copied()
    }
}

/// The contents of one log.
#[derive(Default)]
struct Held {
    entries: u64,
    used_bytes: u64,
    /// Bytes in entries that are current.
    live_bytes: u64,
}

/// Opens the pool of a journal at `path` read-only.
///
/// # Errors
/// As opening it.
pub(crate) fn pool(path: &Path) -> Result<Arc<Pool>, Error> {
    let options = Options {
        create: Create::Never,
        read_only: true,
        ..Options::default()
    };
    pool_of(path, &options, (JOURNAL, [0; 8]), vec![JOURNAL])
}

/// The journal of such a pool. `None`: its creation was interrupted.
fn journal(pool: Arc<Pool>, progress: Option<Progress>) -> Result<Option<Journal<Newest>>, Error> {
    if pool.extents(OWNER).is_empty() {
        return Ok(None);
    }
    let report = move |done, all| {
        if let Some(progress) = &progress {
            progress(done, all);
        }
    };
    Journal::read(pool, Newest::default(), &report).map(Some)
}

/// Verifies every entry.
///
/// # Errors
/// The pool cannot be read; damage is in the report.
pub(crate) fn check(pool: Arc<Pool>, progress: Option<Progress>) -> Result<CheckReport, Error> {
    let mut report = CheckReport::default();
    let journal = match journal(pool, progress) {
        Ok(Some(journal)) => journal,
        Ok(None) => return Ok(report),
        Err(Error::Corrupt { offset, what, .. }) => {
            report.findings.push(Finding::new(offset, what));
            return Ok(report);
        }
        Err(other) => return Err(other),
    };
    report.live = journal.map().0.lock().len() as u64;
    for log in 0..journal.logs.count() {
        match held(&journal, log) {
            Ok(held) => {
                report.blocks += 1;
                report.records += held.entries;
                report.bytes += held.used_bytes;
            }
            Err(finding) => report.findings.push(finding),
        }
    }
    Ok(report)
}

/// Adds the journal's fields and figures to `inspection`.
///
/// # Errors
/// As opening it; the error for a damaged pool names the place.
pub(crate) fn describe(pool: Arc<Pool>, inspection: &mut Inspection) -> Result<(), Error> {
    let pool_bytes = pool.backed_bytes();
    let Some(journal) = journal(pool, None)? else {
        return Ok(());
    };
    let (logs, log_bytes) = (journal.logs.count(), journal.logs.log_bytes());
    let mut all = Held::default();
    for log in 0..logs {
        let held = held(&journal, log);
        let held = held.map_err(Finding::into_error)?;
        all.entries += held.entries;
        all.used_bytes += held.used_bytes;
        all.live_bytes += held.live_bytes;
        let share = held.live_bytes * 100 / log_bytes;
        let is_empty = held.used_bytes == 0;
        inspection
            .space_map
            .push(if is_empty { 255 } else { share as u8 });
    }
    let (used, most) = journal.used_bytes();
    let mut field = |name: &str, value: String| inspection.fields.push((name.into(), value));
    field("logs", format!("{logs} of {log_bytes} bytes"));
    let reclaimed = journal.logs.reclaimed().to_string();
    field("reclaimed up to epoch", reclaimed);
    field("entries in the logs", all.entries.to_string());
    let percent = used * 100 / most.max(1);
    field(
        "occupancy",
        format!("{used} bytes, {percent} % of the bytes at which cleaning starts"),
    );
    inspection.kinds.push(KindCount {
        kind: "logs",
        blocks: logs as u64,
        filled_bytes: all.used_bytes,
        garbage_bytes: all.used_bytes - all.live_bytes,
    });
    inspection.stats = Stats {
        keys: journal.map().0.lock().len() as u64,
        pool_bytes,
        used_bytes: all.used_bytes,
        live_bytes: all.live_bytes,
        ..Stats::default()
    };
    Ok(())
}

/// Walks a log that recovery accepted.
fn held(journal: &Journal<Newest>, log: usize) -> Result<Held, Finding> {
    let (logs, state) = (&journal.logs, journal.logs.log(log));
    let limit = state.published.load(Ordering::Acquire);
    let mut position = state.head.load(Ordering::Acquire);
    let (mut cursor, mut held) = (Cursor::new(log), Held::default());
    while position < limit {
        let Next::Entry(entry, next) = cursor.next(logs, position, limit) else {
            let at = logs.place(log, position);
            return Err(Finding::new(at, "a log record does not verify"));
        };
        held.used_bytes += next - position;
        // Padding has no change.
        if let Some(change) = Change::read(&entry) {
            held.entries += 1;
            if change.value.is_some() && journal.map().version(change.key) == Some(change.version) {
                held.live_bytes += next - position;
            }
        }
        position = next;
    }
    Ok(held)
}
