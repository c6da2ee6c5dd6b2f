//! Grants: the right to one write of one value, into memory of the door. (RDMP-KV section III-A, the metadata
//! phase; here it changes nothing that anybody can see.)
//!
//! The memory that a connection was given stays that connection's until it is closed: a write that arrives
//! late then changes nothing but what its own client wants to write (R6). So a grant is used once, and its
//! memory again.

use super::lends::Lent;
use super::memory::{Kind, Memory, Share};
use crate::link::{Area, Conn, Link, LinkError};
use crate::wire::VALUE_BYTES_MAX;
use everdram::engine::Loan;
use std::collections::HashMap;
use std::sync::Arc;

/// Pieces of memory that one connection may be given, each for the longest value.
const CHUNKS_MAX: usize = 4;
/// What a grant takes is a multiple of this, in bytes.
const UNIT_BYTES: usize = 64 << 10;
/// Units of a chunk: a bit of a word for each.
const UNITS: usize = VALUE_BYTES_MAX / UNIT_BYTES;
const _: () = assert!(UNITS == 16 && VALUE_BYTES_MAX.is_multiple_of(UNIT_BYTES));

/// Memory in which grants lie.
struct Chunk {
    area: Area,
    /// Units in use.
    used: u16,
    _share: Share,
}

/// The place of a grant.
#[derive(Clone, Copy)]
pub(super) struct Place {
    chunk: usize,
    unit: usize,
    units: usize,
}

/// Where a value is to be written.
pub(super) enum Room {
    /// Memory of the connection.
    Own(Place),
    /// Blocks of the store.
    Lent(Lent),
}

/// What may be written, and what it will be.
pub(super) struct Grant {
    pub(super) room: Room,
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
    chunks: Vec<Chunk>,
    /// Of loans, those included that were not adopted.
    lent_units: usize,
    /// What was lent and not adopted.
    unused: Vec<Loan>,
}

impl Grants {
    /// Memory for a value; `None`: as long as other grants are not used, of this connection or of others,
    /// there is none.
    ///
    /// # Errors
    /// [`LinkError`]: the fabric exposes no more memory.
    pub(super) fn room(
        &mut self,
        link: &mut dyn Link,
        conn: Conn,
        memory: &Arc<Memory>,
        value_bytes: usize,
    ) -> Result<Option<Place>, LinkError> {
        let units = value_bytes.div_ceil(UNIT_BYTES).clamp(1, UNITS);
        loop {
            for (chunk, memory) in self.chunks.iter_mut().enumerate() {
                if let Some(unit) =
                    (0..=UNITS - units).find(|&unit| memory.used & bits(unit, units) == 0)
                {
                    memory.used |= bits(unit, units);
                    return Ok(Some(Place { chunk, unit, units }));
                }
            }
            if self.chunks.len() >= CHUNKS_MAX {
                return Ok(None);
            }
            // More than one value at a time is spare.
            let is_spare = !self.chunks.is_empty();
            let Some(share) = memory.share(VALUE_BYTES_MAX, is_spare) else {
                memory.was_wanting(Kind::Memory);
                return Ok(None);
            };
            let area = link.expose(conn, VALUE_BYTES_MAX)?;
            self.chunks.push(Chunk {
                area,
                used: 0,
                _share: share,
            });
        }
    }

    /// Address and key of a place, as the client names it.
    pub(super) fn target(&self, place: Place) -> Option<(u64, u64)> {
        let area = self.chunks.get(place.chunk)?.area;
        Some((area.address + (place.unit * UNIT_BYTES) as u64, area.key))
    }

    /// Copies what lies in a place now.
    ///
    /// # Errors
    /// [`LinkError::Foreign`]: it is no place of this link.
    pub(super) fn read(
        &self,
        link: &dyn Link,
        place: Place,
        into: &mut [u8],
    ) -> Result<(), LinkError> {
        let chunk = self.chunks.get(place.chunk).ok_or(LinkError::Foreign)?;
        link.read_area(&chunk.area, place.unit * UNIT_BYTES, into)
    }

    /// Gives a grant; returns its number.
    pub(super) fn give(&mut self, grant: Grant) -> u64 {
        self.last += 1;
        self.given.insert(self.last, grant);
        self.last
    }

    /// Takes a grant of this connection, which counts once (R7). Memory of the connection is free again.
    pub(super) fn take(&mut self, number: u64) -> Option<Grant> {
        let grant = self.given.remove(&number)?;
        if let Room::Own(Place { chunk, unit, units }) = grant.room
            && let Some(chunk) = self.chunks.get_mut(chunk)
        {
            chunk.used &= !bits(unit, units);
        }
        Some(grant)
    }

    /// Whether the connection has memory of the door. What was lent is the store's.
    pub(super) fn has_memory(&self) -> bool {
        !self.chunks.is_empty()
    }

    /// Whether the connection may be lent room for a value: as much as it may have of its own.
    pub(super) fn may_borrow(&self, value_bytes: u64) -> bool {
        units_lent(value_bytes) + self.lent_units <= CHUNKS_MAX * UNITS
    }

    /// Counts a loan that is about to be given.
    pub(super) fn borrow(&mut self, value_bytes: u64) {
        self.lent_units += units_lent(value_bytes);
    }

    /// Ends the loan of a value of so many bytes, which is empty if it was adopted. Otherwise it stays.
    pub(super) fn end_loan(&mut self, value_bytes: u64, loan: Loan) {
        match loan.places().is_empty() {
            true => self.lent_units -= units_lent(value_bytes),
            false => self.unused.push(loan),
        }
    }

    /// Takes all memory back; the connection is closed. Returns what was lent and not adopted: no write of it
    /// can arrive any more.
    pub(super) fn end(self, link: &mut dyn Link) -> Vec<Loan> {
        let areas = self.chunks.into_iter().map(|chunk| chunk.area);
        areas.for_each(|area| link.unexpose(area));
        let mut loans = self.unused;
        for grant in self.given.into_values() {
            if let Room::Lent(lent) = grant.room {
                loans.push(lent.revoke(link));
            }
        }
        loans
    }
}

/// Units that the loan of a value counts.
fn units_lent(value_bytes: u64) -> usize {
    let units = value_bytes.div_ceil(UNIT_BYTES as u64);
    usize::try_from(units).unwrap_or(usize::MAX).clamp(1, UNITS)
}

/// The bits of so many units from one on.
fn bits(unit: usize, units: usize) -> u16 {
    let run = u16::MAX >> (UNITS - units);
    run << unit
}
