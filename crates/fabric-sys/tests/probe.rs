//! The probes of a provider, over 127.0.0.1.
//!
//! Without the library every test says so and passes.

mod support;

use everdram_fabric_sys::{Bounds, Commit, probe};
use std::time::{Duration, Instant};
use support::loaded;

#[test]
fn tcp_commits_and_its_bounds_are_known() {
    let Some(library) = loaded() else { return };
    let begun = Instant::now();
    let found = probe(library, "tcp", "127.0.0.1:0".parse().unwrap());
    println!(
        "{:?} in {:?}: {found:#?}",
        library.version(),
        begun.elapsed()
    );
    assert!(begun.elapsed() < Duration::from_secs(10));
    let is_known = cfg!(target_arch = "x86_64");
    match &found.commit {
        Commit::Completes(times) => assert!(times.durable > Duration::ZERO, "{times:?}"),
        Commit::NotOffered => assert!(!is_known),
        Commit::Fails(reason) => panic!("{reason}"),
    }
    // Which of the two depends on the release; an answer there must be.
    assert!(
        matches!(found.bounds, Bounds::Kept | Bounds::Forgeable),
        "{:?}",
        found.bounds
    );
    if library.version() == (1, 17) {
        assert_eq!(found.bounds, Bounds::Forgeable, "libfabric 12826");
    }
}

#[test]
fn a_provider_that_is_not_there_is_unknown() {
    let Some(library) = loaded() else { return };
    let found = probe(library, "no such provider", "127.0.0.1:0".parse().unwrap());
    assert!(matches!(found.commit, Commit::Fails(_)), "{found:?}");
    assert!(matches!(found.bounds, Bounds::Unknown(_)), "{found:?}");
}
