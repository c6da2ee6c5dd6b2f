//! `inspect` and `check`: the contents of a pool and whether it is sound, without starting the store. The
//! superblock describes the pool, its engine the rest. A journal has a pool but no engine ([`crate::crl`]).

use crate::crl;
use crate::engine::kind::JOURNAL;
use crate::engine::open;
use crate::error::Error;
use crate::landing::{PAGE_BYTES, recover as landing};
use crate::options::{Create, Options, Progress};
use crate::stats::{CheckReport, Finding, Inspection};
use everdram_pm::Pool;
use std::path::Path;
use std::sync::Arc;

/// Reads the pool at `path` as recovery would, into private memory. The pool does not change.
///
/// # Errors
/// As opening the store; the error for a damaged pool names the place.
pub fn inspect(path: &Path) -> Result<Inspection, Error> {
    let info = Pool::inspect(path)?;
    let number = info.engine;
    // Only the engine can read the geometry words.
    let named = info.fields.into_iter();
    let named = named.filter(|(name, _)| !name.starts_with("geometry"));
    let mut inspection = Inspection {
        fields: named.map(|(name, value)| (name.into(), value)).collect(),
        extents: info
            .extents
            .iter()
            .map(|extent| (extent.owner, extent.at, extent.bytes))
            .collect(),
        ..Inspection::default()
    };
    let name = match number {
        JOURNAL => {
            let described = crl::describe(crl::pool(path)?, &mut inspection);
            described.map_err(|error| error.at_path(path))?;
            crl::JOURNAL_NAME
        }
        _ => {
            let options = to_look();
            let pool = open::pool(path, &options)?;
            let engine = open::recovered(Arc::clone(&pool), path, &options)?;
            inspection.stats = engine.stats();
            engine.describe(&mut inspection);
            describe_landing(&pool, &mut inspection);
            engine.name()
        }
    };
    let mut fields = inspection.fields.iter_mut();
    if let Some((_, value)) = fields.find(|(field, _)| field == "engine") {
        *value = format!("{name} (number {number})");
    }
    Ok(inspection)
}

/// Adds what the landing area holds, if there is one.
fn describe_landing(pool: &Pool, inspection: &mut Inspection) {
    if let Some((stats, arrived)) = landing::describe(pool) {
        let value = format!(
            "{} pages of {PAGE_BYTES} bytes, {} free; {} grants, of which {arrived} have arrived and wait for the next open",
            stats.pages, stats.pages_free, stats.grants
        );
        inspection.fields.push(("landing area".into(), value));
    }
}

/// Walks the whole pool at `path`, in private memory, and verifies every checksum and invariant. Returns the
/// name of its engine, or that of a journal, and the report. `progress` is called as recovery proceeds. A
/// pool that is too damaged to open is opened as with [`Options::salvage`], so that the report lists all
/// damage.
///
/// # Errors
/// The pool cannot be read, or its damage hides even which engine it has.
pub fn check(
    path: &Path,
    progress: Option<Progress>,
) -> Result<(&'static str, CheckReport), Error> {
    if Pool::inspect(path)?.engine == JOURNAL {
        let checked = crl::check(crl::pool(path)?, progress);
        return checked
            .map(|report| (crl::JOURNAL_NAME, report))
            .map_err(|error| error.at_path(path));
    }
    let options = Options {
        progress,
        ..to_look()
    };
    let opened = open::pool(path, &options).and_then(|pool| {
        let engine = open::recovered(Arc::clone(&pool), path, &options)?;
        let mut report = engine.check()?;
        report.findings.append(&mut landing::check(&pool)?);
        Ok((engine.name(), report))
    });
    match opened {
        Err(error) if error.is_damage() => check_damaged(path, options, error),
        checked => checked,
    }
}

/// As [`check`], for a pool that failed to open with `error`.
fn check_damaged(
    path: &Path,
    options: Options,
    error: Error,
) -> Result<(&'static str, CheckReport), Error> {
    let options = Options {
        salvage: true,
        ..options
    };
    let engine = open::open(path, &options)?.engine;
    let mut report = engine.check()?;
    if report.findings.is_empty() {
        report.findings.push(Finding::new(0, error.to_string()));
    }
    Ok((engine.name(), report))
}

/// Options that open an existing pool to look at it.
fn to_look() -> Options {
    Options {
        create: Create::Never,
        read_only: true,
        reclaim_background: false,
        ..Options::default()
    }
}
