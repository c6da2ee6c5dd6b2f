//! The running server under several clients, kills included, is linearizable: every answer is explained by
//! some order of all operations, each at one moment between its call and its return, also across SIGKILLs.
//!
//! Histories are recorded from the real program over real sockets and judged by `support/checker.rs`.
//! `EVERDRAM_LINEARIZABLE_SECONDS` makes the runs longer (then `--release --nocapture` is wise),
//! `EVERDRAM_SEED` repeats a run's choices.

mod support;

use everdram::{EngineKind, test_each_engine};
use everdram_cli::killing::place;
use everdram_cli::killing::process::Launch;
use rand::RngExt;
use std::path::Path;
use std::time::{Duration, Instant};
use support::forgetful::forgetful;
use support::history::{Operation, Step};
use support::recorder::Plan;
use support::{checker, recorder};
use tempfile::TempDir;

test_each_engine!(
    histories_on_files_are_linearizable,
    histories_on_emulated_memory_are_linearizable,
    histories_over_two_doors_are_linearizable,
    histories_over_the_landing_area_are_linearizable
);

const CLIENTS: usize = 6;
/// Kills of one recording; a longer run makes several recordings.
const KILLS: usize = 10;
/// Operations that a run records at least, so that it says something.
const OPERATIONS: usize = 1000;
/// Recordings after which too few operations are no slow disk any more.
const RECORDINGS_MAX: u64 = 30;

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

fn seed() -> u64 {
    let seed =
        from_environment("EVERDRAM_SEED").unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    println!("repeat with EVERDRAM_SEED={seed} cargo test -p everdram-cli --test linearizable");
    seed
}

fn plan(directory: &Path, arguments: &[&str], kills: usize, seed: u64) -> Plan {
    Plan {
        launch: Launch {
            program: env!("CARGO_BIN_EXE_everdram").into(),
            pool: directory.join(format!("pool-{seed}")),
            log: directory.join("server.log"),
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
        },
        clients: CLIENTS,
        kills,
        stretch_ms: 20..=200,
        seed,
    }
}

/// Records and judges until the time is over and enough has happened: on a slow disk that takes more than one
/// recording. The pool is kept as evidence if something is wrong.
fn must_be_linearizable(directory: TempDir, medium: &str, engine: EngineKind, more: &[&str]) {
    let seconds = from_environment("EVERDRAM_LINEARIZABLE_SECONDS").unwrap_or(0);
    let (begun, seed) = (Instant::now(), seed());
    let mut all = checker::Judged::default();
    let (mut kills, mut adopted, mut read) = (0, 0, 0);
    for recording in 0.. {
        let arguments = [
            "--medium",
            medium,
            "--engine",
            engine.name(),
            "--chunk-bytes",
            "1MiB",
            "--log-bytes",
            "2MiB",
        ];
        let arguments = [&arguments, more].concat();
        let plan = plan(directory.path(), &arguments, KILLS, seed + recording);
        let recorder::Recorded {
            history,
            adopted: more_adopted,
            read_in_place: more_read,
        } = recorder::record(&plan);
        (adopted, read) = (adopted + more_adopted, read + more_read);
        let unknown = history.iter().filter(|one| !one.known).count();
        println!(
            "{engine} {medium}: {} operations, {KILLS} kills, {unknown} killed before their answer",
            history.len()
        );
        match checker::check(&history) {
            Ok(judged) => {
                kills += KILLS;
                all.operations += judged.operations;
                all.groups += judged.groups;
                all.configurations_max = all.configurations_max.max(judged.configurations_max);
            }
            Err(words) => panic!(
                "NOT linearizable, seed {}, kept {}: {words}",
                plan.seed,
                directory.keep().display()
            ),
        }
        std::fs::remove_dir_all(&plan.launch.pool).unwrap();
        let enough = all.operations > OPERATIONS || recording + 1 >= RECORDINGS_MAX;
        if enough && begun.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
    }
    println!("{engine} {medium}: linearizable; {kills} kills, {all:?}");
    if more.contains(&"--fabric-lend-bytes") {
        println!("{adopted} values stayed where they were written, {read} read there");
        assert!(adopted > 0 && read > 0, "long values went other ways");
    }
    assert!(all.operations > OPERATIONS, "hardly any load: {all:?}");
}

