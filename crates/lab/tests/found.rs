//! What the lab found. Each test opens with what went wrong.

use everdram::EngineKind;
use everdram_lab::call::{Call, Values};
use everdram_lab::examine::{Examiner, ExploreOptions};
use everdram_lab::found::REMOVED_KEY_IN_A_FULL_POOL;
use everdram_lab::image::Medium;
use everdram_lab::plan::{Fault, Manner, Plan};
use everdram_lab::plan_text;
use everdram_lab::process::Environment;
use everdram_lab::profile::Profile;
use everdram_lab::replay::replay;
use everdram_lab::run::execute;

/// Images of a run, beside those of crashes during recovery.
const IMAGES: u64 = 5_000;

/// A plan of these calls, by session.
fn plan(medium: Medium, profile: Profile, calls: impl Fn(&mut Values) -> Vec<(u32, Call)>) -> Plan {
    let mut plan = Plan::draw(EngineKind::Viper, medium, profile, 1, 0);
    plan.fault = Fault::None;
    plan.manner = Manner::Turns;
    plan.calls = calls(&mut plan.values);
    plan
}

/// Runs the plan and judges images that it can leave, others each day; says how many crash points there were.
fn judge(plan: &Plan) -> u64 {
    judge_nested(plan, 8)
}

/// As [`judge`]; one image in so many has its recovery crashed, too.
fn judge_nested(plan: &Plan, nested_one_in: u64) -> u64 {
    let environment = Environment::of(plan);
    let mut run = execute(plan, &environment).unwrap();
    let options = ExploreOptions {
        nested_one_in,
        ..ExploreOptions::of_the_day(IMAGES)
    };
    let mut examiner = Examiner::new(&environment, &options, &|| true);
    if let Err(violation) = examiner.run(&mut run) {
        panic!(
            "{} {} {:?}: before step {}: {}",
            plan.medium, plan.profile, plan.fault, violation.step, violation.defect
        );
    }
    examiner.totals.points
}

/// Two batches of different sessions crashed before either of their journals was marked dead. Recovery
/// applied them in the order in which it met them: the newer one removed a key, then the older one put it
/// there again, so that half of the newer batch was missing, and a removal that had been acknowledged was
/// undone.
#[test]
fn journals_that_name_one_key_are_applied_by_version() {
    for medium in Medium::ALL {
        // Who opens a block first has the lower one, which recovery meets first.
        for first in 0..2 {
            let plan = plan(medium, Profile::Batch, |values| {
                let value = |values: &mut Values| Some(values.make(40, 0));
                let other = 1 - first;
                vec![
                    (0, Call::Batch(vec![(4, value(values)), (5, value(values))])),
                    (1, Call::Batch(vec![(6, value(values)), (7, value(values))])),
                    (
                        first,
                        Call::Batch(vec![(0, value(values)), (1, value(values))]),
                    ),
                    (other, Call::Batch(vec![(0, None), (2, value(values))])),
                    (other, Call::Get(0)),
                ]
            });
            judge_nested(&plan, 128);
        }
    }
}

/// The page that a block's log ends in and the pages behind it were sealed under one fence. A crash in
/// between could seal the first and not the others; a record in a later page, which had not counted while the
/// page before it was open, counted then. So a recovery that was interrupted came to another state than one
/// that was not.
#[test]
fn interrupted_recovery_comes_to_the_same_state() {
    // Records that are submitted together: none of them is fenced when the last ones begin the next page.
    let shapes = [(150, 4), (100, 6), (200, 3)];
    let shapes = match cfg!(not(feature = "thorough")) {
        true => &shapes[..1],
        false => &shapes[..],
    };
    for &(length, records) in shapes {
        let plan = plan(Medium::Pmem, Profile::Variable, |values| {
            let mut pipeline = |salt| {
                let records = (0..records).map(|key| (key, Some(values.make(length, salt))));
                Call::Pipeline(records.collect())
            };
            vec![(0, pipeline(7)), (0, pipeline(8))]
        });
        judge(&plan);
    }
}

