//! Kinds of workloads: the shape of the pool and its keys. `plan::mix` draws the calls.

use super::Manner;
use super::call::Key;
use everdram::{EngineKind, Options};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Bytes of a key that is longer than a block.
const LONG_KEY: usize = 1500;
/// Bytes of a value that fits a slot, where there are slots.
pub(crate) const VALUE_FIXED: u32 = 48;
/// The first keys of a workload with ranges: some begin like others for longer than a word, or are their
/// beginnings.
const ALIKE: [&[u8]; 6] = [
    b"k",
    b"ka",
    b"kaaaaaaaaaaaa0",
    b"kaaaaaaaaaaaa00",
    b"kaaaaaaaaaaaa1",
    b"kaaaaaaaaaaab",
];
/// Key locks: each image is opened with its own.
const STRIPES: usize = 64;
/// Bytes of a chunk of blocks of a data file.
const DATA_CHUNK: u64 = 32 << 10;
/// Jobs of the store that may need a session at the same time.
const JOBS: usize = 8;

/// A kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Profile {
    /// Several threads on the same few keys.
    Threads,
    /// Records of one size, in slots; words changed in place.
    Fixed,
    /// Records of many sizes, in pages that are logs.
    Variable,
    /// Records of up to a block, values in pieces over several blocks, keys longer than a page.
    Large,
    /// Several keys at once, all or none; removing everything; submitting many and committing once.
    Batch,
    /// Keys that expire, and their sweep.
    Expiry,
    /// Much garbage, little room: blocks are compacted and used again.
    Reclamation,
    /// Little garbage: the pool grows.
    Growth,
    /// DRAM only for what is not in the pool yet, so that keys leave it and come back. Sessions glean between
    /// calls, by their roles.
    Narrow,
    /// Ranges of keys in order, of which some begin alike; for engines that have an order.
    Order,
    /// Values that are read, written and cut at offsets, over the edges of blocks and maps; for engines that
    /// change parts of values.
    Objects,
    /// A pool of few blocks with a log below: keys leave, come back by reads and writes, and segments are
    /// cleaned; for engines with two tiers.
    Tiers,
    /// Clients that write into a landing area of the pool, whole or not, late or never, while sessions use
    /// the same keys.
    Remote,
}

impl Profile {
    /// All of them. Those that find most come first.
    pub const ALL: [Profile; 13] = [
        Profile::Threads,
        Profile::Fixed,
        Profile::Variable,
        Profile::Large,
        Profile::Batch,
        Profile::Expiry,
        Profile::Reclamation,
        Profile::Growth,
        Profile::Narrow,
        Profile::Order,
        Profile::Objects,
        Profile::Tiers,
        Profile::Remote,
    ];

    /// Those of an engine.
    #[must_use]
    pub fn of(engine: EngineKind) -> Vec<Profile> {
        let fits = |profile: &Profile| match profile {
            Profile::Order | Profile::Objects => engine == EngineKind::Dstore,
            Profile::Tiers => engine == EngineKind::Tiered,
            _ => true,
        };
        Profile::ALL.into_iter().filter(fits).collect()
    }

