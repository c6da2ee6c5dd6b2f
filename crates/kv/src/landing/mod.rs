//! The landing area: persistent memory into which remote clients write values with one-sided RDMA. A put is
//! durable, and acknowledged, when its bytes lie there; no thread of the server takes part. The server
//! applies it when somebody next asks for its key. (RDMP-KV sections III-B and III-C. There the server
//! changes its log and index before the value is there; here it changes nothing that anybody can see.) It is
//! a layer over any engine, and exists only in pools that were given an area
//! ([`Options::landing_bytes`](crate::Options)).
//!
//! # The story of one put
//! 1. A door asks a [`Granter`] for a *grant*: the right to one write of one key. The granter takes a run of
//!    free pages, writes the grant's line, and makes it durable. Then it tells the grant
//!    ([`Granter::commit`]).
//! 2. The client writes the slot ([`slot::encode`]) and makes it durable. That is the acknowledgement.
//! 3. Whoever next calls a session for this key looks at one word, finds it raised, copies the slot, verifies
//!    the copy, and puts it into the engine: it *applies* the arrival. When that is durable it clears the
//!    line's word, and when that is durable it answers.
//! 4. The door releases the slot once no late write of its client can come any more ([`Landing::release`]).
//!
//! **The rule: every operation first completes what has arrived for its keys.** A crash finds an arrival
//! unapplied only if no operation for its key began after it had landed. So recovery may apply it as the
//! newest, before the first answer, in the order of grants.
//!
//! # Why an arrival counts once
//! Recovery applies an arrival again if the crash came between the put (3) and the clearing of the word. That
//! changes nothing, unless an acknowledged write of its key came in between. There is none:
//!
//! * A table of buckets, by the hash of the key, counts the grants ([`table`]). A grant raises its bucket's
//!   count, then passes a barrier of all processors, and only then enters the bucket's list.
//! * A call that writes *marks* its session ([`calls`]), passes the light end of that barrier, and then looks
//!   at the counts of its keys. If all are 0, it goes on to its keys' locks.
//! * An applier holds the lock of the bucket. It takes the grant from the list, and waits until every call
//!   has ended whose mark it sees. Then it puts, clears, and lowers the count.
//!
//! Take a call that saw the count at 0 before the grant raised it. By the promise of
//! [`everdram_pm::Barrier`], its mark is visible to whoever passed the barrier later, and so to the applier,
//! who took the grant from the list behind that. So the applier waits for it. Any later call sees the raised
//! count and takes the lock of the bucket, unmarked. If nothing has arrived it goes on although the count is
//! raised; but it marks itself before it gives back the lock, so the next applier sees its mark. And a write
//! that was submitted, and not committed, by a call that ended earlier holds the lock of its key until the
//! commit: the applier's put waits for it.
//!
//! A call of several keys takes all raised buckets, in ascending order, marks itself while it holds them, and
//! looks at the other counts again.
//!
//! # Why nobody waits for ever
//! A session that waits for a bucket is unmarked, and has committed first: it holds no lock of a key. An
//! applier waits for marked calls and, in its put, for locks of keys. A marked call waits for locks of keys
//! only. Whoever holds those is marked, or idle with submitted writes, which every engine commits before its
//! session waits for another lock.
//!
//! # Changes of several keys
//! What arrives for one of their keys while they are under way counts as later than they. So whoever knows
//! of it must not see another key as it was before: otherwise the change would be both earlier and later. A
//! batch or transaction locks its keys, has readers of them wait, and then looks for what has arrived; if
//! something has, it begins anew ([`EngineSession::set_late`]). A reader sees that it has to wait by a mark
//! at which it looks before the key as well as after it: what it has read between the two is as it was before
//! the change, and the mark may be gone by then. If no grant was told when it began it need not look: a
//! granter waits for the ends of such calls before it tells ([`Granter::commit`]). The caller of
//! that holds no submitted writes, for which those calls might wait.
//!
//! # What readers need not do
//! A single key needs no mark to be read: the order of one key is that of its bucket's lock and its own. A
//! look at several keys at once could miss what arrived for one after it looked, and show what was written to
//! another after that; so [`session`] looks again afterwards, marked.

