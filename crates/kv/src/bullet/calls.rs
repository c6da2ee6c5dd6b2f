//! The calls of `EngineSession`, in terms of look-ups, writes and commits.

use super::batch::room_of;
use super::layout::INLINE_MAX;
use super::layout::{Opcode, words_payload};
use super::session::{BulletSession, Ended, OnPanic, Seen};
use super::write::Change;
use crate::concurrency::stripes::{StripeId, Stripes};
use crate::engine::{
    self, BatchOp, Current, EngineSession, Found, Modify, Scope, Ticket, TransactionBody, Visit,
    transaction,
};
use crate::engine::{check_key, check_value};
use crate::error::Error;
use everdram_pm::Lsn;
use std::sync::Arc;

impl EngineSession for BulletSession {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        check_key(key)?;
        let found = self.read(key, Some(into))?;
        self.trim();
        Ok(found.map(|(found, _)| found))
    }

    fn probe(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        check_key(key)?;
        self.read(key, None)
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
        self.healthy()?;
        self.room_for(key.len() + value.len())?;
        let hash = self.engine.hash(key);
        self.engine.front.prefetch(hash);
        let stripe = self.engine.stripe(hash);
        self.acquire(stripe)?;
        let seen = self.see_or_give_back(hash, stripe, key)?;
        let change = Change::Put {
            value,
            expires_at_ms,
        };
        self.submit(hash, stripe, key, &seen, change)
    }

    fn put_now(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
    ) -> Result<(bool, Ticket), Error> {
        self.put(key, value, expires_at_ms)?;
        self.commit_pending()?;
        Ok((self.made, Ticket(self.ordered.lsn().0)))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        check_key(key)?;
        self.healthy()?;
        let (hash, stripe) = self.take_key(key)?;
        let seen = self.see_or_give_back(hash, stripe, key)?;
        if !seen.is_counted {
            self.give_back(stripe);
            return Ok(false);
        }
        // One that has expired goes, too.
        self.submit(hash, stripe, key, &seen, Change::Remove)?;
        Ok(seen.is_live)
    }

    fn modify(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error> {
        check_key(key)?;
        // How much it will be is not known yet.
        self.room_for(INLINE_MAX)?;
        let (hash, stripe) = self.take_key(key)?;
        let mut value = std::mem::take(&mut self.value);
        value.clear();
        let mut current = Vec::new();
        let result = self.modify_locked(hash, stripe, key, &mut current, &mut value, decide);
        value.clear();
        self.value = value;
        self.trim();
        result
    }

    fn update_word(
        &mut self,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        let words = self.edit_word(key, at, Opcode::SetField, change)?;
        Ok(words.map(|[before, _]| before))
    }

    fn append(&mut self, key: &[u8], suffix: &[u8]) -> Result<usize, Error> {
        check_key(key)?;
        self.healthy()?;
        self.room_for(INLINE_MAX)?;
        let (hash, stripe) = self.take_key(key)?;
        let mut value = std::mem::take(&mut self.value);
        value.clear();
        let result = self.append_locked(hash, stripe, key, suffix, &mut value);
        let bytes = value.len();
        self.value = value;
        self.trim();
        result.map(|()| bytes)
    }

    fn increment(&mut self, key: &[u8], at: usize, by: u64) -> Result<Option<u64>, Error> {
        let words = self.edit_word(key, at, Opcode::Increment, &mut |word| {
            word.wrapping_add(by)
        })?;
        Ok(words.map(|[_, after]| after))
    }

    fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<Ticket, Error> {
        self.apply_batch(ops)
    }

    fn transaction(
        &mut self,
        scope: Scope<'_>,
        body: TransactionBody<'_>,
    ) -> Result<Ticket, Error> {
        // Also if there was nothing to apply.
        let session = Ended(self);
        transaction::run(session.0, scope, body)
    }

    fn clear(&mut self) -> Result<Ticket, Error> {
        let stripes = self.lock_all(self.engine.stripes.all().collect())?;
        let result = self.apply_locked(true, &[], &stripes);
        self.engine.stripes.unlock_all(&stripes);
        result
    }

    fn turn(&mut self) -> Result<bool, Error> {
        self.take_turn()
    }

    fn commit(&mut self) -> Result<Ticket, Error> {
        self.commit_pending()?;
        // Also with nothing to commit: whoever waits for this session learns here that the medium failed.
        self.healthy()?;
        Ok(Ticket(self.ordered.lsn().0))
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
        let read = self.last_read;
        // What this session has yet to commit is no write of somebody else.
        let committed = self.before_read(stripe);
        let before = self.engine.stripes.word(stripe);
        let found = committed.and_then(|()| self.read(key, None));
        let found = found.ok().flatten();
        self.last_read = read;
        let version = found.map(|(found, _)| found.version);
        let stripes = &self.engine.stripes;
        stripes.watch_number(stripe, self.id, before, version)
    }
}

