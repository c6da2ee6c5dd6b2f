//! `cargo xtask mutants`: the mutation score. Bugs are planted in a copy of the tree. One of them is on at a
//! time, and the crash lab must find it within five minutes, or the test that is named for it must fail.
//!
//! `xtask/mutants` describes them ([`plan`]). They are built into one program ([`tree`]) and hunted one after
//! the other ([`hunt`]). The chore fails below [`SCORE`] percent, if the program without them is not sound,
//! or if one no longer fits the tree. The holes of the published designs have workloads of their own, and
//! each workload must find its hole.

mod hunt;
mod plan;
mod tree;

use crate::cargo::root;
use crate::step::today;
use hunt::Verdict;
use plan::{By, Mutant};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tree::Layer;

/// Percent of the mutants that must be caught. An excused one counts as not caught.
const SCORE: usize = 95;
/// The same for a sample: of six, three or more are caught on all but one day in seven hundred if the lab
/// catches nine of ten.
const QUICK_SCORE: usize = 50;
/// Seconds for each mutant.
const SECONDS: u64 = 300;
/// The same for a sample, and its size.
const QUICK_SECONDS: u64 = 60;
const QUICK: usize = 6;
/// One in so many of those that have workloads of their own is in a sample.
const QUICK_TEETH: u64 = 3;
/// Seconds for the program without mutants.
const SOUND_SECONDS: u64 = 30;
/// The same for a sample: CI has run the lab just before.
const QUICK_SOUND_SECONDS: u64 = 10;

/// The options of this run.
#[derive(Debug, Default)]
struct Wish {
    is_quick: bool,
    is_holes: bool,
    is_list: bool,
    only: Vec<String>,
    seconds: Option<u64>,
    seed: Option<u64>,
}

/// The results of the mutants.
#[derive(Default)]
struct Score {
    caught: usize,
    /// Caught by workloads of their own.
    bitten: usize,
    /// Not caught by theirs.
    unbitten: Vec<String>,
    survivors: Vec<String>,
    excused: Vec<String>,
    troubles: Vec<String>,
    table: Vec<String>,
}

/// Runs the chore with its own arguments.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let wish = match parse(arguments) {
        Ok(wish) => wish,
        Err(what) => {
            eprintln!(
                "{what}; usage: cargo xtask mutants [--quick] [--holes] [--only NAME[,NAME]] [--list] [--seconds N] [--seed N]"
            );
            return ExitCode::from(2);
        }
    };
    match mutants(&wish) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // With the rest of the output: CI repeats it at its end.
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Wish, String> {
    let mut wish = Wish::default();
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let number = arguments.next().and_then(|number| number.parse().ok());
            number.ok_or(format!("{argument} takes a number"))
        };
        match argument.as_str() {
            "--quick" => wish.is_quick = true,
            "--holes" => wish.is_holes = true,
            "--list" => wish.is_list = true,
            "--seconds" => wish.seconds = Some(number()?),
            "--seed" => wish.seed = Some(number()?),
            "--only" => {
                let names = arguments.next().ok_or("--only takes names")?;
                wish.only.extend(names.split(',').map(str::to_owned));
            }
            other => return Err(format!("no option `{other}`")),
        }
    }
    Ok(wish)
}

/// `false` if the score is too low, or a mutant could not be tested.
fn mutants(wish: &Wish) -> Result<bool, String> {
    let all = plan::all(&root().join("xtask/mutants"))?;
    // Check all of them, so that a mutant that no longer fits shows at once.
    let layers = tree::layers(&all)?;
    let seed = wish.seed.unwrap_or_else(today);
    let chosen = choose(&all, &layers, wish, seed)?;
    if chosen.is_empty() {
        return Err("no mutants".into());
    }
    if wish.is_list {
        chosen.iter().for_each(|&number| print_one(&all[number]));
        return Ok(true);
    }
    let usual = if wish.is_quick {
        QUICK_SECONDS
    } else {
        SECONDS
    };
    let time = Duration::from_secs(wish.seconds.unwrap_or(usual).max(2));
    let sound = Duration::from_secs(match wish.is_quick {
        true => QUICK_SOUND_SECONDS,
        false => SOUND_SECONDS,
    });
    println!(
        "== mutants: {} of {} in {} builds, {} s each, seed {seed}",
        chosen.len(),
        all.len(),
        layers.len(),
        time.as_secs()
    );
    hunt::clear();
    let mut score = Score::default();
    for (number, layer) in layers.iter().enumerate() {
        let of_layer = chosen.iter().filter(|chosen| layer.contains(chosen));
        let of_layer: Vec<&Mutant> = of_layer.map(|&chosen| &all[chosen]).collect();
        if of_layer.is_empty() {
            continue;
        }
        let begun = Instant::now();
        let mut ways: Vec<By> = Vec::new();
        for mutant in &of_layer {
            if !ways.contains(&mutant.by) {
                ways.push(mutant.by);
            }
        }
        tree::build(&all, layer, number, &ways)?;
        println!("-- built, {}", seconds(begun.elapsed()));
        // A workload of its own also runs without the mutant, and so does a test.
        let is_run = |by: &By| matches!(by, By::Lab | By::Kill);
        for by in ways.into_iter().filter(is_run) {
            let asked = of_layer.iter().filter(|mutant| mutant.by == by);
            hunt::sound(number, by, asked, time.min(sound), seed)?;
            println!("-- sound without a mutant");
        }
        for mutant in of_layer {
            score.enter(mutant, hunt::hunt(number, mutant, time, seed));
        }
    }
    Ok(score.print(if wish.is_quick { QUICK_SCORE } else { SCORE }))
}

