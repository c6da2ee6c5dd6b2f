//! Random numbers that cost next to nothing and depend on no memory.

/// A sequence of 64-bit numbers, of which the upper half is good enough to pick places with.
pub(crate) struct Sequence(u64);

impl Sequence {
    pub(crate) fn new(seed: u64) -> Sequence {
        Sequence(seed.wrapping_mul(2).wrapping_add(1))
    }

    /// The next place below `places`, which is at most 2^32.
    #[inline]
    pub(crate) fn below(&mut self, places: u64) -> usize {
        self.0 = step(self.0);
        (((self.0 >> 32) * places) >> 32) as usize
    }
}

/// Knuth's MMIX generator.
#[inline]
pub(crate) fn step(state: u64) -> u64 {
    state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_below_and_spread() {
        let mut sequence = Sequence::new(7);
        let mut hits = [0; 10];
        for _ in 0..10_000 {
            hits[sequence.below(10)] += 1;
        }
        assert!(
            hits.iter().all(|hits| (800..1200).contains(hits)),
            "{hits:?}"
        );
    }
}
