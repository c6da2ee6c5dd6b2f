//! Where the data file of a pool, or its log, was last, if it was named: so that commands that open the pool
//! later find it.
//!
//! ```text
//! +--------+------------------------------+-------+
//! | length | path, as the system has it   | check |      512 bytes
//! +--------+------------------------------+-------+
//! 0        8                              504
//! ```
//!
//! Only a hint. The file itself says whether it is the pool's; a hint that does not verify is none, and a
//! crash may leave one torn. The check covers the pool's own path, too: a copy of the pool must not find the
//! original's data file, which would fit it.

use crate::memory::lane::Lane;
use crate::pool::Pool;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bytes of the hint.
pub const HINT_BYTES: usize = 512;
const CHECK_AT: usize = HINT_BYTES - 8;
const PATH_AT: usize = 8;
const SALT: u64 = 0x68;

/// The hint of a pool, [`HINT_BYTES`] at byte `at`: zeros in a new pool.
pub struct Hint<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// The hint's offset in it.
    pub at: u64,
}

impl Hint<'_> {
    /// The path, if there is one that verifies.
    #[must_use]
    pub fn read(&self) -> Option<PathBuf> {
        let mut bytes = [0; HINT_BYTES];
        self.pool.region().load(self.at, &mut bytes);
        let word = |at: usize| {
            bytes[at..]
                .first_chunk()
                .map(|word| u64::from_le_bytes(*word))
        };
        if word(CHECK_AT) != Some(self.check(&bytes)) {
            return None;
        }
        let length = usize::try_from(word(0)?).ok()?;
        let path = bytes[PATH_AT..CHECK_AT].get(..length)?;
        (length > 0).then(|| PathBuf::from(OsStr::from_bytes(path)))
    }

    /// Remembers a path, if one is given that is not remembered yet; durable with the next fence.
    pub fn write(&self, lane: &mut Lane, path: Option<&Path>) {
        // A relative path means another place for a process elsewhere.
        let Some(path) = path.and_then(|path| std::path::absolute(path).ok()) else {
            return;
        };
        if self.read().as_deref() == Some(&path) {
            return;
        }
        let own = path.as_os_str().as_bytes();
        let mut bytes = [0; HINT_BYTES];
        // A path that is too long leaves no hint.
        if own.len() <= CHECK_AT - PATH_AT {
            bytes[..PATH_AT].copy_from_slice(&(own.len() as u64).to_le_bytes());
            bytes[PATH_AT..PATH_AT + own.len()].copy_from_slice(own);
            let check = self.check(&bytes);
            bytes[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
        }
        let stored = lane.store(self.at, &bytes);
        let flushed = lane.flush(stored);
        let _ordered = lane.fence(flushed);
    }

    fn check(&self, bytes: &[u8; HINT_BYTES]) -> u64 {
        let secret = self.pool.secret();
        let pool = std::path::absolute(&self.pool.path).unwrap_or_default();
        let pool = secret.sum(pool.as_os_str().as_bytes());
        secret.sum_words([secret.sum(&bytes[..CHECK_AT]), self.at ^ pool, SALT])
    }
}