/// The numbers of the selected mutants.
fn choose(all: &[Mutant], layers: &[Layer], wish: &Wish, seed: u64) -> Result<Vec<usize>, String> {
    let position = |name: &String| {
        let found = all.iter().position(|mutant| mutant.name == *name);
        found.ok_or(format!("no mutant `{name}`"))
    };
    if !wish.only.is_empty() {
        return wish.only.iter().map(position).collect();
    }
    let has_teeth = |&number: &usize| all[number].by == By::Teeth;
    if wish.is_quick {
        let sample = sample(all, layers, seed).into_iter();
        let (holes, others): (Vec<usize>, Vec<usize>) = sample.partition(has_teeth);
        return Ok([holes, others].concat());
    }
    let (holes, others): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(has_teeth);
    Ok(match wish.is_holes {
        true => holes,
        false => [holes, others].concat(),
    })
}

/// A sample of one build, which mostly is that with the most of them.
fn sample(all: &[Mutant], layers: &[Layer], seed: u64) -> Vec<usize> {
    let mut state = mixed(seed);
    let any = (state % all.len().max(1) as u64) as usize;
    let layer = layers.iter().find(|layer| layer.contains(&any));
    let of_layer = layer.into_iter().flatten().copied();
    let (holes, mut others): (Vec<usize>, Vec<usize>) = of_layer
        // Tests run anyway.
        .filter(|&number| all[number].excused.is_none() && all[number].by != By::Test)
        .partition(|&number| all[number].by == By::Teeth);
    // Each is drawn from what is left.
    for at in 0..QUICK.min(others.len()) {
        state = mixed(state);
        let other = at + (state % (others.len() - at) as u64) as usize;
        others.swap(at, other);
    }
    others.truncate(QUICK);
    let is_due = |nth: &u64| (nth + seed).is_multiple_of(QUICK_TEETH);
    let holes = (0..).zip(holes).filter(|(nth, _)| is_due(nth));
    others.extend(holes.map(|(_, number)| number));
    others
}

