//! A session finds a key's node, appends a record to a log, fences it, and publishes the new node.
//!
//! Invariants:
//! - A write that is submitted and not committed holds its key's stripe, and its session holds the log of its
//!   record. A session never waits for a stripe or for log room while it holds either (B11). Only batches
//!   hold stripes while they wait for more, and take them in ascending order.
//! - A session that submits and does not commit keeps its log, and its epoch from ending: nothing written
//!   since is reclaimed. Sessions that find no log because of it wait a while, then fail
//!   ([`Error::Uncommitted`]).
//! - A node is published after the fence that covers its record (B6).

use super::Bullet;
use super::front::Node;
use super::gleaner::Work;
use super::gleaner::roles::Role;
use super::layout::{INLINE_MAX, Keys, ObjectHead};
use super::table::{LINE, Place};
use crate::concurrency::epoch::Slot;
use crate::concurrency::retired::Retired;
use crate::concurrency::stripes::{Backoff, StripeId};
use crate::crl::Group;
use crate::engine::backend::{Backend, Change, Met, Seen, SessionCore, Taken, read_one_by_one};
use crate::engine::counters::Counters;
use crate::engine::session::{self, SCRATCH_KEEP};
use crate::engine::{BatchOp, Found, Ticket};
use crate::error::Error;
use crate::heap::Claim;
use everdram_pm::lock::lock;
use everdram_pm::{Flushed, Lane, Ordered, Written};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::{Duration, Instant};

/// Submitted writes after which a session commits by itself.
pub(super) const PENDING_MAX: usize = 256;
/// How long a session waits for a log while no log makes progress.
const STILL_MAX: Duration = Duration::from_secs(5);
/// One session's counters of the front: only it writes them.
#[derive(Default)]
pub(super) struct FrontCounters {
    pub(super) nodes: AtomicI64,
    /// Look-ups that went to the back.
    pub(super) behind: AtomicU64,
    /// Nodes filled from the back; nodes evicted.
    pub(super) filled: AtomicU64,
    pub(super) evicted: AtomicU64,
}

/// Where a key's state lies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct At {
    pub(super) place: Place,
    /// Its node in the front, even a dead one.
    pub(super) node: Option<Node>,
    /// Its object in the back, if there is no node.
    pub(super) behind: Option<(u64, ObjectHead)>,
}

/// A write between submit and commit.
pub(super) struct Pending {
    pub(super) stripe: StripeId,
    pub(super) place: Place,
    pub(super) node: Node,
    pub(super) old: Option<Node>,
    pub(super) keys: Keys,
    /// Users saw the key as absent.
    pub(super) is_new: bool,
    /// The point after its record was appended; `None`: it has no record.
    pub(super) written: Option<Written>,
}

pub(crate) struct BulletSession {
    pub(super) engine: Arc<Bullet>,
    pub(super) slot: Slot,
    pub(super) id: u16,
    pub(super) lane: Lane,
    /// The log it is writing.
    pub(super) group: Option<Group>,
    /// The log it wrote last.
    pub(super) wanted: usize,
    pub(super) flushed: Option<Flushed>,
    pub(super) pending: Vec<Pending>,
    /// The entry under construction, and its number of operations.
    pub(super) entry: Vec<u8>,
    pub(super) operations: u32,
    /// Its chunk of the front; `heap_claim`: of the heap.
    pub(super) claim: Option<Claim>,
    /// Lines of the front, for buckets that have no vacant slot.
    pub(super) spare: Vec<u64>,
    pub(super) heap_claim: Option<Claim>,
    pub(super) nodes: Retired<(u64, u64)>,
    pub(super) scratch: Vec<u8>,
    /// The last fence, which covers everything before it.
    pub(super) ordered: Ordered,
    /// The role of a worker pool's thread.
    pub(super) role: Role,
    pub(super) core: SessionCore,
}

impl BulletSession {
    pub(super) fn new(engine: Arc<Bullet>) -> Result<BulletSession, Error> {
        let slot = engine
            .epochs
            .register()
            .ok_or_else(|| engine.sessions.reached())?;
        let id = slot.number() as u16;
        Ok(BulletSession {
            id,
            slot,
            lane: engine.pool.lane(),
            group: None,
            wanted: usize::from(id) % engine.logs.count(),
            flushed: None,
            pending: Vec::with_capacity(PENDING_MAX),
            entry: Vec::new(),
            operations: 0,
            claim: None,
            spare: Vec::new(),
            heap_claim: None,
            nodes: Retired::default(),
            scratch: Vec::new(),
            ordered: Ordered::when_found(),
            role: Role::default(),
            core: SessionCore::default(),
            engine,
        })
    }

