//! The crash lab's way into the engines (feature `lab`): engines over pools that the lab made, without background
//! threads, and with the smallest pages that the layout allows, so that a few operations reach every border.

use crate::engine::Engine;
use crate::error::Error;
use crate::options::{EngineKind, Options};
use crate::viper::{self, Viper};
use everdram_pm::Pool;
use std::path::Path;
use std::sync::Arc;

/// What the superblock of a new pool says of its engine: number and geometry words.
///
/// # Errors
/// As opening a store with these options.
pub fn identity(options: &Options) -> Result<(u32, [u64; 8]), Error> {
    match options.engine {
        EngineKind::Viper => viper::identity(options),
        EngineKind::Model => Err(Error::Options("the model engine has no pool".into())),
    }
}

/// An engine whose background work is done when it is asked for.
pub struct Opened {
    engine: Arc<Viper>,
    cursor: u64,
}

impl Opened {
    /// The engine.
    #[must_use]
    pub fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.engine) as Arc<dyn Engine>
    }

    /// One round of what the background thread does: growth ahead of need, reclamation, the sweep of expired keys.
    ///
    /// # Errors
    /// What the thread would have met.
    pub fn tend(&mut self) -> Result<(), Error> {
        self.engine.tend(&mut self.cursor)
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
        engine: Viper::over(pool, Path::new("lab"), &options)?,
        cursor: 0,
    })
}
