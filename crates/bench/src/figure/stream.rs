//! The stream of requests, made before the clock runs: keys by a distribution, each with a coin.
//!
//! Whether a request is a get or a put is the coin's to say, once it is known how many shall be puts: so that
//! all shares of writes ask for the same keys in the same order, and the share can change while workers run.

use crate::workload::distribution::{Keys, Picker};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Requests in a stream; workers go through it from different places, again and again.
const LENGTH: u64 = 1 << 20;
/// Bits of a request that are its coin; the rest is the number of the record.
const COIN_BITS: u32 = 16;

/// A record, and a coin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request(u64);

impl Request {
    /// The record asked for.
    #[inline]
    pub(super) fn number(self) -> u64 {
        self.0 >> COIN_BITS
    }

    /// Whether it is a put, if `writes` are to be (see [`Writes`]).
    #[inline]
    pub(super) fn is_put(self, writes: Writes) -> bool {
        (self.0 & ((1 << COIN_BITS) - 1)) < u64::from(writes.0)
    }
}

/// Which share of the requests are puts: the coins below this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writes(pub(super) u32);

impl Writes {
    /// Every request.
    pub(super) const ALL: Writes = Writes(1 << COIN_BITS);

    /// So many of a hundred.
    pub(super) fn of_percent(percent: f64) -> Writes {
        let share = (percent / 100.0).clamp(0.0, 1.0);
        Writes((share * f64::from(1 << COIN_BITS)).round() as u32)
    }
}

/// All requests, in their order.
pub(super) struct Stream(Box<[Request]>);

impl Stream {
    /// Over so many records, by a distribution.
    pub(super) fn new(records: u64, keys: Keys, seed: u64) -> Stream {
        let picker = Picker::of(keys, records, seed);
        let mut random = SmallRng::seed_from_u64(seed ^ 0x7c1f_02b9_5ad3_e846);
        let length = (records * 8).clamp(1 << 12, LENGTH);
        Stream(
            (0..length)
                .map(|_| {
                    let coin = u64::from(random.random::<u16>());
                    Request(picker.pick(&mut random) << COIN_BITS | coin)
                })
                .collect(),
        )
    }

    /// Where one of several that share the stream begins.
    pub(super) fn start(&self, of: usize, several: usize) -> usize {
        self.0.len() * of / several.max(1)
    }

    /// The next request; moves on.
    #[inline]
    pub(super) fn next(&self, at: &mut usize) -> Request {
        let request = self.0[*at];
        *at += 1;
        if *at == self.0.len() {
            *at = 0;
        }
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coins_give_the_share_of_writes_that_was_asked_for() {
        let stream = Stream::new(10_000, Keys::Zipfian, 3);
        for percent in [0.0, 2.0, 15.0, 50.0, 100.0] {
            let writes = Writes::of_percent(percent);
            let mut at = 0;
            let puts = (0..stream.0.len())
                .filter(|_| stream.next(&mut at).is_put(writes))
                .count();
            let found = puts as f64 / stream.0.len() as f64 * 100.0;
            assert!((found - percent).abs() < 0.6, "{percent} {found}");
            assert_eq!(at, 0, "round and round");
        }
        assert_eq!(Writes::of_percent(100.0), Writes::ALL);
    }

    #[test]
    fn a_stream_follows_from_its_seed_and_stays_within_the_records() {
        let of = |keys, seed| Stream::new(500, keys, seed);
        let (one, other) = (of(Keys::Zipfian, 7), of(Keys::Zipfian, 7));
        assert_eq!(one.0, other.0);
        assert_ne!(one.0, of(Keys::Zipfian, 8).0);
        assert_ne!(one.0, of(Keys::Uniform, 7).0);
        assert!(one.0.iter().all(|request| request.number() < 500));
        assert_eq!(one.start(1, 2), one.0.len() / 2);
    }
}
