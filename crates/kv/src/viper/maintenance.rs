//! The engine's background threads. One maintains space: room ahead of the writers, freed values, expired
//! keys, and, in quiet times, compaction of everything worth it. The other maintains the index: verification
//! and checkpoints.
//!
//! They hold no lock while they wait and keep only weak references, so they do not keep an engine alive.
//! Correctness does not need them.

use super::below::give_way;
use super::below::load::load_some;
use super::check::describe;
use super::checkpoint::verify::verify_some;
use super::compaction::Step;
use super::session::ViperSession;
use super::{Viper, checkpoint};
use crate::concurrency::seam::few;
use crate::engine::Recovered;
use crate::engine::backend::Backend;
use crate::engine::damage::Damage;
use crate::engine::session::remove_expired;
use crate::error::Error;
use crate::stats::Inspection;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time between two rounds without a request.
const PERIOD: Duration = Duration::from_millis(50);
/// Time without writes before the pool is made dense: shorter pauses are part of a load.
const QUIET: Duration = Duration::from_secs(1);
/// Keys that one step of the sweep visits.
const SWEEP: usize = 256;
/// Expired keys in one step from which on the sweep continues at once.
const SWEEP_AGAIN: usize = SWEEP / 4;

/// Rests before a checkpoint while others make room, at most: a tenth of a second.
const CHECKPOINT_PATIENCE: usize = 200;

/// The state of the thread that maintains space.
struct SpaceKeeper {
    /// Cursor of the sweep of expired keys.
    cursor: u64,
    /// Records written or removed at the last change, and the time of that change.
    writes: u64,
    quiet_since: Instant,
    /// Compaction has nothing left to do in this quiet time.
    is_dense: bool,
}

impl SpaceKeeper {
    fn new() -> SpaceKeeper {
        SpaceKeeper {
            cursor: 0,
            writes: 0,
            quiet_since: Instant::now(),
            is_dense: false,
        }
    }

    fn look(&mut self, viper: &Arc<Viper>, is_asked: bool) -> Duration {
        // The next caller meets the same failure (a full disk, a failed medium, damage) and gets its error.
        let _ = step(viper, is_asked, &mut self.cursor);
        match viper.compaction.by_itself && self.is_quiet(viper) {
            true => self.tidy(viper),
            false => PERIOD,
        }
    }

    /// Whether the store is quiet: then work runs that is deferred while sessions write.
    fn is_quiet(&mut self, viper: &Viper) -> bool {
        let writes = viper.writes();
        if writes != self.writes {
            self.writes = writes;
            self.quiet_since = Instant::now();
            self.is_dense = false;
        }
        self.quiet_since.elapsed() >= QUIET
    }

    fn tidy(&mut self, viper: &Viper) -> Duration {
        if viper.is_loading() || viper.verification.is_running() {
            return PERIOD;
        }
        if self.is_dense {
            // For example, a checkpoint may have freed blocks.
            let _ = viper.give_room_back();
            return PERIOD;
        }
        let begun = Instant::now();
        self.is_dense = matches!(viper.make_dense(), Ok(Step::Nothing) | Err(_));
        // Rests as long as it worked, to leave the processor to others.
        begun.elapsed().min(PERIOD)
    }
}

/// `is_asked`: a session took a block. Otherwise the reserve stays as it is, so that an idle store does not
/// grow.
fn step(viper: &Arc<Viper>, is_asked: bool, cursor: &mut u64) -> Result<(), Error> {
    if viper.pool.healthy().is_err() {
        return Ok(());
    }
    if viper.compaction.by_itself {
        viper.compactor().free_passed(viper)?;
    }
    if is_asked {
        viper.keep_room()?;
    }
    if viper.expiries.load(Ordering::Relaxed) && !viper.is_loading() {
        while sweep(viper, cursor)? >= SWEEP_AGAIN {}
    }
    Ok(())
}

/// Maintains the index: verifies what was not read since the restart, and writes checkpoints. Takes long at
/// times.
fn keep(viper: &Arc<Viper>) -> Result<(), Error> {
    if viper.pool.healthy().is_err() {
        return Ok(());
    }
    while load_some(viper)? || verify_some(viper, 1)? {
        if viper.keeper.is_stopping() {
            return Ok(());
        }
    }
    if viper.compaction.by_itself
        && let Some(below) = &viper.below
    {
        let mut session = ViperSession::new(Arc::clone(viper))?;
        while below.clean(viper, &mut session, below.worth(), viper.now_ms())? {
            if viper.keeper.is_stopping() {
                return Ok(());
            }
        }
        give_way(viper, &mut few!(CHECKPOINT_PATIENCE));
    }
    checkpoint::write_if_due(viper)
}

