//! Power cuts: a machine that serves a pool is turned off under load, and what it acknowledged is looked for.
//!
//! `EVERDRAM_POWER_SWITCH` names a program that looks like `everdram serve --json` from outside and whose
//! death is a power cut: `cargo xtask vm` has a script that becomes a QEMU machine. It serves a pool of its
//! own and checks it before each start but the first. The ledger of what was acknowledged is here, outside of
//! it. `EVERDRAM_POWER_CUTS` sets the number of cuts (2), `EVERDRAM_SEED` repeats a run's choices. With
//! `EVERDRAM_POWER_FORGETS=yes` the machine is one that loses everything, and the test shows that it would
//! notice.

use everdram_cli::demo::campaign::{self, Plan};
use everdram_cli::demo::corpus::Corpus;
use everdram_cli::killing::process::Launch;
use rand::RngExt;
use std::path::Path;

const CONNECTIONS: usize = 4;
const DOCUMENTS: usize = 1000;

fn number_from(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

#[test]
fn power_cuts_lose_nothing() {
    let Some(switch) = std::env::var_os("EVERDRAM_POWER_SWITCH") else {
        println!("skipped: EVERDRAM_POWER_SWITCH names no machine; `cargo xtask vm` does");
        return;
    };
    let seed = number_from("EVERDRAM_SEED").unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    println!("repeat with EVERDRAM_SEED={seed}");
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let log = directory.path().join("machine.log");
    let cuts = usize::try_from(number_from("EVERDRAM_POWER_CUTS").unwrap_or(2)).unwrap();
    let plan = Plan {
        launch: Launch {
            program: switch.into(),
            pool: directory.path().join("the machine has its own"),
            log: log.clone(),
            arguments: Vec::new(),
        },
        corpus: Corpus::generated(DOCUMENTS, seed),
        connections: CONNECTIONS,
        kills: cuts,
        stretch_ms: 500..=3000,
        kill_in_recovery: false,
        seed,
    };
    let summary = campaign::run(&plan, &|_, _, _| ());
    print_log(&log);
    let summary = summary.unwrap_or_else(|error| panic!("{error:#}"));
    println!(
        "{} cuts, {} writes acknowledged, {} verified, {} reads judged, {} lost, {} inconsistent",
        summary.kills,
        summary.acknowledged,
        summary.verified,
        summary.reads,
        summary.lost,
        summary.inconsistent
    );
    if std::env::var("EVERDRAM_POWER_FORGETS").is_ok_and(|text| text == "yes") {
        assert!(
            summary.lost > DOCUMENTS as u64 / 2,
            "the losses were not seen"
        );
        return;
    }
    assert!(summary.is_sound(), "{}", summary.told.join("\n"));
    assert_eq!(summary.kills, cuts as u64);
    assert_eq!(summary.verified, summary.acknowledged);
    assert_eq!(summary.report["medium"], "pmem", "{}", summary.report);
    assert!(
        summary.reads > 0 && summary.acknowledged > DOCUMENTS as u64,
        "the load did happen"
    );
}

/// What the machine printed: its console, and what its checks of the pool said.
fn print_log(log: &Path) {
    match std::fs::read(log) {
        Ok(text) => {
            for line in String::from_utf8_lossy(&text).lines() {
                println!("machine: {}", line.trim_end());
            }
        }
        Err(error) => println!("the machine's log {}: {error}", log.display()),
    }
}
