//! What a client knows of a request that has no reply yet.

use super::{Probed, Ticket, Way};
use crate::wire::INLINE_BYTES;
use std::time::Instant;

/// A request under way.
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) stage: Stage,
}

/// A get that has no value yet.
pub(super) struct Get {
    pub(super) key: Vec<u8>,
    /// Attempts to read in place that failed.
    pub(super) tries: u32,
    /// When it was sent, or before.
    pub(super) begun: Instant,
}

/// How far its call has come.
pub(super) enum Stage {
    Hello,
    Get(Get),
    Probe,
    Delete,
    /// The last request of a put that travels this way.
    Put(Way),
    /// A grant was asked for.
    Prepare {
        way: Way,
        key: Vec<u8>,
        value: Vec<u8>,
        expires_at_ms: u64,
    },
    Part,
    /// A value that the client has made durable, of which the door is to be told.
    Landed(Landed),
}

/// What a door is told of a value that is durable.
pub(super) struct Landed {
    pub(super) key: Vec<u8>,
    pub(super) way: Way,
    pub(super) grant: u64,
    /// Of a slot its generation, else 0.
    pub(super) sum: u64,
    /// [`BY_CLIENT`](crate::wire::BY_CLIENT) of a slot, else 0.
    pub(super) place: u64,
    /// Of lent blocks the checks of their bytes.
    pub(super) checks: Vec<u8>,
}

impl Stage {
    /// Whether it is a put of this key that later requests could overtake: its value is not on the way yet,
    /// or is there and counts only when the door is told.
    pub(super) fn writes(&self, of: &[u8]) -> bool {
        match self {
            Stage::Prepare { key, .. } | Stage::Landed(Landed { key, .. }) => key == of,
            _ => false,
        }
    }

    /// Whether the door may be reading a long value for it.
    pub(super) fn reads_value(&self) -> bool {
        matches!(self, Stage::Get(_) | Stage::Part)
    }

    /// Whether it has memory of the door, or is about to.
    pub(super) fn has_grant(&self) -> bool {
        matches!(
            self,
            Stage::Prepare { .. }
                | Stage::Put(
                    Way::ServerAssisted | Way::ClientCentricAsked | Way::ClientCentricImmediate
                )
        )
    }
}

/// A long value that arrives part by part.
pub(super) struct Long {
    pub(super) ticket: Ticket,
    pub(super) value: Vec<u8>,
    pub(super) probed: Probed,
    grant: u64,
    /// Where the next part to ask for begins.
    asked: usize,
    /// Bytes that are not there yet.
    missing: usize,
}

impl Long {
    pub(super) fn begin(ticket: Ticket, grant: u64, first: Vec<u8>, probed: Probed) -> Long {
        let (asked, whole) = (first.len(), probed.value_bytes as usize);
        let mut value = first;
        value.resize(whole, 0);
        Long {
            ticket,
            value,
            probed,
            grant,
            asked,
            missing: whole - asked,
        }
    }

    /// Ticket, grant and place of the next part to ask for.
    pub(super) fn next_part(&mut self) -> Option<(Ticket, u64, u64)> {
        let place = self.asked;
        (place < self.value.len()).then(|| {
            self.asked += INLINE_BYTES;
            (self.ticket, self.grant, place as u64)
        })
    }

    /// Puts a part in its place; `false`: it has none.
    pub(super) fn place(&mut self, at: u64, part: &[u8]) -> bool {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let end = at.saturating_add(part.len());
        let (Some(place), Some(missing)) = (
            self.value.get_mut(at..end),
            self.missing.checked_sub(part.len()),
        ) else {
            return false;
        };
        place.copy_from_slice(part);
        self.missing = missing;
        !part.is_empty()
    }

    pub(super) fn is_whole(&self) -> bool {
        self.missing == 0
    }
}
