//! The pool at a path: created or opened as the options say, and refused if it is another program's.

use crate::error::Error;
use crate::options::{Create, Options};
use everdram_pm::{Pool, PoolOptions};
use std::path::Path;
use std::sync::Arc;

/// Opens the pool at `path`, if it has one of `engines`, or creates one with this number and geometry.
///
/// # Errors
/// As [`open`](super::open::open).
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
