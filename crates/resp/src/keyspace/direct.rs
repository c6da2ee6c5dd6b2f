//! The keyspace of a command that runs by itself: an engine session, and the ticket its results
//! depend on.
//!
//! Writes are submitted only; the worker commits once for everything that arrived together. The ticket
//! kept here covers what a commit of this session's own writes does not: values, absences and refusals
//! that other sessions caused.

use super::inside::{Inside, Page, Reads};
use super::{Body, Demand, EVERY_KEY, Keyspace, Scratch, check_key};
use everdram::{BatchOp, Change, Engine, EngineSession, Error, Found, Modify, Scope, Ticket};

/// Keys visited by one engine call while everything is listed.
const SCAN_STEP: usize = 1024;
/// Random picks that may turn out to have expired before we say that there is none.
const RANDOM_TRIES: usize = 16;

/// Commands straight on the store.
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

    /// Replies made since creation may leave once this is durable, and the session's next commit too.
    pub(crate) fn depends(&self) -> Ticket {
        self.depends
    }

    fn note(&mut self, ticket: Ticket) {
        self.depends = self.depends.max(ticket);
    }

    fn note_read(&mut self) {
        self.note(self.session.last_read());
    }

    /// The ticket of a key's state is at least that of any earlier state of the key, so reading it
    /// again covers what a write that changed nothing has seen.
    fn note_state(&mut self, key: &[u8]) -> Result<(), Error> {
        self.probe(key).map(|_| ())
    }

    /// The versions of the watched keys now (0 = absent), or `None` if one was written since it was
    /// watched. A write between the two reads of a key changes its number, so a version that goes with
    /// an unchanged number is the one that was watched.
    fn watched_versions(&mut self, watched: &[(Vec<u8>, u64)]) -> Result<Option<Vec<u64>>, Error> {
        let mut versions = Vec::with_capacity(watched.len());
        for (key, number) in watched {
            let found = self.probe(key)?;
            if with_presence(self.session.watch(key), found.is_some()) != *number {
                return Ok(None);
            }
            versions.push(found.map_or(0, |(found, _)| found.version));
        }
        Ok(Some(versions))
    }

    fn read_pages(&mut self, scans: &[(u64, usize)]) -> Result<Vec<Page>, Error> {
        let mut pages: Vec<Page> = Vec::new();
        for &(cursor, count) in scans {
            if pages
                .iter()
                .all(|page| (page.cursor, page.count) != (cursor, count))
            {
                let mut keys = Vec::new();
                let next = self.scan(cursor, count, &mut |_| true, &mut keys)?;
                pages.push(Page {
                    cursor,
                    count,
                    next,
                    keys,
                });
            }
        }
        Ok(pages)
    }
}

/// A key that expires changes for those who watch it, but an engine counts writes only.
fn with_presence(number: u64, present: bool) -> u64 {
    number.rotate_left(1) ^ u64::from(present)
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

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        let from = found.len();
        self.session.get_many(keys, into, found)?;
        let reads = found.get(from..).unwrap_or_default();
        for (key, (one, _)) in keys.iter().zip(reads) {
            match one {
                Some(one) => self.note(one.ticket),
                None => self.note_state(key)?,
            }
        }
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.session.put(key, value, expires_at_ms).map(|_| ())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let was = self.session.delete(key)?;
        if !was {
            self.note_state(key)?;
        }
        Ok(was)
    }

    fn modify(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error> {
        let mut kept = false;
        self.session.modify(key, &mut |current, out| {
            let change = decide(current, out);
            kept = matches!(change, Change::Keep);
            change
        })?;
        if kept {
            self.note_state(key)?;
        }
        Ok(())
    }

    fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<(), Error> {
        let ticket = self.session.batch(ops)?;
        self.note(ticket);
        Ok(())
    }

    fn atomically(&mut self, demand: &Demand<'_>, body: Body<'_>) -> Result<bool, Error> {
        demand.keys.iter().try_for_each(|key| check_key(key))?;
        let Some(versions) = self.watched_versions(demand.watched)? else {
            return Ok(false);
        };
        let pages = self.read_pages(demand.scans)?;
        // The engine may hold locks while the body runs, so it is asked for its size beforehand.
        let len = if demand.any_key { self.engine.len() } else { 0 };
        let scope = if demand.any_key {
            Scope::All
        } else {
            Scope::Keys(demand.keys)
        };
        let scratch = &mut *self.scratch;
        let mut reads = Reads::default();
        let outcome = self.session.transaction(scope, &mut |transaction| {
            reads = Reads::default();
            let mut inside = Inside::new(transaction, scratch, &mut reads, &pages, len);
            inside.expect_versions(demand.watched, &versions)?;
            body(&mut inside)
        });
        self.note(reads.found);
        let ticket = match outcome {
            Err(Error::Condition) => return Ok(false),
            outcome => outcome?,
        };
        self.note(ticket);
        if reads.met_absent {
            demand
                .keys
                .iter()
                .try_for_each(|key| self.note_state(key))?;
        }
        Ok(true)
    }

    fn scan(
        &mut self,
        cursor: u64,
        count: usize,
        keep: &mut dyn FnMut(&[u8]) -> bool,
        into: &mut Vec<Vec<u8>>,
    ) -> Result<u64, Error> {
        let (mut next, mut keys, mut visited) = (cursor, Vec::new(), 0_usize);
        loop {
            let step = count.saturating_sub(visited).min(SCAN_STEP);
            next = self.session.scan(next, step, &mut |key, _, _| {
                visited += 1;
                if keep(key) {
                    keys.push(key.to_vec());
                }
            })?;
            if next == 0 || visited >= count {
                break;
            }
        }
        if count == EVERY_KEY {
            // An engine that grows meanwhile may visit a key twice.
            keys.sort_unstable();
            keys.dedup();
        }
        for key in keys {
            if self.probe(&key)?.is_some() {
                into.push(key);
            }
        }
        Ok(next)
    }

    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        for _ in 0..RANDOM_TRIES {
            if !self.session.random_key(into)? {
                return Ok(false);
            }
            if self.probe(into)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn len(&mut self) -> u64 {
        self.engine.len()
    }

    fn clear(&mut self) -> Result<(), Error> {
        let ticket = self.session.clear()?;
        self.note(ticket);
        Ok(())
    }

    fn watch(&mut self, key: &[u8]) -> Result<u64, Error> {
        check_key(key)?;
        // The number first: a write behind it changes the number, so that the key counts as written.
        let number = self.session.watch(key);
        Ok(with_presence(number, self.probe(key)?.is_some()))
    }

    fn take_buffer(&mut self) -> Vec<u8> {
        self.scratch.take()
    }

    fn return_buffer(&mut self, buffer: Vec<u8>) {
        self.scratch.give_back(buffer);
    }
}
