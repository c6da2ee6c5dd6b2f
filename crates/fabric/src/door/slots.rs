//! Slots of the landing area that a connection was given: where its values land durably without the door.
//! (RDMP-KV section III-B.2, RDMP-CC.)
//!
//! A slot stays its connection's until that is closed: a write that arrives late then spoils nothing but what
//! its own client writes (R6). When its value was applied, the next grant of the connection may have it.

use crate::link::{Access, Area, Conn, Link, LinkError};
use crate::wire::{CREDITS_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use everdram::Error;
use everdram::landing::{Grant, Granter, Landing, PAGE_BYTES};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Sizes of slots in bytes, whole pages, and how many of each a connection may have: as many as it may have
/// requests under way, but for the longest. So a slot whose value was applied fits the next value of its
/// size, and no mixture of lengths uses up what a connection may have.
const SIZES: [(u64, usize); 3] = [
    (PAGE_BYTES, CREDITS_MAX as usize),
    (17 * PAGE_BYTES, CREDITS_MAX as usize),
    (LONGEST.div_ceil(PAGE_BYTES) * PAGE_BYTES, 4),
];
/// Slots at which a look is taken behind the reply to one request for a slot: that one and, of a client who
/// puts one value after the other, the one before.
const LOOKED_AT: u32 = 2;
/// A slot for the longest key and value.
const LONGEST: u64 = 64 + KEY_BYTES_MAX as u64 + VALUE_BYTES_MAX as u64;

/// A slot of a connection.
struct Slot {
    /// Its grant; `None`: it was asked for and is not given yet.
    number: Option<u32>,
    /// Of the grant that its client was told last.
    generation: u64,
    /// As the link exposes it.
    area: Option<Area>,
    bytes: u64,
    /// A grant for it is being made durable.
    is_prepared: bool,
    /// The value of its grant was applied.
    is_applied: bool,
    /// What its client tells with its write, if it asked for that (RDMP-CC-Imm).
    tells: Option<Tells>,
}

/// What a client tells with the write of a slot, once.
#[derive(Clone, Copy)]
struct Tells {
    /// Random: some links do not know who tells something, so only who was told it may say it.
    word: u32,
    /// The Prepare's, and the one of the reply.
    sequence: u32,
}

/// What a loop needs to give grants for slots.
pub(super) struct Giver {
    pub(super) landing: Arc<Landing>,
    pub(super) granter: Granter,
    /// What clients may tell with a write, and whose it is.
    tellers: HashMap<u32, Conn>,
}

impl Giver {
    pub(super) fn new(landing: Arc<Landing>) -> Giver {
        Giver {
            granter: landing.granter(),
            landing,
            tellers: HashMap::new(),
        }
    }

    /// Whose word this is, if it may tell it.
    pub(super) fn teller(&self, word: u32) -> Option<Conn> {
        self.tellers.get(&word).copied()
    }

    /// A word that nobody else may tell.
    fn word_for(&mut self, conn: Conn) -> u32 {
        loop {
            let word = rand::random();
            if let Entry::Vacant(free) = self.tellers.entry(word) {
                free.insert(conn);
                return word;
            }
        }
    }
}

/// What a grant of a slot is for.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) key: &'a [u8],
    pub(super) value_bytes: u64,
    pub(super) expires_at_ms: u64,
    /// The sequence of the request, if its client wants to tell with its write that it is done.
    pub(super) tells: Option<u32>,
}

/// A grant of which a client speaks.
pub(super) enum Told {
    /// It has it now.
    Given,
    /// Its value was applied.
    Applied,
    /// It was told no such grant.
    Unknown,
}

/// Where a client writes a slot, and what it tells with that.
pub(super) struct Given {
    pub(super) address: u64,
    pub(super) key: u64,
    pub(super) word: Option<u32>,
}

