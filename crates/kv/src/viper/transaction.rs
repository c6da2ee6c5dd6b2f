//! Transactions: reads and staged writes under the locks of the declared keys, applied as one batch.

use super::session::{OnPanic, ViperSession, check_key, check_value};
use crate::engine::{BatchOp, Engine, Found, Scope, Ticket, Transaction, TransactionBody, Visit};
use crate::error::Error;
use crate::stripe::{StripeId, Stripes};
use std::collections::HashMap;
use std::sync::Arc;

/// What the transaction has done to a key: the value and expiry it staged, or a removal.
type Staged = Option<(Vec<u8>, u64)>;

struct ViperTransaction<'s> {
    session: &'s mut ViperSession,
    /// Declared keys, sorted; `None` = any.
    declared: Option<Vec<&'s [u8]>>,
    cleared: bool,
    staged: HashMap<Vec<u8>, Staged>,
}

impl ViperTransaction<'_> {
    fn declared(&self, key: &[u8]) -> Result<(), Error> {
        check_key(key)?;
        match &self.declared {
            Some(keys) if keys.binary_search(&key).is_err() => Err(Error::KeyNotLocked),
            _ => Ok(()),
        }
    }
}

impl Transaction for ViperTransaction<'_> {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        self.declared(key)?;
        if let Some(staged) = self.staged.get(key) {
            let Some((value, expires_at_ms)) = staged else {
                return Ok(None);
            };
            into.extend_from_slice(value);
            let found = Found {
                version: 0,
                expires_at_ms: *expires_at_ms,
                ticket: Ticket::NONE,
            };
            return Ok((!self.session.engine.is_expired(*expires_at_ms)).then_some(found));
        }
        if self.cleared {
            return Ok(None);
        }
        let hash = self.session.engine.hash(key);
        let ticket = Ticket(self.session.engine.stripes.stamp(Stripes::of(hash.0)));
        self.session.newest_read(ticket);
        let newest = self.session.last_read_ticket();
        let Some((old, record)) = self
            .session
            .find(hash, key)?
            .filter(|(old, _)| !old.expired)
        else {
            return Ok(None);
        };
        self.session.value_of(&record, into)?;
        let expires_at_ms = record.expires_at_ms;
        Ok(Some(Found {
            version: old.version,
            expires_at_ms,
            ticket: newest,
        }))
    }

    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.declared(key)?;
        check_value(value)?;
        self.staged
            .insert(key.to_vec(), Some((value.to_vec(), expires_at_ms)));
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.declared(key)?;
        let was = match self.staged.get(key) {
            Some(staged) => staged
                .as_ref()
                .is_some_and(|(_, expiry)| !self.session.engine.is_expired(*expiry)),
            None if self.cleared => false,
            None => {
                let hash = self.session.engine.hash(key);
                let ticket = Ticket(self.session.engine.stripes.stamp(Stripes::of(hash.0)));
                self.session.newest_read(ticket);
                self.session
                    .find(hash, key)?
                    .is_some_and(|(old, _)| !old.expired)
            }
        };
        self.staged.insert(key.to_vec(), None);
        Ok(was)
    }

    fn watch(&mut self, key: &[u8]) -> Result<u64, Error> {
        self.declared(key)?;
        let hash = self.session.engine.hash(key);
        let found = self
            .session
            .find(hash, key)?
            .filter(|(old, _)| !old.expired);
        Ok(self
            .session
            .watch_number(hash, found.map(|(old, _)| old.version)))
    }

    fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error> {
        if self.declared.is_some() {
            return Err(Error::KeyNotLocked);
        }
        let read = self.session.last_read_ticket();
        let next = self.session.scan_keys(cursor, count, visit)?;
        self.session.newest_read(read);
        Ok(next)
    }

    fn len(&self) -> u64 {
        self.session.engine.len()
    }

    fn clear(&mut self) -> Result<(), Error> {
        if self.declared.is_some() {
            return Err(Error::KeyNotLocked);
        }
        self.cleared = true;
        self.staged.clear();
        Ok(())
    }
}

impl ViperSession {
    pub(super) fn run_transaction(
        &mut self,
        scope: Scope<'_>,
        body: TransactionBody<'_>,
    ) -> Result<Ticket, Error> {
        self.set_last_read(Ticket::NONE);
        let (stripes, declared) = match scope {
            Scope::Keys(keys) => {
                for key in keys {
                    check_key(key)?;
                }
                let mut declared = keys.to_vec();
                declared.sort_unstable();
                (self.lock_all(keys.iter().copied())?, Some(declared))
            }
            Scope::All => {
                self.commit_pending()?;
                let stripes: Vec<StripeId> = Stripes::all().collect();
                for &stripe in &stripes {
                    self.engine.stripes.lock(stripe, self.id);
                }
                (stripes, None)
            }
        };
        let result = self.run_locked(declared, &stripes, body);
        self.unlock_all(&stripes);
        result
    }

    fn run_locked(
        &mut self,
        declared: Option<Vec<&[u8]>>,
        stripes: &[StripeId],
        body: TransactionBody<'_>,
    ) -> Result<Ticket, Error> {
        let engine = Arc::clone(&self.engine);
        let mut transaction = ViperTransaction {
            session: self,
            declared,
            cleared: false,
            staged: HashMap::new(),
        };
        let release = OnPanic {
            stripes: &engine.stripes,
            held: stripes,
        };
        let outcome = body(&mut transaction);
        std::mem::forget(release);
        outcome?;
        let (cleared, staged) = (transaction.cleared, std::mem::take(&mut transaction.staged));
        let ops: Vec<BatchOp<'_>> = staged
            .iter()
            .map(|(key, staged)| match staged {
                Some((value, expires_at_ms)) => BatchOp::Put {
                    key,
                    value,
                    expires_at_ms: *expires_at_ms,
                },
                None => BatchOp::Delete { key },
            })
            .collect();
        let ticket = if ops.is_empty() && !cleared {
            // Nothing to apply; the answer still depends on what was read.
            self.last_read_ticket()
        } else {
            self.apply_locked(cleared, &ops, stripes)?
        };
        Ok(ticket.max(self.last_read_ticket()))
    }
}