/// A process died between writing a copy of the superblock and syncing it. The next one read that copy from
/// the page cache, took it for good, and wrote the other copy, the only one that the disk had: a power loss
/// then tore both. And a process that died between making a file of the log and syncing the directory left
/// one that the next process used, and that a power loss took.
#[test]
fn what_only_caches_have_is_made_durable_first() {
    // Unoptimized, only what is nearest to the start, where both happened.
    let (profiles, syncs) = match cfg!(not(feature = "thorough")) {
        true => (&[Profile::Fixed][..], 8),
        false => (&[Profile::Fixed, Profile::Growth][..], 32),
    };
    let (mut runs, mut points) = (0, 0);
    for &profile in profiles {
        for sync in 0..syncs {
            // Between two syncs there are about three other things that a disk is told.
            let kills = (0..4).map(|other| Fault::Kill(4 * sync + other));
            for fault in kills.chain([Fault::Sync(sync)]) {
                let mut plan = plan(Medium::File, profile, |values| {
                    let mut calls = Vec::new();
                    for key in 0..8 {
                        calls.push((0, Call::Put(key, values.make(48, 3), 0)));
                        if key % 3 == 2 {
                            calls.push((0, Call::Checkpoint));
                        }
                    }
                    calls
                });
                plan.fault = fault;
                points += judge(&plan);
                runs += 1;
            }
        }
    }
    assert!(points > 25 * runs, "{points} crash points in {runs} runs");
}

/// A mark that lets a newer record win was stored, and flushed, and the process was killed before any fence.
/// The next process read the mark, and compaction dropped the newer record, which had been removed meanwhile,
/// on the strength of it; a power loss then took the mark, and the older record was back.
#[test]
fn what_a_killed_process_left_in_caches_is_made_durable() {
    let plan = plan(Medium::Pmem, Profile::Reclamation, |values| {
        let mut put = |key, bytes| Call::Put(key, values.make(bytes, 0), 0);
        let mut calls = vec![(0, put(0, 40))];
        // The old record's block is full, so that recovery has nothing else to write there.
        calls.extend((2..5).map(|key| (0, put(key, 400))));
        calls.extend([(1, put(0, 40)), (0, Call::Kill)]);
        calls.extend([(0, Call::Delete(0)), (0, Call::Reclaim)]);
        calls
    });
    judge(&plan);
}

/// In a full pool, recovery frees pieces of dead records before it finishes batches. The crash had taken the
/// mark of a finished batch's journal, which put a key that had been removed since; only a dead record showed
/// that, and its own key, longer than a page, lay in such a piece. Recovery put the key again over that piece
/// and was crashed, and the next one had nothing that showed the removal.
#[test]
fn a_key_that_was_removed_stays_so_in_a_full_pool() {
    let saved = plan_text::read(REMOVED_KEY_IN_A_FULL_POOL).unwrap();
    let environment = Environment::of(&saved.plan);
    let replayed = replay(&saved, &environment, &ExploreOptions::default(), &|| true);
    assert!(
        replayed.is_exact,
        "the store's steps are others now, so that the saved crash cannot happen: have one found again by \
         `cargo xtask mutants --only viper-journals-of-finished-batches-left-in-a-full-pool`"
    );
    if let Some(found) = replayed.found {
        panic!("{}", found.defect);
    }
}

/// A process died between the mark of a removal and its fence. The next one began with a checkpoint of the
/// index, and was closed before it had verified the block of the mark: the one after it took all that it
/// found for durable, said that the key had gone, and a power loss brought it back.
#[test]
fn a_close_before_verification_vouches_for_nothing() {
    for engine in [EngineKind::Viper, EngineKind::Tiered] {
        for kill in 20..140 {
            let mut plan = plan(Medium::Pmem, Profile::Large, |values| {
                let mut calls: Vec<(u32, Call)> = (0..4)
                    .map(|key| (0, Call::Put(key, values.make(200, 3), 0)))
                    .collect();
                calls.extend(
                    [Call::Reopen, Call::Checkpoint, Call::Delete(3)].map(|call| (0, call)),
                );
                calls.extend([Call::Reopen, Call::Get(3)].map(|call| (0, call)));
                calls
            });
            plan.engine = engine;
            plan.fault = Fault::Kill(kill);
            let environment = Environment::of(&plan);
            let mut run = execute(&plan, &environment).unwrap();
            let options = ExploreOptions {
                nested_one_in: 1 << 20,
                ..ExploreOptions::of_the_day(200)
            };
            if let Err(violation) = Examiner::new(&environment, &options, &|| true).run(&mut run) {
                panic!(
                    "{engine}, kill {kill}: before step {}: {}",
                    violation.step, violation.defect
                );
            }
        }
    }
}
