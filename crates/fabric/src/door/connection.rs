//! What a door knows of a connection.

use super::grants::Grants;
use super::in_place::Readable;
use super::slots::Slots;
use crate::wire::CREDITS_MAX;

/// Requests that a client may have under way before it has shown that it needs more. Each takes a buffer.
pub(super) const CREDITS_FIRST: u16 = 1;
/// Requests after which it may have that many: who only connects takes little memory.
const REQUESTS_TO_SHOW: u64 = 16;

/// The rest of a long value that a client reads part by part.
pub(super) struct Long {
    pub(super) number: u64,
    pub(super) value: Vec<u8>,
    /// Whether the first part has left, so that the others may: before, the value may not be durable.
    pub(super) is_shown: bool,
}

/// A connection.
#[derive(Default)]
pub(super) struct Connection {
    /// Whether it has said the password.
    pub(super) is_known: bool,
    /// Whether it has said another one. It may say nothing more.
    pub(super) is_denied: bool,
    /// Buffers that it was given.
    pub(super) credits: u16,
    /// Requests without a reply.
    pub(super) under_way: u16,
    pub(super) requests: u64,
    pub(super) grants: Grants,
    pub(super) slots: Slots,
    pub(super) readable: Readable,
    pub(super) long: Option<Long>,
    pub(super) long_last: u64,
}

impl Connection {
    pub(super) fn new() -> Connection {
        Connection {
            credits: CREDITS_FIRST,
            ..Connection::default()
        }
    }

    /// Buffers to give it beside those it has.
    pub(super) fn more_credits(&self) -> u16 {
        match self.is_known && self.requests >= REQUESTS_TO_SHOW {
            true => CREDITS_MAX - self.credits,
            false => 0,
        }
    }
}
