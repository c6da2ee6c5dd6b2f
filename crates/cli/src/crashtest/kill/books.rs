//! The expected-state file as the one campaign that writes it has it: what it says, and its end.

use super::reader::{Pool, Reader};
use crate::killing::journal::Journal;
use crate::settings::usage;
use std::path::Path;

pub(crate) struct Books {
    pub(crate) journal: Journal,
    pub(crate) reader: Reader,
}

impl Books {
    /// The file at `expected`, made if there is none.
    ///
    /// # Errors
    /// As [`Journal::open`] and [`Reader::open`].
    pub(crate) fn open(expected: &Path) -> anyhow::Result<Books> {
        Ok(Books {
            journal: Journal::open(expected)?,
            reader: Reader::open(expected)?,
        })
    }

    /// The file at `expected`, which must be about the pool at `path`, if it is about any. Nothing is made
    /// before that is known.
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

/// A pool that no file knows holds what nobody expects.
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
