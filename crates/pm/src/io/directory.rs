//! A directory: which files exist, and which will exist after a crash.
//!
//! Invariant: the creation or removal of a file survives a crash only once the directory was synced. With
//! feature `lab` a directory may be the lab's [`Disk`].

use super::File;
use crate::error::Error;
#[cfg(feature = "lab")]
use crate::lab::Disk;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
#[cfg(feature = "lab")]
use std::sync::Arc;

/// A directory of files.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// The lab's disk, if it stands in for the directory.
    #[cfg(feature = "lab")]
    disk: Option<Arc<Disk>>,
}

impl From<&Path> for Directory {
    /// The directory of the system at a path.
    fn from(path: &Path) -> Directory {
        Directory {
            path: path.into(),
            #[cfg(feature = "lab")]
            disk: None,
        }
    }
}

impl Directory {
    /// The lab's disk as a directory; `path` is for messages.
    #[cfg(feature = "lab")]
    pub(crate) fn simulated(disk: &Arc<Disk>, path: &Path) -> Directory {
        Directory {
            path: path.into(),
            disk: Some(Arc::clone(disk)),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the files, in no order. Names that are not UTF-8 are left out: everdram writes none.
    pub(crate) fn names(&self) -> Result<Vec<String>, Errno> {
        #[cfg(feature = "lab")]
        if let Some(disk) = &self.disk {
            return Ok(disk.names());
        }
        let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            names.extend(entry.map_err(failed)?.file_name().into_string());
        }
        Ok(names)
    }

    /// Opens a file for reading and writing; creates it if `create` and there is none.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn open(&self, name: &str, create: bool) -> Result<File, Error> {
        let path = self.path.join(name);
        #[cfg(feature = "lab")]
        if let Some(disk) = &self.disk {
            return match disk.open(name, &path, create) {
                Ok(file) => Ok(File::simulated(file)),
                Err(source) => Err(Error::Io {
                    path,
                    what: "opening the file",
                    source,
                }),
            };
        }
        File::open(&path, create)
    }

    /// Opens a file for reading only.
    pub(crate) fn open_to_read(&self, name: &str) -> Result<File, Error> {
        #[cfg(feature = "lab")]
        if self.disk.is_some() {
            return self.open(name, false);
        }
        File::open_to_read(&self.path.join(name))
    }

    /// Removes a file from the directory.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn unlink(&self, name: &str) -> Result<(), Errno> {
        #[cfg(feature = "lab")]
        if let Some(disk) = &self.disk {
            return disk.unlink(name);
        }
        rustix::fs::unlink(self.path.join(name))
    }

    /// Makes the entries of the directory durable.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let synced = self.sync_entries();
        synced.map_err(|source| Error::Io {
            path: self.path.clone(),
            what: "syncing the directory",
            source,
        })
    }

    #[cfg_attr(feature = "lab", track_caller)]
    fn sync_entries(&self) -> Result<(), Errno> {
        #[cfg(feature = "lab")]
        if let Some(disk) = &self.disk {
            return disk.sync_directory();
        }
        #[cfg(feature = "faults")]
        if let Some(faults) = super::faults::Faults::of_directory(&self.path) {
            faults.sync_directory()?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.path, flags, Mode::empty()).and_then(rustix::fs::fsync)
    }
}
