//! The crash lab's way into the engines (feature `lab`): engines over pools that the lab made, without background
//! threads, and with the smallest pages that the layout allows, so that a few operations reach every border.

use crate::engine::Engine;
use crate::engine::open::{self, Recovered};
use crate::error::Error;
use crate::options::Options;
use everdram_pm::Pool;
use std::path::Path;
use std::sync::Arc;

/// What the superblock of a new pool says of its engine: number and geometry words.
///
/// # Errors
/// As opening a store with these options.
pub fn identity(options: &Options) -> Result<(u32, [u64; 8]), Error> {
    open::identity(options)
}

/// How an engine uses the room of a pool, which it takes in blocks: what its [`crate::Stats`] have to agree with.
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
    /// Blocks that may be in use in a store without keys, after reclamation and one more write; those of a checkpoint of
    /// the index do not count.
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

/// An engine whose background work is done when it is asked for.
pub struct Opened {
    engine: Arc<dyn Recovered>,
    cursor: u64,
}

impl Opened {
    /// The engine.
    #[must_use]
    pub fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.engine) as _
    }

    /// One round of what the background thread does: growth ahead of need, reclamation, the sweep of expired keys.
    ///
    /// # Errors
    /// What the thread would have met.
    pub fn tend(&mut self) -> Result<(), Error> {
        Arc::clone(&self.engine).tend(&mut self.cursor)
    }

    /// The engine's background work, each kind by itself, for threads that are scheduled from outside.
    #[must_use]
    pub fn jobs(&self) -> Vec<Job> {
        Arc::clone(&self.engine).jobs()
    }

    /// Looks at the clock: what has expired by then stays expired, if the clock goes back or not.
    pub fn see_clock(&self) {
        self.engine.see_clock();
    }

    /// How the engine uses the pool's room.
    #[must_use]
    pub fn space(&self) -> Space {
        self.engine.space()
    }
}

/// Recovers the engine of a pool. Nothing runs in the background, whoever waits for durability works for it, and what
/// is random otherwise is decided by the pool's secret and how often it was opened.
///
/// # Errors
/// As opening a store.
pub fn open(pool: Arc<Pool>, options: &Options) -> Result<Opened, Error> {
    let mut options = options.clone();
    options.seed = Some(pool.secret().sum(&pool.incarnation().to_le_bytes()));
    Ok(Opened {
        engine: open::recovered(pool, Path::new("lab"), &options)?,
        cursor: 0,
    })
}
