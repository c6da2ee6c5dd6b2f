//! What the kill loops on all media share: the load, what is printed, and what must hold.

use everdram_cli::demo::campaign::{self, Plan, Summary};
use everdram_cli::demo::corpus::Corpus;
use everdram_cli::killing::process::Launch;
use rand::RngExt;
use std::path::PathBuf;
use tempfile::TempDir;

const CONNECTIONS: usize = 6;
pub(crate) const DOCUMENTS: usize = 2000;

pub(crate) fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// The seed of a run of the test binary `test`.
pub(crate) fn seed(test: &str) -> u64 {
    let seed =
        from_environment("EVERDRAM_SEED").unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    println!("repeat with EVERDRAM_SEED={seed} cargo test -p everdram-cli --test {test}");
    seed
}

/// A server of `pool` with more `arguments`; its log is in `directory`.
pub(crate) fn launch(directory: &TempDir, pool: PathBuf, arguments: &[&str]) -> Launch {
    Launch {
        program: env!("CARGO_BIN_EXE_everdram").into(),
        pool,
        log: directory.path().join("server.log"),
        arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
    }
}

/// Load and kills, recoveries killed too.
pub(crate) fn run(launch: Launch, kills: usize, seed: u64) -> Summary {
    let medium = launch.arguments.join(" ");
    let plan = Plan {
        launch,
        corpus: Corpus::generated(DOCUMENTS, seed),
        connections: CONNECTIONS,
        kills,
        stretch_ms: 30..=400,
        kill_in_recovery: true,
        seed,
    };
    let summary = campaign::run(&plan, &|_, _, _| ()).unwrap_or_else(|error| panic!("{error:#}"));
    println!(
        "{medium}: {} kills, {} writes acknowledged, {} verified, {} reads judged, {} lost, {} inconsistent",
        summary.kills,
        summary.acknowledged,
        summary.verified,
        summary.reads,
        summary.lost,
        summary.inconsistent
    );
    summary
}

/// The same, and nothing may be lost. `directory` is kept as evidence if a promise was broken.
pub(crate) fn must_be_sound(directory: TempDir, launch: Launch, kills: usize, seed: u64) {
    let summary = run(launch, kills, seed);
    if !summary.is_sound() {
        panic!(
            "kept {}:\n{}",
            directory.keep().display(),
            summary.told.join("\n")
        );
    }
    assert_eq!(summary.kills, kills as u64);
    assert_eq!(
        summary.verified, summary.acknowledged,
        "every acknowledged write is accounted for"
    );
    assert!(
        summary.reads > 0 && summary.acknowledged > DOCUMENTS as u64,
        "the load did happen"
    );
}