impl BulletSession {
    /// Takes the stripe of a key, and a log. What is read from here on, no write changes.
    fn take_key(&mut self, key: &[u8]) -> Result<(u64, StripeId), Error> {
        let hash = self.engine.hash(key);
        self.engine.front.prefetch(hash);
        let stripe = self.engine.stripe(hash);
        self.acquire(stripe)?;
        self.last_read = Ticket(self.engine.stripes.stamp(stripe));
        Ok((hash, stripe))
    }

    fn modify_locked(
        &mut self,
        hash: u64,
        stripe: StripeId,
        key: &[u8],
        current: &mut Vec<u8>,
        value: &mut Vec<u8>,
        decide: Modify<'_>,
    ) -> Result<(), Error> {
        let seen = self.see_value(hash, stripe, key, current)?;
        let state = seen.is_live.then_some(Current {
            value: current,
            version: seen.lsn,
            expires_at_ms: seen.expires_at_ms,
        });
        let release = OnPanic(self, stripe);
        let change = decide(state, value);
        std::mem::forget(release);
        let refused = match change {
            engine::Change::Keep => Ok(()),
            _ => self.healthy().and_then(|()| check_value(value)),
        };
        let change = match (refused, change) {
            (Err(error), _) => {
                self.give_back(stripe);
                return Err(error);
            }
            (_, engine::Change::Put { expires_at_ms }) => Change::Put {
                value,
                expires_at_ms,
            },
            (_, engine::Change::Delete) if seen.is_counted => Change::Remove,
            _ => {
                self.give_back(stripe);
                return Ok(());
            }
        };
        self.submit(hash, stripe, key, &seen, change)
    }

    /// What a key has, its value in `current` if it is there. On an error the stripe is given back.
    fn see_value(
        &mut self,
        hash: u64,
        stripe: StripeId,
        key: &[u8],
        current: &mut Vec<u8>,
    ) -> Result<Seen, Error> {
        let seen = self.see_or_give_back(hash, stripe, key)?;
        if seen.is_live
            && let Err(error) = self.value_of(&seen, current)
        {
            self.give_back(stripe);
            return Err(self.engine.at_path(error));
        }
        Ok(seen)
    }

    fn append_locked(
        &mut self,
        hash: u64,
        stripe: StripeId,
        key: &[u8],
        suffix: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let seen = self.see_value(hash, stripe, key, value)?;
        value.extend_from_slice(suffix);
        if let Err(error) = check_value(value) {
            self.give_back(stripe);
            return Err(error);
        }
        let change = match seen.is_live {
            true => Change::Edit {
                value,
                expires_at_ms: seen.expires_at_ms,
                opcode: Opcode::Append,
                payload: suffix,
            },
            false => Change::Put {
                value,
                expires_at_ms: 0,
            },
        };
        self.submit(hash, stripe, key, &seen, change)
    }

