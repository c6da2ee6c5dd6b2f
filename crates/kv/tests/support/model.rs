//! The model: a `BTreeMap` behind a mutex that answers as an engine must. Nothing in it is durable.
//!
//! Tests run the same operations against an engine and this, and compare; or put it behind a door, where the
//! engine does not matter. Its clarity is its only virtue. It knows of the store what is public, so that any
//! crate's tests can include this file.

use everdram::engine::{
    BatchOp, Change, Current, Engine, EngineSession, Found, KEY_BYTES_MAX, Modify, Scope, Ticket,
    Transaction, TransactionBody, VALUE_BYTES_MAX, Visit,
};
use everdram::options::Clock;
use everdram::stats::{CheckReport, Stats};
use everdram::{Durability, Error, Medium, Store};
use everdram_pm::Report;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

#[derive(Clone)]
struct Entry {
    value: Vec<u8>,
    version: u64,
    expires_at_ms: u64,
}

#[derive(Clone, Default)]
struct State {
    map: BTreeMap<Vec<u8>, Entry>,
    clock: u64,
    cursors: Vec<Vec<u8>>,
}

struct Model {
    state: Mutex<State>,
    now: Clock,
}

impl Model {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no caller panicked within a call")
    }
}

/// A store over the model, with this clock.
pub(crate) fn store(now: Clock) -> Store {
    let report = Report {
        uuid: [0; 16],
        medium: Medium::Emulated,
        why: "the model keeps everything in DRAM".into(),
        persist: "nothing".into(),
        durability: Durability::default(),
        latency: Duration::ZERO,
        acknowledgement: "nothing survives".into(),
        delay: None,
        data: None,
        data_delay: None,
    };
    let state = Mutex::default();
    Store::over(Arc::new(Model { state, now }), report)
}

fn check_key(key: &[u8]) -> Result<(), Error> {
    match key.len() {
        1..=KEY_BYTES_MAX => Ok(()),
        len => Err(Error::KeyLength(len)),
    }
}

fn check_value(value: &[u8]) -> Result<(), Error> {
    match value.len() {
        ..=VALUE_BYTES_MAX => Ok(()),
        len => Err(Error::ValueLength(len)),
    }
}

fn check_sizes(key: &[u8], value: &[u8]) -> Result<(), Error> {
    check_key(key)?;
    check_value(value)
}

impl State {
    fn live(&mut self, key: &[u8], now: u64) -> Option<&Entry> {
        if self
            .map
            .get(key)
            .is_some_and(|e| e.expires_at_ms != 0 && e.expires_at_ms <= now)
        {
            self.map.remove(key);
        }
        self.map.get(key)
    }
    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) {
        self.clock += 1;
        let entry = Entry {
            value: value.to_vec(),
            version: self.clock,
            expires_at_ms,
        };
        self.map.insert(key.to_vec(), entry);
    }
    fn delete(&mut self, key: &[u8], now: u64) -> bool {
        self.clock += 1;
        let was = self.live(key, now).is_some();
        self.map.remove(key);
        was
    }
    fn scan(&mut self, cursor: u64, count: usize, now: u64, visit: Visit<'_>) -> u64 {
        let from = match usize::try_from(cursor).ok().and_then(|c| c.checked_sub(1)) {
            None => Bound::Unbounded,
            Some(index) => self
                .cursors
                .get(index)
                .cloned()
                .map_or(Bound::Unbounded, Bound::Excluded),
        };
        let mut last = None;
        let mut seen = 0;
        for (key, entry) in self.map.range((from, Bound::Unbounded)) {
            if seen == count.max(1) {
                let next: Option<Vec<u8>> = last;
                self.cursors.extend(next);
                return self.cursors.len() as u64;
            }
            if entry.expires_at_ms == 0 || entry.expires_at_ms > now {
                visit(key, entry.value.len() as u64, entry.expires_at_ms);
                seen += 1;
            }
            last = Some(key.clone());
        }
        0
    }
    fn clear(&mut self) {
        self.clock += 1;
        self.map.clear();
    }
    fn watch(&mut self, key: &[u8], now: u64) -> u64 {
        let clock = self.clock;
        self.live(key, now)
            .map_or(clock << 1 | 1, |entry| entry.version << 1)
    }
}

fn found(entry: &Entry) -> Found {
    Found {
        version: entry.version,
        expires_at_ms: entry.expires_at_ms,
        ticket: Ticket::NONE,
    }
}

struct ModelSession(Arc<Model>);

struct ModelTransaction<'a> {
    before: State,
    state: State,
    keys: Option<&'a [&'a [u8]]>,
    now: u64,
}

