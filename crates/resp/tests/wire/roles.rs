//! Workers that do a slice of the store's own work between two rounds of their clients.

use crate::bed::Bed;
use crate::support::{Running, TIMEOUT, eventually, medium, number, start_over};
use everdram::EngineKind;
use everdram_resp::Settings;
use std::time::{Duration, Instant};

const CLIENTS: usize = 4;
const ROUNDS: usize = 600;
/// Requests that a client sends before it reads the answers.
const PIPELINE: usize = 20;

/// Each client writes all of its keys again and again.
fn write(server: &Running) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut raw = server.connect();
                for round in 0..ROUNDS {
                    let requests = (0..PIPELINE)
                        .map(|key| format!("SET {client}-{key} {round}-{client}-{key:0100}\r\n"));
                    raw.ask(requests.collect::<String>(), "+OK\r\n".repeat(PIPELINE));
                }
            });
        }
    });
}

/// Writes through logs that fill up every few thousand requests; returns the number of the workers' turns.
fn turns_of(threads: usize) -> u64 {
    let bed = Bed::new(EngineKind::Bullet, medium());
    let store = bed.open_with(|options| {
        (options.bullet.logs, options.bullet.log_bytes) = (4, 256 << 10);
    });
    let settings = Settings {
        threads,
        ..Settings::default()
    };
    let server = start_over(bed, store, settings);
    let mut raw = server.connect();
    let begun = Instant::now();
    let turns = loop {
        write(&server);
        let turns = number(&mut raw, "worker_turns");
        // The scheduler decides how full the logs get.
        if turns > 0 || !has_roles() || begun.elapsed() > TIMEOUT {
            break turns;
        }
    };
    // Workers without work sleep.
    eventually("workers sleep again", || {
        let before = number(&mut raw, "worker_turns");
        std::thread::sleep(Duration::from_millis(200));
        number(&mut raw, "worker_turns") - before < 10
    });
    for client in 0..CLIENTS {
        for key in [0, PIPELINE / 2, PIPELINE - 1] {
            let value = format!("{}-{client}-{key:0100}", ROUNDS - 1);
            let reply = format!("${}\r\n{value}\r\n", value.len());
            raw.ask(format!("GET {client}-{key}\r\n"), reply);
        }
    }
    drop(raw);
    let bed = server.leave();
    let store = bed.open();
    assert_eq!(store.len(), (CLIENTS * PIPELINE) as u64);
    turns
}

/// Whether the tests run on an engine with roles for workers.
fn has_roles() -> bool {
    !std::env::var("EVERDRAM_TEST_ENGINE").is_ok_and(|name| name != "bullet")
}

#[test]
fn workers_glean_between_requests() {
    let turns = turns_of(3);
    assert_eq!(turns > 0, has_roles(), "{turns}");
}

#[test]
fn a_worker_that_is_alone_answers_and_gleans() {
    let turns = turns_of(1);
    assert_eq!(turns > 0, has_roles(), "{turns}");
}
