//! The mutation score: no flush, fence or sync can be left out without the lab noticing.
//!
//! Takes minutes, so it runs with optimization only: `cargo xtask lab`.
#![cfg(not(debug_assertions))]

use everdram::EngineKind;
use everdram_lab::image::Medium;
use everdram_lab::mutation::{Mutant, Mutation};

/// What makes nothing safer and stays all the same, by file: the sync of a segment's zeros, so that the first syncs of
/// what is written there later do not pay for the file system's metadata.
const FOR_SPEED: [&str; 1] = ["pm/src/log/segment.rs"];

/// What makes nothing safer on memory: a checkpoint of the index is believed by its sums alone, and lost it costs time
/// only (`checkpoint.rs`, and `chain.rs` for the fence behind its pieces).
const CHECKPOINTS: [&str; 2] = ["kv/src/viper/checkpoint.rs", "kv/src/viper/chain.rs"];

/// What nobody misses in Bullet:
/// - `recover.rs`, `ledger.rs`, and a transaction's record in `txn.rs`: recovery flushes what it found of entries, ledgers, objects and records. That matters if the power
///   fails during the recovery from a kill in the middle of a commit, or soon after it. So does the end of a torn log or record, and if the same bytes come to lie there; `heap/tests.rs` has
///   a test of records.
/// - `txn.rs`: that a record is retired matters if another area has changed the same words since; `heap/tests.rs` has a test of it.
/// - `heap/mod.rs`: headers of chunks as small as the lab's are one line, so a later store to it flushes all of it.
const OF_BULLET: [&str; 5] = [
    "kv/src/bullet/recover.rs",
    "kv/src/crl/recover.rs",
    "kv/src/crl/ledger.rs",
    "kv/src/heap/txn.rs",
    "kv/src/heap/mod.rs",
];

/// Bullet syncs nothing itself: what it has on files is noticed with Viper, but for what this file names.
const LOG_OF_FILES: [&str; 1] = ["pm/src/log/"];

/// Images after which the search for one mutant ends; `EVERDRAM_MUTATION_IMAGES` says otherwise. `EVERDRAM_MUTANTS`, a
/// file name and a line or a part of these, restricts the search.
const IMAGES: u64 = 100_000;
/// The same for what is excused: whether it is noticed decides nothing.
const EXCUSED_IMAGES: u64 = 4_000;

/// `least`: mutants that there are at least. `excused`: those that nobody has to notice, of which there are
/// `most`.
fn score(
    engine: EngineKind,
    medium: Medium,
    least: usize,
    excused: &'static [&'static str],
    most: usize,
) {
    let images = std::env::var("EVERDRAM_MUTATION_IMAGES")
        .map_or(IMAGES, |text| text.parse().expect("a number of images"));
    let only = std::env::var("EVERDRAM_MUTANTS").unwrap_or_default();
    let mutation = Mutation {
        images,
        only: only.clone(),
        excused: (excused, EXCUSED_IMAGES),
        ..Mutation::new(engine, medium)
    };
    let show = |mutant: &Mutant| match &mutant.caught {
        None => println!("{:?} {} survived", mutant.mute.what, mutant.place()),
        Some(caught) => println!(
            "{:?} {}, {} times: {} {}, {} images: {}",
            mutant.mute.what,
            mutant.place(),
            mutant.events,
            caught.profile,
            caught.seed,
            caught.images,
            caught.wrong.chars().take(100).collect::<String>()
        ),
    };
    let mutants = mutation.score(&show).unwrap();
    let survivors: Vec<String> = mutants
        .iter()
        .filter(|mutant| mutant.caught.is_none())
        .map(|mutant| format!("{:?} {}", mutant.mute.what, mutant.place()))
        .collect();
    let noticed = mutants.iter().filter(|mutant| mutant.caught.is_some());
    println!(
        "{engine}, {medium}: {} of {} noticed",
        noticed.count(),
        mutants.len()
    );
    assert!(
        mutants.len() >= least || !only.is_empty(),
        "{} mutants",
        mutants.len()
    );
    let is_excused = |survivor: &String| excused.iter().any(|place| survivor.contains(place));
    assert!(survivors.iter().all(is_excused), "{survivors:?}");
    assert!(survivors.len() <= most, "{survivors:?}");
}

#[test]
fn nothing_can_be_left_out_of_viper_on_pmem() {
    score(EngineKind::Viper, Medium::Pmem, 35, &CHECKPOINTS, 4);
}

#[test]
fn nothing_can_be_left_out_of_viper_on_file() {
    score(EngineKind::Viper, Medium::File, 8, &FOR_SPEED, 2);
}

#[test]
fn nothing_can_be_left_out_of_bullet_on_pmem() {
    score(EngineKind::Bullet, Medium::Pmem, 24, &OF_BULLET, 20);
}

#[test]
fn nothing_can_be_left_out_of_bullet_on_file() {
    score(EngineKind::Bullet, Medium::File, 8, &LOG_OF_FILES, 3);
}
