//! Windows over the extents of a pool, one for each, made when somebody needs it.

use crate::link::LinkError;
use everdram_pm::{Pool, Window};
use std::sync::Arc;

/// See the module text.
pub(super) struct Extents {
    pool: Arc<Pool>,
    /// The newest is the last.
    windows: Vec<Arc<Window>>,
    /// Whether it was said that the fabric does not expose them.
    is_told: bool,
}

impl Extents {
    pub(super) fn new(pool: Arc<Pool>) -> Extents {
        Extents {
            pool,
            windows: Vec::new(),
            is_told: false,
        }
    }

    /// The fabric does not expose a window, so values go through the door's memory. Says so once.
    pub(super) fn refused(&mut self, error: &LinkError) {
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(%error, "the fabric does not expose memory of the pool: values are copied");
        }
    }

    /// The window that has these bytes of the pool, with its number, which it keeps. `None`: they are not
    /// within one extent, or the pool has failed.
    pub(super) fn window(&mut self, offset: u64, bytes: u64) -> Option<(usize, Arc<Window>)> {
        let end = offset.checked_add(bytes)?;
        let has = |window: &Arc<Window>| {
            window.at() <= offset && end <= window.at() + window.len() as u64
        };
        let index = match self.windows.iter().rposition(has) {
            Some(index) => index,
            // The pool has grown, so its last extent is longer, or there is a new one.
            None => {
                let extent = self.pool.extent_at(offset)?;
                let window = self.pool.window(extent.at, extent.bytes).ok()?;
                self.windows.push(Arc::new(window));
                self.windows.len() - 1
            }
        };
        let window = self.windows.get(index).filter(|window| has(window))?;
        Some((index, Arc::clone(window)))
    }
}
