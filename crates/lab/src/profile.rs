//! What a workload is like: the shape of the pool, the keys and values, and how often each call is made.

use crate::call::{Call, Exec, Key, Values};
use crate::plan::Manner;
use crate::weights::{self, Kind};
use everdram::Options;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Bytes of a key that is longer than a block.
const LONG_KEY: usize = 1500;
/// Key locks: each image is opened with its own.
const STRIPES: usize = 64;
/// Jobs of the store that may need a session at the same time.
const JOBS: usize = 8;
/// Events for which a call lets others go on, at most.
const MOST_EVENTS: u32 = 200;

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
    /// Keys that go away by themselves, and their sweep.
    Expiry,
    /// Much garbage, little room: blocks are compacted and used again.
    Reclamation,
    /// Little garbage: the pool grows.
    Growth,
    /// DRAM for nothing but what is not in the pool yet: keys leave it and come back. Sessions glean in between, as their roles want it.
    Narrow,
}

impl Profile {
    /// All of them; what finds most comes first.
    pub const ALL: [Profile; 9] = [
        Profile::Threads,
        Profile::Fixed,
        Profile::Variable,
        Profile::Large,
        Profile::Batch,
        Profile::Expiry,
        Profile::Reclamation,
        Profile::Growth,
        Profile::Narrow,
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
            Profile::Threads => 5,
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

    /// The bytes of a key.
    #[must_use]
    pub fn key(self, key: Key) -> Vec<u8> {
        let mut bytes = vec![b'k', b'a' + key % 26];
        let padded = match (self, key) {
            (Profile::Fixed, _) => 8,
            // Longer than a block: such a key lies in the pieces with its value.
            (Profile::Large, 0) => LONG_KEY,
            // One of each profile is, where there is room for it.
            (Profile::Growth | Profile::Narrow, _) => 2,
            (_, key) if usize::from(key) + 1 == self.keys() => LONG_KEY,
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
        // Those of the jobs that are at work beside them, too.
        options.sessions_max = self.sessions() + JOBS;
        options.stripes = STRIPES;
        options.recovery_threads = 1;
        // Every few blocks, whenever somebody tends the store, and at a close.
        options.checkpoint_bytes = 8 << 10;
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
        if pick >= 98 && self != Profile::Growth {
            // Longer than a block, in every profile.
            return random.random_range(430..1600);
        }
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
        let key = self.some_key(random);
        let (salt, linger) = (random.random(), random.random_range(1..MOST_EVENTS));
        let value = |random: &mut StdRng, values: &mut Values| {
            let bytes = self.length(random);
            values.make(bytes, salt)
        };
        match weights::draw(self, random) {
            Kind::Put => Call::Put(key, value(random, values), self.expiry(random, now)),
            Kind::Get => Call::Get(key),
            Kind::Delete => Call::Delete(key),
            Kind::Swap => Call::Swap(key, value(random, values)),
            Kind::Take => Call::Take(key),
            Kind::Append => Call::Append(key, value(random, values)),
            Kind::Add => Call::Add(key, salt % 1000),
            Kind::Many => Call::Many(self.some_keys(random)),
            Kind::Probe => Call::Probe(key),
            Kind::Scan => Call::Scan(linger),
            Kind::RandomKey => Call::RandomKey,
            Kind::Guarded => Call::Guarded(key, value(random, values), linger),
            Kind::Exec => Call::Exec(Exec {
                reads: self.some_keys(random),
                parts: match random.random_range(0..6) {
                    0 => Vec::new(),
                    _ => self.several(random, values),
                },
                linger,
                is_over_all: salt % 8 == 0,
            }),
            Kind::Batch => Call::Batch(self.several(random, values)),
            Kind::Pipeline => Call::Pipeline(self.several(random, values)),
            Kind::Slow => Call::Slow(self.several(random, values), linger),
            Kind::Clear => Call::Clear,
            Kind::Tend => Call::Tend,
            Kind::Turn => Call::Turn(1 + salt % 100),
            Kind::Reclaim => Call::Reclaim,
            Kind::Checkpoint => Call::Checkpoint,
            Kind::Advance => Call::Advance(random.random_range(1..60)),
            Kind::Kill => Call::Kill,
            Kind::Reopen => Call::Reopen,
            Kind::Leave => Call::Leave,
        }
    }

    fn expiry(self, random: &mut StdRng, now: u64) -> u64 {
        let percent = match self {
            Profile::Expiry => 66,
            _ => 4,
        };
        match random.random_range(0..100) < percent {
            true => now + random.random_range(1..120),
            false => 0,
        }
    }

    /// A call that only looks.
    #[must_use]
    pub fn look(self, random: &mut StdRng) -> Call {
        match random.random_range(0..12) {
            0..5 => Call::Get(self.some_key(random)),
            5..9 => Call::Many(self.some_keys(random)),
            9 => Call::Probe(self.some_key(random)),
            10 => Call::Scan(random.random_range(1..MOST_EVENTS)),
            _ => Call::RandomKey,
        }
    }

    /// Some are met more often than others.
    fn some_key(self, random: &mut StdRng) -> Key {
        let keys = match random.random_range(0..3) {
            0 => 2,
            _ => self.keys(),
        };
        random.random_range(0..keys) as Key
    }

    fn some_keys(self, random: &mut StdRng) -> Vec<Key> {
        let count = random.random_range(1..4);
        (0..count).map(|_| self.some_key(random)).collect()
    }

    /// How a run of this profile goes.
    #[must_use]
    pub fn manner(self, seed: u64) -> Manner {
        let mut drawn = random(seed, 7);
        match self == Profile::Threads || drawn.random_range(0..3) > 0 {
            true => Manner::Threads {
                // Mostly some of them; now and then none, and more often all.
                jobs: match drawn.random_range(0..4) {
                    0 => u8::MAX,
                    _ => drawn.random(),
                },
            },
            false => Manner::Turns,
        }
    }

    fn several(self, random: &mut StdRng, values: &mut Values) -> Vec<(Key, Option<u32>)> {
        let mut keys: Vec<Key> = (0..self.keys() as Key).collect();
        let count = random.random_range(2..=4.min(keys.len()));
        // Now and then nothing but removals, of keys that may be gone already.
        let puts = random.random_range(0..8) > 0;
        let mut parts = Vec::new();
        for _ in 0..count {
            let key = keys.swap_remove(random.random_range(0..keys.len()));
            let value = (puts && random.random_range(0..5) > 0).then(|| {
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
