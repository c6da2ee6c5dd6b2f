//! The keyspace of a command outside a transaction: an engine session, and the ticket that its results depend
//! on.
//!
//! Writes are only submitted; the worker commits once for everything that arrived together. The ticket kept
//! here covers what that commit does not: values, absences and refusals caused by other sessions.

use super::inside::Inside;
use super::{Body, Demand, EVERY_KEY, Keyspace, Scratch, check_key};
use everdram::engine::{BatchOp, Engine, EngineSession, Modify, Scope};
use everdram::{Error, Found, Ticket};
use std::ops::Bound;

/// Keys per engine call when all keys are listed.
const SCAN_STEP: usize = 1024;
/// Random picks that may have expired before the answer is "no key".
const RANDOM_TRIES: usize = 16;

/// The keys, directly on the store.
pub(crate) struct Direct<'a> {
    session: &'a mut dyn EngineSession,
    engine: &'a dyn Engine,
    scratch: &'a mut Scratch,
    depends: Ticket,
}

impl<'a> Direct<'a> {
    /// `scratch` belongs to the thread, as `session` does; `engine` is the session's.
    pub(crate) fn new(
        session: &'a mut dyn EngineSession,
        engine: &'a dyn Engine,
        scratch: &'a mut Scratch,
    ) -> Self {
        Direct {
            session,
            engine,
            scratch,
            depends: Ticket::NONE,
        }
    }

    /// Replies made since creation may leave once this ticket and the session's next commit are durable.
    pub(crate) fn depends(&self) -> Ticket {
        self.depends
    }

    fn note(&mut self, ticket: Ticket) {
        self.depends = self.depends.max(ticket);
    }

    fn note_read(&mut self) {
        self.note(self.session.last_read());
    }
}

impl Keyspace for Direct<'_> {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        let found = self.session.get(key, into)?;
        self.note_read();
        Ok(found)
    }

    fn probe(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        let found = self.session.probe(key)?;
        self.note_read();
        Ok(found)
    }

    fn get_part(
        &mut self,
        key: &[u8],
        at: u64,
        count: u64,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, Error> {
        if !self.session.has_parts() {
            return Ok(None);
        }
        let found = self.session.read_range(key, at, count, into)?;
        self.note_read();
        Ok(Some(found.map_or(0, |(_, length)| length)))
    }

    fn put_part(
        &mut self,
        key: &[u8],
        at: Option<u64>,
        bytes: &[u8],
    ) -> Result<Option<u64>, Error> {
        if !self.session.has_parts() {
            return Ok(None);
        }
        let length = match at {
            Some(at) => self.session.write_range(key, at, bytes)?,
            None => self.session.append(key, bytes)? as u64,
        };
        self.note_read();
        Ok(Some(length))
    }

    fn begin_with(
        &mut self,
        prefix: &[u8],
        keep: &mut dyn FnMut(&[u8]) -> bool,
        into: &mut Vec<Vec<u8>>,
    ) -> Result<bool, Error> {
        let end = everdram::iter::behind_prefix(prefix);
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut next = Some(prefix.to_vec());
        let mut is_first = true;
        while let Some(from) = next {
            let from = match std::mem::take(&mut is_first) {
                true => Bound::Included(&from[..]),
                false => Bound::Excluded(&from[..]),
            };
            let mut visit = |key: &[u8], _, _| {
                if keep(key) {
                    into.push(key.to_vec());
                }
            };
            next = match self.session.range(from, to, SCAN_STEP, &mut visit) {
                Err(Error::Unordered) => return Ok(false),
                other => other?,
            };
            self.note_read();
        }
        Ok(true)
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        self.session.get_many(keys, into, found)?;
        self.note_read();
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.session.put(key, value, expires_at_ms).map(|_| ())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let was = self.session.delete(key)?;
        self.note_read();
        Ok(was)
    }

    fn modify(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error> {
        let outcome = self.session.modify(key, decide);
        self.note_read();
        outcome
    }

    fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<(), Error> {
        let ticket = self.session.batch(ops)?;
        self.note(ticket);
        Ok(())
    }

    fn atomically(&mut self, demand: &Demand<'_>, body: Body<'_>) -> Result<bool, Error> {
        demand.keys.iter().try_for_each(|key| check_key(key))?;
        let scope = if demand.any_key {
            Scope::All
        } else {
            Scope::Keys(demand.keys)
        };
        let scratch = &mut *self.scratch;
        let outcome = self.session.transaction(scope, &mut |transaction| {
            let mut inside = Inside::new(transaction, scratch, demand.any_key);
            inside.expect_unchanged(demand.watched)?;
            body(&mut inside)
        });
        // Even if it was refused: the refusal reveals what it read.
        self.note_read();
        match outcome {
            Err(Error::Condition) => Ok(false),
            outcome => {
                self.note(outcome?);
                Ok(true)
            }
        }
    }

    fn scan(
        &mut self,
        cursor: u64,
        count: usize,
        keep: &mut dyn FnMut(&[u8]) -> bool,
        into: &mut Vec<Vec<u8>>,
    ) -> Result<u64, Error> {
        let (mut next, mut visited) = (cursor, 0_usize);
        loop {
            let step = count.saturating_sub(visited).min(SCAN_STEP);
            next = self.session.scan(next, step, &mut |key, _, _| {
                visited += 1;
                if keep(key) {
                    into.push(key.to_vec());
                }
            })?;
            self.note_read();
            if next == 0 || visited >= count {
                break;
            }
        }
        if count == EVERY_KEY {
            // While the engine grows, it may visit a key twice.
            into.sort_unstable();
            into.dedup();
        }
        Ok(next)
    }

    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        for _ in 0..RANDOM_TRIES {
            let is_any = self.session.random_key(into)?;
            self.note_read();
            if !is_any {
                return Ok(false);
            }
            if self.probe(into)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn len(&mut self) -> Result<u64, Error> {
        // Commit first: the count includes what this connection has just written.
        let own = self.session.commit()?;
        let len = self.engine.len();
        self.note(own.max(self.engine.committed()));
        Ok(len)
    }

    fn clear(&mut self) -> Result<(), Error> {
        let ticket = self.session.clear()?;
        self.note(ticket);
        Ok(())
    }

    fn watch(&mut self, key: &[u8]) -> Result<u64, Error> {
        check_key(key)?;
        if self.engine.loading().is_some() {
            // A key that is not known yet would be taken for an absent one.
            self.session.probe(key)?;
        }
        Ok(self.session.watch(key))
    }

    fn take_buffer(&mut self) -> Vec<u8> {
        self.scratch.take()
    }

    fn return_buffer(&mut self, buffer: Vec<u8>) {
        self.scratch.give_back(buffer);
    }
}