    /// A session for a user; their number is limited.
    pub(super) fn of_user(engine: Arc<Bullet>) -> Result<BulletSession, Error> {
        let core = SessionCore::of_user(&engine)?;
        let mut session = BulletSession::new(engine)?;
        session.core = core;
        Ok(session)
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.engine.counters[usize::from(self.id)]
    }

    /// Takes a log with room for any entry, unless the session has one. It may commit pending writes, and
    /// then wait.
    #[inline]
    fn take_log(&mut self) -> Result<(), Error> {
        if let Some(group) = &self.group {
            if self.engine.logs.fits(group) {
                return Ok(());
            }
            self.commit_pending()?;
        }
        if !self.engine.system.is_logged() {
            return Ok(());
        }
        self.assert_left_nothing();
        match self.engine.logs.begin(self.wanted) {
            Some(group) => self.group = Some(group),
            None => self.group = Some(self.wait_for_log()?),
        }
        Ok(())
    }

    /// Waits for a log with room that no session holds. Gives up when no log has made progress for
    /// [`STILL_MAX`].
    ///
    /// # Errors
    /// [`Error::Uncommitted`]; as [`Bullet::assist`].
    #[cold]
    fn wait_for_log(&self) -> Result<Group, Error> {
        assert!(
            self.holds_nothing(),
            "a session waits for a log and holds a log or a write"
        );
        let (mut backoff, mut since) = (Backoff::new(), Instant::now());
        let mut marks = self.engine.logs.marks();
        loop {
            if let Some(group) = self.engine.logs.begin(self.wanted) {
                return Ok(group);
            }
            let work = self.engine.assist(true)?;
            let now = self.engine.logs.marks();
            if work == Work::Done || now != marks {
                (marks, since) = (now, Instant::now());
                continue;
            }
            if since.elapsed() > STILL_MAX {
                return Err(Error::Uncommitted(self.engine.logs.count()));
            }
            backoff.wait();
        }
    }

    /// Before a session takes a log, it has appended and fenced the entry of the log before.
    fn assert_left_nothing(&self) {
        assert!(
            self.group.is_none() && self.entry.is_empty() && self.flushed.is_none(),
            "a session takes a log before it has finished with the last one"
        );
    }

    /// Whether other sessions can proceed without this one: it has no log and no pending write.
    fn holds_nothing(&self) -> bool {
        self.group.is_none() && self.pending.is_empty()
    }

    /// Whether the session holds a stripe.
    pub(super) fn holds(&self, stripe: StripeId) -> bool {
        self.engine.stripes.held_by(stripe, self.id)
    }

    /// Takes a log with room; `false`: there is none. Systems without logs need none.
    fn begin_group(&mut self) -> bool {
        if self.engine.system.is_logged() {
            self.assert_left_nothing();
            self.group = self.engine.logs.begin(self.wanted);
        }
        self.group.is_some() || !self.engine.system.is_logged()
    }

    /// Reserves a line for a bucket of the front, before the fence: after it, nothing may fail.
    pub(super) fn spare_line(&mut self) -> Result<(), Error> {
        let line = self.engine.front.take(&mut self.claim, LINE)?;
        self.spare.push(line);
        Ok(())
    }

    /// Gives back reserved lines that were not used.
    pub(super) fn drop_spare_lines(&mut self) {
        for line in self.spare.drain(..) {
            self.engine.front.give_back(line, LINE);
        }
    }

    #[cold]
    fn locate_behind(&mut self, place: Place, hash: u64, key: &[u8]) -> Result<Seen<At>, Error> {
        self.slot.hold();
        let behind = self.engine.back.find(hash, key, &mut self.scratch);
        self.slot.unhold();
        let mut seen = Seen {
            at: At {
                place,
                ..At::default()
            },
            ..Seen::default()
        };
        if let Some((at, head)) = behind? {
            seen = Seen {
                is_counted: head.version > self.engine.floor(),
                is_live: self.engine.is_live_object(&head),
                version: head.version,
                expires_at_ms: head.expires_at_ms,
                ..seen
            };
            seen.at.behind = Some((at, head));
        }
        Ok(seen)
    }

