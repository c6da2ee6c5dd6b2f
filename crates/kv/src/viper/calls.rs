//! The calls of `EngineSession`, in terms of look-ups, writes and commits.

use super::claim::SCRATCH_KEEP;
use super::session::{Pending, Replaced, ViperSession};
use crate::concurrency::stripes::{GiveBack, StripeId};
use crate::engine::{
    BatchOp, Change, Current, EngineSession, Found, Modify, Scope, Ticket, TransactionBody, Visit,
    check_key, check_value, transaction,
};
use crate::error::Error;
use crate::index::KeyHash;
use everdram_pm::Lsn;

impl EngineSession for ViperSession {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        check_key(key)?;
        let hash = self.engine.hash(key);
        let found = match self.get_fast(hash, key, into) {
            Some(found) => found,
            None => self.get_slow(key, into)?,
        };
        self.trim_scratch();
        Ok(found)
    }

    fn probe(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        let Some(seen) = self.read(key, None)? else {
            return Ok(None);
        };
        let bytes = self
            .engine
            .reader()
            .value_bytes(&seen.record, &self.scratch)?;
        Ok(Some((self.found(&seen), bytes)))
    }

    fn last_read(&self) -> Ticket {
        self.last_read
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        self.get_many_at_once(keys, into, found)
    }

    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        check_key(key)?;
        check_value(value)?;
        self.with_room(|session| session.try_put(key, value, expires_at_ms))
            .map_err(|error| self.engine.at_path(error))
    }

    fn put_now(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
    ) -> Result<(bool, Ticket), Error> {
        self.put(key, value, expires_at_ms)?;
        self.commit_pending()
            .map_err(|error| self.engine.at_path(error))?;
        Ok((self.made, Ticket(self.last_ticket.0)))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        check_key(key)?;
        self.healthy()?;
        let hash = self.engine.hash(key);
        let stripe = self.engine.stripe(hash);
        self.engine.index.prefetch(hash);
        self.acquire(stripe)?;
        self.last_read = Ticket(self.engine.stripes.stamp(stripe));
        match self.locate(hash, key) {
            Ok(None) => {
                self.give_back(stripe);
                Ok(false)
            }
            Ok(Some(old)) => {
                // A removal must be newer than anything that may be watching.
                self.engine.stripes.next_version(stripe);
                self.submit(Pending {
                    hash,
                    stripe,
                    new: None,
                    old: Replaced::Known(Some(old)),
                    moved: false,
                    written: self.lane.written(),
                })?;
                Ok(!old.expired)
            }
            Err(error) => {
                self.give_back(stripe);
                Err(self.engine.at_path(error))
            }
        }
    }

    fn modify(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error> {
        check_key(key)?;
        let hash = self.engine.hash(key);
        let stripe = self.engine.stripe(hash);
        self.acquire(stripe)?;
        self.last_read = Ticket(self.engine.stripes.stamp(stripe));
        let mut value = std::mem::take(&mut self.value);
        let mut current = Vec::new();
        let result = self.modify_locked(hash, stripe, key, &mut current, &mut value, decide);
        value.clear();
        if value.capacity() <= SCRATCH_KEEP {
            self.value = value;
        }
        result.map_err(|error| self.engine.at_path(error))
    }

    fn update_word(
        &mut self,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        check_key(key)?;
        self.healthy()?;
        let hash = self.engine.hash(key);
        let stripe = self.engine.stripe(hash);
        self.engine.index.prefetch(hash);
        self.acquire(stripe)?;
        if self.engine.geometry.fixed.is_some() {
            match self.change_in_place(hash, stripe, key, at, change) {
                Ok(None) => {}
                Ok(changed) => return Ok(changed),
                Err(error) => {
                    self.give_back(stripe);
                    return Err(self.engine.at_path(error));
                }
            }
        }
        let found = self.word_of(hash, key, at);
        self.update_word_locked(found, hash, stripe, key, at, change)
            .map_err(|error| self.engine.at_path(error))
    }

    fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<Ticket, Error> {
        self.apply_batch(ops)
            .map_err(|error| self.engine.at_path(error))
    }

    fn transaction(
        &mut self,
        scope: Scope<'_>,
        body: TransactionBody<'_>,
    ) -> Result<Ticket, Error> {
        transaction::run(self, scope, body).map_err(|error| self.engine.at_path(error))
    }

    fn clear(&mut self) -> Result<Ticket, Error> {
        self.clear_all()
    }

    fn commit(&mut self) -> Result<Ticket, Error> {
        self.commit_pending()?;
        // Also with nothing to commit: whoever waits for this session learns here that the medium failed.
        self.healthy()?;
        Ok(Ticket(self.last_ticket.0))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        if ticket == Ticket::NONE {
            return Ok(());
        }
        self.engine.pool.wait(Lsn(ticket.0))?;
        Ok(())
    }

    fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error> {
        self.scan_keys(cursor, count, visit)
    }

    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        self.pick_random(into)
    }

    fn watch(&mut self, key: &[u8]) -> u64 {
        if check_key(key).is_err() {
            return 0;
        }
        let stripe = self.engine.stripe(self.engine.hash(key));
        // What this session has yet to commit is no write of somebody else.
        let committed = self.before_read(stripe);
        let before = self.engine.stripes.word(stripe);
        let found = committed.and_then(|()| self.read(key, None));
        let found = found.ok().flatten();
        let version = found.map(|seen| seen.version);
        let stripes = &self.engine.stripes;
        stripes.watch_number(stripe, self.id, before, version)
    }
}