/// Removes expired keys among the next few; returns their number.
fn sweep(viper: &Arc<Viper>, cursor: &mut u64) -> Result<usize, Error> {
    let mut session = ViperSession::new(Arc::clone(viper))?;
    let mut expired: Vec<Vec<u8>> = Vec::new();
    *cursor = session.expired_keys(*cursor, SWEEP, &mut expired);
    let (mut removed, mut failed) = (0, Ok(()));
    for key in &expired {
        // A key that cannot be removed does not stop the others.
        match remove_expired(&mut session, key) {
            Ok(is_removed) => removed += usize::from(is_removed),
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    session.commit_pending()?;
    failed.map(|()| removed)
}

impl Recovered for Viper {
    fn start(self: Arc<Self>) {
        let viper = || Arc::downgrade(&self);
        let mut space = SpaceKeeper::new();
        let halt = &self.halted;
        self.background
            .start(viper(), "everdram-viper", halt, move |viper, is_asked| {
                space.look(viper, is_asked)
            });
        self.keeper
            .start(viper(), "everdram-index", halt, |viper, _| {
                // Ignored, as above.
                let _ = keep(viper);
                PERIOD
            });
    }

    fn damage(&self) -> Option<&Arc<Damage>> {
        self.damage.as_ref()
    }

    fn describe(&self, inspection: &mut Inspection) {
        describe(&self.space, inspection);
        if let Some(below) = &self.below {
            below.describe(inspection);
        }
    }

    #[cfg(feature = "lab")]
    fn tend(self: Arc<Self>, cursor: &mut u64) -> Result<(), Error> {
        step(&self, true, cursor)?;
        let mut backoff = crate::concurrency::stripes::Backoff::new();
        loop {
            match self.make_dense()? {
                Step::Worked => {}
                Step::Waiting => backoff.wait(),
                Step::Nothing => break,
            }
        }
        keep(&self)
    }

    #[cfg(feature = "lab")]
    fn jobs(self: Arc<Self>) -> Vec<crate::engine::jobs::Job> {
        let (space, dense, index) = (Arc::clone(&self), Arc::clone(&self), Arc::clone(&self));
        let mut cursor = 0;
        let mut jobs = vec![
            crate::engine::jobs::Job::new("room", move || {
                step(&space, true, &mut cursor).map(|()| true)
            }),
            crate::engine::jobs::Job::new("dense", move || Ok(dense.make_dense()? == Step::Worked)),
            crate::engine::jobs::Job::new("index", move || keep(&index).map(|()| true)),
        ];
        if self.below.is_some() {
            // A part of what "index" does at once, so that runs have logs of which a part is read.
            jobs.push(crate::engine::jobs::Job::new("load", move || {
                load_some(&self)
            }));
        }
        jobs
    }

    #[cfg(feature = "lab")]
    fn see_clock(&self) {
        self.now_ms();
    }

    #[cfg(feature = "lab")]
    fn space(&self) -> crate::engine::jobs::Space {
        super::compaction::backpressure::space(self)
    }
}

impl Viper {
    /// Whether anything was written since open: an idle store does not grow.
    pub(super) fn is_busy(&self) -> bool {
        self.sum(|slot| &slot.puts) > 0
    }

    /// Records written or removed since open.
    fn writes(&self) -> u64 {
        let removed = self.sum(|slot| &slot.deletes) + self.sum(|slot| &slot.expired);
        self.sum(|slot| &slot.puts) + removed
    }

    /// Seals the open blocks of sessions that have ended.
    pub(super) fn seal_parked(self: &Arc<Self>) -> Result<(), Error> {
        let claims = std::mem::take(&mut *self.parked.lock());
        if claims.is_empty() || self.pool.healthy().is_err() {
            return Ok(());
        }
        let mut session = ViperSession::new(Arc::clone(self))?;
        // The end of the session fences the tail words. If a crash loses them, recovery finds open pages, as
        // without this seal. A session that claims such a block after compaction writes over them.
        for mut claim in claims {
            claim.seal(&mut session.lane, &mut session.unfenced);
            claim.sealed(&self.space.blocks);
        }
        Ok(())
    }
}
