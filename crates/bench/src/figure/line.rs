//! What a figure is made of: one line of JSON for each point of a curve, each distribution or each course of
//! time.

use super::Figure;
use crate::machine::Machine;
use crate::timing::Spread;
use everdram::options::BulletSystem;
use serde::{Deserialize, Serialize};

/// One point of a figure, or one curve where a curve is measured as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Which figure.
    pub figure: Figure,
    /// The system, by its name in the paper's figures.
    pub system: String,
    /// Percent of the requests that were puts; of a course of time, of its first phase.
    pub writes_percent: f64,
    /// Workers.
    pub threads: usize,
    /// Clients that asked them; `None` = the workers asked themselves.
    pub clients: Option<usize>,
    /// What it depends on beside.
    pub conditions: Conditions,
    /// Where.
    pub machine: Machine,
    /// The source it was built from.
    pub commit: String,
    /// What came out.
    pub measured: Measured,
}

/// What all lines of a figure have in common, but for the bytes of logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Version of everdram.
    pub version: String,
    /// `emulated`: memory that plays persistent memory.
    pub medium: String,
    /// Delay preset.
    pub preset: String,
    /// Records that the store held.
    pub records: u64,
    /// Bytes of each key.
    pub key_bytes: usize,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Exponent of the zipfian distribution of keys.
    pub skew: f64,
    /// Logs of the store.
    pub logs: usize,
    /// Bytes of each.
    pub log_bytes: u64,
    /// Seconds of each round that count.
    pub seconds: f64,
    /// Seconds before them that do not.
    pub warm_up_seconds: f64,
    /// Rounds.
    pub rounds: usize,
    /// Seed of all choices.
    pub seed: u64,
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Measured {
    /// A point of throughput and latency.
    Rate(Rate),
    /// How long single calls took.
    Calls(Calls),
    /// Throughput and gleaners over time.
    Course {
        /// In order.
        moments: Vec<Moment>,
    },
}

/// Throughput and latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// By the clock.
    pub by_clock: Series,
    /// As on a machine of as many cores that nobody else uses: time in which workers were ready to run and
    /// had no core is left out. `None` where threads give their cores away themselves.
    pub undisturbed: Option<Series>,
    /// Share of the threads' time in which they were ready to run and had no core.
    pub queued_share: Spread,
    /// Share of the workers' time in which they gleaned.
    pub gleaning_share: Spread,
    /// How often the puts of a round would have filled all logs, at the paper's 193 bytes for each.
    pub log_turns: f64,
}

/// Throughput and latency of all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Millions of requests a second.
    pub mops: Spread,
    /// Nanoseconds of a request, on average of those of a round: on the worker that answers, or as its client
    /// sees it.
    pub mean_ns: Spread,
    /// Beside `volatile` under the same load in the same rounds.
    pub against_volatile: Option<Ratio>,
    /// Throughput in each round.
    pub rounds_mops: Vec<f64>,
    /// Latency in each round.
    pub rounds_ns: Vec<f64>,
}

impl Series {
    /// Of pairs of throughput and latency.
    pub(super) fn of(rounds: impl Iterator<Item = (f64, f64)>) -> Series {
        let (rounds_mops, rounds_ns): (Vec<f64>, Vec<f64>) = rounds.unzip();
        Series {
            mops: Spread::of(rounds_mops.iter().copied()),
            mean_ns: Spread::of(rounds_ns.iter().copied()),
            against_volatile: None,
            rounds_mops,
            rounds_ns,
        }
    }

    fn compare(&mut self, base: &Series) {
        let throughput = ratio(&self.rounds_mops, &base.rounds_mops);
        let latency = ratio(&self.rounds_ns, &base.rounds_ns);
        let both = throughput.zip(latency);
        self.against_volatile = both.map(|(throughput, latency)| Ratio {
            throughput,
            latency,
        });
    }
}

impl Rate {
    /// Undisturbed where that is known, else by the clock: what is drawn and judged.
    #[must_use]
    pub fn best(&self) -> &Series {
        self.undisturbed.as_ref().unwrap_or(&self.by_clock)
    }
}

/// One system beside another: medians of the ratios within rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Of throughput.
    pub throughput: f64,
    /// Of latency.
    pub latency: f64,
}

