//! INFO for a front with a budget: `serve --front-bytes`.

use crate::bed::Bed;
use crate::support::{Running, eventually, medium, number, start_over, told};
use everdram::EngineKind;
use everdram_resp::Settings;

const KEYS: usize = 6_000;
/// Requests sent before their answers are read.
const PIPELINE: usize = 100;
/// The array takes 64 KiB of it; all keys need three times the budget.
const BUDGET: u64 = 512 << 10;

const NAMES: [&str; 6] = [
    "front_used_bytes",
    "front_budget_bytes",
    "front_hits",
    "front_misses",
    "front_filled",
    "front_evicted",
];

/// A server whose front has this budget.
fn server(engine: EngineKind, front_bytes: Option<u64>) -> Running {
    let bed = Bed::new(engine, medium());
    let store = bed.open_with(|options| {
        (options.bullet.logs, options.bullet.log_bytes) = (2, 64 << 10);
        options.bullet.depth = 10;
        options.bullet.front_bytes = front_bytes;
    });
    start_over(bed, store, Settings::default())
}

fn each_key(server: &Running, request: impl Fn(usize) -> String, reply: impl Fn(usize) -> String) {
    let mut raw = server.connect();
    for from in (0..KEYS).step_by(PIPELINE) {
        let keys = || from..from + PIPELINE;
        raw.ask(
            keys().map(&request).collect::<String>(),
            keys().map(&reply).collect::<String>(),
        );
    }
}

#[test]
fn a_front_with_a_budget_says_what_becomes_of_it() {
    if !has_front() {
        return;
    }
    let server = server(EngineKind::Bullet, Some(BUDGET));
    let mut raw = server.connect();
    assert_eq!(number(&mut raw, "front_budget_bytes"), BUDGET);
    assert_eq!(number(&mut raw, "front_evicted"), 0);
    each_key(
        &server,
        |key| format!("SET key-{key} {key:0150}\r\n"),
        |_| "+OK\r\n".into(),
    );
    // Unapplied nodes stay; gleaners make them evictable.
    eventually("the front keeps to its budget", || {
        number(&mut raw, "front_used_bytes") <= BUDGET
    });
    let evicted = number(&mut raw, "front_evicted");
    assert!(evicted > (KEYS / 4) as u64, "{evicted}");
    let before = ["engine_gets", "front_misses", "front_filled"].map(|name| number(&mut raw, name));
    each_key(
        &server,
        |key| format!("GET key-{key}\r\n"),
        |key| format!("$150\r\n{key:0150}\r\n"),
    );
    let after = ["engine_gets", "front_misses", "front_filled"].map(|name| number(&mut raw, name));
    let [gets, misses, filled] = [0, 1, 2].map(|nth| after[nth] - before[nth]);
    assert_eq!(gets, KEYS as u64);
    // Every evicted key is missed at least once, and some keys are still there.
    assert!(misses >= KEYS as u64 / 4 && misses <= gets, "{misses}");
    assert!((1..=misses).contains(&filled), "{filled} of {misses}");
    let hits = number(&mut raw, "front_hits");
    assert_eq!(hits + after[1], after[0]);
}

#[test]
fn a_front_that_has_everything_misses_nothing() {
    if !has_front() {
        return;
    }
    let server = server(EngineKind::Bullet, None);
    each_key(
        &server,
        |key| format!("SET key-{key} {key:0150}\r\n"),
        |_| "+OK\r\n".into(),
    );
    each_key(
        &server,
        |key| format!("GET key-{key}\r\n"),
        |key| format!("$150\r\n{key:0150}\r\n"),
    );
    let mut raw = server.connect();
    let found = NAMES.map(|name| told(&mut raw, name).unwrap_or_else(|| panic!("no {name}")));
    let gets = number(&mut raw, "engine_gets").to_string();
    assert_eq!(found[1..], ["all", &gets, "0", "0", "0"]);
}

#[test]
fn an_engine_without_a_front_says_nothing_of_one() {
    let server = server(EngineKind::Viper, None);
    let mut raw = server.connect();
    let is_bullet = std::env::var("EVERDRAM_TEST_ENGINE").is_ok_and(|name| name == "bullet");
    let found = NAMES.map(|name| told(&mut raw, name));
    assert_eq!(found.iter().any(Option::is_some), is_bullet, "{found:?}");
}

/// Whether the tests run on an engine with a front.
fn has_front() -> bool {
    !std::env::var("EVERDRAM_TEST_ENGINE").is_ok_and(|name| name != "bullet")
}
