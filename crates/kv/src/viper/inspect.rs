//! `inspect`: what a pool holds, without starting it: superblock, geometry, blocks and how full they are.

use super::blocks::State;
use super::layout::Kind;
use super::{Viper, pool_options};
use crate::engine::Engine;
use crate::error::Error;
use crate::options::{Create, Options};
use crate::stats::Stats;
use everdram_pm::Pool;
use std::path::Path;

/// Blocks of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct KindCount {
    /// `variable`, `fixed`, `large`, `overflow`, `free`.
    pub kind: &'static str,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of records (or of pieces of values) in them.
    pub filled_bytes: u64,
    /// Bytes of dead records, and room of pages that are less than half full.
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
    /// One byte for each block, in order: share of live bytes, 0 to 100; 255 = free.
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
    let geometry = super::layout::Geometry::new(options.page_bytes, options.dimms, options.fixed)?;
    let pool = Pool::open(path, &pool_options(&options, geometry))?;
    let viper = Viper::over(pool, path, &options)?;
    let named = info
        .fields
        .into_iter()
        .filter(|(name, _)| !name.starts_with("geometry"))
        .map(|(name, value)| (name.to_owned(), value));
    let mut fields: Vec<(String, String)> = named.collect();
    let geometry = viper.geometry;
    fields.push(("page bytes".into(), geometry.page_bytes.to_string()));
    fields.push((
        "pages of a block (DIMMs)".into(),
        geometry.pages.to_string(),
    ));
    fields.push(("block bytes".into(), geometry.block_bytes.to_string()));
    if let Some(shape) = geometry.fixed {
        let text = format!("key {} bytes, value {} bytes", shape.key, shape.value);
        fields.push(("fixed-size records".into(), text));
    }
    let extents = info
        .extents
        .iter()
        .map(|e| (e.owner, e.at, e.bytes))
        .collect();
    let (kinds, space_map) = count(&viper);
    Ok(Inspection {
        fields,
        extents,
        kinds,
        space_map,
        stats: viper.stats(),
    })
}

fn count(viper: &Viper) -> (Vec<KindCount>, Vec<u8>) {
    let mut kinds: Vec<KindCount> = ["variable", "fixed", "large", "overflow", "free"]
        .map(|kind| KindCount {
            kind,
            ..KindCount::default()
        })
        .into();
    let mut map = Vec::new();
    for block in viper.blocks.all() {
        let Some(entry) = viper.blocks.get(block) else {
            continue;
        };
        let info = entry.info();
        let pages = viper.geometry.pages_of(info.kind);
        let room = pages.room() * pages.count;
        let live = u64::from(entry.live());
        let (index, live) = match (info.state, info.kind) {
            (State::Free | State::Outside, _) | (_, Kind::Free) => (4, None),
            (_, Kind::Variable) => (0, Some(live)),
            (_, Kind::Fixed | Kind::FixedEdited) => (1, Some(live)),
            (_, Kind::Large) => (2, Some(live)),
            (_, Kind::Overflow) => (3, Some(u64::from(entry.filled()))),
        };
        map.push(live.map_or(255, |live| (live * 100 / room.max(1)).min(100) as u8));
        if let Some(kind) = kinds.get_mut(index) {
            kind.blocks += 1;
            kind.filled_bytes += u64::from(entry.filled());
            kind.garbage_bytes += u64::from(entry.garbage());
        }
    }
    (kinds, map)
}
