//! How to open a store.

use crate::concurrency::stripes::STRIPES;
use crate::engine::kind::EngineKind;
use crate::engine::random::Random;
use crate::error::Error;
use everdram_pm::{Durability, MediumChoice};
use std::sync::Arc;
use std::time::Duration;

/// What to do about a pool that is not there, or is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Create {
    /// Open it, or create it if there is none.
    #[default]
    IfMissing,
    /// Open it; an error if there is none.
    Never,
    /// Create it; an error if there is one.
    New,
}

/// Wall clock in Unix milliseconds; tests put their own in its place.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Progress of recovery: blocks done, blocks in all.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// What the engine `bullet` is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulletOptions {
    /// Cross-referencing logs: sessions that can have submitted writes at once. 1 to 128.
    pub logs: u32,
    /// Bytes of each log; a multiple of 4 KiB, 4 KiB to 1 GiB.
    pub log_bytes: u64,
    /// Bytes of redo log for each transaction of the back; a multiple of 64, 1 KiB to 1 MiB.
    pub transaction_bytes: u64,
    /// Bytes of a chunk of the persistent heap; a multiple of 4 KiB, 4 KiB to 256 KiB.
    pub chunk_bytes: u64,
    /// The first array of either table has 2 to the power of this many buckets. 1 to 24.
    pub depth: u32,
    /// Which of the paper's systems it is; everything but the default is there to be measured.
    pub system: BulletSystem,
    /// DRAM budget of the front in bytes; `None` keeps all keys in DRAM. It may differ at each opening. Keys
    /// that are read often stay, others are read from the back. The budget counts keys, values and tables;
    /// fragmentation adds up to a third. Unapplied writes are never evicted, so use more than twice `logs`
    /// times `log_bytes`.
    pub front_bytes: Option<u64>,
}

impl Default for BulletOptions {
    fn default() -> Self {
        BulletOptions {
            logs: 16,
            log_bytes: 4 << 20,
            transaction_bytes: 16 << 10,
            chunk_bytes: 256 << 10,
            depth: 13,
            system: BulletSystem::default(),
            front_bytes: None,
        }
    }
}

/// Options of a store; `Options::default()` suits an ordinary directory.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Engine. `None`: the one that an existing pool has, and the default one for a new pool.
    pub engine: Option<EngineKind>,
    /// Medium; `auto` picks and says what it picked.
    pub medium: MediumChoice,
    /// Create, open or either.
    pub create: Create,
    /// Open into private memory: nothing of the pool changes, whatever is done (for `check`, `inspect`).
    pub read_only: bool,
    /// As `read_only`, of a damaged pool: what does not verify is skipped instead of failing the open, and
    /// listed ([`crate::Store::damage`]). A read of a key that is known to be damaged is an error, never
    /// "absent".
    pub salvage: bool,
    /// When a write is acknowledged on the `file` medium.
    pub durability: Durability,
    /// Bytes of the image at creation (rounded up to whole blocks).
    pub initial_bytes: u64,
    /// Bytes the image may grow to.
    pub max_bytes: u64,
    /// Bytes the image grows by each time, at most; a small pool grows by less.
    pub chunk_bytes: u64,
    /// DIMMs a block spans = pages of a block (Viper section 3.2.1). New pools only.
    pub dimms: u32,
    /// Bytes of a page; a multiple of 4 KiB. New pools only.
    pub page_bytes: u32,
    /// Key and value length in bytes that get fixed-size pages (Viper section 3.2.2); records of
    /// other sizes go to variable-size pages. New pools only.
    pub fixed: Option<(u32, u32)>,
    /// Whether to touch every page of the pool when it is opened, so that no later call pays for a first
    /// touch (some 0.1 ms for each MiB; `pmem` and `emulated` only). Growth ahead of the writers touches its
    /// pages anyway.
    pub prefault: bool,
    /// Share of the pool that may be free or garbage before compaction, instead of growth, has to make room
    /// for writers; and share of a block that must be garbage for it to be compacted on request. 0.05 to 1.
    /// Half of it costs twice as many moves.
    pub reclaim_threshold: f64,
    /// Whether reclamation runs in the background. (Bullet: gleaning; without it, those glean who need room.)
    pub reclaim_background: bool,
    /// Bytes of redo log to keep preallocated (`file` medium).
    pub log_bytes: u64,
    /// Bytes of pool that are written, at least, between two checkpoints of the index, which a restart begins
    /// with; 0 = none are written. A checkpoint takes 11 bytes a key.
    pub checkpoint_bytes: u64,
    /// What the engine `bullet` is made of. New pools only, but for `system` and `front_bytes`.
    pub bullet: BulletOptions,
    /// Delay model preset (`emulated` medium); see `everdram_pm::delay`.
    pub delay: Option<String>,
    /// Sessions that may exist at once.
    pub sessions_max: usize,
    /// Locks that keys share, 16 bytes each: 1 to 8192, rounded up to a power of two. Fewer make a small
    /// store smaller.
    pub stripes: usize,
    /// Threads that recover; 0 = one for each core.
    pub recovery_threads: usize,
    /// Wall clock.
    pub clock: Option<Clock>,
    /// Called during recovery.
    pub progress: Option<Progress>,
    /// Decides what is otherwise drawn at random, so that a run can be repeated.
    #[cfg(feature = "lab")]
    #[doc(hidden)]
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            engine: None,
            medium: MediumChoice::Auto,
            create: Create::IfMissing,
            read_only: false,
            salvage: false,
            durability: Durability::Always,
            initial_bytes: 64 << 20,
            max_bytes: 1 << 40,
            chunk_bytes: 64 << 20,
            dimms: 6,
            page_bytes: 4096,
            fixed: None,
            prefault: false,
            reclaim_threshold: 0.25,
            reclaim_background: true,
            log_bytes: 64 << 20,
            checkpoint_bytes: 64 << 20,
            bullet: BulletOptions::default(),
            delay: None,
            sessions_max: 1024,
            stripes: STRIPES,
            recovery_threads: 0,
            clock: None,
            progress: None,
            #[cfg(feature = "lab")]
            seed: None,
        }
    }
}

