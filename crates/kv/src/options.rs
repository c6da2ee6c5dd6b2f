//! How to open a store.

use crate::concurrency::stripes::STRIPES;
use crate::engine::kind::EngineKind;
use crate::engine::random::Random;
use crate::error::Error;
use crate::landing::layout::AREA_BYTES_MAX;
use everdram_pm::{DiskPreset, Durability, Medium, MediumChoice};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What to do if the pool is missing, or exists.
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

/// Wall clock in Unix milliseconds; tests replace it.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Progress of recovery: blocks done, blocks in total.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Settings of the engine `bullet`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulletOptions {
    /// Cross-referencing logs: how many sessions can have submitted writes at once. 1 to 128.
    pub logs: u32,
    /// Bytes of each log; a multiple of 4 KiB, 4 KiB to 1 GiB.
    pub log_bytes: u64,
    /// Bytes of redo log for each transaction of the back; a multiple of 64, 1 KiB to 1 MiB.
    pub transaction_bytes: u64,
    /// Bytes of a chunk of the persistent heap; a multiple of 4 KiB, 4 KiB to 256 KiB.
    pub chunk_bytes: u64,
    /// The first array of each table has 2 to the power of `depth` buckets. 1 to 24.
    pub depth: u32,
    /// Which of the paper's systems to run; all but the default exist only to be measured.
    pub system: BulletSystem,
    /// DRAM budget of the front in bytes; `None` keeps all keys in DRAM. It may differ at each open.
    /// Frequently read keys stay in DRAM; the others are read from the back. The budget counts keys, values
    /// and tables; fragmentation adds up to a third. Unapplied writes are never evicted, so use more than
    /// twice `logs` times `log_bytes`.
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

/// Settings of the engine `dstore`. New pools only, except those of the data file (but for the size of its
/// blocks), and `system` among ordinary pools.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DstoreOptions {
    /// Where the values are: a regular file, which is created for a new pool, or a block device. `None`:
    /// where the pool remembers that it was, or else the file `data` in the pool's directory.
    pub data: Option<PathBuf>,
    /// Limit of the data file in bytes.
    pub data_bytes_max: u64,
    /// Makes calls on the data file as slow as those of a disk, for benchmarks on memory (`emulated` medium);
    /// the name of a preset such as `p4800x`, see `everdram_pm::DISK_PRESETS`.
    pub data_delay: Option<String>,
    /// Whether reads of the data file pass by the page cache, where its file system can do that: for data
    /// that are much larger than memory, and seldom read twice.
    pub reads_directly: bool,
    /// Bytes of a block of the data file: a power of two, 512 to 64 KiB.
    pub block_bytes: u32,
    /// Bytes of a page of metadata in the pool: a power of two, 512 to 64 KiB.
    pub page_bytes: u32,
    /// Values up to this length lie with the metadata, and not in blocks: 0 (as in the paper) to 4096.
    pub inline_bytes: u32,
    /// Logs: how many sessions can append at a time. 1 to 128.
    pub logs: u32,
    /// Bytes of each log; a multiple of 4 KiB, 4 KiB to 1 GiB.
    pub log_bytes: u64,
    /// Which of the paper's systems to run; all but the default exist only to be measured.
    pub system: DstoreSystem,
}

impl Default for DstoreOptions {
    fn default() -> Self {
        DstoreOptions {
            data: None,
            data_bytes_max: 1 << 44,
            data_delay: None,
            reads_directly: false,
            block_bytes: 4096,
            page_bytes: 4096,
            inline_bytes: 512,
            logs: 16,
            log_bytes: 4 << 20,
            system: DstoreSystem::default(),
        }
    }
}

/// Settings of the engine `tiered`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TieredOptions {
    /// The directory of the log, on a disk. `None`: where the pool remembers that it was, or else `tier2` in
    /// the pool's directory.
    pub below: Option<PathBuf>,
    /// Share of the pool that eviction keeps free for writers. 0.01 to 0.9.
    pub free: f64,
    /// Share of the log's bytes that may be stale before segments are cleaned, those with the most first.
    /// 0.05 to 1.
    pub garbage: f64,
    /// Bytes of a segment of the log: 4 KiB to 64 MiB.
    pub segment_bytes: u64,
    /// Which keys of the log come back to the pool.
    pub promote: Promote,
    /// Which records leave the pool first.
    pub policy: Policy,
    /// What calls do after a restart while the log is still being read.
    pub loading: Loading,
}

