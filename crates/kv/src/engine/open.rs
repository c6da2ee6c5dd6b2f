//! From a path to a running engine. An existing pool names its engine; options name that of a new one.

use super::damage::Damage;
use super::damage::salvaged::Salvaged;
use super::kind::EngineKind;
use super::pool::pool_of;
use super::{Engine, Recovered};
use crate::bullet::{self, Bullet};
use crate::dstore::{self, Dstore};
use crate::error::Error;
use crate::landing::engine::LandingEngine;
use crate::landing::{Landing, OWN_SESSIONS, recover as landing};
use crate::options::Options;
use crate::viper::{self, Viper};
use everdram_pm::{Pool, Report};
use std::path::Path;
use std::sync::Arc;

/// An open store.
pub(crate) struct Opened {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) report: Report,
    /// The missing data, if the store was salvaged.
    pub(crate) damage: Option<Arc<Damage>>,
    pub(crate) landing: Option<Arc<Landing>>,
}

/// Opens or creates the pool at `path`, recovers its engine and starts its background threads.
///
/// # Errors
/// See [`Error`]; a pool that cannot be opened, or has another engine than the options ask for, is left
/// untouched.
pub(crate) fn open(path: &Path, options: &Options) -> Result<Opened, Error> {
    let pool = pool(path, options)?;
    let opened = |engine, damage, landing| Opened {
        engine,
        // The engine may have added to it.
        report: pool.report(),
        damage,
        landing,
    };
    if pool.is_read_only() {
        let engine = recovered(Arc::clone(&pool), path, options)?;
        let damage = engine.damage().cloned();
        let seen = landing::look(&pool, damage.as_ref());
        seen.map_err(|error| error.at_path(path))?;
        let engine: Arc<dyn Engine> = match &damage {
            Some(damage) => Arc::new(Salvaged::new(engine, Arc::clone(damage), path.into())),
            None => engine,
        };
        return Ok(opened(engine, damage, None));
    }
    if !landing::is_wanted(&pool, options.landing_bytes) {
        let engine = recovered(Arc::clone(&pool), path, options)?;
        Arc::clone(&engine).start();
        return Ok(opened(engine, None, None));
    }
    landing::check_medium(&pool)?;
    landing::refuse_damage(&pool).map_err(|error| error.at_path(path))?;
    let mut options = options.clone();
    options.sessions_max += OWN_SESSIONS;
    let engine = recovered(Arc::clone(&pool), path, &options)?;
    // First, because what has arrived may need room that background work makes, or keys that it loads.
    Arc::clone(&engine).start();
    let landing = landed(Arc::clone(&pool), &options, &engine).map_err(|error| error.at_path(path));
    let landing = landing.inspect_err(|_| {
        // The threads of an engine keep it alive until it is closed. The next open recovers.
        let _ = engine.close();
    })?;
    let engine = LandingEngine::new(engine, Arc::clone(&landing));
    Ok(opened(Arc::new(engine), None, Some(landing)))
}

/// The landing area of a pool, over its running engine.
///
/// # Errors
/// As [`landing::open`] and [`Engine::session`].
pub(crate) fn landed(
    pool: Arc<Pool>,
    options: &Options,
    engine: &Arc<dyn Recovered>,
) -> Result<Arc<Landing>, Error> {
    let session = || Arc::clone(engine).session();
    landing::open(pool, options, [session()?, session()?])
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
    let kind = EngineKind::from_number(pool.engine());
    if let Some(data) = &options.dstore.data
        && kind != Some(EngineKind::Dstore)
    {
        return Err(no_data_file(data));
    }
    if let Some(below) = &options.tiered.below
        && kind != Some(EngineKind::Tiered)
    {
        return Err(no_log(below));
    }
    match kind {
        Some(EngineKind::Viper | EngineKind::Tiered) => Ok(Viper::over(pool, path, options)?),
        Some(EngineKind::Bullet) => Ok(Bullet::over(pool, path, options)?),
        Some(EngineKind::Dstore) => Ok(Dstore::over(pool, path, options)?),
        None => Err(Error::Engine {
            path: path.into(),
            number: pool.engine(),
            asked: options.engine,
        }),
    }
}

fn no_data_file(data: &Path) -> Error {
    let data = data.display();
    Error::Options(format!(
        "{data}: only the engine dstore has a data file; ask for that engine, or name none"
    ))
}

fn no_log(below: &Path) -> Error {
    let below = below.display();
    Error::Options(format!(
        "{below}: only the engine tiered has a log below; ask for that engine, or name none"
    ))
}

/// The engine number and geometry words for the superblock of a new pool.
///
/// # Errors
/// [`Error::Options`]: the engine cannot have such a pool.
pub(crate) fn identity(options: &Options) -> Result<(u32, [u64; 8]), Error> {
    // Whoever names a data file, or a log, wants the engine that has one.
    let kind = match (options.engine, &options.dstore.data, &options.tiered.below) {
        (Some(EngineKind::Dstore) | None, Some(_), None) => EngineKind::Dstore,
        (Some(EngineKind::Tiered) | None, None, Some(_)) => EngineKind::Tiered,
        (_, Some(data), _) => return Err(no_data_file(data)),
        (_, None, Some(below)) => return Err(no_log(below)),
        (asked, None, None) => asked.unwrap_or_default(),
    };
    let geometry = match kind {
        EngineKind::Viper | EngineKind::Tiered => viper::geometry(options)?,
        EngineKind::Bullet => bullet::geometry(options)?,
        EngineKind::Dstore => dstore::geometry(options)?,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;

    #[test]
    fn a_data_file_is_of_the_engine_that_has_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut options = Options {
            engine: Some(EngineKind::Viper),
            ..Options::default()
        };
        drop(Store::open(path("viper"), &options).unwrap());
        options.dstore.data = Some(path("data"));
        for pool in ["viper", "new"] {
            let refused = Store::open(path(pool), &options).err().unwrap();
            assert!(refused.to_string().contains("dstore"), "{refused}");
        }
        assert!(!path("new").exists() && !path("data").exists());
        options.engine = None;
        let refused = Store::open(path("viper"), &options).err().unwrap();
        assert!(refused.to_string().contains("dstore"), "{refused}");
        // Naming it asks for the engine.
        drop(Store::open(path("new"), &options).unwrap());
        options.engine = Some(EngineKind::Dstore);
        drop(Store::open(path("new"), &options).unwrap());
        assert!(path("data").exists());
    }
}