mod arrive;
pub(crate) mod calls;
pub(crate) mod engine;
mod grants;
pub(crate) mod layout;
pub(crate) mod recover;
mod session;
pub mod slot;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use crate::engine::EngineSession;
use crate::error::Error;
use calls::Calls;
use everdram_pm::lock::lock;
use everdram_pm::{Barrier, Lane, Pool};
pub use grants::Granter;
use layout::Area;
pub use layout::PAGE_BYTES;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use table::Table;

/// The right to one write of one value, as the client gets it. What it allows, the server keeps to itself.
/// A client writes [`Grant::bytes`] bytes at [`Grant::offset`] and no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Names it for [`Landing::arrived`] and [`Landing::release`]. Of the grants that were not released, no
    /// other has it.
    pub number: u32,
    /// Where the slot begins, in bytes from the start of the pool's image. A multiple of [`PAGE_BYTES`].
    pub offset: u64,
    /// Length of the slot in bytes.
    pub bytes: u64,
    /// Greater than that of every grant before, also of earlier openings that left arrivals.
    pub generation: u64,
    /// Random; seeds the check over the slot.
    pub nonce: u64,
}

/// The landing area of an open pool, shared by its sessions and all doors. See the module text.
pub struct Landing {
    pool: Arc<Pool>,
    area: Area,
    table: Table,
    calls: Calls,
    /// Those that change several keys and do not look for what arrives meanwhile.
    blind_calls: Calls,
    /// Orders the raising of a count before the calls that do not see it.
    barrier: Barrier,
    /// The last generation.
    generation: AtomicU64,
    /// Nonces are drawn from it, so that a run of the crash lab can be repeated.
    seed: Option<u64>,
    /// For words that are cleared.
    lane: Mutex<Lane>,
    /// The session for arrivals that no caller applies. `None` once the store is closed.
    own: Own,
    /// One that only reads: whoever holds it waits for nobody's submitted writes.
    reader: Own,
}

impl std::fmt::Debug for Landing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landing")
            .field("area", &self.area)
            .finish_non_exhaustive()
    }
}

/// A session of the engine below.
type Own = Mutex<Option<Box<dyn EngineSession>>>;

/// Sessions of the engine that a landing area keeps for itself.
pub(crate) const OWN_SESSIONS: usize = 2;

/// How a landing area is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LandingStats {
    /// Pages of [`PAGE_BYTES`].
    pub pages: u64,
    /// Those that no grant has.
    pub pages_free: u64,
    /// Grants whose value was not applied.
    pub grants: u64,
    /// Arrivals applied since the pool was opened.
    pub applied: u64,
}

impl Landing {
    fn new(
        pool: Arc<Pool>,
        area: Area,
        seed: Option<u64>,
        [own, reader]: [Box<dyn EngineSession>; OWN_SESSIONS],
    ) -> Landing {
        Landing {
            area,
            table: Table::new(area.pages),
            calls: Calls::default(),
            blind_calls: Calls::default(),
            barrier: Barrier::new(),
            generation: AtomicU64::new(0),
            seed,
            lane: Mutex::new(pool.lane()),
            own: Mutex::new(Some(own)),
            reader: Mutex::new(Some(reader)),
            pool,
        }
    }

    /// A way for one thread to give grants.
    #[must_use]
    pub fn granter(self: &Arc<Self>) -> Granter {
        Granter::new(Arc::clone(self))
    }

    /// The offsets in the pool's image at which clients may write, if a grant says so: what a door registers
    /// with its fabric. The head of the area and the lines of grants lie outside.
    #[must_use]
    pub fn slots(&self) -> std::ops::Range<u64> {
        self.area.slots()
    }

