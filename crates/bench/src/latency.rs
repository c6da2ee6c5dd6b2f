//! How long single operations took.

use crate::row::{Metric, Row};
use hdrhistogram::Histogram;

/// A minute, in nanoseconds: whatever took longer counts as that.
const LONGEST: u64 = 60_000_000_000;

/// Latency above which a call is slow.
const SLOW_NS: u64 = 20_000;

/// Percentiles of all calls, and of those that had a core.
pub(crate) const ALL: [Metric; 4] = [Metric::P50Ns, Metric::P99Ns, Metric::P999Ns, Metric::MaxNs];
pub(crate) const UNDISTURBED: [Metric; 4] = [
    Metric::CoreP50Ns,
    Metric::CoreP99Ns,
    Metric::CoreP999Ns,
    Metric::CoreMaxNs,
];

/// Nanoseconds up to a minute, with three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds in order")
}

/// Nanoseconds that half, 99 of 100, 999 of 1000 and all of the operations took at most.
fn percentiles(histogram: &Histogram<u64>) -> [f64; 4] {
    let of = |share| histogram.value_at_quantile(share) as f64;
    [of(0.5), of(0.99), of(0.999), histogram.max() as f64]
}

/// Latencies of some calls.
pub(crate) struct Latencies {
    /// Of all of them.
    pub all: Histogram<u64>,
    /// Of those that did not spend at least half of their time waiting for a core. In an open loop that time
    /// includes what they waited behind others that did; calls of less than 20 us are not asked there.
    pub undisturbed: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies {
            all: histogram(),
            undisturbed: histogram(),
        }
    }
}

impl Latencies {
    /// Adds those of other calls.
    pub(crate) fn add(&mut self, other: &Latencies) {
        for (into, from) in [
            (&mut self.all, &other.all),
            (&mut self.undisturbed, &other.undisturbed),
        ] {
            if from.is_empty() {
                continue;
            }
            let added = into.add(from);
            debug_assert!(added.is_ok(), "histograms of other bounds");
        }
    }

    /// Adds their percentiles to a row, and how many calls were slow; nothing without calls.
    pub(crate) fn add_to(&self, row: &mut Row) {
        if self.all.is_empty() {
            return;
        }
        for (histogram, metrics) in [(&self.all, ALL), (&self.undisturbed, UNDISTURBED)] {
            add_percentiles(row, metrics, histogram);
        }
        let slow = |histogram: &Histogram<u64>| histogram.count_between(SLOW_NS, u64::MAX);
        let (all, undisturbed) = (slow(&self.all), slow(&self.undisturbed));
        row.push(Metric::SlowShare, all as f64 / self.all.len() as f64);
        let queued = all.saturating_sub(undisturbed) as f64 / all.max(1) as f64;
        row.push(Metric::SlowQueuedShare, queued);
    }
}

/// Adds the percentiles of calls to a row.
pub(crate) fn add_percentiles(row: &mut Row, metrics: [Metric; 4], histogram: &Histogram<u64>) {
    for (metric, ns) in metrics.into_iter().zip(percentiles(histogram)) {
        row.push(metric, ns);
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
        let found = percentiles(&one);
        assert_eq!(one.len(), 1001);
        for (found, wanted) in found.iter().zip([501e3, 991e3, 1000e3, LONGEST as f64]) {
            assert!((found - wanted).abs() <= wanted / 500.0, "{found} {wanted}");
        }
    }
}
