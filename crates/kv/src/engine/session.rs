//! The calls of a session, over an engine's [`Backend`].

mod edit;
mod held;
pub(super) mod limit;
pub(super) mod loan;

use super::backend::{Backend, Change, Edit, Locked, Met, SessionCore, Taken, with_room};
use super::base::Base;
use super::halt::PANICKED;
use super::part::{Ensured, Part, ensure_whole};
use super::{
    BatchOp, Change as Decision, Current, EngineSession, Ensure, Found, Late, Loan, Modify,
    OBJECT_BYTES_MAX, Piece, Placed, Placing, Said, Scope, Ticket, TransactionBody, Visit,
    check_key, check_value, transaction,
};
use crate::concurrency::seam::looks;
use crate::concurrency::stripes::{StripeId, Stripes};
use crate::error::Error;
use edit::{edit_part, edit_word};
use everdram_pm::Lsn;
use held::{ask, or_give_back, submit, take_key, with_values};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{Ordering, fence};

/// Attempts at a lock-free snapshot of several keys before their locks are taken.
pub(crate) const SNAPSHOT_TRIES: usize = 8;
/// Scratch memory above this size is freed after use.
pub(crate) const SCRATCH_KEEP: usize = 1 << 20;

impl SessionCore {
    /// The core of a user's session; their number is limited.
    ///
    /// # Errors
    /// [`Error::TooManySessions`].
    pub(crate) fn of_user(base: &Base) -> Result<SessionCore, Error> {
        Ok(SessionCore {
            permit: Some(base.sessions.take()?),
            ..SessionCore::default()
        })
    }

    fn is_of_user(&self) -> bool {
        self.permit.is_some()
    }
}

/// [`EngineSession::get`], which is written out where it is called: its call and answer would be a tenth of
/// its instructions.
#[inline(always)]
fn get_at_once<B: Backend>(
    session: &mut B,
    key: &[u8],
    into: &mut Vec<u8>,
) -> Result<Option<Found>, Error> {
    check_key(key)?;
    session.await_known(Some(&[key]))?;
    session.read_value(key, into)
}

