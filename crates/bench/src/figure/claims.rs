//! What papers say of their figures, and bars set for this engine: a line of `bullet-claims.jsonl` each, in
//! the order of the paper; and whether that is so in the rows.
//!
//! A claim compares curves with another curve at one share of writes, or says something of the curves
//! themselves. Its bounds are wider than the paper's figures: another machine is to show the same picture,
//! not the same numbers. Throughput and latency are judged without the time in which workers had no core,
//! where that is known; by the clock stands beside.

use super::{Figure, Measure, best, label, ratio};
use crate::row::{Metric, Row};
use crate::timing::Spread;
use crate::verdict::{Compared, Verdict};
use serde::Deserialize;
use std::sync::LazyLock;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum What {
    /// Requests a second.
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
struct Claim {
    figure: String,
    /// Where it says so; `bar` = what this engine is to reach.
    source: String,
    says: String,
    what: What,
    /// Percent of the requests.
    writes: f64,
    /// Curves that it is about.
    of: Vec<String>,
    /// The curve that they are compared with; none = it is about what they are themselves.
    against: Option<String>,
    /// Least and most; none = any.
    bounds: (f64, Option<f64>),
}

/// All of them, in the order of their files.
static CLAIMS: LazyLock<Vec<Claim>> = LazyLock::new(|| {
    let files = [include_str!("bullet-claims.jsonl")];
    let read = |line| serde_json::from_str(line).expect("a claim");
    files
        .iter()
        .flat_map(|file| file.lines())
        .map(read)
        .collect()
});

/// What the paper says of the figure that these rows are of, and whether it is so here.
#[must_use]
pub fn claims(rows: &[Row]) -> Vec<Verdict> {
    judge(false, rows)
}

/// The bars of the figure that these rows are of.
#[must_use]
pub fn bars(rows: &[Row]) -> Vec<Verdict> {
    judge(true, rows)
}

fn judge(bars: bool, rows: &[Row]) -> Vec<Verdict> {
    let Some(figure) = Figure::of(rows) else {
        return Vec::new();
    };
    let is_of_figure = |claim: &&Claim| claim.figure == figure.name;
    let claims = CLAIMS.iter().filter(is_of_figure);
    claims
        .filter(|claim| (claim.source == "bar") == bars)
        .map(|claim| claim.verdict(figure, rows))
        .collect()
}

/// Which of two values of the same is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Clock,
    Best,
}

impl Claim {
    fn verdict(&self, figure: &Figure, rows: &[Row]) -> Verdict {
        let compared = |of: &String| {
            let value = self.value(figure, rows, of, By::Best)?;
            let by_clock = self.value(figure, rows, of, By::Clock);
            Some(Compared {
                by_clock: by_clock.filter(|by_clock| *by_clock != value),
                ..Compared::new(of, value)
            })
        };
        let measured: Vec<Compared> = self.of.iter().filter_map(compared).collect();
        let is_whole = measured.len() == self.of.len();
        Verdict::new((&self.source, &self.says), measured, self.bounds, is_whole)
    }

    fn value(&self, figure: &Figure, rows: &[Row], of: &str, by: By) -> Option<f64> {
        let rounds = |curve: &str| match figure.measure {
            Measure::Phases => self.settled(rows, curve, by),
            _ => self.rounds(figure, rows, curve, by),
        };
        let of = rounds(of)?;
        let Some(against) = &self.against else {
            return Some(Spread::of(of).median);
        };
        let against = rounds(against)?;
        match self.what {
            What::Gleaners => Some(of.first()? - against.first()?),
            _ => ratio(&of, &against),
        }
    }

    fn metric(&self, row: &Row, by: By) -> Option<Metric> {
        let metric = match self.what {
            What::Gleaners => Metric::Gleaners,
            What::Throughput | What::Least => Metric::Rate,
            What::Latency => Metric::MeanNs,
            // The mean of all calls has every stall of the machine in it.
            What::Get | What::Put if by == By::Clock => return None,
            What::Get | What::Put => Metric::MeanNs,
        };
        Some(match by {
            By::Clock => metric,
            By::Best => best(row, metric),
        })
    }

    /// The values of a curve, round by round.
    fn rounds(&self, figure: &Figure, rows: &[Row], curve: &str, by: By) -> Option<Vec<f64>> {
        let call = match self.what {
            What::Get => Some("get"),
            What::Put => Some("put"),
            _ => None,
        };
        let row = judged(rows.iter().filter(|row| {
            label(row, &figure.curves) == curve
                && row.number("writes") == self.writes
                && call.is_none_or(|call| row.workload == call)
        }))?;
        let rounds = row.rounds(self.metric(row, by)?);
        (!rounds.is_empty()).then(|| rounds.to_vec())
    }

