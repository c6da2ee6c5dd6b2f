//! The crash lab's access to the engines (feature `lab`): engines over pools that the lab made, without
//! background threads and with the smallest pages of the layout, so that a few operations reach every edge
//! case.

use crate::engine::Engine;
pub use crate::engine::jobs::{Job, Space};
use crate::engine::{Recovered, open};
use crate::error::Error;
use crate::landing::engine::LandingEngine;
use crate::landing::{Landing, OWN_SESSIONS, recover as landing};
use crate::options::Options;
use everdram_pm::Pool;
use std::path::Path;
use std::sync::Arc;

/// Engine number and geometry words in the superblock of a new pool.
///
/// # Errors
/// As opening a store with these options.
pub fn identity(options: &Options) -> Result<(u32, [u64; 8]), Error> {
    open::identity(options)
}

/// An engine that does its background work only on request.
pub struct Opened {
    engine: Arc<dyn Recovered>,
    landing: Option<Arc<Landing>>,
    cursor: u64,
}

impl Opened {
    /// The engine.
    #[must_use]
    pub fn engine(&self) -> Arc<dyn Engine> {
        let engine = Arc::clone(&self.engine) as _;
        match &self.landing {
            Some(landing) => Arc::new(LandingEngine::new(engine, Arc::clone(landing))),
            None => engine,
        }
    }

    /// The landing area, if the pool has one.
    #[must_use]
    pub fn landing(&self) -> Option<Arc<Landing>> {
        self.landing.clone()
    }

    /// One round of the background thread: growth ahead of need, reclamation, the sweep of expired keys.
    ///
    /// # Errors
    /// The error that would have stopped the thread.
    pub fn tend(&mut self) -> Result<(), Error> {
        Arc::clone(&self.engine).tend(&mut self.cursor)
    }

    /// The engine's background work, each kind by itself, for threads under an outside scheduler.
    #[must_use]
    pub fn jobs(&self) -> Vec<Job> {
        Arc::clone(&self.engine).jobs()
    }

    /// Reads the clock: keys that have expired by then stay expired, even if the clock goes back.
    pub fn see_clock(&self) {
        self.engine.see_clock();
    }

    /// How the engine uses the pool's bytes.
    #[must_use]
    pub fn space(&self) -> Space {
        self.engine.space()
    }
}

/// Recovers the engine of a pool. Nothing runs in the background, and a session that waits for durability
/// writes the log itself. The pool's secret and incarnation replace random choices.
///
/// # Errors
/// As opening a store.
pub fn open(pool: Arc<Pool>, options: &Options) -> Result<Opened, Error> {
    let mut options = options.clone();
    options.seed = Some(pool.secret().sum(&pool.incarnation().to_le_bytes()));
    let is_layered = landing::is_wanted(&pool, options.landing_bytes);
    if is_layered {
        landing::refuse_damage(&pool)?;
        options.sessions_max += OWN_SESSIONS;
    }
    let engine = open::recovered(Arc::clone(&pool), Path::new("lab"), &options)?;
    Ok(Opened {
        landing: match is_layered {
            true => Some(open::landed(pool, &options, &engine)?),
            false => None,
        },
        engine,
        cursor: 0,
    })
}
