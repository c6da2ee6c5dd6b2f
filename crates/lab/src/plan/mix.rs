//! The mix of one run: how often each kind of call comes, and for which keys.
//!
//! Most runs have a mix of their own (swarm testing): some kinds of calls never come, some come often, and
//! there are few keys. Two calls that are rare elsewhere then often follow each other.

use super::call::{Call, Exec, Fate, Key, Reach, ValueId, Values};
use super::profile::{Profile, VALUE_FIXED};
use super::weights;
use super::weights::{Kind, Weights};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::ops::Range;

/// Most events for which a call lets other sessions run.
const MOST_EVENTS: u32 = 200;
/// One in so many runs has the profile's own mix.
const PLAIN_ONE_IN: u32 = 4;
/// Factors of the weight of a kind, of which one is drawn for each.
const FACTORS: [u16; 6] = [0, 0, 1, 1, 2, 8];
/// Kinds beside puts in a mix of few kinds.
const PAIR: Range<usize> = 2..5;
/// Writes that fill the store before a brief run.
const PAST: Range<usize> = 8..64;
/// Fewer than so many changes follow a checkpoint.
const LATER: usize = 4;
/// One in so many pools is nearly full before the run.
const FULL_ONE_IN: u32 = 8;
/// Each key then has so many percent of its part of the room.
const FULL_PERCENT: Range<u64> = 60..110;
/// One in so many writes is a removal.
const REMOVALS_ONE_IN: u32 = 8;
/// Lengths of values in runs where all are alike: many, some or one record to a page, or values longer than
/// that.
const LENGTHS: [Range<usize>; 4] = [0..24, 90..130, 350..420, 440..900];
/// Least calls of a run for each key.
const CALLS_A_KEY: usize = 4;
/// Remote clients of whom a call may mean one.
const CLIENTS: u32 = 8;
/// A batch has several keys.
const KEYS_MIN: usize = 2;

/// See the module text.
pub(crate) struct Mix {
    pub(crate) profile: Profile,
    weights: Weights,
    /// The first two are used more often than the others.
    keys: Vec<Key>,
    /// Lengths of values, if they are not those of the profile.
    lengths: Option<Range<usize>>,
}

/// Whether calls of this kind are in every run of a profile: without them there is nothing to examine.
fn stays(profile: Profile, kind: Kind) -> bool {
    match profile {
        Profile::Order => matches!(kind, Kind::Put | Kind::Scan),
        Profile::Objects => matches!(kind, Kind::Put | Kind::Append),
        Profile::Remote => matches!(kind, Kind::Put | Kind::Leave),
        _ => kind == Kind::Put,
    }
}

/// How far the write of a remote client comes at first: in a third of cases nobody acknowledges it.
fn fate(random: &mut StdRng) -> Fate {
    match random.random_range(0..6) {
        0..3 => Fate::Durable,
        3 => Fate::Told,
        4 => Fate::Part(100),
        _ => Fate::Part(random.random_range(0..100)),
    }
}

impl Mix {
    /// Every call and key of a profile.
    pub(crate) fn plain(profile: Profile) -> Mix {
        Mix {
            profile,
            weights: weights::of(profile),
            keys: (0..profile.keys() as Key).collect(),
            lengths: None,
        }
    }

    /// Random calls and keys of a profile, for a run of so many calls.
    pub(crate) fn draw(profile: Profile, calls: usize, random: &mut StdRng) -> Mix {
        let mut mix = Mix::plain(profile);
        if random.random_range(0..PLAIN_ONE_IN) == 0 {
            return mix;
        }
        match random.random::<bool>() {
            true => mix.keep_some(random),
            false => mix.vary(random),
        }
        mix.keys.shuffle(random);
        let most = (calls / CALLS_A_KEY).clamp(KEYS_MIN, profile.keys());
        mix.keys.truncate(random.random_range(KEYS_MIN..=most));
        if profile != Profile::Fixed && random.random::<bool>() {
            mix.lengths = Some(LENGTHS[random.random_range(0..LENGTHS.len())].clone());
        }
        mix
    }

    /// Makes some kinds of calls frequent, and leaves some out.
    fn vary(&mut self, random: &mut StdRng) {
        let profile = self.profile;
        for (kind, weight) in &mut self.weights {
            let factor = FACTORS[random.random_range(0..FACTORS.len())];
            *weight *= if stays(profile, *kind) { 1 } else { factor };
        }
    }

    /// Keeps puts and a few other kinds, all equally frequent.
    fn keep_some(&mut self, random: &mut StdRng) {
        let mut kept = self.weights.map(|(kind, _)| kind);
        let count = random.random_range(PAIR);
        let (kept, _) = kept.partial_shuffle(random, count);
        let profile = self.profile;
        for (kind, weight) in &mut self.weights {
            *weight = u16::from(stays(profile, *kind) || kept.contains(kind));
        }
    }