impl Options {
    /// Threads that recover, one at least.
    pub(crate) fn recoverers(&self) -> usize {
        match self.recovery_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            asked => asked,
        }
    }

    /// Where random words come from.
    pub(crate) fn chance(&self) -> Random {
        #[cfg(feature = "lab")]
        if let Some(seed) = self.seed {
            return Random::seeded(seed);
        }
        Random::default()
    }

    /// Between two looks at who should glean. The crash lab has no time.
    pub(crate) fn role_period(&self) -> Duration {
        #[cfg(feature = "lab")]
        if self.seed.is_some() {
            return Duration::ZERO;
        }
        Duration::from_millis(2)
    }

    /// Depth of an empty index. The crash lab makes one for each of a million images, and to touch its memory
    /// would take longer than everything else.
    pub(crate) fn index_depth(&self) -> u32 {
        #[cfg(feature = "lab")]
        if self.seed.is_some() {
            return 2;
        }
        crate::index::DEPTH_FIRST
    }

    /// Refuses what cannot work, before anything is touched.
    ///
    /// # Errors
    /// [`Error::Options`] says which option and what it may be.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Options(what));
        if !(1..=64).contains(&self.dimms) {
            return refuse(format!("dimms = {}: 1 to 64", self.dimms));
        }
        if !self.page_bytes.is_multiple_of(4096) || !(4096..=1 << 20).contains(&self.page_bytes) {
            return refuse(format!(
                "page_bytes = {}: a multiple of 4096 up to 1 MiB",
                self.page_bytes
            ));
        }
        if !(0.05..=1.0).contains(&self.reclaim_threshold) {
            return refuse(format!(
                "reclaim_threshold = {}: 0.05 to 1",
                self.reclaim_threshold
            ));
        }
        if self.max_bytes < self.initial_bytes {
            return refuse(format!(
                "max_bytes = {} is below initial_bytes = {}",
                self.max_bytes, self.initial_bytes
            ));
        }
        if self.bullet.front_bytes.is_some() && !self.bullet.system.is_logged() {
            return refuse(format!(
                "bullet.front_bytes: the system `{}` has no front that may be part of the data",
                self.bullet.system
            ));
        }
        const MAX: usize = 32_000;
        if !(1..=MAX).contains(&self.sessions_max) {
            return refuse(format!("sessions_max = {}: 1 to {MAX}", self.sessions_max));
        }
        Ok(())
    }
}

