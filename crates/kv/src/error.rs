//! Errors of the library: bad input, a full or failing medium, damaged bytes. Bugs are assertions.

use crate::engine::kind::{EngineKind, refusal};
use crate::engine::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use std::path::{Path, PathBuf};

/// Why an operation was refused or failed. Nothing changed unless the text says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Keys have 1 byte to 64 KiB.
    #[error("key of {0} bytes: keys have 1 to {KEY_BYTES_MAX} bytes")]
    KeyLength(usize),
    /// Values have up to 512 MiB.
    #[error("value of {0} bytes: values have at most {VALUE_BYTES_MAX} bytes")]
    ValueLength(usize),
    /// `update_word` or `increment` outside the value.
    #[error(
        "no aligned 8-byte word at byte {at} of a value of {len} bytes; give a multiple of 8 that leaves 8 bytes of it"
    )]
    WordOutside {
        /// Byte offset of the word in the value.
        at: usize,
        /// Length of the value.
        len: usize,
    },
    /// A transaction used a key outside its scope.
    #[error("the transaction did not declare this key; name it in the scope")]
    KeyNotLocked,
    /// The engine has no order of keys.
    #[error("the engine keeps no order of keys; a store of the engine `dstore` does")]
    Unordered,
    /// There is no object of this name.
    #[error("there is no object of this name; open it with `create`")]
    NoObject,
    /// `create_new` found an object.
    #[error("there is an object of this name; open it without `create_new`, or delete it")]
    ObjectExists,
    /// The object was opened to be read.
    #[error("the object was opened to be read; open it with `write`")]
    ObjectReadOnly,
    /// Another bucket holds the lock of this name.
    #[error("another bucket holds the lock of this name; wait longer, or until its lease ends")]
    ObjectLocked,
    /// The lease of this bucket's lock ended before the write, and others may have written since.
    #[error(
        "the lease of this lock has ended, and others may have written since; lock again, and read before you write"
    )]
    LeaseEnded,
    /// The condition of a conditional write does not hold.
    #[error("the condition of the write does not hold; read the key and decide again")]
    Condition,
    /// The pool is full and cannot grow.
    #[error("the pool is full: {0}")]
    NoSpace(String),
    /// All session slots are taken.
    #[error("more than {0} sessions at once; drop some, or raise Options::sessions_max")]
    TooManySessions(usize),
    /// The log of a store of the engine `tiered` is still being read, and the call needs more than its pool.
    #[error("the store is loading its log, and this needs keys of it; try again soon")]
    Loading,
    /// Bytes that should verify do not.
    #[error("damaged pool {path}: at byte {offset}: {what}. {remedy}", path = .path.display())]
    Corrupt {
        /// The pool.
        path: PathBuf,
        /// Byte offset in the pool's image.
        offset: u64,
        /// What is wrong there.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// No log is free for this write: sessions with submitted writes hold all of them. Commit in those
    /// sessions.
    #[error(
        "no log is free for a write: sessions with submitted writes hold all {0}; commit those, or give a new pool more logs"
    )]
    Uncommitted(usize),
    /// A step failed half-way, so the store takes no more writes. Reads go on.
    #[error(
        "the store stopped taking writes after a failure ({0}); reopen it: recovery finishes or undoes what was half done"
    )]
    Halted(String),
    /// The store was opened read-only.
    #[error("the store is open read-only; to write, open it without `read_only` and `salvage`")]
    ReadOnly,
    /// The pool belongs to another engine than asked for, or to one that this everdram lacks.
    #[error("{path}: {why}", path = .path.display(), why = refusal(*.number, *.asked))]
    Engine {
        /// The pool.
        path: PathBuf,
        /// Number of its engine in the superblock.
        number: u32,
        /// The engine asked for; `None` = any.
        asked: Option<EngineKind>,
    },
    /// The options do not fit the pool or each other.
    #[error("{0}")]
    Options(String),
    /// The medium refused or failed.
    #[error(transparent)]
    Pool(#[from] everdram_pm::Error),
}

impl Error {
    /// Whether bytes that should verify do not.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Error::Corrupt { .. } | Error::Pool(everdram_pm::Error::Corrupt { .. })
        )
    }

    /// An error of the pool: without room it is [`Error::NoSpace`], as if the engine had found none.
    pub(crate) fn of_pool(error: everdram_pm::Error) -> Error {
        match error {
            everdram_pm::Error::NoSpace { .. } => Error::NoSpace(error.to_string()),
            other => Error::Pool(other),
        }
    }

    /// Fills in the pool's path where the error was made without it.
    #[cold]
    pub(crate) fn at_path(self, at: &Path) -> Error {
        match self {
            Error::Corrupt {
                path,
                offset,
                what,
                remedy,
            } if path.as_os_str().is_empty() => Error::Corrupt {
                path: at.into(),
                offset,
                what,
                remedy,
            },
            other => other,
        }
    }
}

/// What to do about damage.
pub(crate) const REMEDY: &str = "`everdram check` lists all damage; restore the pool from a copy, or save what verifies: \
     `everdram export --salvage POOL FILE` writes it to a file, `everdram serve --salvage --pool POOL` serves it read-only";

/// A damage error without the path; [`Error::at_path`] fills it in.
#[cold]
pub(crate) fn corrupt(offset: u64, what: impl Into<String>) -> Error {
    Error::Corrupt {
        path: PathBuf::new(),
        offset,
        what: what.into(),
        remedy: REMEDY,
    }
}
