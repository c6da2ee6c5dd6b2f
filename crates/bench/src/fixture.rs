//! A store that is measured: opened in a directory of its own, filled, taken through passes, and removed.

use crate::drive::Pass;
use crate::pace::Timing;
use crate::pass::{self, Passed};
use crate::process;
use crate::row::{Metric, Row};
use crate::subject::{Error, Opener, Subject};
use crate::workload::corpus::Corpus;
use crate::workload::{Author, Step, Workload};
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// An empty directory, as long as this lives.
pub struct Place(PathBuf);

impl Place {
    /// Inside `dir`, which is made if it is not there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn within(dir: &Path) -> Result<Place, Error> {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("everdram-bench-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("making {} for a store", path.display()))?;
        Ok(Place(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An open store in a directory of its own.
pub(crate) struct Fixture<'a> {
    pub(crate) subject: Box<dyn Subject>,
    // After the subject: it is closed before its directory goes.
    _place: Place,
    corpus: &'a Corpus,
    /// Tells the values of one pass from those of the next.
    generation: u64,
    /// Private memory of the process before the store was opened.
    private_before: u64,
}

impl<'a> Fixture<'a> {
    /// An empty store with room for so many records.
    pub(crate) fn open(
        opener: &dyn Opener,
        dir: &Path,
        corpus: &'a Corpus,
        room: u64,
    ) -> Result<Fixture<'a>, Error> {
        let private_before = process::private_bytes();
        let place = Place::within(dir)?;
        let subject = opener.open(place.path(), room, corpus.record_bytes())?;
        Ok(Fixture {
            subject,
            _place: place,
            corpus,
            generation: 0,
            private_before,
        })
    }

    /// Puts records `0..records`.
    pub(crate) fn load(&self, records: u64, threads: usize) -> Result<(), Error> {
        pass::load(&*self.subject, self.corpus, records, threads)
    }

    /// One thread for each list of steps.
    pub(crate) fn pass(
        &mut self,
        steps: &[Vec<Step>],
        (batch, timing, pin): (usize, Timing, bool),
    ) -> Result<Passed, Error> {
        self.generation += 1;
        let pass = Pass {
            corpus: self.corpus,
            batch,
            generation: self.generation,
            timing,
            pin,
        };
        pass::run(&*self.subject, pass, steps)
    }

    /// Bytes a record of a store that holds so many.
    pub(crate) fn memory(&self, records: u64) -> Memory {
        let each = |bytes: u64| bytes as f64 / records.max(1) as f64;
        let private = process::private_bytes().saturating_sub(self.private_before);
        Memory {
            dram: each(private),
            counted_dram: self.subject.dram_bytes().map(each),
            medium: self.subject.medium_bytes().map(each),
        }
    }
}

/// Bytes a record.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) dram: f64,
    counted_dram: Option<f64>,
    medium: Option<f64>,
}

impl Memory {
    pub(crate) fn add_to(self, row: &mut Row) {
        row.push(Metric::DramBytes, self.dram);
        row.extend(Metric::CountedDramBytes, self.counted_dram);
        row.extend(Metric::MediumBytes, self.medium);
    }
}

/// Writes what each thread asks for.
pub(crate) struct Script {
    pub(crate) workload: Workload,
    authors: Vec<Author>,
}

impl Script {
    /// Over a store of `records`.
    pub(crate) fn new(workload: Workload, records: u64, threads: usize, seed: u64) -> Script {
        Script {
            workload,
            authors: (0..threads)
                .map(|thread| Author::new(workload, records, thread, threads, seed))
                .collect(),
        }
    }

    /// How many threads ask.
    pub(crate) fn threads(&self) -> usize {
        self.authors.len()
    }

    /// The next `each` steps of each thread.
    pub(crate) fn write(&mut self, each: u64) -> Vec<Vec<Step>> {
        let authors = self.authors.iter_mut();
        authors.map(|author| author.write(each)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_empty_and_goes_with_all_that_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::within(&dir.path().join("deeper")).unwrap();
        let other = Place::within(dir.path()).unwrap();
        let path = place.path().to_owned();
        assert_ne!(path, other.path());
        std::fs::write(path.join("file"), "x").unwrap();
        drop(place);
        assert!(!path.exists() && other.path().exists());
    }
}
