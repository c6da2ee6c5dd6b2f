//! What can go wrong, for callers: bad input, a full or failing medium, damaged bytes. Bugs are assertions.

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
    /// `update_word` outside the value.
    #[error("no aligned 8-byte word at byte {at} of a value of {len} bytes")]
    WordOutside {
        /// Where the word was asked for.
        at: usize,
        /// Length of the value.
        len: usize,
    },
    /// A transaction touched a key that its scope does not name.
    #[error("the transaction did not declare this key")]
    KeyNotLocked,
    /// A conditional write found another state than it asked for.
    #[error("the condition of the write does not hold")]
    Condition,
    /// No room in the pool, and it cannot grow.
    #[error("the pool is full: {0}")]
    NoSpace(String),
    /// All session slots are taken.
    #[error("more than {0} sessions at once; drop some, or raise Options::sessions_max")]
    TooManySessions(usize),
    /// Bytes that should verify do not.
    #[error("damaged pool {path}: at byte {offset}: {what}. {remedy}", path = .path.display())]
    Corrupt {
        /// The pool.
        path: PathBuf,
        /// Byte offset in the pool's image.
        offset: u64,
        /// What was found there.
        what: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// Other sessions have submitted writes and do not commit them, and so keep what this one needs.
    #[error(
        "no room for a write: all {0} logs are kept by sessions that have submitted writes and do not commit them"
    )]
    Uncommitted(usize),
    /// Something failed half-way, so the store takes no more writes. Reads go on.
    #[error(
        "the store stopped taking writes after a failure ({0}); reopen it: recovery finishes or undoes what was half done"
    )]
    Halted(String),
    /// The store was opened to be read.
    #[error("the store is open read-only")]
    ReadOnly,
    /// The pool has another engine than was asked for, or one that this everdram does not have.
    #[error("{path}: {why}", path = .path.display(), why = refusal(*.number, *.asked))]
    Engine {
        /// The pool.
        path: PathBuf,
        /// Number of its engine in the superblock.
        number: u32,
        /// The engine that was asked for; `None` = any.
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

    /// Puts the pool's path into an error of those that do not know it.
    #[cold]
    pub(crate) fn at_path(self, at: &Path) -> Error {
        match self {
            Error::Corrupt {
                offset,
                what,
                remedy,
                ..
            } => Error::Corrupt {
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

/// Damage, without the path.
#[cold]
pub(crate) fn corrupt(offset: u64, what: impl Into<String>) -> Error {
    Error::Corrupt {
        path: PathBuf::new(),
        offset,
        what: what.into(),
        remedy: REMEDY,
    }
}