    /// Appends the value of a located key; the session still holds its stripe.
    fn value_of(&mut self, at: &At, into: &mut Vec<u8>) -> Result<(), Error> {
        self.slot.hold();
        let result = match (&at.node, &at.behind) {
            (Some(node), _) => self.engine.value_of(node, &mut self.scratch, into),
            (None, Some((at, _))) => self
                .engine
                .back
                .value_at(*at, &mut self.scratch, into)
                .map(drop),
            (None, None) => Ok(()),
        };
        self.slot.unhold();
        result
    }
}

impl Backend for BulletSession {
    type Engine = Bullet;
    type At = At;

    #[inline]
    fn engine(&self) -> &Arc<Bullet> {
        &self.engine
    }

    #[inline]
    fn core(&self) -> &SessionCore {
        &self.core
    }

    #[inline]
    fn core_mut(&mut self) -> &mut SessionCore {
        &mut self.core
    }

    #[inline]
    fn id(&self) -> u16 {
        self.id
    }

    #[inline]
    fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    fn ticket(&self) -> Ticket {
        Ticket(self.ordered.lsn().0)
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        self.engine.hash(key)
    }

    #[inline]
    fn stripe(&self, hash: u64) -> StripeId {
        self.engine.stripe(hash)
    }

    #[inline]
    fn prefetch(&self, hash: u64) {
        self.engine.front.prefetch(hash);
    }

    #[inline]
    fn read_value(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        let found = self.read(key, Some(into))?;
        self.trim();
        Ok(found.map(|(found, _)| found))
    }

    fn read_meta(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        self.read(key, None)
    }

    fn read_each(
        &mut self,
        keys: &[&[u8]],
        hashes: &[(u64, u64)],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        let front = &self.engine.front;
        hashes.iter().for_each(|(hash, _)| front.prefetch(*hash));
        read_one_by_one(self, keys, into, found)
    }

    fn walk(&mut self, cursor: u64, count: usize, met: &mut Met) -> Result<u64, Error> {
        self.walk_tables(cursor, count, met)
    }

    /// Also takes a log.
    #[inline]
    fn acquire(&mut self, stripe: StripeId) -> Result<(), Error> {
        loop {
            self.take_log()?;
            if self.engine.stripes.try_lock(stripe, self.id) {
                return Ok(());
            }
            // This session's own pending write holds the stripe, or another session does. It must hold
            // nothing while it waits.
            self.commit_pending()?;
            assert!(
                self.holds_nothing() && !self.holds(stripe),
                "a session waits for a stripe that it holds, or with a log"
            );
            self.engine.stripes.lock(stripe, self.id);
            if self.begin_group() {
                return Ok(());
            }
            self.give_back(stripe);
        }
    }

    /// Also takes a log.
    fn try_acquire(&mut self, stripe: StripeId) -> Result<bool, Error> {
        let is_own = self.engine.stripes.held_by(stripe, self.id);
        let group = self.group.as_ref();
        if is_own || group.is_some_and(|group| !self.engine.logs.fits(group)) {
            self.commit_pending()?;
        }
        let has_log = self.group.is_some() || self.begin_group();
        let taken = has_log && self.engine.stripes.try_lock(stripe, self.id);
        if !taken && self.pending.is_empty() {
            self.end_group();
        }
        Ok(taken)
    }

    /// Also gives back the log, unless a write is pending in it.
    fn give_back(&mut self, stripe: StripeId) {
        debug_assert!(
            self.holds(stripe),
            "a session gives a stripe back that it does not hold"
        );
        self.engine.stripes.unlock(stripe);
        if self.pending.is_empty() {
            self.end_group();
        }
    }

    /// Also takes a log.
    fn lock_all(&mut self, stripes: &[StripeId]) -> Result<(), Error> {
        self.commit_pending()?;
        loop {
            for &stripe in stripes {
                assert!(
                    self.holds_nothing() && !self.holds(stripe),
                    "a session waits for a stripe that it holds, or with a log"
                );
                self.engine.stripes.lock(stripe, self.id);
            }
            if self.begin_group() {
                return Ok(());
            }
            self.engine.stripes.unlock_all(stripes);
            self.take_log()?;
            self.commit_pending()?;
        }
    }

    fn unlocked(&mut self) {
        if self.pending.is_empty() {
            self.end_group();
        }
    }