fn histories_on_files_are_linearizable(engine: EngineKind) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    must_be_linearizable(directory, "file", engine, &[]);
}

fn histories_on_emulated_memory_are_linearizable(engine: EngineKind) {
    match place::for_emulation() {
        Ok(directory) => must_be_linearizable(directory, "emulated", engine, &[]),
        Err(reason) => println!("skipped: {reason:#}"),
    }
}

/// Redis clients and clients of a fabric use the same keys.
fn histories_over_two_doors_are_linearizable(engine: EngineKind) {
    if let Err(reason) = everdram_fabric::version() {
        println!("skipped: {reason}");
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let door = ["--fabric", "tcp://127.0.0.1:0"];
    must_be_linearizable(directory, "file", engine, &door);
}

/// The same with clients that make values durable in the pool by themselves, of which the server learns when
/// somebody asks, or after a kill.
fn histories_over_the_landing_area_are_linearizable(engine: EngineKind) {
    if let Err(reason) = everdram_fabric::version() {
        println!("skipped: {reason}");
        return;
    }
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut doors = vec![
        "--fabric",
        "tcp://127.0.0.1:0",
        "--fabric-trust-peers",
        "--landing-bytes",
        "8MiB",
    ];
    if engine == EngineKind::Viper {
        // Long values stay where they are written, and are read there.
        doors.extend(["--fabric-lend-bytes", "4MiB", "--fabric-read-in-place"]);
    }
    must_be_linearizable(directory, "emulated", engine, &doors);
}

/// What was answered before a kill is not there after it. One kill might come when every key may be absent.
#[test]
fn a_server_that_forgets_is_convicted() {
    let directory = tempfile::tempdir().unwrap();
    let mut plan = plan(directory.path(), &["--medium", "file"], 3, seed());
    plan.launch = forgetful(plan.launch, directory.path());
    let history = recorder::record(&plan).history;
    let words = checker::check(&history).unwrap_err();
    assert!(words.contains("no order explains"), "{words}");
}

/// Durability `none` answers before anything is synced or even written: a killed process takes it along.
#[test]
fn a_server_that_answers_too_early_is_convicted() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let arguments = ["--medium", "file", "--durability", "none"];
    let history = recorder::record(&plan(directory.path(), &arguments, 3, seed())).history;
    let words = checker::check(&history).unwrap_err();
    assert!(words.contains("no order explains"), "{words}");
}

/// A recorded history is fine until one late answer in it is replaced by one from long ago.
#[test]
fn a_planted_stale_read_is_convicted() {
    let directory = tempfile::tempdir().unwrap();
    let mut plan = plan(directory.path(), &["--medium", "file"], 2, seed());
    // On a slow disk little happens in a stretch: longer ones until a key was set twice.
    let (mut history, place, stale) = loop {
        let history = recorder::record(&plan).history;
        assert!(checker::check(&history).is_ok());
        if let Some((place, stale)) = stale_read(&history) {
            break (history, place, stale);
        }
        plan.stretch_ms = plan.stretch_ms.start() * 4..=plan.stretch_ms.end() * 4;
        std::fs::remove_dir_all(&plan.launch.pool).unwrap();
    };
    history[place].steps[0].answer = format!("${stale}");
    let words = checker::check(&history).unwrap_err();
    assert!(words.contains("no order explains"), "{words}");
}

