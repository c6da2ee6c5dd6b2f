//! From a path to a running engine. A pool that is there says itself which engine it has; options say it for a new one.

use crate::bullet::{self, Bullet};
use crate::engine::Engine;
use crate::error::Error;
use crate::inspect::Inspection;
use crate::kind::EngineKind;
use crate::options::{Create, Options};
use crate::viper::{self, Viper};
use everdram_pm::{Pool, PoolOptions, Report};
use std::path::Path;
use std::sync::Arc;

/// An engine that was recovered, and whose background work waits to be started.
pub(crate) trait Recovered: Engine {
    /// Starts the threads that work in the background.
    fn start(self: Arc<Self>);
    /// Tells people what only the engine knows of its pool: fields, blocks by kind, the map of space.
    fn describe(&self, inspection: &mut Inspection);
    /// One round of what those threads do; `cursor` says where the sweep of expired keys goes on.
    ///
    /// # Errors
    /// What the threads would have met.
    #[cfg(feature = "lab")]
    fn tend(self: Arc<Self>, cursor: &mut u64) -> Result<(), Error>;
    /// How the engine uses the pool's room.
    #[cfg(feature = "lab")]
    fn space(&self) -> crate::lab::Space;
}

/// Opens or creates the pool at `path`, recovers its engine and starts what that does in the background.
///
/// # Errors
/// See [`Error`]; a pool that cannot be opened, or has an engine that was not asked for, is left untouched.
pub(crate) fn open(path: &Path, options: &Options) -> Result<(Arc<dyn Engine>, Report), Error> {
    if options.engine == Some(EngineKind::Model) {
        return Ok(crate::model::open(options));
    }
    let pool = pool(path, options)?;
    let engine = recovered(Arc::clone(&pool), path, options)?;
    if !pool.is_read_only() {
        Arc::clone(&engine).start();
    }
    Ok((engine, pool.report()))
}

/// The engine of an open pool, recovered, without background threads.
///
/// # Errors
/// As [`open`].
pub(crate) fn recovered(
    pool: Arc<Pool>,
    path: &Path,
    options: &Options,
) -> Result<Arc<dyn Recovered>, Error> {
    match EngineKind::from_number(pool.engine()) {
        Some(EngineKind::Viper) => Ok(Viper::over(pool, path, options)?),
        Some(EngineKind::Bullet) => Ok(Bullet::over(pool, path, options)?),
        Some(EngineKind::Model) | None => Err(Error::Engine {
            path: path.into(),
            number: pool.engine(),
            asked: options.engine,
        }),
    }
}

/// What the superblock of a new pool says of its engine: number and geometry words.
///
/// # Errors
/// [`Error::Options`]: the engine cannot have such a pool.
pub(crate) fn identity(options: &Options) -> Result<(u32, [u64; 8]), Error> {
    let kind = options.engine.unwrap_or_default();
    let geometry = match kind {
        EngineKind::Viper => viper::geometry(options)?,
        EngineKind::Bullet => bullet::geometry(options)?,
        EngineKind::Model => return Err(Error::Options("the model has no pool".into())),
    };
    Ok((kind.number(), geometry))
}

/// The pool at `path`, without its engine.
///
/// # Errors
/// As [`open`].
pub(crate) fn pool(path: &Path, options: &Options) -> Result<Arc<Pool>, Error> {
    let engines = match options.engine {
        Some(asked) => vec![asked.number()],
        None => EngineKind::ALL.iter().map(|kind| kind.number()).collect(),
    };
    pool_of(path, options, identity(options)?, engines)
}

/// The pool at `path`: a new one of this number and geometry, or one that has one of these numbers.
///
/// # Errors
/// As [`open`].
pub(crate) fn pool_of(
    path: &Path,
    options: &Options,
    (engine, geometry): (u32, [u64; 8]),
    engines: Vec<u32>,
) -> Result<Arc<Pool>, Error> {
    let opened = Pool::open(
        path,
        &PoolOptions {
            medium: options.medium,
            create: options.create != Create::Never,
            open: options.create != Create::New,
            read_only: options.read_only,
            durability: options.durability,
            max_bytes: options.max_bytes,
            log_bytes: options.log_bytes,
            delay: options.delay.clone(),
            engine,
            geometry,
            engines,
        },
    );
    opened.map_err(|error| match error {
        everdram_pm::Error::Engine { path, engine } => Error::Engine {
            path,
            number: engine,
            asked: options.engine,
        },
        other => Error::Pool(other),
    })
}
