//! The mutation score: no flush, fence or sync can be left out without the lab noticing.
//!
//! Takes minutes, so it runs in release mode only: `cargo xtask lab`.
#![cfg(not(debug_assertions))]

use everdram_lab::image::Medium;
use everdram_lab::lines::Muted;
use everdram_lab::mutation::{Mutant, Mutation};

/// What makes nothing safer and stays all the same, by file: the sync of a segment's zeros, so that the first syncs of
/// what is written there later do not pay for the file system's metadata.
const FOR_SPEED: [&str; 1] = ["pm/src/log/segment.rs"];

/// What takes more images than a short run looks at, by kind and file: the compactor's care for marks of others, the
/// fences of sealing, and what recovery writes about losers and journals, which matter in few states only.
/// `EVERDRAM_MUTATION_IMAGES` raises the limit, and then nothing is excused.
const RARE: [(Muted, &str); 7] = [
    (Muted::Flush, "kv/src/viper/recover.rs"),
    (Muted::Flush, "kv/src/viper/reclaim.rs"),
    (Muted::Fence, "kv/src/viper/reclaim.rs"),
    (Muted::Fence, "kv/src/viper/background.rs"),
    (Muted::Fence, "kv/src/viper/session.rs"),
    (Muted::Fence, "kv/src/viper/recover.rs"),
    (Muted::Fence, "kv/src/viper/recover_scan.rs"),
];
/// Images for one mutant.
const IMAGES: u64 = 120_000;

fn is_rare(mutant: &Mutant) -> bool {
    let place = mutant.place();
    RARE.iter()
        .any(|(what, file)| mutant.mute.what == *what && place.starts_with(file))
}

fn score(medium: Medium) {
    let images = std::env::var("EVERDRAM_MUTATION_IMAGES")
        .map_or(IMAGES, |text| text.parse().expect("a number of images"));
    let mutation = Mutation {
        medium,
        images,
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
        .filter(|mutant| images > IMAGES || !is_rare(mutant))
        .map(|mutant| format!("{:?} {}", mutant.mute.what, mutant.place()))
        .collect();
    let noticed = mutants.iter().filter(|mutant| mutant.caught.is_some());
    println!("{medium}: {} of {} noticed", noticed.count(), mutants.len());
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
