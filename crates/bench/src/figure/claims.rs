//! What papers say of their figures, and bars set for the engines: a line of `bullet-claims.jsonl`,
//! `dstore-claims.jsonl`, `ndhedis-claims.jsonl`, `rdmp-claims.jsonl` or `viper-claims.jsonl` each, in the
//! order of the paper; and whether that is so in the rows.
//!
//! A claim compares curves with another curve at one share of writes, or says something of the curves
//! themselves. Its bounds are wider than the paper's figures: another machine is to show the same picture,
//! not the same numbers. Throughput and latency are judged without the time in which workers had no core,
//! where that is known; by the clock stands beside.

use super::{Figure, Ground, Measure, best, is_stand_in, label, measured, ratio};
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
    /// Throughput of the slowest moment, against the mean of another.
    LeastAgainstMean,
    /// A metric that the claim names.
    Metric,
}

/// The curve of the claims that stands for the best rival whose writes are durable.
const RIVALS: &str = "rivals";
/// Fewer calls have no slowest of ten thousand.
const CALLS_LEAST: f64 = 1e4;

/// Something the paper says, or a bar.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    figure: String,
    /// Where it says so; `bar` = what this engine is to reach.
    source: String,
    says: String,
    what: What,
    metric: Option<Metric>,
    /// What the metric is multiplied by, where it is compared with nothing; none = 1.
    scale: Option<f64>,
    /// Rows of this load alone; none = of any.
    workload: Option<String>,
    /// Rows of this ground alone; none = of any.
    ground: Option<Ground>,
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
    let files = [
        include_str!("bullet-claims.jsonl"),
        include_str!("dstore-claims.jsonl"),
        include_str!("ndhedis-claims.jsonl"),
        include_str!("rdmp-claims.jsonl"),
        include_str!("viper-claims.jsonl"),
    ];
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
        let values = |curve: &str, is_against| {
            let rows = measured(rows).filter(|row| label(row, &figure.curves) == curve);
            self.values(figure, rows, by, is_against)
        };
        let of = values(of, false)?;
        let against = match self.against.as_deref() {
            None => return Some(Spread::of(of).median * self.scale.unwrap_or(1.0)),
            Some(RIVALS) => self.best_rival(figure, rows, by)?,
            Some(curve) => values(curve, true)?,
        };
        match self.what {
            What::Gleaners => Some(of.first()? - against.first()?),
            _ => ratio(&of, &against),
        }
    }

    /// The values of the rival that is ahead of the others.
    fn best_rival(&self, figure: &Figure, rows: &[Row], by: By) -> Option<Vec<f64>> {
        let is_rival = |row: &&Row| row.is("rival") && row.is_durable() && !is_stand_in(row);
        let rivals = || measured(rows).filter(is_rival);
        let mut names: Vec<&str> = rivals().map(|row| &*row.subject).collect();
        names.dedup();
        let all = names.iter().filter_map(|name| {
            let rows = rivals().filter(|row| row.subject == *name);
            let values = self.values(figure, rows, by, true)?;
            Some((Spread::of(values.iter().copied()).median, values))
        });
        let is_better_greater = match self.what {
            What::Metric => self.metric == Some(Metric::LeastRate),
            _ => true,
        };
        let best = match is_better_greater {
            true => all.max_by(|one, other| one.0.total_cmp(&other.0)),
            false => all.min_by(|one, other| one.0.total_cmp(&other.0)),
        };
        best.map(|(_, values)| values)
    }

    fn metric(&self, row: &Row, by: By) -> Option<Metric> {
        let metric = match self.what {
            What::Gleaners => Metric::Gleaners,
            What::Throughput | What::Least | What::LeastAgainstMean => Metric::Rate,
            What::Latency => Metric::MeanNs,
            // The mean of all calls has every stall of the machine in it.
            What::Get | What::Put if by == By::Clock => return None,
            What::Get | What::Put => Metric::MeanNs,
            What::Metric => self.metric?,
        };
        Some(match by {
            By::Clock => metric,
            By::Best => best(row, metric),
        })
    }

    /// The values of one curve, of which these rows are.
    fn values<'a>(
        &self,
        figure: &Figure,
        rows: impl Iterator<Item = &'a Row>,
        by: By,
        is_against: bool,
    ) -> Option<Vec<f64>> {
        let load = match self.what {
            What::Get => Some("get"),
            What::Put => Some("put"),
            _ => self.workload.as_deref(),
        };
        // Where loads are the curves, they say the share of writes themselves.
        let has_writes = |row: &Row| {
            row.number("writes") == self.writes
                || (figure.curves == "workload" && figure.measure == Measure::Phases)
        };
        let rows = rows.filter(|row| {
            has_writes(row)
                && load.is_none_or(|load| row.workload == load)
                && (self.ground).is_none_or(|ground| row.say("ground") == ground.name())
        });
        match figure.measure {
            Measure::Phases => self.moments(rows, by, is_against),
            _ => self.rounds(rows, by),
        }
    }

    /// Round by round.
    fn rounds<'a>(&self, rows: impl Iterator<Item = &'a Row>, by: By) -> Option<Vec<f64>> {
        let row = judged(rows)?;
        let metric = self.metric(row, by)?;
        let is_tail = matches!(metric, Metric::P9999Ns | Metric::CoreP9999Ns);
        let rounds = row.rounds(metric);
        let is_told = !is_tail || row.get(Metric::Operations).min >= CALLS_LEAST;
        (!rounds.is_empty() && is_told).then(|| rounds.to_vec())
    }

    /// The mean of the second halves of all phases of a share of writes: by then workers have found their
    /// roles. What is said of single moments is said of all of them.
    fn moments<'a>(
        &self,
        rows: impl Iterator<Item = &'a Row>,
        by: By,
        is_against: bool,
    ) -> Option<Vec<f64>> {
        let is_of_all = matches!(self.what, What::Least | What::LeastAgainstMean);
        let values: Vec<f64> = rows
            .filter_map(|row| Some(row.rounds(self.metric(row, by)?)))
            .flat_map(|moments| &moments[if is_of_all { 0 } else { moments.len() / 2 }..])
            .copied()
            .collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let least = values.iter().copied().reduce(f64::min)?;
        Some(vec![match self.what {
            What::Least => least / mean,
            What::LeastAgainstMean if !is_against => least,
            _ => mean,
        }])
    }
}