    /// The pool that has the area. It stays mapped as long as this handle lives.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// How the area is used now.
    #[must_use]
    pub fn stats(&self) -> LandingStats {
        LandingStats {
            pages: u64::from(self.area.pages),
            pages_free: self.table.pages_free(),
            grants: self.table.grants(),
            applied: self.table.applied(),
        }
    }

    /// Applies what has arrived for this grant, and before it what has arrived for earlier grants of its key.
    /// Durable on return. `false`: the grant was not given, or released, or the slot does not verify (yet).
    /// `true` also if it was applied before. The caller's sessions must have no submitted writes; a session
    /// that has some can look at the key instead, with [`EngineSession::probe`].
    ///
    /// # Errors
    /// As [`EngineSession::put_now`]; on [`Error::NoSpace`] the arrival stays, and is tried again.
    pub fn arrived(&self, number: u32) -> Result<bool, Error> {
        with(&self.own, |own| self.complete_one(number, false, own))
    }

    /// Ends a grant. Applies what has arrived, as [`Landing::arrived`] does, otherwise forgets the grant,
    /// durably; then other grants may have its pages. Returns whether its value was applied. So nobody must
    /// be able to write to the slot any more: the client's endpoint is closed (the end of a region's
    /// registration is no such thing). A write that comes later still does no more than spoil the slot of a
    /// client that was given the pages afterwards: its nonce is another (R6). The caller's sessions must have
    /// no submitted writes.
    ///
    /// # Errors
    /// As [`Landing::arrived`]; the pages then stay in use until the arrival is applied.
    pub fn release(&self, number: u32) -> Result<bool, Error> {
        with(&self.own, |own| self.complete_one(number, true, own))
    }

    /// Plays the NIC, for tests without a door: stores bytes that arrive, through a lane of its
    /// own. Nothing is durable yet; each 8 bytes may survive or be lost.
    ///
    /// # Errors
    /// [`Error::Options`]: the range is not within [`Landing::slots`].
    pub fn deliver(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.check_range(offset, bytes.len() as u64)?;
        let (from, end) = (offset / 8 * 8, offset + bytes.len() as u64);
        // What lies beside the range, in its first and last word, stays.
        let mut words = vec![0; (end.next_multiple_of(8) - from) as usize];
        self.pool.region().load(from, &mut words);
        let at = (offset - from) as usize;
        words[at..at + bytes.len()].copy_from_slice(bytes);
        let mut lane = self.pool.lane();
        let _not_durable = lane.store(from, &words);
        Ok(())
    }

    /// Plays the NIC: makes everything durable that was delivered in a range.
    ///
    /// # Errors
    /// As [`Landing::deliver`]; [`Error::Pool`].
    pub fn persist(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        self.check_range(offset, bytes)?;
        let mut lane = self.pool.lane();
        let flushed = lane.flush_range(offset, bytes);
        let ordered = lane.fence(flushed);
        let _durable = self.pool.wait(ordered.lsn())?;
        Ok(())
    }

    /// The nonce of a grant.
    fn nonce(&self, generation: u64) -> u64 {
        match self.seed {
            Some(seed) => self.pool.secret().sum_words([seed, generation, 0]),
            None => rand::random(),
        }
    }

    fn check_range(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        let slots = self.area.slots();
        let end = offset.checked_add(bytes);
        match end.is_some_and(|end| offset >= slots.start && end <= slots.end) {
            true => Ok(()),
            false => Err(Error::Options(format!(
                "{bytes} bytes at {offset}: clients write at {} to {}",
                slots.start, slots.end
            ))),
        }
    }

    /// Ends its sessions, before the store is closed.
    fn end(&self) {
        for session in [&self.own, &self.reader] {
            let session = lock(session).take();
            drop(session);
        }
    }
}

/// Runs `work` with a session of the landing area's own.
fn with<T>(
    session: &Own,
    work: impl FnOnce(&mut dyn EngineSession) -> Result<T, Error>,
) -> Result<T, Error> {
    match &mut *lock(session) {
        Some(session) => work(&mut **session),
        None => Err(Error::Halted("the store is closed".into())),
    }
}
