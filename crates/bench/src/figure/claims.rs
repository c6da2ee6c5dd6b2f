//! What the paper says of its figures, and bars set for this engine: a line of `claims.jsonl` each, in the
//! order of the paper.
//!
//! A claim compares curves with another curve at one share of writes, or says something of the curves
//! themselves. Of figure 7 a curve is a phase, of figure 8 a size of logs. Its bounds are wider than the
//! paper's figures: another machine is to show the same picture, not the same numbers.

use super::Figure;
use serde::Deserialize;
use std::sync::LazyLock;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum What {
    /// Millions of requests a second.
    Throughput,
    /// Nanoseconds of a request.
    Latency,
    /// Nanoseconds of a get, on average of those that had a core.
    Get,
    /// Nanoseconds of a put, likewise.
    Put,
    /// Workers that glean, on average. Compared by difference: there may be none.
    Gleaners,
    /// Throughput of the slowest moment, as a share of the mean.
    Least,
}

/// Something the paper says, or a bar.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claim {
    pub(super) figure: Figure,
    /// Where it says so; `bar` = what this engine is to reach.
    pub(super) source: String,
    pub(super) says: String,
    pub(super) what: What,
    /// Percent of the requests.
    pub(super) writes: f64,
    /// Curves that it is about.
    pub(super) of: Vec<String>,
    /// The curve that they are compared with; none = it is about what they are themselves.
    pub(super) against: Option<String>,
    /// Least and most; none = any.
    pub(super) bounds: (f64, Option<f64>),
}

impl Claim {
    pub(super) fn is_bar(&self) -> bool {
        self.source == "bar"
    }

    pub(super) fn holds(&self, value: f64) -> bool {
        let (least, most) = self.bounds;
        value >= least && most.is_none_or(|most| value <= most)
    }
}

/// All of them, as they stand in their file.
pub(super) static CLAIMS: LazyLock<Vec<Claim>> = LazyLock::new(|| {
    let lines = include_str!("claims.jsonl").lines();
    let read = |line| serde_json::from_str(line).expect("a line of claims.jsonl is a claim");
    lines.map(read).collect()
});
