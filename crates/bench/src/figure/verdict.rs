//! Whether what was measured has the shape that the paper describes, and reaches the bars set for this
//! engine: from the lines alone.
//!
//! Of throughput and latency the undisturbed figures are judged, where there are such; by the clock stands
//! beside.

use super::Figure;
use super::claims::{CLAIMS, Claim, What};
use super::line::{Distribution, Line, Measured, Moment, Series, ratio};
use crate::show::Table;
use crate::timing::Spread;

/// A claim, and what was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Where the paper says it.
    pub source: &'static str,
    /// What it says.
    pub says: &'static str,
    /// What was measured, curve by curve: ratios, or differences of gleaners.
    pub measured: Vec<(&'static str, f64)>,
    /// The same by the clock.
    pub by_clock: Vec<(&'static str, f64)>,
    /// Whether that is so; `None` if a curve is missing.
    pub holds: Option<bool>,
}

impl Verdict {
    /// All of them; what is said, and whether it is so, have names of their own.
    #[must_use]
    pub fn table(verdicts: &[Verdict], is_of_bars: bool) -> Table {
        let mut table = Table::new(if is_of_bars {
            "bar | reached? | measured | by the clock | section"
        } else {
            "paper says | same shape? | measured | by the clock | section"
        });
        for verdict in verdicts {
            let by_clock = if verdict.by_clock == verdict.measured {
                &[][..]
            } else {
                &verdict.by_clock
            };
            table.push([
                verdict.says.into(),
                verdict.word().into(),
                values(&verdict.measured),
                values(by_clock),
                verdict.source.into(),
            ]);
        }
        table
    }

    /// In a word.
    fn word(&self) -> &'static str {
        match self.holds {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not measured",
        }
    }
}

/// `+dyn 0.81, +wrc 0.95`.
fn values(of: &[(&str, f64)]) -> String {
    let values = of
        .iter()
        .map(|(label, value)| format!("{label} {value:.2}"));
    values.collect::<Vec<_>>().join(", ")
}

/// What the paper says of the figure that these lines are of, and whether it is so here.
#[must_use]
pub fn claims(lines: &[Line]) -> Vec<Verdict> {
    judge(false, lines)
}

/// The bars of the figure that these lines are of.
#[must_use]
pub fn bars(lines: &[Line]) -> Vec<Verdict> {
    judge(true, lines)
}

fn judge(bars: bool, lines: &[Line]) -> Vec<Verdict> {
    let Some(figure) = lines.first().map(|line| line.figure) else {
        return Vec::new();
    };
    let claims = CLAIMS.iter();
    claims
        .filter(|claim| claim.figure == figure && claim.is_bar() == bars)
        .map(|claim| claim.verdict(lines))
        .collect()
}

/// Which of two figures of the same is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Clock,
    Best,
}

impl Claim {
    fn verdict(&'static self, lines: &[Line]) -> Verdict {
        let values = |by| -> Vec<(&'static str, f64)> {
            let labels = self.of.iter().map(String::as_str);
            labels
                .filter_map(|label| Some((label, self.value(lines, label, by)?)))
                .collect()
        };
        let measured = values(By::Best);
        let is_whole = measured.len() == self.of.len();
        Verdict {
            source: &self.source,
            says: &self.says,
            holds: is_whole.then(|| measured.iter().all(|(_, value)| self.holds(*value))),
            measured,
            by_clock: values(By::Clock),
        }
    }

    fn value(&self, lines: &[Line], label: &str, by: By) -> Option<f64> {
        let of = self.rounds(lines, label, by)?;
        let Some(against) = &self.against else {
            return Some(Spread::of(of).median);
        };
        let against = self.rounds(lines, against, by)?;
        match self.what {
            What::Gleaners => Some(of.first()? - against.first()?),
            _ => ratio(&of, &against),
        }
    }

    /// The values of a curve, round by round.
    fn rounds(&self, lines: &[Line], label: &str, by: By) -> Option<Vec<f64>> {
        if self.figure == Figure::Bullet7 {
            return self.settled(lines, label, by);
        }
        let of_curve = |line: &&Line| line.label() == label && line.writes_percent == self.writes;
        let line = judged(lines.iter().filter(of_curve))?;
        let series = || -> Option<&Series> {
            let rate = line.rate()?;
            Some(match by {
                By::Clock => &rate.by_clock,
                By::Best => rate.best(),
            })
        };
        let distribution = |of: &Option<Distribution>| Some(of.as_ref()?.rounds_ns.clone());
        match (self.what, &line.measured) {
            (What::Throughput, _) => Some(series()?.rounds_mops.clone()),
            (What::Latency, _) => Some(series()?.rounds_ns.clone()),
            (What::Get, Measured::Calls(calls)) => distribution(&calls.get),
            (What::Put, Measured::Calls(calls)) => distribution(&calls.put),
            _ => None,
        }
    }

    /// The mean of the second halves of all phases of a share of writes: by then workers have found their
    /// places. What is said of single moments is said of all of them.
    fn settled(&self, lines: &[Line], label: &str, by: By) -> Option<Vec<f64>> {
        let Measured::Course { moments } = &lines.first()?.measured else {
            return None;
        };
        let of_label = |moment: &&Moment| format!("{} %", moment.writes_percent) == label;
        let is_of_all = self.what == What::Least;
        let values: Vec<f64> = moments
            .chunk_by(|one, next| one.phase == next.phase)
            .flat_map(|phase| &phase[if is_of_all { 0 } else { phase.len() / 2 }..])
            .filter(of_label)
            .map(|moment| match (self.what, by) {
                (What::Gleaners, _) => moment.gleaners as f64,
                (_, By::Clock) => moment.mops,
                (_, By::Best) => moment.undisturbed_mops,
            })
            .collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let least = values.iter().copied().reduce(f64::min)?;
        Some(vec![if is_of_all { least / mean } else { mean }])
    }
}

