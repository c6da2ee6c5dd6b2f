//! A session that follows the rule: before each call it completes what has arrived for the keys of the call.
//!
//! A call that reads looks at one word. A call that writes marks the session around it ([`super::calls`]).

use super::Landing;
use super::arrive::Keys;
use super::calls::{Ending, Mark};
use crate::engine::{
    BatchOp, EngineSession, Ensure, Found, Loan, Modify, Piece, Placed, Placing, Said, Scope,
    Ticket, TransactionBody, Visit,
};
use crate::error::Error;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module text.
pub(super) struct LandingSession {
    inner: Box<dyn EngineSession>,
    landing: Arc<Landing>,
    mark: Arc<Mark>,
    /// For changes of several keys that do not look for what arrives.
    blind: Arc<Mark>,
}

impl LandingSession {
    pub(super) fn new(inner: Box<dyn EngineSession>, landing: Arc<Landing>) -> LandingSession {
        LandingSession {
            inner,
            mark: landing.calls.register(),
            blind: landing.blind_calls.register(),
            landing,
        }
    }

    /// Completes what has arrived for the keys of a call that reads.
    #[inline]
    fn complete(&mut self, keys: Keys<'_>) -> Result<(), Error> {
        match self.landing.table.is_quiet() {
            true => Ok(()),
            false => self.landing.complete(keys, &mut *self.inner),
        }
    }

    /// Completes what has arrived for the keys of a call that writes, and runs it, marked.
    #[inline]
    fn marked<T>(
        &mut self,
        keys: Keys<'_>,
        call: impl FnOnce(&mut dyn EngineSession) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.mark.begin(self.landing.barrier);
        if !self.landing.table.is_quiet() {
            self.mark.end();
            let inner = &mut *self.inner;
            self.landing.complete_and_mark(keys, inner, &self.mark)?;
        }
        let _ending = Ending(&self.mark);
        call(&mut *self.inner)
    }

    /// As [`LandingSession::marked`], for a change of several keys. What arrives before the keys are locked
    /// must be seen, as what other sessions wrote is. What arrives after that counts as later than the
    /// change, so whoever knows of it must not read another key as it was before: nobody reads them until the
    /// end.
    fn whole(
        &mut self,
        keys: Keys<'_>,
        mut call: impl FnMut(&mut dyn EngineSession) -> Result<Ticket, Error>,
    ) -> Result<Ticket, Error> {
        let landing = Arc::clone(&self.landing);
        loop {
            let is_late = Arc::new(AtomicBool::new(false));
            let blind = Arc::clone(&self.blind);
            let done = self.marked(keys, |inner| {
                blind.begin(landing.barrier);
                let is_blind = Ending(&blind);
                // A grant that is raised from here on is told after the end of this call.
                if landing.table.is_quiet() {
                    return call(inner);
                }
                drop(is_blind);
                let (here, sums) = (Arc::clone(&landing), landing.sums(keys));
                let late = Arc::clone(&is_late);
                inner.set_late(Some(Arc::new(move || {
                    let has_arrivals = here.has_arrivals_of(&sums);
                    late.fetch_or(has_arrivals, Ordering::Relaxed);
                    has_arrivals
                })));
                // Also if a body panics.
                let looking = Looking(inner);
                call(&mut *looking.0)
            });
            if !is_late.load(Ordering::Relaxed) || done.is_err() {
                return done;
            }
        }
    }
}

/// A session that looks for what has come too late, until this is dropped.
struct Looking<'s>(&'s mut dyn EngineSession);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.set_late(None);
    }
}

impl Drop for LandingSession {
    fn drop(&mut self) {
        self.landing.calls.remove(&self.mark);
        self.landing.blind_calls.remove(&self.blind);
    }
}

