//! The mutation score: no flush, fence or sync can be left out without the lab noticing.
//!
//! Takes minutes, so it runs with optimization only: `cargo xtask lab`.
#![cfg(not(debug_assertions))]

use everdram_lab::image::Medium;
use everdram_lab::mutation::{Mutant, Mutation};

/// What makes nothing safer and stays all the same, by file: the sync of a segment's zeros, so that the first syncs of
/// what is written there later do not pay for the file system's metadata.
const FOR_SPEED: [&str; 1] = ["pm/src/log/segment.rs"];

/// What makes nothing safer on memory: a checkpoint of the index is believed by its sums alone, and lost it costs time
/// only (`checkpoint.rs`, and `chain.rs` for the fence behind its pieces).
const CHECKPOINTS: [&str; 2] = ["kv/src/viper/checkpoint.rs", "kv/src/viper/chain.rs"];

/// Images after which the search for one mutant ends; `EVERDRAM_MUTATION_IMAGES` says otherwise. `EVERDRAM_MUTANTS`, a
/// file name and a line or a part of these, restricts the search.
const IMAGES: u64 = 400_000;

/// `least`: mutants that there are at least. `excused`: those that nobody has to notice.
fn score(medium: Medium, least: usize, excused: &[&str]) {
    let images = std::env::var("EVERDRAM_MUTATION_IMAGES")
        .map_or(IMAGES, |text| text.parse().expect("a number of images"));
    let only = std::env::var("EVERDRAM_MUTANTS").unwrap_or_default();
    let mutation = Mutation {
        images,
        only: only.clone(),
        ..Mutation::new(medium)
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
    println!("{medium}: {} of {} noticed", noticed.count(), mutants.len());
    assert!(
        mutants.len() >= least || !only.is_empty(),
        "{} mutants",
        mutants.len()
    );
    let is_excused = |survivor: &String| excused.iter().any(|place| survivor.contains(place));
    assert!(survivors.iter().all(is_excused), "{survivors:?}");
    assert!(survivors.len() <= 2 * excused.len(), "{survivors:?}");
}

#[test]
fn nothing_can_be_left_out_on_pmem() {
    score(Medium::Pmem, 35, &CHECKPOINTS);
}

#[test]
fn nothing_can_be_left_out_on_file() {
    score(Medium::File, 8, &FOR_SPEED);
}