/// All slots of a connection.
#[derive(Default)]
pub(super) struct Slots {
    all: Vec<Slot>,
    /// What has arrived could not be applied.
    is_stuck: bool,
    /// Where the last look was.
    next: usize,
}

impl Slots {
    /// Prepares a grant in a slot whose value was applied, or is now, or in a new one; returns the slot's
    /// index. `None`: the connection has all that it may have, and what it wrote has not arrived. The
    /// caller's session has no submitted writes. `is_wanting` is called if the area has no slot left.
    ///
    /// # Errors
    /// As [`Granter::prepare`] and [`Landing::arrived`].
    pub(super) fn prepare(
        &mut self,
        giver: &mut Giver,
        conn: Conn,
        wanted: Wanted<'_>,
        is_wanting: impl FnOnce(),
    ) -> Result<Option<usize>, Error> {
        let needed = wanted.slot_bytes();
        let Wanted {
            key,
            value_bytes,
            expires_at_ms,
            tells,
        } = wanted;
        let size = SIZES.into_iter().find(|(bytes, _)| *bytes >= needed);
        let Some((bytes, most)) = size else {
            return Ok(None);
        };
        if let Some(index) = self.prepare_again(giver, conn, &wanted, bytes, false)? {
            return Ok(Some(index));
        }
        // Another slot, while half of the area is free: what has arrived is applied behind the reply then.
        // But if that has failed, the client is to learn it.
        let count = self.all.iter().filter(|slot| slot.bytes == bytes).count();
        let has_room = || {
            let stats = giver.landing.stats();
            stats.pages_free > stats.pages / 2
        };
        let applies = self.is_stuck || count >= most || count > 0 && !has_room();
        if applies && let Some(index) = self.prepare_again(giver, conn, &wanted, bytes, true)? {
            return Ok(Some(index));
        }
        if count >= most {
            return Ok(None);
        }
        let prepared = giver
            .granter
            .prepare_in(bytes, key, value_bytes, expires_at_ms);
        if matches!(prepared, Err(Error::NoSpace(_))) {
            is_wanting();
        }
        prepared?;
        let mut slot = Slot {
            number: None,
            generation: 0,
            area: None,
            bytes,
            is_prepared: true,
            is_applied: false,
            tells: None,
        };
        slot.tell(giver, conn, tells);
        self.all.push(slot);
        Ok(Some(self.all.len() - 1))
    }

