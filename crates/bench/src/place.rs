//! A directory of its own for a store that is measured, removed afterwards.

use crate::subject::Error;
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
