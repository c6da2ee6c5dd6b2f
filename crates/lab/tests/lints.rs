//! The lints find nothing that loses data, and little that wastes time.

use everdram_lab::lint::survey;
use everdram_lab::profile::Profile;

const SEEDS: u64 = if cfg!(debug_assertions) { 2 } else { 6 };

#[test]
fn nothing_is_dirty_when_it_is_acknowledged() {
    let (lints, totals) = survey(&Profile::ALL, 1..1 + SEEDS, 80).unwrap();
    println!("{} calls: {lints:#?}", totals.calls);
    assert!(lints.flushes > 1000 && lints.garbled > 1000);
    assert!(lints.is_sound());
    // Compaction flushes the marks of others, recovery what it found, and a session that leaves its own marks, without
    // knowing whether that was done before, or for another word of the line; everything else flushes once.
    let wasted: u64 = lints
        .redundant_flush
        .iter()
        .chain(&lints.empty_fence)
        .filter(|(place, _)| {
            let often = ["emptied.rs", "recover_scan.rs", "verify.rs", "session.rs"];
            !often.iter().any(|file| place.contains(file))
        })
        .map(|(_, count)| count)
        .sum();
    assert!(
        wasted * 200 <= lints.flushes + lints.fences,
        "{wasted} of {} flushes and {} fences did nothing",
        lints.flushes,
        lints.fences
    );
}
