//! The redo log of the `file` medium (placeholder interface while it is built).

use crate::lane::Lsn;
use crate::pool::Pool;

/// The log.
pub(crate) struct Log {}

/// What one lane has flushed since its last fence.
#[derive(Default)]
pub(crate) struct Group {}

impl Group {
    /// Whole lines that only this lane writes.
    pub(crate) fn push_lines(&mut self, _pool: &Pool, _at: u64, _lines: &[u8]) {}
    /// A range that others may write too: its lines are copied from the image when the group closes.
    pub(crate) fn push_shared(&mut self, _at: u64, _bytes: u64) {}
    /// Appends the group to the log.
    pub(crate) fn close(&mut self, _pool: &Pool) -> Lsn {
        Lsn(0)
    }
}
