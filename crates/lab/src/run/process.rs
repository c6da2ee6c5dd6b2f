//! A process of the lab: a pool and its engine, opened from an image, driven call by call, killed.

use super::schedule::linger;
use crate::judge::history::State;
use crate::medium::image::{Image, Medium};
use crate::plan::call::{Call, Exec, Held, Key, Outcome, Part, Reach, word_of};
use crate::plan::profile::Profile;
use crate::plan::{CLOCK_START, Plan};
use everdram::engine::{BatchOp, Change, EngineSession, Scope, Transaction};
use everdram::lab::Opened;
use everdram::landing::PAGE_BYTES;
use everdram::options::Loading;
use everdram::{EngineKind, Error, Options, Ticket};
use everdram_pm::Pool;
use everdram_pm::lab::{self, Seed, Tap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a pool with a data file has for metadata, besides.
const METADATA_BYTES: u64 = 192 << 10;
/// Pages of the landing area, where there is one: few, so that they are given again.
const LANDING_PAGES: u64 = 4;
/// Bytes of blocks that may be lent at once.
const LEND_BYTES: u64 = 16 << 10;

/// A clock that only moves when it is asked to. It may be set back, as clocks of machines are; what had
/// expired before stays expired.
#[derive(Clone, Debug)]
pub struct LabClock(Arc<Times>);

#[derive(Debug)]
struct Times {
    latest: AtomicU64,
    shown: AtomicU64,
}

impl LabClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn new(now: u64) -> LabClock {
        LabClock(Arc::new(Times {
            latest: AtomicU64::new(now),
            shown: AtomicU64::new(now),
        }))
    }

    /// The latest that it ever showed.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.0.latest.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub fn set(&self, now: u64) {
        self.0.latest.store(now, Ordering::Relaxed);
        self.0.shown.store(now, Ordering::Relaxed);
    }

    /// Shows a time that is `by` earlier, until the clock is set again.
    fn set_back(&self, by: u64) {
        self.0.shown.fetch_sub(by, Ordering::Relaxed);
    }

    fn as_option(&self) -> everdram::options::Clock {
        let clock = self.clone();
        Arc::new(move || clock.0.shown.load(Ordering::Relaxed))
    }
}

/// How pools of a profile are made and opened.
#[derive(Clone)]
pub struct Environment {
    /// The engine.
    pub engine: EngineKind,
    /// The kind of workload.
    pub profile: Profile,
    /// The medium.
    pub medium: Medium,
    /// Its options, the clock included.
    pub options: Options,
    /// Its clock.
    pub clock: LabClock,
    /// Breaks the write-ahead rule of the redo log: a test shows that the lab notices.
    pub break_write_ahead: bool,
}

impl Environment {
    /// An environment with a clock of its own.
    #[must_use]
    pub fn new(engine: EngineKind, profile: Profile, medium: Medium) -> Environment {
        let clock = LabClock::new(CLOCK_START);
        let mut options = profile.options();
        options.engine = Some(engine);
        options.clock = Some(clock.as_option());
        if engine == EngineKind::Dstore {
            // Of the pool, a copy of all metadata, and room for a checkpoint of the longest key.
            options.max_bytes += METADATA_BYTES;
        }
        if profile == Profile::Remote && medium == Medium::Pmem {
            options.landing_bytes = LANDING_PAGES * PAGE_BYTES;
            (options.keep_room, options.lend_bytes) = (true, LEND_BYTES);
            options.max_bytes += (LANDING_PAGES + 1) * PAGE_BYTES;
        }
        if engine == EngineKind::Tiered {
            // Nearly every record leaves the pool as soon as its block is full. With more room there is some
            // for what comes back by a read.
            options.tiered.free = if profile == Profile::Tiers { 0.6 } else { 0.9 };
            options.tiered.garbage = 0.3;
            options.tiered.segment_bytes = 4 << 10;
        }
        Environment {
            engine,
            profile,
            medium,
            options,
            clock,
            break_write_ahead: false,
        }
    }

