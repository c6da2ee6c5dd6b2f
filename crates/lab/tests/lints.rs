//! The lints find nothing that loses data, and little that wastes time.

use everdram::EngineKind;
use everdram_lab::lint::survey;
use everdram_lab::profile::Profile;

const SEEDS: u64 = if cfg!(not(feature = "thorough")) {
    2
} else {
    6
};

/// Surveys runs of an engine. `often`: files whose flushes and fences may do nothing, for a reason.
fn lint(engine: EngineKind, often: &[&str]) {
    let (mut lints, totals) = survey(engine, &Profile::of(engine), 1..1 + SEEDS, 80).unwrap();
    // What a remote client writes is its own business until it has made that durable; the store copies it.
    for found in [
        &mut lints.dirty_at_acknowledgement,
        &mut lints.read_before_durable,
    ] {
        found.retain(|place, _| !place.contains("landing/mod.rs"));
    }
    println!("{engine}, {} calls: {lints:#?}", totals.calls);
    assert!(lints.flushes > 1000 && lints.garbled > 1000);
    assert!(lints.is_sound());
    let wasted: u64 = lints
        .redundant_flush
        .iter()
        .chain(&lints.empty_fence)
        .filter(|(place, _)| !often.iter().any(|file| place.contains(file)))
        .map(|(_, count)| count)
        .sum();
    assert!(
        wasted * 200 <= lints.flushes + lints.fences,
        "{wasted} of {} flushes and {} fences did nothing",
        lints.flushes,
        lints.fences
    );
}

/// Compaction flushes the marks of others, recovery what it found, and a session that leaves its own marks,
/// without knowing whether that was done before, or for another word of the line; everything else flushes
/// once.
#[test]
fn nothing_of_viper_is_dirty_when_it_is_acknowledged() {
    let often = [
        "marks.rs",
        "recovery/scan.rs",
        "verify.rs",
        "session.rs",
        "landing/recover.rs",
    ];
    lint(EngineKind::Viper, &often);
}

/// Recovery flushes what it found, without knowing whether that was done before.
#[test]
fn nothing_of_bullet_is_dirty_when_it_is_acknowledged() {
    lint(
        EngineKind::Bullet,
        &[
            "recover.rs",
            "recovery/mod.rs",
            "ledger.rs",
            "heap/mod.rs",
            "heap/txn.rs",
            "landing/recover.rs",
        ],
    );
}
