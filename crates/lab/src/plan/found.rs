//! Plans of crashes that were found once and shrunk. Random runs come to each of them once in many hours.
//!
//! A saved crash can be repeated as long as the store takes the same steps until then; see
//! [`crate::explore::replay`].

use super::text;
use super::text::Saved;
use crate::medium::image::Medium;
use everdram::EngineKind;

/// A removed key that was there again after a crash in the recovery of a full pool.
pub const REMOVED_KEY_IN_A_FULL_POOL: &str = include_str!("found/removed-key-in-a-full-pool.plan");

/// All of them.
const ALL: [&str; 1] = [REMOVED_KEY_IN_A_FULL_POOL];

/// Those of an engine and a medium.
///
/// # Panics
/// If one of them cannot be read: a test reads them all.
pub(crate) fn all(engine: EngineKind, medium: Medium) -> Vec<Saved> {
    let saved = ALL.iter().map(|plan| text::read(plan).expect("a plan"));
    let is_ours = |saved: &Saved| (saved.plan.engine, saved.plan.medium) == (engine, medium);
    saved.filter(is_ours).collect()
}
