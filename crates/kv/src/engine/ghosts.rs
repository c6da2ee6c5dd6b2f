//! Ghosts: keys that a cache has evicted recently. A key that is read again so soon should have stayed
//! (S3-FIFO).
//!
//! A table of marks: each evicted hash overwrites the mark at its place. So it remembers about as many keys
//! as it has places, and needs no removal. A false hit (one look in 32,768) costs only the room of one node.

use std::sync::atomic::{AtomicU16, Ordering};

/// Bytes of budget for each place.
const BYTES_A_PLACE: u64 = 256;
const PLACES_MAX: u64 = 1 << 26;

/// See the module text.
pub(crate) struct Ghosts(Box<[AtomicU16]>);

impl Ghosts {
    /// For a front with this budget; without one, nothing is evicted.
    pub(crate) fn new(budget: Option<u64>) -> Ghosts {
        let places = budget.map_or(0, |bytes| {
            (bytes / BYTES_A_PLACE)
                .clamp(1, PLACES_MAX)
                .next_power_of_two()
        });
        Ghosts((0..places).map(|_| AtomicU16::new(0)).collect())
    }

    /// Bytes of the table.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(&*self.0) as u64
    }

    /// The place of a hash, and its mark there: never 0.
    fn place(&self, hash: u64) -> Option<(&AtomicU16, u16)> {
        let place = hash as usize & self.0.len().wrapping_sub(1);
        Some((self.0.get(place)?, (hash >> 48) as u16 | 1))
    }

    /// Adds the hash of an evicted key.
    pub(crate) fn add(&self, hash: u64) {
        if let Some((place, mark)) = self.place(hash) {
            place.store(mark, Ordering::Relaxed);
        }
    }

    /// Whether the key of this hash was evicted recently.
    pub(crate) fn has(&self, hash: u64) -> bool {
        self.place(hash)
            .is_some_and(|(place, mark)| place.load(Ordering::Relaxed) == mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_left_last_is_remembered() {
        let ghosts = Ghosts::new(Some(64 << 10));
        let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert!(!ghosts.has(0) && !ghosts.has(hash(1)));
        (0..100_000).for_each(|number| ghosts.add(hash(number)));
        let known = |from: u64| (from..from + 100).filter(|n| ghosts.has(hash(*n))).count();
        assert_eq!(known(0), 0);
        assert!(known(99_900) > 60, "{}", known(99_900));
    }

    #[test]
    fn without_a_budget_nobody_leaves() {
        let ghosts = Ghosts::new(None);
        ghosts.add(7);
        assert!(!ghosts.has(7) && ghosts.bytes() == 0);
    }
}
