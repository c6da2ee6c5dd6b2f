//! The engine's background thread: room ahead of the writers, compaction, freed values, expired keys.
//!
//! It holds no lock while it waits and keeps only a weak reference, so an engine that everybody dropped goes
//! away. Nothing it does is needed for correctness, only for space.

use super::Viper;
use super::checkpoint;
use super::reclaim::reclaim_some;
use super::session::ViperSession;
use super::verify::verify_some;
use crate::error::Error;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks when nobody asks for one.
const PERIOD: Duration = Duration::from_millis(50);
/// Keys one sweep step looks at.
const SWEEP: usize = 256;
/// The share of expired keys among those seen above which the sweep goes on at once.
const SWEEP_AGAIN: usize = SWEEP / 4;

#[derive(Default)]
struct State {
    stop: bool,
    nudged: bool,
}

#[derive(Default)]
struct Signal {
    state: Mutex<State>,
    wake: Condvar,
}

/// The thread and how to talk to it.
#[derive(Default)]
pub(super) struct Background {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    fn start(&self, viper: Weak<Viper>, name: &str, step: Step) {
        let signal = Arc::clone(&self.signal);
        let work = move || run(&viper, &signal, step);
        let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
        // Without a thread the store still works; writers grow the pool themselves.
        *self.thread.lock() = spawned.ok();
    }

    /// Asks for a look now.
    #[inline]
    pub(super) fn nudge_if(&self, wanted: bool) {
        if wanted {
            self.signal.state.lock().nudged = true;
            self.signal.wake.notify_one();
        }
    }

    /// Whether somebody asked for a look, or for the end, since the last one began.
    fn is_called(&self) -> bool {
        let state = self.signal.state.lock();
        state.stop || state.nudged
    }

    /// Stops the thread and waits for it (unless it is the caller).
    pub(super) fn stop(&self) {
        self.signal.state.lock().stop = true;
        self.signal.wake.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread was reported on standard error already.
            let _ = thread.join();
        }
    }
}

/// One look of a thread; the cursor is its own.
type Step = fn(&Arc<Viper>, &mut u64) -> Result<(), Error>;

fn run(viper: &Weak<Viper>, signal: &Signal, step: Step) {
    let mut cursor = 0;
    loop {
        {
            let mut state = signal.state.lock();
            if !state.stop && !state.nudged {
                signal.wake.wait_for(&mut state, PERIOD);
            }
            if state.stop {
                return;
            }
            state.nudged = false;
        }
        let Some(viper) = viper.upgrade() else { return };
        // What fails here (a full disk, a failed medium, damage) meets the next caller, who is told.
        let _ = step(&viper, &mut cursor);
    }
}

fn step(viper: &Arc<Viper>, cursor: &mut u64) -> Result<(), Error> {
    if viper.pool.healthy().is_err() {
        return Ok(());
    }
    if viper.blocks.wants_growth() && viper.blocks.total() > 0 && viper.is_busy() {
        // A full disk shows when a writer needs the room.
        let _ = viper.blocks.grow_ahead();
    }
    if viper.reclaim_background {
        reclaim_until_called(viper)?;
    }
    if viper.expiries.load(Ordering::Relaxed) {
        while sweep(viper, cursor)? >= SWEEP_AGAIN {}
    }
    Ok(())
}

/// The index's part, which takes long at times: verifying what a restart has not read, and checkpoints.
fn keep(viper: &Arc<Viper>, _cursor: &mut u64) -> Result<(), Error> {
    if viper.pool.healthy().is_err() {
        return Ok(());
    }
    while verify_some(viper, 1)? {
        if viper.keeper.is_called() {
            return Ok(());
        }
    }
    checkpoint::write_if_due(viper)
}

/// Round after round, as long as there is more room afterwards: one for each period would free less than a single writer
/// fills.
fn reclaim_until_called(viper: &Viper) -> Result<(), Error> {
    loop {
        let before = viper.blocks.free_count();
        let freed = reclaim_some(viper)?;
        let is_done = freed == 0 || viper.blocks.free_count() <= before;
        if is_done || viper.background.is_called() {
            return Ok(());
        }
    }
}

/// Removes expired keys among the next few; returns how many there were.
fn sweep(viper: &Arc<Viper>, cursor: &mut u64) -> Result<usize, Error> {
    let mut session = ViperSession::new(Arc::clone(viper))?;
    let mut expired: Vec<Vec<u8>> = Vec::new();
    *cursor = session.expired_keys(*cursor, SWEEP, &mut expired)?;
    for key in &expired {
        session.remove_expired(key)?;
    }
    session.commit_pending()?;
    Ok(expired.len())
}

impl Viper {
    /// Starts background work.
    pub(super) fn start(self: &Arc<Self>) {
        let viper = || Arc::downgrade(self);
        self.background.start(viper(), "everdram-viper", step);
        self.keeper.start(viper(), "everdram-index", keep);
    }

    /// One round of background work, for the crash lab, where nothing runs by itself.
    #[cfg(feature = "lab")]
    pub(crate) fn tend(self: &Arc<Self>, cursor: &mut u64) -> Result<(), Error> {
        step(self, cursor)?;
        keep(self, cursor)
    }

    /// Whether anything was written since open: an idle store does not grow.
    fn is_busy(&self) -> bool {
        self.sum(|slot| &slot.puts) > 0
    }

    /// Seals the open blocks of sessions that are gone.
    pub(super) fn seal_parked(self: &Arc<Self>) -> Result<(), Error> {
        let claims = std::mem::take(&mut *self.parked.lock());
        if claims.is_empty() || self.pool.healthy().is_err() {
            return Ok(());
        }
        let mut session = ViperSession::new(Arc::clone(self))?;
        // The tail words are fenced when the session ends. A crash that loses them finds open pages, as it would
        // have without this; and whoever compacts such a block and opens it again writes over them.
        for mut claim in claims {
            claim.seal(&mut session.lane, &mut session.unfenced);
            claim.sealed(&self.blocks);
        }
        Ok(())
    }
}
