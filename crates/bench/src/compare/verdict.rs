//! Who is ahead, in numbers and in sentences: computed from the rows, losses first of all.
//!
//! Two stores are told apart only if their ranges over all repetitions do not touch.

use super::group::Group;
use super::line::label;
use crate::row::Row;
use crate::subject::Durability;
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
    /// `get, Emulated persistent memory, 1 thread`.
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

/// All duels of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// In the order of the groups.
    pub duels: Vec<Duel>,
}

impl Verdict {
    /// everdram with pages of variable size, as it comes, against every rival.
    #[must_use]
    pub fn of(groups: &[Group<'_>]) -> Verdict {
        let mut duels = Vec::new();
        for group in groups {
            let is_own =
                |row: &&&Row| row.configuration.store == "everdram" && !row.configuration.fixed;
            let Some(own) = group.rows.iter().find(is_own) else {
                continue;
            };
            let rivals = group
                .rows
                .iter()
                .filter(|row| row.configuration.store != "everdram");
            duels.extend(rivals.map(|row| Duel {
                what: format!("{}, {}", group.workload, lower(&group.scene())),
                rival: label(&row.configuration),
                is_durable: row.configuration.durability == Durability::EachWrite,
                factor: own.figures.rate.median / row.figures.rate.median.max(1e-9),
                standing: Standing::of(own.figures.rate, row.figures.rate),
            }));
        }
        Verdict { duels }
    }

    /// Sentences for durable rivals and for those that are not, each with every loss named.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let (durable, loose): (Vec<&Duel>, Vec<&Duel>) =
            self.duels.iter().partition(|duel| duel.is_durable);
        let mut sentences = Vec::new();
        for (duels, against) in [
            (durable, "stores that make each write durable, too"),
            (loose, "stores that may lose what they acknowledged"),
        ] {
            if !duels.is_empty() {
                sentences.push(sentence(&duels, against));
            }
        }
        sentences
    }
}

fn sentence(duels: &[&Duel], against: &str) -> String {
    let count = |standing| {
        duels
            .iter()
            .filter(|duel| duel.standing == standing)
            .count()
    };
    let factor = Spread::of(duels.iter().map(|duel| duel.factor)).median;
    let mut text = format!(
        "Against {against}: everdram is ahead in {} of {} pairings, {:.1} times as fast in the middle; {} {} too close \
         to call.",
        count(Standing::Ahead),
        duels.len(),
        factor,
        count(Standing::Even),
        if count(Standing::Even) == 1 {
            "is"
        } else {
            "are"
        },
    );
    let lost: Vec<String> = duels
        .iter()
        .filter(|duel| duel.standing == Standing::Behind)
        .map(|duel| {
            format!(
                "to {} in {} ({:.2} times its rate)",
                duel.rival, duel.what, duel.factor
            )
        })
        .collect();
    if lost.is_empty() {
        text.push_str(" It loses none.");
    } else {
        text.push_str(&format!(" It loses {}.", lost.join("; ")));
    }
    text
}

fn lower(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(letters).collect()
    })
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
            (spread(1.0, 2.0), spread(3.0, 4.0), Standing::Behind),
        ] {
            assert_eq!(Standing::of(own, other), standing, "{own:?} {other:?}");
        }
    }

    #[test]
    fn losses_are_named() {
        let lines = sample::lines();
        let verdict = Verdict::of(&groups(&lines));
        let sentences = verdict.sentences();
        assert_eq!(sentences.len(), 2);
        assert!(sentences[0].contains("ahead in 1 of 2"), "{}", sentences[0]);
        assert!(
            sentences[0].contains("It loses to rocksdb in put, an ordinary disk, 8 threads (0.50"),
            "{}",
            sentences[0]
        );
        assert!(sentences[1].contains("loses none"), "{}", sentences[1]);
    }
}
