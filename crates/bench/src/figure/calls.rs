//! How long single gets and puts take (figure 6): each call timed by itself.

use super::Telling;
use super::board::Board;
use super::crew::{self, Asking};
use super::line::Latency;
use super::line::{Calls, Distribution, Line, Measured};
use super::stand::Stage;
use super::stream::Writes;
use crate::latency::{Latencies, histogram};
use crate::subject::Error;
use hdrhistogram::Histogram;

/// Shares of the calls at which a distribution is told, in thousandths; beyond the last one, the tail.
const STEPS: u32 = 50;
const TAIL: [f64; 4] = [0.99, 0.995, 0.999, 0.9999];

/// Calls of one kind, of all rounds.
struct Kind {
    all: Histogram<u64>,
    rounds_ns: Vec<f64>,
}

impl Kind {
    fn new() -> Kind {
        Kind {
            all: histogram(),
            rounds_ns: Vec::new(),
        }
    }

    fn distribution(&self) -> Option<Distribution> {
        if self.all.is_empty() {
            return None;
        }
        let steps = (1..STEPS).map(|step| f64::from(step) / f64::from(STEPS));
        let shares = steps.chain(TAIL);
        Some(Distribution {
            calls: self.all.len(),
            all: Latency {
                p50: self.all.value_at_quantile(0.5),
                p99: self.all.value_at_quantile(0.99),
                p999: self.all.value_at_quantile(0.999),
                max: self.all.max(),
            },
            mean_ns: self.all.mean(),
            rounds_ns: self.rounds_ns.clone(),
            against_volatile: None,
            cdf: shares
                .map(|share| (self.all.value_at_quantile(share), share))
                .collect(),
        })
    }
}

/// Measures all systems.
pub(super) fn measure(stage: &Stage<'_>, telling: &mut Telling<'_>) -> Result<Vec<Line>, Error> {
    let settings = stage.settings;
    let percent = settings.writes[0];
    let mut measured: Vec<[Kind; 2]> = Vec::new();
    measured.resize_with(settings.systems.len(), || [Kind::new(), Kind::new()]);
    for round in 0..settings.rounds {
        for (system, kinds) in settings.systems.iter().zip(&mut measured) {
            telling.step(&format!("round {}: {system}", round + 1));
            let stand = stage.filled(*system, settings.log_bytes[0])?;
            telling.point();
            take(stage, &stand.store, percent, kinds)?;
        }
    }
    let pairs = settings.systems.iter().zip(&measured);
    Ok(pairs
        .map(|(system, [get, put])| {
            let calls = Calls {
                get: get.distribution(),
                put: put.distribution(),
            };
            let mut line = telling.line(*system, Measured::Calls(calls));
            line.writes_percent = percent;
            line.threads = settings.workers();
            line
        })
        .collect())
}

/// The mean without the slowest of a hundred calls; `None` without calls.
fn usual_mean(calls: &Histogram<u64>) -> Option<f64> {
    let most = calls.value_at_quantile(0.99);
    let (mut count, mut sum) = (0u64, 0.0);
    for value in calls.iter_recorded() {
        if value.value_iterated_to() <= most {
            count += value.count_at_value();
            sum += value.count_at_value() as f64 * value.value_iterated_to() as f64;
        }
    }
    (count > 0).then(|| sum / count as f64)
}

/// One round of one system.
fn take(
    stage: &Stage<'_>,
    store: &everdram::Store,
    percent: f64,
    kinds: &mut [Kind; 2],
) -> Result<(), Error> {
    let settings = stage.settings;
    let workers = settings.workers();
    let board = Board::new(workers, Writes::of_percent(percent));
    let duties = Asking::crew(&board, &stage.corpus, &stage.stream, workers);
    let ((), duties) = crew::run(store, &board, duties, || {
        board.sleep(settings.warm_up_seconds());
        board.time_from_now();
        board.sleep(settings.seconds);
        Ok(())
    })?;
    for (number, kind) in kinds.iter_mut().enumerate() {
        let mut latencies = Latencies::default();
        for timed in duties.iter().filter_map(|duty| duty.timed.as_ref()) {
            latencies.add(&timed[number].latencies);
        }
        kind.all.add(&latencies.all)?;
        kind.rounds_ns.extend(usual_mean(&latencies.undisturbed));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stall_does_not_make_the_mean() {
        let mut calls = histogram();
        (0..1000).for_each(|_| calls.saturating_record(500));
        calls.saturating_record(50_000_000);
        let mean = usual_mean(&calls).unwrap();
        assert!((499.0..501.0).contains(&mean), "{mean}");
        assert_eq!(usual_mean(&histogram()), None);
    }
}