impl EngineSession for LandingSession {
    #[inline]
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        self.complete(Keys::One(key))?;
        self.inner.get(key, into)
    }

    fn get_or_place(
        &mut self,
        key: &[u8],
        how: &Placing,
        into: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<(Found, Option<Placed>)>, Error> {
        self.complete(Keys::One(key))?;
        self.inner.get_or_place(key, how, into, pieces)
    }

    fn probe(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        self.complete(Keys::One(key))?;
        self.inner.probe(key)
    }

    fn last_read(&self) -> Ticket {
        self.inner.last_read()
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        let (bytes, count) = (into.len(), found.len());
        let landing = Arc::clone(&self.landing);
        loop {
            // While this session is marked nothing is applied for its keys. So if nothing has arrived by the
            // end, nothing had at any moment of the look.
            let is_whole = self.marked(Keys::These(keys), |inner| {
                inner.get_many(keys, into, found)?;
                Ok(landing.table.is_quiet() || !landing.has_arrivals(Keys::These(keys)))
            })?;
            if is_whole {
                return Ok(());
            }
            into.truncate(bytes);
            found.truncate(count);
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.marked(Keys::One(key), |inner| inner.put(key, value, expires_at_ms))
    }

    fn put_now(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
    ) -> Result<(bool, Ticket), Error> {
        self.marked(Keys::One(key), |inner| {
            inner.put_now(key, value, expires_at_ms)
        })
    }

    fn put_lent(
        &mut self,
        key: &[u8],
        loan: &mut Loan,
        said: &Said,
        expires_at_ms: u64,
    ) -> Result<bool, Error> {
        self.marked(Keys::One(key), |inner| {
            inner.put_lent(key, loan, said, expires_at_ms)
        })
    }

    #[inline]
    fn get_durable(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        self.complete(Keys::One(key))?;
        self.inner.get_durable(key, into)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.marked(Keys::One(key), |inner| inner.delete(key))
    }

    fn modify(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error> {
        self.marked(Keys::One(key), |inner| inner.modify(key, decide))
    }

    fn update_word(
        &mut self,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        self.marked(Keys::One(key), |inner| inner.update_word(key, at, change))
    }

    fn append(&mut self, key: &[u8], suffix: &[u8]) -> Result<usize, Error> {
        self.marked(Keys::One(key), |inner| inner.append(key, suffix))
    }

    fn has_parts(&self) -> bool {
        self.inner.has_parts()
    }

    fn read_range(
        &mut self,
        key: &[u8],
        at: u64,
        count: u64,
        into: &mut Vec<u8>,
    ) -> Result<Option<(Found, u64)>, Error> {
        self.complete(Keys::One(key))?;
        self.inner.read_range(key, at, count, into)
    }

    fn write_range(&mut self, key: &[u8], at: u64, bytes: &[u8]) -> Result<u64, Error> {
        self.marked(Keys::One(key), |inner| inner.write_range(key, at, bytes))
    }

    fn ensure(&mut self, key: &[u8], how: &Ensure) -> Result<Option<bool>, Error> {
        self.marked(Keys::One(key), |inner| inner.ensure(key, how))
    }

    fn set_len(&mut self, key: &[u8], length: u64) -> Result<Option<u64>, Error> {
        self.marked(Keys::One(key), |inner| inner.set_len(key, length))
    }

    fn increment(&mut self, key: &[u8], at: usize, by: u64) -> Result<Option<u64>, Error> {
        self.marked(Keys::One(key), |inner| inner.increment(key, at, by))
    }

    fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<Ticket, Error> {
        self.whole(Keys::Of(ops), |inner| inner.batch(ops))
    }

    fn transaction(
        &mut self,
        scope: Scope<'_>,
        body: TransactionBody<'_>,
    ) -> Result<Ticket, Error> {
        let keys = match scope {
            Scope::Keys(keys) => Keys::These(keys),
            Scope::All => Keys::All,
        };
        self.whole(keys, |inner| inner.transaction(scope, body))
    }

    fn clear(&mut self) -> Result<Ticket, Error> {
        self.whole(Keys::All, |inner| inner.clear())
    }

    fn turn(&mut self) -> Result<bool, Error> {
        self.inner.turn()
    }

    fn commit(&mut self) -> Result<Ticket, Error> {
        self.inner.commit()
    }

    #[inline]
    fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        self.inner.wait(ticket)
    }

    fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error> {
        self.complete(Keys::All)?;
        self.inner.scan(cursor, count, visit)
    }

    fn range(
        &mut self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        count: usize,
        visit: Visit<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.complete(Keys::All)?;
        self.inner.range(from, to, count, visit)
    }

    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        self.complete(Keys::All)?;
        self.inner.random_key(into)
    }

    fn watch(&mut self, key: &[u8]) -> u64 {
        // What could not be applied here is applied, and changes the number, before the key is read again.
        let _ = self.complete(Keys::One(key));
        self.inner.watch(key)
    }
}