impl ModelTransaction<'_> {
    fn declared(&self, key: &[u8]) -> Result<(), Error> {
        match self.keys {
            Some(keys) if !keys.contains(&key) => Err(Error::KeyNotLocked),
            _ => Ok(()),
        }
    }
}

impl Transaction for ModelTransaction<'_> {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        self.declared(key)?;
        let now = self.now;
        Ok(self.state.live(key, now).map(|entry| {
            into.extend_from_slice(&entry.value);
            found(entry)
        }))
    }
    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.declared(key)?;
        check_sizes(key, value)?;
        self.state.put(key, value, expires_at_ms);
        Ok(())
    }
    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.declared(key)?;
        let now = self.now;
        Ok(self.state.delete(key, now))
    }
    fn watch(&mut self, key: &[u8]) -> Result<u64, Error> {
        self.declared(key)?;
        Ok(self.before.watch(key, self.now))
    }
    fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error> {
        if self.keys.is_some() {
            return Err(Error::KeyNotLocked);
        }
        let next = self.before.scan(cursor, count, self.now, visit);
        self.state.cursors.clone_from(&self.before.cursors);
        Ok(next)
    }
    fn len(&mut self) -> u64 {
        self.before.map.len() as u64
    }
    fn clear(&mut self) -> Result<(), Error> {
        if self.keys.is_some() {
            return Err(Error::KeyNotLocked);
        }
        self.state.clear();
        Ok(())
    }
}

