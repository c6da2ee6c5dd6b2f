//! The repetitions of a measurement become one: least, middle and greatest.

use super::turn::Measured;
use crate::latency::Latency;
use crate::limits::Limit;
use crate::recovery::Recovery;
use crate::row::{Configuration, Figures, Row, Tail};
use crate::timing::Spread;

/// A row of one store under one workload, from its repetitions and the openings after a crash. `None` without
/// any.
///
/// Percentiles are the middle ones of the repetitions, each by itself; the slowest call is the slowest of
/// all.
#[must_use]
pub fn row(blank: Row, rounds: &[Measured], recoveries: &[Recovery]) -> Option<Row> {
    let spread = |figure: fn(&Figures) -> Spread| {
        Spread::of(rounds.iter().map(|round| figure(&round.figures).median))
    };
    let count = rounds.len().max(1) as f64;
    let optional = |figure: fn(&Figures) -> Option<f64>| {
        let values: Vec<f64> = rounds
            .iter()
            .filter_map(|round| figure(&round.figures))
            .collect();
        (!values.is_empty()).then(|| Spread::of(values).median)
    };
    let tails: Vec<Tail> = rounds
        .iter()
        .filter_map(|round| round.figures.latency)
        .collect();
    let figures = Figures {
        rate: spread(|figures| figures.rate),
        wall_ns: spread(|figures| figures.wall_ns),
        cpu_ns: spread(|figures| figures.cpu_ns),
        process_cpu_ns: spread(|figures| figures.process_cpu_ns),
        queued_share: rounds
            .iter()
            .map(|round| round.figures.queued_share)
            .sum::<f64>()
            / count,
        preempted: rounds.iter().map(|round| round.figures.preempted).sum(),
        latency: tail(&tails),
        dram_bytes: optional(|figures| figures.dram_bytes),
        counted_dram_bytes: optional(|figures| figures.counted_dram_bytes),
        medium_bytes: optional(|figures| figures.medium_bytes),
        traffic: None,
        recovery: middle(recoveries, |recovery| recovery.wall),
    };
    let measured = rounds.first()?;
    Some(Row {
        configuration: Configuration {
            workload: measured.workload,
            operations: middle(rounds, |round| round.operations)?.operations,
            repeat: rounds.len(),
            ..blank.configuration
        },
        figures,
        ..blank
    })
}

/// The one in the middle; the lower one of two.
fn middle<T: Clone, K: Ord>(all: &[T], by: impl Fn(&T) -> K) -> Option<T> {
    let mut all = all.to_vec();
    all.sort_by_key(by);
    let at = all.len().checked_sub(1)? / 2;
    all.get(at).cloned()
}

fn tail(tails: &[Tail]) -> Option<Tail> {
    let percentiles = |of: fn(&Tail) -> Latency| {
        let latencies: Vec<Latency> = tails.iter().map(of).collect();
        Some(Latency {
            p50: middle(&latencies, |latency| latency.p50)?.p50,
            p99: middle(&latencies, |latency| latency.p99)?.p99,
            p999: middle(&latencies, |latency| latency.p999)?.p999,
            max: latencies.iter().map(|latency| latency.max).max()?,
        })
    };
    let mean = |of: fn(&Tail) -> f64| tails.iter().map(of).sum::<f64>() / tails.len() as f64;
    Some(Tail {
        all: percentiles(|tail| tail.all)?,
        undisturbed: percentiles(|tail| tail.undisturbed)?,
        slow_share: mean(|tail| tail.slow_share),
        slow_disturbed_share: mean(|tail| tail.slow_disturbed_share),
    })
}

/// Limits that were measured once in each round, as if they had been repeated. All rounds have the same ones.
#[must_use]
pub fn merged_limits(rounds: &[Vec<Limit>]) -> Vec<Limit> {
    let first = rounds.first().map(Vec::as_slice).unwrap_or_default();
    first
        .iter()
        .enumerate()
        .map(|(at, limit)| {
            let same: Vec<&Limit> = rounds.iter().filter_map(|round| round.get(at)).collect();
            let spread = |of: fn(&Limit) -> Spread| Spread::of(same.iter().map(|l| of(l).median));
            let latencies: Vec<Latency> =
                same.iter().filter_map(|limit| limit.latency_ns).collect();
            Limit {
                wall_ns: spread(|limit| limit.wall_ns),
                cpu_ns: spread(|limit| limit.cpu_ns),
                rate: spread(|limit| limit.rate),
                cpu_rate: spread(|limit| limit.cpu_rate),
                latency_ns: middle(&latencies, |latency| latency.p99),
                ..limit.clone()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use crate::workload::Workload;
    use std::time::Duration;

    fn measured(rate: f64, p99: u64, operations: u64) -> Measured {
        let latency = Latency {
            p50: p99 / 2,
            p99,
            p999: p99 * 2,
            max: p99 * 10,
        };
        Measured {
            workload: Workload::Get,
            operations,
            figures: Figures {
                rate: Spread::of([rate]),
                latency: Some(Tail {
                    all: latency,
                    ..Tail::default()
                }),
                dram_bytes: Some(rate / 10.0),
                preempted: 2,
                ..Figures::default()
            },
        }
    }

    #[test]
    fn rounds_become_a_row() {
        let rounds = [
            measured(300.0, 10, 7),
            measured(100.0, 30, 5),
            measured(200.0, 20, 6),
        ];
        let recovery = |ms: u64| Recovery {
            records: 9,
            wall: Duration::from_millis(ms),
            cpu: Duration::from_millis(1),
        };
        let blank = sample::row("everdram", Workload::Put, 1.0);
        let row = row(
            blank.clone(),
            &rounds,
            &[recovery(3), recovery(1), recovery(2)],
        )
        .unwrap();
        assert_eq!(row.configuration.workload, Workload::Get);
        assert_eq!(
            (row.configuration.operations, row.configuration.repeat),
            (6, 3)
        );
        let figures = &row.figures;
        assert_eq!(
            (figures.rate.min, figures.rate.median, figures.rate.max),
            (100.0, 200.0, 300.0)
        );
        let latency = figures.latency.unwrap().all;
        assert_eq!((latency.p50, latency.p99, latency.max), (10, 20, 300));
        assert_eq!((figures.dram_bytes, figures.preempted), (Some(20.0), 6));
        assert_eq!(figures.recovery.unwrap().wall, Duration::from_millis(2));
        assert!(super::row(blank, &[], &[]).is_none());
    }

    #[test]
    fn limits_of_rounds_are_merged_by_name() {
        let round = |rate: f64| vec![sample::limit("get", rate), sample::limit("put", rate * 2.0)];
        let merged = merged_limits(&[round(30.0), round(10.0), round(20.0)]);
        let rates: Vec<_> = merged
            .iter()
            .map(|limit| (limit.name.as_str(), limit.rate.min, limit.rate.median))
            .collect();
        assert_eq!(rates, [("get", 10.0, 20.0), ("put", 20.0, 40.0)]);
        assert!(merged_limits(&[]).is_empty());
    }
}
