//! A writer of a journal: it puts, removes, and cleans when it finds no room.

use super::change::Change;
use super::cursor::{Cursor, Entries};
use super::journal::{Journal, Volatile};
use super::ledger::Notes;
use super::log::Group;
use super::pass::{Back, Step};
use crate::concurrency::stripes::{Backoff, StripeId};
use crate::engine::limits::KEY_BYTES_MAX;
use crate::error::Error;
use everdram_pm::{Flushed, Lane};
use std::sync::atomic::Ordering;

/// Passes after which full logs, without any write meanwhile, will not gain room from another pass.
const PASSES_MAX: u32 = 3;
/// Passes after which a writer gives up if other writers take all room.
const PASSES_LOST_MAX: u32 = 200;

/// Writes a journal, for one thread.
pub struct Writer<'a, V> {
    journal: &'a Journal<V>,
    lane: Lane,
    /// The entry under construction.
    entry: Vec<u8>,
    cursor: Cursor,
    /// The log it used last.
    wanted: usize,
}

/// A held log. If its writer panics, the map may be behind the log.
struct HeldLog<'a, V> {
    journal: &'a Journal<V>,
    group: Option<Group>,
}

impl<V: Volatile> Journal<V> {
    /// A writer, for one thread.
    pub fn writer(&self) -> Writer<'_, V> {
        Writer::new(self)
    }
}

impl<V> Drop for HeldLog<'_, V> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.journal.halted.set("a writer panicked");
        }
        if let Some(group) = self.group.take() {
            self.journal.logs.end(group);
        }
    }
}

/// A held stripe.
struct HeldKey<'a, V> {
    journal: &'a Journal<V>,
    stripe: StripeId,
}

impl<V> Drop for HeldKey<'_, V> {
    fn drop(&mut self) {
        self.journal.stripes.unlock(self.stripe);
    }
}

impl<'a, V: Volatile> Writer<'a, V> {
    pub(super) fn new(journal: &'a Journal<V>) -> Writer<'a, V> {
        Writer {
            journal,
            lane: journal.pool.lane(),
            entry: Vec::new(),
            cursor: Cursor::new(0),
            wanted: 0,
        }
    }

    /// Sets the value of a key. On return the value is durable, and the map shows it.
    ///
    /// # Errors
    /// [`Error::KeyLength`]; [`Error::ValueLength`]: key, value and 48 bytes must fit into a 32nd of a log,
    /// and into 192 KiB; [`Error::NoSpace`]: the map is as large as its logs allow. [`Error::Pool`],
    /// [`Error::Halted`]: the next open decides whether the value is there.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.write(key, Some(value)).map(drop)
    }

