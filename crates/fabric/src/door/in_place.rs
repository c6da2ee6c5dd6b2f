//! Long values that clients read where they lie, without a thread of the door. (RDMP-KV section III-A, the
//! two-phase GET.)
//!
//! The reply to a Get names the pieces of the value and a lease. The engine keeps them for longer than that,
//! so a client that finishes within the lease, by its own clock and counted from before it asked, has read
//! the value. Each piece has a check beside. A client that vanishes holds nothing: what is kept for it ends
//! by the clock.
//!
//! Clients can read all of the extents in which values lie, so they must be trusted with everything that any
//! client may read, and with what was removed lately.

use super::extents::Extents;
use crate::link::{Access, Area, Conn, Link};
use crate::wire;
use everdram::engine::{Piece, Placing};
use everdram_pm::Pool;
use std::sync::Arc;
use std::time::Duration;

/// Windows that a connection may be given: a pool that grows has more and more.
const AREAS_MAX: usize = 1024;

/// What a loop needs to let clients read.
pub(super) struct Reads {
    extents: Extents,
    lease: Duration,
    /// The pieces of the value that is being answered.
    pub(super) pieces: Vec<Piece>,
}

/// What a connection may read.
#[derive(Default)]
pub(super) struct Readable {
    /// With the index of its window.
    areas: Vec<(usize, Area)>,
}

impl Reads {
    pub(super) fn new(pool: Arc<Pool>, lease: Duration) -> Reads {
        Reads {
            extents: Extents::new(pool),
            lease,
            pieces: Vec::new(),
        }
    }

    /// What the engine is asked for. It keeps the pieces for longer than any client believes.
    pub(super) fn placing(&self) -> Placing {
        Placing {
            longer_than: wire::INLINE_BYTES as u64,
            hold: self.lease + self.lease / 8 + Duration::from_millis(1),
            pieces_max: wire::PIECES_MAX,
        }
    }

    /// The lease that clients are told, in ms.
    pub(super) fn lease_ms(&self) -> u64 {
        self.lease.as_millis() as u64
    }

    /// Appends the pieces, as a client names them, to a body. `false`: the fabric exposes no more memory, and
    /// nothing is appended.
    pub(super) fn tell(
        &mut self,
        readable: &mut Readable,
        link: &mut dyn Link,
        conn: Conn,
        into: &mut Vec<u8>,
    ) -> bool {
        let (begin, pieces) = (into.len(), std::mem::take(&mut self.pieces));
        for piece in &pieces {
            let Some((window, area)) = self.area_of(piece, readable, link, conn) else {
                into.truncate(begin);
                return false;
            };
            let told = wire::Piece {
                address: area.address + (piece.offset - window),
                key: area.key,
                bytes: piece.bytes,
                check: piece.check,
            };
            into.extend_from_slice(&told.to_bytes());
        }
        self.pieces = pieces;
        true
    }

    /// The area of a connection that has a piece, and where in the pool it begins.
    fn area_of(
        &mut self,
        piece: &Piece,
        readable: &mut Readable,
        link: &mut dyn Link,
        conn: Conn,
    ) -> Option<(u64, Area)> {
        let (index, window) = self.extents.window(piece.offset, piece.bytes)?;
        let known = readable.areas.iter().find(|(of, _)| *of == index);
        let area = match known {
            Some((_, area)) => *area,
            None if readable.areas.len() >= AREAS_MAX => return None,
            None => {
                let exposed = link.expose_window(conn, &window, Access::Read);
                let area = exposed.map_err(|error| self.extents.refused(&error)).ok()?;
                readable.areas.push((index, area));
                area
            }
        };
        Some((window.at(), area))
    }
}

impl Readable {
    /// Takes it all back. The connection is closed.
    pub(super) fn end(self, link: &mut dyn Link) {
        let areas = self.areas.into_iter().map(|(_, area)| area);
        areas.for_each(|area| link.unexpose(area));
    }
}