/// What calls do after a restart of a store of the engine `tiered` while its log is still being read. Keys
/// that the pool has are served at once in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Loading {
    /// Calls wait that need other keys, or all. Other sessions of the calling thread must have no submitted
    /// writes meanwhile.
    #[default]
    Wait,
    /// They fail with [`Error::Loading`].
    Refuse,
    /// The open itself waits, and finds damage of the log.
    AtOpen,
}

/// Which records leave the pool of a store of the engine `tiered` first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// Those that nobody read or wrote since they were new; then those that were not used for longest.
    #[default]
    S3Fifo,
    /// Those that were written longest ago and not read since.
    Clock,
    /// Those that were written longest ago.
    Fifo,
    /// Those that were not used for longest, as in the paper (section 3.2). A record that is read in the
    /// older half of the pool is written again, to persistent memory.
    Lru,
}

impl Policy {
    /// All of them, with their names.
    const NAMES: [(&'static str, Policy); 4] = [
        ("s3fifo", Policy::S3Fifo),
        ("clock", Policy::Clock),
        ("fifo", Policy::Fifo),
        ("lru", Policy::Lru),
    ];
}

impl std::str::FromStr for Policy {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let known = Policy::NAMES.iter().find(|(known, _)| *known == name);
        let known = known.map(|(_, policy)| *policy);
        known.ok_or_else(|| format!("policy `{name}`: use s3fifo, clock, fifo or lru"))
    }
}

/// Which keys of the log come back to the pool of a store of the engine `tiered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Promote {
    /// Those that are written, as in the paper (section 3.2).
    Update,
    /// Those, and keys that are read twice in a while, or once soon after they left.
    #[default]
    SecondRead,
}

impl std::str::FromStr for Promote {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "update" => Ok(Promote::Update),
            "second-read" => Ok(Promote::SecondRead),
            _ => Err(format!("promote `{name}`: use update or second-read")),
        }
    }
}

impl Default for TieredOptions {
    fn default() -> Self {
        TieredOptions {
            below: None,
            free: 0.1,
            garbage: 0.5,
            segment_bytes: 64 << 20,
            promote: Promote::default(),
            policy: Policy::default(),
            loading: Loading::default(),
        }
    }
}

