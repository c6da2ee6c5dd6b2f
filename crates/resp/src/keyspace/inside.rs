//! The keyspace of a command inside a transaction of the engine.
//!
//! Reads see what the transaction has staged. An engine's transaction neither scans nor counts, so
//! pages and the number of keys are given from the moment before it started; what the transaction
//! itself adds and removes is kept up to date here.

use super::{Body, Demand, EVERY_KEY, Keyspace, Scratch, check_key};
use everdram::{BatchOp, Change, Current, Error, Found, Modify, Ticket, Transaction};
use std::collections::BTreeSet;

/// Keys of one scan, read before the transaction started.
pub(super) struct Page {
    pub(super) cursor: u64,
    pub(super) count: usize,
    pub(super) next: u64,
    pub(super) keys: Vec<Vec<u8>>,
}

/// What the transaction's reads depend on.
#[derive(Default)]
pub(super) struct Reads {
    /// Largest ticket of a value that was found.
    pub(super) found: Ticket,
    /// Whether an absent key was met: absence carries no ticket here.
    pub(super) met_absent: bool,
}

/// Commands under the locks of a transaction.
pub(super) struct Inside<'t> {
    transaction: &'t mut (dyn Transaction + 't),
    scratch: &'t mut Scratch,
    reads: &'t mut Reads,
    pages: &'t [Page],
    /// Number of keys as this transaction leaves it.
    len: u64,
    /// Keys put by this transaction, kept only when somebody scans.
    put: BTreeSet<Vec<u8>>,
}

impl<'t> Inside<'t> {
    pub(super) fn new(
        transaction: &'t mut (dyn Transaction + 't),
        scratch: &'t mut Scratch,
        reads: &'t mut Reads,
        pages: &'t [Page],
        len: u64,
    ) -> Self {
        Inside {
            transaction,
            scratch,
            reads,
            pages,
            len,
            put: BTreeSet::new(),
        }
    }

    /// Fails with [`Error::Condition`] unless each watched key still has the version it had.
    pub(super) fn expect_versions(
        &mut self,
        watched: &[(Vec<u8>, u64)],
        versions: &[u64],
    ) -> Result<(), Error> {
        for ((key, _), version) in watched.iter().zip(versions) {
            if self.watch(key)? != *version {
                return Err(Error::Condition);
            }
        }
        Ok(())
    }
}

impl Keyspace for Inside<'_> {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        check_key(key)?;
        let found = self.transaction.get(key, into)?;
        match found {
            Some(found) => self.reads.found = self.reads.found.max(found.ticket),
            None => self.reads.met_absent = true,
        }
        Ok(found)
    }

    fn probe(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        let mut value = self.take_buffer();
        let found = self.get(key, &mut value);
        let len = value.len() as u64;
        self.return_buffer(value);
        Ok(found?.map(|found| (found, len)))
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        for key in keys {
            let one = self.get(key, into)?;
            found.push((one, into.len()));
        }
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        check_key(key)?;
        let new = self.probe(key)?.is_none();
        self.transaction.put(key, value, expires_at_ms)?;
        self.len = self.len.saturating_add(u64::from(new));
        if !self.pages.is_empty() {
            self.put.insert(key.to_vec());
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        check_key(key)?;
        let was = self.transaction.delete(key)?;
        self.len = self.len.saturating_sub(u64::from(was));
        self.reads.met_absent |= !was;
        Ok(was)
    }

    fn modify(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error> {
        let (mut value, mut out) = (self.take_buffer(), self.take_buffer());
        let outcome = self.get(key, &mut value).and_then(|found| {
            let current = found.map(|found| Current {
                value: &value,
                version: found.version,
                expires_at_ms: found.expires_at_ms,
            });
            match decide(current, &mut out) {
                Change::Keep => Ok(()),
                Change::Put { expires_at_ms } => self.put(key, &out, expires_at_ms),
                Change::Delete => self.delete(key).map(|_| ()),
            }
        });
        self.return_buffer(value);
        self.return_buffer(out);
        outcome
    }

    fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<(), Error> {
        ops.iter().try_for_each(|op| check_key(op.key()))?;
        for op in ops {
            match *op {
                BatchOp::Put {
                    key,
                    value,
                    expires_at_ms,
                } => self.put(key, value, expires_at_ms)?,
                BatchOp::Delete { key } => {
                    self.delete(key)?;
                }
            }
        }
        Ok(())
    }

    /// The transaction is atomic already.
    fn atomically(&mut self, _demand: &Demand<'_>, body: Body<'_>) -> Result<bool, Error> {
        body(self).map(|()| true)
    }

    fn scan(
        &mut self,
        cursor: u64,
        count: usize,
        keep: &mut dyn FnMut(&[u8]) -> bool,
        into: &mut Vec<Vec<u8>>,
    ) -> Result<u64, Error> {
        let pages = self.pages;
        let page = pages
            .iter()
            .find(|page| (page.cursor, page.count) == (cursor, count));
        let Some(page) = page else {
            return Err(Error::KeyNotLocked);
        };
        let mut keys: Vec<&[u8]> = page.keys.iter().map(Vec::as_slice).collect();
        // The pages do not have these. Where in an iteration they would stand is unknown, so every page
        // shows them; a scan may show a key twice, but must not miss one.
        let put = self.put.clone();
        keys.retain(|key| !put.contains(*key));
        keys.extend(put.iter().map(Vec::as_slice));
        for key in keys {
            if keep(key) && self.probe(key)?.is_some() {
                into.push(key.to_vec());
            }
        }
        Ok(page.next)
    }

    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        into.clear();
        let mut keys = Vec::new();
        self.scan(0, EVERY_KEY, &mut |_| true, &mut keys)?;
        if keys.is_empty() {
            return Ok(false);
        }
        if let Some(key) = keys.get(rand::random_range(0..keys.len())) {
            into.extend_from_slice(key);
        }
        Ok(true)
    }

    fn len(&mut self) -> u64 {
        self.len
    }

    fn clear(&mut self) -> Result<(), Error> {
        self.transaction.clear()?;
        self.len = 0;
        Ok(())
    }

    /// The key's version, 0 = absent: nobody else writes it under the transaction's locks.
    fn watch(&mut self, key: &[u8]) -> Result<u64, Error> {
        Ok(self.probe(key)?.map_or(0, |(found, _)| found.version))
    }

    fn take_buffer(&mut self) -> Vec<u8> {
        self.scratch.take()
    }

    fn return_buffer(&mut self, buffer: Vec<u8>) {
        self.scratch.give_back(buffer);
    }
}
