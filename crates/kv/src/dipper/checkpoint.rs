//! Checkpoints (section 3.5): the logs are replayed on the shadow, in the background.

use super::shadow::{Shadow, ShadowRoom};
use super::{Collected, Machine};
use crate::concurrency::seam::few;
use crate::crl::{Back, Cursor, Entries, Group, Logs, Notes, Step};
use crate::error::Error;
use everdram_pm::Lane;
use everdram_pm::lock::lock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Percent of the fullest log at which a checkpoint begins.
const BEGIN_AT: u64 = 50;

/// The logs and the shadow of a machine.
pub(crate) struct Dipper<M: Machine> {
    pub(crate) logs: Logs,
    /// One checkpoint at a time. Whoever holds this waits for no session: a session may wait for room in the
    /// logs while it holds the locks of its objects.
    checkpoint: Mutex<Checkpoint<M::Change>>,
    /// Taken alone: sessions let segments grow while a checkpoint runs.
    room: Arc<Mutex<ShadowRoom>>,
    piece: usize,
    counts: Counts,
}

/// What checkpoints did since open.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) checkpoints: AtomicU64,
    pub(crate) changes: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

struct Checkpoint<C> {
    shadow: Shadow,
    cursor: Cursor,
    /// What the checkpoint under way has read so far.
    collected: Collected<C>,
}

/// A checkpoint at work.
struct Replay<'a, M: Machine> {
    machine: &'a M,
    dipper: &'a Dipper<M>,
    state: &'a mut Checkpoint<M::Change>,
    /// The shadow has everything already: by copy-on-write.
    is_copied: bool,
}

impl<M: Machine> Dipper<M> {
    pub(crate) fn new(logs: Logs, shadow: Shadow, piece: usize) -> Dipper<M> {
        Dipper {
            room: Arc::clone(&shadow.room),
            logs,
            checkpoint: Mutex::new(Checkpoint {
                shadow,
                cursor: Cursor::new(0),
                collected: Collected::default(),
            }),
            piece,
            counts: Counts::default(),
        }
    }

    /// What checkpoints did since open.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Makes sure that segments of these bytes have a shadow, and checkpoints room.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`]; the segments must not grow then.
    pub(crate) fn reserve(&self, segments: &[u64]) -> Result<(), Error> {
        lock(&self.room).reserve(segments)
    }

    /// Passes the shadow to `look`, while no checkpoint runs.
    pub(crate) fn shadow<T>(&self, look: impl FnOnce(&Shadow) -> T) -> T {
        look(&lock(&self.checkpoint).shadow)
    }

    /// Takes a step of a checkpoint. If none is under way, one begins if the logs are full enough, or
    /// `force`. [`Step::Waiting`] also if another thread takes one.
    ///
    /// # Errors [`Error::Corrupt`], without the path; [`Error::NoSpace`], [`Error::Pool`]. The checkpoint
    /// goes on later.
    pub(crate) fn step(&self, machine: &M, force: bool) -> Result<Step, Error> {
        self.take_step(machine, false, || {
            self.is_due(force).then(|| self.logs.epoch())
        })
    }

    /// As [`Dipper::step`], for a checkpoint by copy-on-write: the shadow has everything up to the end of
    /// this epoch, which is over.
    ///
    /// # Errors
    /// As [`Dipper::step`].
    pub(crate) fn step_copied(&self, machine: &M, epoch: u64) -> Result<Step, Error> {
        self.take_step(machine, true, || Some(epoch))
    }

    /// Whether this group is the one after which a checkpoint is to begin.
    #[inline]
    pub(crate) fn becomes_due(&self, group: &Group) -> bool {
        self.logs.fills(group, BEGIN_AT)
    }

    /// Whether a checkpoint is to begin: the logs are full enough or, with `force`, not empty.
    pub(crate) fn is_due(&self, force: bool) -> bool {
        match force {
            true => !self.logs.are_empty(),
            false => self.logs.occupancy() >= BEGIN_AT,
        }
    }

    /// Changes the shadow, for systems that do so beside checkpoints by replay.
    pub(crate) fn with_shadow<T>(&self, work: impl FnOnce(&mut Shadow) -> T) -> T {
        work(&mut lock(&self.checkpoint).shadow)
    }

    /// Applies changes to the shadow at once, and switches its root: what a system without logs does.
    ///
    /// # Errors
    /// As [`Dipper::step`].
    pub(crate) fn apply_now(
        &self,
        machine: &M,
        collected: &mut Collected<M::Change>,
    ) -> Result<(), Error> {
        let shadow = &mut lock(&self.checkpoint).shadow;
        shadow.raise_floor(collected.floor);
        let floor = shadow.floor;
        collected.by_object(floor, |changes| machine.apply(shadow, changes))?;
        shadow.flush()?;
        let notes = shadow.notes();
        self.logs.note(&mut shadow.lane, notes);
        shadow.settle();
        self.counts.bytes.store(shadow.written, Ordering::Relaxed);
        Ok(())
    }

    fn take_step(
        &self,
        machine: &M,
        is_copied: bool,
        up_to: impl FnOnce() -> Option<u64>,
    ) -> Result<Step, Error> {
        let Some(mut state) = self.checkpoint.try_lock() else {
            return Ok(Step::Waiting);
        };
        let mut cursor = std::mem::take(&mut state.cursor);
        let mut replay = Replay {
            machine,
            dipper: self,
            state: &mut state,
            is_copied,
        };
        let step = self.logs.step(&mut replay, &mut cursor, up_to);
        state.cursor = cursor;
        if let Ok(Step::Reclaimed(_)) = step {
            // The ledger with the last root is durable.
            state.shadow.settle();
            self.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
            let written = state.shadow.written;
            self.counts.bytes.store(written, Ordering::Relaxed);
        }
        step
    }
}

impl<M: Machine> Back for Replay<'_, M> {
    fn apply(&mut self, entries: &mut Entries<'_>) -> Result<(), Error> {
        while let Some(entry) = entries.next()? {
            if entry.operations > 0 && !self.is_copied {
                self.machine.read(&entry, &mut self.state.collected)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, logs: &Logs) -> Result<(), Error> {
        let Checkpoint {
            shadow, collected, ..
        } = &mut *self.state;
        shadow.floor = shadow.floor.max(collected.floor);
        let floor = shadow.floor;
        let changes = collected.len() as u64;
        let piece = few!(self.dipper.piece);
        collected.by_object(floor, |changes| {
            self.machine.apply(shadow, changes)?;
            if shadow.dirty() >= piece {
                shadow.flush()?;
                let notes = shadow.notes();
                logs.note(&mut shadow.lane, notes);
                shadow.settle();
            }
            Ok(())
        })?;
        shadow.flush()?;
        self.dipper
            .counts
            .changes
            .fetch_add(changes, Ordering::Relaxed);
        collected.clear();
        Ok(())
    }

    fn note(&mut self, _epoch: u64, notes: &mut Notes) {
        *notes = self.state.shadow.notes();
    }

    fn lane(&mut self) -> &mut Lane {
        &mut self.state.shadow.lane
    }
}