    #[inline]
    fn locate(&mut self, taken: Taken, key: &[u8]) -> Result<Seen<At>, Error> {
        debug_assert!(
            self.holds(taken.stripe),
            "a session looks at a key to change it, and does not hold its stripe"
        );
        let hash = taken.hash;
        if !self.engine.system.has_front() {
            return self.locate_behind(Place::default(), hash, key);
        }
        let (place, node) = self.engine.front.locate(hash, key);
        let at = At {
            place,
            node,
            behind: None,
        };
        match node {
            Some(node) => Ok(Seen {
                is_counted: self.engine.counts(&node),
                is_live: self.engine.is_live(&node),
                version: node.version,
                expires_at_ms: node.expires_at_ms,
                at,
            }),
            None if self.engine.is_complete() => Ok(Seen {
                at,
                ..Seen::default()
            }),
            None => self.locate_behind(place, hash, key),
        }
    }

    fn see(&mut self, taken: Taken, key: &[u8], into: &mut Vec<u8>) -> Result<Seen<At>, Error> {
        let seen = self.locate(taken, key)?;
        if seen.is_live {
            self.value_of(&seen.at, into)?;
        }
        Ok(seen)
    }

    #[inline]
    fn room_for(&mut self, bytes: Option<usize>) -> Result<(), Error> {
        if !self.engine.is_tight() {
            return Ok(());
        }
        self.engine.healthy()?;
        self.commit_pending()?;
        self.engine.find_room(bytes.unwrap_or(INLINE_MAX) as u64)
    }

    fn make_room(&mut self, bytes: u64, _attempt: u32) -> Result<bool, Error> {
        Ok(self.engine.find_room(bytes).is_ok())
    }

    #[inline]
    fn submit_put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.engine.healthy()?;
        let hash = self.engine.hash(key);
        self.engine.front.prefetch(hash);
        let stripe = self.engine.stripe(hash);
        self.acquire(stripe)?;
        let taken = Taken { hash, stripe };
        let seen = match self.locate(taken, key) {
            Ok(seen) => seen,
            Err(error) => {
                self.give_back(stripe);
                return Err(error);
            }
        };
        let change = Change::Put {
            value,
            expires_at_ms,
        };
        self.submit(taken, key, &seen, change)
    }

    #[inline]
    fn submit(
        &mut self,
        taken: Taken,
        key: &[u8],
        seen: &Seen<At>,
        change: Change<'_>,
    ) -> Result<(), Error> {
        self.write(taken, key, seen, change)
    }

    fn apply(
        &mut self,
        clear: bool,
        ops: &[BatchOp<'_>],
        stripes: &[StripeId],
    ) -> Result<Ticket, Error> {
        self.apply_locked(clear, ops, stripes)
    }

    #[inline]
    fn commit_pending(&mut self) -> Result<(), Error> {
        self.commit_group()
    }

    fn take_turn(&mut self) -> Result<bool, Error> {
        let engine = &self.engine;
        if !engine.system.is_logged()
            || !engine
                .gleaning
                .roles
                .take(&mut self.role, || engine.logs.fill())
        {
            return Ok(false);
        }
        self.commit_pending()?;
        if self.engine.assist(false)? == Work::ForOthers {
            std::thread::yield_now();
        }
        Ok(true)
    }

    #[inline]
    fn trim(&mut self) {
        if self.scratch.capacity() > SCRATCH_KEEP {
            self.scratch = Vec::new();
        }
    }

    fn finish(&mut self) {
        let _ = self.commit_pending();
        self.drop_spare_lines();
    }
}

impl Drop for BulletSession {
    fn drop(&mut self) {
        session::end(self);
        let engine = Arc::clone(&self.engine);
        engine.gleaning.roles.leave(&mut self.role);
        engine.front.let_go(&mut self.claim);
        engine.back.heap.let_go(&mut self.heap_claim);
        lock(&engine.retired_nodes).append(&mut self.nodes);
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::engine::EngineSession;

    /// A panic while a batch was published gave its keys back, and the engine went on: readers saw half of
    /// the batch, and iterations waited for ever for the rest.
    #[test]
    fn a_panic_in_a_batch_halts_the_engine() {
        let bullet = Bullet::in_memory(None);
        let mut session = BulletSession::of_user(Arc::clone(&bullet)).unwrap();
        // A session asserts that it publishes one batch at a time.
        session.counters().publishing.begin();
        let ops = [b"a", b"b"].map(|key| BatchOp::Put {
            key,
            value: b"1",
            expires_at_ms: 0,
        });
        let batch = std::panic::AssertUnwindSafe(|| session.batch(&ops));
        assert!(std::panic::catch_unwind(batch).is_err());
        let mut other = BulletSession::of_user(bullet).unwrap();
        let scanned = other.scan(0, 10, &mut |_, _, _| {});
        assert!(matches!(scanned, Err(Error::Halted(_))), "{scanned:?}");
    }
}
