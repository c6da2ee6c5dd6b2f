//! Random words: the system's, or those of a seed, with which the crash lab repeats a run.

use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::StdRng;

/// The source of an engine's random words. Nothing on a hot path uses it.
#[derive(Default)]
pub(crate) struct Random(Option<Mutex<StdRng>>);

impl Random {
    /// The words of a seed.
    #[cfg(feature = "lab")]
    pub(crate) fn seeded(seed: u64) -> Random {
        Random(Some(Mutex::new(rand::SeedableRng::seed_from_u64(seed))))
    }

    /// One word.
    pub(crate) fn word(&self) -> u64 {
        match &self.0 {
            None => rand::random(),
            Some(words) => words.lock().next_u64(),
        }
    }
}
