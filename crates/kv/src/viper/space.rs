//! The room of a pool, in blocks: where they lie, and what state each is in.

use super::block_table::{self, Blocks};
use super::layout::Geometry;
use super::read::Reader;
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

    #[inline]
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader {
            pool: &self.pool,
            geometry: &self.geometry,
            blocks: &self.blocks,
        }
    }
}
