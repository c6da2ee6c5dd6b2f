//! What only those of the paper's eight systems need that are not Bullet itself ([`BulletSystem`]).
//!
//! [`BulletSystem`]: crate::options::BulletSystem

pub(super) mod direct;
pub(super) mod reader_locks;
pub(super) mod record_chain;
