//! An engine with a landing area, as doors see it: the engine below, whose sessions follow the rule.

use super::session::LandingSession;
use super::{Landing, arrive::Keys, recover, with};
use crate::engine::{Engine, EngineSession, Loan, Ticket};
use crate::error::Error;
use crate::stats::{CheckReport, Stats};
use everdram_pm::Pool;
use std::sync::Arc;

/// See the module text.
pub(crate) struct LandingEngine {
    engine: Arc<dyn Engine>,
    landing: Arc<Landing>,
}

impl LandingEngine {
    pub(crate) fn new(engine: Arc<dyn Engine>, landing: Arc<Landing>) -> LandingEngine {
        LandingEngine { engine, landing }
    }

    /// Keys that only arrivals have so far. They are counted and not applied: the caller's sessions may have
    /// submitted writes.
    fn len_of_arrivals(&self) -> Result<u64, Error> {
        let keys = self.landing.keys_arrived();
        if keys.is_empty() {
            return Ok(0);
        }
        with(&self.landing.reader, |reader| {
            let absent = |key: &Vec<u8>| Ok(u64::from(reader.probe(key)?.is_none()));
            keys.iter().map(absent).sum()
        })
    }

    /// A number of keys that `count` says, with arrivals, as of a moment in which none was applied.
    fn with_arrivals(&self, count: impl Fn() -> u64) -> u64 {
        const TRIES: usize = 100;
        let mut sum = 0;
        for _ in 0..TRIES {
            if self.landing.table.is_quiet() {
                return count();
            }
            let applied = self.landing.table.applied_whole();
            // On damage or a failed medium the keys of the engine are the count.
            sum = self.len_of_arrivals().unwrap_or(0) + count();
            if applied.is_some() && self.landing.table.applied_whole() == applied {
                break;
            }
            std::thread::yield_now();
        }
        sum
    }
}

impl Engine for LandingEngine {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn session(self: Arc<Self>) -> Result<Box<dyn EngineSession>, Error> {
        let inner = Arc::clone(&self.engine).session()?;
        Ok(Box::new(LandingSession::new(
            inner,
            Arc::clone(&self.landing),
        )))
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
        self.with_arrivals(|| self.engine.len())
    }

    fn sync(&self) -> Result<(), Error> {
        self.engine.sync()
    }

    fn stats(&self) -> Stats {
        let stats = self.engine.stats();
        Stats {
            keys: self.with_arrivals(|| self.engine.stats().keys),
            ..stats
        }
    }

    fn verification(&self) -> Option<(u64, u64)> {
        self.engine.verification()
    }

    fn loading(&self) -> Option<(u64, u64)> {
        self.engine.loading()
    }

    fn verify(&self) -> Result<(), Error> {
        self.engine.verify()
    }

    fn checkpoint(&self) -> Result<(), Error> {
        self.engine.checkpoint()
    }

    fn check(&self) -> Result<CheckReport, Error> {
        let mut report = self.engine.check()?;
        report
            .findings
            .append(&mut recover::check(self.landing.pool())?);
        Ok(report)
    }

    fn readable(&self) -> Option<Arc<Pool>> {
        self.engine.readable()
    }

    fn lender(&self) -> Option<Arc<Pool>> {
        self.engine.lender()
    }

    fn lend(&self, key: &[u8], bytes: u64) -> Option<Loan> {
        self.engine.lend(key, bytes)
    }

    fn take_back(&self, loan: Loan) {
        self.engine.take_back(loan);
    }

    fn reclaim(&self) -> Result<u64, Error> {
        self.engine.reclaim()
    }

    fn close(&self) -> Result<(), Error> {
        // What cannot be applied stays in its slot, and the next open applies it.
        let landing = &*self.landing;
        let applied = with(&landing.own, |own| landing.complete(Keys::All, own));
        landing.end();
        self.engine.close()?;
        match applied {
            Ok(()) | Err(Error::NoSpace(_) | Error::Loading | Error::Halted(_)) => Ok(()),
            other => other,
        }
    }
}
