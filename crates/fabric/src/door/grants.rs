//! Grants: the right to one write of one value, into memory of the door. (RDMP-KV section III-A, the metadata
//! phase; here it changes nothing that anybody can see.)
//!
//! The memory that a connection was given stays that connection's until it is closed: a write that arrives
//! late then changes nothing but what its own client wants to write (R6). So a grant is used once, and its
//! memory again.

use crate::link::{Area, Link, LinkError};
use std::collections::HashMap;

/// Bytes of memory that one connection may be given.
pub(super) const BYTES_MAX: usize = 4 << 20;
/// Smallest memory for a value, in bytes.
const AREA_BYTES: usize = 64 << 10;

/// What may be written, and what it will be.
pub(super) struct Grant {
    pub(super) area: Area,
    /// Seeds the sum of the value.
    pub(super) nonce: u64,
    pub(super) key: Vec<u8>,
    pub(super) value_bytes: usize,
    pub(super) expires_at_ms: u64,
}

/// The grants of a connection.
#[derive(Default)]
pub(super) struct Grants {
    given: HashMap<u64, Grant>,
    last: u64,
    free: Vec<Area>,
    bytes: usize,
}

impl Grants {
    /// Memory for a value; `None`: this connection has as much as it may have.
    ///
    /// # Errors
    /// [`LinkError`]: the fabric exposes no more memory.
    pub(super) fn room(
        &mut self,
        link: &mut dyn Link,
        value_bytes: usize,
    ) -> Result<Option<Area>, LinkError> {
        let fits = |area: &Area| area.bytes >= value_bytes;
        if let Some(place) = self.free.iter().position(fits) {
            return Ok(Some(self.free.swap_remove(place)));
        }
        let bytes = value_bytes.next_power_of_two().max(AREA_BYTES);
        if self.bytes + bytes > BYTES_MAX {
            return Ok(None);
        }
        let area = link.expose(bytes)?;
        self.bytes += bytes;
        Ok(Some(area))
    }

    /// Gives a grant; returns its number.
    pub(super) fn give(&mut self, grant: Grant) -> u64 {
        self.last += 1;
        self.given.insert(self.last, grant);
        self.last
    }

    /// Takes a grant of this connection, which counts once (R7).
    pub(super) fn take(&mut self, number: u64) -> Option<Grant> {
        self.given.remove(&number)
    }

    /// Keeps the memory of a grant that was taken for the next one.
    pub(super) fn keep(&mut self, area: Area) {
        self.free.push(area);
    }

    /// Takes all memory back. The connection is closed.
    pub(super) fn end(self, link: &mut dyn Link) {
        let given = self.given.into_values().map(|grant| grant.area);
        given.chain(self.free).for_each(|area| link.unexpose(area));
    }
}
