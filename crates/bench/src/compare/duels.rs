//! Who is ahead, in numbers and in sentences: computed from the rows, every loss named.
//!
//! Two are told apart only if their ranges over all repetitions do not touch.

use super::{Group, count_of_threads, of_suite};
use crate::row::{Metric, Row, SERVERS};
use crate::server;
use crate::timing::Spread;

/// everdram beside one other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its slowest repetition is faster than the fastest of the other.
    Ahead,
    /// The ranges touch.
    Even,
    /// Its fastest repetition is slower than the slowest of the other.
    Behind,
}

impl Standing {
    /// Of rates.
    #[must_use]
    pub fn of(own: Spread, other: Spread) -> Standing {
        if own.min > other.max {
            Standing::Ahead
        } else if own.max < other.min {
            Standing::Behind
        } else {
            Standing::Even
        }
    }
}

/// everdram beside one rival under one workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Duel {
    /// Where: `emulated, 2 threads`.
    pub scenario: String,
    /// What was asked for.
    pub what: String,
    /// The rival.
    pub rival: String,
    /// Whether each of its writes is durable.
    pub is_durable: bool,
    /// How many times as fast everdram is, in the middle.
    pub factor: f64,
    /// Who is ahead.
    pub standing: Standing,
}

impl Duel {
    fn of(own: &Row, rival: &Row, scenario: &str) -> Duel {
        let (one, other) = (own.get(Metric::Rate), rival.get(Metric::Rate));
        Duel {
            scenario: scenario.into(),
            what: rival.workload.clone(),
            rival: rival.subject.clone(),
            is_durable: rival.is_durable(),
            factor: one.median / other.median.max(1e-9),
            standing: Standing::of(one, other),
        }
    }
}

/// All duels of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Duels {
    kind: &'static str,
    /// In the order of the rows.
    pub all: Vec<Duel>,
}

impl Duels {
    /// everdram with pages of variable size, as it comes, against every other store.
    #[must_use]
    pub fn of_stores(groups: &[Group<'_>]) -> Duels {
        let mut duels = Vec::new();
        for group in groups {
            let is_usual = |row: &&&Row| row.is_own() && !row.subject.ends_with(", fixed");
            let Some(own) = group.rows.iter().find(is_usual) else {
                continue;
            };
            let scenario = format!("{}, {}", group.ground, count_of_threads(group.threads));
            let rivals = group.rows.iter().filter(|row| !row.is_own());
            duels.extend(rivals.map(|rival| Duel::of(own, rival, &scenario)));
        }
        Duels {
            kind: "stores",
            all: duels,
        }
    }

    /// everdram on files against servers that sync each write, and on emulated persistent memory against the
    /// others.
    #[must_use]
    pub fn of_servers(rows: &[Row]) -> Duels {
        let servers: Vec<&Row> = of_suite(rows, SERVERS).collect();
        let rivals = servers.iter().filter(|row| !row.is_own());
        let duel = |rival: &&Row| {
            let medium = if rival.is_durable() {
                "file"
            } else {
                "emulated"
            };
            let is_opponent = |own: &&&Row| {
                own.is_own()
                    && own.say("medium") == medium
                    && server::title(own) == server::title(rival)
            };
            let own = servers.iter().find(is_opponent)?;
            let scenario = format!("{} at once", rival.say("pipeline"));
            Some(Duel::of(own, rival, &scenario))
        };
        Duels {
            kind: "servers",
            all: rivals.filter_map(duel).collect(),
        }
    }

    /// A sentence about durable rivals, and one about the others.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let (durable, loose): (Vec<&Duel>, Vec<&Duel>) =
            self.all.iter().partition(|duel| duel.is_durable);
        [
            (durable, "that make each write durable, too"),
            (loose, "that may lose what they acknowledged"),
        ]
        .into_iter()
        .filter(|(duels, _)| !duels.is_empty())
        .map(|(duels, which)| sentence(&duels, &format!("{} {which}", self.kind)))
        .collect()
    }
}

