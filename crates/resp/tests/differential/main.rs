//! Sends the same commands to Debian's redis-server and to ours, and compares the raw replies byte for byte.
//!
//! Commands have two sources: handwritten tables (`strings.txt` and its neighbours), with every command,
//! option, error and edge case that we know, and a seeded generator. Both run in RESP2 and RESP3. Where two
//! correct servers may differ (order of KEYS, a random key, clocks), `compare` says how far.
//!
//! Ours runs over each engine on emulated persistent memory and on files; see `bed` for how to choose.
//! `EVERDRAM_TEST_SEED=n` repeats a random run. Without an installed redis-server the tests report that and
//! pass.

#[path = "../common/bed.rs"]
mod bed;

mod compare;
mod connection;
mod random;
mod servers;
mod table;

use compare::Mode;
use connection::Connection;
use everdram::{EngineKind, Medium, test_each_engine};
use servers::Servers;
use std::time::{Duration, Instant};

test_each_engine!(
    strings_answer_as_redis,
    keys_answer_as_redis,
    expiry_answers_as_redis,
    transactions_answer_as_redis,
    connections_answer_as_redis,
    random_commands_answer_as_redis,
    keys_expire_as_in_redis,
);

/// One client of both servers: it sends everything to both.
struct Pair {
    redis: Connection,
    ours: Connection,
    /// Modes of the commands queued since MULTI.
    queued: Vec<Mode>,
}

impl Pair {
    fn connect(servers: &Servers, protocol: u8) -> Pair {
        let connect = |address| {
            let mut connection = Connection::open(address);
            if protocol == 3 {
                connection.request(&[b"HELLO".to_vec(), b"3".to_vec()]);
            }
            connection
        };
        Pair {
            redis: connect(servers.redis),
            ours: connect(servers.ours),
            queued: Vec::new(),
        }
    }

    /// Sends `command` to both; an error text if the replies differ.
    fn check(&mut self, command: &[Vec<u8>]) -> Result<(), String> {
        let (theirs, ours) = (self.redis.request(command), self.ours.request(command));
        let name = command
            .first()
            .map(|name| name.to_ascii_lowercase())
            .unwrap_or_default();
        let mode = match name.as_slice() {
            b"exec" => Mode::Each(std::mem::take(&mut self.queued)),
            b"discard" => {
                self.queued.clear();
                Mode::Exact
            }
            _ => Mode::of(command),
        };
        if theirs.raw == b"+QUEUED\r\n" && ours.raw == theirs.raw {
            self.queued.push(mode);
            return Ok(());
        }
        if mode.accepts(&theirs, &ours) {
            return Ok(());
        }
        Err(format!(
            "replies differ\n  command: {}\n  redis:   {}\n  ours:    {}",
            show(command),
            theirs.raw.escape_ascii(),
            ours.raw.escape_ascii()
        ))
    }
}

fn show(command: &[Vec<u8>]) -> String {
    command
        .iter()
        .map(|argument| format!("\"{}\"", argument.escape_ascii()))
        .collect::<Vec<_>>()
        .join(" ")
}

/// The media of our store, one after another.
fn media() -> Vec<Medium> {
    bed::asked_medium().map_or_else(|| vec![Medium::Emulated, Medium::File], |one| vec![one])
}

fn check_table(engine: EngineKind, name: &str, text: &str) {
    for medium in media() {
        if let Some(servers) = Servers::start(engine, medium) {
            check_table_on(servers, name, text);
        }
    }
}

fn check_table_on(servers: Servers, name: &str, text: &str) {
    for protocol in [2, 3] {
        let mut pairs = [
            Pair::connect(&servers, protocol),
            Pair::connect(&servers, protocol),
        ];
        let mut differences = Vec::new();
        for line in table::parse(text) {
            if let Err(difference) = pairs[line.connection].check(&line.command) {
                differences.push(format!(
                    "RESP{protocol}, {name} line {}: {difference}",
                    line.number
                ));
            }
        }
        assert!(
            differences.is_empty(),
            "{} differences\n{}",
            differences.len(),
            differences.join("\n")
        );
        let flush = [b"FLUSHALL".to_vec()];
        pairs[0]
            .check(&flush)
            .unwrap_or_else(|difference| panic!("{difference}"));
    }
    servers.stop();
}

fn strings_answer_as_redis(engine: EngineKind) {
    check_table(engine, "strings.txt", include_str!("strings.txt"));
}

fn keys_answer_as_redis(engine: EngineKind) {
    check_table(engine, "keys.txt", include_str!("keys.txt"));
}

fn expiry_answers_as_redis(engine: EngineKind) {
    check_table(engine, "expiry.txt", include_str!("expiry.txt"));
}

fn transactions_answer_as_redis(engine: EngineKind) {
    check_table(engine, "transactions.txt", include_str!("transactions.txt"));
}

fn connections_answer_as_redis(engine: EngineKind) {
    check_table(engine, "connection.txt", include_str!("connection.txt"));
}

fn random_commands_answer_as_redis(engine: EngineKind) {
    let seed = random::seed();
    println!("seed {seed}: repeat with EVERDRAM_TEST_SEED={seed}");
    for medium in media() {
        // On files each write costs a sync.
        let commands = match medium {
            Medium::File => random::COMMANDS / 6,
            _ => random::COMMANDS,
        };
        if let Some(servers) = Servers::start(engine, medium) {
            check_random(servers, seed, commands);
        }
    }
}

fn check_random(servers: Servers, seed: u64, commands: usize) {
    for protocol in [2, 3] {
        let mut generator = random::Generator::new(seed ^ u64::from(protocol));
        let mut pairs = [
            Pair::connect(&servers, protocol),
            Pair::connect(&servers, protocol),
        ];
        for index in 0..commands {
            let (connection, command) = generator.next_command();
            if let Err(difference) = pairs[connection].check(&command) {
                panic!(
                    "seed {seed}, RESP{protocol}, command {index} on connection {connection}: {difference}"
                );
            }
        }
        // Both end with the same keys, outside any transaction.
        let mut last = Pair::connect(&servers, protocol);
        for command in [["KEYS", "*"], ["FLUSHALL", "SYNC"]] {
            let command = command.map(|word| word.as_bytes().to_vec());
            last.check(&command)
                .unwrap_or_else(|difference| panic!("seed {seed}: {difference}"));
        }
    }
    servers.stop();
}

fn keys_expire_as_in_redis(engine: EngineKind) {
    let Some(servers) = Servers::start(engine, bed::asked_medium().unwrap_or(Medium::Emulated))
    else {
        return;
    };
    let mut pair = Pair::connect(&servers, 2);
    let words = |line: &str| {
        line.split_whitespace()
            .map(|word| word.as_bytes().to_vec())
            .collect::<Vec<_>>()
    };
    for set in ["SET k v PX 40", "PSETEX k 40 v", "SET k v PXAT 1"] {
        pair.check(&words(set))
            .unwrap_or_else(|difference| panic!("{difference}"));
        let deadline = Instant::now() + Duration::from_secs(10);
        for connection in [&mut pair.redis, &mut pair.ours] {
            while connection.request(&words("GET k")).raw != b"$-1\r\n" {
                assert!(Instant::now() < deadline, "{set}: the key is still there");
                std::thread::yield_now();
            }
        }
        for after in [
            "EXISTS k", "TTL k", "TYPE k", "INCR k", "TTL k", "DEL k", "KEYS *",
        ] {
            pair.check(&words(after))
                .unwrap_or_else(|difference| panic!("after {set}: {difference}"));
        }
    }
    servers.stop();
}