/// The row that is judged of those of one curve: with as many workers as have a core of their own, or the
/// most if none has or all wait for a disk; and with the most clients.
fn judged<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
    rows.max_by_key(|row| {
        let ground = row.say("ground").parse::<Ground>();
        let waits = ground.is_ok_and(Ground::is_on_disk);
        let has_cores = waits || row.threads <= row.machine.cores;
        (has_cores, row.threads, row.number("clients") as u64)
    })
}

/// How many workers the judged rows have, on each ground.
pub(super) fn judged_workers(rows: &[Row]) -> String {
    let mut said: Vec<(String, String)> = Vec::new();
    for ground in measured(rows).map(|row| row.say("ground")) {
        let rows = measured(rows).filter(|row| row.say("ground") == ground);
        let threads = judged(rows).map_or(0, |row| row.threads);
        let plural = if threads == 1 { "" } else { "s" };
        let on = match ground.as_str() {
            "" => String::new(),
            ground => format!(" on ground {}", ground.to_uppercase()),
        };
        if said.iter().all(|(other, _)| *other != ground) {
            said.push((ground, format!("{threads} worker{plural}{on}")));
        }
    }
    let said: Vec<String> = said.into_iter().map(|(_, said)| said).collect();
    said.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
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
        let line = "at least 0.93 | yes | +wrc 0.95 | 0.76 | bar |";
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

    /// Rows of DStore's figures with a ground.
    fn of_ground(figure: &str, system: &str, load: &str, ground: &str) -> Row {
        let mut row = row(figure, system, 50.0, 2);
        row.workload = load.into();
        row.conditions.insert("ground".into(), ground.into());
        row
    }

    #[test]
    fn tails_are_compared_where_enough_calls_have_one() {
        let rows = |operations: f64| {
            [("cow", [7.5e6, 10e6]), ("+oe", [3e6, 4e6])].map(|(system, tails)| {
                let mut row = of_ground("dstore-8", system, "put", "a");
                row.extend(Metric::Operations, [operations, 2e5]);
                row.extend(Metric::CoreP9999Ns, tails);
                row.extend(Metric::P9999Ns, [1e9, 1e9]);
                row
            })
        };
        let says = "p99.99 of copy-on-write's puts is high";
        let reached = verdict(claims(&rows(1e5)), says);
        assert_eq!(reached.holds, Some(true));
        assert_eq!(reached.measured[0].value, 2.5);
        assert_eq!(reached.measured[0].by_clock, Some(1.0));
        assert_eq!(verdict(claims(&rows(9e3)), says).holds, None);
    }

    #[test]
    fn the_best_durable_rival_is_the_one_to_beat() {
        let rival = |name, durable: &str, mean_ns| {
            let mut row = of_ground("dstore-5", name, "put", "b");
            row.conditions.insert("rival".into(), true.into());
            row.conditions.insert("durable".into(), durable.into());
            row.push(Metric::MeanNs, mean_ns);
            row
        };
        let mut own = of_ground("dstore-5", "+oe", "put", "b");
        own.push(Metric::MeanNs, 300.0);
        let mut rows = vec![own];
        let says = "YCSB A: updates are faster";
        assert_eq!(verdict(claims(&rows), says).holds, None);
        rows.push(rival("lmdb", "each write", 600.0));
        rows.push(rival("rocksdb", "each write", 500.0));
        rows.push(rival("sled", "no", 100.0));
        let mut stand_in = rival("rocksdb-pm", "each write", 50.0);
        let of = "PMEM-RocksDB".into();
        stand_in.conditions.insert("stands_in_for".into(), of);
        rows.push(stand_in);
        assert_eq!(verdict(claims(&rows), says).measured[0].value, 0.6);
    }

    #[test]
    fn the_slowest_moment_of_one_is_compared_with_the_mean_of_another() {
        let moments = |system, rates: [f64; 3]| {
            let mut row = of_ground("dstore-7", system, "50 %", "a");
            row.extend(Metric::CoreRate, rates);
            row
        };
        let rows = [
            moments("+oe", [10.0, 8.0, 12.0]),
            moments("inline", [4.0, 5.0, 6.0]),
            moments("cow", [10.0, 4.0, 10.0]),
        ];
        let value = |says| verdict(claims(&rows), says).measured[0].value;
        assert_eq!(value("15 % more at its lowest"), 8.0 / 5.0);
        assert_eq!(value("never quiescent"), 0.8);
        assert_eq!(value("drops more"), 0.5 / 0.8);
    }

    /// Other stores that claims name.
    const OTHERS: [&str; 2] = ["rocksdb", "rocksdb-pm (stand-in)"];

    #[test]
    fn claims_are_about_curves_that_there_are() {
        for claim in CLAIMS.iter() {
            let (least, most) = claim.bounds;
            assert!(most.is_none_or(|most| least < most), "{}", claim.says);
            assert!(!claim.of.is_empty(), "{}", claim.says);
            let is_of_metric = claim.what == What::Metric;
            assert_eq!(is_of_metric, claim.metric.is_some(), "{}", claim.says);
            let figure = Figure::find(&claim.figure).unwrap();
            let ground = claim.ground;
            assert!(ground.is_none_or(|ground| figure.grounds().contains(&ground)));
            let systems = figure.systems();
            for label in claim.of.iter().chain(&claim.against) {
                let is_rivals = label == RIVALS && figure.has_rivals();
                let mut parts = figure.curves.split(", ").zip(label.split(", "));
                let is_known = parts.all(|(by, part)| match by {
                    "workload" => [
                        "%", "KiB", "clean", "killed", "thread", "threads", "gets", "inserts", "it",
                    ]
                    .iter()
                    .any(|end| part.ends_with(end)),
                    "log_bytes" => part.ends_with("iB"),
                    "back end" => figure.back_ends.iter().any(|back_end| back_end == part),
                    "device" => figure.delays.iter().any(|delays| delays == part),
                    "sizes" => figure
                        .sizes
                        .iter()
                        .any(|(key, value)| part == format!("{key} + {value} B")),
                    "keys" => figure.keys.iter().any(|keys| keys.name() == part),
                    "value" => figure.values.iter().any(|bytes| bytes.to_string() == part),
                    // Other stores may not be built in.
                    _ if OTHERS.contains(&part) => figure.has_rivals(),
                    _ => systems.iter().any(|system| system.name() == part),
                });
                assert!(is_rivals || is_known, "{label}: {}", claim.says);
            }
        }
    }
}
