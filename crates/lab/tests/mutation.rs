//! The mutation score: no flush, fence or sync can be left out without the lab noticing.
//!
//! Takes minutes, so it runs in release mode only: `cargo xtask lab`.
#![cfg(not(debug_assertions))]

use everdram_lab::image::Medium;
use everdram_lab::mutation::{Mutant, Mutation};

/// Flushes that make nothing safer, and why they stay: `file`, a piece of the line's text.
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
    assert!(survivors.is_empty(), "{survivors:?}");
}

#[test]
fn nothing_can_be_left_out_on_pmem() {
    score(Medium::Pmem);
}

#[test]
fn nothing_can_be_left_out_on_file() {
    score(Medium::File);
}