    /// The environment of a plan.
    #[must_use]
    pub fn of(plan: &Plan) -> Environment {
        Environment::new(plan.engine, plan.profile, plan.medium)
    }

    /// The same with another clock, for another thread.
    #[must_use]
    pub fn apart(&self) -> Environment {
        let mut apart = self.clone();
        apart.clock = LabClock::new(self.clock.now());
        apart.options.clock = Some(apart.clock.as_option());
        apart
    }

    /// The image of a new pool.
    ///
    /// # Errors
    /// The options do not fit.
    pub fn create(&self, seed: u64) -> Result<Image, Error> {
        let (engine, geometry) = everdram::lab::identity(&self.options)?;
        Ok(match self.medium {
            Medium::Pmem => Image::of_memory(lab::create(Seed(seed), engine, geometry)?),
            Medium::File => Image::of_files(lab::create_files(Seed(seed), engine, geometry)?),
        })
    }
}

/// An open pool with its engine.
pub struct Process {
    /// How it was opened.
    pub environment: Environment,
    /// The pool.
    pub pool: Arc<Pool>,
    /// The engine.
    pub opened: Opened,
    /// Its files. A pool on memory has none.
    disk: Arc<lab::Disk>,
}

/// Who is called for each event of a process.
#[derive(Clone, Default)]
pub struct Observers {
    /// Stores, flushes, fences.
    pub tap: Option<Arc<dyn Tap>>,
    /// Writes and syncs of files.
    pub disk: Option<Arc<dyn lab::DiskTap>>,
}

impl Process {
    /// Moves the clock on, and sometimes back again after the engine has looked at it. Returns the latest
    /// time that it showed.
    pub(crate) fn advance(&self, by: u64) -> u64 {
        let clock = &self.environment.clock;
        clock.set(clock.now() + by);
        self.opened.see_clock();
        if by.is_multiple_of(3) {
            clock.set_back(by);
        }
        clock.now()
    }

    /// Opens what a crash left, with the code that opens every pool, and recovers the engine.
    ///
    /// # Errors
    /// What recovery says of the image.
    pub fn open(
        environment: &Environment,
        image: Image,
        observers: &Observers,
    ) -> Result<Process, Error> {
        let disk = Arc::new(lab::Disk::new(image.files, observers.disk.clone()));
        Process::on(environment, image.memory, disk, observers)
    }

    fn on(
        environment: &Environment,
        memory: Option<Vec<u8>>,
        disk: Arc<lab::Disk>,
        observers: &Observers,
    ) -> Result<Process, Error> {
        let capacity = environment.options.max_bytes;
        let pool = match memory {
            Some(bytes) => lab::open_beside(&bytes, capacity, observers.tap.clone(), &disk)?,
            None => {
                let options = lab::FileOptions {
                    capacity,
                    log_bytes: environment.profile.log_segments() * SEGMENT_BYTES,
                    segment_bytes: SEGMENT_BYTES,
                    durability: everdram::Durability::Always,
                    break_write_ahead: environment.break_write_ahead,
                };
                lab::open_files(&disk, &options, observers.tap.clone())?
            }
        };
        let mut environment = environment.clone();
        if environment.engine == EngineKind::Tiered && is_drawn(&pool) {
            // Such a process reads all of both tiers before it answers, and no checkpoint.
            environment.options.tiered.loading = Loading::AtOpen;
        }
        Ok(Process {
            opened: everdram::lab::open(Arc::clone(&pool), &environment.options)?,
            environment,
            pool,
            disk,
        })
    }

    /// The next process after a kill. It finds everything that this one wrote, since caches outlive a
    /// process; `left` is the memory if it died earlier. The disk is the same, and its files keep their
    /// numbers.
    ///
    /// # Errors
    /// What recovery says of it.
    pub fn reopened(&self, left: Option<Vec<u8>>, observers: &Observers) -> Result<Process, Error> {
        let memory = left.or_else(|| self.memory());
        Process::on(&self.environment, memory, Arc::clone(&self.disk), observers)
    }

