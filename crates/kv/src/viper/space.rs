//! The room of a pool, in blocks: where they lie, and what state each is in.

use super::block_table::{self, Blocks};
use super::layout::{Geometry, Kind};
use super::read::Reader;
use super::record;
use crate::options::Options;
use everdram_pm::Pool;
use std::sync::Arc;

/// All that finding and placing records takes, except the index.
pub(super) struct Space {
    pub(super) pool: Arc<Pool>,
    pub(super) geometry: Geometry,
    pub(super) blocks: Blocks,
}

impl Space {
    /// The blocks of an open pool. Their contents are not known yet.
    pub(super) fn of(pool: Arc<Pool>, geometry: Geometry, options: &Options) -> Space {
        let bytes_max = options.max_bytes.max(pool.region().len());
        let blocks = Blocks::new(Arc::clone(&pool), geometry, bytes_max, options.chunk_bytes);
        for extent in pool.extents(block_table::OWNER) {
            blocks.add_range(extent.at, extent.bytes);
        }
        Space {
            geometry,
            blocks,
            pool,
        }
    }

    /// Whether a key is so long that no page may have room for it and for the place of its value.
    pub(super) fn is_big(&self, key: &[u8]) -> bool {
        let bytes = record::encoded_bytes(key.len(), record::CHAIN_BYTES, true) as u64;
        bytes > self.geometry.pages_of(Kind::Large).room()
    }

    #[inline]
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader {
            pool: &self.pool,
            geometry: &self.geometry,
            blocks: &self.blocks,
        }
    }
}
