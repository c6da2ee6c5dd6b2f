//! Transactions: reads and staged writes under the locks of the declared keys, applied as one batch.
//!
//! What was staged lies over what the engine has, as the transaction sees it; nobody else sees it before all
//! of it is applied. An engine brings [`Locking`], and no more.

use super::{
    BatchOp, Engine, EngineSession, Found, Scope, Ticket, Transaction, TransactionBody, Visit,
};
use super::{check_key, check_value};
use crate::concurrency::stripes::{GiveBack, StripeId, Stripes};
use crate::error::Error;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a session does for a transaction on it. Locked is a key whose stripe the session holds.
pub(crate) trait Locking: EngineSession {
    /// What it is a session of.
    type Engine: Engine;
    /// The engine, which outlives the borrow of the session.
    fn engine(&self) -> &Arc<Self::Engine>;
    /// The engine's key locks.
    fn stripes(engine: &Self::Engine) -> &Stripes;
    /// Whether this expiry (Unix milliseconds; 0 = never) has passed.
    fn is_expired(&self, expires_at_ms: u64) -> bool;
    /// Commits what is pending and takes the stripes of these keys in ascending order; all there are for
    /// `None`.
    ///
    /// # Errors
    /// As [`EngineSession::commit`]; no stripe is held then.
    fn lock(&mut self, keys: Option<&[&[u8]]>) -> Result<Vec<StripeId>, Error>;
    /// As [`EngineSession::get`], of a locked key; the value is appended if there is a place for it.
    ///
    /// # Errors
    /// As [`EngineSession::get`].
    fn read_locked(
        &mut self,
        key: &[u8],
        into: Option<&mut Vec<u8>>,
    ) -> Result<Option<Found>, Error>;
    /// As [`EngineSession::watch`], of a locked key. Nothing depends on it: [`EngineSession::last_read`]
    /// stays.
    ///
    /// # Errors
    /// As [`EngineSession::get`].
    fn watch_locked(&mut self, key: &[u8]) -> Result<u64, Error>;
    /// Applies operations on locked keys as one atomic batch; `clear` removes everything before, and all
    /// stripes are held then. `stripes` are those held; they stay so.
    ///
    /// # Errors
    /// As [`EngineSession::batch`].
    fn apply(
        &mut self,
        clear: bool,
        ops: &[BatchOp<'_>],
        stripes: &[StripeId],
    ) -> Result<Ticket, Error>;
    /// Makes room for operations that were refused for want of it, in ways that take longer with each
    /// attempt, from 0 on. The session holds nothing. Whether it is worth another try.
    ///
    /// # Errors
    /// As [`EngineSession::commit`].
    fn make_room(&mut self, ops: &[BatchOp<'_>], attempt: u32) -> Result<bool, Error>;
    /// Sets [`EngineSession::last_read`].
    fn depend_on(&mut self, ticket: Ticket);
}

/// What the transaction has done to a key: the value and expiry it staged, or a removal.
type Staged = Option<(Vec<u8>, u64)>;

/// A transaction that runs.
struct Overlay<'s, S> {
    session: &'s mut S,
    /// Declared keys, sorted; `None` = any.
    declared: Option<&'s [&'s [u8]]>,
    /// Everything from before counts as removed.
    cleared: bool,
    staged: BTreeMap<Vec<u8>, Staged>,
    /// What all that was read depends on.
    seen: Ticket,
}

impl<S: Locking> Overlay<'_, S> {
    fn check(&self, key: &[u8]) -> Result<(), Error> {
        check_key(key)?;
        match &self.declared {
            Some(keys) if keys.binary_search(&key).is_err() => Err(Error::KeyNotLocked),
            _ => Ok(()),
        }
    }

    fn check_all(&self) -> Result<(), Error> {
        match self.declared {
            Some(_) => Err(Error::KeyNotLocked),
            None => Ok(()),
        }
    }

    /// What is under the staged writes.
    fn below(&mut self, key: &[u8], into: Option<&mut Vec<u8>>) -> Result<Option<Found>, Error> {
        if self.cleared {
            return Ok(None);
        }
        let found = self.session.read_locked(key, into)?;
        self.seen = self.seen.max(self.session.last_read());
        Ok(found)
    }
}

