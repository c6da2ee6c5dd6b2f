//! The lab has teeth: each hole that can be opened in the engine on purpose is found, in a short run.
//!
//! `cargo test -p everdram-lab --features broken --test teeth -- --nocapture` says after how many images. The same
//! workload on the sound engine is looked at for as many images, and nothing is found.

use everdram::Hole;
use everdram_lab::call::Call;
use everdram_lab::examine::{Examiner, Scrutiny, Totals};
use everdram_lab::explore::Effort;
use everdram_lab::image::Medium;
use everdram_lab::judge::guarded;
use everdram_lab::plan::Plan;
use everdram_lab::profile::Profile;
use everdram_lab::run::run;
use everdram_lab::threads;
use everdram_lab::world::Ground;
use std::sync::atomic::{AtomicI64, Ordering};

/// Images that a hole may take, over all seeds.
const IMAGES: u64 = 200_000;
/// Workloads that a hole may take.
const SEEDS: u64 = 1000;

/// What was found, and how.
struct Caught {
    seed: u64,
    wrong: String,
}

/// Mistakes of several threads need many schedules, and few images of each.
fn scrutiny(profile: Profile) -> Scrutiny {
    let mut scrutiny = Scrutiny::default();
    if profile == Profile::Threads {
        scrutiny.nested_one_in = 0;
        scrutiny.effort = Effort {
            exhaustive: 4,
            random: 0,
            pairs: 0,
        };
    }
    scrutiny
}

/// Runs workloads of `calls` calls, one for each seed, until something is wrong or `images` were looked at.
fn hunt(
    hole: Option<Hole>,
    (medium, profile, calls): (Medium, Profile, usize),
    images: u64,
) -> (Totals, Option<Caught>) {
    let mut ground = Ground::new(profile, medium);
    ground.options.broken = hole;
    let scrutiny = scrutiny(profile);
    let left = AtomicI64::new(images as i64);
    let go_on = || left.fetch_sub(1, Ordering::Relaxed) > 1;
    let mut totals = Totals::default();
    for seed in 0..SEEDS {
        let mut plan = Plan::draw(medium, profile, seed, calls);
        // What the workload itself would meet after a kill is for the images to show.
        plan.calls.retain(|(_, call)| *call != Call::Kill);
        let mut examiner = Examiner::new(&ground, &scrutiny, &go_on);
        let found = guarded(|| match profile {
            Profile::Threads => threads::run(&plan, &ground),
            _ => run(&plan, &ground, false),
        })
        .and_then(|mut run| {
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

/// The hole is found in this kind of workload, and nothing is found without it.
fn bites(hole: Hole, workload: (Medium, Profile, usize)) {
    let (totals, caught) = hunt(Some(hole), workload, IMAGES);
    let (medium, profile, calls) = workload;
    let Some(Caught { seed, wrong }) = caught else {
        panic!("{hole}: not caught in {} images", totals.judged);
    };
    println!(
        "{hole}: caught after {} images ({} crash points) of `{profile}` on {medium}, {calls} calls, seed {seed}: {wrong}",
        totals.judged, totals.points
    );
    let (_, caught) = hunt(None, workload, totals.judged.max(1));
    if let Some(Caught { seed, wrong }) = caught {
        panic!("the sound engine, seed {seed}: {wrong}");
    }
}

#[test]
fn v1() {
    bites(Hole::V1, (Medium::Pmem, Profile::Variable, 30));
}

#[test]
fn v4() {
    bites(Hole::V4, (Medium::Pmem, Profile::Growth, 60));
}

#[test]
fn v5() {
    bites(Hole::V5, (Medium::Pmem, Profile::Variable, 30));
}

#[test]
fn v7() {
    bites(Hole::V7, (Medium::Pmem, Profile::Variable, 30));
}

#[test]
fn v10() {
    bites(Hole::V10, (Medium::Pmem, Profile::Reclamation, 80));
}

#[test]
fn v14() {
    bites(Hole::V14, (Medium::Pmem, Profile::Reclamation, 80));
}

#[test]
#[ignore]
fn try_now() {
    let env = |name: &str| std::env::var(name).unwrap();
    let hole = env("H").parse().ok();
    let w = (env("M").parse().unwrap(), env("P").parse().unwrap(), env("C").parse().unwrap());
    let (totals, caught) = hunt(hole, w, env("I").parse().unwrap());
    println!("RES {hole:?} {w:?} {totals:?} {:?}", caught.map(|c| (c.seed, c.wrong)));
}
