//! What a workload is like: the shape of the pool, the keys and values, and how often each call is made.

use crate::call::{Call, Key, Values};
use everdram::Options;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Profile {
    /// Records of one size, in slots; words changed in place.
    Fixed,
    /// Records of many sizes, in pages that are logs.
    Variable,
    /// Records of up to a block, values in pieces over several blocks, keys longer than a page.
    Large,
    /// Several keys at once, all or none; removing everything; submitting many and committing once.
    Batch,
    /// Keys that go away by themselves, and their sweep.
    Expiry,
    /// Much garbage, little room: blocks are compacted and used again.
    Reclamation,
    /// Little garbage: the pool grows.
    Growth,
    /// DRAM for nothing but what is not in the pool yet: keys leave it and come back. Sessions glean in between, as their roles want it.
    Narrow,
    /// Several threads on the same keys, under a scheduler.
    Threads,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 9] = [
        Profile::Fixed,
        Profile::Variable,
        Profile::Large,
        Profile::Batch,
        Profile::Expiry,
        Profile::Reclamation,
        Profile::Growth,
        Profile::Narrow,
        Profile::Threads,
    ];

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
            Profile::Threads => "threads",
        }
    }

    /// Keys of a workload.
    #[must_use]
    pub fn keys(self) -> usize {
        match self {
            Profile::Growth => 24,
            Profile::Threads => 4,
            _ => 8,
        }
    }

    /// Threads, and sessions.
    #[must_use]
    pub fn sessions(self) -> usize {
        match self {
            Profile::Threads => 3,
            Profile::Growth | Profile::Large => 1,
            _ => 2,
        }
    }

    /// The bytes of a key.
    #[must_use]
    pub fn key(self, key: Key) -> Vec<u8> {
        let mut bytes = vec![b'k', b'a' + key % 26];
        let padded = match (self, key) {
            (Profile::Fixed, _) => 8,
            // Longer than a block: such a key lies in the pieces with its value.
            (Profile::Large, 0) => 1500,
            (Profile::Variable, key) if key % 3 == 0 => 40,
            _ => 2,
        };
        bytes.resize(padded, b'.');
        bytes
    }

    /// How the pool is opened: the smallest geometry, no background work.
    #[must_use]
    pub fn options(self) -> Options {
        let mut options = Options::default();
        options.page_bytes = 512;
        options.dimms = 2;
        // One that is full soon, so that sessions change their roles.
        options.bullet.logs = if self == Profile::Narrow { 1 } else { 2 };
        options.bullet.log_bytes = 4 << 10;
        options.bullet.transaction_bytes = 1 << 10;
        options.bullet.chunk_bytes = 4 << 10;
        options.bullet.depth = 2;
        options.bullet.front_bytes = (self == Profile::Narrow).then_some(1);
        options.initial_bytes = 16 << 10;
        options.chunk_bytes = 16 << 10;
        options.max_bytes = self.capacity();
        options.sessions_max = self.sessions() + 1;
        options.recovery_threads = 1;
        // Every few blocks, whenever somebody tends the store, and at a close. Where they are not the point, they would only
        // take the time that others could be looked at in.
        options.checkpoint_bytes = match self {
            Profile::Fixed | Profile::Batch | Profile::Reclamation => 8 << 10,
            _ => 0,
        };
        options.reclaim_background = true;
        options.fixed = (self == Profile::Fixed).then_some((8, 48));
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
            Profile::Growth | Profile::Large => 160 << 10,
            _ => 128 << 10,
        }
    }

    /// A length in bytes for a value.
    fn length(self, random: &mut StdRng) -> usize {
        let pick = random.random_range(0..100);
        match self {
            Profile::Fixed => match pick {
                0..90 => 48,
                _ => random.random_range(0..100),
            },
            Profile::Variable | Profile::Batch | Profile::Narrow | Profile::Threads => match pick {
                0..5 => 0,
                5..80 => random.random_range(1..150),
                _ => random.random_range(150..420),
            },
            Profile::Expiry => random.random_range(4..80),
            Profile::Reclamation => random.random_range(20..260),
            Profile::Growth => random.random_range(200..420),
            Profile::Large => match pick {
                0..30 => random.random_range(1..200),
                30..70 => random.random_range(430..900),
                _ => random.random_range(900..3000),
            },
        }
    }

    /// One call, chosen at random.
    #[must_use]
    pub fn draw(self, random: &mut StdRng, values: &mut Values, now: u64) -> Call {
        let key = random.random_range(0..self.keys()) as Key;
        let salt = random.random();
        let length = self.length(random);
        let value = |values: &mut Values| values.make(length, salt);
        let pick = random.random_range(0..100);
        match (self, pick) {
            (_, 0..40) => Call::Put(key, value(values), self.expiry(random, now)),
            (_, 40..46) => Call::Get(key),
            (_, 46..58) => Call::Delete(key),
            (_, 58..63) => Call::Swap(key, value(values)),
            (Profile::Fixed, 63..78) => Call::Add(key, salt % 1000),
            (Profile::Fixed | Profile::Variable, 78..84) => {
                Call::Pipeline(self.several(random, values))
            }
            (Profile::Batch, 63..80) => Call::Batch(self.several(random, values)),
            (Profile::Batch, 80..88) => Call::Pipeline(self.several(random, values)),
            (Profile::Batch, 88..90) => Call::Clear,
            (Profile::Expiry, 63..75) => Call::Advance(random.random_range(1..60)),
            (Profile::Expiry, 75..85) => Call::Tend,
            (Profile::Reclamation, 63..72) | (Profile::Narrow, 63..66) => Call::Reclaim,
            (Profile::Narrow, 66..84) => Call::Turn(1 + salt % 100),
            (Profile::Narrow, 84..90) => Call::Batch(self.several(random, values)),
            (Profile::Threads, 63..72) => Call::Batch(self.several(random, values)),
            (Profile::Threads, 72..82) => Call::Get(key),
            (_, 90..92) => Call::Tend,
            (_, 92..94) => Call::Reclaim,
            (_, 94..96) => Call::Checkpoint,
            (_, 96..97) if self != Profile::Threads => Call::Kill,
            (_, 97..98) if self != Profile::Threads => Call::Reopen,
            (_, 98..100) if self != Profile::Threads => Call::Leave,
            _ => Call::Put(key, value(values), 0),
        }
    }

    fn expiry(self, random: &mut StdRng, now: u64) -> u64 {
        if self == Profile::Expiry && random.random_range(0..3) > 0 {
            now + random.random_range(1..120)
        } else {
            0
        }
    }

    fn several(self, random: &mut StdRng, values: &mut Values) -> Vec<(Key, Option<u32>)> {
        let mut keys: Vec<Key> = (0..self.keys() as Key).collect();
        let count = random.random_range(2..=4.min(keys.len()));
        let mut parts = Vec::new();
        for _ in 0..count {
            let key = keys.swap_remove(random.random_range(0..keys.len()));
            let value = (random.random_range(0..5) > 0).then(|| {
                let salt = random.random();
                let length = self.length(random);
                values.make(length, salt)
            });
            parts.push((key, value));
        }
        parts
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

/// Random numbers from a seed, apart for each purpose.
#[must_use]
pub fn random(seed: u64, purpose: u64) -> StdRng {
    StdRng::seed_from_u64(seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