    /// The mean of the second halves of all phases of a share of writes: by then workers have found their
    /// roles. What is said of single moments is said of all of them.
    fn settled(&self, rows: &[Row], workload: &str, by: By) -> Option<Vec<f64>> {
        let is_of_all = self.what == What::Least;
        let of_share = rows.iter().filter(|row| row.workload == workload);
        let values: Vec<f64> = of_share
            .filter_map(|row| Some(row.rounds(self.metric(row, by)?)))
            .flat_map(|moments| &moments[if is_of_all { 0 } else { moments.len() / 2 }..])
            .copied()
            .collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let least = values.iter().copied().reduce(f64::min)?;
        Some(vec![if is_of_all { least / mean } else { mean }])
    }
}

/// The row that is judged of those of one curve: with as many workers as have a core of their own, or the
/// most if none has; and with the most clients.
fn judged<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
    rows.max_by_key(|row| {
        let has_cores = row.threads <= row.machine.cores;
        (has_cores, row.threads, row.number("clients") as u64)
    })
}

/// How many workers the judged rows have.
pub(super) fn judged_threads(rows: &[Row]) -> Option<usize> {
    judged(rows.iter()).map(|row| row.threads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use std::collections::HashSet;
    use std::path::Path;

    fn row(figure: &str, system: &str, writes: f64, threads: usize) -> Row {
        let mut machine = Machine::here(Path::new("/"));
        machine.cores = 2;
        let conditions = serde_json::json!({ "writes": writes });
        let workload = format!("{writes} %");
        Row::new(figure, system, &workload, threads, conditions, &machine)
    }

    fn point(system: &str, threads: usize, rate: f64) -> Row {
        let mut row = row("bullet-5", system, 2.0, threads);
        row.extend(Metric::CoreRate, [rate, rate]);
        row.extend(Metric::Rate, [rate / 2.0, rate / 2.5]);
        row
    }

    fn verdict(verdicts: Vec<Verdict>, says: &str) -> Verdict {
        let mut verdicts = verdicts.into_iter();
        verdicts
            .find(|verdict| verdict.says.contains(says))
            .unwrap()
    }

    #[test]
    fn verdicts_follow_from_the_rows() {
        let mut rows = vec![
            point("volatile", 2, 4e6),
            point("+wrc", 2, 3.8e6),
            // Workers beyond the cores are not judged.
            point("+wrc", 4, 1e5),
        ];
        rows[0].values.remove(&Metric::Rate);
        rows[0].extend(Metric::Rate, [2e6, 2e6]);
        let reached = verdict(bars(&rows), "2 %: at least 0.93");
        assert_eq!(reached.holds, Some(true));
        let table = Verdict::table(&[reached], true).markdown();
        let line = "at least 0.93 | yes | +wrc 0.95 | +wrc 0.76 | bar |";
        assert!(table.contains(line), "{table}");
        rows[1] = point("+wrc", 2, 3e6);
        let holds = |rows: &[Row], says| verdict(bars(rows), says).holds;
        assert_eq!(holds(&rows, "2 %: at least 0.93"), Some(false));
        assert_eq!(holds(&rows, "50 %"), None);
        assert!(bars(&[]).is_empty());
    }

    #[test]
    fn of_phases_the_settled_half_counts() {
        let phase = |writes, gleaners: [f64; 2]| {
            let mut row = row("bullet-7", "+wrc", writes, 4);
            row.extend(Metric::Gleaners, gleaners);
            row
        };
        let rows = [
            phase(2.0, [9.0, 1.0]),
            phase(0.0, [9.0, 0.0]),
            phase(15.0, [9.0, 2.0]),
        ];
        let of = |says| verdict(claims(&rows), says);
        assert_eq!(of("no gleaner").holds, Some(true));
        assert_eq!(
            of("more gleaners than at 2 %").measured,
            [Compared::new("15 %", 1.0)]
        );
        assert_eq!(of("more gleaners than at 15 %").holds, None);
    }

    #[test]
    fn one_slow_second_is_one_too_many() {
        for (least, holds) in [(0.6, true), (0.4, false)] {
            let mut soak = row("bullet-7", "+wrc", 100.0, 2);
            soak.extend(Metric::CoreRate, [least, 1.2, 1.2, 1.0]);
            let bar = verdict(bars(&[soak]), "no second below half");
            assert_eq!(bar.holds, Some(holds), "{bar:?}");
        }
    }

    #[test]
    fn claims_are_about_curves_that_there_are() {
        let systems: HashSet<&str> = everdram::options::BulletSystem::ALL
            .iter()
            .map(|system| system.name())
            .collect();
        for claim in CLAIMS.iter() {
            let (least, most) = claim.bounds;
            assert!(most.is_none_or(|most| least < most), "{}", claim.says);
            assert!(!claim.of.is_empty(), "{}", claim.says);
            let figure = Figure::find(&claim.figure).unwrap();
            for label in claim.of.iter().chain(&claim.against) {
                let is_known = match figure.curves.as_str() {
                    "workload" => label.ends_with(" %"),
                    "log_bytes" => label.ends_with(" MiB"),
                    _ => systems.contains(label.as_str()),
                };
                assert!(is_known, "{label}: {}", claim.says);
            }
        }
    }
}