/// The line that is judged of those of one curve: with as many workers as have a core of their own, or the
/// most if none has; and with the most clients.
fn judged<'a>(lines: impl Iterator<Item = &'a Line>) -> Option<&'a Line> {
    lines.max_by_key(|line| {
        let has_cores = line.threads <= line.machine.cores;
        (has_cores, line.threads, line.clients)
    })
}

/// How many workers the judged lines have.
pub(super) fn judged_threads(lines: &[Line]) -> Option<usize> {
    judged(lines.iter()).map(|line| line.threads)
}

#[cfg(test)]
mod tests {
    use super::super::line::{Conditions, Rate};
    use super::*;
    use crate::machine::Machine;
    use std::collections::HashSet;
    use std::path::Path;

    fn line(figure: Figure, system: &str, writes_percent: f64, threads: usize, mops: f64) -> Line {
        let series =
            |mops: f64| Series::of([(mops, 100.0 / mops), (mops, 100.0 / mops)].into_iter());
        let mut machine = Machine::here(Path::new("/"));
        machine.cores = 2;
        Line {
            figure,
            system: system.into(),
            writes_percent,
            threads,
            clients: None,
            conditions: Conditions {
                version: String::new(),
                medium: "emulated".into(),
                preset: "bullet".into(),
                records: 1,
                key_bytes: 16,
                value_bytes: 100,
                skew: 0.99,
                logs: 4,
                log_bytes: 1 << 20,
                seconds: 1.0,
                warm_up_seconds: 1.0,
                rounds: 2,
                seed: 1,
            },
            machine,
            commit: String::new(),
            measured: Measured::Rate(Rate {
                by_clock: series(mops / 2.0),
                undisturbed: Some(series(mops)),
                queued_share: Spread::default(),
                gleaning_share: Spread::default(),
                log_turns: 0.0,
            }),
        }
    }

    fn bar(lines: &[Line], says: &str) -> Verdict {
        let verdicts = bars(lines);
        verdicts
            .into_iter()
            .find(|bar| bar.says.contains(says))
            .unwrap()
    }

    #[test]
    fn verdicts_follow_from_the_lines() {
        let mut lines = vec![
            line(Figure::Bullet5, "volatile", 2.0, 2, 4.0),
            line(Figure::Bullet5, "+wrc", 2.0, 2, 3.8),
            // Workers beyond the cores are not judged.
            line(Figure::Bullet5, "+wrc", 2.0, 4, 0.1),
        ];
        let reached = bar(&lines, "2 %: at least 0.93");
        assert_eq!(
            (reached.holds, values(&reached.measured)),
            (Some(true), "+wrc 0.95".into())
        );
        let table = Verdict::table(&[reached], true).markdown();
        assert!(
            table.contains("at least 0.93 | yes | +wrc 0.95 |  | bar |"),
            "{table}"
        );
        lines[1] = line(Figure::Bullet5, "+wrc", 2.0, 2, 3.0);
        assert_eq!(bar(&lines, "2 %: at least 0.93").holds, Some(false));
        assert_eq!(bar(&lines, "50 %").holds, None);
        lines.clear();
        assert!(bars(&lines).is_empty());
    }

    #[test]
    fn of_a_course_the_settled_half_of_each_phase_counts() {
        let moment = |phase, writes_percent, gleaners| Moment {
            second: 0.0,
            phase,
            writes_percent,
            mops: 1.0,
            undisturbed_mops: 1.0,
            gleaners,
            gleaning_share: 0.0,
        };
        let mut course = line(Figure::Bullet7, "+wrc", 2.0, 4, 1.0);
        course.measured = Measured::Course {
            moments: vec![
                moment(0, 2.0, 9),
                moment(0, 2.0, 1),
                moment(1, 0.0, 9),
                moment(1, 0.0, 0),
                moment(2, 15.0, 9),
                moment(2, 15.0, 2),
            ],
        };
        let verdicts = claims(&[course]);
        let of = |says: &str| {
            verdicts
                .iter()
                .find(|claim| claim.says.contains(says))
                .unwrap()
        };
        assert_eq!(of("no gleaner").holds, Some(true));
        assert_eq!(of("more gleaners than at 2 %").measured, [("15 %", 1.0)]);
        assert_eq!(of("more gleaners than at 15 %").holds, None);
    }

    #[test]
    fn one_slow_second_is_one_too_many() {
        let mut soak = line(Figure::Bullet7, "+wrc", 100.0, 2, 1.0);
        for (least, holds) in [(0.6, true), (0.4, false)] {
            let moments = [least, 1.2, 1.2, 1.0].map(|mops| Moment {
                second: 0.0,
                phase: 0,
                writes_percent: 100.0,
                mops,
                undisturbed_mops: mops,
                gleaners: 1,
                gleaning_share: 0.5,
            });
            soak.measured = Measured::Course {
                moments: moments.to_vec(),
            };
            let bar = bar(std::slice::from_ref(&soak), "no second below half");
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
            for label in claim.of.iter().chain(&claim.against) {
                let label = label.as_str();
                let is_known = match claim.figure {
                    Figure::Bullet7 => label.ends_with(" %"),
                    Figure::Bullet8 => label.ends_with(" MiB"),
                    _ => systems.contains(label),
                };
                assert!(is_known, "{label}: {}", claim.says);
            }
        }
    }
}
