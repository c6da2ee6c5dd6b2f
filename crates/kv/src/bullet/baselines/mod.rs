//! The parts of the paper's eight systems that Bullet itself does not need ([`BulletSystem`]).
//!
//! [`BulletSystem`]: crate::options::BulletSystem

pub(super) mod direct;
pub(super) mod reader_locks;
pub(super) mod record_chain;
