//! The lab has teeth: each hole of the published designs that `xtask/mutants/holes.txt` opens again is found,
//! in short runs, and so is what ordinary runs meet too seldom.
//!
//! `cargo xtask mutants --holes` plants the holes in a copy of the tree and runs this there as `teeth HOLE`,
//! with that hole open. It says after how many images it was found on each medium; then the same workloads
//! are looked at for as many images with the hole closed (`teeth HOLE IMAGES...`), and nothing may be found.

use everdram::EngineKind;
use everdram_lab::call::{Call, Values};
use everdram_lab::examine::{Examiner, ExploreOptions, Totals};
use everdram_lab::explore::Effort;
use everdram_lab::image::Medium;
use everdram_lab::judge::catching_panics;
use everdram_lab::plan::{Fault, Manner, Plan};
use everdram_lab::process::Environment;
use everdram_lab::profile::Profile;
use everdram_lab::run::run;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicI64, Ordering};

/// The variable that opens a hole, by its name; see `xtask/src/mutants/tree.rs`.
const CHOICE: &str = "MUTANT_OF_EVERDRAM";

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
    fn options(self) -> ExploreOptions {
        let mut options = ExploreOptions::default();
        if let Workload::Threads(_) = self {
            options.nested_one_in = 0;
            options.effort = Effort {
                exhaustive: 16,
                singles: true,
                random: 0,
                pairs: 0,
            };
        }
        options
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
    defect: String,
}

/// Runs the workload with one seed after the other, until something is wrong or `images` were looked at.
fn hunt(
    engine: EngineKind,
    medium: Medium,
    workload: Workload,
    images: i64,
) -> (Totals, Option<Caught>) {
    let environment = Environment::new(engine, workload.profile(), medium);
    let options = workload.options();
    let left = AtomicI64::new(images);
    let go_on = || left.fetch_sub(1, Ordering::Relaxed) > 1;
    let mut totals = Totals::default();
    for seed in 0..SEEDS {
        let plan = workload.plan(engine, medium, seed);
        let mut examiner = Examiner::new(&environment, &options, &go_on);
        let found = catching_panics(|| run(&plan, &environment, false)).and_then(|mut run| {
            let outcome = examiner.run(&mut run);
            outcome.map_err(|violation| violation.defect)
        });
        totals.add(&examiner.totals);
        if let Err(defect) = found {
            return (totals, Some(Caught { seed, defect }));
        }
        if left.load(Ordering::Relaxed) <= 1 {
            break;
        }
    }
    (totals, None)
}

/// Two sessions write the same keys by turns, each to a log of its own, and everything is gleaned.
const BY_TURNS: Workload = Workload::Drawn(Profile::Batch, 40);

/// What finds a hole: workloads, and the media on each of which it has to be found.
fn searches(hole: &str) -> Option<Vec<(Workload, &'static [Medium])>> {
    use Workload::{Drawn, Threads};
    const ALL: &[Medium] = &Medium::ALL;
    const BOTH: &[Medium] = &[Medium::File, Medium::Pmem];
    const PMEM: &[Medium] = &[Medium::Pmem];
    const FILE: &[Medium] = &[Medium::File];
    Some(match hole {
        "hole-v1" | "hole-v5" | "hole-v7" => vec![(Drawn(Profile::Variable, 30), ALL)],
        "hole-v2" => vec![(Threads(compaction), BOTH)],
        "hole-v3" => vec![(Threads(deletes), ALL)],
        "hole-v4" => vec![(Drawn(Profile::Growth, 60), ALL)],
        "hole-v10" | "hole-v14" => vec![(Drawn(Profile::Reclamation, 80), ALL)],
        "hole-v12" | "hole-b6" => vec![(Threads(readers), BOTH)],
        "hole-b1" | "hole-b13" => vec![(BY_TURNS, PMEM)],
        "hole-b2" | "hole-b5" => vec![(BY_TURNS, ALL)],
        "hole-b3" => vec![(Threads(gleaners), ALL)],
        "hole-b4" => vec![(Drawn(Profile::Fixed, 60), PMEM)],
        // The second one is by the session that makes room in DRAM.
        "hole-b7" => vec![(BY_TURNS, ALL), (Drawn(Profile::Narrow, 40), ALL)],
        "hole-b8" => vec![(Drawn(Profile::Reclamation, 120), PMEM)],
        "hole-b12" => vec![(Drawn(Profile::Growth, 60), PMEM)],
        "hole-d2" | "hole-d10" => vec![(Drawn(Profile::Variable, 30), ALL)],
        "hole-d3" => vec![(Threads(overwrites), ALL), (Threads(pipelines), FILE)],
        "hole-d4" => vec![(Threads(readers), BOTH)],
        "hole-d5" => vec![(Threads(short_values), ALL)],
        "hole-d7" => vec![(Threads(late_writers), PMEM)],
        "hole-d8" => vec![(BY_TURNS, PMEM)],
        "tiered-two-manifests-after-one-sync" => vec![(Threads(segments), FILE)],
        _ => return None,
    })
}

/// The first thread fills blocks, each with one of three keys and with garbage, and compacts them. The second
/// writes those keys now and then, and in between does something else for about as long, and looks.
fn compaction(values: &mut Values) -> Vec<(u32, Call)> {
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
}

/// One puts a key, another one deletes it, and the third one looks.
fn deletes(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = Vec::new();
    for round in 0..6 {
        calls.push((0, Call::Put(0, values.make(20, round), 0)));
        calls.push((1, Call::Delete(0)));
        calls.push((2, Call::Get(0)));
    }
    calls
}

