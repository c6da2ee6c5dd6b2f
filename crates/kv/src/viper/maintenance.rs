//! The engine's background threads. One looks after space: room ahead of the writers, freed values, expired
//! keys, and compaction of all that is worth it when nobody writes. The other looks after the index:
//! verification and checkpoints.
//!
//! They hold no lock while they wait and keep only weak references, so an engine that everybody dropped goes
//! away. Nothing they do is needed for correctness.

use super::check::describe;
use super::checkpoint::verify::verify_some;
use super::compaction::Step;
use super::session::ViperSession;
use super::{Viper, checkpoint};
use crate::engine::Recovered;
use crate::engine::backend::Backend;
use crate::engine::damage::Damage;
use crate::engine::session::remove_expired;
use crate::error::Error;
use crate::stats::Inspection;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Between two looks when nobody asks for one.
const PERIOD: Duration = Duration::from_millis(50);
/// How long nobody writes before the pool is made dense: shorter pauses are part of a load.
const QUIET: Duration = Duration::from_secs(1);
/// Keys one sweep step looks at.
const SWEEP: usize = 256;
/// The share of expired keys among those seen above which the sweep goes on at once.
const SWEEP_AGAIN: usize = SWEEP / 4;

/// What the thread that looks after space remembers.
struct SpaceKeeper {
    /// Where the sweep of expired keys goes on.
    cursor: u64,
    /// Records written or removed when there was a change last, and when that was.
    writes: u64,
    quiet_since: Instant,
    /// The pool is as dense as it gets in this quiet time.
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
        // What fails here (a full disk, a failed medium, damage) meets the next caller, who is told.
        let _ = step(viper, is_asked, &mut self.cursor);
        match viper.compaction.by_itself && self.is_quiet(viper) {
            true => self.tidy(viper),
            false => PERIOD,
        }
    }

    /// Whether now is the time for what is put off until nobody writes.
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
        if self.is_dense {
            // What a checkpoint let go of, for example.
            let _ = viper.give_room_back();
            return PERIOD;
        }
        let begun = Instant::now();
        self.is_dense = matches!(viper.make_dense(), Ok(Step::Nothing) | Err(_));
        // Half of the time: others may want the processor, too.
        begun.elapsed().min(PERIOD)
    }
}

/// `is_asked`: somebody took a block. Otherwise the reserve stays as it is, since an idle store does not
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
    if viper.expiries.load(Ordering::Relaxed) {
        while sweep(viper, cursor)? >= SWEEP_AGAIN {}
    }
    Ok(())
}

/// The index's part, which takes long at times: verifying what a restart has not read, and checkpoints.
fn keep(viper: &Arc<Viper>) -> Result<(), Error> {
    if viper.pool.healthy().is_err() {
        return Ok(());
    }
    while verify_some(viper, 1)? {
        if viper.keeper.is_stopping() {
            return Ok(());
        }
    }
    checkpoint::write_if_due(viper)
}

/// Removes expired keys among the next few; returns how many there were.
fn sweep(viper: &Arc<Viper>, cursor: &mut u64) -> Result<usize, Error> {
    let mut session = ViperSession::new(Arc::clone(viper))?;
    let mut expired: Vec<Vec<u8>> = Vec::new();
    *cursor = session.expired_keys(*cursor, SWEEP, &mut expired);
    let mut failed = Ok(());
    for key in &expired {
        // One that cannot be removed does not keep the others.
        let removed = remove_expired(&mut session, key).map(drop);
        failed = failed.and(removed);
    }
    session.commit_pending()?;
    failed.map(|()| expired.len())
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
                // As above.
                let _ = keep(viper);
                PERIOD
            });
    }

    fn damage(&self) -> Option<&Arc<Damage>> {
        self.damage.as_ref()
    }

    fn describe(&self, inspection: &mut Inspection) {
        describe(&self.space, inspection);
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
        let (space, dense, index) = (Arc::clone(&self), Arc::clone(&self), self);
        let mut cursor = 0;
        vec![
            crate::engine::jobs::Job::new("room", move || {
                step(&space, true, &mut cursor).map(|()| true)
            }),
            crate::engine::jobs::Job::new("dense", move || Ok(dense.make_dense()? == Step::Worked)),
            crate::engine::jobs::Job::new("index", move || keep(&index).map(|()| true)),
        ]
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

    /// Seals the open blocks of sessions that are gone.
    pub(super) fn seal_parked(self: &Arc<Self>) -> Result<(), Error> {
        let claims = std::mem::take(&mut *self.parked.lock());
        if claims.is_empty() || self.pool.healthy().is_err() {
            return Ok(());
        }
        let mut session = ViperSession::new(Arc::clone(self))?;
        // The tail words are fenced when the session ends. A crash that loses them finds open pages, as it
        // would have without this; and whoever compacts such a block and opens it again writes over them.
        for mut claim in claims {
            claim.seal(&mut session.lane, &mut session.unfenced);
            claim.sealed(&self.space.blocks);
        }
        Ok(())
    }
}
