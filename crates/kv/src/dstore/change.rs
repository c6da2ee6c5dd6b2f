//! What a write does to an object, as the session says it to its write path.

use super::edit::Patch;
use crate::engine::backend::Change;

/// What is done to an object.
#[derive(Clone, Copy)]
pub(super) enum Write<'a> {
    Remove,
    Put { body: Body<'a>, expires_at_ms: u64 },
}

/// The value of a new state.
#[derive(Clone, Copy)]
pub(super) enum Body<'a> {
    Whole(&'a [u8]),
    /// The same, copied ahead.
    Ahead(&'a [u8]),
    /// The old state's with a part changed; it has a map.
    Part(Patch<'a>),
}

impl<'a> From<Change<'a>> for Write<'a> {
    #[inline]
    fn from(change: Change<'a>) -> Write<'a> {
        match change {
            Change::Remove => Write::Remove,
            Change::Put { .. } | Change::Edit { .. } => Write::Put {
                body: Body::Whole(change.value()),
                expires_at_ms: change.expires_at_ms(),
            },
        }
    }
}
