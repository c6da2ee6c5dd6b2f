//! Recovery of the logs: replays entry after entry, as long as they verify.
//!
//! The logs hold all of some epochs and nothing of earlier ones, so no remaining record of a key is older
//! than a reclaimed one (B1). Logs are read in parallel; of two records of a key the user's versions decide
//! which counts (B2).
//!
//! A log ends at the first entry that does not verify. Everything fenced lies before that, unless it was
//! damaged later. In that case a later entry says that more had been fenced, and recovery refuses.

use super::cursor::{Cursor, Next};
use super::entry::Entry;
use super::log::Logs;
use crate::engine::persist_on_read::ReadFlusher;
use crate::error::{Error, corrupt};
use everdram_pm::LINE;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Receives the entries that recovery finds.
pub(crate) trait Replay {
    /// Called on one thread before anything is replayed, with the estimated number of operations; a damaged
    /// pool may give any number.
    fn expect(&mut self, _operations: u64) {}

    /// Whether a writer can have written this content. If not, recovery refuses.
    fn is_sound(&self, entry: &Entry<'_>) -> bool;

    /// Whether everything exists that the entry names elsewhere. If not, it was not fenced with the entry,
    /// and the log ends before the entry.
    fn is_there(&self, entry: &Entry<'_>) -> bool;

    /// Replays an entry.
    ///
    /// # Errors
    /// Recovery fails with it.
    fn replay(&mut self, entry: &Entry<'_>) -> Result<(), Error>;

    /// Damage before entries that verify. A salvaging recovery notes it and continues; `_lost` holds all
    /// bytes up to the next good entry, with their unverified meaning.
    ///
    /// # Errors
    /// The given error: recovery refuses.
    fn tolerate(&mut self, error: Error, _lost: &Entry<'_>) -> Result<(), Error> {
        Err(error)
    }

    /// The first entry that a log ever had, at this offset, does not verify. A crash may have torn it.
    fn begins_torn(&mut self, _at: u64) {}

    /// The end of a log: completes what was deferred.
    ///
    /// # Errors
    /// Recovery fails with it.
    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// The flusher of recovery. Recovery settles what it keeps at the end of each log.
    fn found(&mut self) -> &mut ReadFlusher;
}

impl Logs {
    /// Replays the logs, and prepares them for writers. Each of `replays` belongs to a thread, which reads
    /// one log after another. `progress` is called with logs begun and logs in total.
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
                    // No thread needs to read further.
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
                // If a thread cannot be started, the others do its work.
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
                    let error = corrupt(at, "a log record has impossible content");
                    replay.tolerate(error, &entry)?;
                    position = next;
                    continue;
                }
                // A later incarnation of the pool has later epochs, and so have its entries.
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
        if position == 0 && self.pool.region().load_word(self.place(number, 0)) != 0 {
            replay.begins_torn(self.place(number, 0));
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

    /// Flushes the entries that were found.
    fn keep(&self, found: &mut ReadFlusher, number: usize, from: u64, to: u64) {
        let mut position = from;
        while position < to {
            let bytes = self.to_end(position).min(to - position);
            found.keep(self.place(number, position), bytes);
            position += bytes;
        }
    }

    /// Clears the checksum of the entry after the log's end. Without this, a torn entry there could verify
    /// later, once new writes happen to complete it. One word suffices and is atomic; zeroing more could
    /// tear, and supply the very bytes that the entry lacked.
    fn end_log(&self, found: &mut ReadFlusher, number: usize, end: u64) {
        let at = self.place(number, end);
        if self.pool.region().load_word(at) != 0 {
            let dirty = found.lane.store(at, &[0; 8]);
            found.keep_stored(dirty);
        }
    }

    /// The position of the first entry that verifies at or after `position`; `limit` if there is none.
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

    /// Fails if an entry after the end of a log says that the log continued.
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
