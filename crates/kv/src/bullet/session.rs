//! A session: from key to node, from node to log, from fence to table.
//!
//! Invariants:
//! - A write that was submitted and not committed holds its key's stripe, and its session holds the log that
//!   its record is in. Nobody waits for a stripe or for room in a log while holding either (B11); batches
//!   take stripes in ascending order.
//! - A session that submits and does not commit keeps its log, and the epoch in which it took it: nothing
//!   that was written since is reclaimed. When others find no log for that, they wait a while, and fail
//!   ([`Error::Uncommitted`]).
//! - A node is published after the fence that covers its record (B6).

use super::Bullet;
use super::front::Node;
use super::gleaner::roles::Role;
use super::layout::Keys;
use super::layout::ObjectHead;
use super::maintenance::Work;
use super::retired::Retired;
use super::table::{LINE, Place};
use crate::concurrency::epoch::Slot;
use crate::concurrency::stripes::{Backoff, StripeId};
use crate::crl::Group;
use crate::engine::Ticket;
use crate::engine::counters::Counters;
use crate::engine::halt::PANICKED;
use crate::engine::session_limit::Permit;
use crate::error::Error;
use crate::heap::Claim;
use everdram_pm::Written;
use everdram_pm::lock::lock;
use everdram_pm::{Flushed, Lane, Ordered};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::{Duration, Instant};

/// Submitted writes after which a session commits by itself.
pub(super) const PENDING_MAX: usize = 256;
/// For so long a session waits for a log while nothing goes on in any.
const STILL_MAX: Duration = Duration::from_secs(5);
/// Scratch memory above this is given back after use.
const SCRATCH_KEEP: usize = 1 << 20;

/// What one session counts of the front: only it writes, others read.
#[derive(Default)]
pub(super) struct FrontCounters {
    pub(super) nodes: AtomicI64,
    /// Look-ups that went to the back.
    pub(super) behind: AtomicU64,
    /// Nodes that came from there, and that were evicted.
    pub(super) filled: AtomicU64,
    pub(super) evicted: AtomicU64,
}

/// What a key has, as whoever holds its stripe sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) place: Place,
    /// Its node in the front, dead ones as well.
    pub(super) node: Option<Node>,
    /// Its object in the back, if there is no node.
    pub(super) behind: Option<(u64, ObjectHead)>,
    /// Whether the key is there, if only because nobody has met it since it expired.
    pub(super) is_counted: bool,
    /// Whether the key is there for users.
    pub(super) is_live: bool,
    pub(super) lsn: u64,
    pub(super) expires_at_ms: u64,
}

