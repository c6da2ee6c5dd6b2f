//! A unit: one place whose contents a crash decides, and what it may hold then.

use crate::run::trace::StepId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Places below this are lines of the memory, by number; those from here on are parts of files.
pub const FILES: u64 = 1 << 63;

/// What a unit may hold after a crash.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Its bytes.
    pub bytes: Box<[u8]>,
    /// See [`hash`].
    pub hash: u64,
}

/// One place whose contents a crash decides.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Where: see [`FILES`], and [`part`](crate::medium::sectors::part) for those of files.
    pub place: u64,
    /// The seed of hashes of its contents.
    seed: u64,
    /// All different. The first has what is certain and no more, the last has everything that was stored.
    pub choices: Vec<Choice>,
    /// By step, ascending: the choice with everything that was stored up to that step.
    pub prefixes: Vec<(StepId, usize)>,
    /// Whether it may hold a commit word, on which other places depend.
    pub commits: bool,
}

impl Unit {
    /// A unit that holds `least` for certain.
    #[must_use]
    pub fn new(place: u64, least: Box<[u8]>) -> Unit {
        Unit::seeded(place, place, least)
    }

    /// As [`Unit::new`], with another seed of hashes than `place`.
    #[must_use]
    pub fn seeded(place: u64, seed: u64, least: Box<[u8]>) -> Unit {
        Unit {
            place,
            seed,
            choices: vec![choice(seed, least)],
            prefixes: Vec::new(),
            commits: false,
        }
    }

    /// Adds a choice. Returns its number, which may be that of an equal one.
    pub fn add(&mut self, bytes: &[u8]) -> usize {
        if let Some(known) = self.choices.iter().position(|had| *had.bytes == *bytes) {
            return known;
        }
        self.choices.push(choice(self.seed, bytes.into()));
        self.choices.len() - 1
    }

    /// Moves choice `newest` to the end.
    pub fn put_last(&mut self, newest: usize) {
        let last = self.choices.len() - 1;
        self.choices.swap(newest, last);
        for (_, prefix) in &mut self.prefixes {
            *prefix = match *prefix {
                at if at == newest => last,
                at if at == last => newest,
                at => at,
            };
        }
    }

    /// The choice with everything that was stored up to `step`.
    #[must_use]
    pub fn at_step(&self, step: StepId) -> usize {
        let passed = self.prefixes.iter().take_while(|(at, _)| *at <= step);
        passed.last().map_or(0, |&(_, choice)| choice)
    }

    /// The number of the last choice, which has everything that was stored.
    #[must_use]
    pub fn newest(&self) -> usize {
        self.choices.len() - 1
    }
}

fn choice(seed: u64, bytes: Box<[u8]>) -> Choice {
    Choice {
        hash: hash(seed, &bytes),
        bytes,
    }
}

/// The hash of bytes at the place that `seed` stands for; 0 if all are zero. Hashes of places are combined by
/// XOR, so the hash of an image depends on its contents alone, and not on how they came about or how far
/// zeros reach.
#[must_use]
pub fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    if words.iter().all(|word| *word == [0; 8]) && rest.iter().all(|&byte| byte == 0) {
        return 0;
    }
    xxh3_64_with_seed(bytes, seed)
}
