//! The probes of a provider, over 127.0.0.1 or what `EVERDRAM_TEST_FABRIC` names.
//!
//! Without the library every test says so and passes.

mod support;

use everdram_fabric_sys::{Bounds, Commit, probe, providers};
use std::time::{Duration, Instant};
use support::{is_other_than_tcp, loaded, place};

#[test]
fn tcp_commits_and_its_bounds_are_known() {
    let Some(library) = loaded() else { return };
    if is_other_than_tcp("what it does is known") {
        return;
    }
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

/// The device keeps peers inside; nothing makes durable what completes.
#[test]
fn verbs_commits_nothing_and_its_device_keeps_bounds() {
    let Some(library) = loaded() else { return };
    let (provider, address) = place();
    if provider != "verbs" {
        return println!("skipped: no device for `verbs` is named");
    }
    let begun = Instant::now();
    let found = probe(library, &provider, address);
    println!("{found:#?} in {:?}", begun.elapsed());
    assert_eq!(found.commit, Commit::NotOffered);
    assert_eq!(found.bounds, Bounds::ByDevice);
    let list = providers(library).unwrap();
    let mut listed = list.iter().filter(|known| known.name == provider);
    assert!(
        listed.any(|known| known.address == Some(address.ip())),
        "{list:#?}"
    );
    assert!(
        !list
            .iter()
            .any(|known| known.name == provider && known.can_commit)
    );
}

#[test]
fn a_provider_that_is_not_there_is_unknown() {
    let Some(library) = loaded() else { return };
    let found = probe(library, "no such provider", "127.0.0.1:0".parse().unwrap());
    assert!(matches!(found.commit, Commit::Fails(_)), "{found:?}");
    assert!(matches!(found.bounds, Bounds::Unknown(_)), "{found:?}");
}
