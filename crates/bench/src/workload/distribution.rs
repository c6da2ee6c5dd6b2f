//! Which records are asked for: all alike, or a few far more often than the rest.

use crate::named::named;
use rand::{Rng, RngExt};
use rand_distr::{Distribution, Zipf};

named! {
    /// By which distribution keys are asked for.
    Keys, "distribution of keys":
    Uniform = "uniform": "each as often as any other",
    Zipfian = "zipfian": "zipfian with 0.99, popular ones scattered",
}

/// YCSB's skew.
pub(crate) const EXPONENT: f64 = 0.99;

/// Numbers below a bound in another order: a bijection that needs no table.
///
/// A Feistel network over the least even number of bits that holds the bound; what falls outside goes round
/// again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permutation {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Permutation {
    /// Of the numbers below `count`.
    pub(crate) fn new(count: u64, seed: u64) -> Permutation {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        Permutation {
            count,
            half_bits: bits.div_ceil(2).max(1),
            seed,
        }
    }

    /// Where `number`, which is below the bound, goes.
    pub(crate) fn of(&self, number: u64) -> u64 {
        debug_assert!(number < self.count);
        let mut place = self.round_trip(number);
        while place >= self.count {
            place = self.round_trip(place);
        }
        place
    }

    fn round_trip(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..4 {
            let mixed = (right ^ self.seed.wrapping_add(round))
                .wrapping_mul(0xbf58_476d_1ce4_e5b9)
                .rotate_left(29)
                .wrapping_mul(0x94d0_49bb_1331_11eb);
            (left, right) = (right, left ^ (mixed >> 32 & mask));
        }
        left << self.half_bits | right
    }
}

/// How records are picked.
pub(crate) enum Picker {
    /// Each as often as any other.
    Uniform(u64),
    /// By rank, popular ones scattered over all numbers: YCSB's scrambled zipfian.
    Zipfian(Zipf<f64>, Permutation),
}

impl Picker {
    /// Over `count` records, at least one.
    pub(crate) fn uniform(count: u64) -> Picker {
        Picker::Uniform(count.max(1))
    }

    /// Over `count` records, at least one.
    pub(crate) fn zipfian(count: u64, seed: u64) -> Picker {
        let count = count.max(1);
        let zipf = Zipf::new(count as f64, EXPONENT).expect("a count of at least one");
        Picker::Zipfian(zipf, Permutation::new(count, seed))
    }

    /// Over `count` records, at least one.
    pub(crate) fn of(keys: Keys, count: u64, seed: u64) -> Picker {
        match keys {
            Keys::Uniform => Picker::uniform(count),
            Keys::Zipfian => Picker::zipfian(count, seed),
        }
    }

    /// A record.
    pub(crate) fn pick(&self, random: &mut impl Rng) -> u64 {
        match self {
            Picker::Uniform(count) => random.random_range(0..*count),
            Picker::Zipfian(_, permutation) => permutation.of(self.rank(random)),
        }
    }

    /// The rank of a record, 0 being the most popular; uniform ones have any.
    pub(crate) fn rank(&self, random: &mut impl Rng) -> u64 {
        match self {
            Picker::Uniform(_) => self.pick(random),
            Picker::Zipfian(zipf, permutation) => {
                (zipf.sample(random) as u64).clamp(1, permutation.count) - 1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    #[test]
    fn a_permutation_reaches_every_number_once() {
        for count in [1, 2, 3, 5, 64, 1000, 4097] {
            for seed in [0, 1, 99] {
                let permutation = Permutation::new(count, seed);
                let mut seen = vec![false; count as usize];
                for number in 0..count {
                    let place = permutation.of(number) as usize;
                    assert!(!std::mem::replace(&mut seen[place], true), "{count} {seed}");
                }
            }
        }
    }

    #[test]
    fn a_permutation_leaves_no_order() {
        let permutation = Permutation::new(100_000, 7);
        let in_order = (1..100_000).filter(|n| permutation.of(*n) > permutation.of(n - 1));
        let share = in_order.count() as f64 / 100_000.0;
        assert!((0.48..0.52).contains(&share), "{share}");
    }

    /// Of n records, rank k has the share k^-0.99 / sum of all such.
    #[test]
    fn zipfian_picks_have_the_shares_of_the_formula() {
        let count = 1000;
        let picker = Picker::zipfian(count, 3);
        let mut random = SmallRng::seed_from_u64(5);
        let draws = 400_000;
        let mut hits = vec![0u32; count as usize];
        for _ in 0..draws {
            hits[picker.pick(&mut random) as usize] += 1;
        }
        assert!(
            hits[0] < draws / 50,
            "the most popular record is not the first"
        );
        hits.sort_unstable_by(|a, b| b.cmp(a));
        let total: f64 = (1..=count).map(|k| (k as f64).powf(-EXPONENT)).sum();
        for rank in [1, 2, 3, 10] {
            let wanted = (f64::from(rank)).powf(-EXPONENT) / total;
            let found = f64::from(hits[rank as usize - 1]) / f64::from(draws);
            assert!(
                (found / wanted - 1.0).abs() < 0.06,
                "rank {rank}: {found} {wanted}"
            );
        }
    }

    #[test]
    fn uniform_picks_are_alike() {
        let picker = Picker::uniform(10);
        let mut random = SmallRng::seed_from_u64(5);
        let mut hits = [0; 10];
        (0..10_000).for_each(|_| hits[picker.pick(&mut random) as usize] += 1);
        assert!(
            hits.iter().all(|hits| (850..1150).contains(hits)),
            "{hits:?}"
        );
    }
}