/// One of the reads after the last restart, by one client alone, and a value that its key surely does not
/// have any more: set, answered, and after that set to another one, answered.
fn stale_read(history: &[Operation]) -> Option<(usize, String)> {
    let alone = |operation: &Operation| operation.client == CLIENTS;
    let last_reads = history.iter().rev().take_while(|one| alone(one)).count();
    (history.len() - last_reads..history.len()).find_map(|place| {
        let key = &history[place].steps[0].key;
        let mut sets: Vec<&Operation> = history
            .iter()
            .filter(|one| one.known && one.steps.len() == 1)
            .filter(|one| one.steps[0].command == "SET" && one.steps[0].key == *key)
            .collect();
        sets.sort_by_key(|one| one.returned);
        let first = sets.first()?;
        let replaced = sets.iter().any(|one| one.called > first.returned);
        replaced.then(|| (place, first.steps[0].argument.clone()))
    })
}

fn operation(
    times: (u64, u64),
    known: bool,
    steps: &[(&'static str, &str, &str, &str)],
) -> Operation {
    let step = |&(command, key, argument, answer): &(&'static str, &str, &str, &str)| Step {
        answer: answer.to_owned(),
        ..Step::new(command, key, argument)
    };
    Operation {
        client: 0,
        called: times.0,
        returned: times.1,
        known,
        steps: steps.iter().map(step).collect(),
    }
}

fn set(times: (u64, u64), value: &str) -> Operation {
    operation(times, true, &[("SET", "a", value, "+OK")])
}

fn get(times: (u64, u64), answer: &str) -> Operation {
    operation(times, true, &[("GET", "a", "", answer)])
}

/// Small histories whose verdict is plain.
#[test]
fn the_checker_knows_right_from_wrong() {
    let killed = |times| operation(times, false, &[("SET", "a", "2", "")]);
    let transfer = |known, answer| {
        let steps = [("SET", "a", "5", answer), ("SET", "b", "5", answer)];
        operation((3, 4), known, &steps)
    };
    let get_b = |times, answer| operation(times, true, &[("GET", "b", "", answer)]);
    let cases = [
        ("in order", true, vec![set((1, 2), "1"), get((3, 4), "$1")]),
        (
            "stale",
            false,
            vec![set((1, 2), "1"), set((3, 4), "2"), get((5, 6), "$1")],
        ),
        (
            "overlapping reads differ",
            true,
            vec![set((1, 9), "1"), get((2, 3), "_"), get((4, 5), "$1")],
        ),
        (
            "back and forth",
            false,
            vec![set((1, 9), "1"), get((2, 3), "$1"), get((4, 5), "_")],
        ),
        (
            "the killed write happened",
            true,
            vec![set((1, 2), "1"), killed((3, 5)), get((6, 7), "$2")],
        ),
        (
            "the killed write did not",
            true,
            vec![set((1, 2), "1"), killed((3, 5)), get((6, 7), "$1")],
        ),
        (
            "it happened later",
            false,
            vec![
                set((1, 2), "1"),
                killed((3, 5)),
                get((6, 7), "$1"),
                get((8, 9), "$2"),
            ],
        ),
        (
            "it happened and was undone",
            false,
            vec![
                set((1, 2), "1"),
                killed((3, 8)),
                get((4, 5), "$2"),
                get((9, 10), "$1"),
            ],
        ),
        (
            "half a transaction",
            false,
            vec![transfer(true, "+OK"), get((5, 6), "$5"), get_b((7, 8), "_")],
        ),
        (
            "half a killed one",
            false,
            vec![transfer(false, ""), get((5, 6), "$5"), get_b((7, 8), "_")],
        ),
        (
            "none of a killed one",
            true,
            vec![transfer(false, ""), get((5, 6), "_"), get_b((7, 8), "_")],
        ),
        (
            "lost increment",
            false,
            vec![
                operation((1, 5), true, &[("INCR", "a", "", ":1")]),
                operation((2, 6), true, &[("INCR", "a", "", ":1")]),
            ],
        ),
    ];
    for (name, expected, history) in cases {
        let verdict = checker::check(&history);
        assert_eq!(verdict.is_ok(), expected, "{name}: {verdict:?}");
    }
}