impl<B: Backend> EngineSession for B {
    #[inline]
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        get_at_once(self, key, into)
    }

    fn get_durable(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        let found = get_at_once(self, key, into)?;
        self.wait(self.last_read())?;
        Ok(found)
    }

    fn get_or_place(
        &mut self,
        key: &[u8],
        how: &Placing,
        into: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<(Found, Option<Placed>)>, Error> {
        check_key(key)?;
        self.await_known(Some(&[key]))?;
        self.read_or_place(key, how, into, pieces)
    }

    fn probe(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        check_key(key)?;
        self.await_known(Some(&[key]))?;
        self.read_meta(key)
    }

    fn last_read(&self) -> Ticket {
        self.core().last_read
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        for key in keys {
            check_key(key)?;
        }
        self.await_known(Some(keys))?;
        self.commit_pending()?;
        let mut hashes = std::mem::take(&mut self.core_mut().hashes);
        hashes.clear();
        hashes.extend(keys.iter().map(|key| (self.hash(key), 0)));
        let result = read_at_once(self, keys, &mut hashes, into, found);
        self.core_mut().hashes = hashes;
        result
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        check_key(key)?;
        check_value(value)?;
        self.await_known(Some(&[key]))?;
        let bytes = key.len() + value.len();
        self.room_for(Some(bytes))?;
        with_room(self, bytes, |session| {
            session.submit_put(key, value, expires_at_ms)
        })
        .map_err(|error| self.engine().at_path(error))
    }

    fn put_now(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
    ) -> Result<(bool, Ticket), Error> {
        self.put(key, value, expires_at_ms)?;
        self.commit_pending()
            .map_err(|error| self.engine().at_path(error))?;
        Ok((self.core().made, self.ticket()))
    }

    fn put_lent(
        &mut self,
        key: &[u8],
        loan: &mut Loan,
        said: &Said,
        expires_at_ms: u64,
    ) -> Result<bool, Error> {
        check_key(key)?;
        self.await_known(Some(&[key]))?;
        let submitted = self.submit_lent(key, loan, said, expires_at_ms);
        submitted.map_err(|error| self.engine().at_path(error))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        check_key(key)?;
        let deleted = with_room(self, key.len(), |session| {
            session.engine().healthy()?;
            let taken = take_key(session, key)?;
            let located = session.locate(taken, key);
            let seen = or_give_back(session, taken, located)?;
            if !seen.is_counted {
                session.give_back(taken.stripe);
                return Ok(false);
            }
            // An expired key is removed, too.
            session.submit(taken, key, &seen, Change::Remove)?;
            Ok(seen.is_live)
        });
        deleted.map_err(|error| self.engine().at_path(error))
    }

    fn modify(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error> {
        check_key(key)?;
        self.room_for(None)?;
        with_values(self, key, |session, taken, [current, value], room| {
            let looked = session.see(taken, key, current);
            let seen = or_give_back(session, taken, looked)?;
            let state = seen.is_live.then_some(Current {
                value: current,
                version: seen.version,
                expires_at_ms: seen.expires_at_ms,
            });
            let change = match ask(session, taken.stripe, || decide(state, value)) {
                Decision::Put { expires_at_ms } => Change::Put {
                    value,
                    expires_at_ms,
                },
                Decision::Delete if seen.is_counted => Change::Remove,
                decision => {
                    session.give_back(taken.stripe);
                    // A removal is refused also where there is nothing to remove.
                    return match decision {
                        Decision::Keep => Ok(()),
                        _ => session.engine().healthy(),
                    };
                }
            };
            submit(session, taken, key, &seen, change, room)
        })
    }

    fn update_word(
        &mut self,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        let set = |at, [_, word]: [u64; 2]| Edit::SetWord { at, word };
        let words = edit_word(self, key, at, set, change)?;
        Ok(words.map(|[before, _]| before))
    }

    fn increment(&mut self, key: &[u8], at: usize, by: u64) -> Result<Option<u64>, Error> {
        let add = |at, _| Edit::AddToWord { at, by };
        let words = edit_word(self, key, at, add, &mut |word| word.wrapping_add(by))?;
        Ok(words.map(|[_, after]| after))
    }

    fn has_parts(&self) -> bool {
        B::HAS_PARTS
    }

    fn read_range(
        &mut self,
        key: &[u8],
        at: u64,
        count: u64,
        into: &mut Vec<u8>,
    ) -> Result<Option<(Found, u64)>, Error> {
        check_key(key)?;
        self.await_known(Some(&[key]))?;
        self.read_part(key, at..at.saturating_add(count), into)
    }

    fn write_range(&mut self, key: &[u8], at: u64, bytes: &[u8]) -> Result<u64, Error> {
        if bytes.is_empty() {
            self.engine().healthy()?;
            return Ok(self.probe(key)?.map_or(0, |(_, length)| length));
        }
        let lengths = edit_part(self, key, Part::Write { at, bytes })?;
        Ok(lengths.map_or(0, |[_, after]| after))
    }

    fn ensure(&mut self, key: &[u8], how: &Ensure) -> Result<Option<bool>, Error> {
        if !B::HAS_PARTS {
            return ensure_whole(self, key, how);
        }
        check_key(key)?;
        self.engine().healthy()?;
        self.room_for(None)?;
        let ensured = with_room(self, key.len(), |session| {
            let taken = take_key(session, key)?;
            let located = session.locate(taken, key);
            let seen = or_give_back(session, taken, located)?;
            let before = match seen.is_live {
                true => session.see_part(&seen, 0..0, &mut Vec::new()).map(Some),
                false => Ok(None),
            };
            let decided = before.and_then(|before| how.decide(before, OBJECT_BYTES_MAX));
            let decision = decided.inspect_err(|_| session.give_back(taken.stripe))?;
            match decision {
                Ensured::Missing | Ensured::Fits => session.give_back(taken.stripe),
                Ensured::Length(length) => {
                    session.submit_part(taken, key, &seen, Part::Length(length))?;
                }
                Ensured::Zeros(length) => {
                    session.submit_part(taken, key, &seen, Part::Zeros(length))?;
                }
            }
            Ok(decision.existed(seen.is_live))
        });
        self.trim();
        ensured.map_err(|error| self.engine().at_path(error))
    }

    fn set_len(&mut self, key: &[u8], length: u64) -> Result<Option<u64>, Error> {
        let lengths = edit_part(self, key, Part::Length(length))?;
        Ok(lengths.map(|[before, _]| before))
    }

    fn append(&mut self, key: &[u8], suffix: &[u8]) -> Result<usize, Error> {
        if B::HAS_PARTS {
            let lengths = edit_part(self, key, Part::Append(suffix))?;
            return Ok(lengths.map_or(0, |[_, after]| after as usize));
        }
        check_key(key)?;
        self.engine().healthy()?;
        self.room_for(None)?;
        with_values(self, key, |session, taken, [_, value], room| {
            let looked = session.see(taken, key, value);
            let seen = or_give_back(session, taken, looked)?;
            value.extend_from_slice(suffix);
            let change = match seen.is_live {
                true => Change::Edit {
                    value,
                    expires_at_ms: seen.expires_at_ms,
                    edit: Edit::Append(suffix),
                },
                false => Change::Put {
                    value,
                    expires_at_ms: 0,
                },
            };
            submit(session, taken, key, &seen, change, room)?;
            Ok(value.len())
        })
    }

    fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<Ticket, Error> {
        transaction::batch(self, ops).map_err(|error| self.engine().at_path(error))
    }

    fn transaction(
        &mut self,
        scope: Scope<'_>,
        body: TransactionBody<'_>,
    ) -> Result<Ticket, Error> {
        transaction::run(self, scope, body).map_err(|error| self.engine().at_path(error))
    }

    fn clear(&mut self) -> Result<Ticket, Error> {
        match Locked::take_whole(self, None)? {
            Some(mut locked) => locked.apply(true, &[]),
            None => Ok(Ticket::NONE),
        }
    }

    fn set_late(&mut self, late: Option<Late>) {
        self.core_mut().late = late;
    }

    fn turn(&mut self) -> Result<bool, Error> {
        self.take_turn()
    }

    fn commit(&mut self) -> Result<Ticket, Error> {
        self.commit_pending()?;
        // Even with nothing to commit: a caller that waits for this session learns here that the medium
        // failed.
        self.engine().healthy()?;
        Ok(self.ticket())
    }

    #[inline]
    fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        if ticket != Ticket::NONE {
            self.engine().pool.wait(Lsn(ticket.0))?;
        }
        Ok(())
    }

    fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error> {
        walk(self, visit, |session, met| session.walk(cursor, count, met))
    }

    fn range(
        &mut self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        count: usize,
        visit: Visit<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        walk(self, visit, |session, met| {
            session.walk_in_order(from, to, count, met)
        })
    }

    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        self.await_known(None)?;
        if self.is_pending() {
            self.commit_pending()?;
        }
        into.clear();
        self.pick_random(into)
    }

    fn watch(&mut self, key: &[u8]) -> u64 {
        if check_key(key).is_err() {
            return 0;
        }
        let stripe = self.stripe(self.hash(key));
        let last_read = self.core().last_read;
        // This session's own pending write must not count as a later one.
        let known = self.await_known(Some(&[key]));
        let committed = known.and_then(|()| read_own(self, stripe));
        let before = self.engine().stripes.word(stripe);
        let found = committed.and_then(|()| self.read_meta(key));
        self.core_mut().last_read = last_read;
        let version = found.ok().flatten().map(|(found, _)| found.version);
        let stripes = &self.engine().stripes;
        stripes.watch_number(stripe, self.id(), before, version)
    }
}

