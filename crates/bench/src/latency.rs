//! How long single operations took.

use crate::timing::Spread;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A minute, in nanoseconds: whatever took longer counts as that.
const LONGEST: u64 = 60_000_000_000;

/// Nanoseconds up to a minute, with three digits.
///
/// # Panics
/// Never: the bounds are in order.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds in order")
}

/// Latency of single operations, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of the operations took at most this.
    pub p50: u64,
    /// 99 of 100 did.
    pub p99: u64,
    /// 999 of 1000 did.
    pub p999: u64,
    /// All did.
    pub max: u64,
}

impl Latency {
    /// From half of the operations over 99 of 100 to 999 of 1000.
    pub(crate) fn spread(self) -> Spread {
        let [min, median, max] = [self.p50, self.p99, self.p999].map(|ns| ns as f64);
        Spread { min, median, max }
    }

    /// From a histogram of nanoseconds.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        Latency {
            p50: histogram.value_at_quantile(0.5),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_of_threads_add_up() {
        let (mut one, mut other) = (histogram(), histogram());
        (1..=500).for_each(|n| one.saturating_record(n * 1000));
        (501..=1000).for_each(|n| other.saturating_record(n * 1000));
        other.saturating_record(u64::MAX);
        one.add(&other).unwrap();
        let latency = Latency::of(&one);
        let near = |found: u64, wanted: u64| found.abs_diff(wanted) <= wanted / 500;
        assert_eq!(one.len(), 1001);
        assert!(near(latency.p50, 501_000), "{latency:?}");
        assert!(near(latency.p99, 991_000), "{latency:?}");
        assert!(near(latency.max, LONGEST), "{latency:?}");
    }
}
