//! The parts of the systems of the paper's figures that DStore itself does not need ([`DstoreSystem`]).
//!
//! [`DstoreSystem`]: crate::options::DstoreSystem

pub(super) mod copy_on_write;
pub(super) mod without_log;
