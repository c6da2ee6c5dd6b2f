//! The engine's background threads. One makes checkpoints, removes expired keys, and sweeps after everything
//! was removed; one lets room grow ahead of the writers. Correctness does not need them: a session that finds
//! no room does the same work.

use super::Dstore;
use super::layout::grains;
use super::room::{Freed, Grow};
use super::session::DstoreSession;
use crate::concurrency::retired::Retired;
use crate::concurrency::seam::few;
use crate::concurrency::stripes::Backoff;
use crate::crl::Step;
use crate::engine::Recovered;
use crate::engine::backend::Backend;
use crate::engine::counters::bump;
use crate::engine::damage::Damage;
use crate::engine::session::remove_expired;
use crate::error::Error;
use crate::stats::{Inspection, KindCount};
use everdram_pm::lock::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time between two rounds without a request.
const PERIOD: Duration = Duration::from_millis(20);
/// Keys that one step of the sweep of expired keys visits.
const EXPIRED: usize = 256;
/// Slots that one step of the sweep after a clear visits.
const CLEARED: u64 = 4096;
/// How often room is looked for while readers hold some up: for some 20 milliseconds.
const ATTEMPTS: u32 = 40;
/// How often a checkpoint that must finish waits for others: some milliseconds in all.
const WAITS_MAX: usize = 400;

impl Dstore {
    /// Checkpoints everything in the logs. Waits only a while for sessions that append.
    ///
    /// # Errors
    /// As [`crate::dipper::Dipper::step`].
    pub(super) fn checkpoint_all(&self) -> Result<(), Error> {
        let (mut backoff, mut waits) = (Backoff::new(), 0);
        // A checkpoint under way may end before what was logged since it began.
        let until = self.dipper.logs.epoch();
        while !self.dipper.logs.are_empty() && self.dipper.logs.reclaimed() < until {
            match self.checkpoint_step(true)? {
                Step::Worked | Step::Reclaimed(_) => {}
                Step::Waiting if waits < WAITS_MAX => {
                    waits += 1;
                    backoff.wait();
                }
                Step::Waiting | Step::Idle => break,
            }
        }
        Ok(())
    }

    /// After a clear all slots are to be looked at.
    pub(super) fn sweep_from_the_start(&self) {
        *lock(&self.swept) = 1;
        self.sweeps.store(true, Ordering::Release);
    }

    /// Frees what objects have that a clear removed, of the next slots. `false`: there is nothing to do.
    pub(super) fn sweep_cleared(&self, retired: &mut Retired<(u64, Freed)>) -> bool {
        if !self.sweeps.load(Ordering::Acquire) {
            return false;
        }
        // The record of the clear is fenced, so this position covers it.
        let position = self.pool.fenced().0;
        let mut next = lock(&self.swept);
        let end = self
            .memory
            .slots()
            .min(next.saturating_add(few!(CLEARED as usize) as u64));
        let mut cell = Vec::new();
        for number in *next..end {
            let (slot, _) = self.memory.slot(number);
            if slot.lsn == 0 || slot.is_dead || slot.lsn > self.floor() {
                continue;
            }
            if let Some(cow) = &self.cow {
                cow.enter();
                if self.before_publish(number, &slot, [0; 2]).is_err() {
                    // The checkpoint meets the error, too, and the next round continues here.
                    cow.leave();
                    *next = number;
                    return false;
                }
            }
            self.cell_of(&slot, &mut cell);
            // A map that cannot be read hides blocks until the next start.
            let _ = self.values.walk(&slot, &cell, &mut |block, _| {
                let (first, count) = (block.number, 1);
                retired.push((position, Freed::Blocks { first, count }));
                Ok(())
            });
            self.memory
                .publish(number, &slot.buried(slot.lsn), None, None);
            if let Some(cow) = &self.cow {
                cow.leave();
            }
            if !cell.is_empty() {
                let freed = Freed::Cell {
                    first: slot.body,
                    grains: grains(cell.len()),
                };
                retired.push((position, freed));
            }
            let key = Freed::Cell {
                first: slot.key_cell,
                grains: grains(slot.key_bytes as usize),
            };
            retired.push((position, key));
            retired.push((position, Freed::Slot(number)));
        }
        *next = end;
        if end >= self.memory.slots() {
            *next = u64::MAX;
            self.sweeps.store(false, Ordering::Release);
        }
        true
    }

    /// Frees everything that can be, for a session that found no room. Returns whether another try is
    /// worthwhile.
    pub(super) fn make_room(
        &self,
        session: &mut DstoreSession,
        attempt: u32,
    ) -> Result<bool, Error> {
        if attempt >= 2 {
            // A reader that has no core just now may hold up what was retired.
            if attempt >= ATTEMPTS || lock(&self.retired).is_empty() {
                return Ok(false);
            }
            Backoff::rest();
        }
        while self.sweep_cleared(&mut session.retired) {}
        if attempt == 1 {
            self.checkpoint_all()?;
        }
        session.hand_over_retired();
        self.free_retired(true);
        // Blocks are free only when the records that freed them survive.
        self.pool.sync()?;
        self.room.free_survived(&self.pool);
        Ok(true)
    }