impl ViperSession {
    #[cold]
    fn get_slow(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        let seen = self.read(key, Some(into))?;
        Ok(seen.map(|seen| self.found(&seen)))
    }

    #[inline]
    fn trim_scratch(&mut self) {
        if self.scratch.capacity() > SCRATCH_KEEP {
            self.scratch = Vec::new();
        }
    }

    fn try_put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.healthy()?;
        let hash = self.engine.hash(key);
        let stripe = self.engine.stripe(hash);
        self.engine.index.prefetch(hash);
        self.acquire(stripe)?;
        let old = Replaced::Unknown {
            from: self.keys.len() as u32,
            bytes: key.len() as u32,
        };
        self.keys.extend_from_slice(key);
        self.submit_put(hash, stripe, key, value, expires_at_ms, old)
    }

    fn modify_locked(
        &mut self,
        hash: KeyHash,
        stripe: StripeId,
        key: &[u8],
        current: &mut Vec<u8>,
        value: &mut Vec<u8>,
        decide: Modify<'_>,
    ) -> Result<(), Error> {
        let looked = self.find(hash, key).and_then(|found| {
            if let Some((old, record)) = &found
                && !old.expired
            {
                self.value_of(record, current)?;
            }
            Ok(found)
        });
        let found = match looked {
            Ok(found) => found,
            Err(error) => {
                self.give_back(stripe);
                return Err(error);
            }
        };
        let old = found.as_ref().map(|(old, _)| *old);
        let replaced = Replaced::Known(old);
        let seen = found
            .filter(|(old, _)| !old.expired)
            .map(|(old, record)| Current {
                value: current,
                version: old.version,
                expires_at_ms: record.expires_at_ms,
            });
        let release = GiveBack {
            stripes: &self.engine.stripes,
            held: &[stripe],
        };
        let change = decide(seen, value);
        std::mem::forget(release);
        let refused = match change {
            Change::Keep => Ok(()),
            _ => self.healthy().and_then(|()| check_value(value)),
        };
        match (refused, change, old) {
            (Err(error), ..) => {
                self.give_back(stripe);
                Err(error)
            }
            (_, Change::Put { expires_at_ms }, _) => {
                self.submit_put(hash, stripe, key, value, expires_at_ms, replaced)
            }
            (_, Change::Delete, Some(_)) => {
                self.engine.stripes.next_version(stripe);
                self.submit(Pending {
                    hash,
                    stripe,
                    new: None,
                    old: replaced,
                    moved: false,
                    written: self.lane.written(),
                })
            }
            _ => {
                self.give_back(stripe);
                Ok(())
            }
        }
    }
}