/// Options of a store. The defaults suit an ordinary directory.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Engine. `None`: that of an existing pool, or the default for a new one.
    pub engine: Option<EngineKind>,
    /// Medium; `auto` chooses, and [`crate::Store::report`] says what it chose.
    pub medium: MediumChoice,
    /// Whether to create the pool, to open it, or either.
    pub create: Create,
    /// Opens the pool in private memory: whatever the caller does, the pool does not change (for `check`,
    /// `inspect`).
    pub read_only: bool,
    /// As `read_only`, for a damaged pool: the open skips and lists damage ([`crate::Store::damage`]) instead
    /// of failing. A read of a key that is known to be damaged is an error, never "absent".
    pub salvage: bool,
    /// When a write is acknowledged on the `file` medium.
    pub durability: Durability,
    /// Bytes of the image at creation (rounded up to whole blocks).
    pub initial_bytes: u64,
    /// Limit of the image in bytes.
    pub max_bytes: u64,
    /// Most bytes the image grows by at once; a small pool grows by less.
    pub chunk_bytes: u64,
    /// DIMMs that a block spans, one page each (Viper section 3.2.1). New pools only.
    pub dimms: u32,
    /// Bytes of a page; a multiple of 4 KiB. New pools only.
    pub page_bytes: u32,
    /// Lengths of key and value in bytes for fixed-size pages (Viper section 3.2.2); records of other sizes
    /// go to variable-size pages. New pools only.
    pub fixed: Option<(u32, u32)>,
    /// Whether to touch every page of the pool at open, so that no later call takes a page fault (some 0.1 ms
    /// per MiB; `pmem` and `emulated` only). Engines `viper` and `tiered` on `emulated` also get pages of
    /// 2 MiB, where the kernel has them: gets become a third faster. Growth ahead of the writers always
    /// touches its pages.
    pub prefault: bool,
    /// Whether the room of free blocks is never given back to the file system, so that peers of a fabric may
    /// read long values in place ([`Engine::readable`](crate::engine::Engine::readable)). Engine `viper` on
    /// media that are durable at the fence; others have no such readers, and ignore it.
    pub keep_room: bool,
    /// Most bytes of free blocks that are lent to peers of a fabric at once, who write long values into them
    /// ([`Engine::lend`](crate::engine::Engine::lend)); 0, the default: none. Takes `keep_room`, and is
    /// ignored where that is. Blocks are lent only while a reserve for all other writers is free.
    pub lend_bytes: u64,
    /// Share of the pool that may be free or garbage before compaction, instead of growth, must make room for
    /// writers. Also the share of garbage at which a requested reclamation compacts a block. 0.05 to 1.
    /// Halving it doubles the records moved.
    pub reclaim_threshold: f64,
    /// Whether reclamation runs in the background. (Bullet: gleaning. Without it, a session that needs room
    /// gleans.)
    pub reclaim_background: bool,
    /// Bytes of redo log to keep preallocated (`file` medium).
    pub log_bytes: u64,
    /// Bytes written to the pool between two checkpoints of the index, at least; 0 = no checkpoints. A
    /// restart begins with the last one. A checkpoint takes 11 bytes per key.
    pub checkpoint_bytes: u64,
    /// Bytes of the landing area, rounded up to whole pages of 4 KiB, into which remote clients write values
    /// ([`crate::landing`]); only on media that are durable at the fence (`pmem`, `emulated`). 0 = none. An
    /// area is never resized or removed: a pool that has one keeps it, whatever is asked for. An everdram
    /// that knows no such areas refuses the pool.
    pub landing_bytes: u64,
    /// Settings of the engine `bullet`. New pools only, except `system` and `front_bytes`.
    pub bullet: BulletOptions,
    /// Settings of the engine `dstore`.
    pub dstore: DstoreOptions,
    /// Settings of the engine `tiered`; its tier 1 is the pool, of at most `max_bytes`.
    pub tiered: TieredOptions,
    /// Delay model preset (`emulated` medium); see `everdram_pm::PRESETS`.
    pub delay: Option<String>,
    /// Most sessions at once.
    pub sessions_max: usize,
    /// Locks for all keys, 16 bytes each: 1 to 8192, rounded up to a power of two. Fewer make a small store
    /// smaller.
    pub stripes: usize,
    /// Threads for recovery; 0 = one per core.
    pub recovery_threads: usize,
    /// Wall clock; `None` = that of the system.
    pub clock: Option<Clock>,
    /// Called as recovery proceeds.
    pub progress: Option<Progress>,
    /// Replaces random choices, so that a run can be repeated.
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
            keep_room: false,
            lend_bytes: 0,
            reclaim_threshold: 0.25,
            reclaim_background: true,
            log_bytes: 64 << 20,
            checkpoint_bytes: 64 << 20,
            landing_bytes: 0,
            bullet: BulletOptions::default(),
            dstore: DstoreOptions::default(),
            tiered: TieredOptions::default(),
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
    /// Threads for recovery, at least one.
    pub(crate) fn recoverers(&self) -> usize {
        match self.recovery_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            asked => asked,
        }
    }

    /// The source of random words.
    pub(crate) fn chance(&self) -> Random {
        #[cfg(feature = "lab")]
        if let Some(seed) = self.seed {
            return Random::seeded(seed);
        }
        Random::default()
    }

    /// What replaces random choices, if a run is to be repeated.
    pub(crate) fn fixed_seed(&self) -> Option<u64> {
        #[cfg(feature = "lab")]
        if self.seed.is_some() {
            return self.seed;
        }
        None
    }

    /// Time between two decisions about roles. The crash lab has no time.
    pub(crate) fn role_period(&self) -> Duration {
        #[cfg(feature = "lab")]
        if self.seed.is_some() {
            return Duration::ZERO;
        }
        Duration::from_millis(2)
    }

    /// Depth of an empty index. The crash lab makes one for each of a million images, and touching its memory
    /// would dominate the run.
    pub(crate) fn index_depth(&self) -> u32 {
        #[cfg(feature = "lab")]
        if self.seed.is_some() {
            return 2;
        }
        crate::index::DEPTH_FIRST
    }

    /// Refuses options that cannot work, before anything is touched.
    ///
    /// # Errors
    /// [`Error::Options`] names the option and its allowed values.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Options(what));
        if !(1..=64).contains(&self.dimms) {
            return refuse(format!("dimms = {}: give 1 to 64", self.dimms));
        }
        if !self.page_bytes.is_multiple_of(4096) || !(4096..=1 << 20).contains(&self.page_bytes) {
            return refuse(format!(
                "page_bytes = {}: give a multiple of 4096, up to 1 MiB",
                self.page_bytes
            ));
        }
        if !(0.05..=1.0).contains(&self.reclaim_threshold) {
            return refuse(format!(
                "reclaim_threshold = {}: give 0.05 to 1",
                self.reclaim_threshold
            ));
        }
        if self.max_bytes < self.initial_bytes {
            return refuse(format!(
                "max_bytes = {} is below initial_bytes = {}; raise it",
                self.max_bytes, self.initial_bytes
            ));
        }
        if self.bullet.front_bytes.is_some() && !self.bullet.system.is_logged() {
            return refuse(format!(
                "bullet.front_bytes: the system `{}` has no front with a budget; leave the option out",
                self.bullet.system
            ));
        }
        if let Some(name) = &self.dstore.data_delay {
            DiskPreset::by_name(name, self.medium).map_err(Error::Options)?;
        }
        let tiered = &self.tiered;
        if !(0.01..=0.9).contains(&tiered.free) || !(0.05..=1.0).contains(&tiered.garbage) {
            return refuse(format!(
                "tiered.free = {}, tiered.garbage = {}: give 0.01 to 0.9, and 0.05 to 1",
                tiered.free, tiered.garbage
            ));
        }
        if !(4 << 10..=64 << 20).contains(&tiered.segment_bytes) {
            return refuse(format!(
                "tiered.segment_bytes = {}: give 4 KiB to 64 MiB",
                tiered.segment_bytes
            ));
        }
        if self.landing_bytes > AREA_BYTES_MAX {
            return refuse(format!(
                "landing_bytes = {}: give up to {AREA_BYTES_MAX}",
                self.landing_bytes
            ));
        }
        if self.landing_bytes > 0 && self.medium == MediumChoice::Only(Medium::File) {
            return refuse(
                "landing_bytes: a landing area needs a medium that is durable at the fence; ask for `pmem` or \
                 `emulated`, or leave the option out"
                    .into(),
            );
        }
        const MAX: usize = 32_000;
        if !(1..=MAX).contains(&self.sessions_max) {
            return refuse(format!(
                "sessions_max = {}: give 1 to {MAX}",
                self.sessions_max
            ));
        }
        Ok(())
    }
}