    /// Prepares a grant in a slot of this size whose value was applied, or is, if `applies`.
    fn prepare_again(
        &mut self,
        giver: &mut Giver,
        conn: Conn,
        wanted: &Wanted<'_>,
        bytes: u64,
        applies: bool,
    ) -> Result<Option<usize>, Error> {
        let of_size = self.all.iter_mut().enumerate();
        for (index, slot) in of_size.filter(|(_, slot)| slot.bytes == bytes) {
            let Some(number) = slot.idle() else {
                continue;
            };
            if applies && !giver.landing.arrived(number)? {
                continue;
            }
            let (key, value_bytes) = (wanted.key, wanted.value_bytes);
            let granter = &mut giver.granter;
            if granter.prepare_again(number, key, value_bytes, wanted.expires_at_ms)? {
                (slot.is_prepared, slot.is_applied) = (true, false);
                slot.tell(giver, conn, wanted.tells);
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Looks at some slots, in turn, and applies what has arrived, so that a client who asks for one after
    /// the other finds its slots free. The caller's session has no submitted writes.
    ///
    /// # Errors
    /// As [`Landing::arrived`].
    pub(super) fn apply_some(&mut self, landing: &Landing) -> Result<(), Error> {
        let (mut looked, mut outcome) = (0, Ok(()));
        for _ in 0..self.all.len() {
            self.next = (self.next + 1) % self.all.len();
            let Some(slot) = self.all.get_mut(self.next) else {
                break;
            };
            let Some(number) = slot.idle().filter(|_| !slot.is_applied) else {
                continue;
            };
            match landing.arrived(number) {
                Ok(is_applied) => slot.is_applied = is_applied,
                Err(error) => outcome = outcome.and(Err(error)),
            }
            // What did not arrive says nothing of room.
            self.is_stuck = outcome.is_err() || self.is_stuck && !slot.is_applied;
            looked += 1;
            if looked >= LOOKED_AT {
                break;
            }
        }
        outcome
    }

    pub(super) fn has_any(&self) -> bool {
        !self.all.is_empty()
    }

    /// Notes that the grant of a slot is durable; returns how its client writes it.
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
    ) -> Result<Given, LinkError> {
        let slot = self.all.get_mut(index).ok_or(LinkError::Foreign)?;
        slot.number = Some(grant.number);
        slot.generation = grant.generation;
        (slot.is_prepared, slot.is_applied) = (false, false);
        let area = match slot.area {
            Some(area) => area,
            None => {
                let window = landing.pool().window(grant.offset, slot.bytes);
                let window = window.map_err(|_| LinkError::Foreign)?;
                let area = link.expose_window(conn, &Arc::new(window), Access::Write)?;
                *slot.area.insert(area)
            }
        };
        Ok(Given {
            address: area.address,
            key: area.key,
            word: slot.tells.map(|tells| tells.word),
        })
    }

    /// The grant whose client tells this word, and the sequence of the reply. It tells it once.
    pub(super) fn told(&mut self, giver: &mut Giver, word: u32) -> Option<(u32, u32)> {
        let mut slots = self.all.iter_mut();
        let slot = slots.find(|slot| slot.tells.is_some_and(|tells| tells.word == word))?;
        let number = slot.number.filter(|_| !slot.is_prepared)?;
        let sequence = slot.tells?.sequence;
        slot.tell(giver, Conn(0), None);
        Some((number, sequence))
    }

    /// What a client may say of a grant of this number and generation.
    pub(super) fn find(&self, number: u32, generation: u64) -> Told {
        let slot = self.all.iter().find(|slot| slot.number == Some(number));
        match slot {
            // Its slot was given again, which only happens to what was applied.
            Some(slot) if generation < slot.generation => Told::Applied,
            Some(slot) if generation == slot.generation && slot.is_prepared => Told::Applied,
            Some(slot) if generation == slot.generation => Told::Given,
            _ => Told::Unknown,
        }
    }

    /// Takes all memory back; the connection is closed. Returns the grants that are to be released.
    pub(super) fn end(self, link: &mut dyn Link, giver: Option<&mut Giver>) -> Vec<u32> {
        let mut given = Vec::new();
        if let Some(giver) = giver {
            for tells in self.all.iter().filter_map(|slot| slot.tells) {
                giver.tellers.remove(&tells.word);
            }
        }
        for slot in self.all {
            slot.area.into_iter().for_each(|area| link.unexpose(area));
            // One that is being given again is released with its new grant.
            given.extend(slot.number.filter(|_| !slot.is_prepared));
        }
        given
    }
}

impl Slot {
    /// Its grant, if its client is not about to be told it, or to tell something: a value may be there before
    /// its client tells so, and the word is on its way.
    fn idle(&self) -> Option<u32> {
        let is_idle = !self.is_prepared && self.tells.is_none();
        self.number.filter(|_| is_idle)
    }

    /// Has its client tell a new word with its write, or none.
    fn tell(&mut self, giver: &mut Giver, conn: Conn, sequence: Option<u32>) {
        if let Some(old) = self.tells.take() {
            giver.tellers.remove(&old.word);
        }
        self.tells = sequence.map(|sequence| Tells {
            word: giver.word_for(conn),
            sequence,
        });
    }
}

impl Wanted<'_> {
    /// Bytes that a slot for it has at least.
    fn slot_bytes(&self) -> u64 {
        everdram::landing::slot::bytes(self.key.len(), self.value_bytes)
    }
}