    /// As `--profile` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Profile::Fixed => "fixed",
            Profile::Variable => "variable",
            Profile::Large => "large",
            Profile::Batch => "batch",
            Profile::Expiry => "expiry",
            Profile::Reclamation => "reclamation",
            Profile::Growth => "growth",
            Profile::Narrow => "narrow",
            Profile::Order => "order",
            Profile::Objects => "objects",
            Profile::Tiers => "tiers",
            Profile::Remote => "remote",
            Profile::Threads => "threads",
        }
    }

    /// Keys of a workload.
    #[must_use]
    pub fn keys(self) -> usize {
        match self {
            Profile::Growth => 24,
            Profile::Threads => 5,
            Profile::Objects | Profile::Remote => 4,
            Profile::Tiers => 12,
            _ => 8,
        }
    }

    /// Threads, and sessions.
    #[must_use]
    pub fn sessions(self) -> usize {
        match self {
            Profile::Threads => 3,
            _ => 2,
        }
    }

    /// The bytes of a key. They ascend with its number.
    #[must_use]
    pub fn key(self, key: Key) -> Vec<u8> {
        if let (Profile::Order, Some(name)) = (self, ALIKE.get(usize::from(key))) {
            return name.to_vec();
        }
        let mut bytes = vec![b'k', b'a' + key % 26];
        let padded = match (self, key) {
            (Profile::Fixed, _) => 8,
            // Longer than a block: such a key is in pieces together with its value.
            (Profile::Large, 0) => LONG_KEY,
            // Other profiles have one such key, if there is room for it.
            (Profile::Growth | Profile::Narrow | Profile::Tiers | Profile::Remote, _) => 2,
            (_, key) if usize::from(key) + 1 == self.keys() => LONG_KEY,
            (Profile::Variable, key) if key % 3 == 0 => 40,
            _ => 2,
        };
        bytes.resize(padded, b'.');
        bytes
    }

    /// The key that is longer than a block, where there is one.
    pub(crate) fn long_key(self) -> Option<Key> {
        (0..self.keys() as Key).find(|&key| self.key(key).len() == LONG_KEY)
    }

    /// How the pool is opened: the smallest geometry, no background work.
    #[must_use]
    pub fn options(self) -> Options {
        let mut options = Options::default();
        options.page_bytes = 512;
        options.dimms = 2;
        // A single log is full soon, so that sessions change their roles.
        options.bullet.logs = if self == Profile::Narrow { 1 } else { 2 };
        options.bullet.log_bytes = 4 << 10;
        options.bullet.transaction_bytes = 1 << 10;
        options.bullet.chunk_bytes = 4 << 10;
        options.bullet.depth = 2;
        options.bullet.front_bytes = (self == Profile::Narrow).then_some(1);
        options.dstore.logs = 2;
        options.dstore.log_bytes = 4 << 10;
        options.dstore.page_bytes = 512;
        options.dstore.block_bytes = 512;
        options.dstore.inline_bytes = 16;
        // Each session takes blocks from a chunk of its own.
        options.dstore.data_bytes_max = self.sessions() as u64 * DATA_CHUNK;
        options.initial_bytes = 16 << 10;
        options.chunk_bytes = 16 << 10;
        options.max_bytes = self.capacity();
        // Jobs need sessions as well.
        options.sessions_max = self.sessions() + JOBS;
        options.stripes = STRIPES;
        options.recovery_threads = 1;
        // A checkpoint every few blocks, when background work is done, and at a close.
        options.checkpoint_bytes = 8 << 10;
        options.reclaim_background = true;
        options.fixed = match self {
            Profile::Fixed => Some((8, VALUE_FIXED)),
            Profile::Threads => Some((2, VALUE_FIXED)),
            _ => None,
        };
        options.reclaim_threshold = match self {
            Profile::Reclamation => 0.05,
            _ => 0.25,
        };
        options
    }

    /// Bytes that the image may grow to.
    #[must_use]
    pub fn capacity(self) -> u64 {
        match self {
            Profile::Growth | Profile::Large | Profile::Remote => 160 << 10,
            Profile::Tiers => 96 << 10,
            _ => 128 << 10,
        }
    }

    /// Segments of the redo log. With few, checkpoints are frequent and segments are reused. With many,
    /// changes stay in memory longer, because a checkpoint writes whole pages of the image.
    #[must_use]
    pub fn log_segments(self) -> u64 {
        match self {
            Profile::Fixed | Profile::Batch | Profile::Reclamation => 64,
            _ => 8,
        }
    }

    /// How sessions take turns in a run of this profile.
    #[must_use]
    pub fn manner(self, seed: u64) -> Manner {
        let mut drawn = random(seed, 7);
        match self == Profile::Threads || drawn.random_range(0..3) > 0 {
            true => Manner::Threads {
                // Mostly some of them, sometimes none or all.
                jobs: match drawn.random_range(0..4) {
                    0 => u8::MAX,
                    _ => drawn.random(),
                },
            },
            false => Manner::Turns,
        }
    }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Profile {
    type Err = String;
    fn from_str(name: &str) -> Result<Profile, String> {
        let known = || Profile::ALL.map(Profile::name).join(", ");
        Profile::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(|| format!("profile `{name}`: one of {}", known()))
    }
}

/// Random numbers from a seed. Each purpose has its own.
#[must_use]
pub fn random(seed: u64, purpose: u64) -> StdRng {
    StdRng::seed_from_u64(seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
