//! Reading ahead: what several keys need of the index and of the pool, fetched together.
//!
//! A processor goes on for some hundreds of instructions while it waits for memory, and a prefetch of a page whose address
//! it has to translate first holds it up like a load. So the fetches of one kind stand close together, in loops of a few
//! instructions, and everything else is computed between these loops.

use super::Viper;
use super::read::UNIT;
use crate::concurrency::epoch::Pin;
use crate::index::KeyHash;

/// What is needed of each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Its head and key, and the mark that it will get; the index's lines were asked for when the keys were locked.
    Head,
    /// All of it, if it is not long.
    Whole,
}

/// In the list of places: the index offers none, so that the key is not there.
pub(super) const NOWHERE: u64 = u64::MAX;

/// Addresses on their way; kept, so that no call allocates.
#[derive(Default)]
pub(super) struct Ahead {
    hashes: Vec<KeyHash>,
    places: Vec<u64>,
    marks: Vec<u64>,
}

impl Ahead {
    /// Starts reading the records of these keys.
    pub(super) fn start(
        &mut self,
        engine: &Viper,
        pin: &Pin<'_>,
        hashes: impl Iterator<Item = KeyHash>,
        what: What,
    ) {
        self.hashes.clear();
        self.hashes.extend(hashes);
        if what == What::Whole {
            for &hash in &self.hashes {
                engine.index.prefetch(hash);
            }
        }
        self.places.clear();
        self.places.extend(self.hashes.iter().map(|&hash| {
            let location = engine.index.candidates(hash, pin).next();
            location.map_or(NOWHERE, |location| location.get() * UNIT)
        }));
        let region = engine.pool.region();
        region.prefetch_each(&self.places);
        match what {
            What::Whole => {
                // The pages are translated by now.
                for &at in &self.places {
                    region.prefetch::<4>(at);
                }
            }
            What::Head => {
                let reader = engine.reader();
                let places = self.places.iter().filter(|&&at| at != NOWHERE);
                let marks = places.filter_map(|&at| reader.mark_place(at).ok());
                self.marks.clear();
                self.marks.extend(marks.map(|mark| mark.at));
                region.prefetch_each_to_write(&self.marks);
            }
        }
    }

    /// The first place that the index offered for each of the keys, or [`NOWHERE`]. As long as the pin holds, what
    /// lies there stays; that it is the key's record has to be looked at.
    pub(super) fn places(&self) -> &[u64] {
        &self.places
    }
}
