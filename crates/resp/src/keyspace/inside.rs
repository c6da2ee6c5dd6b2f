//! The keyspace of a command inside a transaction of the engine.
//!
//! Reads see what the transaction has staged. The engine's transaction scans and counts the keys as they were
//! before it, and no other session changes them meanwhile. This type keeps what the transaction itself adds
//! and removes, and merges it into those results.

use super::{Body, Demand, Keyspace, NO_SPACE_INSIDE, Scratch, check_key};
use everdram::engine::{BatchOp, Change, Current, Modify, Transaction};
use everdram::{Error, Found};
use std::collections::BTreeMap;

/// Keys per engine call.
const SCAN_STEP: usize = 1024;
/// Most bytes of keys and values that a transaction may stage: the engine keeps them in memory until its end.
const STAGED_BYTES_MAX: usize = 1 << 30;

/// Commands under the locks of a transaction.
pub(super) struct Inside<'t> {
    transaction: &'t mut (dyn Transaction + 't),
    scratch: &'t mut Scratch,
    /// Whether the body may touch any key, and so scan and count.
    any_key: bool,
    /// Number of keys after this transaction.
    len: u64,
    /// Keys written by this transaction, and whether they exist now. Kept only if it may scan.
    changed: BTreeMap<Vec<u8>, bool>,
    /// The transaction has removed every earlier key.
    cleared: bool,
    staged_bytes: usize,
}

impl<'t> Inside<'t> {
    pub(super) fn new(
        transaction: &'t mut (dyn Transaction + 't),
        scratch: &'t mut Scratch,
        any_key: bool,
    ) -> Self {
        Inside {
            len: if any_key { transaction.len() } else { 0 },
            transaction,
            scratch,
            any_key,
            changed: BTreeMap::new(),
            cleared: false,
            staged_bytes: 0,
        }
    }

    /// Fails with [`Error::Condition`] unless each watched key still has its number.
    pub(super) fn expect_unchanged(&mut self, watched: &[(Vec<u8>, u64)]) -> Result<(), Error> {
        for (key, number) in watched {
            if self.transaction.watch(key)? != *number {
                // The refusal reveals another client's write, so it waits until that is durable.
                self.probe(key)?;
                return Err(Error::Condition);
            }
        }
        Ok(())
    }

    fn note_change(&mut self, key: &[u8], present: bool) {
        if self.any_key {
            self.changed.insert(key.to_vec(), present);
        }
    }

    /// Visits the committed keys from `cursor` on that this transaction has neither written nor cleared, at
    /// least `count` of them; returns the next cursor.
    fn visit_untouched(
        &mut self,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<u64, Error> {
        let (changed, cleared) = (&self.changed, self.cleared);
        let (mut next, mut visited) = (cursor, 0_usize);
        loop {
            let step = count.saturating_sub(visited).min(SCAN_STEP);
            next = self.transaction.scan(next, step, &mut |key, _, _| {
                visited += 1;
                if !cleared && !changed.contains_key(key) {
                    visit(key);
                }
            })?;
            if next == 0 || visited >= count {
                return Ok(next);
            }
        }
    }

    /// Visits the keys that this transaction has put.
    fn visit_put(&mut self, visit: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let changed = std::mem::take(&mut self.changed);
        let mut outcome = Ok(());
        for key in changed
            .iter()
            .filter_map(|(key, there)| there.then_some(key))
        {
            match self.probe(key) {
                // A key put with an expiry may have expired.
                Ok(None) => {}
                Ok(Some(_)) => visit(key),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.changed = changed;
        outcome
    }
}

impl Keyspace for Inside<'_> {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        check_key(key)?;
        self.transaction.get(key, into)
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
        let staged = self.staged_bytes.saturating_add(key.len() + value.len());
        if staged > STAGED_BYTES_MAX {
            return Err(Error::NoSpace(NO_SPACE_INSIDE.into()));
        }
        let new = self.any_key && self.probe(key)?.is_none();
        self.transaction.put(key, value, expires_at_ms)?;
        self.staged_bytes = staged;
        self.len = self.len.saturating_add(u64::from(new));
        self.note_change(key, true);
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        check_key(key)?;
        let was = self.transaction.delete(key)?;
        self.len = self.len.saturating_sub(u64::from(was));
        self.note_change(key, false);
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
        let next = self.visit_untouched(cursor, count, &mut |key| {
            if keep(key) {
                into.push(key.to_vec());
            }
        })?;
        // The place of these keys in an iteration is unknown, so every page has them: a scan may return a key
        // twice, but must not miss one.
        self.visit_put(&mut |key| {
            if keep(key) {
                into.push(key.to_vec());
            }
        })?;
        Ok(next)
    }

    /// Each key is equally likely: the n-th replaces the current pick with probability 1/n.
    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        into.clear();
        let mut seen = 0_u64;
        let mut pick = |key: &[u8]| {
            seen += 1;
            if rand::random_range(0..seen) == 0 {
                into.clear();
                into.extend_from_slice(key);
            }
        };
        self.visit_untouched(0, usize::MAX, &mut pick)?;
        self.visit_put(&mut pick)?;
        Ok(seen > 0)
    }

    fn len(&mut self) -> Result<u64, Error> {
        Ok(self.len)
    }

    fn clear(&mut self) -> Result<(), Error> {
        self.transaction.clear()?;
        self.len = 0;
        self.staged_bytes = 0;
        self.changed.clear();
        self.cleared = true;
        Ok(())
    }

    fn watch(&mut self, key: &[u8]) -> Result<u64, Error> {
        check_key(key)?;
        self.transaction.watch(key)
    }

    fn take_buffer(&mut self) -> Vec<u8> {
        self.scratch.take()
    }

    fn return_buffer(&mut self, buffer: Vec<u8>) {
        self.scratch.give_back(buffer);
    }
}
