//! The write-ahead rule of the redo log: without it, a checkpoint puts stores into the image that depend on
//! what the log has not made durable yet. The lab finds that.

use everdram::EngineKind;
use everdram_lab::call::{Call, Values};
use everdram_lab::examine::{Examiner, ExploreOptions, Totals};
use everdram_lab::image::Medium;
use everdram_lab::plan::{Fault, Manner, Plan};
use everdram_lab::process::Environment;
use everdram_lab::profile::Profile;
use everdram_lab::run::execute;

/// Runs, which differ in the schedule.
const SEEDS: u64 = 400;
/// Images that finding it may take.
const IMAGES: u64 = 400_000;

/// One thread writes checkpoints, two write.
fn plan(seed: u64) -> Plan {
    let mut plan = Plan::draw(EngineKind::Viper, Medium::File, Profile::Threads, seed, 0);
    plan.fault = Fault::None;
    plan.manner = Manner::Threads { jobs: 0 };
    let value = |values: &mut Values| values.make(60, seed);
    for round in 0..6 {
        plan.calls.push((0, Call::Checkpoint));
        for session in 1..3 {
            for key in 0..2u8 {
                let held = value(&mut plan.values);
                let key = 2 * (session as u8 - 1) + key;
                plan.calls.push((
                    session,
                    match (round + key) % 3 {
                        0 => Call::Delete(key),
                        _ => Call::Put(key, held, 0),
                    },
                ));
            }
        }
    }
    plan
}

/// Looks at runs until something is wrong.
fn hunt(break_write_ahead: bool, images: u64) -> (Totals, Option<String>) {
    let mut totals = Totals::default();
    for seed in 0..SEEDS {
        if totals.unique >= images {
            break;
        }
        let plan = plan(seed);
        let mut environment = Environment::of(&plan);
        environment.break_write_ahead = break_write_ahead;
        let mut run = execute(&plan, &environment).unwrap();
        let options = ExploreOptions {
            seed,
            nested_one_in: 0,
            ..ExploreOptions::default()
        };
        let mut examiner = Examiner::new(&environment, &options, &|| true);
        let outcome = examiner.run(&mut run);
        totals.add(&examiner.totals);
        if let Err(violation) = outcome {
            return (totals, Some(format!("seed {seed}: {}", violation.defect)));
        }
    }
    (totals, None)
}

#[test]
fn a_checkpoint_ahead_of_the_log_is_found() {
    let (totals, defect) = hunt(true, IMAGES);
    let defect = defect.unwrap_or_else(|| panic!("nothing in {} images", totals.unique));
    println!(
        "write-ahead rule: caught after {} images ({} crash points, {} runs): {defect}",
        totals.unique, totals.points, totals.runs
    );
    let (same, defect) = hunt(false, totals.unique);
    assert_eq!(defect, None, "with the rule in force");
    assert!(same.unique >= totals.unique);
}
