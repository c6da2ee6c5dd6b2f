//! The base of every engine: a pool, key locks, a clock, the counters of its sessions, and whether it still
//! takes writes.

use super::Ticket;
use super::background::Background;
use super::clock::system_clock;
use super::counters::Counters;
use super::damage::{Damage, damage_of};
use super::halt::Halt;
use super::session::limit::SessionLimit;
use crate::concurrency::epoch::Epochs;
use crate::concurrency::stripes::Stripes;
use crate::error::Error;
use crate::options::{Clock, Options};
use crate::stats::Stats;
use crossbeam_utils::CachePadded;
use everdram_pm::{Lsn, Pool};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The part that all engines share.
pub(crate) struct Base {
    pub(crate) pool: Arc<Pool>,
    pub(crate) path: PathBuf,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) stripes: Stripes,
    /// By the number of the session's epoch slot.
    pub(crate) counters: Box<[CachePadded<Counters>]>,
    clock: Clock,
    /// The latest time by which any expiry was decided: a clock that jumps back resurrects nothing.
    clock_high: AtomicU64,
    /// Versions up to this one do not count (FLUSHALL).
    pub(crate) floor: AtomicU64,
    /// Whether any key ever had an expiry; without one, the sweep has no work.
    pub(crate) expiries: AtomicBool,
    /// The present sessions of users.
    pub(crate) sessions: SessionLimit,
    /// Why the engine takes no more writes, after an operation failed half-way.
    pub(crate) halted: Halt,
    /// The missing data, if the pool is being salvaged.
    pub(crate) damage: Option<Arc<Damage>>,
    pub(crate) background: Background,
    /// Persistent memory: fenced bytes are durable. On files they are durable once the log is.
    pub(crate) durable_at_fence: bool,
    pub(crate) read_only: bool,
}

impl Base {
    /// `own`: sessions that the engine keeps for its own work, in addition to those of users.
    pub(crate) fn new(pool: Arc<Pool>, path: &Path, options: &Options, own: usize) -> Base {
        let slots = options.sessions_max + own;
        Base {
            path: path.into(),
            epochs: Epochs::new(slots),
            stripes: Stripes::new(options.stripes),
            counters: (0..slots).map(|_| CachePadded::default()).collect(),
            clock: options.clock.clone().unwrap_or_else(system_clock),
            clock_high: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            expiries: AtomicBool::new(false),
            sessions: SessionLimit::new(options.sessions_max),
            halted: Halt::default(),
            damage: damage_of(&pool, options),
            background: Background::default(),
            durable_at_fence: pool.durable() == Lsn(u64::MAX),
            read_only: pool.is_read_only(),
            pool,
        }
    }

    /// Refuses writes once the medium has failed, or the engine has halted.
    #[inline]
    pub(crate) fn healthy(&self) -> Result<(), Error> {
        self.halted.healthy(&self.pool)
    }

    /// Stops taking writes. The next recovery finishes or undoes what is half done in the pool, as long as
    /// nothing is built upon it.
    #[cold]
    pub(crate) fn halt(&self, error: Error) -> Error {
        let error = self.at_path(error);
        self.halted.set(error.to_string());
        error
    }

    /// Adds the pool's path to an error.
    #[cold]
    pub(crate) fn at_path(&self, error: Error) -> Error {
        error.at_path(&self.path)
    }

    /// Waits for batches that are being published, so that the caller shows no half of one.
    ///
    /// # Errors
    /// As [`Base::healthy`], while it waits.
    pub(crate) fn pass_publications(&self) -> Result<(), Error> {
        let mut used = self.counters.iter().take(self.epochs.slots_used());
        used.try_for_each(|session| session.publishing.pass(|| self.healthy()))
    }

    /// Unix milliseconds, never less than before.
    pub(crate) fn now_ms(&self) -> u64 {
        let now = (self.clock)();
        self.clock_high.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// Whether this expiry (Unix milliseconds; 0 = never) has passed.
    #[inline]
    pub(crate) fn is_expired(&self, expires_at_ms: u64) -> bool {
        expires_at_ms != 0 && expires_at_ms <= self.now_ms()
    }

    /// Versions up to this one do not count.
    #[inline]
    pub(crate) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Acquire)
    }

    /// As [`Engine::durable`](super::Engine::durable).
    pub(crate) fn durable(&self) -> Ticket {
        Ticket(self.pool.durable().0)
    }

    /// As [`Engine::committed`](super::Engine::committed).
    pub(crate) fn committed(&self) -> Ticket {
        Ticket(self.pool.fenced().0)
    }

    /// A counter of all sessions.
    pub(crate) fn sum(&self, field: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        let counts = self
            .counters
            .iter()
            .map(|session| field(session).load(Ordering::Relaxed));
        counts.fold(0, u64::wrapping_add)
    }

    /// Keys inserted minus keys removed, in all sessions.
    pub(crate) fn keys(&self) -> i64 {
        let keys = |session: &CachePadded<Counters>| session.keys.load(Ordering::Relaxed);
        self.counters.iter().map(keys).sum()
    }

    /// The statistics that all engines have; the others are 0.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            pool_bytes: self.pool.backed_bytes(),
            puts: self.sum(|session| &session.puts),
            gets: self.sum(|session| &session.gets),
            misses: self.sum(|session| &session.misses),
            deletes: self.sum(|session| &session.deletes),
            expired: self.sum(|session| &session.expired),
            ..Stats::default()
        }
    }
}
