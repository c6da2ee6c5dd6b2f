//! `inspect`: what a pool holds, without starting it: what its superblock says, and what its engine makes of the rest.

use crate::error::Error;
use crate::opening;
use crate::options::{Create, Options};
use crate::stats::Stats;
use everdram_pm::Pool;
use std::path::Path;

/// Blocks of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct KindCount {
    /// What the engine calls them.
    pub kind: &'static str,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of what is stored in them.
    pub filled_bytes: u64,
    /// Bytes of what is not live any more, or cannot be used before it is compacted.
    pub garbage_bytes: u64,
}

/// What [`inspect`] found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Inspection {
    /// Superblock and geometry, as (name, value) with units.
    pub fields: Vec<(String, String)>,
    /// Extents: (owner, first byte, bytes).
    pub extents: Vec<(u32, u64, u64)>,
    /// Blocks by kind.
    pub kinds: Vec<KindCount>,
    /// One byte for each block, in order: share of live bytes, 0 to 100; 255 = free. Empty if the engine has no such map.
    pub space_map: Vec<u8>,
    /// Totals.
    pub stats: Stats,
}

/// Reads the pool at `path` as recovery would, into private memory: nothing in it changes.
///
/// # Errors
/// As opening it; a damaged pool says where.
pub fn inspect(path: &Path) -> Result<Inspection, Error> {
    let options = Options {
        create: Create::Never,
        read_only: true,
        ..Options::default()
    };
    let info = Pool::inspect(path)?;
    let pool = opening::pool(path, &options)?;
    let engine = opening::recovered(pool, path, &options)?;
    // The geometry is words that only the engine can read.
    let named = info.fields.into_iter();
    let named = named.filter(|(name, _)| !name.starts_with("geometry"));
    let mut inspection = Inspection {
        fields: named
            .map(|(name, value)| match name {
                "engine" => (name.into(), format!("{} (number {value})", engine.name())),
                _ => (name.into(), value),
            })
            .collect(),
        extents: info
            .extents
            .iter()
            .map(|extent| (extent.owner, extent.at, extent.bytes))
            .collect(),
        stats: engine.stats(),
        ..Inspection::default()
    };
    engine.describe(&mut inspection);
    Ok(inspection)
}
