//! Calls that were submitted, and what they came to.

use super::{ClientError, Way};

/// What is known of a key without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// Bytes of the value.
    pub value_bytes: u64,
    /// Absolute expiry in Unix milliseconds; 0 = never.
    pub expires_at_ms: u64,
}

/// Names a submitted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// As a number, which no other ticket of its client has.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// What a call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The value is stored, durably as [`Client::acknowledgement`] says. It travelled this way.
    Stored(Way),
    /// The value of the key.
    Found(Vec<u8>, Probed),
    /// What is known of the key.
    Probed(Probed),
    /// There was no such key.
    Absent,
    /// The key is removed, durably.
    Removed,
}

/// A submitted call that has ended.
#[derive(Debug)]
pub struct Done {
    /// Its ticket.
    pub ticket: Ticket,
    /// What it came to.
    pub outcome: Result<Outcome, ClientError>,
}
