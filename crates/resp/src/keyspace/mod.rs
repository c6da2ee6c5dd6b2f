//! The keys as commands see them: one interface, outside and inside `EXEC`.
//!
//! [`Direct`] works on a thread's engine session; each of its calls is atomic, and it remembers the ticket
//! that its results depend on. [`Inside`] works on an open transaction of the engine, under the transaction's
//! locks. A command handler is written once, against [`Keyspace`].
//!
//! Invariants: a key whose expiry has passed is absent; an expiry of 0 means never. No client may see what a
//! handler learned from here before [`Direct::depends`] is durable.

mod direct;
mod failure;
mod inside;

pub(crate) use direct::Direct;
use failure::NO_SPACE_INSIDE;
pub(crate) use failure::{NO_SPACE, TOO_LONG};

use everdram::engine::{BatchOp, Modify};
use everdram::{Error, Found};

/// Count for [`Keyspace::scan`] that returns every key exactly once, in one call.
pub(crate) const EVERY_KEY: usize = usize::MAX;

/// Capacity in bytes above which a buffer is freed after a request, so that one large value does not occupy
/// memory for the life of the thread.
const BUFFER_KEPT_BYTES: usize = 1 << 20;

/// Atomic work on several keys; an `Err` drops everything it wrote. It may run more than once, and starts
/// over each time.
pub(crate) type Body<'b> = &'b mut dyn FnMut(&mut dyn Keyspace) -> Result<(), Error>;

/// The keys that the work of [`Keyspace::atomically`] may touch, and its conditions.
#[derive(Default)]
pub(crate) struct Demand<'k> {
    /// Every key that the work reads or writes, watched ones included; repeats allowed.
    pub(crate) keys: &'k [&'k [u8]],
    /// The work may touch any key: all other writers wait meanwhile.
    pub(crate) any_key: bool,
    /// Keys that must be unchanged, with their numbers from [`Keyspace::watch`].
    pub(crate) watched: &'k [(Vec<u8>, u64)],
}

/// The store's interface for data commands.
pub(crate) trait Keyspace {
    /// Looks `key` up and appends its value to `into`.
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error>;
    /// State and value length in bytes of `key`.
    fn probe(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error>;
    /// Appends up to `count` bytes of the value of `key` from byte `at` on. Returns the whole value's length,
    /// 0 without a value. `None`: a part costs as much as all of it, and nothing was read.
    fn get_part(
        &mut self,
        _key: &[u8],
        _at: u64,
        _count: u64,
        _into: &mut Vec<u8>,
    ) -> Result<Option<u64>, Error> {
        Ok(None)
    }
    /// Sets bytes of the value of `key` from byte `at` on (`None`: at its end), and fills a gap with zeros.
    /// Returns the new length. `None`: a part costs as much as all of it, and nothing was written.
    fn put_part(
        &mut self,
        _key: &[u8],
        _at: Option<u64>,
        _bytes: &[u8],
    ) -> Result<Option<u64>, Error> {
        Ok(None)
    }
    /// Appends to `into` the live keys that begin with `prefix` and that `keep` accepts. `false`: the store
    /// has no order of keys, and nothing was looked at.
    fn begin_with(
        &mut self,
        _prefix: &[u8],
        _keep: &mut dyn FnMut(&[u8]) -> bool,
        _into: &mut Vec<Vec<u8>>,
    ) -> Result<bool, Error> {
        Ok(false)
    }
    /// Reads several keys as of one moment; pushes state and end of value in `into` for each.
    fn get_many(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error>;
    /// Stores `value`, expiring at `expires_at_ms` (Unix ms; 0 = never).
    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error>;
    /// Removes `key`; says whether it was there.
    fn delete(&mut self, key: &[u8]) -> Result<bool, Error>;
    /// Reads, decides and writes one key. `decide` may run more than once.
    fn modify(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error>;
    /// Applies all operations or none.
    fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<(), Error>;
    /// Runs `body` so that other clients see all of its writes or none, also across a crash. `false`: a
    /// watched key was written, and `body` had no effect.
    fn atomically(&mut self, demand: &Demand<'_>, body: Body<'_>) -> Result<bool, Error>;
    /// Appends to `into`, which is empty, the live keys from `cursor` on that `keep` accepts, after visiting
    /// about `count`; returns the next cursor, 0 = done.
    fn scan(
        &mut self,
        cursor: u64,
        count: usize,
        keep: &mut dyn FnMut(&[u8]) -> bool,
        into: &mut Vec<Vec<u8>>,
    ) -> Result<u64, Error>;
    /// Picks a random live key into `into` (cleared first); `false` if there is none.
    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error>;
    /// Number of keys, including expired ones that are not removed yet.
    fn len(&mut self) -> Result<u64, Error>;
    /// Removes every key.
    fn clear(&mut self) -> Result<(), Error>;
    /// A number that every write of `key` changes.
    fn watch(&mut self, key: &[u8]) -> Result<u64, Error>;
    /// An empty buffer that keeps its capacity between requests; return it with [`Keyspace::return_buffer`].
    fn take_buffer(&mut self) -> Vec<u8>;
    /// Returns a buffer of [`Keyspace::take_buffer`].
    fn return_buffer(&mut self, buffer: Vec<u8>);
}

/// Buffers of one thread, reused by its requests so that GET does not allocate.
#[derive(Default)]
pub(crate) struct Scratch {
    spare: Vec<Vec<u8>>,
}

impl Scratch {
    fn take(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn give_back(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        if buffer.capacity() <= BUFFER_KEPT_BYTES {
            self.spare.push(buffer);
        }
    }
}

/// Engines refuse such keys themselves. This check gives the same answer inside a transaction, whose scope
/// cannot name them.
fn check_key(key: &[u8]) -> Result<(), Error> {
    if is_key(key) {
        Ok(())
    } else {
        Err(Error::KeyLength(key.len()))
    }
}

/// Whether a store can hold `key`.
pub(crate) fn is_key(key: &[u8]) -> bool {
    (1..=everdram::engine::KEY_BYTES_MAX).contains(&key.len())
}

#[cfg(test)]
mod tests;
