//! The lab has teeth: each hole that can be opened in the engine on purpose is found, in short runs.
//!
//! `cargo test -p everdram-lab --features broken --test teeth -- --nocapture` says after how many images. The
//! same workloads on the sound engine are looked at for as many images, and nothing is found.
#![cfg(feature = "broken")]

use everdram::{EngineKind, Hole};
use everdram_lab::call::{Call, Values};
use everdram_lab::examine::{Examiner, Scrutiny, Totals};
use everdram_lab::explore::Effort;
use everdram_lab::image::Medium;
use everdram_lab::judge::guarded;
use everdram_lab::plan::{Fault, Manner, Plan};
use everdram_lab::profile::Profile;
use everdram_lab::run::run;
use everdram_lab::world::Ground;
use std::sync::atomic::{AtomicI64, Ordering};

/// Images that finding a hole may take, over all seeds.
const IMAGES: i64 = 400_000;
/// Runs that finding a hole may take.
const SEEDS: u64 = 500;

/// What a run does.
#[derive(Clone, Copy)]
enum Workload {
    /// So many calls, drawn from the seed.
    Drawn(Profile, usize),
    /// These calls, by three threads whose schedule is drawn from the seed.
    Threads(fn(&mut Values) -> Vec<(u32, Call)>),
}

impl Workload {
    fn profile(self) -> Profile {
        match self {
            Workload::Drawn(profile, _) => profile,
            Workload::Threads(_) => Profile::Threads,
        }
    }

    /// A schedule that matters shows in any image, so runs of threads are looked at briefly.
    fn scrutiny(self) -> Scrutiny {
        let mut scrutiny = Scrutiny::default();
        if let Workload::Threads(_) = self {
            scrutiny.nested_one_in = 0;
            scrutiny.effort = Effort {
                exhaustive: 16,
                singles: true,
                random: 0,
                pairs: 0,
            };
        }
        scrutiny
    }

    fn plan(self, engine: EngineKind, medium: Medium, seed: u64) -> Plan {
        match self {
            Workload::Drawn(profile, calls) => {
                let mut plan = Plan::draw(engine, medium, profile, seed, calls);
                // Disks are as good as ever, and what the workload itself would meet after a kill is for the
                // images to show.
                plan.fault = Fault::None;
                plan.calls.retain(|(_, call)| *call != Call::Kill);
                plan
            }
            Workload::Threads(write) => {
                let mut plan = Plan::draw(engine, medium, Profile::Threads, seed, 0);
                plan.fault = Fault::None;
                // What matters here is how the calls themselves meet.
                plan.manner = Manner::Threads { jobs: 0 };
                plan.calls = write(&mut plan.values);
                plan
            }
        }
    }
}

/// What was wrong, and in which run.
struct Caught {
    seed: u64,
    wrong: String,
}

/// Runs the workload with one seed after the other, until something is wrong or `images` were looked at.
fn hunt(
    engine: EngineKind,
    hole: Option<Hole>,
    medium: Medium,
    workload: Workload,
    images: i64,
) -> (Totals, Option<Caught>) {
    let profile = workload.profile();
    let mut ground = Ground::new(engine, profile, medium);
    ground.options.broken = hole;
    let scrutiny = workload.scrutiny();
    let left = AtomicI64::new(images);
    let go_on = || left.fetch_sub(1, Ordering::Relaxed) > 1;
    let mut totals = Totals::default();
    for seed in 0..SEEDS {
        let plan = workload.plan(engine, medium, seed);
        let mut examiner = Examiner::new(&ground, &scrutiny, &go_on);
        let found = guarded(|| run(&plan, &ground, false)).and_then(|mut run| {
            let outcome = examiner.run(&mut run);
            outcome.map_err(|violation| violation.wrong)
        });
        totals.add(&examiner.totals);
        if let Err(wrong) = found {
            return (totals, Some(Caught { seed, wrong }));
        }
        if left.load(Ordering::Relaxed) <= 1 {
            break;
        }
    }
    (totals, None)
}

/// The hole is found on each of `media`, and nothing is found without it.
fn bites(hole: Hole, media: &[Medium], workload: Workload) {
    for &medium in media {
        let (totals, caught) = hunt(hole.engine(), Some(hole), medium, workload, IMAGES);
        let Totals { judged, points, .. } = totals;
        let Some(Caught { seed, wrong }) = caught else {
            panic!("{hole}: not caught in {judged} images ({points} crash points) on {medium}");
        };
        println!(
            "{hole}: caught after {judged} images ({points} crash points) on {medium}, `{}`, seeds 0 to {seed}: {wrong}",
            workload.profile()
        );
        let (_, caught) = hunt(hole.engine(), None, medium, workload, judged.max(1) as i64);
        if let Some(Caught { seed, wrong }) = caught {
            panic!("the sound engine on {medium}, seed {seed}: {wrong}");
        }
    }
}

#[test]
fn v1_losers_that_come_back() {
    bites(
        Hole::V1,
        &Medium::ALL,
        Workload::Drawn(Profile::Variable, 30),
    );
}

