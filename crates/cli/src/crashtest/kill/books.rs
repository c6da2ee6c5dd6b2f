//! The expected-state file of a campaign: its contents and its end, to which only this campaign writes.

use super::reader::{Pool, Reader};
use crate::killing::journal::Journal;
use crate::settings::usage;
use std::path::Path;

pub(crate) struct Books {
    pub(crate) journal: Journal,
    pub(crate) reader: Reader,
}

impl Books {
    /// Opens the file at `expected`, or creates it.
    ///
    /// # Errors
    /// As [`Journal::open`] and [`Reader::open`].
    pub(crate) fn open(expected: &Path) -> anyhow::Result<Books> {
        Ok(Books {
            journal: Journal::open(expected)?,
            reader: Reader::open(expected)?,
        })
    }

    /// Opens the file at `expected`. If it describes a pool, this must be the pool at `path`. Creates nothing
    /// before this is certain.
    ///
    /// # Errors
    /// A usage error if file and pool do not belong together; and as [`Books::open`].
    pub(crate) fn of_pool(
        expected: &Path,
        path: &Path,
        medium: &str,
        engine: &str,
    ) -> anyhow::Result<Books> {
        if !expected.exists() {
            refuse_a_pool(path)?;
        }
        let books = Books::open(expected)?;
        match &books.reader.pool {
            None => refuse_a_pool(path)?,
            Some(pool) => must_match(pool, path, medium, engine)?,
        }
        Ok(books)
    }
}

/// Refuses a pool without an expected-state file: nothing says what it should hold.
fn refuse_a_pool(path: &Path) -> anyhow::Result<()> {
    let is_empty = path
        .read_dir()
        .map_or(!path.exists(), |mut names| names.next().is_none());
    if is_empty {
        return Ok(());
    }
    let path = path.display();
    Err(usage(format!(
        "{path} is there already, and the expected-state file does not say what it owes; name a new one"
    )))
}

fn must_match(pool: &Pool, path: &Path, medium: &str, engine: &str) -> anyhow::Result<()> {
    if pool.path == path && pool.medium == medium && pool.engine == engine {
        return Ok(());
    }
    let (theirs, medium, engine) = (pool.path.display(), &pool.medium, &pool.engine);
    Err(usage(format!(
        "the expected-state file is about --pool {theirs} --medium {medium} --engine {engine}"
    )))
}