/// A write between submit and commit.
pub(super) struct Pending {
    pub(super) stripe: StripeId,
    pub(super) place: Place,
    pub(super) node: Node,
    pub(super) old: Option<Node>,
    pub(super) keys: Keys,
    /// The key was absent for users.
    pub(super) is_new: bool,
    /// When its record had been appended; `None`: it has none.
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
    /// The entry that is being put together, and how many operations it has.
    pub(super) entry: Vec<u8>,
    pub(super) operations: u32,
    /// Chunks of the front, and of the heap.
    pub(super) claim: Option<Claim>,
    /// Lines of the front, for buckets that have no vacant slot.
    pub(super) spare: Vec<u64>,
    pub(super) heap_claim: Option<Claim>,
    pub(super) nodes: Retired<(u64, u64)>,
    /// Whether the write committed last made a key.
    pub(super) made: bool,
    pub(super) scratch: Vec<u8>,
    pub(super) value: Vec<u8>,
    /// The last fence, which covers everything before it.
    pub(super) ordered: Ordered,
    pub(super) last_read: Ticket,
    /// Of a worker pool's thread: what it does.
    pub(super) role: Role,
    /// If it is a user's: there may be so many of these.
    pub(super) permit: Option<Permit>,
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
            made: false,
            scratch: Vec::new(),
            value: Vec::new(),
            ordered: Ordered::when_found(),
            last_read: Ticket::NONE,
            role: Role::default(),
            permit: None,
            engine,
        })
    }

    /// A session for a user: there may be only so many.
    pub(super) fn of_user(engine: Arc<Bullet>) -> Result<BulletSession, Error> {
        let permit = engine.sessions.take()?;
        let mut session = BulletSession::new(engine)?;
        session.permit = Some(permit);
        Ok(session)
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.engine.counters[usize::from(self.id)]
    }

    #[inline]
    pub(super) fn healthy(&self) -> Result<(), Error> {
        self.engine.healthy()
    }

    /// Makes sure that the session has a log with room for any entry. It may commit what is pending, and may
    /// wait then.
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

    /// Waits while every log is full, or taken by somebody who will give it back: for as long as anything
    /// goes on, and a while longer.
    ///
    /// # Errors
    /// [`Error::Uncommitted`]; as [`Bullet::assist`].
    #[cold]
    fn wait_for_log(&self) -> Result<Group, Error> {
        assert!(
            self.holds_nothing(),
            "a session waits for a log and holds something"
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

    /// Before it takes a log: what was put together for an earlier one is appended, and fenced.
    fn assert_left_nothing(&self) {
        assert!(
            self.group.is_none() && self.entry.is_empty() && self.flushed.is_none(),
            "a session takes a log and has not done with the one before"
        );
    }

    /// Whether others can go on whatever this session does: it has no log, and no write is pending.
    fn holds_nothing(&self) -> bool {
        self.group.is_none() && self.pending.is_empty()
    }

    /// Whether the session holds a stripe.
    pub(super) fn holds(&self, stripe: StripeId) -> bool {
        self.engine.stripes.held_by(stripe, self.id)
    }

    /// Takes a log that has room, if there is one; `false`: there is none. Where nothing is logged, none is
    /// needed.
    fn begin_group(&mut self) -> bool {
        if self.engine.system.is_logged() {
            self.assert_left_nothing();
            self.group = self.engine.logs.begin(self.wanted);
        }
        self.group.is_some() || !self.engine.system.is_logged()
    }

    /// Takes a stripe, and a log, if both can be had at once. What is pending may be committed.
    pub(super) fn try_acquire(&mut self, stripe: StripeId) -> Result<bool, Error> {
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

    /// Finds room for a put of so many bytes of key and value, where there is little.
    #[inline]
    pub(super) fn room_for(&mut self, bytes: usize) -> Result<(), Error> {
        if !self.engine.is_tight() {
            return Ok(());
        }
        self.commit_pending()?;
        self.engine.find_room(bytes as u64)
    }

    /// Takes a stripe, and a log, for a write that stays pending.
    #[inline]
    pub(super) fn acquire(&mut self, stripe: StripeId) -> Result<(), Error> {
        loop {
            self.take_log()?;
            if self.engine.stripes.try_lock(stripe, self.id) {
                return Ok(());
            }
            // Held by this session's own pending write, or by somebody else: nothing may be held while
            // waiting.
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

    /// Gives back a stripe on which nothing was submitted; and the log, if nothing is pending in it.
    pub(super) fn give_back(&mut self, stripe: StripeId) {
        debug_assert!(
            self.holds(stripe),
            "a session gives a stripe back that it does not hold"
        );
        self.engine.stripes.unlock(stripe);
        if self.pending.is_empty() {
            self.end_group();
        }
    }

    /// A place for a line of a bucket of the front, taken before the fence: behind it, nothing may fail.
    pub(super) fn spare_line(&mut self) -> Result<(), Error> {
        let line = self.engine.front.take(&mut self.claim, LINE)?;
        self.spare.push(line);
        Ok(())
    }

    /// Gives back lines that nobody needed.
    pub(super) fn drop_spare_lines(&mut self) {
        for line in self.spare.drain(..) {
            self.engine.front.give_back(line, LINE);
        }
    }

    /// Whether writes were submitted and not committed.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Commits what is pending and takes the stripes of these hashes in ascending order, and a log.
    pub(super) fn lock_all(&mut self, stripes: Vec<StripeId>) -> Result<Vec<StripeId>, Error> {
        let mut stripes = stripes;
        stripes.sort_unstable();
        stripes.dedup();
        self.commit_pending()?;
        loop {
            for &stripe in &stripes {
                assert!(
                    self.holds_nothing() && !self.holds(stripe),
                    "a session waits for a stripe that it holds, or with a log"
                );
                self.engine.stripes.lock(stripe, self.id);
            }
            if self.begin_group() {
                return Ok(stripes);
            }
            self.engine.stripes.unlock_all(&stripes);
            self.take_log()?;
            self.commit_pending()?;
        }
    }

    /// As [`BulletSession::see`]; on an error the stripe is given back.
    #[inline]
    pub(super) fn see_or_give_back(
        &mut self,
        hash: u64,
        stripe: StripeId,
        key: &[u8],
    ) -> Result<Seen, Error> {
        let seen = self.see(hash, key);
        if seen.is_err() {
            self.give_back(stripe);
        }
        seen
    }

    /// What a key has; the caller holds its stripe. Finds out in the back if it must.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    #[inline]
    pub(super) fn see(&mut self, hash: u64, key: &[u8]) -> Result<Seen, Error> {
        debug_assert!(
            self.holds(self.engine.stripe(hash)),
            "a session looks at a key to change it, and does not hold its stripe"
        );
        if !self.engine.system.has_front() {
            return self.see_behind(Place::default(), hash, key);
        }
        let (place, node) = self.engine.front.locate(hash, key);
        Ok(match node {
            Some(node) => Seen {
                place,
                node: Some(node),
                behind: None,
                is_counted: self.engine.counts(&node),
                is_live: self.engine.is_live(&node),
                lsn: node.lsn,
                expires_at_ms: node.expires_at_ms,
            },
            None if self.engine.is_complete() => Seen {
                place,
                ..Seen::default()
            },
            None => return self.see_behind(place, hash, key),
        })
    }

    #[cold]
    fn see_behind(&mut self, place: Place, hash: u64, key: &[u8]) -> Result<Seen, Error> {
        self.slot.hold();
        let behind = self.engine.back.find(hash, key, &mut self.scratch);
        self.slot.unhold();
        let Some((at, head)) = behind.map_err(|error| self.engine.at_path(error))? else {
            return Ok(Seen {
                place,
                ..Seen::default()
            });
        };
        Ok(Seen {
            place,
            node: None,
            behind: Some((at, head)),
            is_counted: head.lsn > self.engine.floor(),
            is_live: self.engine.is_live_object(&head),
            lsn: head.lsn,
            expires_at_ms: head.expires_at_ms,
        })
    }

    /// Appends the value of what was seen; the stripe is still held.
    pub(super) fn value_of(&mut self, seen: &Seen, into: &mut Vec<u8>) -> Result<(), Error> {
        self.slot.hold();
        let result = match (&seen.node, &seen.behind) {
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

    /// See [`crate::EngineSession::turn`].
    pub(super) fn take_turn(&mut self) -> Result<bool, Error> {
        let engine = &self.engine;
        if !engine.system.is_logged() || !engine.roles.take(&mut self.role, || engine.logs.fill()) {
            return Ok(false);
        }
        self.commit_pending()?;
        if self.engine.assist(false)? == Work::ForOthers {
            std::thread::yield_now();
        }
        Ok(true)
    }

    /// Sees to it that scratch memory stays small.
    #[inline]
    pub(super) fn trim(&mut self) {
        if self.scratch.capacity() > SCRATCH_KEEP {
            self.scratch = Vec::new();
        }
        if self.value.capacity() > SCRATCH_KEEP {
            self.value = Vec::new();
        }
    }
}

/// Gives back a stripe, and the log, if a caller's closure panics; to be forgotten when it has returned.
pub(super) struct OnPanic<'a>(pub(super) &'a mut BulletSession, pub(super) StripeId);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        self.0.give_back(self.1);
    }
}

/// Gives the log back when it is dropped, also by a panic.
pub(super) struct Ended<'a>(pub(super) &'a mut BulletSession);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.end_group();
    }
}

impl Drop for BulletSession {
    fn drop(&mut self) {
        let engine = Arc::clone(&self.engine);
        // A failing medium has already told every waiter; nothing submitted here was acknowledged. A panic
        // may have left half a write, which what is asserted meets here; a second one must not get out.
        let finish = || {
            let _ = self.commit_pending();
            self.drop_spare_lines();
        };
        if catch_unwind(AssertUnwindSafe(finish)).is_err() {
            engine.halted.set(PANICKED);
        }
        if std::thread::panicking() && engine.stripes.unlock_all_of(self.id) > 0 {
            engine.halted.set(PANICKED);
        }
        engine.roles.leave(&mut self.role);
        engine.front.let_go(&mut self.claim);
        engine.back.heap.let_go(&mut self.heap_claim);
        lock(&engine.retired_nodes).append(&mut self.nodes);
    }
}
