//! What an engine brings to a session.
//!
//! The calls of [`EngineSession`](super::EngineSession) are written once, in `session.rs` and
//! `transaction.rs`, over the trait [`Backend`]: locking a key, looking at what it has, deciding, submitting,
//! and what is to be done if there is no room. An engine finds records and writes them.

use super::base::Base;
use super::session_limit::Permit;
use super::{BatchOp, Engine, EngineSession, Found, Ticket, Visit};
use crate::concurrency::stripes::StripeId;
use crate::error::Error;
use std::ops::Deref;
use std::sync::Arc;

/// Keys among which a random one is picked, at least, if there are as many.
const AMONG: usize = 16;

/// What every session has for its calls.
#[derive(Default)]
pub(crate) struct SessionCore {
    /// Whether the write that was committed last made a key.
    pub(crate) made: bool,
    pub(crate) last_read: Ticket,
    /// Of keys that are read together: hash, and the word of the stripe before they are read.
    pub(super) hashes: Vec<(u64, u64)>,
    /// The value that a call reads, and the one that it writes.
    pub(super) current: Vec<u8>,
    pub(super) value: Vec<u8>,
    /// Held by a user's session: there may be only so many of these.
    pub(super) _permit: Option<Permit>,
}

/// A key whose stripe the session holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) hash: u64,
    pub(crate) stripe: StripeId,
}

/// What a key has, as whoever holds its stripe sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen<At> {
    /// Whether the key is there, if only because nobody has met it since it expired.
    pub(crate) is_counted: bool,
    /// Whether the key is there for users.
    pub(crate) is_live: bool,
    pub(crate) version: u64,
    /// 0 also where the engine was not asked for the value.
    pub(crate) expires_at_ms: u64,
    /// Where the engine has it.
    pub(crate) at: At,
}

/// What a write does to a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a> {
    /// The key gets this value.
    Put { value: &'a [u8], expires_at_ms: u64 },
    /// The key goes.
    Remove,
    /// As `Put`, of a key that is there, with how its value came about.
    Edit {
        value: &'a [u8],
        expires_at_ms: u64,
        edit: Edit<'a>,
    },
}

/// How a value came about from the one before, for engines that can log it in fewer bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Edit<'a> {
    /// These bytes were added at the end.
    Append(&'a [u8]),
    /// The word at this offset was set.
    SetWord { at: u64, word: u64 },
    /// This was added, wrapping around, to the word at this offset.
    AddToWord { at: u64, by: u64 },
}

impl<'a> Change<'a> {
    /// The value that the key gets.
    #[inline]
    pub(crate) fn value(&self) -> &'a [u8] {
        match *self {
            Change::Put { value, .. } | Change::Edit { value, .. } => value,
            Change::Remove => &[],
        }
    }

    /// When the key goes by itself, in Unix milliseconds; 0: never.
    pub(crate) fn expires_at_ms(&self) -> u64 {
        match *self {
            Change::Put { expires_at_ms, .. } | Change::Edit { expires_at_ms, .. } => expires_at_ms,
            Change::Remove => 0,
        }
    }
}

/// Keys that an iteration has met, until they are shown: in a row, each with what is said of it.
#[derive(Default)]
pub(crate) struct Met {
    keys: Vec<u8>,
    /// Where its key ends, bytes of its value, expiry in Unix milliseconds.
    entries: Vec<(usize, u64, u64)>,
}

impl Met {
    pub(crate) fn push(&mut self, key: &[u8], value_bytes: u64, expires_at_ms: u64) {
        self.keys.extend_from_slice(key);
        self.entries
            .push((self.keys.len(), value_bytes, expires_at_ms));
    }

    /// Shows all, in the order in which they were met.
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
/// A write that was submitted and not committed holds its key's stripe. Nobody waits for a stripe while
/// holding another, but for [`Backend::lock_all`], which takes them in ascending order.
pub(crate) trait Backend: Send + Sized {
    /// What it is a session of.
    type Engine: Engine + Deref<Target = Base>;
    /// Where a key's state lies.
    type At: Copy + Default;

    /// The engine, which outlives the borrow of the session.
    fn engine(&self) -> &Arc<Self::Engine>;
    fn core(&self) -> &SessionCore;
    fn core_mut(&mut self) -> &mut SessionCore;
    /// The number of its epoch slot, by which it owns stripes.
    fn id(&self) -> u16;
    /// Whether writes were submitted and not committed.
    fn is_pending(&self) -> bool;
    /// The ticket of what was committed last.
    fn ticket(&self) -> Ticket;

    fn hash(&self, key: &[u8]) -> u64;
    fn stripe(&self, hash: u64) -> StripeId;
    /// Asks for the memory that a look-up of a key with this hash begins in.
    fn prefetch(&self, hash: u64);

