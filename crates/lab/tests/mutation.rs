//! The mutation score: no flush, fence or sync can be left out without the lab noticing.
//!
//! Takes minutes, so it runs in release mode only: `cargo xtask lab`.
#![cfg(not(debug_assertions))]

use everdram_lab::image::Medium;
use everdram_lab::mutation::{Mutant, Mutation};

/// What makes nothing safer and stays all the same, by file: the sync of a segment's zeros, so that the first syncs of
/// what is written there later do not pay for the file system's metadata.
const FOR_SPEED: [&str; 1] = ["pm/src/log/segment.rs"];

fn score(medium: Medium) {
    let mutation = Mutation {
        medium,
        ..Mutation::default()
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
    println!(
        "{medium}: {} of {} noticed",
        mutants.len() - survivors.len(),
        mutants.len()
    );
    assert!(mutants.len() >= 8, "{} mutants", mutants.len());
    // Each place of the list excuses one.
    let excused = FOR_SPEED
        .iter()
        .filter(|place| survivors.iter().any(|survivor| survivor.contains(**place)))
        .count();
    assert_eq!(survivors.len(), excused, "{survivors:?}");
}

#[test]
fn nothing_can_be_left_out_on_pmem() {
    score(Medium::Pmem);
}

#[test]
fn nothing_can_be_left_out_on_file() {
    score(Medium::File);
}