    /// The contents of memory, where memory outlives the process.
    fn memory(&self) -> Option<Vec<u8>> {
        let is_kept = self.environment.medium == Medium::Pmem;
        is_kept.then(|| self.pool.region().snapshot())
    }

    /// What a kill leaves: everything that the process wrote, since caches outlive it.
    #[must_use]
    pub fn killed(&self) -> Image {
        Image {
            memory: self.memory(),
            files: self.disk.files(),
        }
    }

    /// Writes a checkpoint of the index, if the profile has them, and one of the redo log.
    ///
    /// # Errors
    /// No room, or a failed disk.
    pub fn checkpoint(&self) -> Result<(), Error> {
        if self.environment.options.checkpoint_bytes > 0 {
            self.opened.engine().checkpoint()?;
        }
        self.pool.checkpoint().map_err(Error::from)
    }

    /// A session.
    ///
    /// # Errors
    /// Too many.
    pub fn session(&self) -> Result<Box<dyn EngineSession>, Error> {
        self.opened.engine().session()
    }

    /// What the keys hold, read one by one. `number` maps bytes to the number of a value, and bytes that were
    /// never stored to `None`.
    ///
    /// # Errors
    /// A key cannot be read, or holds what was never stored.
    pub fn state(
        &self,
        session: &mut dyn EngineSession,
        number: impl Fn(&[u8]) -> Option<u32>,
    ) -> Result<State, String> {
        let profile = self.environment.profile;
        let mut state = State::with_capacity(profile.keys());
        let mut value = Vec::new();
        for key in 0..profile.keys() {
            value.clear();
            let found = session
                .get(&profile.key(key as u8), &mut value)
                .map_err(|error| format!("key {key} cannot be read: {error}"))?;
            state.push(match found {
                None => None,
                Some(found) => match number(&value) {
                    Some(number) => Some((number, found.expires_at_ms)),
                    None => {
                        return Err(format!(
                            "key {key} holds {} bytes that nobody stored there: {:02x?}",
                            value.len(),
                            &value[..value.len().min(32)]
                        ));
                    }
                },
            });
        }
        self.shows_in_order(session, &state)?;
        Ok(state)
    }

    /// Where there is an order, a range over all keys must show those that reads have found, and no others.
    fn shows_in_order(&self, session: &mut dyn EngineSession, state: &State) -> Result<(), String> {
        let all = [0, self.environment.profile.keys() as Key - 1];
        let visited = match range(self.environment.profile, session, all, 0) {
            Err(Error::Unordered) => return Ok(()),
            Ok(Outcome::Visited(visited)) => visited,
            other => return Err(format!("a range over all keys: {other:?}")),
        };
        let found = visited.iter().map(|&(key, _, expires)| (key, expires));
        let held = (0..)
            .zip(state)
            .filter_map(|(key, held)| Some((key, (*held)?.1)));
        match found.clone().eq(held.clone()) {
            true => Ok(()),
            false => Err(format!(
                "a range shows the keys {:?}, and reads find {:?}",
                found.collect::<Vec<_>>(),
                held.collect::<Vec<_>>()
            )),
        }
    }
}

/// Whether this opening of a pool is one of a few that are to be different.
fn is_drawn(pool: &Pool) -> bool {
    let drawn = pool.secret().sum_words([pool.incarnation(), 0, 0]);
    drawn.is_multiple_of(4)
}

/// Bytes of a segment of the redo log: a few blocks, so that logs wrap.
const SEGMENT_BYTES: u64 = 8 << 10;

/// The values of a run, by number.
pub trait Numbers {
    /// The bytes of a value.
    fn bytes(&self, number: u32) -> Vec<u8>;
    /// The number of the value with these bytes; a new number if they were never stored.
    fn number(&self, bytes: &[u8]) -> u32;
}

