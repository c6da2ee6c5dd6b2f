//! Feature `lab`: the store's own work, job by job, and its room, as the crash lab asks for them.

use crate::error::Error;

/// How an engine uses the room of a pool, which it takes in blocks: what its [`crate::Stats`] have to agree
/// with.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks that the pool has room for.
    pub blocks: u64,
    /// Free blocks with which a write of a few bytes finds room, whatever its key is.
    pub blocks_to_write: u64,
    /// Whether what is free lies in so many places that a write may find no room all the same.
    pub is_scattered: bool,
    /// Blocks that may be in use in a store without keys, after reclamation and one more write; those of a
    /// checkpoint of the index do not count.
    pub blocks_left: u64,
}

/// Something that a thread of the store does over and over, a round at a time.
pub struct Job {
    /// What it is called.
    pub name: &'static str,
    /// One round; whether there was anything to do.
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
