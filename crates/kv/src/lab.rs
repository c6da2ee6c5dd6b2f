//! The crash lab's way into the engines (feature `lab`): engines over pools that the lab made, without
//! background threads, and with the smallest pages that the layout allows, so that a few operations reach
//! every border.

use crate::engine::Engine;
pub use crate::engine::jobs::{Job, Space};
use crate::engine::{Recovered, open};
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

    /// One round of what the background thread does: growth ahead of need, reclamation, the sweep of expired
    /// keys.
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

/// Recovers the engine of a pool. Nothing runs in the background, whoever waits for durability works for it,
/// and what is random otherwise is decided by the pool's secret and how often it was opened.
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
