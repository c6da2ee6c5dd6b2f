//! The interface between the doors and the engines behind them.
//!
//! An engine owns a pool and answers point operations on byte keys. Each thread calls it through an
//! [`EngineSession`] of its own (Viper's *client*). The session holds the engine's state per writer: an open
//! block, a log, an epoch slot. So two threads share nothing on the hot path. Doors do not know which engine
//! answers; engines do not know which door asks.
//!
//! # Submit, commit, wait
//! A write runs in three steps, and callers choose how far to go:
//!
//! 1. **submit** ([`EngineSession::put`] and its kin): the session writes the record; only this session can
//!    read it.
//! 2. **commit** ([`EngineSession::commit`]): one fence covers everything submitted since the last
//!    commit; the writes become visible to others and get a [`Ticket`].
//! 3. **wait** ([`EngineSession::wait`]): returns when the ticket is durable. On persistent memory it is
//!    durable already; on files the call waits for the log writer's `fdatasync` (group commit).
//!
//! A read names the ticket on which it depends ([`Found::ticket`], [`EngineSession::last_read`]). Showing its
//! result before that ticket is durable could show a value that a crash still undoes.

pub(super) mod backend;
pub(super) mod background;
pub(super) mod base;
mod batch;
pub(super) mod clock;
pub(super) mod counters;
pub(super) mod damage;
pub(super) mod ghosts;
pub(super) mod halt;
#[cfg(feature = "lab")]
pub(super) mod jobs;
pub(super) mod kind;
pub(super) mod limits;
pub(super) mod open;
pub(super) mod part;
pub(super) mod persist_on_read;
pub(super) mod pool;
pub(super) mod random;
pub(super) mod session;
pub(super) mod transaction;

use crate::error::Error;
use crate::stats::{CheckReport, Inspection, Stats};
pub(crate) use batch::last_of_each_key;
pub use batch::{BatchOp, Late, Scope, Transaction, TransactionBody};
use damage::Damage;
use everdram_pm::Pool;
pub use limits::{KEY_BYTES_MAX, OBJECT_BYTES_MAX, VALUE_BYTES_MAX};
pub use part::Ensure;
use part::{Part, change_part, ensure_whole};
pub use session::loan::{Loan, Place, Said};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// A point in the order of durability. `Ticket::NONE` is always durable. Tickets of one store are
/// ordered: a durable ticket makes every smaller one durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
#[must_use = "a write is acknowledged only once its ticket is durable"]
pub struct Ticket(pub u64);

impl Ticket {
    /// Always durable.
    pub const NONE: Ticket = Ticket(0);
}

/// The result of a read, besides the value bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Version of the key; every later write of the key has a greater one.
    pub version: u64,
    /// Absolute expiry in Unix milliseconds; 0 = never.
    pub expires_at_ms: u64,
    /// The value may be shown once this ticket is durable.
    pub ticket: Ticket,
}

/// How a long value may be answered by the places in which it lies; see [`EngineSession::get_or_place`].
#[derive(Clone, Copy, Debug)]
pub struct Placing {
    /// Values up to this many bytes are read.
    pub longer_than: u64,
    /// For so long, at least, what lies in these places stays. Room that others free meanwhile can be used
    /// again at most twice as much later.
    pub hold: Duration,
    /// The most places.
    pub pieces_max: usize,
}

/// A part of a value, where it lies in the image of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its first byte, from the start of the image.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// XXH3-64 of its bytes, seeded with [`Placed::seed`].
    pub check: u64,
}

/// What belongs to all pieces of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Length of the value in bytes: the sum of those of the pieces.
    pub bytes: u64,
    /// Seeds their checks.
    pub seed: u64,
}

/// A key's current state, as the closure of [`EngineSession::modify`] sees it.
#[derive(Clone, Copy, Debug)]
pub struct Current<'a> {
    /// The value bytes.
    pub value: &'a [u8],
    /// As in [`Found`].
    pub version: u64,
    /// As in [`Found`].
    pub expires_at_ms: u64,
}

