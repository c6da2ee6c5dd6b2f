//! A salvaged store, as doors see it: a read-only engine that answers only what is certain.
//!
//! The engine below has recovered what verifies ([`crate::engine::damage`]). This layer refuses every write,
//! and turns a read into an error where damaged bytes may belong to its key.

use super::Damage;
use crate::engine::{
    BatchOp, Engine, EngineSession, Found, Modify, Scope, Ticket, TransactionBody, Visit,
};
use crate::error::Error;
use crate::stats::{CheckReport, Stats};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

/// See the module text.
pub(crate) struct Salvaged {
    engine: Arc<dyn Engine>,
    judge: Judge,
}

/// Judges whether the state of a key is certain.
#[derive(Clone)]
struct Judge {
    damage: Arc<Damage>,
    path: PathBuf,
}

impl Judge {
    fn judge(&self, key: &[u8], found: Option<u64>) -> Result<(), Error> {
        let judged = self.damage.judge(key, found);
        judged.map_err(|error| error.at_path(&self.path))
    }
}

impl Salvaged {
    pub(crate) fn new(engine: Arc<dyn Engine>, damage: Arc<Damage>, path: PathBuf) -> Salvaged {
        Salvaged {
            engine,
            judge: Judge { damage, path },
        }
    }
}

impl Engine for Salvaged {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn session(self: Arc<Self>) -> Result<Box<dyn EngineSession>, Error> {
        Ok(Box::new(SalvagedSession {
            inner: Arc::clone(&self.engine).session()?,
            judge: self.judge.clone(),
        }))
    }

    fn durable(&self) -> Ticket {
        self.engine.durable()
    }

    fn request(&self, ticket: Ticket) {
        self.engine.request(ticket);
    }

    fn subscribe(&self, advanced: Arc<dyn Fn() + Send + Sync>) {
        self.engine.subscribe(advanced);
    }

    fn committed(&self) -> Ticket {
        self.engine.committed()
    }

    fn len(&self) -> u64 {
        self.engine.len()
    }

    fn sync(&self) -> Result<(), Error> {
        self.engine.sync()
    }

    fn stats(&self) -> Stats {
        Stats {
            salvage: Some(self.judge.damage.stats()),
            ..self.engine.stats()
        }
    }

    fn check(&self) -> Result<CheckReport, Error> {
        let mut report = self.engine.check()?;
        let mut findings = self.judge.damage.findings();
        let is_known = |offset| {
            let mut known = findings.iter();
            known.any(|known| known.file.is_none() && known.offset == offset)
        };
        report.findings.retain(|one| !is_known(one.offset));
        findings.append(&mut report.findings);
        Ok(CheckReport { findings, ..report })
    }

    fn reclaim(&self) -> Result<u64, Error> {
        Err(Error::ReadOnly)
    }

    fn close(&self) -> Result<(), Error> {
        self.engine.close()
    }
}

struct SalvagedSession {
    inner: Box<dyn EngineSession>,
    judge: Judge,
}

impl EngineSession for SalvagedSession {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        let before = into.len();
        let found = self.inner.get(key, into)?;
        let judged = self.judge.judge(key, found.map(|found| found.version));
        if judged.is_err() {
            into.truncate(before);
        }
        judged.map(|()| found)
    }

    fn probe(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        let found = self.inner.probe(key)?;
        let version = found.as_ref().map(|(found, _)| found.version);
        self.judge.judge(key, version).map(|()| found)
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
        let before = into.len();
        let found = self.inner.read_range(key, at, count, into)?;
        let version = found.as_ref().map(|(found, _)| found.version);
        let judged = self.judge.judge(key, version);
        if judged.is_err() {
            into.truncate(before);
        }
        judged.map(|()| found)
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
        self.inner.get_many(keys, into, found)?;
        let mut each = keys.iter().zip(found.iter().skip(count));
        let judged = each.try_for_each(|(key, (one, _))| {
            self.judge.judge(key, one.as_ref().map(|one| one.version))
        });
        if judged.is_err() {
            into.truncate(bytes);
            found.truncate(count);
        }
        judged
    }

    fn put(&mut self, _: &[u8], _: &[u8], _: u64) -> Result<(), Error> {
        Err(Error::ReadOnly)
    }

    fn put_now(&mut self, _: &[u8], _: &[u8], _: u64) -> Result<(bool, Ticket), Error> {
        Err(Error::ReadOnly)
    }

    fn delete(&mut self, _: &[u8]) -> Result<bool, Error> {
        Err(Error::ReadOnly)
    }

    fn modify(&mut self, _: &[u8], _: Modify<'_>) -> Result<(), Error> {
        Err(Error::ReadOnly)
    }

    fn update_word(
        &mut self,
        _: &[u8],
        _: usize,
        _: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        Err(Error::ReadOnly)
    }

    fn append(&mut self, _: &[u8], _: &[u8]) -> Result<usize, Error> {
        Err(Error::ReadOnly)
    }

    fn increment(&mut self, _: &[u8], _: usize, _: u64) -> Result<Option<u64>, Error> {
        Err(Error::ReadOnly)
    }

    fn batch(&mut self, _: &[BatchOp<'_>]) -> Result<Ticket, Error> {
        Err(Error::ReadOnly)
    }

    /// Refuses every transaction, because its writes are not known before it has run.
    fn transaction(&mut self, _: Scope<'_>, _: TransactionBody<'_>) -> Result<Ticket, Error> {
        Err(Error::ReadOnly)
    }

    fn clear(&mut self) -> Result<Ticket, Error> {
        Err(Error::ReadOnly)
    }

    /// There is nothing to commit.
    fn commit(&mut self) -> Result<Ticket, Error> {
        Ok(Ticket::NONE)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        self.inner.wait(ticket)
    }

    fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error> {
        self.inner.scan(cursor, count, visit)
    }

    fn range(
        &mut self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        count: usize,
        visit: Visit<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.inner.range(from, to, count, visit)
    }

    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        self.inner.random_key(into)
    }

    fn watch(&mut self, key: &[u8]) -> u64 {
        self.inner.watch(key)
    }
}