    /// Removes a key; durable on return. Returns whether it existed.
    ///
    /// # Errors
    /// As [`Writer::put`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.write(key, None)
    }

    fn write(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<bool, Error> {
        let journal = self.journal;
        let mut change = Change {
            version: 0,
            key,
            value,
        };
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
            return Err(Error::KeyLength(key.len()));
        }
        if change.entry_bytes() > journal.logs.entry_most() {
            return Err(Error::ValueLength(value.unwrap_or(&[]).len()));
        }
        let most = match value {
            Some(_) => journal.logs.most(),
            None => journal.most_to_remove(),
        };
        let group = self.take_log(most)?;
        let mut log = HeldLog {
            journal,
            group: Some(group),
        };
        let held = HeldKey::new(journal, key);
        let was_there = journal.map().version(key).is_some();
        if value.is_none() && !was_there {
            return Ok(false);
        }
        change.version = journal.stripes.next_version(held.stripe);
        let flushed = self.append(&mut log, &change);
        journal.counts[self.wanted].fetch_add(1, Ordering::Relaxed);
        let ordered = self.lane.fence(flushed);
        let _durable = journal.pool.wait(ordered.lsn())?;
        journal.map().show(key, change.version, value);
        // Release the key first: a writer that waits for it holds another log.
        drop(held);
        Ok(was_there)
    }

    fn append(&mut self, log: &mut HeldLog<'_, V>, change: &Change<'_>) -> Flushed {
        let Some(group) = &mut log.group else {
            panic!("an entry is appended without a log");
        };
        change.write(&mut self.entry);
        let logs = &self.journal.logs;
        let (_, flushed) = logs.append(&mut self.lane, group, &mut self.entry, 1);
        flushed
    }

    /// Takes a log with room for an entry, if a log may hold `most` bytes. The writer holds nothing else.
    fn take_log(&mut self, most: u64) -> Result<Group, Error> {
        let journal = self.journal;
        let (mut backoff, mut seen) = (Backoff::new(), None);
        let (mut passes, mut idle) = (0, 0);
        loop {
            journal.healthy()?;
            if let Some(group) = journal.logs.begin_up_to(self.wanted, most) {
                // A writer that died with this log may have left entries that are not fenced.
                if let Err(error) = journal.healthy() {
                    journal.logs.end(group);
                    return Err(error);
                }
                self.wanted = group.log();
                return Ok(group);
            }
            let now = (journal.logs.reclaimed(), journal.written());
            if let Some((reclaimed, written)) = seen
                && reclaimed != now.0
            {
                passes += 1;
                idle = if written == now.1 { idle + 1 } else { 0 };
            }
            if seen.is_none_or(|(reclaimed, _)| reclaimed != now.0) {
                seen = Some(now);
            }
            let is_old = journal.oldest_epoch() < journal.logs.epoch();
            let is_enough = idle >= PASSES_MAX || passes >= PASSES_LOST_MAX;
            if is_enough && journal.logs.are_full() && !is_old {
                let (used, _) = journal.used_bytes();
                return Err(Error::NoSpace(format!(
                    "its logs hold {used} bytes of current entries; remove keys, or create a journal with longer logs"
                )));
            }
            match self.step() {
                Ok(Step::Worked | Step::Reclaimed(_)) => {}
                Ok(Step::Waiting | Step::Idle) => backoff.wait(),
                Err(error) => {
                    // Its log may hold copies that another try would copy again.
                    journal.halted.set(error.to_string());
                    return Err(error);
                }
            }
        }
    }

    /// One step of cleaning, if the logs are full.
    fn step(&mut self) -> Result<Step, Error> {
        let journal = self.journal;
        let mut cursor = std::mem::take(&mut self.cursor);
        let up_to = || journal.logs.are_full().then(|| journal.oldest_epoch());
        let step = journal.logs.step(self, &mut cursor, up_to);
        self.cursor = cursor;
        step
    }

    /// Takes this log, including the room that writers leave free.
    fn hold_log(&self, log: usize) -> HeldLog<'a, V> {
        let mut backoff = Backoff::new();
        loop {
            if let Some(group) = self.journal.logs.begin_reserved(log) {
                return HeldLog {
                    journal: self.journal,
                    group: Some(group),
                };
            }
            backoff.wait();
        }
    }
}

impl<'a, V: Volatile> HeldKey<'a, V> {
    fn new(journal: &'a Journal<V>, key: &[u8]) -> HeldKey<'a, V> {
        let stripe = journal.stripe(key);
        journal.stripes.lock(stripe, 0);
        HeldKey { journal, stripe }
    }
}

/// Cleaning: current entries are appended again, so the old entries are not needed any more.
impl<V: Volatile> Back for Writer<'_, V> {
    fn apply(&mut self, entries: &mut Entries<'_>) -> Result<(), Error> {
        let journal = self.journal;
        let mut log = self.hold_log(entries.log());
        let mut flushed: Option<Flushed> = None;
        while let Some(entry) = entries.next()? {
            // Padding; anything else has been read before.
            let Some(mut change) = Change::read(&entry) else {
                continue;
            };
            let held = HeldKey::new(journal, change.key);
            if change.value.is_none() || journal.map().version(change.key) != Some(change.version) {
                continue;
            }
            change.version = journal.stripes.next_version(held.stripe);
            let one = self.append(&mut log, &change);
            one.join(&mut flushed);
            // The value is the entry's, which is durable.
            journal.map().show(change.key, change.version, change.value);
        }
        // Without this fence, the ledger could drop the entries before their copies are durable.
        if let Some(flushed) = flushed {
            let _ordered = self.lane.fence(flushed);
        }
        Ok(())
    }

    fn note(&mut self, _epoch: u64, _notes: &mut Notes) {}

    fn lane(&mut self) -> &mut Lane {
        &mut self.lane
    }
}
