//! Chooses images of a crash point, where there are too many to judge all.
//!
//! A pick names one choice for each unit. If there are few picks, all are tried. Otherwise those come first
//! that show mistakes in the order of persistence: nothing; everything; everything up to each step; each
//! choice of each unit, with nothing else and with everything else; each commit word and each other unit both
//! present, or both missing. Then come random ones.

pub(super) mod after_crash;
pub(super) mod budget;
pub mod campaign;
pub mod crash;
pub mod examine;
pub mod lint;
pub mod mutation;
pub mod replay;
pub mod shrink;

use crate::medium::unit::Unit;
use crate::run::trace::StepId;
use rand::RngExt;
use rand::rngs::StdRng;
use std::ops::ControlFlow;

/// How many images of a crash point to judge.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// All picks, if there are at most so many.
    pub exhaustive: u64,
    /// Otherwise each choice of each unit, with nothing else and with everything else.
    pub singles: bool,
    /// Random picks.
    pub random: usize,
    /// Pairs of a commit word and another unit.
    pub pairs: usize,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort {
            exhaustive: 4096,
            singles: true,
            random: 40,
            pairs: 200,
        }
    }
}

/// One choice for each unit.
pub type Pick = Vec<usize>;

/// The number of picks, or `u64::MAX` if there are more.
#[must_use]
pub fn count(units: &[Unit]) -> u64 {
    units.iter().fold(1u64, |product, unit| {
        product.saturating_mul(unit.choices.len() as u64)
    })
}

/// Visits the picks that the effort asks for, until the visitor breaks. A pick may come twice.
pub fn explore(
    units: &[Unit],
    effort: &Effort,
    random: &mut StdRng,
    visit: &mut dyn FnMut(&Pick) -> ControlFlow<()>,
) -> ControlFlow<()> {
    if count(units) <= effort.exhaustive {
        return all(units, visit);
    }
    let (least, newest) = extremes(units);
    visit(&least)?;
    visit(&newest)?;
    prefixes(units, visit)?;
    for (place, unit) in units.iter().enumerate().filter(|_| effort.singles) {
        for choice in 0..unit.choices.len() {
            visit(&with(&least, &[(place, choice)]))?;
            visit(&with(&newest, &[(place, choice)]))?;
        }
    }
    pairs(units, effort, random, visit)?;
    for _ in 0..effort.random {
        let pick: Pick = units
            .iter()
            .map(|unit| random.random_range(0..unit.choices.len()))
            .collect();
        visit(&pick)?;
        // Each unit as a whole or not at all, as caches mostly leave them.
        let share = random.random_range(1..8);
        let pick: Pick = units
            .iter()
            .map(|unit| {
                if random.random_range(0..8) < share {
                    unit.newest()
                } else {
                    0
                }
            })
            .collect();
        visit(&pick)?;
    }
    ControlFlow::Continue(())
}

/// Visits so many random picks of the kinds of [`explore`], or all if there are no more.
pub fn sample(
    units: &[Unit],
    picks: u64,
    random: &mut StdRng,
    visit: &mut dyn FnMut(&Pick) -> ControlFlow<()>,
) -> ControlFlow<()> {
    if count(units) <= picks {
        return all(units, visit);
    }
    for _ in 0..picks {
        visit(&some(units, random))?;
    }
    ControlFlow::Continue(())
}

/// One pick.
fn some(units: &[Unit], random: &mut StdRng) -> Pick {
    let (least, newest) = extremes(units);
    let kind = random.random_range(0..100);
    let mut unit = || random.random_range(0..units.len());
    let (first, second) = (unit(), unit());
    let choice = random.random_range(0..units[first].choices.len());
    match kind {
        0..8 => least,
        8..20 => newest,
        20..35 => {
            let steps = &units[first].prefixes;
            let Some(&(step, _)) = steps.get(choice % steps.len().max(1)) else {
                return newest;
            };
            units.iter().map(|unit| unit.at_step(step)).collect()
        }
        35..47 => with(&least, &[(first, choice)]),
        47..60 => with(&newest, &[(first, choice)]),
        60..66 => with(
            &least,
            &[
                (first, units[first].newest()),
                (second, units[second].newest()),
            ],
        ),
        66..72 => with(&newest, &[(first, 0), (second, 0)]),
        72..86 => {
            let choices = units.iter().map(|unit| unit.choices.len());
            choices
                .map(|choices| random.random_range(0..choices))
                .collect()
        }
        _ => {
            // Each unit as a whole or not at all, as caches mostly leave them.
            let share = random.random_range(1..8);
            let mut kept = |unit: &Unit| match random.random_range(0..8) < share {
                true => unit.newest(),
                false => 0,
            };
            units.iter().map(&mut kept).collect()
        }
    }
}

/// The pick of nothing, and that of everything.
fn extremes(units: &[Unit]) -> (Pick, Pick) {
    let newest = units.iter().map(Unit::newest).collect();
    (vec![0; units.len()], newest)
}

fn all(units: &[Unit], visit: &mut dyn FnMut(&Pick) -> ControlFlow<()>) -> ControlFlow<()> {
    let mut pick: Pick = vec![0; units.len()];
    loop {
        visit(&pick)?;
        let mut place = 0;
        loop {
            let Some(unit) = units.get(place) else {
                return ControlFlow::Continue(());
            };
            if pick[place] < unit.newest() {
                pick[place] += 1;
                break;
            }
            pick[place] = 0;
            place += 1;
        }
    }
}

fn prefixes(units: &[Unit], visit: &mut dyn FnMut(&Pick) -> ControlFlow<()>) -> ControlFlow<()> {
    let mut steps: Vec<StepId> = units
        .iter()
        .flat_map(|unit| unit.prefixes.iter().map(|&(step, _)| step))
        .collect();
    steps.sort_unstable();
    steps.dedup();
    for step in steps {
        visit(&units.iter().map(|unit| unit.at_step(step)).collect())?;
    }
    ControlFlow::Continue(())
}

fn pairs(
    units: &[Unit],
    effort: &Effort,
    random: &mut StdRng,
    visit: &mut dyn FnMut(&Pick) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut left = effort.pairs;
    if left == 0 || units.is_empty() {
        return ControlFlow::Continue(());
    }
    let (least, newest) = extremes(units);
    // If not all pairs are tried, these are not always those of the lowest units.
    let first = random.random_range(0..units.len());
    let turn = |from: usize| (from..units.len()).chain(0..from);
    for commit in turn(first).filter(|&unit| units[unit].commits) {
        let unit = &units[commit];
        for other in turn(first) {
            let second = &units[other];
            if other == commit {
                continue;
            }
            if left == 0 {
                return ControlFlow::Continue(());
            }
            left -= 1;
            visit(&with(
                &least,
                &[(commit, unit.newest()), (other, second.newest())],
            ))?;
            visit(&with(&newest, &[(commit, 0), (other, 0)]))?;
            visit(&with(&newest, &[(other, 0)]))?;
        }
    }
    ControlFlow::Continue(())
}

fn with(pick: &Pick, changes: &[(usize, usize)]) -> Pick {
    let mut pick = pick.clone();
    for &(place, choice) in changes {
        pick[place] = choice;
    }
    pick
}