/// Latencies of gets and puts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// Of gets; `None` if there were none.
    pub get: Option<Distribution>,
    /// Of puts.
    pub put: Option<Distribution>,
}

/// Percentiles, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// How long calls of one kind took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Calls.
    pub calls: u64,
    /// Percentiles of all of them.
    pub all: Latency,
    /// Mean of all of them, in nanoseconds.
    pub mean_ns: f64,
    /// Mean in each round of those that did not spend most of their time waiting for a core, without the
    /// slowest of a hundred: these waited for somebody who had none.
    pub rounds_ns: Vec<f64>,
    /// Beside `volatile` in the same rounds: the ratio of these means.
    pub against_volatile: Option<f64>,
    /// Nanoseconds, and the share of all calls that took at most as long.
    pub cdf: Vec<(u64, f64)>,
}

/// A moment of a course of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Seconds since the first phase began.
    pub second: f64,
    /// Number of the phase, from 0.
    pub phase: usize,
    /// Percent of the requests that are puts in this phase.
    pub writes_percent: f64,
    /// Millions of requests a second since the moment before, by the clock.
    pub mops: f64,
    /// The same without the time in which workers had no core.
    pub undisturbed_mops: f64,
    /// Workers whose last turn was one at gleaning.
    pub gleaners: usize,
    /// Share of the workers' time since the moment before in which they gleaned.
    pub gleaning_share: f64,
}

impl Line {
    /// What tells a curve from the others of its figure.
    #[must_use]
    pub fn label(&self) -> String {
        match self.figure {
            Figure::Bullet8 => mib(self.conditions.log_bytes),
            _ => self.system.clone(),
        }
    }

    /// Throughput and latency, if that is what was measured.
    #[must_use]
    pub fn rate(&self) -> Option<&Rate> {
        match &self.measured {
            Measured::Rate(rate) => Some(rate),
            _ => None,
        }
    }
}

/// `4 MiB`, `512 KiB`.
pub(super) fn mib(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{} KiB", bytes >> 10)
    }
}

/// Puts each line beside the one of `volatile` under the same load.
pub(super) fn compare(lines: &mut [Line]) {
    let bases: Vec<Line> = lines
        .iter()
        .filter(|line| line.system == BulletSystem::Volatile.name())
        .cloned()
        .collect();
    for line in lines {
        let load = |line: &Line| (line.threads, line.clients, line.conditions.log_bytes);
        let base = bases
            .iter()
            .find(|base| load(base) == load(line) && base.writes_percent == line.writes_percent);
        match (&mut line.measured, base.map(|base| &base.measured)) {
            (Measured::Rate(rate), Some(Measured::Rate(base))) => {
                rate.by_clock.compare(&base.by_clock);
                if let (Some(one), Some(base)) = (&mut rate.undisturbed, &base.undisturbed) {
                    one.compare(base);
                }
            }
            (Measured::Calls(calls), Some(Measured::Calls(base))) => {
                let pairs = [(&mut calls.get, &base.get), (&mut calls.put, &base.put)];
                for (one, base) in pairs {
                    if let (Some(one), Some(base)) = (one, base) {
                        one.against_volatile = ratio(&one.rounds_ns, &base.rounds_ns);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The median of what one is of the other in the same round; `None` without a round.
pub(super) fn ratio(one: &[f64], other: &[f64]) -> Option<f64> {
    let pairs = one.iter().zip(other).filter(|(_, other)| **other > 0.0);
    let ratios: Vec<f64> = pairs.map(|(one, other)| one / other).collect();
    (!ratios.is_empty()).then(|| Spread::of(ratios).median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        // A machine that is slow in one round is slow for both.
        assert_eq!(ratio(&[1.0, 10.0, 2.0], &[2.0, 20.0, 4.0]), Some(0.5));
        assert_eq!(ratio(&[1.0, 8.0, 1.0], &[2.0, 2.0, 2.0]), Some(0.5));
        assert_eq!(ratio(&[], &[1.0]), None);
        assert_eq!(ratio(&[1.0], &[0.0]), None);
    }

    #[test]
    fn logs_are_named_by_their_size() {
        assert_eq!(
            (mib(4 << 20), mib(64 << 10)),
            ("4 MiB".into(), "64 KiB".into())
        );
    }
}
