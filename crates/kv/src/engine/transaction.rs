//! Atomic batches, and transactions: reads and staged writes under the locks of the declared keys, applied as
//! one batch.
//!
//! A transaction sees its staged writes over the engine's state. Other sessions see them only when all are
//! applied.

use super::backend::{Backend, Locked, Seen, Taken, with_room, with_room_for};
use super::{
    BatchOp, Engine, EngineSession, Found, Scope, Ticket, Transaction, TransactionBody, Visit,
    check_key, check_value,
};
use crate::error::Error;
use std::collections::BTreeMap;

/// Bytes that the record of an operation takes at most, in addition to key and value.
const RECORD_OVERHEAD: usize = 64;

/// A transaction's change of a key: the value and expiry it staged, or a removal.
type Staged = Option<(Vec<u8>, u64)>;

/// A running transaction.
struct Overlay<'s, S> {
    session: &'s mut S,
    /// Declared keys, sorted; `None` = any.
    declared: Option<&'s [&'s [u8]]>,
    /// All earlier keys count as removed.
    cleared: bool,
    staged: BTreeMap<Vec<u8>, Staged>,
    /// The ticket on which all reads so far depend.
    seen: Ticket,
}

impl<S: Backend> Overlay<'_, S> {
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

    /// A declared key, whose stripe the session holds.
    fn taken(&self, key: &[u8]) -> Taken {
        let hash = self.session.hash(key);
        let stripe = self.session.stripe(hash);
        Taken { hash, stripe }
    }

    /// Notes a read of the engine's state, on which the answer depends. Returns its ticket.
    fn locate(&mut self, taken: Taken, key: &[u8]) -> Result<Seen<S::At>, Error> {
        let located = self.session.locate(taken, key);
        located.map_err(|error| self.session.engine().at_path(error))
    }

    fn depend_on(&mut self, taken: Taken) -> Ticket {
        let ticket = Ticket(self.session.engine().stripes.stamp(taken.stripe));
        self.seen = self.seen.max(ticket);
        ticket
    }
}

impl<S: Backend> Transaction for Overlay<'_, S> {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        self.check(key)?;
        match self.staged.get(key) {
            None if self.cleared => Ok(None),
            None => {
                let taken = self.taken(key);
                let ticket = self.depend_on(taken);
                let seen = self.session.see(taken, key, into);
                let seen = seen.map_err(|error| self.session.engine().at_path(error))?;
                Ok(seen.is_live.then_some(Found {
                    version: seen.version,
                    expires_at_ms: seen.expires_at_ms,
                    ticket,
                }))
            }
            Some(None) => Ok(None),
            Some(Some((value, expires_at_ms))) => {
                if self.session.engine().is_expired(*expires_at_ms) {
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
            None if self.cleared => false,
            None => {
                let taken = self.taken(key);
                let _seen = self.depend_on(taken);
                self.locate(taken, key)?.is_live
            }
            Some(None) => false,
            Some(Some((_, expires_at_ms))) => !self.session.engine().is_expired(*expires_at_ms),
        };
        self.staged.insert(key.to_vec(), None);
        Ok(was)
    }

    fn watch(&mut self, key: &[u8]) -> Result<u64, Error> {
        self.check(key)?;
        let taken = self.taken(key);
        // This look adds no dependency, because no caller shows the number.
        let seen = self.locate(taken, key)?;
        let stripes = &self.session.engine().stripes;
        let version = seen.is_live.then_some(seen.version);
        let word = stripes.word(taken.stripe);
        Ok(stripes.watch_number(taken.stripe, self.session.id(), word, version))
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

/// The outcome of a transaction's body.
struct Wanted {
    cleared: bool,
    staged: BTreeMap<Vec<u8>, Staged>,
    /// The ticket on which all its reads depend.
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
pub(super) fn run<B: Backend>(
    session: &mut B,
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
    session.core_mut().last_read = Ticket::NONE;
    with_room_for(session, |session, room| {
        let Some(mut locked) = Locked::take_whole(session, declared)? else {
            return Ok(Ok(Ticket::NONE));
        };
        let wanted = match stage(locked.session, declared, &mut *body) {
            Ok(wanted) => wanted,
            // Room in this store would not help.
            refused => return Ok(refused.map(|wanted| wanted.seen)),
        };
        let ops = wanted.ops();
        if ops.is_empty() && !wanted.cleared {
            // Nothing to apply; the answer still depends on what was read.
            return Ok(Ok(wanted.seen));
        }
        *room = room_of(&ops);
        let applied = locked.apply(wanted.cleared, &ops)?;
        Ok(Ok(applied.max(wanted.seen)))
    })?
}

/// Applies operations as one atomic batch; see [`EngineSession::batch`].
///
/// # Errors
/// As there.
pub(super) fn batch<B: Backend>(session: &mut B, ops: &[BatchOp<'_>]) -> Result<Ticket, Error> {
    for op in ops {
        check_key(op.key())?;
        if let BatchOp::Put { value, .. } = op {
            check_value(value)?;
        }
    }
    session.engine().healthy()?;
    let bytes = room_of(ops);
    session.room_for(Some(bytes))?;
    let keys: Vec<&[u8]> = ops.iter().map(BatchOp::key).collect();
    with_room(session, bytes, |session| {
        match Locked::take_whole(session, Some(&keys))? {
            Some(mut locked) => locked.apply(false, ops),
            None => Ok(Ticket::NONE),
        }
    })
}

/// Bytes that operations may need.
pub(crate) fn room_of(ops: &[BatchOp<'_>]) -> usize {
    let of_one = |op: &BatchOp<'_>| match op {
        BatchOp::Put { key, value, .. } => key.len() + value.len() + RECORD_OVERHEAD,
        // With a log below, a removal may be a record.
        BatchOp::Delete { key } => key.len() + RECORD_OVERHEAD,
    };
    ops.iter().map(of_one).sum()
}

/// Runs `body` over keys that are locked.
fn stage<B: Backend>(
    session: &mut B,
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
    session.core_mut().last_read = seen;
    outcome?;
    Ok(Wanted {
        cleared,
        staged,
        seen,
    })
}