    /// Calls before those that are examined: they fill some blocks, and mostly end a process.
    pub(crate) fn past(&self, random: &mut StdRng, values: &mut Values) -> Vec<Call> {
        let writes = random.random_range(PAST);
        // Values of one length fill blocks of one kind.
        let length = random.random::<bool>().then(|| self.length(random));
        let mut calls: Vec<Call> = Vec::new();
        // What has arrived in a full pool cannot be applied, and so not be shown.
        let may_be_full = self.profile != Profile::Remote;
        if may_be_full && random.random_range(0..FULL_ONE_IN) == 0 {
            let each = self.profile.capacity() / self.profile.keys() as u64;
            for key in 0..self.profile.keys() as Key {
                let bytes = each * random.random_range(FULL_PERCENT) / 100;
                calls.push(Call::Put(
                    key,
                    values.make(bytes as usize, random.random()),
                    0,
                ));
            }
        }
        let last = self.keys[self.keys.len() - 1];
        // If all later writes are of one key, the other keys are in full blocks.
        let is_buried = random.random::<bool>();
        let mut put = |key: Key, random: &mut StdRng| {
            let bytes = length.unwrap_or_else(|| self.length(random));
            Call::Put(key, values.make(bytes, random.random()), 0)
        };
        if is_buried {
            calls.extend(self.keys.iter().map(|&key| put(key, random)));
        }
        for _ in 0..writes {
            let key = match is_buried {
                true => last,
                false => self.key(random),
            };
            calls.push(match random.random_range(0..REMOVALS_ONE_IN) {
                0 if !is_buried => Call::Delete(key),
                _ => put(key, random),
            });
        }
        if random.random_range(0..3) == 0 {
            calls.push(Call::Checkpoint);
            // The next process finds changes since the checkpoint.
            for _ in 0..random.random_range(0..LATER) {
                let key = self.key(random);
                calls.push(match random.random::<bool>() {
                    true => Call::Delete(key),
                    false => put(key, random),
                });
            }
        }
        match random.random_range(0..4) {
            0 | 1 => {}
            2 => calls.push(Call::Kill),
            _ => calls.push(Call::Reopen),
        }
        calls
    }

    /// Two keys that are used often.
    pub(crate) fn pair(&self) -> [Key; 2] {
        [self.keys[0], self.keys[1]]
    }

    /// One call.
    pub(crate) fn call(&self, random: &mut StdRng, values: &mut Values, now: u64) -> Call {
        let kind = weights::draw(&self.weights, random);
        self.of_kind(kind, self.key(random), (random, values), now)
    }