/// Makes one call of a session and waits until its answer may be shown. Calls about the whole store and
/// pipelines are made elsewhere.
///
/// # Errors
/// Those of the engine. A full pool is an outcome and no error.
pub fn perform(
    profile: Profile,
    session: &mut dyn EngineSession,
    call: &Call,
    numbers: &dyn Numbers,
) -> Result<Outcome, Error> {
    match attempt(profile, session, call, numbers) {
        Err(Error::NoSpace(_)) => {
            let ticket = session.commit()?;
            session.wait(ticket)?;
            Ok(Outcome::NoRoom)
        }
        other => other,
    }
}

fn attempt(
    profile: Profile,
    session: &mut dyn EngineSession,
    call: &Call,
    numbers: &dyn Numbers,
) -> Result<Outcome, Error> {
    let outcome = match call {
        Call::Put(key, value, expires) | Call::Remote(key, value, expires, _) => {
            let (key, value) = (profile.key(*key), numbers.bytes(*value));
            let (new, _) = session.put_now(&key, &value, *expires)?;
            Outcome::Was(!new)
        }
        Call::Get(key) => {
            let mut value = Vec::new();
            let found = session.get(&profile.key(*key), &mut value)?;
            Outcome::Value(found.map(|_| numbers.number(&value)))
        }
        Call::Delete(key) => Outcome::Was(session.delete(&profile.key(*key))?),
        Call::Swap(key, value) => {
            let mut before = None;
            let new = numbers.bytes(*value);
            session.modify(&profile.key(*key), &mut |current, buffer| {
                before = current.map(|current| numbers.number(current.value));
                buffer.extend_from_slice(&new);
                Change::Put { expires_at_ms: 0 }
            })?;
            Outcome::Value(before)
        }
        Call::Take(key) => {
            let mut before = None;
            session.modify(&profile.key(*key), &mut |current, _| {
                before = current.map(|current| numbers.number(current.value));
                match current {
                    Some(_) => Change::Delete,
                    None => Change::Keep,
                }
            })?;
            Outcome::Value(before)
        }
        Call::Append(key, value) => {
            let value = numbers.bytes(*value);
            Outcome::Length(session.append(&profile.key(*key), &value)? as u64)
        }
        Call::Overwrite(key, at, value) => {
            let value = numbers.bytes(*value);
            Outcome::Length(session.write_range(&profile.key(*key), u64::from(*at), &value)?)
        }
        Call::Cut(key, length) => {
            Outcome::Word(session.set_len(&profile.key(*key), u64::from(*length))?)
        }
        Call::Part(key, at, count) => {
            let mut part = Vec::new();
            let [at, count] = [*at, *count].map(u64::from);
            let found = session.read_range(&profile.key(*key), at, count, &mut part)?;
            Outcome::Value(found.map(|_| numbers.number(&part)))
        }
        Call::Many(keys) => {
            let names: Vec<Vec<u8>> = keys.iter().map(|&key| profile.key(key)).collect();
            let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
            let (mut bytes, mut found) = (Vec::new(), Vec::new());
            session.get_many(&names, &mut bytes, &mut found)?;
            let mut begin = 0;
            let held = found.iter().map(|(found, end)| {
                let value = &bytes[std::mem::replace(&mut begin, *end)..*end];
                found.map(|found| (numbers.number(value), found.expires_at_ms))
            });
            Outcome::Several(held.collect())
        }
        Call::Probe(key) => {
            let found = session.probe(&profile.key(*key))?;
            Outcome::Size(found.map(|(found, bytes)| (bytes, found.expires_at_ms)))
        }
        Call::Scan(events) => scan(profile, session, *events)?,
        Call::Range(from, to, events) => range(profile, session, [*from, *to], *events)?,
        Call::RandomKey => {
            let mut name = Vec::new();
            let is_there = session.random_key(&mut name)?;
            Outcome::Key(is_there.then(|| known(profile, &name)))
        }
        Call::Guarded(key, value, events) => {
            guarded(profile, session, (*key, *value, *events), numbers)?
        }
        Call::Exec(exec) => transaction(profile, session, exec, numbers)?,
        Call::Add(key, by) => {
            let key = profile.key(*key);
            // An engine may log the new word, or what is added to it: both ways are used.
            let at = word_of(*by);
            let before = match by % 2 {
                0 => session.update_word(&key, at, &mut |word| word.wrapping_add(*by)),
                _ => {
                    let after = session.increment(&key, at, *by);
                    after.map(|word| word.map(|word| word.wrapping_sub(*by)))
                }
            };
            match before {
                Err(Error::WordOutside { .. }) => Outcome::Word(None),
                other => Outcome::Word(other?),
            }
        }
        Call::Batch(parts) => {
            let parts: Vec<_> = parts
                .iter()
                .map(|&(key, value)| (profile.key(key), value.map(|value| numbers.bytes(value))))
                .collect();
            let ops: Vec<BatchOp<'_>> = parts
                .iter()
                .map(|(key, value)| match value {
                    Some(value) => BatchOp::Put {
                        key,
                        value,
                        expires_at_ms: 0,
                    },
                    None => BatchOp::Delete { key },
                })
                .collect();
            let ticket = session.batch(&ops)?;
            session.wait(ticket)?;
            Outcome::Done
        }
        Call::Turn(times) => {
            for _ in 0..*times {
                session.turn()?;
            }
            Outcome::Done
        }
        Call::Clear => {
            let ticket = session.clear()?;
            session.wait(ticket)?;
            Outcome::Done
        }
        _ => Outcome::Done,
    };
    let ticket = session.commit()?.max(session.last_read());
    session.wait(ticket)?;
    Ok(outcome)
}

