//! Remote clients: every story of them is drawn, and a run of them can be repeated.

use everdram::EngineKind;
use everdram_lab::call::{Call, Fate, Outcome};
use everdram_lab::image::Medium;
use everdram_lab::plan::{Fault, Manner, Plan};
use everdram_lab::process::Environment;
use everdram_lab::profile::Profile;
use everdram_lab::run::run;
use everdram_lab::trace::Step;
use std::collections::BTreeMap;

fn drawn(engine: EngineKind, seed: u64) -> Plan {
    let mut plan = Plan::draw(engine, Medium::Pmem, Profile::Remote, seed, 60);
    plan.fault = Fault::None;
    plan
}

/// What became of the puts of remote clients, and what came late.
fn stories(engine: EngineKind, seeds: std::ops::Range<u64>) -> BTreeMap<&'static str, usize> {
    let mut stories = BTreeMap::new();
    for seed in seeds {
        let mut plan = drawn(engine, seed);
        plan.manner = Manner::Turns;
        let run = run(&plan, &Environment::of(&plan), false).unwrap();
        let entries = &run.record.history.entries;
        // The call whose answer is next, by the order of the trace: an open one ends within another.
        let mut last = None;
        for step in &run.record.trace {
            let (Step::Invoke(number) | Step::Return(number)) = step else {
                continue;
            };
            let entry = &entries[*number as usize];
            if let Step::Invoke(_) = step {
                last = Some((*number, &entry.call));
                continue;
            }
            let Call::Remote(.., fate) = &entry.call else {
                continue;
            };
            // Only what is lent is given up within the call itself.
            let is_own = last.is_some_and(|(own, _)| own == *number);
            let last = last.map(|(_, call)| call);
            let story = match (fate, &entry.outcome, last) {
                (Fate::Part(_), Some(Outcome::Declined), _) if is_own => "lent in part",
                (Fate::Part(_), Some(Outcome::Done), _) if is_own => "lent, and there before",
                (Fate::Durable | Fate::Told, Some(Outcome::Done), _) => "at once",
                (Fate::Part(_), Some(Outcome::Done), Some(Call::Late(_))) => "late",
                (Fate::Part(_), Some(Outcome::Done), Some(Call::Hangup(_))) => "whole at the end",
                (Fate::Part(_), Some(Outcome::Done), _) => "its slot was given again",
                (Fate::Part(_), Some(Outcome::Declined), Some(Call::Hangup(_))) => "never",
                (_, Some(Outcome::NoRoom), _) => "no pages",
                other => panic!("{other:?}"),
            };
            *stories.entry(story).or_default() += 1;
        }
        let cut_off = |entry: &&everdram_lab::history::Entry| {
            matches!(entry.call, Call::Remote(..)) && entry.outcome.is_none()
        };
        *stories.entry("cut off").or_default() += entries.iter().filter(cut_off).count();
    }
    stories
}

#[test]
fn every_story_of_a_remote_client_is_drawn() {
    let stories = stories(EngineKind::Viper, 0..40);
    println!("{stories:?}");
    for story in [
        "at once",
        "late",
        "whole at the end",
        "its slot was given again",
        "never",
        "lent in part",
        "no pages",
        "cut off",
    ] {
        assert!(
            stories.get(story).is_some_and(|&count| count > 0),
            "{story}"
        );
    }
}

/// Nonces too depend on the seed alone, so a saved crash meets the bytes that it was saved with.
#[test]
fn a_run_of_remote_clients_can_be_repeated() {
    for (engine, seed) in [(EngineKind::Viper, 3), (EngineKind::Bullet, 4)] {
        let mut plan = drawn(engine, seed);
        plan.manner = Manner::Turns;
        let runs = [(); 2].map(|()| run(&plan, &Environment::of(&plan), false).unwrap());
        let has_remote = |(_, call): &(u32, Call)| matches!(call, Call::Remote(..));
        assert!(plan.calls.iter().any(has_remote));
        assert!(runs[0].end == runs[1].end, "{engine}");
    }
}
