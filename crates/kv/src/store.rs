//! `Store` and `Session`: what a program that embeds everdram holds.
//!
//! A [`Session`] returns only durable results (in the pool's durability class): its writes wait, and its
//! reads wait for what they depend on. With tickets (`submit_*`, [`Session::commit`], [`Session::wait`]) the
//! caller decides when to wait.

use crate::batch::Batch;
use crate::engine::damage::Damage;
use crate::engine::{
    BatchOp, Change, Engine, EngineSession, Found, Modify, Scope, Ticket, TransactionBody, Visit,
    open,
};
use crate::error::Error;
use crate::landing::Landing;
use crate::object::locks::Locks as LockTable;
use crate::options::Options;
use crate::stats::{CheckReport, Finding, Stats};
use everdram_pm::Report;
use std::path::Path;
use std::sync::Arc;

/// An open store. Cheap to clone. Dropping the last clone and session closes the pool cleanly.
#[derive(Clone)]
pub struct Store {
    open: Arc<Open>,
}

/// What clones and sessions share.
struct Open {
    engine: Arc<dyn Engine>,
    report: Report,
    damage: Option<Arc<Damage>>,
    landing: Option<Arc<Landing>>,
    /// Of names, by buckets.
    locks: Arc<LockTable>,
}

impl Drop for Open {
    fn drop(&mut self) {
        // No caller is left to get the error. The next open recovers what could not be finished.
        let _ = self.engine.close();
    }
}

impl Store {
    /// Opens (or creates, see [`Options::create`]) the pool at `path`: a directory, or a devdax device.
    ///
    /// # Errors
    /// Bad options, or a pool that is busy, damaged, too new, foreign or of another engine: see [`Error`].
    /// The pool is unchanged then.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Store, Error> {
        options.validate()?;
        let opened = open::open(path.as_ref(), options)?;
        Ok(Store {
            open: Arc::new(Open {
                engine: opened.engine,
                report: opened.report,
                damage: opened.damage,
                landing: opened.landing,
                locks: Arc::default(),
            }),
        })
    }

    /// A store over an engine that somebody else made: tests put a model behind a door.
    #[doc(hidden)]
    #[must_use]
    pub fn over(engine: Arc<dyn Engine>, report: Report) -> Store {
        Store {
            open: Arc::new(Open {
                engine,
                report,
                damage: None,
                landing: None,
                locks: Arc::default(),
            }),
        }
    }

    /// What an open with [`Options::salvage`] left out, by place; empty for any other store. The list ends
    /// after a hundred thousand places; [`Stats::salvage`] counts all.
    #[must_use]
    pub fn damage(&self) -> Vec<Finding> {
        let damage = self.open.damage.as_ref();
        damage.map_or_else(Vec::new, |damage| damage.findings())
    }

    /// A session for one thread (Viper's client).
    ///
    /// # Errors
    /// [`Error::TooManySessions`].
    pub fn session(&self) -> Result<Session, Error> {
        let inner = Arc::clone(&self.open.engine).session()?;
        Ok(Session {
            inner,
            seen: Ticket::NONE,
            _open: Arc::clone(&self.open),
        })
    }

    pub(crate) fn locks(&self) -> &Arc<LockTable> {
        &self.open.locks
    }

    /// The landing area, into which remote clients write values; `None`: the pool has none
    /// ([`Options::landing_bytes`]). It may outlive the store: then it takes no more calls.
    #[must_use]
    pub fn landing(&self) -> Option<Arc<Landing>> {
        self.open.landing.clone()
    }

    /// The engine, for doors such as a server.
    #[must_use]
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.open.engine
    }

    /// Medium, latency, and what an acknowledgement means.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.open.report
    }

    /// Live keys. Shortly after a restart this waits until the whole pool is verified
    /// ([`Stats::verification`]) and the log of a `tiered` store read; [`Stats::keys`] does not wait. Do not
    /// call it while one of the caller's sessions has submitted writes.
    #[must_use]
    pub fn len(&self) -> u64 {
        // On damage the store takes no more writes, and the known keys are the count.
        let _ = self.open.engine.verify();
        self.open.engine.len()
    }

    /// Whether there is no key; waits as [`Store::len`] does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes a checkpoint of the index. A restart begins with the last one and reads only what was written
    /// since. Background work also writes them ([`Options::checkpoint_bytes`]). Do not call it while one of
    /// the caller's sessions has submitted writes.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`]; the store stays usable, and a restart takes longer.
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.open.engine.checkpoint()
    }

    /// Waits until everything committed so far, by any session, is durable.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn sync(&self) -> Result<(), Error> {
        self.open.engine.sync()
    }

    /// Counters and sizes.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.open.engine.stats()
    }

    /// Verifies every checksum and invariant of the pool, read-only.
    ///
    /// # Errors
    /// [`Error::Pool`]; damage is in the report.
    pub fn check(&self) -> Result<CheckReport, Error> {
        self.open.engine.check()
    }

    /// Stops background work, makes everything durable and marks the pool clean. Drop all sessions first.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn close(self) -> Result<(), Error> {
        self.open.engine.close()
    }
}

