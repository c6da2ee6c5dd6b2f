//! Finds, checks, locks and creates the directory of a shelf.
//!
//! Invariants:
//! - A shelf is refused before anything is created or changed.
//! - The directory is opened once, not through a symbolic link, and all files lead from there.

use crate::error::Error;
use crate::io::Directory;
use crate::medium::Medium;
use crate::pool::probe::IMAGE;
use crate::pool::{Pool, place, probe};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// See [`Shelf::open`](super::Shelf::open).
#[cfg_attr(feature = "lab", track_caller)]
pub(super) fn open(pool: &Pool, path: &Path, create: bool) -> Result<Directory, Error> {
    // A slash at the end would lead through a symbolic link.
    let path: &Path = &path.components().collect::<PathBuf>();
    #[cfg(feature = "lab")]
    if let Some(directory) = simulated(pool, path)? {
        directory.sync()?;
        return Ok(directory);
    }
    let read_only = pool.is_read_only();
    let is_there = look(path)?;
    if !read_only {
        check_medium(pool, path)?;
    }
    match is_there {
        true => {}
        false if create && !read_only => place::create_directory(path)?,
        false => {
            return Err(Error::Unpaired {
                path: path.into(),
                what: "the directory of the pool's log is missing; put it back, or name the place where it is now"
                    .into(),
            });
        }
    }
    let directory = Directory::hold(path)?;
    lock(&directory, path, read_only)?;
    check(&directory, path)?;
    if !read_only {
        // The process that made these names may have died before they were durable.
        directory.sync()?;
        place::sync_name(path)?;
    }
    Ok(directory)
}

/// The shelf of a pool of the lab.
#[cfg(feature = "lab")]
fn simulated(pool: &Pool, path: &Path) -> Result<Option<Directory>, Error> {
    let Some(directory) = pool.directory.as_ref().filter(|own| own.is_simulated()) else {
        return Ok(None);
    };
    let name = path.file_name().and_then(|name| name.to_str());
    match name.and_then(|name| directory.folder(path, name)) {
        Some(folder) => Ok(Some(folder)),
        None => Err(refused(path, "this is not the name of a directory")),
    }
}

fn refused(path: &Path, what: impl Into<String>) -> Error {
    Error::Options {
        path: path.into(),
        what: what.into(),
    }
}

/// Whether there is a directory; anything else is refused.
fn look(path: &Path) -> Result<bool, Error> {
    let stat = match rustix::fs::lstat(path) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(Error::io(path, "looking at the path")(errno)),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(true),
        FileType::Symlink => Err(refused(
            path,
            "a symbolic link, which somebody could turn elsewhere; name the directory itself",
        )),
        _ => Err(refused(
            path,
            "a log is kept in a directory, and this is none",
        )),
    }
}

/// Refuses a directory in memory for the log of a pool that survives a power loss.
fn check_medium(pool: &Pool, path: &Path) -> Result<(), Error> {
    if pool.medium() == Medium::Emulated {
        return Ok(());
    }
    let file_system = |path: &Path| {
        let existing = probe::nearest_existing(path);
        probe::file_system(existing.as_deref().unwrap_or(path))
    };
    let (name, volatile) = file_system(path)?;
    let is_pool_volatile = pool.medium() == Medium::File && file_system(pool.path())?.1;
    if !volatile || is_pool_volatile {
        return Ok(());
    }
    Err(refused(
        path,
        format!(
            "{name} is memory: the log would not survive a power loss, and the pool (`{}`) would. Name a \
             directory on a disk, or use an `emulated` pool",
            pool.medium()
        ),
    ))
}

fn lock(directory: &Directory, path: &Path, shared: bool) -> Result<(), Error> {
    let locked = directory.held().map_or(Ok(true), |held| held.lock(shared));
    match locked.map_err(Error::io(path, "locking the directory"))? {
        true => Ok(()),
        false => Err(Error::Locked { path: path.into() }),
    }
}

/// Refuses a directory that others can write, and one that holds a pool: its files are not the shelf's.
fn check(directory: &Directory, path: &Path) -> Result<(), Error> {
    if let Some(held) = directory.held() {
        let stat = rustix::fs::fstat(held.inner());
        let mode = stat
            .map_err(Error::io(path, "looking at the directory"))?
            .st_mode;
        if Mode::from_raw_mode(mode).contains(Mode::WOTH) {
            return Err(refused(
                path,
                "everybody can write this directory, and could replace the log; `chmod o-w` it",
            ));
        }
    }
    let names = directory
        .names()
        .map_err(Error::io(path, "reading the directory"))?;
    match names.iter().any(|name| name == IMAGE) {
        true => Err(refused(
            path,
            "there is a pool in this directory; name one that is for the log alone",
        )),
        false => Ok(()),
    }
}
