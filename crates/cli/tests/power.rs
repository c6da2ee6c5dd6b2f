//! Power cuts: a machine that serves a pool is turned off under load, and what it acknowledged is looked for.
//!
//! `EVERDRAM_POWER_SWITCH` names a program that looks like `everdram serve --json` from outside and whose
//! death is a power cut: `cargo xtask vm` has a script that becomes a QEMU machine. It serves a pool of its
//! own and checks it before each start but the first. The ledger of what was acknowledged is here, outside of
//! it. `EVERDRAM_POWER_CUTS` sets the number of cuts (2), `EVERDRAM_SEED` repeats a run's choices. With
//! `EVERDRAM_POWER_FORGETS=yes` the machine is one that loses everything, and the test shows that it would
//! notice.

use everdram_cli::client::{Client, Reply};
use everdram_cli::demo::campaign::{self, Plan};
use everdram_cli::demo::corpus::Corpus;
use everdram_cli::killing::process::Launch;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CONNECTIONS: usize = 4;
const DOCUMENTS: usize = 1000;

fn number_from(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// The machine, with a directory for its log; `None`: there is none.
fn machine() -> Option<(TempDir, Launch)> {
    let Some(switch) = std::env::var_os("EVERDRAM_POWER_SWITCH") else {
        println!("skipped: EVERDRAM_POWER_SWITCH names no machine; `cargo xtask vm` does");
        return None;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let launch = Launch {
        program: switch.into(),
        pool: directory.path().join("the machine has its own"),
        log: directory.path().join("machine.log"),
        arguments: Vec::new(),
    };
    Some((directory, launch))
}

fn seed() -> u64 {
    let seed = number_from("EVERDRAM_SEED").unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    println!("repeat with EVERDRAM_SEED={seed}");
    seed
}

fn cuts() -> u64 {
    number_from("EVERDRAM_POWER_CUTS").unwrap_or(2)
}

fn forgets() -> bool {
    std::env::var("EVERDRAM_POWER_FORGETS").is_ok_and(|text| text == "yes")
}

#[test]
fn power_cuts_lose_nothing() {
    let Some((_directory, launch)) = machine() else {
        return;
    };
    let (log, seed, cuts) = (launch.log.clone(), seed(), cuts() as usize);
    let plan = Plan {
        launch,
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
    if forgets() {
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

/// Acknowledgements before each cut.
const LEAST: usize = 12;
/// For as many.
const PATIENCE: Duration = Duration::from_secs(240);
/// What the machine's door wants to hear.
const PASSWORD: &[u8] = b"secret";

/// What the writers in the machine were acknowledged, as its console says. A line may be cut.
fn acknowledged(log: &Path) -> Vec<u64> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let number = |line: &str| {
        let words = line.trim_end().strip_suffix(" .")?;
        words.strip_prefix("@@ acknowledged ")?.parse().ok()
    };
    text.lines().filter_map(number).collect()
}

/// The value of a number, as the writers make it.
fn value(number: u64) -> String {
    let length = number as usize % 3 * 30_000 + 100;
    format!("{number:0>length$}")
}

/// The writers are in the machine, over its soft-RoCE, and each put has a key of its own: what any boot was
/// acknowledged must be there in the end.
#[test]
fn power_cuts_under_remote_writers_lose_nothing() {
    let Some((_directory, launch)) = machine() else {
        return;
    };
    let (mut random, cuts, mut before) = (StdRng::seed_from_u64(seed()), cuts(), 0);
    for cut in 0..cuts {
        let process = launch.start().unwrap();
        let until = Instant::now() + PATIENCE;
        while acknowledged(&launch.log).len() < before + LEAST {
            if Instant::now() > until {
                print_log(&launch.log);
                panic!("hardly any load before cut {cut}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(random.random_range(0..1000)));
        process.kill().unwrap();
        before = acknowledged(&launch.log).len();
    }
    // Those that the last boot acknowledges are not looked for.
    let all = acknowledged(&launch.log);
    let process = launch.start().unwrap();
    let mut client = Client::connect(("127.0.0.1", process.port)).unwrap();
    client.call(&[b"AUTH", PASSWORD]).unwrap();
    client.count_keys().unwrap();
    let is_lost = |number: &u64| {
        let key = format!("remote:{number}");
        client.call(&[b"GET", key.as_bytes()]).unwrap() != Reply::Bulk(value(*number).into())
    };
    let lost: Vec<u64> = all.iter().copied().filter(is_lost).collect();
    process.close().unwrap();
    print_log(&launch.log);
    let (writes, lost_writes) = (all.len(), lost.len());
    println!("{cuts} cuts, {writes} remote writes acknowledged, {lost_writes} lost");
    match forgets() {
        true => assert_eq!(lost, all, "the losses were not seen"),
        false => assert!(lost.is_empty(), "{lost:?}"),
    }
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