fn sentence(duels: &[&Duel], against: &str) -> String {
    let count = |standing| {
        duels
            .iter()
            .filter(|duel| duel.standing == standing)
            .count()
    };
    let even = count(Standing::Even);
    let mut text = format!(
        "Against {against}, everdram is ahead in {} of {} pairings, and has {} times their rate in the middle of all.",
        count(Standing::Ahead),
        duels.len(),
        factor(Spread::of(duels.iter().map(|duel| duel.factor)).median),
    );
    match even {
        0 => {}
        1 => text.push_str(" One is too close to call."),
        even => text.push_str(&format!(" {even} are too close to call.")),
    }
    let lost = losses(duels);
    if lost.is_empty() {
        text.push_str(" It is behind in none.");
    } else {
        text.push_str(&format!(
            " Where it is behind, with its rate as a part of theirs: {}.",
            lost.join("; ")
        ));
    }
    text
}

/// `scc: get 0.37, put-many 0.83 (emulated, 1 thread)`, for each rival and scenario.
fn losses(duels: &[&Duel]) -> Vec<String> {
    let mut lost: Vec<&Duel> = duels
        .iter()
        .copied()
        .filter(|duel| duel.standing == Standing::Behind)
        .collect();
    let key = |duel: &Duel| (duel.rival.clone(), duel.scenario.clone());
    lost.sort_by_key(|duel| key(duel));
    lost.chunk_by(|one, other| key(one) == key(other))
        .map(|same| {
            let each: Vec<String> = same
                .iter()
                .map(|duel| format!("{} {}", duel.what, factor(duel.factor)))
                .collect();
            let (rival, scenario) = key(same[0]);
            format!("{rival}: {} ({scenario})", each.join(", "))
        })
        .collect()
}

/// As many digits as say something.
fn factor(factor: f64) -> String {
    match factor {
        factor if factor >= 10.0 => format!("{factor:.0}"),
        factor if factor >= 1.0 => format!("{factor:.1}"),
        factor if factor >= 0.1 => format!("{factor:.2}"),
        factor => format!("{factor:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::groups;
    use crate::report::sample;

    #[test]
    fn ranges_that_touch_are_no_victory() {
        let spread = |min: f64, max: f64| Spread::of([min, max]);
        for (own, other, standing) in [
            (spread(3.0, 4.0), spread(1.0, 2.0), Standing::Ahead),
            (spread(2.0, 4.0), spread(1.0, 2.0), Standing::Even),
            (spread(1.0, 9.0), spread(2.0, 3.0), Standing::Even),
            (
                Spread::of([1.0, 3.0, 4.0]),
                spread(1.0, 2.0),
                Standing::Even,
            ),
            (
                Spread::of([1.0, 2.0, 4.0]),
                spread(3.0, 5.0),
                Standing::Even,
            ),
            (spread(1.0, 2.0), spread(3.0, 4.0), Standing::Behind),
        ] {
            assert_eq!(Standing::of(own, other), standing, "{own:?} {other:?}");
        }
    }

    #[test]
    fn losses_are_named() {
        let rows = sample::rows();
        let sentences = Duels::of_stores(&groups(&rows)).sentences();
        assert_eq!(
            sentences,
            [
                "Against stores that make each write durable, too, everdram is ahead in 1 of 2 pairings, and has 0.50 \
                 times their rate in the middle of all. Where it is behind, with its rate as a part of theirs: rocksdb: \
                 put 0.50 (disk, 8 threads).",
                "Against stores that may lose what they acknowledged, everdram is ahead in 1 of 1 pairings, and has 2.0 \
                 times their rate in the middle of all. It is behind in none.",
            ]
        );
    }

    #[test]
    fn servers_meet_those_that_promise_the_same() {
        let duels = Duels::of_servers(&sample::rows()).all;
        let pairs: Vec<_> = duels
            .iter()
            .map(|duel| (duel.rival.as_str(), duel.factor, duel.standing))
            .collect();
        assert_eq!(
            pairs,
            [
                ("redis-server none", 0.5, Standing::Behind),
                ("redis-server always", 2.0, Standing::Ahead)
            ]
        );
    }
}