impl EngineSession for ModelSession {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        check_sizes(key, b"")?;
        let now = (self.0.now)();
        Ok(self.0.state().live(key, now).map(|entry| {
            into.extend_from_slice(&entry.value);
            found(entry)
        }))
    }
    fn probe(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        check_sizes(key, b"")?;
        let now = (self.0.now)();
        let mut state = self.0.state();
        let entry = state.live(key, now);
        Ok(entry.map(|entry| (found(entry), entry.value.len() as u64)))
    }
    fn last_read(&self) -> Ticket {
        Ticket::NONE
    }
    fn get_many(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        results: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        let now = (self.0.now)();
        let mut state = self.0.state();
        for key in keys {
            check_sizes(key, b"")?;
            let one = state.live(key, now).map(|entry| {
                into.extend_from_slice(&entry.value);
                found(entry)
            });
            results.push((one, into.len()));
        }
        Ok(())
    }
    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.put_now(key, value, expires_at_ms).map(|_| ())
    }
    fn put_now(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
    ) -> Result<(bool, Ticket), Error> {
        check_sizes(key, value)?;
        let now = (self.0.now)();
        let mut state = self.0.state();
        let new = state.live(key, now).is_none();
        state.put(key, value, expires_at_ms);
        Ok((new, Ticket::NONE))
    }
    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        check_sizes(key, b"")?;
        let now = (self.0.now)();
        Ok(self.0.state().delete(key, now))
    }
    fn modify(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error> {
        check_sizes(key, b"")?;
        let now = (self.0.now)();
        let mut state = self.0.state();
        let mut out = Vec::new();
        let current = state.live(key, now).map(|entry| Current {
            value: &entry.value,
            version: entry.version,
            expires_at_ms: entry.expires_at_ms,
        });
        match decide(current, &mut out) {
            Change::Keep => {}
            Change::Put { expires_at_ms } => {
                check_sizes(key, &out)?;
                state.put(key, &out, expires_at_ms);
            }
            Change::Delete => {
                state.delete(key, now);
            }
        }
        Ok(())
    }
    fn update_word(
        &mut self,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        let (mut before, mut len) = (None, None);
        self.modify(key, &mut |current, out| {
            let Some(current) = current else {
                return Change::Keep;
            };
            out.extend_from_slice(current.value);
            len = Some(out.len());
            let Some(word) = out
                .get_mut(at..)
                .and_then(|rest| rest.first_chunk_mut::<8>())
            else {
                return Change::Keep;
            };
            if !at.is_multiple_of(8) {
                return Change::Keep;
            }
            let old = u64::from_le_bytes(*word);
            *word = change(old).to_le_bytes();
            before = Some(old);
            Change::Put {
                expires_at_ms: current.expires_at_ms,
            }
        })?;
        match (before, len) {
            (None, Some(len)) => Err(Error::WordOutside { at, len }),
            (before, _) => Ok(before),
        }
    }
    // Not by way of `modify` and `update_word`: engines may have inherited that, and are compared with this.
    fn append(&mut self, key: &[u8], suffix: &[u8]) -> Result<usize, Error> {
        check_key(key)?;
        let now = (self.0.now)();
        let mut state = self.0.state();
        let (mut value, expires_at_ms) = match state.live(key, now) {
            Some(entry) => (entry.value.clone(), entry.expires_at_ms),
            None => (Vec::new(), 0),
        };
        value.extend_from_slice(suffix);
        check_value(&value)?;
        state.put(key, &value, expires_at_ms);
        Ok(value.len())
    }
    fn increment(&mut self, key: &[u8], at: usize, by: u64) -> Result<Option<u64>, Error> {
        check_key(key)?;
        let now = (self.0.now)();
        let mut state = self.0.state();
        let Some(mut entry) = state.live(key, now).cloned() else {
            return Ok(None);
        };
        let len = entry.value.len();
        let (words, _) = entry.value.as_chunks_mut::<8>();
        match words.get_mut(at / 8).filter(|_| at.is_multiple_of(8)) {
            None => Err(Error::WordOutside { at, len }),
            Some(word) => {
                let after = u64::from_le_bytes(*word).wrapping_add(by);
                *word = after.to_le_bytes();
                state.put(key, &entry.value, entry.expires_at_ms);
                Ok(Some(after))
            }
        }
    }
    fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<Ticket, Error> {
        let now = (self.0.now)();
        for op in ops {
            match op {
                BatchOp::Put { key, value, .. } => check_sizes(key, value)?,
                BatchOp::Delete { key } => check_sizes(key, b"")?,
            }
        }
        let mut state = self.0.state();
        for op in ops {
            match *op {
                BatchOp::Put {
                    key,
                    value,
                    expires_at_ms,
                } => state.put(key, value, expires_at_ms),
                BatchOp::Delete { key } => {
                    state.delete(key, now);
                }
            }
        }
        Ok(Ticket::NONE)
    }
    fn transaction(
        &mut self,
        scope: Scope<'_>,
        body: TransactionBody<'_>,
    ) -> Result<Ticket, Error> {
        let now = (self.0.now)();
        let mut state = self.0.state();
        let keys = match scope {
            Scope::Keys(keys) => Some(keys),
            Scope::All => None,
        };
        let mut transaction = ModelTransaction {
            before: state.clone(),
            state: state.clone(),
            keys,
            now,
        };
        body(&mut transaction)?;
        *state = transaction.state;
        Ok(Ticket::NONE)
    }
    fn clear(&mut self) -> Result<Ticket, Error> {
        self.0.state().clear();
        Ok(Ticket::NONE)
    }
    fn commit(&mut self) -> Result<Ticket, Error> {
        Ok(Ticket::NONE)
    }
    fn wait(&mut self, _ticket: Ticket) -> Result<(), Error> {
        Ok(())
    }
    fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error> {
        let now = (self.0.now)();
        Ok(self.0.state().scan(cursor, count, now, visit))
    }
    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        into.clear();
        let now = (self.0.now)();
        let state = self.0.state();
        let mut live = state
            .map
            .iter()
            .filter(|(_, e)| e.expires_at_ms == 0 || e.expires_at_ms > now);
        let count = live.clone().count();
        if count == 0 {
            return Ok(false);
        }
        if let Some((key, _)) = live.nth(RandomState::new().hash_one(count) as usize % count) {
            into.extend_from_slice(key);
        }
        Ok(true)
    }
    fn watch(&mut self, key: &[u8]) -> u64 {
        let now = (self.0.now)();
        self.0.state().watch(key, now)
    }
}

impl Engine for Model {
    fn name(&self) -> &'static str {
        "model"
    }
    fn session(self: Arc<Self>) -> Result<Box<dyn EngineSession>, Error> {
        Ok(Box::new(ModelSession(self)))
    }
    fn durable(&self) -> Ticket {
        Ticket(u64::MAX)
    }
    fn request(&self, _ticket: Ticket) {}
    fn subscribe(&self, _advanced: Arc<dyn Fn() + Send + Sync>) {}
    fn committed(&self) -> Ticket {
        Ticket::NONE
    }
    fn len(&self) -> u64 {
        self.state().map.len() as u64
    }
    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }
    // Outside the library, statistics cannot be written out: the struct may get fields.
    #[allow(clippy::field_reassign_with_default)]
    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        stats.keys = self.len();
        stats
    }
    fn check(&self) -> Result<CheckReport, Error> {
        Ok(CheckReport::default())
    }
    fn reclaim(&self) -> Result<u64, Error> {
        Ok(0)
    }
    fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}
