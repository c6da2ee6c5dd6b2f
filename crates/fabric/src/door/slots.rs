//! Slots of the landing area that a connection was given: where its values land durably without the door.
//! (RDMP-KV section III-B.2, RDMP-CC.)
//!
//! A slot stays its connection's until that is closed: a write that arrives late then spoils nothing but what
//! its own client writes (R6). When its value was applied, the next grant of the connection may have it.

use crate::link::{Access, Area, Conn, Link, LinkError};
use everdram::Error;
use everdram::landing::{Grant, Granter, Landing, PAGE_BYTES};
use std::sync::Arc;

/// Bytes of slots that one connection may have.
const BYTES_MAX: u64 = 4 << 20;

/// A slot of a connection.
struct Slot {
    /// Its grant; `None`: it was asked for and is not given yet.
    number: Option<u32>,
    /// As the link exposes it.
    area: Option<Area>,
    bytes: u64,
    /// A grant for it is being made durable.
    is_prepared: bool,
}

/// What a loop needs to give grants for slots.
pub(super) struct Giver {
    pub(super) landing: Arc<Landing>,
    pub(super) granter: Granter,
}

impl Giver {
    pub(super) fn new(landing: Arc<Landing>) -> Giver {
        Giver {
            granter: landing.granter(),
            landing,
        }
    }
}

/// What a grant of a slot is for.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) key: &'a [u8],
    pub(super) value_bytes: u64,
    pub(super) expires_at_ms: u64,
}

/// All slots of a connection.
#[derive(Default)]
pub(super) struct Slots {
    all: Vec<Slot>,
    bytes: u64,
}

impl Slots {
    /// Prepares a grant in a slot whose value was applied, or in a new one; returns the slot's index. `None`:
    /// the connection has all that it may have, and what it wrote has not arrived. The caller's session has
    /// no submitted writes.
    ///
    /// # Errors
    /// As [`Granter::prepare`] and [`Landing::arrived`].
    pub(super) fn prepare(
        &mut self,
        giver: &mut Giver,
        wanted: Wanted<'_>,
    ) -> Result<Option<usize>, Error> {
        for applies in [false, true] {
            for (index, slot) in self.all.iter_mut().enumerate() {
                let Some(number) = slot.number.filter(|_| !slot.is_prepared) else {
                    continue;
                };
                if applies && !giver.landing.arrived(number)? {
                    continue;
                }
                let Wanted {
                    key,
                    value_bytes,
                    expires_at_ms,
                } = wanted;
                let granter = &mut giver.granter;
                if granter.prepare_again(number, key, value_bytes, expires_at_ms)? {
                    slot.is_prepared = true;
                    return Ok(Some(index));
                }
            }
        }
        let bytes = wanted.slot_bytes();
        if self.bytes + bytes > BYTES_MAX {
            return Ok(None);
        }
        let Wanted {
            key,
            value_bytes,
            expires_at_ms,
        } = wanted;
        giver.granter.prepare(key, value_bytes, expires_at_ms)?;
        self.bytes += bytes;
        self.all.push(Slot {
            number: None,
            area: None,
            bytes,
            is_prepared: true,
        });
        Ok(Some(self.all.len() - 1))
    }

    /// Notes that the grant of a slot is durable; returns the address and the key under which its client
    /// writes.
    ///
    /// # Errors
    /// [`LinkError`]: the fabric exposes no more memory.
    pub(super) fn give(
        &mut self,
        index: usize,
        grant: &Grant,
        landing: &Landing,
        link: &mut dyn Link,
        conn: Conn,
    ) -> Result<(u64, u64), LinkError> {
        let slot = self.all.get_mut(index).ok_or(LinkError::Foreign)?;
        slot.number = Some(grant.number);
        slot.is_prepared = false;
        let area = match slot.area {
            Some(area) => area,
            None => {
                let window = landing.pool().window(grant.offset, slot.bytes);
                let window = window.map_err(|_| LinkError::Foreign)?;
                let area = link.expose_window(conn, &Arc::new(window), Access::Write)?;
                *slot.area.insert(area)
            }
        };
        Ok((area.address, area.key))
    }

    /// Whether this is a grant of this connection that it was told.
    pub(super) fn has(&self, number: u32) -> bool {
        let mut slots = self.all.iter();
        slots.any(|slot| slot.number == Some(number) && !slot.is_prepared)
    }

    /// Takes all memory back; the connection is closed. Returns the grants that are to be released.
    pub(super) fn end(self, link: &mut dyn Link) -> Vec<u32> {
        let mut given = Vec::new();
        for slot in self.all {
            slot.area.into_iter().for_each(|area| link.unexpose(area));
            // One that is being given again is released with its new grant.
            given.extend(slot.number.filter(|_| !slot.is_prepared));
        }
        given
    }
}

impl Wanted<'_> {
    /// Bytes of the pages that a slot for it takes.
    fn slot_bytes(&self) -> u64 {
        let bytes = everdram::landing::slot::bytes(self.key.len(), self.value_bytes);
        bytes.next_multiple_of(PAGE_BYTES)
    }
}