/// One thread's way into a store. Not shared: give each thread its own.
pub struct Session {
    /// Dropped first: the store closes only after its sessions.
    inner: Box<dyn EngineSession>,
    /// Ticket for the answers given since the last commit.
    seen: Ticket,
    _open: Arc<Open>,
}

impl Session {
    /// The value of `key`, once it is durable.
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// session.put(b"key", b"value")?;
    /// assert_eq!(session.get(b"key")?, Some(b"value".to_vec()));
    /// assert_eq!(session.get(b"other")?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::get`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.map(|_| value))
    }

    /// As [`Session::get`], appending to a buffer of the caller.
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// session.put(b"key", b"value")?;
    /// let mut value = Vec::with_capacity(64); // used again for each
    /// let found = session.get_into(b"key", &mut value)?;
    /// assert!(found.is_some_and(|found| found.expires_at_ms == 0));
    /// assert_eq!(value, b"value");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::get`].
    pub fn get_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        self.inner.get_durable(key, into)
    }

    /// Whether `key` exists.
    ///
    /// # Errors
    /// See [`EngineSession::probe`].
    pub fn contains(&mut self, key: &[u8]) -> Result<bool, Error> {
        let found = self.inner.probe(key)?.is_some();
        self.inner.wait(self.inner.last_read())?;
        Ok(found)
    }

    /// Stores `value` under `key`; durable on return. Returns whether the key is new.
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// assert!(session.put(b"key", b"one")?);
    /// assert!(!session.put(b"key", b"two")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::put`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.put_expiring(key, value, 0)
    }

    /// As [`Session::put`], with an expiry: `key` is absent from `expires_at_ms` on (Unix milliseconds; 0 =
    /// never).
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// use std::time::{Duration, SystemTime, UNIX_EPOCH};
    /// let at = SystemTime::now() + Duration::from_secs(3600);
    /// let at_ms = at.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    /// session.put_expiring(b"session:7", b"ann", at_ms)?;
    /// assert!(session.contains(b"session:7")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::put`].
    pub fn put_expiring(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
    ) -> Result<bool, Error> {
        let (new, ticket) = self.inner.put_now(key, value, expires_at_ms)?;
        self.wait(ticket)?;
        Ok(new)
    }

    /// Stores only if `key` is absent; returns whether it did. Durable on return.
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// assert!(session.put_if_absent(b"lock", b"ann")?);
    /// assert!(!session.put_if_absent(b"lock", b"bob")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::modify`].
    pub fn put_if_absent(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.put_when(key, value, |current| current.is_none())
    }

    /// Stores only if `key` exists; returns whether it did. Durable on return.
    ///
    /// # Errors
    /// See [`EngineSession::modify`].
    pub fn put_if_present(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.put_when(key, value, |current| current.is_some())
    }

    /// Stores only if `key` has this version (see [`Found::version`]); returns whether it did. Durable on
    /// return.
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// session.put(b"page", b"draft")?;
    /// let found = session.get_into(b"page", &mut Vec::new())?.unwrap();
    /// session.put(b"page", b"of somebody else")?;
    /// assert!(!session.put_if_version(b"page", b"mine", found.version)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::modify`].
    pub fn put_if_version(
        &mut self,
        key: &[u8],
        value: &[u8],
        version: u64,
    ) -> Result<bool, Error> {
        self.put_when(key, value, |current| current == Some(version))
    }

    fn put_when(
        &mut self,
        key: &[u8],
        value: &[u8],
        holds: impl Fn(Option<u64>) -> bool,
    ) -> Result<bool, Error> {
        let mut done = false;
        self.inner.modify(key, &mut |current, out| {
            done = holds(current.map(|c| c.version));
            if !done {
                return Change::Keep;
            }
            out.extend_from_slice(value);
            Change::Put { expires_at_ms: 0 }
        })?;
        self.finish()?;
        Ok(done)
    }

    /// Removes `key`; durable on return. Returns whether it existed.
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// session.put(b"key", b"value")?;
    /// assert!(session.delete(b"key")?);
    /// assert!(!session.delete(b"key")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::delete`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let was = self.inner.delete(key)?;
        self.finish()?;
        Ok(was)
    }

    /// Reads a key and replaces, removes or keeps it, as `decide` says, atomically; durable on return.
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// use everdram::engine::Change;
    /// session.put(b"name", b"ann")?;
    /// session.update(b"name", &mut |current, new| match current {
    ///     Some(current) => {
    ///         new.extend(current.value.to_ascii_uppercase());
    ///         Change::Put { expires_at_ms: 0 }
    ///     }
    ///     None => Change::Keep,
    /// })?;
    /// assert_eq!(session.get(b"name")?, Some(b"ANN".to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::modify`].
    pub fn update(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error> {
        self.inner.modify(key, decide)?;
        self.finish()
    }

    /// Changes one aligned 8-byte word of a value atomically; durable on return. See
    /// [`EngineSession::update_word`].
    ///
    /// # Errors
    /// See [`EngineSession::update_word`].
    pub fn update_word(
        &mut self,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        let before = self.inner.update_word(key, at, change);
        self.finish_word(before)
    }

    /// Appends `suffix` to a value; durable on return. Returns the new length in bytes. See
    /// [`EngineSession::append`].
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// session.append(b"log", b"one,")?;
    /// assert_eq!(session.append(b"log", b"two")?, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::append`].
    pub fn append(&mut self, key: &[u8], suffix: &[u8]) -> Result<usize, Error> {
        let bytes = self.inner.append(key, suffix)?;
        self.finish()?;
        Ok(bytes)
    }

    /// Adds to one aligned 8-byte word of a value, wrapping around; durable on return. Returns the new word.
    /// See [`EngineSession::increment`].
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// session.put(b"hits", &0_u64.to_le_bytes())?;
    /// assert_eq!(session.increment(b"hits", 0, 2)?, Some(2));
    /// assert_eq!(session.increment(b"hits", 0, 2)?, Some(4));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::increment`].
    pub fn increment(&mut self, key: &[u8], at: usize, by: u64) -> Result<Option<u64>, Error> {
        let after = self.inner.increment(key, at, by);
        self.finish_word(after)
    }

    /// Applies all of a batch or none, also across a crash; durable on return. See [`Batch`] for an example.
    ///
    /// # Errors
    /// See [`EngineSession::batch`].
    pub fn apply(&mut self, batch: &Batch) -> Result<(), Error> {
        self.batch(&batch.to_ops())
    }

    /// As [`Session::apply`], for keys and values that the caller owns.
    ///
    /// # Errors
    /// See [`EngineSession::batch`].
    pub fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<(), Error> {
        let ticket = self.inner.batch(ops)?;
        self.inner.wait(ticket)
    }

    /// Runs `body` under the locks of `scope` and applies what it staged, all or none; durable on return.
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// use everdram::engine::Scope;
    /// session.put(b"ann", &[5])?;
    /// session.put(b"bob", &[5])?;
    /// session.transaction(Scope::Keys(&[b"ann", b"bob"]), &mut |both| {
    ///     let (mut ann, mut bob) = (Vec::new(), Vec::new());
    ///     both.get(b"ann", &mut ann)?;
    ///     both.get(b"bob", &mut bob)?;
    ///     both.put(b"ann", &[ann[0] - 1], 0)?;
    ///     both.put(b"bob", &[bob[0] + 1], 0)
    /// })?;
    /// assert_eq!(session.get(b"bob")?, Some(vec![6]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::transaction`].
    pub fn transaction(
        &mut self,
        scope: Scope<'_>,
        body: TransactionBody<'_>,
    ) -> Result<(), Error> {
        let ticket = self.inner.transaction(scope, body)?;
        self.inner.wait(ticket)
    }

    /// Visits live keys from `cursor`; see [`EngineSession::scan`]. The visited state is durable on return.
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// session.put(b"key", b"value")?;
    /// let next = session.scan(0, 100, &mut |key, value_bytes, _expires_at_ms| {
    ///     assert_eq!((key, value_bytes), (&b"key"[..], 5));
    /// })?;
    /// assert_eq!(next, 0); // there are no more
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::scan`].
    pub fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error> {
        let next = self.inner.scan(cursor, count, visit)?;
        self.inner.wait(self.inner.last_read())?;
        Ok(next)
    }

    /// Submits a put without waiting; [`Session::commit`] makes it visible and returns its ticket.
    ///
    /// # Errors
    /// See [`EngineSession::put`].
    pub fn submit_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.inner.put(key, value, 0)
    }

    /// Submits a removal without waiting; returns whether the key existed. Do not act on the answer before
    /// the next commit's ticket is durable.
    ///
    /// # Errors
    /// See [`EngineSession::delete`].
    pub fn submit_delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let was = self.inner.delete(key)?;
        self.seen = self.seen.max(self.inner.last_read());
        Ok(was)
    }

    /// Commits all submitted writes under one fence. The ticket also covers the answers of `submit_delete`: a
    /// key that was absent may have been removed by another session just before.
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// for number in 0..100_u64 {
    ///     session.submit_put(&number.to_le_bytes(), b"value")?;
    /// }
    /// let ticket = session.commit()?; // one fence for all of them
    /// session.wait(ticket)?; // durable
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`EngineSession::commit`].
    pub fn commit(&mut self) -> Result<Ticket, Error> {
        let ticket = self.inner.commit()?;
        Ok(ticket.max(std::mem::take(&mut self.seen)))
    }

    /// Blocks until `ticket` is durable.
    ///
    /// # Errors
    /// See [`EngineSession::wait`].
    #[inline]
    pub fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        match ticket {
            Ticket::NONE => Ok(()),
            ticket => self.inner.wait(ticket),
        }
    }

    /// See [`EngineSession::turn`].
    ///
    /// # Errors
    /// See [`EngineSession::turn`].
    pub fn turn(&mut self) -> Result<bool, Error> {
        self.inner.turn()
    }

    /// The engine's session, with every operation that a door needs.
    pub fn engine(&mut self) -> &mut dyn EngineSession {
        &mut *self.inner
    }

    /// As [`Session::finish`], also if the answer is that the word lies outside the value.
    fn finish_word(&mut self, said: Result<Option<u64>, Error>) -> Result<Option<u64>, Error> {
        if let Ok(_) | Err(Error::WordOutside { .. }) = &said {
            self.finish()?;
        }
        said
    }

    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        let ticket = self.inner.commit()?;
        // The operation may have seen another session's write that is not durable yet.
        self.wait(ticket.max(self.inner.last_read()))
    }
}
