//! What viper does for a transaction: locked reads, and the batch in the end.

use super::Viper;
use super::session::ViperSession;
use crate::concurrency::stripes::{StripeId, Stripes};
use crate::engine::transaction::Locking;
use crate::engine::{BatchOp, Found, Ticket};
use crate::error::Error;
use std::sync::Arc;

impl Locking for ViperSession {
    type Engine = Viper;

    fn engine(&self) -> &Arc<Viper> {
        &self.engine
    }

    fn stripes(engine: &Viper) -> &Stripes {
        &engine.stripes
    }

    fn is_expired(&self, expires_at_ms: u64) -> bool {
        self.engine.is_expired(expires_at_ms)
    }

    fn lock(&mut self, keys: Option<&[&[u8]]>) -> Result<Vec<StripeId>, Error> {
        match keys {
            Some(keys) => self.lock_all(keys.iter().copied()),
            None => self.lock_everything(),
        }
    }

    fn read_locked(
        &mut self,
        key: &[u8],
        into: Option<&mut Vec<u8>>,
    ) -> Result<Option<Found>, Error> {
        let hash = self.engine.hash(key);
        let ticket = Ticket(self.engine.stripes.stamp(self.engine.stripe(hash)));
        self.set_last_read(ticket);
        let found = self.find(hash, key)?;
        let Some((old, record)) = found.filter(|(old, _)| !old.expired) else {
            return Ok(None);
        };
        if let Some(into) = into {
            self.value_of(&record, into)?;
        }
        Ok(Some(Found {
            version: old.version,
            expires_at_ms: record.expires_at_ms,
            ticket,
        }))
    }

    fn watch_locked(&mut self, key: &[u8]) -> Result<u64, Error> {
        let hash = self.engine.hash(key);
        let found = self.find(hash, key)?.filter(|(old, _)| !old.expired);
        let (stripes, stripe) = (&self.engine.stripes, self.engine.stripe(hash));
        let version = found.map(|(old, _)| old.version);
        Ok(stripes.watch_number(stripe, self.id, stripes.word(stripe), version))
    }

    fn apply(
        &mut self,
        clear: bool,
        ops: &[BatchOp<'_>],
        stripes: &[StripeId],
    ) -> Result<Ticket, Error> {
        self.apply_locked(clear, ops, stripes)
    }

    fn depend_on(&mut self, ticket: Ticket) {
        self.set_last_read(ticket);
    }
}