/// Reading is no event at which the turn may change, so the readers write something else between their reads.
fn readers(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = Vec::new();
    for round in 0..4 {
        calls.push((0, Call::Put(0, values.make(20, round), 0)));
        for reader in [1, 2] {
            calls.push((reader, Call::Put(1, values.make(20, round), 0)));
            calls.push((reader, Call::Get(0)));
        }
    }
    calls
}

/// Bytes of a value that takes a third of the blocks that its session has.
const THIRD: usize = 7000;

/// One overwrites a value and soon comes to the blocks that it had; the others read.
fn overwrites(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = Vec::new();
    for round in 0..12 {
        calls.push((0, Call::Put(0, values.make(THIRD, round), 0)));
        calls.extend([1, 2].map(|reader| (reader, Call::Get(0))));
    }
    calls
}

/// The same key several times between two waits: what replaces a value does not survive yet when the next one
/// takes blocks.
fn pipelines(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = Vec::new();
    for round in 0..3 {
        calls.push((0, Call::Put(0, values.make(THIRD, round), 0)));
        let parts = (4..8).map(|part| (0, Some(values.make(THIRD, round + part))));
        calls.push((0, Call::Pipeline(parts.collect())));
    }
    calls
}

/// Values of two words, which change in their cell.
fn short_values(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = Vec::new();
    for round in 0..8 {
        calls.push((0, Call::Put(0, values.make(16, round), 0)));
        calls.extend([1, 2].map(|reader| (reader, Call::Get(0))));
    }
    calls
}

/// Two write keys of their own to logs of their own, and glean: where there are so few rows, gleaners meet in
/// one. (What both have written, either would apply.)
fn gleaners(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = Vec::new();
    for round in 0..4 {
        for (session, keys) in [(0, [0, 1]), (1, [2, 3])] {
            calls.extend(keys.map(|key| (session, Call::Put(key, values.make(20, round), 0))));
            calls.push((session, Call::Reclaim));
        }
    }
    calls
}

/// One begins checkpoint after checkpoint while two write keys of their own.
fn late_writers(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = Vec::new();
    for round in 0..6 {
        for key in [0, 1, 2] {
            calls.push((u32::from(key), Call::Put(key, values.make(20, round), 0)));
        }
        calls.push((2, Call::Reclaim));
    }
    calls
}

/// One writes, the second has records leave, for which segments of the log begin, and the third has segments
/// cleaned.
fn segments(values: &mut Values) -> Vec<(u32, Call)> {
    let mut calls = Vec::new();
    for round in 0..30 {
        for key in 0..4 {
            calls.push((0, Call::Put(key, values.make(700, round), 0)));
        }
        calls.push((1, Call::Tend));
        calls.push((2, Call::Reclaim));
    }
    calls
}

/// The hole has been found everywhere, or nothing without it: 0. It has not: 1. Something else is wrong: 2.
fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let hole = arguments.next().unwrap_or_default();
    let images: Result<Vec<i64>, _> = arguments.map(|number| number.parse()).collect();
    let (Some(searches), Ok(images)) = (searches(&hole), images) else {
        println!("no hole `{hole}`; usage: teeth HOLE [IMAGES...]");
        return ExitCode::from(2);
    };
    let engine = match hole.strip_prefix("hole-").and_then(|id| id.chars().next()) {
        None => EngineKind::Tiered,
        Some('b') => EngineKind::Bullet,
        Some('d') => EngineKind::Dstore,
        _ => EngineKind::Viper,
    };
    let each = searches.iter().flat_map(|(workload, media)| {
        let workload = *workload;
        media.iter().map(move |medium| (workload, *medium))
    });
    match images.is_empty() {
        true => bites(&hole, engine, each),
        false => is_sound(engine, each.zip(images)),
    }
}

/// The hole, which is open, is found each time; then the same is asked of an engine without it.
fn bites(
    hole: &str,
    engine: EngineKind,
    searches: impl Iterator<Item = (Workload, Medium)>,
) -> ExitCode {
    let mut images = Vec::new();
    for (workload, medium) in searches {
        let (Totals { judged, points, .. }, caught) = hunt(engine, medium, workload, IMAGES);
        let Some(Caught { seed, defect }) = caught else {
            println!("{hole}: not caught in {judged} images ({points} crash points) on {medium}");
            return ExitCode::from(1);
        };
        println!(
            "{hole}: caught after {judged} images ({points} crash points) on {medium}, `{}`, seeds 0 to {seed}: {defect}",
            workload.profile()
        );
        images.push(judged.max(1).to_string());
    }
    let itself = std::env::current_exe().map(|program| {
        let mut command = Command::new(program);
        command.arg(hole).args(images).env_remove(CHOICE);
        command.status()
    });
    match itself {
        Ok(Ok(status)) if status.success() => ExitCode::SUCCESS,
        other => {
            println!("{hole}: with the hole closed: {other:?}");
            ExitCode::from(2)
        }
    }
}

/// Nothing is found in so many images each time.
fn is_sound(
    engine: EngineKind,
    searches: impl Iterator<Item = ((Workload, Medium), i64)>,
) -> ExitCode {
    for ((workload, medium), images) in searches {
        let (_, caught) = hunt(engine, medium, workload, images);
        if let Some(Caught { seed, defect }) = caught {
            println!("the sound engine on {medium}, seed {seed}: {defect}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
