//! Locks of names with leases (`olock`, section 4.5; hole D9).
//!
//! The paper logs a lock as a no-op record, which is never committed if its holder dies, and keeps the log
//! from being reclaimed. Here a lock is an entry of a table in DRAM, and ends with its lease: a holder that
//! forgets it, or dies, holds nobody up for longer.
//!
//! A write is registered while it runs, so that a lock is granted only once earlier writes have ended. Names
//! are known by a hash of 64 bits: two names that share one, which nobody will see, would lock each other.

use crate::error::Error;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SHARDS: usize = 64;

/// A lock that was granted. It ends with its lease; dropping it does not end it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a lock is given back with `Bucket::unlock`"]
pub struct Lock {
    name: u64,
    /// Of the grant: nobody else's lock has it.
    number: u64,
    until: Instant,
}

impl Lock {
    pub(super) fn is_of(&self, name: u64) -> bool {
        self.name == name
    }

    /// Whether its lease is over.
    fn has_ended(&self) -> bool {
        self.until <= Instant::now()
    }

    /// As the bucket keeps it.
    pub(super) fn copy(&self) -> Lock {
        Lock { ..*self }
    }
}

/// All locks of a store, and who is writing.
pub(crate) struct Locks {
    shards: [Shard; SHARDS],
    hasher: RandomState,
    /// Of buckets and of grants.
    numbers: AtomicU64,
}

#[derive(Default)]
struct Shard {
    names: Mutex<HashMap<u64, Entry>>,
    changed: Condvar,
}

/// A name that is locked, or being written.
#[derive(Default)]
struct Entry {
    granted: Option<Granted>,
    writers: u32,
}

struct Granted {
    owner: u64,
    number: u64,
    until: Instant,
}

/// A write under way.
pub(super) struct Writing<'l> {
    shard: &'l Shard,
    name: u64,
}

impl Default for Locks {
    fn default() -> Locks {
        Locks {
            shards: std::array::from_fn(|_| Shard::default()),
            hasher: RandomState::new(),
            numbers: AtomicU64::new(1),
        }
    }
}

impl Locks {
    /// A number for a bucket.
    pub(super) fn next_owner(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The number by which a name is known.
    pub(super) fn number_of(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }

    fn shard(&self, name: &[u8]) -> (&Shard, u64) {
        let hash = self.number_of(name);
        (self.of(hash), hash)
    }

    fn of(&self, hash: u64) -> &Shard {
        &self.shards[hash as usize % SHARDS]
    }

    /// See [`super::Bucket::lock`].
    pub(super) fn lock(
        &self,
        name: &[u8],
        owner: u64,
        wait: Duration,
        lease: Duration,
    ) -> Result<Lock, Error> {
        let (shard, name) = self.shard(name);
        let patience = Instant::now().checked_add(wait);
        let mut names = shard.names.lock();
        loop {
            let now = Instant::now();
            let entry = names.entry(name).or_default();
            let other = entry
                .granted
                .as_ref()
                .filter(|granted| granted.owner != owner);
            let held = other
                .map(|granted| granted.until)
                .filter(|until| *until > now);
            if held.is_none() && entry.writers == 0 {
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                // A lease that ends after the clock does ends in a century.
                let century = Duration::from_secs(100 * 365 * 86_400);
                let until = now.checked_add(lease).unwrap_or(now + century);
                entry.granted = Some(Granted {
                    owner,
                    number,
                    until,
                });
                return Ok(Lock {
                    name,
                    number,
                    until,
                });
            }
            let patience = patience.unwrap_or(now + Duration::from_secs(1));
            if patience <= now {
                forget(&mut names, name);
                return Err(Error::ObjectLocked);
            }
            let until = held.map_or(patience, |held| held.min(patience));
            shard.changed.wait_until(&mut names, until);
        }
    }

    /// See [`super::Bucket::unlock`].
    pub(super) fn unlock(&self, lock: &Lock) {
        let shard = self.of(lock.name);
        let mut names = shard.names.lock();
        if let Some(entry) = names.get_mut(&lock.name)
            && entry
                .granted
                .as_ref()
                .is_some_and(|granted| granted.number == lock.number)
        {
            entry.granted = None;
            forget(&mut names, lock.name);
            shard.changed.notify_all();
        }
    }

    /// Gives all locks of a bucket back.
    pub(super) fn drop_all(&self, owner: u64) {
        for shard in &self.shards {
            let mut names = shard.names.lock();
            for entry in names.values_mut() {
                if entry
                    .granted
                    .as_ref()
                    .is_some_and(|granted| granted.owner == owner)
                {
                    entry.granted = None;
                }
            }
            names.retain(|_, entry| entry.is_needed());
            shard.changed.notify_all();
        }
    }

    /// Waits until no other bucket has the name locked: until the end of its lease at most. `held`: the lock
    /// of this bucket, which must still be in force.
    ///
    /// # Errors
    /// [`Error::LeaseEnded`].
    pub(super) fn begin_write(
        &self,
        name: &[u8],
        owner: u64,
        held: Option<&Lock>,
    ) -> Result<Writing<'_>, Error> {
        let (shard, name) = self.shard(name);
        let mut names = shard.names.lock();
        if let Some(held) = held {
            let entry = names.entry(name).or_default();
            let granted = entry.granted.as_ref();
            let is_in_force = granted.is_some_and(|granted| granted.number == held.number);
            if !is_in_force || held.has_ended() {
                forget(&mut names, name);
                return Err(Error::LeaseEnded);
            }
        }
        loop {
            let entry = names.entry(name).or_default();
            let other = entry
                .granted
                .as_ref()
                .filter(|granted| granted.owner != owner);
            let held = other.map(|granted| granted.until);
            let Some(until) = held.filter(|until| *until > Instant::now()) else {
                entry.writers += 1;
                return Ok(Writing { shard, name });
            };
            shard.changed.wait_until(&mut names, until);
        }
    }
}

impl Entry {
    fn is_needed(&self) -> bool {
        self.granted.is_some() || self.writers > 0
    }
}

/// Drops the entry of a name that is neither locked nor written.
fn forget(names: &mut MutexGuard<'_, HashMap<u64, Entry>>, name: u64) {
    if names.get(&name).is_some_and(|entry| !entry.is_needed()) {
        names.remove(&name);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut names = self.shard.names.lock();
        if let Some(entry) = names.get_mut(&self.name) {
            entry.writers -= 1;
            if entry.writers == 0 {
                self.shard.changed.notify_all();
            }
        }
        forget(&mut names, self.name);
    }
}
