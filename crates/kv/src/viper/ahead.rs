//! Reading ahead: what several keys need of the index and of the pool, fetched together.
//!
//! A processor goes on for some hundreds of instructions while it waits for memory, and a prefetch of a page whose address
//! it has to translate first holds it up like a load. So the fetches of one kind stand close together, in loops of a few
//! instructions, and everything else is computed between these loops.

use super::Viper;
use super::read::UNIT;
use crate::epoch::Slot;
use crate::index::KeyHash;

/// What is needed of each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Its head and key, and the mark that it will get.
    Head,
    /// All of it, if it is not long.
    Whole,
}

/// Addresses on their way; kept, so that no call allocates.
#[derive(Default)]
pub(super) struct Ahead {
    hashes: Vec<KeyHash>,
    places: Vec<u64>,
}

impl Ahead {
    /// Starts reading the records of these keys. A hint: the index may have changed when they are looked up.
    pub(super) fn start(
        &mut self,
        engine: &Viper,
        slot: &Slot,
        hashes: impl Iterator<Item = KeyHash>,
        what: What,
    ) {
        self.hashes.clear();
        self.hashes.extend(hashes);
        for &hash in &self.hashes {
            engine.index.prefetch(hash);
        }
        let pin = slot.pin();
        self.places.clear();
        for &hash in &self.hashes {
            let location = engine.index.candidates(hash, &pin).next();
            self.places
                .extend(location.map(|location| location.get() * UNIT));
        }
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
                for place in &mut self.places {
                    if let Ok(mark) = reader.mark_place(*place) {
                        *place = mark.at;
                    }
                }
                region.prefetch_each_to_write(&self.places);
            }
        }
    }
}
