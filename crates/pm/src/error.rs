//! What can go wrong with a pool: it is not ours, it is damaged, it is busy, or the medium failed.

use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Damage that an open with [`crate::PoolOptions::salvage`] skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Byte offset in that file.
    pub offset: u64,
    /// Bytes left out from there on, as far as that is known.
    pub bytes: u64,
    /// Whether acknowledged writes may be missing because of it.
    pub is_loss: bool,
    /// What was found there.
    pub what: String,
}

/// Why a pool could not be opened or written. Every message says what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{path}: {what}: {source}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What everdram was doing.
        what: &'static str,
        /// The system's answer.
        source: Errno,
    },
    /// There is no pool at the path, and the options do not ask to create one.
    #[error("{path}: no pool here; create one by opening it with `create`", path = .path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// The options ask to create a pool where there is one.
    #[error("{path}: there is a pool here already; open it, or create the new one elsewhere", path = .path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// Another process (or another handle of this one) has the pool open.
    #[error("{path}: the pool is open elsewhere; stop that process first", path = .path.display())]
    Locked {
        /// The pool.
        path: PathBuf,
    },
    /// The file is not a pool of everdram.
    #[error("{path}: not an everdram pool: {what}", path = .path.display())]
    NotAPool {
        /// The path.
        path: PathBuf,
        /// What shows it.
        what: String,
    },
    /// A newer everdram wrote the pool.
    #[error("{path}: format version {found}, this everdram reads up to {known}; use a newer everdram", path = .path.display())]
    Version {
        /// The path.
        path: PathBuf,
        /// Version of the pool.
        found: u32,
        /// Newest version this code reads.
        known: u32,
    },
    /// The pool belongs to an engine that the options do not allow.
    #[error("{path}: the pool belongs to engine number {engine}; open it with that engine", path = .path.display())]
    Engine {
        /// The path.
        path: PathBuf,
        /// Number of the pool's engine.
        engine: u32,
    },
    /// Bytes that should verify do not. The pool was left untouched.
    #[error("{path}: damaged at byte {offset}: {what}. {remedy}", path = .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Byte offset in that file.
        offset: u64,
        /// What was found there.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The options do not fit the pool, the path or each other.
    #[error("{path}: {what}", path = .path.display())]
    Options {
        /// The path.
        path: PathBuf,
        /// Why.
        what: String,
    },
    /// A device may not write and read this memory of the pool.
    #[error("{path}: no window for a device: {what}", path = .path.display())]
    NoWindow {
        /// The pool.
        path: PathBuf,
        /// Why, and what to do.
        what: String,
    },
    /// The data file, or the shelf, is missing or does not belong to the pool, or one of the two is an older
    /// copy. Nothing was changed.
    #[error("{path}: {what}", path = .path.display())]
    Unpaired {
        /// The data file, or the shelf.
        path: PathBuf,
        /// Why, and what to do.
        what: String,
    },
    /// A file ends before the bytes that were asked for.
    #[error("{path}: the file ends before byte {end}", path = .path.display())]
    EndOfFile {
        /// The file.
        path: PathBuf,
        /// The end of what was to be read.
        end: u64,
    },
    /// The disk or the pool's size limit is reached. Nothing changed; reads go on.
    #[error("{path}: no room to {what}; free disk space or raise the pool's size limit", path = .path.display())]
    NoSpace {
        /// The path.
        path: PathBuf,
        /// What needed room.
        what: &'static str,
    },
    /// A sync failed: the kernel may have lost data it had accepted, so no later write can be promised. Reads
    /// go on; reopen the pool to return to what is durable.
    #[error("{path}: a write to the medium failed earlier ({source}); the pool takes no more writes. Check the device, then reopen the pool", path = .path.display())]
    Poisoned {
        /// The file whose sync failed.
        path: PathBuf,
        /// The first failure.
        source: Errno,
    },
    /// A bug in everdram ended a part that the pool needs. Reads go on; reopen the pool to return to what is
    /// durable.
    #[error("{path}: the {who} panicked; the pool takes no more writes. Report what it said on standard error, then reopen the pool", path = .path.display())]
    Panicked {
        /// The pool.
        path: PathBuf,
        /// What panicked.
        who: &'static str,
    },
}

impl Error {
    /// For `map_err`: the system refused to do `what` with `path`. A full disk becomes [`Error::NoSpace`].
    pub(crate) fn io(path: &Path, what: &'static str) -> impl Fn(Errno) -> Error {
        move |source| match source {
            Errno::NOSPC | Errno::DQUOT => Error::NoSpace {
                path: path.into(),
                what,
            },
            source => Error::Io {
                path: path.into(),
                what,
                source,
            },
        }
    }
}