/// The next word of a random sequence.
fn mixed(state: u64) -> u64 {
    let mut word = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn print_one(mutant: &Mutant) {
    println!("{:<56} {}", mutant.name, mutant.loses);
    if let Some(reason) = &mutant.excused {
        println!("{:<56} excused: {reason}", "");
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

impl Score {
    /// Adds a result and prints it.
    fn enter(&mut self, mutant: &Mutant, verdict: Verdict) {
        let words = match &verdict {
            Verdict::Caught(after, by) => format!("caught after {} by {by}", seconds(*after)),
            Verdict::Survived => "NOT CAUGHT".into(),
            Verdict::Trouble(what) => format!("NOT ASKED: {what}"),
        };
        println!("{:<56} {words}", mutant.name);
        self.table.push(format!("{:<56} {words}", mutant.name));
        let name = mutant.name.clone();
        match (verdict, &mutant.excused) {
            (Verdict::Trouble(_), _) => self.troubles.push(name),
            // An excused mutant stays excused even if caught: the next run may miss it.
            (Verdict::Survived, _) if mutant.by == By::Teeth => self.unbitten.push(name),
            (Verdict::Caught(..), _) if mutant.by == By::Teeth => self.bitten += 1,
            (_, Some(reason)) => self.excused.push(format!("{name}: {reason}")),
            (Verdict::Caught(..), None) => self.caught += 1,
            (Verdict::Survived, None) => self.survivors.push(name),
        }
    }

    /// Prints the results. `false` if less than this many percent were caught, a workload of its own missed
    /// its mutant, or a mutant could not be tested.
    fn print(&self, least: usize) -> bool {
        println!("== all of them");
        self.table.iter().for_each(|line| println!("{line}"));
        for excused in &self.excused {
            println!("excused: {excused}");
        }
        if !self.survivors.is_empty() {
            println!("not caught: {}", self.survivors.join(" "));
        }
        if !self.troubles.is_empty() {
            println!("not asked: {}", self.troubles.join(" "));
        }
        if self.bitten > 0 {
            println!("caught by workloads of their own: {}", self.bitten);
        }
        if !self.unbitten.is_empty() {
            println!("not caught by theirs: {}", self.unbitten.join(" "));
        }
        let all = self.caught + self.survivors.len() + self.excused.len();
        let percent = (self.caught * 100) as f64 / all.max(1) as f64;
        if all > 0 {
            println!("score: {} of {all} caught, {percent:.1} %", self.caught);
        }
        (all == 0 || percent >= least as f64)
            && self.unbitten.is_empty()
            && self.troubles.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<Mutant> {
        let named = |name: &&str| Mutant {
            name: (*name).into(),
            ..Mutant::default()
        };
        names.iter().map(named).collect()
    }

    #[test]
    fn arguments_are_read() {
        let parse = |text: &str| parse(text.split_whitespace().map(str::to_owned));
        let wish = parse("--quick --only a,b --seconds 7 --seed 3").unwrap();
        assert!(wish.is_quick && !wish.is_list);
        assert_eq!((wish.seconds, wish.seed), (Some(7), Some(3)));
        assert_eq!(wish.only, ["a", "b"]);
        assert!(parse("--holes").unwrap().is_holes);
        assert!(parse("--seconds x").is_err() && parse("b").is_err());
    }

    #[test]
    fn a_seed_draws_the_same_sample_again() {
        let names: Vec<String> = (0..40).map(|number| format!("m{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let all = named(&names);
        let wish = Wish {
            is_quick: true,
            ..Wish::default()
        };
        let draw = |seed| choose(&all, &[(0..40).collect()], &wish, seed).unwrap();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mut sample = draw(3);
        sample.sort_unstable();
        sample.dedup();
        assert_eq!(sample.len(), QUICK);
    }

    #[test]
    fn in_three_days_a_sample_has_all_that_have_workloads_of_their_own() {
        let mut all = named(&["h", "a", "b", "i", "j"]);
        for hole in [0, 3, 4] {
            all[hole].by = By::Teeth;
        }
        let chosen = |is_quick, is_holes, seed| {
            let wish = Wish {
                is_quick,
                is_holes,
                ..Wish::default()
            };
            choose(&all, &[vec![0, 1, 2, 3, 4]], &wish, seed).unwrap()
        };
        let mut days = [1, 2, 3].map(|day| chosen(true, false, day)[0]);
        days.sort_unstable();
        assert_eq!(days, [0, 3, 4]);
        assert_eq!(chosen(true, false, 1).len(), 3);
        assert_eq!(chosen(false, true, 1), [0, 3, 4]);
        assert_eq!(chosen(false, false, 1).len(), 5);
    }

    #[test]
    fn a_sample_is_of_one_build() {
        let all = named(&["a", "b", "c"]);
        let layers = [vec![0, 2], vec![1]];
        for seed in 0..9 {
            let mut drawn = sample(&all, &layers, seed);
            drawn.sort_unstable();
            assert!(layers.contains(&drawn), "{drawn:?}");
        }
    }

    #[test]
    fn what_has_workloads_of_its_own_must_be_caught() {
        let mut hole = named(&["h"]).remove(0);
        hole.by = By::Teeth;
        let mut score = Score::default();
        score.enter(&hole, Verdict::Caught(Duration::ZERO, "x".into()));
        assert!(score.print(SCORE));
        for _ in 0..99 {
            score.enter(
                &named(&["a"])[0],
                Verdict::Caught(Duration::ZERO, "x".into()),
            );
        }
        score.enter(&hole, Verdict::Survived);
        assert!(!score.print(SCORE));
    }

    #[test]
    fn what_survives_counts_excused_or_not() {
        let [caught, survivor] = &named(&["a", "b"])[..] else {
            unreachable!("two names")
        };
        let excused = Mutant {
            excused: Some("so".into()),
            ..named(&["c"]).remove(0)
        };
        for missed in [survivor, &excused] {
            let mut score = Score::default();
            for _ in 0..19 {
                score.enter(caught, Verdict::Caught(Duration::ZERO, "x".into()));
            }
            score.enter(missed, Verdict::Survived);
            assert!(score.print(SCORE), "one of twenty");
            score.enter(missed, Verdict::Survived);
            assert!(!score.print(SCORE), "two of twenty-one");
        }
    }
}
