//! From bytes to logs that go on: from entry to entry, as long as they verify.
//!
//! What is in the logs is all of some epochs and nothing of earlier ones, so no record of a key that is left
//! is older than one that was reclaimed (B1). Logs are read side by side: which of two records of a key
//! counts, their LSNs say (B2), to whoever has logged them.
//!
//! A log ends where an entry does not verify. Everything fenced lies before that, unless it was damaged
//! later; and then an entry behind it says that more had been fenced, and recovery refuses.

use super::cursor::{Cursor, Next};
use super::entry::Entry;
use super::log::Logs;
use crate::engine::persist_on_read::ReadFlusher;
use crate::error::{Error, corrupt};
use everdram_pm::LINE;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the entries that are found are told to.
pub(crate) trait Replay {
    /// Before anything is replayed: there are so many operations, about, or that is what a damaged pool says.
    /// One of the threads hears of it.
    fn expect(&mut self, _operations: u64) {}

    /// Whether a writer can have put together what an entry says. Where it cannot, recovery refuses.
    fn is_sound(&self, entry: &Entry<'_>) -> bool;

    /// Whether what an entry names elsewhere is there: what was not fenced with it ends the log in front of
    /// it.
    fn is_there(&self, entry: &Entry<'_>) -> bool;

    /// Does what an entry says.
    ///
    /// # Errors
    /// Recovery fails with it.
    fn replay(&mut self, entry: &Entry<'_>) -> Result<(), Error>;

    /// Damage, in front of entries that verify. To salvage those, it is noted; `_lost` has all bytes up to
    /// there, and is what they say they are.
    ///
    /// # Errors
    /// The one given: recovery refuses.
    fn tolerate(&mut self, error: Error, _lost: &Entry<'_>) -> Result<(), Error> {
        Err(error)
    }

    /// A log has been read to its end: what was put off is done.
    ///
    /// # Errors
    /// Recovery fails with it.
    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// What recovery flushes with. Whatever it keeps is settled at the end of the log.
    fn found(&mut self) -> &mut ReadFlusher;
}

impl Logs {
    /// Replays what the logs hold, and readies them for writers. Each of `replays` is a thread's, which reads
    /// one log after the other. `progress` hears how many of how many logs were begun.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path; as [`Replay::replay`].
    pub(crate) fn recover(
        &self,
        replays: &mut [impl Replay + Send],
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<(), Error> {
        let ledger = self.ledger.lock().clone();
        let next = AtomicUsize::new(0);
        let read = |replay: &mut _| {
            while let number = next.fetch_add(1, Ordering::Relaxed)
                && let Some(head) = ledger.heads.get(number)
            {
                progress(number as u64, ledger.heads.len() as u64);
                let result = self.read_log(replay, number, *head, ledger.epoch);
                if result.is_err() {
                    // Nobody needs to read any further.
                    next.store(ledger.heads.len(), Ordering::Relaxed);
                    return result;
                }
            }
            Ok(())
        };
        let Some((own, others)) = replays.split_first_mut() else {
            panic!("recovery by nobody");
        };
        own.expect(self.estimate());
        std::thread::scope(|scope| {
            let spawn = |replay| {
                // Without a thread for it, the others have more to do.
                let thread = std::thread::Builder::new().name("recovery".into());
                thread.spawn_scoped(scope, || read(replay)).ok()
            };
            let threads: Vec<_> = others.iter_mut().filter_map(spawn).collect();
            let own = read(own);
            let ended = threads.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ended.fold(own, |first, next| first.and(next))
        })?;
        progress(ledger.heads.len() as u64, ledger.heads.len() as u64);
        let incarnation = self.pool.incarnation();
        self.set_epoch(((incarnation << 32) | 1).max(ledger.epoch + 2));
        Ok(())
    }

    fn read_log(
        &self,
        replay: &mut impl Replay,
        number: usize,
        head: u64,
        reclaimed: u64,
    ) -> Result<(), Error> {
        let (limit, incarnation) = (head + self.log_bytes(), self.pool.incarnation());
        let mut cursor = Cursor::new(number);
        let (mut position, mut epoch) = (head, reclaimed);
        loop {
            while let Next::Entry(entry, next) = cursor.next(self, position, limit) {
                if !entry.head.is_sound(position, incarnation) || !replay.is_sound(&entry) {
                    let at = self.place(number, position);
                    let error = corrupt(at, "a log record says what cannot be");
                    replay.tolerate(error, &entry)?;
                    position = next;
                    continue;
                }
                // A later life of the pool has later epochs, and so has what it wrote.
                let is_of_a_former_lap = entry.head.epoch < epoch;
                if is_of_a_former_lap || !replay.is_there(&entry) {
                    break;
                }
                replay.replay(&entry)?;
                (position, epoch) = (next, entry.head.epoch);
            }
            let Err(error) = self.refuse_damage(number, position, limit) else {
                break;
            };
            let next = self.next_sound(number, position + LINE, limit);
            let bytes = self.bytes(number, position, next);
            replay.tolerate(error, &Entry::unverified(number, position, &bytes))?;
            position = next;
        }
        replay.finish()?;
        self.keep(replay.found(), number, head, position);
        if position < limit {
            self.end_log(replay.found(), number, position);
        }
        replay.found().settle();
        self.restore(number, head, position);
        Ok(())
    }

    /// Keeps the entries that were found.
    fn keep(&self, found: &mut ReadFlusher, number: usize, from: u64, to: u64) {
        let mut position = from;
        while position < to {
            let bytes = self.to_end(position).min(to - position);
            found.keep(self.place(number, position), bytes);
            position += bytes;
        }
    }

    /// Clears the checksum of the entry behind the log's end. Without this, a torn entry there could verify
    /// later, once new writes happen to complete it. One word suffices and is atomic; zeroing more could
    /// tear, and supply just the bytes that the entry lacked.
    fn end_log(&self, found: &mut ReadFlusher, number: usize, end: u64) {
        let at = self.place(number, end);
        if self.pool.region().load_word(at) != 0 {
            let dirty = found.lane.store(at, &[0; 8]);
            found.keep_stored(dirty);
        }
    }

    /// The position of the first entry that verifies at `position` or behind it; `limit` if there is none.
    fn next_sound(&self, number: usize, position: u64, limit: u64) -> u64 {
        let mut cursor = Cursor::new(number);
        let mut positions = (position..limit).step_by(LINE as usize);
        let found = positions.find(|at| matches!(cursor.next(self, *at, limit), Next::Entry(..)));
        found.unwrap_or(limit)
    }

    /// The bytes between two positions of a log.
    fn bytes(&self, number: usize, from: u64, to: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut position = from;
        while position < to {
            let more = self.to_end(position).min(to - position);
            let region = self.pool.region();
            region.load_behind(self.place(number, position), more, &mut bytes);
            position += more;
        }
        bytes
    }

    /// Refuses to start if an entry behind the end of a log says that the log went on.
    fn refuse_damage(&self, number: usize, end: u64, limit: u64) -> Result<(), Error> {
        let mut cursor = Cursor::new(number);
        let mut position = end + LINE;
        while position < limit {
            let head = cursor.head(self, position, limit);
            let claims = head.ordered > end && head.ordered <= position;
            if claims && matches!(cursor.next(self, position, limit), Next::Entry(..)) {
                let at = self.place(number, end);
                return Err(corrupt(at, "an acknowledged log record is damaged"));
            }
            position += LINE;
        }
        Ok(())
    }
}