/// Which of the paper's systems a pool runs. All but [`BulletSystem::Wrc`] exist to be measured.
///
/// The first three are bounds, and their pools are never opened twice. `Volatile` keeps nothing: its pool
/// stays empty. `HikvHt` writes its table such that it would survive, but does not persist which memory is in
/// use. `Phash` is the lower bound.
///
/// The others are Bullet's ladder: each adds one technique to the one before it. Their pools are ordinary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BulletSystem {
    /// The table in DRAM alone: no logs, no pool. The upper bound.
    Volatile,
    /// The persistent table alone; each write is a transaction. The lower bound.
    Phash,
    /// The persistent table as HiKV's hash table writes one: an object, a fence, its slot, a fence.
    HikvHt,
    /// The base of the ladder: gets take locks, each write runs a transaction, and each worker either answers
    /// or gleans, permanently.
    Static,
    /// `Static`, and gets take no lock (section 4.2).
    Lfr,
    /// `Lfr`, and writes run no transaction (section 4.1).
    Opt,
    /// `Opt`, and workers switch between answering and gleaning (section 4.3).
    Dyn,
    /// `Dyn`, and writes collapse: a gleaner applies a key's current state, not each of its records (section
    /// 4.4). All of Bullet.
    #[default]
    Wrc,
}

impl BulletSystem {
    /// All eight: the bounds, then the ladder upwards.
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

    /// The superblock's number for a system whose pools are opened once; 0 for ordinary pools.
    pub(crate) const fn bound(self) -> u32 {
        match self {
            BulletSystem::Volatile => 1,
            BulletSystem::Phash => 2,
            BulletSystem::HikvHt => 3,
            _ => 0,
        }
    }