/// Shows the keys that `work` meets, as of one moment at which no transaction is half visible.
fn walk<B: Backend, T>(
    session: &mut B,
    visit: Visit<'_>,
    mut work: impl FnMut(&mut B, &mut Met) -> Result<T, Error>,
) -> Result<T, Error> {
    session.await_known(None)?;
    if session.is_pending() {
        session.commit_pending()?;
    }
    // Keys are shown after the pin ends: a caller may write from `visit`, and wait for room that comes only
    // when readers leave.
    let mut met = Met::default();
    let next = loop {
        // The floor is read before the wait and the walk, so that the comparison below shows a clear during
        // either.
        let floor = session.engine().floor();
        looks!();
        session.engine().pass_publications()?;
        let next = work(session, &mut met).map_err(|error| session.engine().at_path(error))?;
        session.engine().pass_publications()?;
        // Orders the walk before the look at the floor.
        fence(Ordering::Acquire);
        // A transaction that removes everything may put the same keys again. They exist all the time, but the
        // walk may have missed them.
        if session.engine().floor() == floor {
            break next;
        }
        met = Met::default();
    };
    met.show(visit);
    // A key that the walk did not meet may have been removed at any time until now.
    session.core_mut().last_read = session.engine().committed();
    Ok(next)
}

/// Commits this session's pending write of `stripe`, so that the next read sees it.
#[inline(always)]
pub(crate) fn read_own<B: Backend>(session: &mut B, stripe: StripeId) -> Result<(), Error> {
    if session.is_pending() && session.engine().stripes.held_by(stripe, session.id()) {
        session.commit_pending()?;
    }
    Ok(())
}

