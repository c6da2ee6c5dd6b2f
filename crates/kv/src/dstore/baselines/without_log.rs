//! Commits of the systems that have no log: the volatile one keeps nothing, the inline one changes the shadow
//! and switches its root before anybody sees the write.

use super::super::session::DstoreSession;
use crate::dipper::Collected;
use crate::error::Error;
use crate::options::DstoreSystem;

impl DstoreSession {
    /// Makes operations durable as far as a system without a log does.
    pub(in super::super) fn keep_without_log(
        &mut self,
        bytes: &[u8],
        count: u32,
    ) -> Result<(), Error> {
        if self.engine.system == DstoreSystem::Volatile {
            return Ok(());
        }
        let engine = &self.engine;
        let mut collected = Collected::default();
        engine
            .machine
            .collect_bytes(bytes, count, &mut collected)
            .and_then(|()| engine.dipper.apply_now(&engine.machine, &mut collected))
            .map_err(|error| engine.at_path(error))
    }
}
