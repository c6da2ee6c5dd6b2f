//! The interface that an engine implements for its sessions.
//!
//! `session.rs` and `transaction.rs` implement the calls of [`EngineSession`](super::EngineSession) once,
//! over the trait [`Backend`]. They lock a key, look it up, decide, submit, and make room if there is none.
//! An engine finds records and writes them.

use super::base::Base;
use super::halt::PANICKED;
use super::part::Part;
use super::session::limit::Permit;
use super::{
    BatchOp, Engine, EngineSession, Found, Late, Loan, Piece, Placed, Placing, Said, Ticket, Visit,
};
use crate::concurrency::stripes::{Backoff, StripeId};
use crate::error::Error;
use std::ops::{Bound, Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Keys from which a random one is picked, if there are as many.
const AMONG: usize = 16;

/// The state that every session has for its calls.
#[derive(Default)]
pub(crate) struct SessionCore {
    /// Whether the last committed write created a key.
    pub(crate) made: bool,
    pub(crate) last_read: Ticket,
    /// For keys that are read together: the hash, and the stripe's word before the read.
    pub(super) hashes: Vec<(u64, u64)>,
    /// The value that a call reads, and the one that it writes.
    pub(crate) current: Vec<u8>,
    pub(super) value: Vec<u8>,
    /// Held by a user's session, because their number is limited.
    pub(super) permit: Option<Permit>,
    /// Whether it is too late for a change of several keys; see [`EngineSession::set_late`].
    pub(super) late: Option<Late>,
}

/// A key whose stripe the session holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) hash: u64,
    pub(crate) stripe: StripeId,
}

/// The state of a key, as seen by the holder of its stripe.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen<At> {
    /// Whether the key is there, or has expired and was not removed yet.
    pub(crate) is_counted: bool,
    /// Whether the key is there for users.
    pub(crate) is_live: bool,
    pub(crate) version: u64,
    /// 0 also if the engine was not asked for the value.
    pub(crate) expires_at_ms: u64,
    /// The engine's place of the key.
    pub(crate) at: At,
}

/// A write's change of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a> {
    /// Sets this value.
    Put { value: &'a [u8], expires_at_ms: u64 },
    /// Removes the key.
    Remove,
    /// As `Put`, for an existing key, with the way its value was made.
    Edit {
        value: &'a [u8],
        expires_at_ms: u64,
        edit: Edit<'a>,
    },
}

/// How a value was made from the one before, for engines that can log it in fewer bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Edit<'a> {
    /// Appended these bytes.
    Append(&'a [u8]),
    /// Set the word at this offset.
    SetWord { at: u64, word: u64 },
    /// Added this, wrapping around, to the word at this offset.
    AddToWord { at: u64, by: u64 },
}

impl<'a> Change<'a> {
    /// The new value of the key.
    #[inline]
    pub(crate) fn value(&self) -> &'a [u8] {
        match *self {
            Change::Put { value, .. } | Change::Edit { value, .. } => value,
            Change::Remove => &[],
        }
    }

    /// The key's expiry in Unix milliseconds; 0 = never.
    pub(crate) fn expires_at_ms(&self) -> u64 {
        match *self {
            Change::Put { expires_at_ms, .. } | Change::Edit { expires_at_ms, .. } => expires_at_ms,
            Change::Remove => 0,
        }
    }
}

/// Keys that an iteration has met and not shown yet, in a row, each with its value's length and expiry.
#[derive(Default)]
pub(crate) struct Met {
    keys: Vec<u8>,
    /// End of the key, bytes of its value, expiry in Unix milliseconds.
    entries: Vec<(usize, u64, u64)>,
}

impl Met {
    pub(crate) fn push(&mut self, key: &[u8], value_bytes: u64, expires_at_ms: u64) {
        self.keys.extend_from_slice(key);
        self.entries
            .push((self.keys.len(), value_bytes, expires_at_ms));
    }

