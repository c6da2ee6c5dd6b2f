//! Blocks of the store that a connection was lent: a long value that is written there is not copied.
//! (RDMP-KV section III-B; everdram lends where the store gives a value room of its own.)
//!
//! A loan is of one put, like any grant. Its memory is exposed piece by piece, under keys that nobody else
//! has, and taken back before a byte of it is looked at. So what a client writes later is refused. But where
//! that does not stop a write that has begun (over `tcp` it does not), a client that shows a key of its own
//! over two connections could change what it was told is stored. So loans are for peers that are trusted.
//! And so their checks are stored unread where adapters have checked what they carried.
//!
//! What was not adopted stays with its connection until that is closed, and counts as its memory: then no
//! write of it can arrive any more, and the blocks may become anybody's.

use super::extents::Extents;
use crate::link::{Access, Area, Conn, Link};
use crate::wire::{self, PIECES_MAX};
use everdram::engine::{Engine, Loan, Place, Said};
use everdram_pm::Pool;
use std::sync::Arc;

/// Bytes of a line: what is exposed is whole ones.
const LINE: u64 = 64;

/// What a loop needs to lend.
pub(super) struct Lends {
    engine: Arc<dyn Engine>,
    extents: Extents,
}

/// A loan that its client may write.
pub(super) struct Lent {
    pub(super) loan: Loan,
    areas: Vec<Area>,
    /// Whether its client says that it writes durably.
    is_durable: bool,
}

impl Lends {
    pub(super) fn new(engine: Arc<dyn Engine>, pool: Arc<Pool>) -> Lends {
        Lends {
            engine,
            extents: Extents::new(pool),
        }
    }

    /// Lends room for a value; `None`: the client writes it elsewhere.
    pub(super) fn lend(
        &mut self,
        link: &mut dyn Link,
        conn: Conn,
        (key, value_bytes): (&[u8], u64),
        is_durable: bool,
    ) -> Option<Lent> {
        let loan = self.engine.lend(key, value_bytes)?;
        let mut areas = Vec::new();
        let all = loan.places().iter();
        let exposed = all.map(|place| self.expose(link, conn, place));
        let is_exposed = exposed
            .map_while(|area| area.map(|area| areas.push(area)))
            .count();
        let lent = Lent {
            areas,
            loan,
            is_durable,
        };
        if is_exposed == lent.loan.places().len() && is_exposed <= PIECES_MAX {
            return Some(lent);
        }
        // Nobody was told of it.
        self.engine.take_back(lent.revoke(link));
        None
    }

    fn expose(&mut self, link: &mut dyn Link, conn: Conn, place: &Place) -> Option<Area> {
        let bytes = place.bytes.next_multiple_of(LINE);
        let (_, window) = self.extents.window(place.offset, bytes)?;
        let from = usize::try_from(place.offset - window.at()).ok()?;
        let part = from..from + bytes as usize;
        let exposed = link.expose_part(conn, &window, part, Access::Write);
        exposed.map_err(|error| self.extents.refused(&error)).ok()
    }
}

impl Lent {
    /// What its client says by the body of a Done.
    pub(super) fn said(&self, nonce: u64, body: &[u8], is_believed: bool) -> Said {
        let (checks, rest) = body.as_chunks::<8>();
        let checks = checks.iter().filter(|_| rest.is_empty());
        Said {
            seed: nonce,
            checks: checks.map(|check| u64::from_le_bytes(*check)).collect(),
            is_durable: self.is_durable,
            is_believed,
        }
    }

    /// Appends where its client writes the pieces, as it names them.
    pub(super) fn tell(&self, into: &mut Vec<u8>) {
        for (area, place) in self.areas.iter().zip(self.loan.places()) {
            let told = wire::Piece {
                address: area.address,
                key: area.key,
                bytes: place.bytes,
                check: 0,
            };
            into.extend_from_slice(&told.to_bytes());
        }
    }

    /// Takes its memory back from the client.
    pub(super) fn revoke(self, link: &mut dyn Link) -> Loan {
        self.areas.into_iter().for_each(|area| link.unexpose(area));
        self.loan
    }
}