impl<S: Locking> Transaction for Overlay<'_, S> {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        self.check(key)?;
        match self.staged.get(key) {
            None => self.below(key, Some(into)),
            Some(None) => Ok(None),
            Some(Some((value, expires_at_ms))) => {
                if self.session.is_expired(*expires_at_ms) {
                    return Ok(None);
                }
                into.extend_from_slice(value);
                Ok(Some(Found {
                    version: 0,
                    expires_at_ms: *expires_at_ms,
                    ticket: Ticket::NONE,
                }))
            }
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.check(key)?;
        check_value(value)?;
        self.staged
            .insert(key.to_vec(), Some((value.to_vec(), expires_at_ms)));
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.check(key)?;
        let was = match self.staged.get(key) {
            None => self.below(key, None)?.is_some(),
            Some(None) => false,
            Some(Some((_, expires_at_ms))) => !self.session.is_expired(*expires_at_ms),
        };
        self.staged.insert(key.to_vec(), None);
        Ok(was)
    }

    fn watch(&mut self, key: &[u8]) -> Result<u64, Error> {
        self.check(key)?;
        self.session.watch_locked(key)
    }

    fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error> {
        self.check_all()?;
        let next = self.session.scan(cursor, count, visit)?;
        self.seen = self.seen.max(self.session.last_read());
        Ok(next)
    }

    fn len(&mut self) -> u64 {
        let engine = self.session.engine();
        let len = engine.len();
        self.seen = self.seen.max(engine.committed());
        len
    }

    fn clear(&mut self) -> Result<(), Error> {
        self.check_all()?;
        self.cleared = true;
        self.staged.clear();
        Ok(())
    }
}

/// What a transaction wants to be done.
struct Wanted {
    cleared: bool,
    staged: BTreeMap<Vec<u8>, Staged>,
    /// What all that was read depends on.
    seen: Ticket,
}

impl Wanted {
    fn ops(&self) -> Vec<BatchOp<'_>> {
        let ops = self.staged.iter().map(|(key, staged)| match staged {
            Some((value, expires_at_ms)) => BatchOp::Put {
                key,
                value,
                expires_at_ms: *expires_at_ms,
            },
            None => BatchOp::Delete { key },
        });
        ops.collect()
    }
}

/// Runs `body` on `session`; see [`EngineSession::transaction`].
///
/// # Errors
/// What `body` returns, or as [`EngineSession::batch`]; nothing is applied then.
pub(crate) fn run<S: Locking>(
    session: &mut S,
    scope: Scope<'_>,
    body: TransactionBody<'_>,
) -> Result<Ticket, Error> {
    let declared = match scope {
        Scope::All => None,
        Scope::Keys(keys) => {
            keys.iter().try_for_each(|key| check_key(key))?;
            let mut declared = keys.to_vec();
            declared.sort_unstable();
            Some(declared)
        }
    };
    let declared = declared.as_deref();
    session.depend_on(Ticket::NONE);
    let engine = Arc::clone(session.engine());
    let locks = S::stripes(&engine);
    let mut stripes = session.lock(declared)?;
    let mut held = GiveBack {
        stripes: locks,
        held: &stripes,
    };
    let wanted = stage(session, declared, body)?;
    let ops = wanted.ops();
    if ops.is_empty() && !wanted.cleared {
        // Nothing to apply; the answer still depends on what was read.
        return Ok(wanted.seen);
    }
    let mut attempt = 0;
    loop {
        let full = match session.apply(wanted.cleared, &ops, &stripes) {
            Err(full @ Error::NoSpace(_)) => full,
            applied => return Ok(applied?.max(wanted.seen)),
        };
        // Room is made by whoever may lock any key, so these are given back meanwhile.
        let clocks = |stripes: &[StripeId]| -> Vec<u64> {
            stripes
                .iter()
                .map(|&stripe| locks.version(stripe))
                .collect()
        };
        let before = clocks(&stripes);
        drop(held);
        if !session.make_room(&ops, attempt)? {
            return Err(full);
        }
        stripes = session.lock(declared)?;
        held = GiveBack {
            stripes: locks,
            held: &stripes,
        };
        if clocks(&stripes) != before {
            // Somebody has written meanwhile, and the body may have read what it was before.
            return Err(full);
        }
        attempt += 1;
    }
}

/// Runs `body` over keys that are locked.
fn stage<S: Locking>(
    session: &mut S,
    declared: Option<&[&[u8]]>,
    body: TransactionBody<'_>,
) -> Result<Wanted, Error> {
    let mut overlay = Overlay {
        session,
        declared,
        cleared: false,
        staged: BTreeMap::new(),
        seen: Ticket::NONE,
    };
    let outcome = body(&mut overlay);
    let Overlay {
        session,
        cleared,
        staged,
        seen,
        ..
    } = overlay;
    session.depend_on(seen);
    outcome?;
    Ok(Wanted {
        cleared,
        staged,
        seen,
    })
}