    /// Shows all keys in the order in which they were met.
    pub(crate) fn show(&self, visit: Visit<'_>) {
        let mut from = 0;
        for &(end, value_bytes, expires_at_ms) in &self.entries {
            visit(&self.keys[from..end], value_bytes, expires_at_ms);
            from = end;
        }
    }
}

/// A session of an engine, below its calls.
///
/// A submitted write holds its key's stripe until it is committed. A session that holds a stripe never waits
/// for another one, except in [`Backend::lock_all`], which takes stripes in ascending order.
pub(crate) trait Backend: Send + Sized {
    /// The engine.
    type Engine: Engine + Deref<Target = Base>;
    /// The place of a key's state.
    type At: Copy + Default;
    /// Whether it changes parts of values without the rest: [`Backend::see_part`], [`Backend::submit_part`].
    const HAS_PARTS: bool = false;

    /// The engine, which outlives the borrow of the session.
    fn engine(&self) -> &Arc<Self::Engine>;
    fn core(&self) -> &SessionCore;
    fn core_mut(&mut self) -> &mut SessionCore;
    /// The number of its epoch slot, by which it owns stripes.
    fn id(&self) -> u16;
    /// Whether there are submitted, uncommitted writes.
    fn is_pending(&self) -> bool;
    /// The ticket of the last commit.
    fn ticket(&self) -> Ticket;

    fn hash(&self, key: &[u8]) -> u64;
    fn stripe(&self, hash: u64) -> StripeId;
    /// Prefetches the memory in which a look-up of this hash begins.
    fn prefetch(&self, hash: u64);

    /// Sees to it that the state of these keys, or of all (`None`), is known: shortly after a restart it may
    /// not be. Called before a stripe is taken for the call.
    ///
    /// # Errors
    /// [`Error::Loading`]; [`Error::Corrupt`]; as [`Backend::commit_pending`].
    #[inline(always)]
    fn await_known(&mut self, _keys: Option<&[&[u8]]>) -> Result<(), Error> {
        Ok(())
    }