/// Which of the paper's systems a pool is. Anything but [`BulletSystem::Wrc`] exists to be measured.
///
/// The first three are bounds. `Volatile` keeps nothing: its pool is as empty after a restart as before.
/// `HikvHt` writes so that its table would survive, but not which memory is in use; so its pools are not
/// opened twice. Nor are those of `Phash`.
///
/// The others are Bullet's ladder, each with all of what those before it have; their pools are ordinary ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BulletSystem {
    /// The table in DRAM alone: no logs, no pool. The upper bound.
    Volatile,
    /// The persistent table alone; each write is a transaction. The lower bound.
    Phash,
    /// The persistent table as HiKV's hash table writes one: an object, a fence, its slot, a fence.
    HikvHt,
    /// The base: gets take locks; a transaction in the path of each write; workers either answer or glean,
    /// for ever.
    Static,
    /// And gets take no lock (section 4.2).
    Lfr,
    /// And no transaction in the path of a write (section 4.1).
    Opt,
    /// And workers change between answering and gleaning (section 4.3).
    Dyn,
    /// And writes collapse: a gleaner applies what a key has now, not each record of it (section 4.4). All of
    /// Bullet.
    #[default]
    Wrc,
}

impl BulletSystem {
    /// All eight: the bounds, and the ladder upwards.
    pub const ALL: &[BulletSystem] = &[
        BulletSystem::Volatile,
        BulletSystem::Phash,
        BulletSystem::HikvHt,
        BulletSystem::Static,
        BulletSystem::Lfr,
        BulletSystem::Opt,
        BulletSystem::Dyn,
        BulletSystem::Wrc,
    ];

    /// The number in the superblock of a system whose pools are opened once; 0: its pools are ordinary ones.
    pub(crate) const fn bound(self) -> u32 {
        match self {
            BulletSystem::Volatile => 1,
            BulletSystem::Phash => 2,
            BulletSystem::HikvHt => 3,
            _ => 0,
        }
    }

    /// Whether writes are logged: they are durable then, and gleaned.
    pub(crate) const fn is_logged(self) -> bool {
        !matches!(
            self,
            BulletSystem::Volatile | BulletSystem::Phash | BulletSystem::HikvHt
        )
    }

    /// Whether there is a table in DRAM.
    pub(crate) const fn has_front(self) -> bool {
        !matches!(self, BulletSystem::Phash | BulletSystem::HikvHt)
    }

    /// Whether gets take locks.
    pub(crate) const fn locks_gets(self) -> bool {
        matches!(self, BulletSystem::Static)
    }

    /// Whether a write finds its key's object in the back and changes it, in a transaction.
    pub(crate) const fn has_transaction(self) -> bool {
        matches!(self, BulletSystem::Static | BulletSystem::Lfr)
    }

    /// Whether workers keep the role they have.
    pub(crate) const fn has_fixed_roles(self) -> bool {
        matches!(
            self,
            BulletSystem::Static | BulletSystem::Lfr | BulletSystem::Opt
        )
    }

    /// Whether each record is applied, and not only what a key has now.
    pub(crate) const fn applies_each(self) -> bool {
        self.is_logged() && !matches!(self, BulletSystem::Wrc)
    }

    /// Its name in the paper's figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BulletSystem::Volatile => "volatile",
            BulletSystem::Phash => "phash",
            BulletSystem::HikvHt => "hikv-ht",
            BulletSystem::Static => "static",
            BulletSystem::Lfr => "+lfr",
            BulletSystem::Opt => "+opt",
            BulletSystem::Dyn => "+dyn",
            BulletSystem::Wrc => "+wrc",
        }
    }
}

impl std::fmt::Display for BulletSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for BulletSystem {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = BulletSystem::ALL.iter().copied();
        all.find(|system| system.name() == name).ok_or_else(|| {
            let names: Vec<_> = BulletSystem::ALL
                .iter()
                .map(|system| system.name())
                .collect();
            format!("system `{name}`: there are {}", names.join(", "))
        })
    }
}