    /// Changes an 8-byte word of a value; the words before and after, if the key is there.
    fn edit_word(
        &mut self,
        key: &[u8],
        at: usize,
        opcode: Opcode,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<[u64; 2]>, Error> {
        check_key(key)?;
        self.healthy()?;
        self.room_for(INLINE_MAX)?;
        let (hash, stripe) = self.take_key(key)?;
        let mut value = std::mem::take(&mut self.value);
        value.clear();
        let result = self.edit_locked(hash, stripe, key, at, opcode, &mut value, change);
        self.value = value;
        self.trim();
        result
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one caller, which names them all"
    )]
    fn edit_locked(
        &mut self,
        hash: u64,
        stripe: StripeId,
        key: &[u8],
        at: usize,
        opcode: Opcode,
        value: &mut Vec<u8>,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<[u64; 2]>, Error> {
        let seen = self.see_value(hash, stripe, key, value)?;
        if !seen.is_live {
            self.give_back(stripe);
            return Ok(None);
        }
        let len = value.len();
        let place = value
            .get_mut(at..)
            .and_then(|rest| rest.first_chunk_mut::<8>());
        let Some(place) = place.filter(|_| at.is_multiple_of(8)) else {
            self.give_back(stripe);
            return Err(Error::WordOutside { at, len });
        };
        let before = u64::from_le_bytes(*place);
        let release = OnPanic(self, stripe);
        let after = change(before);
        std::mem::forget(release);
        *place = after.to_le_bytes();
        let operand = match opcode {
            Opcode::Increment => after.wrapping_sub(before),
            _ => after,
        };
        let payload: [u8; 16] = words_payload([at as u64, operand]);
        let edit = Change::Edit {
            value,
            expires_at_ms: seen.expires_at_ms,
            opcode,
            payload: &payload,
        };
        self.submit(hash, stripe, key, &seen, edit)?;
        Ok(Some([before, after]))
    }
}

impl transaction::Locking for BulletSession {
    type Engine = super::Bullet;

    fn engine(&self) -> &Arc<super::Bullet> {
        &self.engine
    }

    fn stripes(engine: &super::Bullet) -> &Stripes {
        &engine.stripes
    }

    fn is_expired(&self, expires_at_ms: u64) -> bool {
        self.engine.is_expired(expires_at_ms)
    }

    fn lock(&mut self, keys: Option<&[&[u8]]>) -> Result<Vec<StripeId>, Error> {
        let stripes = match keys {
            Some(keys) => keys
                .iter()
                .map(|key| self.engine.stripe(self.engine.hash(key)))
                .collect(),
            None => self.engine.stripes.all().collect(),
        };
        self.lock_all(stripes)
    }

    fn read_locked(
        &mut self,
        key: &[u8],
        into: Option<&mut Vec<u8>>,
    ) -> Result<Option<Found>, Error> {
        let hash = self.engine.hash(key);
        let ticket = Ticket(self.engine.stripes.stamp(self.engine.stripe(hash)));
        self.last_read = ticket;
        let seen = self.see(hash, key)?;
        if !seen.is_live {
            return Ok(None);
        }
        if let Some(into) = into {
            self.value_of(&seen, into)
                .map_err(|error| self.engine.at_path(error))?;
        }
        Ok(Some(Found {
            version: seen.lsn,
            expires_at_ms: seen.expires_at_ms,
            ticket,
        }))
    }

    fn watch_locked(&mut self, key: &[u8]) -> Result<u64, Error> {
        let hash = self.engine.hash(key);
        let seen = self.see(hash, key)?;
        let (stripes, stripe) = (&self.engine.stripes, self.engine.stripe(hash));
        let version = seen.is_live.then_some(seen.lsn);
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

    fn make_room(&mut self, ops: &[BatchOp<'_>], attempt: u32) -> Result<bool, Error> {
        let room = ops.iter().map(room_of).sum::<usize>() as u64;
        Ok(attempt == 0 && self.engine.find_room(room).is_ok())
    }

    fn depend_on(&mut self, ticket: Ticket) {
        self.last_read = ticket;
    }
}