    /// A call of some kind, with this key if it has one.
    pub(crate) fn of_kind(
        &self,
        kind: Kind,
        key: Key,
        (random, values): (&mut StdRng, &mut Values),
        now: u64,
    ) -> Call {
        let salt = random.random();
        // While one session lingers, writes of others become durable.
        let linger = random.random_range(0..2) * random.random_range(1..MOST_EVENTS);
        let value = |random: &mut StdRng, values: &mut Values| {
            let bytes = self.length(random);
            values.make(bytes, salt)
        };
        match kind {
            Kind::Put if self.profile == Profile::Remote && salt % 4 > 0 => Call::Remote(
                key,
                value(random, values),
                self.expiry(random, now),
                fate(random),
            ),
            Kind::Put => Call::Put(key, value(random, values), self.expiry(random, now)),
            Kind::Get if self.profile == Profile::Objects && salt % 4 > 0 => {
                Call::Part(key, self.place(random), random.random_range(0..1500))
            }
            Kind::Get => Call::Get(key),
            Kind::Delete => Call::Delete(key),
            Kind::Swap => Call::Swap(key, value(random, values)),
            Kind::Take => Call::Take(key),
            Kind::Append if self.profile == Profile::Objects && salt % 8 == 0 => {
                Call::Cut(key, self.place(random))
            }
            Kind::Append if self.profile == Profile::Objects && salt % 8 < 7 => {
                Call::Overwrite(key, self.place(random), value(random, values))
            }
            Kind::Append => Call::Append(key, value(random, values)),
            Kind::Add => Call::Add(key, salt % 1000),
            Kind::Many => Call::Many(self.some_keys(random)),
            Kind::Probe => Call::Probe(key),
            Kind::Scan if self.profile == Profile::Order && salt % 4 > 0 => {
                self.range(random, linger)
            }
            Kind::Scan => Call::Scan(linger),
            Kind::RandomKey => Call::RandomKey,
            Kind::Guarded => Call::Guarded(key, value(random, values), linger),
            Kind::Exec => Call::Exec(Exec {
                reads: self.some_keys(random),
                parts: match random.random_range(0..3) {
                    0 => Vec::new(),
                    _ => self.several(random, values),
                },
                linger,
                reach: match salt % 16 {
                    0 | 8 => Reach::All,
                    1 => Reach::Cleared,
                    _ => Reach::Named,
                },
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
            Kind::Leave if self.profile == Profile::Remote && salt % 16 > 0 => {
                let client = random.random_range(0..CLIENTS);
                match salt % 3 {
                    0 => Call::Hangup(client),
                    _ => Call::Late(client),
                }
            }
            Kind::Leave => Call::Leave,
        }
    }

    /// A call that only reads.
    pub(crate) fn look(&self, random: &mut StdRng) -> Call {
        match random.random_range(0..12) {
            0..5 => Call::Get(self.key(random)),
            5..9 => Call::Many(self.some_keys(random)),
            9 => Call::Probe(self.key(random)),
            10 => {
                let linger = random.random_range(1..MOST_EVENTS);
                match self.profile {
                    Profile::Order => self.range(random, linger),
                    _ => Call::Scan(linger),
                }
            }
            _ => Call::RandomKey,
        }
    }

    fn key(&self, random: &mut StdRng) -> Key {
        let keys = match random.random_range(0..3) {
            0 => KEYS_MIN,
            _ => self.keys.len(),
        };
        self.keys[random.random_range(0..keys)]
    }

    /// A byte of an object: near an edge of blocks, or of the root of a map, or anywhere.
    fn place(&self, random: &mut StdRng) -> u32 {
        const EDGES: [u32; 5] = [0, 16, 512, 1024, 4096];
        match random.random_range(0..3) {
            0 => random.random_range(0..5000),
            _ => EDGES[random.random_range(0..EDGES.len())] + random.random_range(0..40),
        }
    }

    /// From one key to another, or of all keys.
    fn range(&self, random: &mut StdRng, linger: u32) -> Call {
        let last = self.profile.keys() as Key - 1;
        let mut ends = [0, last];
        if random.random::<bool>() {
            ends = ends.map(|_| random.random_range(0..=last));
            ends.sort_unstable();
        }
        let [from, to] = ends;
        Call::Range(from, to, linger)
    }

    fn some_keys(&self, random: &mut StdRng) -> Vec<Key> {
        let count = random.random_range(1..4);
        (0..count).map(|_| self.key(random)).collect()
    }

    fn several(&self, random: &mut StdRng, values: &mut Values) -> Vec<(Key, Option<ValueId>)> {
        let mut keys = self.keys.clone();
        let count = random.random_range(KEYS_MIN..=4.min(keys.len()));
        // Sometimes only removals, also of keys that are absent.
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

    fn expiry(&self, random: &mut StdRng, now: u64) -> u64 {
        let percent = match self.profile {
            Profile::Expiry => 66,
            _ => 4,
        };
        match random.random_range(0..100) < percent {
            true => now + random.random_range(1..120),
            false => 0,
        }
    }

    /// A length in bytes for a value.
    fn length(&self, random: &mut StdRng) -> usize {
        if let Some(lengths) = &self.lengths {
            return random.random_range(lengths.clone());
        }
        let pick = random.random_range(0..100);
        if pick >= 98 && self.profile != Profile::Growth {
            // Longer than a block, in every profile.
            return random.random_range(430..1600);
        }
        match self.profile {
            Profile::Fixed => match pick {
                0..90 => VALUE_FIXED as usize,
                _ => random.random_range(0..100),
            },
            // Blocks are lent for these.
            Profile::Remote if pick >= 86 => random.random_range(961..2900),
            // What lies in a slot is of the length of its next grant.
            Profile::Threads | Profile::Remote if pick < 40 => VALUE_FIXED as usize,
            Profile::Variable
            | Profile::Batch
            | Profile::Narrow
            | Profile::Order
            | Profile::Objects
            | Profile::Remote
            | Profile::Threads => match pick {
                0..5 => 0,
                5..80 => random.random_range(1..150),
                _ => random.random_range(150..420),
            },
            Profile::Expiry => random.random_range(4..80),
            Profile::Reclamation => random.random_range(20..260),
            Profile::Growth => random.random_range(200..420),
            Profile::Tiers => random.random_range(40..380),
            Profile::Large => match pick {
                0..30 => random.random_range(1..200),
                30..70 => random.random_range(430..900),
                _ => random.random_range(900..3000),
            },
        }
    }
}