    /// As [`EngineSession::get`](super::EngineSession::get), for a valid key.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; as [`Backend::commit_pending`].
    fn read_value(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error>;
    /// As [`EngineSession::get_or_place`](super::EngineSession::get_or_place), for a valid key.
    ///
    /// # Errors
    /// As [`Backend::read_value`].
    fn read_or_place(
        &mut self,
        key: &[u8],
        _how: &Placing,
        into: &mut Vec<u8>,
        _pieces: &mut Vec<Piece>,
    ) -> Result<Option<(Found, Option<Placed>)>, Error> {
        Ok(self.read_value(key, into)?.map(|found| (found, None)))
    }
    /// As [`EngineSession::read_range`](super::EngineSession::read_range), for a valid key.
    ///
    /// # Errors
    /// As [`Backend::read_value`].
    fn read_part(
        &mut self,
        key: &[u8],
        part: Range<u64>,
        into: &mut Vec<u8>,
    ) -> Result<Option<(Found, u64)>, Error> {
        let mut value = std::mem::take(&mut self.core_mut().current);
        let found = self.read_value(key, &mut value);
        let length = value.len();
        let [start, end] = [part.start, part.end].map(|at| at.min(length as u64) as usize);
        into.extend_from_slice(value.get(start..end).unwrap_or(&[]));
        value.clear();
        value.shrink_to(super::session::SCRATCH_KEEP);
        self.core_mut().current = value;
        Ok(found?.map(|found| (found, length as u64)))
    }
    /// As [`EngineSession::probe`](super::EngineSession::probe), for a valid key.
    ///
    /// # Errors
    /// As [`Backend::read_value`].
    fn read_meta(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error>;
    /// Reads keys one after the other; the caller checks whether others wrote them meanwhile. `hashes` has
    /// the hash of each key, and its stripe's word.
    ///
    /// # Errors
    /// As [`Backend::read_value`].
    fn read_each(
        &mut self,
        keys: &[&[u8]],
        _hashes: &[(u64, u64)],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        read_one_by_one(self, keys, into, found)
    }
    /// Meets the keys of at least `count` entries from `cursor` on, or of all that are left. Returns the
    /// cursor to continue from, 0 at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    fn walk(&mut self, cursor: u64, count: usize, met: &mut Met) -> Result<u64, Error>;
    /// Meets up to `count` keys between two bounds, in order. Returns the last key it looked at, `None` at
    /// the end.
    ///
    /// # Errors
    /// [`Error::Unordered`]; [`Error::Corrupt`].
    fn walk_in_order(
        &mut self,
        _from: Bound<&[u8]>,
        _to: Bound<&[u8]>,
        _count: usize,
        _met: &mut Met,
    ) -> Result<Option<Vec<u8>>, Error> {
        Err(Error::Unordered)
    }
    /// As [`EngineSession::random_key`](super::EngineSession::random_key).
    ///
    /// # Errors
    /// As [`Backend::walk`].
    fn pick_random(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        random_of_some(self, rand::random(), into)
    }

    /// Takes a stripe for a write that stays pending, or until it is released. May commit what is pending.
    ///
    /// # Errors
    /// As [`Backend::commit_pending`].
    fn acquire(&mut self, stripe: StripeId) -> Result<(), Error>;
    /// As [`Backend::acquire`], if the stripe is free; returns whether it was.
    ///
    /// # Errors
    /// As [`Backend::commit_pending`].
    fn try_acquire(&mut self, stripe: StripeId) -> Result<bool, Error>;
    /// Releases a stripe on which nothing was submitted.
    fn give_back(&mut self, stripe: StripeId);
    /// Commits what is pending and takes these stripes, which ascend.
    ///
    /// # Errors
    /// As [`Backend::commit_pending`]; no stripe is held then.
    fn lock_all(&mut self, stripes: &[StripeId]) -> Result<(), Error>;
    /// Called after the stripes of [`Backend::lock_all`] were released.
    fn unlocked(&mut self) {}

    /// The state of a key, for a write that does not need its value.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    fn locate(&mut self, taken: Taken, key: &[u8]) -> Result<Seen<Self::At>, Error>;
    /// The state of a key; appends its value to `into` if it is there.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    fn see(
        &mut self,
        taken: Taken,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<Seen<Self::At>, Error>;

    /// Appends these bytes of the value of a held key, as far as it has them. Returns its whole length.
    ///
    /// # Errors
    /// As [`Backend::see`].
    fn see_part(
        &mut self,
        _seen: &Seen<Self::At>,
        _part: Range<u64>,
        _into: &mut Vec<u8>,
    ) -> Result<u64, Error> {
        unreachable!("an engine without parts is asked for one")
    }

    /// Makes room, where there is little, before a write of `bytes` bytes of key and value (`None`: unknown
    /// yet). The session may hold stripes of pending writes.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; as [`Backend::commit_pending`].
    fn room_for(&mut self, _bytes: Option<usize>) -> Result<(), Error> {
        Ok(())
    }
    /// Makes room after a write of `bytes` bytes found none. Each attempt, from 0 on, may take longer. The
    /// session holds no stripe. Returns whether another try is worthwhile.
    ///
    /// # Errors
    /// The medium failed.
    fn make_room(&mut self, bytes: u64, attempt: u32) -> Result<bool, Error>;

    /// Submits a put of a valid key and value. The engine may look up the replaced record only at the commit.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and nothing is submitted; as [`Base::healthy`] and [`Backend::commit_pending`].
    fn submit_put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error>;
    /// As [`EngineSession::put_lent`](super::EngineSession::put_lent), for a valid key.
    ///
    /// # Errors
    /// As there.
    fn submit_lent(
        &mut self,
        _key: &[u8],
        _loan: &mut Loan,
        _said: &Said,
        _expires_at_ms: u64,
    ) -> Result<bool, Error> {
        Err(Error::Options("this engine lends no blocks".into()))
    }
    /// Submits a change of a key. On an error it releases the stripe.
    ///
    /// # Errors
    /// As [`Backend::submit_put`].
    fn submit(
        &mut self,
        taken: Taken,
        key: &[u8],
        seen: &Seen<Self::At>,
        change: Change<'_>,
    ) -> Result<(), Error>;
    /// Submits a change of a part of a value; an absent key counts as an empty value that never expires.
    /// Returns the length before and after. On an error it releases the stripe.
    ///
    /// # Errors
    /// [`Error::ValueLength`]; as [`Backend::submit_put`] and [`Backend::see`].
    fn submit_part(
        &mut self,
        _taken: Taken,
        _key: &[u8],
        _seen: &Seen<Self::At>,
        _part: Part<'_>,
    ) -> Result<[u64; 2], Error> {
        unreachable!("an engine without parts is asked to change one")
    }
    /// Changes the word at `at` bytes of a value in place, durably, and releases the stripe. Returns the word
    /// before and after. `None`: the engine cannot do it in place, and the stripe is still held.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; the stripe is still held then.
    fn change_in_place(
        &mut self,
        _taken: Taken,
        _key: &[u8],
        _at: usize,
        _change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<[u64; 2]>, Error> {
        Ok(None)
    }
    /// Applies operations on locked keys as one atomic batch. `clear` removes everything first; the session
    /// then holds all stripes. `stripes` are the held ones; they stay held.
    ///
    /// # Errors
    /// As [`EngineSession::batch`](super::EngineSession::batch).
    fn apply(
        &mut self,
        clear: bool,
        ops: &[BatchOp<'_>],
        stripes: &[StripeId],
    ) -> Result<Ticket, Error>;
    /// Fences everything submitted, makes it visible, and releases the stripes.
    ///
    /// # Errors
    /// The medium failed, or the engine halted: the fate of the submitted writes is unknown.
    fn commit_pending(&mut self) -> Result<(), Error>;

    /// Frees scratch memory that a large value has left.
    fn trim(&mut self);
    /// As [`EngineSession::turn`](super::EngineSession::turn).
    ///
    /// # Errors
    /// As there.
    fn take_turn(&mut self) -> Result<bool, Error> {
        Ok(false)
    }
    /// Commits what is pending and completes all deferred work, before the session ends.
    fn finish(&mut self);
}

/// Stripes that a session has locked. Dropping this releases them, even in a panic.
pub(crate) struct Locked<'s, B: Backend> {
    pub(crate) session: &'s mut B,
    pub(crate) stripes: Vec<StripeId>,
}

impl<'s, B: Backend> Locked<'s, B> {
    /// Locks these keys, or all for `None`. Commits what is pending.
    ///
    /// # Errors
    /// As [`Backend::await_known`]; no stripe is held then.
    pub(crate) fn take(session: &'s mut B, keys: Option<&[&[u8]]>) -> Result<Locked<'s, B>, Error> {
        session.await_known(keys)?;
        let of_key = |key: &&[u8]| session.stripe(session.hash(key));
        let mut stripes: Vec<StripeId> = match keys {
            Some(keys) => keys.iter().map(of_key).collect(),
            None => session.engine().stripes.all().collect(),
        };
        stripes.sort_unstable();
        stripes.dedup();
        session.lock_all(&stripes)?;
        Ok(Locked { session, stripes })
    }

    /// As [`Locked::take`], for a change of several keys. If somebody asked for that
    /// ([`EngineSession::set_late`]), readers of these keys wait from here on; `None`: it is too late.
    ///
    /// # Errors
    /// As [`Locked::take`].
    pub(super) fn take_whole(
        session: &'s mut B,
        keys: Option<&[&[u8]]>,
    ) -> Result<Option<Locked<'s, B>>, Error> {
        let locked = Locked::take(session, keys)?;
        let Some(late) = locked.session.core().late.clone() else {
            return Ok(Some(locked));
        };
        let stripes = &locked.session.engine().stripes;
        locked
            .stripes
            .iter()
            .for_each(|&stripe| stripes.publish(stripe));
        // Behind the marks: whoever comes to know of what was not there yet waits for this change.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok((!late()).then_some(locked))
    }

    /// As [`Backend::apply`]. After a panic in it nobody knows what was published: the engine halts before
    /// the stripes are given back.
    pub(super) fn apply(&mut self, clear: bool, ops: &[BatchOp<'_>]) -> Result<Ticket, Error> {
        let Locked { session, stripes } = self;
        let apply = || session.apply(clear, ops, stripes);
        match catch_unwind(AssertUnwindSafe(apply)) {
            Ok(applied) => applied,
            Err(panic) => {
                self.session.engine().halted.set(PANICKED);
                resume_unwind(panic)
            }
        }
    }
}

impl<B: Backend> Drop for Locked<'_, B> {
    fn drop(&mut self) {
        self.session.engine().stripes.unlock_all(&self.stripes);
        self.session.unlocked();
    }
}

/// Runs a write of so many bytes; if there was no room, makes some and runs it again.
///
/// # Errors
/// Those of `write` and of [`Backend::make_room`].
#[inline]
pub(crate) fn with_room<B: Backend, T>(
    session: &mut B,
    bytes: usize,
    mut write: impl FnMut(&mut B) -> Result<T, Error>,
) -> Result<T, Error> {
    with_room_for(session, |session, room| {
        *room = bytes;
        write(session)
    })
}

/// How often a write that finds no room tries again although nothing was freed.
const PATIENCE: u32 = 3;
/// How often it tries again at most.
const ATTEMPTS: u32 = 100;

/// As [`with_room`], of a write that finds out how many bytes it takes. It decides anew each time: while room
/// is made it holds no key, and others may write.
///
/// # Errors
/// As there.
#[inline]
pub(crate) fn with_room_for<B: Backend, T>(
    session: &mut B,
    mut write: impl FnMut(&mut B, &mut usize) -> Result<T, Error>,
) -> Result<T, Error> {
    let (mut attempt, mut vain, mut room) = (0, 0, 0);
    loop {
        match write(session, &mut room) {
            Err(full @ Error::NoSpace(_)) => {
                // Compaction may lock any key, so this session may hold none.
                session.commit_pending()?;
                // Others may hold up what could be freed, or take it: what they replace is garbage soon.
                match attempt < ATTEMPTS && session.make_room(room as u64, attempt)? {
                    true => vain = 0,
                    false if vain < PATIENCE => vain += 1,
                    false => return Err(full),
                }
                if attempt > 0 {
                    Backoff::rest();
                }
                attempt += 1;
            }
            other => return other,
        }
    }
}

/// See [`Backend::read_each`].
pub(crate) fn read_one_by_one<B: Backend>(
    session: &mut B,
    keys: &[&[u8]],
    into: &mut Vec<u8>,
    found: &mut Vec<(Option<Found>, usize)>,
) -> Result<(), Error> {
    let mut newest = Ticket::NONE;
    for key in keys {
        let one = session.read_value(key, into)?;
        newest = newest.max(session.core().last_read);
        found.push((one, into.len()));
    }
    session.core_mut().last_read = newest;
    Ok(())
}

/// Picks a live key among the first few from `cursor` on or, if there are none, from the start. `false`: the
/// store is empty.
pub(crate) fn random_of_some<B: Backend>(
    session: &mut B,
    cursor: u64,
    into: &mut Vec<u8>,
) -> Result<bool, Error> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    session.scan(cursor, AMONG, &mut |key, _, _| keys.push(key.to_vec()))?;
    let mut cursor = 0;
    while keys.is_empty() {
        cursor = session.scan(cursor, AMONG, &mut |key, _, _| keys.push(key.to_vec()))?;
        if cursor == 0 {
            break;
        }
    }
    let Some(key) = keys.get(rand::random_range(0..keys.len().max(1))) else {
        return Ok(false);
    };
    into.extend_from_slice(key);
    Ok(true)
}
