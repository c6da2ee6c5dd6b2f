//! What can go wrong, for callers: bad input, a full or failing medium, damaged bytes. Bugs are assertions.

use std::path::PathBuf;

/// Largest key in bytes.
pub const KEY_BYTES_MAX: usize = 64 * 1024;
/// Largest value in bytes.
pub const VALUE_BYTES_MAX: usize = 512 * 1024 * 1024;

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
    /// Something failed half-way, so the store takes no more writes. Reads go on.
    #[error(
        "the store stopped taking writes after a failure ({0}); reopen it: recovery finishes or undoes what was half done"
    )]
    Halted(String),
    /// The options do not fit the pool or each other.
    #[error("{0}")]
    Options(String),
    /// The medium refused or failed.
    #[error(transparent)]
    Pool(#[from] everdram_pm::Error),
}
