//! What is done to several keys at once: batches and transactions.

use super::{Found, Visit};
use crate::error::Error;
use std::collections::HashMap;

/// One operation of an atomic batch.
#[derive(Clone, Copy, Debug)]
pub enum BatchOp<'a> {
    /// Store `value` under `key`, expiring at `expires_at_ms` (Unix ms; 0 = never).
    Put {
        /// 1 byte to 64 KiB.
        key: &'a [u8],
        /// 0 bytes to 512 MiB.
        value: &'a [u8],
        /// Absolute expiry in Unix milliseconds; 0 = never.
        expires_at_ms: u64,
    },
    /// Remove `key` if it exists.
    Delete {
        /// 1 byte to 64 KiB.
        key: &'a [u8],
    },
}

impl<'a> BatchOp<'a> {
    /// The key of the operation.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        match self {
            BatchOp::Put { key, .. } | BatchOp::Delete { key } => key,
        }
    }
}

/// The effective operations of a batch: the last one of each key, in order.
pub(crate) fn last_of_each_key<'o, 'a>(ops: &'o [BatchOp<'a>]) -> Vec<&'o BatchOp<'a>> {
    let mut last = HashMap::with_capacity(ops.len());
    for (index, op) in ops.iter().enumerate() {
        last.insert(op.key(), index);
    }
    let counts = |(index, op): &(usize, &BatchOp<'_>)| last.get(op.key()) == Some(index);
    ops.iter()
        .enumerate()
        .filter(counts)
        .map(|(_, op)| op)
        .collect()
}

/// Reads and writes of one transaction; see
/// [`EngineSession::transaction`](super::EngineSession::transaction).
pub trait Transaction {
    /// Reads `key` with this transaction's changes, appending the value to `into`.
    ///
    /// # Errors
    /// [`Error::KeyNotLocked`] if the key was not declared; otherwise as
    /// [`EngineSession::get`](super::EngineSession::get).
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error>;
    /// Stages a put.
    ///
    /// # Errors
    /// [`Error::KeyNotLocked`] if the key was not declared; limits as
    /// [`EngineSession::put`](super::EngineSession::put).
    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error>;
    /// Stages a removal; returns whether the key existed.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    fn delete(&mut self, key: &[u8]) -> Result<bool, Error>;
    /// As [`EngineSession::watch`](super::EngineSession::watch), for a declared key, without this
    /// transaction's changes.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    fn watch(&mut self, key: &[u8]) -> Result<u64, Error>;
    /// As [`EngineSession::scan`](super::EngineSession::scan), over the keys before this transaction. Only
    /// under [`Scope::All`], where no other session changes keys meanwhile.
    ///
    /// # Errors
    /// [`Error::KeyNotLocked`] under [`Scope::Keys`]; otherwise as
    /// [`EngineSession::scan`](super::EngineSession::scan).
    fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error>;
    /// Live keys before this transaction. Exact only over [`Scope::All`].
    fn len(&mut self) -> u64;
    /// Whether [`Transaction::len`] is 0.
    fn is_empty(&mut self) -> bool {
        self.len() == 0
    }
    /// Stages the removal of every key of the store. Only in a transaction over [`Scope::All`].
    ///
    /// # Errors
    /// [`Error::KeyNotLocked`] under [`Scope::Keys`].
    fn clear(&mut self) -> Result<(), Error>;
}

/// Whether something has come that a change of several keys must see; see
/// [`EngineSession::set_late`](super::EngineSession::set_late).
pub type Late = std::sync::Arc<dyn Fn() -> bool + Send + Sync>;

/// The keys that a transaction may touch.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// These keys, in any order, repeats allowed. Other keys stay writable.
    Keys(&'a [&'a [u8]]),
    /// Any key; every other writer waits.
    All,
}

/// Runs under the locks of its scope; an `Err` drops everything it staged. If there was no room for that, it
/// runs again, with nothing staged and on the state of then: the last run counts.
pub type TransactionBody<'a> = &'a mut dyn FnMut(&mut dyn Transaction) -> Result<(), Error>;