    /// As [`EngineSession::get`](super::EngineSession::get), of a key that can be one.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; as [`Backend::commit_pending`].
    fn read_value(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error>;
    /// As [`EngineSession::probe`](super::EngineSession::probe), of a key that can be one.
    ///
    /// # Errors
    /// As [`Backend::read_value`].
    fn read_meta(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error>;
    /// Reads keys, one after the other; whether others wrote them meanwhile is for the caller to find out.
    /// `hashes`: of each key, and the word of its stripe.
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
    /// Meets the keys of at least `count` entries, if there are as many, from `cursor` on. Returns where to
    /// go on, 0 at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    fn walk(&mut self, cursor: u64, count: usize, met: &mut Met) -> Result<u64, Error>;
    /// As [`EngineSession::random_key`](super::EngineSession::random_key).
    ///
    /// # Errors
    /// As [`Backend::walk`].
    fn pick_random(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        random_of_some(self, rand::random(), into)
    }

    /// Takes a stripe for a write that stays pending, or is given back. What is pending may be committed.
    ///
    /// # Errors
    /// As [`Backend::commit_pending`].
    fn acquire(&mut self, stripe: StripeId) -> Result<(), Error>;
    /// As [`Backend::acquire`], if it can be had at once.
    ///
    /// # Errors
    /// As [`Backend::commit_pending`].
    fn try_acquire(&mut self, stripe: StripeId) -> Result<bool, Error>;
    /// Gives back a stripe on which nothing was submitted.
    fn give_back(&mut self, stripe: StripeId);
    /// Commits what is pending and takes these stripes, which ascend.
    ///
    /// # Errors
    /// As [`Backend::commit_pending`]; no stripe is held then.
    fn lock_all(&mut self, stripes: &[StripeId]) -> Result<(), Error>;
    /// What [`Backend::lock_all`] took is given back.
    fn unlocked(&mut self) {}

    /// What a key has, for a write that does not ask for its value.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    fn locate(&mut self, taken: Taken, key: &[u8]) -> Result<Seen<Self::At>, Error>;
    /// What a key has; its value goes to the end of `into` if it is there.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    fn see(
        &mut self,
        taken: Taken,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<Seen<Self::At>, Error>;

    /// Makes room before a write of so many bytes of key and value (`None`: nobody knows yet), where there
    /// is little. The session may hold stripes of what is pending.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; as [`Backend::commit_pending`].
    fn room_for(&mut self, _bytes: Option<usize>) -> Result<(), Error> {
        Ok(())
    }
    /// Makes room after a write of so many bytes was refused for want of it, in ways that take longer with
    /// each attempt, from 0 on. The session holds nothing. Whether it is worth another try.
    ///
    /// # Errors
    /// What the medium says.
    fn make_room(&mut self, bytes: u64, attempt: u32) -> Result<bool, Error>;

    /// Submits a put, of a key and a value that can be ones. It may be found out at the commit what it
    /// replaces.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and nothing is submitted; as [`Base::healthy`] and [`Backend::commit_pending`].
    fn submit_put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error>;
    /// Submits a change of a key. On an error the stripe is given back.
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
    /// Changes the word at `at` bytes of a value where it lies, durably, and gives the stripe back. Returns
    /// the word before and after. `None`: it has to be done another way, and the stripe is still held.
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
    /// Applies operations on locked keys as one atomic batch; `clear` removes everything before, and all
    /// stripes are held then. `stripes` are those held; they stay so.
    ///
    /// # Errors
    /// As [`EngineSession::batch`](super::EngineSession::batch).
    fn apply(
        &mut self,
        clear: bool,
        ops: &[BatchOp<'_>],
        stripes: &[StripeId],
    ) -> Result<Ticket, Error>;
    /// One fence for everything submitted; then others see it, and the stripes are given back.
    ///
    /// # Errors
    /// The medium has failed, or the engine has halted: nobody knows what became of what was submitted.
    fn commit_pending(&mut self) -> Result<(), Error>;

    /// As [`EngineSession::turn`](super::EngineSession::turn).
    ///
    /// # Errors
    /// As there.
    fn take_turn(&mut self) -> Result<bool, Error> {
        Ok(false)
    }
    /// Commits what is pending and leaves nothing to do, before the session ends.
    fn finish(&mut self);
}

/// Stripes that a session has locked, given back when this is dropped, also by a panic.
pub(crate) struct Locked<'s, B: Backend> {
    pub(crate) session: &'s mut B,
    pub(crate) stripes: Vec<StripeId>,
}

impl<'s, B: Backend> Locked<'s, B> {
    /// Locks these keys, all there are for `None`. Commits what is pending.
    ///
    /// # Errors
    /// As [`Backend::commit_pending`]; no stripe is held then.
    pub(crate) fn take(session: &'s mut B, keys: Option<&[&[u8]]>) -> Result<Locked<'s, B>, Error> {
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

    /// The clocks of the stripes.
    pub(super) fn clocks(&self) -> Vec<u64> {
        let locks = &self.session.engine().stripes;
        let clocks = self.stripes.iter().map(|&stripe| locks.version(stripe));
        clocks.collect()
    }
}

impl<B: Backend> Drop for Locked<'_, B> {
    fn drop(&mut self) {
        self.session.engine().stripes.unlock_all(&self.stripes);
        self.session.unlocked();
    }
}

/// Runs a write, and again after making room if there was none.
///
/// # Errors
/// What it returns; as [`Backend::make_room`].
#[inline]
pub(crate) fn with_room<B: Backend, T>(
    session: &mut B,
    bytes: usize,
    mut write: impl FnMut(&mut B) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut attempt = 0;
    loop {
        match write(session) {
            Err(full @ Error::NoSpace(_)) => {
                // Room is made by whoever may lock any key: this session may hold none.
                session.commit_pending()?;
                if !session.make_room(bytes as u64, attempt)? {
                    return Err(full);
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

/// A live key: one of the first few from `cursor` on, or if none are there, of all. `false`: there is none.
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