    /// Frees what no reader can be looking at any more: as far as that is cheap to find out, or `now`.
    pub(super) fn free_retired(&self, now: bool) {
        let free = |(position, freed)| self.room.free(&self.pool, position, freed);
        let mut retired = lock(&self.retired);
        match now {
            true => retired.take_now(&self.epochs, free),
            false => retired.take(&self.epochs, free),
        }
    }

    /// Checkpoints, sweeps and frees all that can be.
    pub(super) fn reclaim_all(&self) -> Result<(), Error> {
        self.checkpoint_all()?;
        while self.sweep_cleared(&mut lock(&self.retired)) {}
        self.free_retired(true);
        self.pool.sync()?;
        self.room.free_survived(&self.pool);
        Ok(())
    }

    /// Removes expired keys among the next few.
    fn sweep_expired(&self, session: &mut DstoreSession, cursor: &mut u64) -> Result<usize, Error> {
        let mut expired = Vec::new();
        *cursor = session.expired_keys(*cursor, EXPIRED, &mut expired);
        let (mut removed, mut failed) = (0, Ok(()));
        for key in &expired {
            // A key that cannot be removed does not stop the others.
            match remove_expired(session, key) {
                Ok(true) => {
                    bump(&session.counters().expired, 1);
                    removed += 1;
                }
                Ok(false) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        session.commit_pending()?;
        failed.map(|()| removed)
    }

    /// One round of background work. `false`: there was nothing to do.
    fn tend_some(self: &Arc<Self>, cursor: &mut u64, force: bool) -> Result<bool, Error> {
        if self.healthy().is_err() {
            return Ok(false);
        }
        let step = match force || self.by_itself {
            true => self.checkpoint_step(force)?,
            false => Step::Idle,
        };
        let mut worked = matches!(step, Step::Worked | Step::Reclaimed(_));
        worked |= self.sweep_cleared(&mut lock(&self.retired));
        if self.expiries.load(Ordering::Relaxed) && !worked {
            let mut session = DstoreSession::new(Arc::clone(self))?;
            worked |= self.sweep_expired(&mut session, cursor)? > EXPIRED / 4;
        }
        self.free_retired(false);
        self.room.free_survived(&self.pool);
        Ok(worked)
    }

    /// Lets what is nearly used up grow. `false`: there was nothing to do.
    fn grow_some(&self) -> Result<bool, Error> {
        if self.healthy().is_err() {
            return Ok(false);
        }
        let grow = Grow {
            dipper: &self.dipper,
            machine: &self.machine,
            memory: &self.memory,
            cow: self.cow.as_ref(),
        };
        self.room.grow_ahead(&self.values.blocks, &grow)
    }
}

impl Recovered for Dstore {
    fn start(self: Arc<Self>) {
        let mut cursor = 0;
        let weak = Arc::downgrade(&self);
        self.background
            .start(weak, "everdram-dstore", &self.halted, move |dstore, _| {
                // An error here (full pool, failed medium, damage) meets the next caller again.
                match dstore.tend_some(&mut cursor, false) {
                    Ok(true) => Duration::ZERO,
                    Ok(false) | Err(_) => PERIOD,
                }
            });
        // Another thread, because writers go on while a checkpoint takes its time.
        let weak = Arc::downgrade(&self);
        self.growth.start(
            weak,
            "everdram-room",
            &self.halted,
            |dstore, _| match dstore.grow_some() {
                Ok(true) => Duration::ZERO,
                Ok(false) | Err(_) => PERIOD,
            },
        );
    }

    fn damage(&self) -> Option<&Arc<Damage>> {
        self.damage.as_ref()
    }

    fn describe(&self, inspection: &mut Inspection) {
        let geometry = &self.geometry;
        let mut field = |name: &str, value: String| inspection.fields.push((name.into(), value));
        let blocks = &self.values.blocks;
        field("data file", blocks.path().display().to_string());
        if blocks.reads_directly() {
            field("reads", "direct: they pass by the page cache".into());
        }
        field("block", format!("{} bytes", geometry.block_bytes));
        field(
            "inline values",
            format!("up to {} bytes", geometry.inline_bytes),
        );
        field("page of metadata", format!("{} bytes", geometry.page_bytes));
        field(
            "logs",
            format!("{} of {} bytes", geometry.logs, geometry.log_bytes),
        );
        field(
            "records in the logs",
            self.recovery.lock().records.to_string(),
        );
        let block = u64::from(geometry.block_bytes);
        let (taken, free) = (self.room.blocks.taken(), self.room.blocks.free());
        for (kind, blocks) in [("values", taken), ("free", free)] {
            inspection.kinds.push(KindCount {
                kind,
                blocks,
                filled_bytes: if kind == "values" { blocks * block } else { 0 },
                garbage_bytes: 0,
            });
        }
        inspection.space_map = self.room.blocks.map();
    }

    #[cfg(feature = "lab")]
    fn tend(self: Arc<Self>, cursor: &mut u64) -> Result<(), Error> {
        while self.tend_some(cursor, true)? || self.grow_some()? {}
        Ok(())
    }

    #[cfg(feature = "lab")]
    fn jobs(self: Arc<Self>) -> Vec<crate::engine::jobs::Job> {
        let (tended, forced, grown) = (Arc::clone(&self), Arc::clone(&self), self);
        let (mut cursor, mut second) = (0, 0);
        vec![
            crate::engine::jobs::Job::new("tend", move || tended.tend_some(&mut cursor, false)),
            crate::engine::jobs::Job::new("checkpoint", move || {
                forced.tend_some(&mut second, true)
            }),
            crate::engine::jobs::Job::new("grow", move || grown.grow_some()),
        ]
    }

    #[cfg(feature = "lab")]
    fn see_clock(&self) {
        self.now_ms();
    }

    #[cfg(feature = "lab")]
    fn space(&self) -> crate::engine::jobs::Space {
        let parcels: u64 = lock(&self.parcels)
            .iter()
            .flat_map(|(_, runs)| runs)
            .map(|(_, count)| u64::from(*count))
            .sum();
        crate::engine::jobs::Space {
            block_bytes: u64::from(self.geometry.block_bytes),
            blocks: self.room.blocks.taken() + self.room.blocks.free(),
            blocks_to_write: 4 * 256,
            is_scattered: true,
            blocks_left: self.values.blocks.first() + parcels + 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineSession;
    use crate::engine::kind::EngineKind;
    use crate::engine::open;
    use crate::options::{DstoreOptions, Options};
    use std::path::Path;

    /// A store for so many small objects at first, without a background thread.
    fn open(path: &Path, objects: u64, bytes_max: u64) -> Arc<Dstore> {
        let options = Options {
            engine: Some(EngineKind::Dstore),
            initial_bytes: objects * 512,
            dstore: DstoreOptions {
                block_bytes: 512,
                inline_bytes: 0,
                data_bytes_max: bytes_max,
                ..DstoreOptions::default()
            },
            ..Options::default()
        };
        let pool = open::pool(path, &options).unwrap();
        Dstore::over(pool, path, &options).unwrap()
    }

    fn put(session: &mut DstoreSession, objects: std::ops::Range<u64>) -> Result<(), Error> {
        for number in objects {
            session.put(&number.to_le_bytes(), b"value", 0)?;
        }
        session.commit_pending()
    }

    #[test]
    fn room_grows_ahead_of_the_writers() {
        const FIRST: u64 = 32 << 10;
        let dir = tempfile::tempdir().unwrap();
        let dstore = open(&dir.path().join("pool"), FIRST, 1 << 40);
        let sizes = || {
            let room = &dstore.room;
            let ends = [&room.slots, &room.cells, &room.blocks].map(|lines| lines.chunks());
            (ends, dstore.values.blocks.end())
        };
        let begin = sizes();
        let mut session = DstoreSession::new(Arc::clone(&dstore)).unwrap();
        for first in (0..FIRST * 5 / 4).step_by(128) {
            let before = sizes();
            put(&mut session, first..first + 128).unwrap();
            assert_eq!(sizes(), before, "a put waited for growth, at {first}");
            dstore.grow_some().unwrap();
        }
        let end = sizes();
        assert!(
            (0..3).all(|nth| end.0[nth] > begin.0[nth]),
            "{begin:?} {end:?}"
        );
        assert!(
            end.1 < begin.1 * 3 / 2,
            "too much is ahead: {begin:?} {end:?}"
        );
    }

    /// Where the data file cannot grow ahead, writers get the last block all the same.
    #[test]
    fn what_cannot_grow_ahead_is_left_to_the_writers() {
        const FIRST: u64 = 32 << 10;
        let dir = tempfile::tempdir().unwrap();
        let bytes_max = (FIRST + 1024) * 512;
        let dstore = open(&dir.path().join("pool"), FIRST, bytes_max);
        let (begin, mut objects) = (dstore.values.blocks.end(), 0);
        let mut session = DstoreSession::new(Arc::clone(&dstore)).unwrap();
        let full = loop {
            if let Err(error) = put(&mut session, objects..objects + 32) {
                break error;
            }
            objects += 32;
            dstore.grow_some().unwrap();
        };
        assert!(matches!(full, Error::NoSpace(_)), "{full}");
        let blocks = &dstore.values.blocks;
        assert!(begin < blocks.end() && blocks.end() * 512 == bytes_max);
        assert!(objects + 32 + blocks.first() > blocks.end(), "{objects}");
    }
}
