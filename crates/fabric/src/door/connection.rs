//! What a door knows of a connection.

use super::grants::Grants;
use super::in_place::Readable;
use super::memory::{Kind, Share};
use super::slots::Slots;
use crate::wire::CREDITS_MAX;
use std::time::Instant;

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
    pub(super) _share: Share,
}

/// A connection.
pub(super) struct Connection {
    /// When it last asked for something, or was answered.
    pub(super) heard: Instant,
    /// It was silent for long at the last look. What it sent may not be read yet: only if it still is at the
    /// next one, it is closed.
    pub(super) is_suspect: bool,
    /// Whether it has said the password.
    pub(super) is_known: bool,
    /// Whether it has said another one. It may say nothing more.
    pub(super) is_denied: bool,
    /// Buffers that it was given.
    pub(super) credits: u16,
    /// Of the memory of those that it has beside the first ones.
    pub(super) buffers: Option<Share>,
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
            heard: Instant::now(),
            is_suspect: false,
            is_known: false,
            is_denied: false,
            credits: CREDITS_FIRST,
            buffers: None,
            under_way: 0,
            requests: 0,
            grants: Grants::default(),
            slots: Slots::default(),
            readable: Readable::default(),
            long: None,
            long_last: 0,
        }
    }

    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
        self.is_suspect = false;
    }

    /// Whether it has something of this kind, for which others may wait.
    pub(super) fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Memory => {
                self.grants.has_memory() || self.long.is_some() || self.buffers.is_some()
            }
            Kind::Slots => self.slots.has_any(),
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
