//! A directory of its own for a store that is measured, removed afterwards; the store in it, and its memory.

use crate::process;
use crate::row::Figures;
use crate::subject::{Error, Opener, Subject};
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
pub(crate) struct Opened {
    pub(crate) subject: Box<dyn Subject>,
    // After the subject: it is closed before its directory goes.
    _place: Place,
}

impl Opened {
    /// For so many records, in a fresh directory within `dir`.
    pub(crate) fn new(
        opener: &dyn Opener,
        dir: &Path,
        records: u64,
        record_bytes: usize,
    ) -> Result<Opened, Error> {
        let place = Place::within(dir)?;
        let subject = opener.open(place.path(), records, record_bytes)?;
        Ok(Opened {
            subject,
            _place: place,
        })
    }
}

/// Bytes a record.
#[derive(Clone, Copy, Default)]
pub(crate) struct Memory {
    dram: f64,
    counted_dram: Option<f64>,
    medium: Option<f64>,
}

impl Memory {
    /// Of a store with so many records, in a process that had so many bytes before.
    pub(crate) fn of(subject: &dyn Subject, private_before: u64, records: u64) -> Memory {
        let each = |bytes: u64| bytes as f64 / records.max(1) as f64;
        Memory {
            dram: each(process::private_bytes().saturating_sub(private_before)),
            counted_dram: subject.dram_bytes().map(each),
            medium: subject.medium_bytes().map(each),
        }
    }

    pub(crate) fn add_to(self, figures: &mut Figures) {
        figures.dram_bytes = Some(self.dram);
        figures.counted_dram_bytes = self.counted_dram;
        figures.medium_bytes = self.medium;
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