    /// Whether writes are logged, and so durable, and gleaned.
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

    /// Whether a write changes its key's object in the back, in a transaction.
    pub(crate) const fn has_transaction(self) -> bool {
        matches!(self, BulletSystem::Static | BulletSystem::Lfr)
    }

    /// Whether workers keep their first role.
    pub(crate) const fn has_fixed_roles(self) -> bool {
        matches!(
            self,
            BulletSystem::Static | BulletSystem::Lfr | BulletSystem::Opt
        )
    }

    /// Whether a gleaner applies each record, not only a key's current state.
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
            format!("system `{name}`: use one of {}", names.join(", "))
        })
    }
}

/// Which of the systems of DStore's paper a pool runs. All but [`DstoreSystem::Oe`] exist to be measured.
///
/// The first two are bounds, and their pools are never opened twice. The others are the ladder of figure 9,
/// each with one technique more than the one before it, and the system with other checkpoints. Their pools
/// are ordinary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DstoreSystem {
    /// Values on the data file, metadata in DRAM alone: no log, no checkpoints. The upper bound.
    Volatile,
    /// No log: each commit changes the shadow and switches its root (the paper's uncached systems). The lower
    /// bound.
    Inline,
    /// The base of the ladder: records of the words before and after (ARIES, as in NV-HTM and DudeTM),
    /// copy-on-write checkpoints, and one lock over allocation, metadata and log.
    Physical,
    /// `Physical`, with records of what an operation does.
    Logical,
    /// `Logical`, with DIPPER's checkpoints (section 3.5).
    Dipper,
    /// `Dipper`, without the one lock: operations on different objects run side by side (section 3.7). All of
    /// DStore.
    #[default]
    Oe,
    /// `Oe` with copy-on-write checkpoints (section 4.5): the paper's DStore (CoW).
    Cow,
}

impl DstoreSystem {
    /// All seven: the bounds, the ladder upwards, and the other one.
    pub const ALL: &[DstoreSystem] = &[
        DstoreSystem::Volatile,
        DstoreSystem::Inline,
        DstoreSystem::Physical,
        DstoreSystem::Logical,
        DstoreSystem::Dipper,
        DstoreSystem::Oe,
        DstoreSystem::Cow,
    ];

    /// The superblock's number for a system whose pools are opened once; 0 for ordinary pools.
    pub(crate) const fn bound(self) -> u32 {
        match self {
            DstoreSystem::Volatile => 1,
            DstoreSystem::Inline => 2,
            _ => 0,
        }
    }

    /// Whether writes are logged.
    pub(crate) const fn is_logged(self) -> bool {
        self.bound() == 0
    }

    /// Whether a record has the state before, too.
    pub(crate) const fn logs_words(self) -> bool {
        matches!(self, DstoreSystem::Physical)
    }

    /// Whether one lock is over allocation, metadata and log.
    pub(crate) const fn has_one_lock(self) -> bool {
        matches!(
            self,
            DstoreSystem::Inline
                | DstoreSystem::Physical
                | DstoreSystem::Logical
                | DstoreSystem::Dipper
        )
    }

    /// Whether a checkpoint copies pages of DRAM, and writers wait for the page that they change.
    pub(crate) const fn copies_on_write(self) -> bool {
        matches!(
            self,
            DstoreSystem::Physical | DstoreSystem::Logical | DstoreSystem::Cow
        )
    }

    /// Its name in figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DstoreSystem::Volatile => "volatile",
            DstoreSystem::Inline => "inline",
            DstoreSystem::Physical => "physical",
            DstoreSystem::Logical => "+logical",
            DstoreSystem::Dipper => "+dipper",
            DstoreSystem::Oe => "+oe",
            DstoreSystem::Cow => "cow",
        }
    }
}

impl std::fmt::Display for DstoreSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for DstoreSystem {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = DstoreSystem::ALL.iter().copied();
        all.find(|system| system.name() == name).ok_or_else(|| {
            let names: Vec<_> = DstoreSystem::ALL
                .iter()
                .map(|system| system.name())
                .collect();
            format!("system `{name}`: use one of {}", names.join(", "))
        })
    }
}