/// Reads several keys as of one moment: optimistically, then under their locks. `hashes` has the hash of each
/// key, and room for its stripe's word.
fn read_at_once<B: Backend>(
    session: &mut B,
    keys: &[&[u8]],
    hashes: &mut [(u64, u64)],
    into: &mut Vec<u8>,
    found: &mut Vec<(Option<Found>, usize)>,
) -> Result<(), Error> {
    let (bytes, count) = (into.len(), found.len());
    for _ in 0..SNAPSHOT_TRIES {
        for (hash, word) in hashes.iter_mut() {
            *word = session.engine().stripes.word(session.stripe(*hash));
        }
        let result = session.read_each(keys, hashes, into, found);
        // Orders the reads before the look at the stripes.
        fence(Ordering::Acquire);
        let locks = &session.engine().stripes;
        let is_quiet = hashes.iter().all(|&(hash, word)| {
            !Stripes::is_word_locked(word) && locks.word(session.stripe(hash)) == word
        });
        if is_quiet || result.is_err() {
            return result;
        }
        into.truncate(bytes);
        found.truncate(count);
    }
    let locked = Locked::take(session, Some(keys))?;
    locked.session.read_each(keys, hashes, into, found)
}

/// Removes a key if its expiry has passed, and returns whether it did: a step of the sweep. A key whose
/// stripe is held is left for the next round.
///
/// # Errors
/// As [`Backend::locate`] and [`Backend::submit`].
pub(crate) fn remove_expired<B: Backend>(session: &mut B, key: &[u8]) -> Result<bool, Error> {
    let hash = session.hash(key);
    let stripe = session.stripe(hash);
    if !session.try_acquire(stripe)? {
        return Ok(false);
    }
    let taken = Taken { hash, stripe };
    let located = session.locate(taken, key);
    let seen = or_give_back(session, taken, located)?;
    if !seen.is_counted || seen.is_live {
        session.give_back(stripe);
        return Ok(false);
    }
    session.submit(taken, key, &seen, Change::Remove)?;
    Ok(true)
}

/// Ends a session: commits what it submitted, and releases everything that others may wait for.
pub(crate) fn end<B: Backend>(session: &mut B) {
    // A failing medium has already told every waiter, and nothing submitted here was acknowledged. A panic
    // may have left half a write, on which an assertion fails here; without the catch, a second panic would
    // abort.
    let finished = catch_unwind(AssertUnwindSafe(|| session.finish()));
    // Only a user's session outlives a panic, which its caller caught.
    let is_suspect = finished.is_err() || std::thread::panicking() || session.core().is_of_user();
    let engine = session.engine();
    let (stripes, id) = (&engine.stripes, session.id());
    // A stripe still held belongs to a write that a panic interrupted, now or earlier.
    let is_holding = || stripes.all().any(|stripe| stripes.held_by(stripe, id));
    if finished.is_err() || is_suspect && is_holding() {
        // Before other sessions get the stripes.
        engine.halted.set(PANICKED);
        stripes.unlock_all_of(id);
    }
}