/// The decision of a closure of [`EngineSession::modify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Leave the key as it is.
    Keep,
    /// Store the bytes the closure left in its buffer, with this expiry (Unix ms; 0 = never).
    Put {
        /// Absolute expiry in Unix milliseconds; 0 = never.
        expires_at_ms: u64,
    },
    /// Remove the key.
    Delete,
}

/// Decides a read-modify-write. The closure sees the current state (`None` = absent or expired) and returns
/// its decision. It may fill the buffer, empty on entry, with a new value. It runs under the key's lock: keep
/// it short, and never call the session from it. If there was no room for what it decided, it runs again, on
/// the state of then: the last decision counts.
pub type Modify<'a> = &'a mut dyn FnMut(Option<Current<'_>>, &mut Vec<u8>) -> Change;

/// Called by [`EngineSession::scan`] for each live key: key bytes, value length in bytes, expiry (ms, 0 =
/// never). It may use the store through another session, even on this thread: the scan holds nothing
/// meanwhile.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], u64, u64);

/// One thread's way into an engine. The module text explains submit, commit and wait.
///
/// Keys: 1 byte to 64 KiB. Values: 0 bytes to 512 MiB. A key whose expiry has passed is absent.
///
/// All methods can return [`Error::Pool`] (the medium failed; the pool then refuses every later write), and
/// those that need a key, or all keys, [`Error::Loading`] shortly after a restart.
/// Methods that write can return [`Error::NoSpace`] (nothing changed, reads go on).
pub trait EngineSession: Send {
    /// Looks up `key` and appends its value to `into`. `None`: absent or expired;
    /// [`EngineSession::last_read`] is the ticket on which that absence depends.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the record does not verify; `into` is unchanged then.
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error>;

    /// As [`EngineSession::get`]; or, of a long value, where it lies, in `pieces` and in order, for somebody
    /// who reads it without a thread of this process. Then nothing is appended to `into`. What lies there
    /// stays for the time of `how`, and not longer: a reader verifies the checks, and that its time has not
    /// passed. Only engines with [`Engine::readable`] place values.
    ///
    /// # Errors
    /// As [`EngineSession::get`].
    fn get_or_place(
        &mut self,
        key: &[u8],
        how: &Placing,
        into: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<(Found, Option<Placed>)>, Error> {
        let _ = (how, pieces);
        Ok(self.get(key, into)?.map(|found| (found, None)))
    }

    /// The expiry of `key` and its value's length in bytes, without reading the value; `None` if the key is
    /// absent.
    ///
    /// # Errors
    /// As [`EngineSession::get`].
    fn probe(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error>;

    /// The ticket on which the state that this session's last operation *saw* depends. For `get`, `probe`,
    /// `get_many` and `scan`, found or not. For `modify`, `delete`, `update_word`, `append` and `increment`,
    /// even if they changed nothing. For a transaction, over all its reads. After a `scan` it covers
    /// everything fenced by then, because a key that is left out may have been removed at any time.
    fn last_read(&self) -> Ticket;

    /// Reads several keys as of one moment: no transaction is seen in part. Appends the values to `into`.
    /// Pushes for each key, in order, its state and the end of its value in `into` to `found`.
    ///
    /// # Errors
    /// As [`EngineSession::get`].
    fn get_many(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error>;

    /// Submits a put. The commit looks up whether it replaces a record; it also replaces a damaged one.
    ///
    /// # Errors
    /// [`Error::KeyLength`], [`Error::ValueLength`].
    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error>;

    /// Submits a put and commits. Returns whether the key is new, and the ticket to wait for.
    ///
    /// # Errors
    /// As [`EngineSession::put`] and [`EngineSession::commit`].
    fn put_now(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
    ) -> Result<(bool, Ticket), Error>;

    /// Submits a put of what was written into a loan of this store, without copying it: its room becomes that
    /// of the value, and the loan is empty. `false`: what lies there is not what `said` says; then nothing is
    /// submitted, and the loan is as it was. Where that is believed, only the number of its checks is looked
    /// at. The loan need not be for this key. What lies there after the call is the value, so nobody must be
    /// able to write there any more.
    ///
    /// # Errors
    /// [`Error::KeyLength`]: also of a key that is too long for such a value. After an error the loan may be
    /// empty, and its room is free later.
    fn put_lent(
        &mut self,
        key: &[u8],
        loan: &mut Loan,
        said: &Said,
        expires_at_ms: u64,
    ) -> Result<bool, Error> {
        let _ = (key, loan, said, expires_at_ms);
        Err(Error::Options("this engine lends no blocks".into()))
    }

    /// As [`EngineSession::get`], and waits until the answer is durable.
    ///
    /// # Errors
    /// As [`EngineSession::get`] and [`EngineSession::wait`].
    fn get_durable(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        let found = self.get(key, into)?;
        self.wait(self.last_read())?;
        Ok(found)
    }

    /// Submits a removal. Returns whether the key existed.
    ///
    /// # Errors
    /// [`Error::KeyLength`].
    fn delete(&mut self, key: &[u8]) -> Result<bool, Error>;

    /// Reads, decides, and submits the decision, atomically for this key.
    ///
    /// # Errors
    /// As [`EngineSession::get`] and [`EngineSession::put`].
    fn modify(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error>;

    /// Changes the aligned 8-byte little-endian word at `at` bytes of a value, atomically. In place where the
    /// record has a fixed size (Viper section 4.4), by read-modify-write otherwise. An in-place change keeps
    /// the version. Returns the word before, or `None` if the key is absent.
    ///
    /// # Errors
    /// [`Error::WordOutside`] if `at` is not a multiple of 8, or the word does not lie inside the value. The
    /// error names the value's length, so it depends on [`EngineSession::last_read`] like any answer.
    fn update_word(
        &mut self,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<u64>, Error>;

    /// Submits `suffix` at the end of the value of `key`, which keeps its expiry. An absent key counts as one
    /// with an empty value that never expires. Returns the new length of the value in bytes.
    ///
    /// # Errors
    /// As [`EngineSession::modify`]; [`Error::ValueLength`] if the value would be too long.
    fn append(&mut self, key: &[u8], suffix: &[u8]) -> Result<usize, Error> {
        let mut bytes = 0;
        self.modify(key, &mut |current, value| {
            let expires_at_ms = current.map_or(0, |current| current.expires_at_ms);
            value.extend_from_slice(current.map_or(&[], |current| current.value));
            value.extend_from_slice(suffix);
            bytes = value.len();
            Change::Put { expires_at_ms }
        })?;
        Ok(bytes)
    }

    /// Whether [`EngineSession::read_range`] and [`EngineSession::write_range`] leave the rest of a value
    /// alone, instead of reading and writing all of it.
    fn has_parts(&self) -> bool {
        false
    }

    /// Appends up to `count` bytes of the value of `key`, from byte `at` on, to `into`. Returns the key's
    /// state and the length of the whole value in bytes; `None`: absent, as in [`EngineSession::get`].
    ///
    /// # Errors
    /// As [`EngineSession::get`].
    fn read_range(
        &mut self,
        key: &[u8],
        at: u64,
        count: u64,
        into: &mut Vec<u8>,
    ) -> Result<Option<(Found, u64)>, Error> {
        let mut value = Vec::new();
        let found = self.get(key, &mut value)?;
        let [from, to] =
            [at, at.saturating_add(count)].map(|at| at.min(value.len() as u64) as usize);
        into.extend_from_slice(&value[from..to]);
        Ok(found.map(|found| (found, value.len() as u64)))
    }

    /// Submits `bytes` at byte `at` of the value of `key`, which keeps its expiry; the rest of the value
    /// stays as it is. Zeros fill what is between an earlier end and `at`. An absent key counts as one with
    /// an empty value that never expires; without bytes, nothing changes. Returns the new length of the value
    /// in bytes.
    ///
    /// The engine `dstore` writes only the blocks that change, and its values may grow to 1 TiB by this.
    ///
    /// # Errors
    /// As [`EngineSession::modify`]; [`Error::ValueLength`] if the value would be too long.
    fn write_range(&mut self, key: &[u8], at: u64, bytes: &[u8]) -> Result<u64, Error> {
        change_part(self, key, Part::Write { at, bytes }).map(|[_, after]| after)
    }

    /// Makes sure that a key has a value, as `how` says; the change, if there is one, is submitted. Returns
    /// whether the key existed; `None`: it does not, and was not to be created.
    ///
    /// # Errors
    /// [`Error::ObjectExists`]; as [`EngineSession::write_range`].
    fn ensure(&mut self, key: &[u8], how: &Ensure) -> Result<Option<bool>, Error> {
        ensure_whole(self, key, how)
    }

    /// Submits a new length of the value of `key` in bytes: cuts it, or adds zeros. The key keeps its expiry.
    /// Returns the length before, or `None` if the key is absent.
    ///
    /// # Errors
    /// As [`EngineSession::write_range`].
    fn set_len(&mut self, key: &[u8], length: u64) -> Result<Option<u64>, Error> {
        if self.probe(key)?.is_none() {
            return Ok(None);
        }
        change_part(self, key, Part::Length(length)).map(|[before, _]| Some(before))
    }

    /// Adds `by`, wrapping around, to the aligned 8-byte little-endian word at `at` bytes of a value, as
    /// [`EngineSession::update_word`] does. Returns the word afterwards, or `None` if the key is absent.
    ///
    /// # Errors
    /// As [`EngineSession::update_word`].
    fn increment(&mut self, key: &[u8], at: usize, by: u64) -> Result<Option<u64>, Error> {
        let before = self.update_word(key, at, &mut |word| word.wrapping_add(by))?;
        Ok(before.map(|word| word.wrapping_add(by)))
    }

    /// Applies all operations or none, also across a crash; other sessions see all or none. Commits.
    ///
    /// # Errors
    /// As the single operations; nothing is applied then.
    fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<Ticket, Error>;

    /// Locks the scope, runs `body`, and applies what it staged as one atomic batch. Commits.
    ///
    /// # Errors
    /// What `body` returns, or as [`EngineSession::batch`]; nothing is applied then.
    fn transaction(&mut self, scope: Scope<'_>, body: TransactionBody<'_>)
    -> Result<Ticket, Error>;

    /// For layers above an engine that have states of keys of which the engine does not know. Later changes
    /// of several keys (`batch`, `transaction`, `clear`) ask `late` once their keys are locked and nobody
    /// reads them any more. If it says `true`, nothing is changed, no body is called, and the call returns
    /// [`Ticket::NONE`].
    fn set_late(&mut self, late: Option<Late>) {
        drop(late);
    }

    /// Removes every key, atomically, also across a crash. Commits.
    ///
    /// # Errors
    /// [`Error::Pool`].
    fn clear(&mut self) -> Result<Ticket, Error>;

    /// Does up to some 100 us of background work if the store's own threads have fallen behind. Returns
    /// whether it did any. Threads of a worker pool call it between two requests. It commits submitted writes
    /// first.
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::Corrupt`].
    fn turn(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    /// Makes submitted writes visible under one fence. The ticket covers all of this session's writes.
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::Halted`]: the fate of the submitted writes is unknown, and the store takes
    /// no more writes. There is no other error: a submitted write is never refused alone.
    fn commit(&mut self) -> Result<Ticket, Error>;

    /// Blocks until `ticket` is durable.
    ///
    /// # Errors
    /// [`Error::Pool`] if it never will be.
    fn wait(&mut self, ticket: Ticket) -> Result<(), Error>;

    /// Visits at least `count` live keys from `cursor` (0 = the start) on, or all that are left. Returns the
    /// cursor to continue from; 0 = done. A key that exists during the whole iteration is visited at least
    /// once, however the store grows meanwhile. A cursor is valid until the store is closed.
    ///
    /// # Errors
    /// As [`EngineSession::get`].
    fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error>;

    /// Visits up to `count` live keys between two bounds, in ascending order of their bytes. Returns the key
    /// to continue behind (`Bound::Excluded`); `None` = done. A key that exists during the whole iteration is
    /// visited exactly once.
    ///
    /// # Errors
    /// [`Error::Unordered`]: the engine has no order. As [`EngineSession::get`].
    fn range(
        &mut self,
        _from: Bound<&[u8]>,
        _to: Bound<&[u8]>,
        _count: usize,
        _visit: Visit<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        Err(Error::Unordered)
    }

    /// Picks a live key at random into `into` (cleared first); `false` if it found none. It looks at one key
    /// after another, as iterations do: `false` means that each key was absent at some moment of the call.
    ///
    /// # Errors
    /// As [`EngineSession::get`].
    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error>;

    /// A number that changes with every write of `key`, also if the key is deleted and put again. Rarely, it
    /// changes without such a write. Only [`EngineSession::update_word`] and [`EngineSession::increment`] may
    /// leave it unchanged, where they keep the key's version.
    fn watch(&mut self, key: &[u8]) -> u64;
}

/// A store's engine: shared by all sessions.
pub trait Engine: Send + Sync {
    /// The engine's name, as `--engine` takes it.
    fn name(&self) -> &'static str;
    /// A session for one thread.
    ///
    /// # Errors
    /// [`Error::TooManySessions`].
    fn session(self: Arc<Self>) -> Result<Box<dyn EngineSession>, Error>;
    /// The ticket up to which writes are durable now.
    fn durable(&self) -> Ticket;
    /// Requests durability of `ticket` without waiting; `subscribe`d callbacks run when it is reached.
    fn request(&self, ticket: Ticket);
    /// Registers a callback that runs, on a thread of the engine, each time more has become durable or the
    /// pool has failed. It must be short and must not call the engine.
    fn subscribe(&self, advanced: Arc<dyn Fn() + Send + Sync>);
    /// The ticket of everything that any session has committed until now. An answer about all keys, like
    /// [`Engine::len`], depends on it; ask for it after the answer.
    fn committed(&self) -> Ticket;
    /// The number of live keys, including expired ones that no session has met yet. During the verification
    /// of a restart ([`Engine::verification`]) it may include keys removed shortly before the restart. The
    /// counts of the sessions are added one after the other, so it may include part of what is committed
    /// meanwhile.
    fn len(&self) -> u64;
    /// Whether there are no keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Waits until everything committed so far is durable.
    ///
    /// # Errors
    /// [`Error::Pool`].
    fn sync(&self) -> Result<(), Error>;
    /// Counters and sizes.
    fn stats(&self) -> Stats;
    /// The progress of verification after a restart with a checkpoint of the index: blocks verified, and
    /// blocks to verify. `None`: everything is verified, and [`Engine::len`] is exact.
    fn verification(&self) -> Option<(u64, u64)> {
        None
    }
    /// The progress of loading after a restart of an engine with a log below its pool: bytes of the log that
    /// were read, and bytes to read. `None`: every key is known.
    fn loading(&self) -> Option<(u64, u64)> {
        None
    }
    /// Finishes the loading and the verification of a restart, which otherwise run in the background. Returns
    /// at once if there is nothing to do. The caller's sessions must have no submitted writes.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: a block is damaged, and the engine takes no more writes.
    fn verify(&self) -> Result<(), Error> {
        Ok(())
    }
    /// Writes a checkpoint of the index, so that a restart reads only what is written from here on. The
    /// engine also writes one when it is due. The caller's sessions must have no submitted writes.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`]; the store continues without.
    fn checkpoint(&self) -> Result<(), Error> {
        Ok(())
    }
    /// Walks the whole pool and verifies every checksum and invariant; read-only.
    ///
    /// # Errors
    /// [`Error::Pool`] if the pool cannot be read; the report lists damage.
    fn check(&self) -> Result<CheckReport, Error>;
    /// Runs space reclamation to its end now (it also runs by itself). Returns the bytes freed.
    ///
    /// # Errors
    /// [`Error::Pool`].
    fn reclaim(&self) -> Result<u64, Error>;
    /// The pool in whose image values lie that peers may read by themselves, which never gives room back.
    /// Whoever may read an extent of it may read everything that any client may, and what was removed
    /// lately. `None`: the engine places no values, or was not asked to keep its room
    /// ([`Options::keep_room`](crate::Options)), or the medium is not memory.
    fn readable(&self) -> Option<Arc<Pool>> {
        None
    }
    /// The pool in whose image the places of loans lie; `None`: the engine lends nothing
    /// ([`Options::lend_bytes`](crate::Options)).
    fn lender(&self) -> Option<Arc<Pool>> {
        None
    }
    /// Lends room for a value of so many bytes of `key`, into which somebody writes it without a thread of
    /// this process. `None`: such a value has no room of its own, or enough is lent, or too little is free.
    /// In the pool nothing changes: after a crash the room of a loan is free.
    fn lend(&self, key: &[u8], bytes: u64) -> Option<Loan> {
        let _ = (key, bytes);
        None
    }
    /// Ends a loan: what was not adopted is free again. Nobody must be able to write there any more: the
    /// keys of that memory and the connections over which they were used are gone.
    fn take_back(&self, loan: Loan) {
        drop(loan);
    }
    /// Stops background work, makes everything durable, marks the pool clean.
    ///
    /// # Errors
    /// [`Error::Pool`].
    fn close(&self) -> Result<(), Error>;
}

/// A recovered engine whose background work has not started yet.
pub(crate) trait Recovered: Engine {
    /// Starts the background threads.
    fn start(self: Arc<Self>);
    /// The missing data, if the store was salvaged.
    fn damage(&self) -> Option<&Arc<Damage>>;
    /// Adds what only the engine knows of its pool: fields, blocks by kind, the map of space.
    fn describe(&self, inspection: &mut Inspection);
    /// Runs one round of the background threads' work; `cursor` is that of the sweep of expired keys.
    ///
    /// # Errors
    /// Those that the threads would meet.
    #[cfg(feature = "lab")]
    fn tend(self: Arc<Self>, cursor: &mut u64) -> Result<(), Error>;
    /// The work of the background threads, one job for each kind.
    #[cfg(feature = "lab")]
    fn jobs(self: Arc<Self>) -> Vec<crate::engine::jobs::Job>;
    /// Reads the clock: what has expired by then stays expired, even if the clock goes back.
    #[cfg(feature = "lab")]
    fn see_clock(&self);
    /// How the engine uses the pool's room.
    #[cfg(feature = "lab")]
    fn space(&self) -> crate::engine::jobs::Space;
}

/// Refuses an invalid key.
///
/// # Errors
/// [`Error::KeyLength`].
#[inline]
pub(crate) fn check_key(key: &[u8]) -> Result<(), Error> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyLength(key.len()));
    }
    Ok(())
}

/// Refuses an invalid value.
///
/// # Errors
/// [`Error::ValueLength`].
#[inline]
pub(crate) fn check_value(value: &[u8]) -> Result<(), Error> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::ValueLength(value.len()));
    }
    Ok(())
}