/// The number of a key by its name.
fn known(profile: Profile, name: &[u8]) -> Key {
    let mut keys = 0..profile.keys() as Key;
    let key = keys.find(|&key| profile.key(key) == name);
    key.unwrap_or_else(|| panic!("it names a key that nobody stored: {name:02x?}"))
}

/// Keys of one step of a scan.
const SCANNED: usize = 2;

fn scan(profile: Profile, session: &mut dyn EngineSession, events: u32) -> Result<Outcome, Error> {
    let mut visited = Vec::new();
    let (mut cursor, mut seen) = (0, Ticket::NONE);
    loop {
        cursor = session.scan(cursor, SCANNED, &mut |name, bytes, expires| {
            visited.push((known(profile, name), bytes, expires));
            linger(events);
        })?;
        seen = seen.max(session.last_read());
        if cursor == 0 {
            session.wait(seen)?;
            return Ok(Outcome::Visited(visited));
        }
    }
}

/// See [`Call::Range`].
fn range(
    profile: Profile,
    session: &mut dyn EngineSession,
    ends: [Key; 2],
    events: u32,
) -> Result<Outcome, Error> {
    let [first, last] = ends.map(|key| profile.key(key));
    let mut visited: Vec<(Key, u64, u64)> = Vec::new();
    let (mut from, mut seen) = (Bound::Included(first), Ticket::NONE);
    loop {
        let (begin, end) = (from.as_ref().map(Vec::as_slice), Bound::Included(&last[..]));
        let next = session.range(begin, end, SCANNED, &mut |name, bytes, expires| {
            let key = known(profile, name);
            let is_above = visited.last().is_none_or(|&(before, ..)| before < key);
            assert!(is_above, "a range shows keys out of order, or twice");
            visited.push((key, bytes, expires));
            linger(events);
        })?;
        seen = seen.max(session.last_read());
        let Some(next) = next else {
            session.wait(seen)?;
            return Ok(Outcome::Visited(visited));
        };
        from = Bound::Excluded(next);
    }
}

