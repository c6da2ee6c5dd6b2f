//! Replies that wait for the medium: in order, many of them, from several connections at once.

use crate::support::{Raw, Running, start};
use everdram::{EngineKind, test_each_engine};
use everdram_resp::Settings;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;

test_each_engine!(
    pipelines_of_many_connections_count_together,
    replies_of_all_kinds_keep_their_order,
    what_a_connection_has_just_written_counts,
    everything_acknowledged_is_there_after_the_server_has_gone,
);

const CONNECTIONS: usize = 8;
const REQUESTS: usize = 2_000;

/// The next line, without its line break.
fn line(reader: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a reply");
    line.trim_end().to_owned()
}

/// Sends everything at once from its own thread, so that neither side waits for the other.
fn pipeline(server: &Running, requests: String) -> BufReader<TcpStream> {
    let client = server.connect();
    let mut writer = Raw(client.0.try_clone().expect("a second handle"));
    std::thread::spawn(move || writer.send(requests));
    BufReader::new(client.0)
}

fn what_a_connection_has_just_written_counts(engine: EngineKind) {
    let server = start(engine, Settings::default());
    let requests = "SET a 1\r\nDBSIZE\r\nSET b 1\r\nSET b 2\r\nDBSIZE\r\nDEL a\r\nDBSIZE\r\n";
    let mut reader = pipeline(&server, requests.into());
    for expected in ["+OK", ":1", "+OK", "+OK", ":2", ":1", ":1"] {
        assert_eq!(line(&mut reader), expected);
    }
}

fn pipelines_of_many_connections_count_together(engine: EngineKind) {
    let server = start(
        engine,
        Settings {
            threads: 2,
            ..Settings::default()
        },
    );
    let mut readers: Vec<_> = (0..CONNECTIONS)
        .map(|_| pipeline(&server, "INCR n\r\n".repeat(REQUESTS)))
        .collect();
    let mut seen = BTreeSet::new();
    for reader in &mut readers {
        let mut before = 0;
        for _ in 0..REQUESTS {
            let number: u64 = line(reader)
                .strip_prefix(':')
                .and_then(|digits| digits.parse().ok())
                .expect("an integer");
            assert!(number > before, "{number} behind {before}");
            assert!(seen.insert(number), "{number} was given twice");
            before = number;
        }
    }
    assert_eq!(seen.last(), Some(&((CONNECTIONS * REQUESTS) as u64)));
}

fn replies_of_all_kinds_keep_their_order(engine: EngineKind) {
    let server = start(
        engine,
        Settings {
            threads: 2,
            ..Settings::default()
        },
    );
    // Replies that need not wait are between replies that must.
    let requests = |name: usize| {
        (0..REQUESTS)
            .map(|n| format!("SET k{name} {n}\r\nECHO {n}\r\nGET k{name}\r\nGET none\r\n"))
            .collect::<String>()
    };
    let mut readers: Vec<_> = (0..CONNECTIONS)
        .map(|name| pipeline(&server, requests(name)))
        .collect();
    for n in 0..REQUESTS {
        let (length, n) = (n.to_string().len(), n.to_string());
        let bulk = format!("${length}");
        let expected = ["+OK", &bulk, &n, &bulk, &n, "$-1"];
        for reader in &mut readers {
            let found: Vec<String> = expected.iter().map(|_| line(reader)).collect();
            assert_eq!(found, expected);
        }
    }
}

fn everything_acknowledged_is_there_after_the_server_has_gone(engine: EngineKind) {
    let server = start(engine, Settings::default());
    let mut client = server.connect();
    for n in 0..50 {
        client.ask(format!("SET k{n} {n}\r\n"), "+OK\r\n");
    }
    let bed = server.leave();
    let store = bed.open();
    let mut session = store.session().expect("a session");
    for n in 0..50 {
        let value = session.get(format!("k{n}").as_bytes()).expect("a read");
        assert_eq!(value, Some(n.to_string().into_bytes()));
    }
}
