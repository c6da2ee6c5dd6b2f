//! From a path to a running engine. A pool that is there says itself which engine it has; options say it for a new one.

use super::Engine;
use super::damage::Damage;
use super::kind::EngineKind;
use super::salvaged::Salvaged;
use crate::bullet::{self, Bullet};
use crate::error::Error;
use crate::inspect::Inspection;
use crate::options::{Create, Options};
use crate::stats::Finding;
use crate::viper::{self, Viper};
use everdram_pm::{Pool, PoolOptions, Report};
use std::path::Path;
use std::sync::Arc;

/// An engine that was recovered, and whose background work waits to be started.
pub(crate) trait Recovered: Engine {
    /// Starts the threads that work in the background.
    fn start(self: Arc<Self>);
    /// What is missing, if it was salvaged.
    fn damage(&self) -> Option<&Arc<Damage>>;
    /// Tells people what only the engine knows of its pool: fields, blocks by kind, the map of space.
    fn describe(&self, inspection: &mut Inspection);
    /// One round of what those threads do; `cursor` says where the sweep of expired keys goes on.
    ///
    /// # Errors
    /// What the threads would have met.
    #[cfg(feature = "lab")]
    fn tend(self: Arc<Self>, cursor: &mut u64) -> Result<(), Error>;
    /// What those threads do, each kind of work by itself.
    #[cfg(feature = "lab")]
    fn jobs(self: Arc<Self>) -> Vec<crate::lab::Job>;
    /// Looks at the clock: what has expired by then stays expired, if the clock goes back or not.
    #[cfg(feature = "lab")]
    fn see_clock(&self);
    /// How the engine uses the pool's room.
    #[cfg(feature = "lab")]
    fn space(&self) -> crate::lab::Space;
}

/// An open store.
pub(crate) struct Opened {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) report: Report,
    /// What is missing, if it was salvaged.
    pub(crate) damage: Option<Arc<Damage>>,
}

/// Opens or creates the pool at `path`, recovers its engine and starts what that does in the background.
///
/// # Errors
/// See [`Error`]; a pool that cannot be opened, or has an engine that was not asked for, is left untouched.
pub(crate) fn open(path: &Path, options: &Options) -> Result<Opened, Error> {
    if options.engine == Some(EngineKind::Model) {
        let (engine, report) = crate::engine::model::open(options);
        return Ok(Opened {
            engine,
            report,
            damage: None,
        });
    }
    let pool = pool(path, options)?;
    let engine = recovered(Arc::clone(&pool), path, options)?;
    if !pool.is_read_only() {
        Arc::clone(&engine).start();
    }
    let damage = engine.damage().cloned();
    Ok(Opened {
        engine: match &damage {
            Some(damage) => Arc::new(Salvaged::new(engine, Arc::clone(damage), path.into())),
            None => engine,
        },
        report: pool.report(),
        damage,
    })
}

/// What is to be noted of a pool's damage by who salvages it, and what its medium has noted already.
pub(crate) fn damage_of(pool: &Pool, options: &Options) -> Option<Arc<Damage>> {
    options.salvage.then(|| {
        let damage = Damage::default();
        for found in pool.damage() {
            damage.note(Finding {
                file: Some(found.file.clone()),
                bytes: found.bytes,
                missing: u64::from(found.is_loss),
                stale: found.is_loss,
                ..Finding::new(found.offset, found.what.clone())
            });
        }
        Arc::new(damage)
    })
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
            read_only: options.read_only || options.salvage,
            salvage: options.salvage,
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