/// See [`Call::Guarded`].
fn guarded(
    profile: Profile,
    session: &mut dyn EngineSession,
    (key, value, events): (Key, u32, u32),
    numbers: &dyn Numbers,
) -> Result<Outcome, Error> {
    let (name, value) = (profile.key(key), numbers.bytes(value));
    let watched = session.watch(&name);
    let mut bytes = Vec::new();
    let found = session.get(&name, &mut bytes)?;
    let seen = found.map(|found| (bytes.clone(), found.expires_at_ms));
    let ticket = session.last_read();
    session.wait(ticket)?;
    linger(events);
    let mut is_same = false;
    let ticket = session.transaction(Scope::Keys(&[&name]), &mut |transaction| {
        is_same = transaction.watch(&name)? == watched;
        if is_same {
            transaction.put(&name, &value, 0)?;
        }
        Ok(())
    })?;
    session.wait(ticket)?;
    if !is_same {
        return Ok(Outcome::Declined);
    }
    let held: Held = seen.map(|(bytes, expires)| (numbers.number(&bytes), expires));
    Ok(Outcome::Several(vec![held]))
}

/// See [`Call::Exec`].
fn transaction(
    profile: Profile,
    session: &mut dyn EngineSession,
    exec: &Exec,
    numbers: &dyn Numbers,
) -> Result<Outcome, Error> {
    let named = exec
        .reads
        .iter()
        .chain(exec.parts.iter().map(|(key, _)| key));
    let names: Vec<Vec<u8>> = named.map(|&key| profile.key(key)).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let scope = match exec.reach {
        Reach::Named => Scope::Keys(&names),
        Reach::All | Reach::Cleared => Scope::All,
    };
    let mut held: Vec<Held> = Vec::new();
    let ticket = session.transaction(scope, &mut |transaction| {
        held.clear();
        for &key in &exec.reads {
            let mut bytes = Vec::new();
            let found = transaction.get(&profile.key(key), &mut bytes)?;
            held.push(found.map(|found| (numbers.number(&bytes), found.expires_at_ms)));
        }
        linger(exec.linger);
        if exec.reach != Reach::Named {
            shows_all_at_once(profile, transaction)?;
        }
        let (before, after) = exec.around_clear();
        stage(profile, transaction, before, numbers)?;
        if exec.reach == Reach::Cleared {
            transaction.clear()?;
            for &name in &names {
                let left = transaction.get(name, &mut Vec::new())?;
                assert!(left.is_none(), "a transaction sees what it has removed");
            }
        }
        stage(profile, transaction, after, numbers)
    })?;
    session.wait(ticket)?;
    Ok(Outcome::Several(held))
}

/// Inside a transaction over all keys, an iteration must agree with looking up each key: no other session can
/// change them meanwhile.
fn shows_all_at_once(profile: Profile, transaction: &mut dyn Transaction) -> Result<(), Error> {
    let mut visited = Vec::new();
    let mut cursor = 0;
    loop {
        cursor = transaction.scan(cursor, SCANNED, &mut |name, bytes, expires| {
            visited.push((name.to_vec(), bytes, expires));
        })?;
        if cursor == 0 {
            break;
        }
    }
    visited.sort_unstable();
    visited.dedup();
    let mut there = Vec::new();
    for key in 0..profile.keys() as Key {
        let (name, mut value) = (profile.key(key), Vec::new());
        if let Some(found) = transaction.get(&name, &mut value)? {
            there.push((name, value.len() as u64, found.expires_at_ms));
        }
    }
    there.sort_unstable();
    assert_eq!(
        visited, there,
        "a transaction over all keys is shown others by an iteration"
    );
    Ok(())
}

/// Stages puts and removals in a transaction, and checks that it reads its own writes.
fn stage(
    profile: Profile,
    transaction: &mut dyn Transaction,
    parts: &[Part],
    numbers: &dyn Numbers,
) -> Result<(), Error> {
    for &(key, value) in parts {
        let name = profile.key(key);
        match value {
            Some(value) => transaction.put(&name, &numbers.bytes(value), 0)?,
            None => drop(transaction.delete(&name)?),
        }
        let mut bytes = Vec::new();
        let found = transaction.get(&name, &mut bytes)?;
        let is_own = match value {
            Some(value) => found.is_some() && bytes == numbers.bytes(value),
            None => found.is_none(),
        };
        assert!(
            is_own,
            "a transaction does not see what it has written itself"
        );
    }
    Ok(())
}