/// The first thread fills blocks, each with one of three keys and with garbage, and compacts them. The second
/// writes those keys now and then, and in between does something else for about as long, and looks.
#[test]
fn v2_compaction_over_a_newer_put() {
    let workload = Workload::Threads(|values| {
        let mut calls = Vec::new();
        for round in 0..2 {
            for key in [0, 2, 3] {
                calls.push((0, Call::Put(key, values.make(400, round), 0)));
                calls.push((0, Call::Put(1, values.make(400, round), 0)));
            }
            calls.push((0, Call::Put(1, values.make(400, round), 0)));
            calls.push((0, Call::Reclaim));
            for _ in 0..8 {
                calls.push((1, Call::Put(1, values.make(20, round), 0)));
                calls.extend([0, 2, 3].map(|key| (1, Call::Get(key))));
            }
            for key in [0, 2, 3] {
                calls.push((1, Call::Put(key, values.make(20, round), 0)));
            }
        }
        calls
    });
    bites(Hole::V2, &[Medium::File, Medium::Pmem], workload);
}

#[test]
fn v3_a_delete_of_what_was_there_before() {
    let workload = Workload::Threads(|values| {
        let mut calls = Vec::new();
        for round in 0..6 {
            calls.push((0, Call::Put(0, values.make(20, round), 0)));
            calls.push((1, Call::Delete(0)));
            calls.push((2, Call::Get(0)));
        }
        calls
    });
    bites(Hole::V3, &Medium::ALL, workload);
}

#[test]
fn v4_a_block_that_was_not_counted() {
    bites(Hole::V4, &Medium::ALL, Workload::Drawn(Profile::Growth, 60));
}

#[test]
fn v5_a_lock_without_a_holder() {
    bites(
        Hole::V5,
        &Medium::ALL,
        Workload::Drawn(Profile::Variable, 30),
    );
}

#[test]
fn v7_a_line_that_was_not_flushed() {
    bites(
        Hole::V7,
        &Medium::ALL,
        Workload::Drawn(Profile::Variable, 30),
    );
}

#[test]
fn v10_records_of_an_earlier_life() {
    bites(
        Hole::V10,
        &Medium::ALL,
        Workload::Drawn(Profile::Reclamation, 80),
    );
}

/// Reading is no event at which the turn may change, so the readers write something else between their reads.
#[test]
fn v12_a_value_that_was_read_and_lost() {
    let workload = Workload::Threads(|values| {
        let mut calls = Vec::new();
        for round in 0..4 {
            calls.push((0, Call::Put(0, values.make(20, round), 0)));
            for reader in [1, 2] {
                calls.push((reader, Call::Put(1, values.make(20, round), 0)));
                calls.push((reader, Call::Get(0)));
            }
        }
        calls
    });
    bites(Hole::V12, &[Medium::File, Medium::Pmem], workload);
}

#[test]
fn v14_a_block_with_two_lives() {
    bites(
        Hole::V14,
        &Medium::ALL,
        Workload::Drawn(Profile::Reclamation, 80),
    );
}

/// Two sessions write the same keys by turns, each to a log of its own, and everything is gleaned.
const BY_TURNS: Workload = Workload::Drawn(Profile::Batch, 40);

#[test]
fn b1_heads_that_do_not_move_together() {
    bites(Hole::B1, &[Medium::Pmem], BY_TURNS);
}

#[test]
fn b2_records_in_the_order_of_logs() {
    bites(Hole::B2, &Medium::ALL, BY_TURNS);
}

/// Two write keys of their own to logs of their own, and glean: where there are so few rows, gleaners meet in
/// one. (What both have written, either would apply.)
#[test]
fn b3_a_record_that_was_passed_over() {
    let workload = Workload::Threads(|values| {
        let mut calls = Vec::new();
        for round in 0..4 {
            for (session, keys) in [(0, [0, 1]), (1, [2, 3])] {
                calls.extend(keys.map(|key| (session, Call::Put(key, values.make(20, round), 0))));
                calls.push((session, Call::Reclaim));
            }
        }
        calls
    });
    bites(Hole::B3, &Medium::ALL, workload);
}

#[test]
fn b4_a_change_that_was_made_twice() {
    bites(
        Hole::B4,
        &[Medium::Pmem],
        Workload::Drawn(Profile::Fixed, 60),
    );
}

#[test]
fn b5_a_removal_that_is_forgotten() {
    bites(Hole::B5, &Medium::ALL, BY_TURNS);
}

/// As `v12_a_value_that_was_read_and_lost`.
#[test]
fn b6_a_value_that_was_read_and_lost() {
    let workload = Workload::Threads(|values| {
        let mut calls = Vec::new();
        for round in 0..4 {
            calls.push((0, Call::Put(0, values.make(20, round), 0)));
            for reader in [1, 2] {
                calls.push((reader, Call::Put(1, values.make(20, round), 0)));
                calls.push((reader, Call::Get(0)));
            }
        }
        calls
    });
    bites(Hole::B6, &[Medium::File, Medium::Pmem], workload);
}

#[test]
fn b7_a_key_that_left_the_front_too_early() {
    bites(Hole::B7, &Medium::ALL, BY_TURNS);
}

/// The same, by whoever makes room in DRAM.
#[test]
fn b7_a_key_that_was_evicted_too_early() {
    bites(Hole::B7, &Medium::ALL, Workload::Drawn(Profile::Narrow, 40));
}

#[test]
fn b8_records_of_a_former_lap() {
    bites(
        Hole::B8,
        &[Medium::Pmem],
        Workload::Drawn(Profile::Reclamation, 120),
    );
}

#[test]
fn b12_half_of_a_transaction() {
    bites(
        Hole::B12,
        &[Medium::Pmem],
        Workload::Drawn(Profile::Growth, 60),
    );
}

#[test]
fn b13_half_of_a_batch() {
    bites(Hole::B13, &[Medium::Pmem], BY_TURNS);
}
