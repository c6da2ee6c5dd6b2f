//! Feature `lab`: the store's background work, job by job, and its space, for the crash lab.

use crate::error::Error;

/// How an engine uses the blocks of a pool; its [`crate::Stats`] must agree with it.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks in the pool.
    pub blocks: u64,
    /// Free blocks with which a write of a few bytes finds room, whatever its key.
    pub blocks_to_write: u64,
    /// Whether free room may be so scattered that a write finds none all the same.
    pub is_scattered: bool,
    /// Blocks that may be in use in a store without keys, after reclamation and one more write. Those of a
    /// checkpoint of the index do not count.
    pub blocks_left: u64,
}

/// Work that a thread of the store repeats, one round at a time.
pub struct Job {
    /// The job's name.
    pub name: &'static str,
    /// Runs one round; returns whether there was work.
    pub round: Box<dyn FnMut() -> Result<bool, Error> + Send>,
}

impl Job {
    /// A job of these rounds.
    pub(crate) fn new(
        name: &'static str,
        round: impl FnMut() -> Result<bool, Error> + Send + 'static,
    ) -> Job {
        Job {
            name,
            round: Box::new(round),
        }
    }
}
