//! Limits on what a client can make the server allocate, keep or wait for.

use crate::support::{Running, eventually, request, start, with_password};
use everdram::{EngineKind, test_each_engine};
use everdram_resp::{Limits, Settings};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

test_each_engine!(
    strangers_may_send_little,
    strangers_may_take_little,
    strangers_must_say_who_they_are_in_time,
    idle_connections_are_closed,
    a_client_that_never_reads_is_closed,
    a_reply_larger_than_the_output_limit_arrives,
    soft_output_limit_closes_after_its_time,
    a_request_beyond_the_query_limit_closes,
    a_transaction_cannot_grow_without_end,
    too_many_clients,
    replies_of_many_parts_are_bounded,
    a_transaction_whose_answer_is_too_large_changes_nothing,
    all_buffers_together_are_bounded,
    guessing_passwords_takes_long,
);

fn limited(engine: EngineKind, limits: Limits) -> Running {
    let settings = Settings {
        limits,
        ..Settings::default()
    };
    start(engine, settings)
}

fn strangers_may_send_little(engine: EngineKind) {
    let server = start(engine, with_password());
    let ten = "*10\r\n$4\r\nECHO\r\n".to_owned() + &"$1\r\na\r\n".repeat(9);
    server
        .connect()
        .ask(ten, "-ERR wrong number of arguments for 'echo' command\r\n");
    let cases = [
        ("*11\r\n$4\r\nAUTH\r\n", "unauthenticated multibulk length"),
        (
            "a b c d e f g h i j k\r\n",
            "unauthenticated multibulk length",
        ),
        (
            "*2\r\n$4\r\nAUTH\r\n$16385\r\n",
            "unauthenticated bulk length",
        ),
    ];
    for (bytes, reason) in cases {
        let mut client = server.connect();
        client.send(bytes);
        assert_eq!(
            String::from_utf8_lossy(&client.rest()),
            format!("-ERR Protocol error: {reason}\r\n")
        );
    }
}

fn strangers_may_take_little(engine: EngineKind) {
    // Replies to an unauthenticated client that does not read must not add up.
    let server = start(engine, with_password());
    let mut client = server.connect();
    client.send("GET k\r\n".repeat(100));
    let answers = client.rest();
    assert!(answers.len() < 2048, "{} bytes", answers.len());
}

fn strangers_must_say_who_they_are_in_time(engine: EngineKind) {
    let server = start(
        engine,
        Settings {
            preauth_timeout: Duration::from_secs(1),
            ..with_password()
        },
    );
    let mut known = server.connect();
    known.ask("AUTH secret\r\n", "+OK\r\n");
    let mut stranger = server.connect();
    stranger.send("PI");
    stranger.expect_closed();
    known.ask("PING\r\n", "+PONG\r\n");
}

fn idle_connections_are_closed(engine: EngineKind) {
    let server = start(
        engine,
        Settings {
            timeout: Duration::from_secs(1),
            ..Settings::default()
        },
    );
    let mut client = server.connect();
    client.ask("PING\r\n", "+PONG\r\n");
    client.expect_closed();
}

fn a_client_that_never_reads_is_closed(engine: EngineKind) {
    let server = limited(
        engine,
        Limits {
            output_hard_bytes: 1 << 20,
            ..Limits::default()
        },
    );
    server
        .connect()
        .ask(request(&["SET", "k", &"v".repeat(100_000)]), "+OK\r\n");
    let mut greedy = server.connect();
    greedy.0.set_write_timeout(None).expect("no timeout");
    // The server cannot send once the socket buffers are full; soon after, the limit is exceeded.
    while greedy.0.write_all(b"GET k\r\n").is_ok() {}
    let mut other = server.connect();
    other.send("INFO stats\r\n");
    let info = other.bulk();
    assert!(
        info.contains("client_output_buffer_limit_disconnections:1\r\n"),
        "{info}"
    );
}

/// A value larger than the limit could be stored but never read: its reply counted as unread output.
fn a_reply_larger_than_the_output_limit_arrives(engine: EngineKind) {
    let server = limited(
        engine,
        Limits {
            output_hard_bytes: 1 << 20,
            ..Limits::default()
        },
    );
    let mut client = server.connect();
    let value = "v".repeat(5 << 20);
    client.ask(request(&["SET", "k", &value]), "+OK\r\n");
    client.send("GET k\r\n");
    assert!(client.bulk() == value, "the value came back changed");
}

fn soft_output_limit_closes_after_its_time(engine: EngineKind) {
    let server = limited(
        engine,
        Limits {
            output_soft_bytes: 1 << 20,
            output_soft_time: Duration::from_secs(1),
            ..Limits::default()
        },
    );
    let mut client = server.connect();
    client.ask(request(&["SET", "k", &"v".repeat(8 << 20)]), "+OK\r\n");
    // Far more than the socket buffers hold.
    client.send("GET k\r\n".repeat(8));
    let mut watcher = server.connect();
    eventually("the connection is closed", || {
        watcher.send("INFO stats\r\n");
        watcher
            .bulk()
            .contains("client_output_buffer_limit_disconnections:1\r\n")
    });
}

fn a_request_beyond_the_query_limit_closes(engine: EngineKind) {
    let server = limited(
        engine,
        Limits {
            query_buffer_bytes: 1 << 20,
            ..Limits::default()
        },
    );
    let mut client = server.connect();
    // One large argument may exceed the limit, several may not.
    let large = "v".repeat(3 << 20);
    client.ask(request(&["SET", "k", &large]), "+OK\r\n");
    let several = request(&["MSET", "a", &large, "b", &large, "c", &large]);
    // The server closes in the middle of it.
    let _ = client.0.write_all(&several);
    assert!(client.rest().is_empty());
    server.connect().ask("EXISTS a b c\r\n", ":0\r\n");
}

fn a_transaction_cannot_grow_without_end(engine: EngineKind) {
    let server = limited(
        engine,
        Limits {
            query_buffer_bytes: 1 << 20,
            ..Limits::default()
        },
    );
    let mut client = server.connect();
    let set = request(&["SET", "k", &"v".repeat(600_000)]);
    client.ask("MULTI\r\n", "+OK\r\n");
    client.ask(&set, "+QUEUED\r\n");
    client.ask(
        &set,
        "-ERR the transaction is too large; raise client-query-buffer-limit or split it\r\n",
    );
    client.ask(
        "EXEC\r\n",
        "-EXECABORT Transaction discarded because of previous errors.\r\n",
    );
    client.ask("EXISTS k\r\n", ":0\r\n");
}

fn too_many_clients(engine: EngineKind) {
    let server = start(
        engine,
        Settings {
            maxclients: 2,
            ..Settings::default()
        },
    );
    let mut first = server.connect();
    let mut second = server.connect();
    first.ask("PING\r\n", "+PONG\r\n");
    second.ask("PING\r\n", "+PONG\r\n");
    let refused = server.connect().rest();
    assert_eq!(
        String::from_utf8_lossy(&refused),
        "-ERR max number of clients reached\r\n"
    );
    drop(second);
    // The place is free once the server has noticed that the other client left.
    eventually("a place is free", || {
        let mut client = server.connect();
        client.send("PING\r\n");
        let mut reply = [0; 7];
        client.0.read_exact(&mut reply).is_ok() && reply == *b"+PONG\r\n"
    });
}

const TOO_LARGE: &str = "-ERR the reply would exceed the output limit (client-output-buffer-limit \
                         normal): ask for less at once\r\n";

fn replies_of_many_parts_are_bounded(engine: EngineKind) {
    let server = limited(
        engine,
        Limits {
            output_hard_bytes: 1 << 20,
            ..Limits::default()
        },
    );
    let mut client = server.connect();
    let long_key = "k".repeat(40_000);
    for number in 0..30 {
        client.ask(
            request(&["SET", &format!("{long_key}{number}"), ""]),
            "+OK\r\n",
        );
    }
    client.ask("KEYS *\r\n", TOO_LARGE);
    client.ask("SCAN 0 COUNT 1000\r\n", TOO_LARGE);
    client.ask(
        "SCAN 0 COUNT 1000 MATCH none\r\n",
        "*2\r\n$1\r\n0\r\n*0\r\n",
    );
    let value = "v".repeat(300_000);
    client.ask(request(&["SET", "v", &value]), "+OK\r\n");
    client.ask("MGET v v v v\r\n", TOO_LARGE);
    client.ask(
        "DEL v none\r\nMGET v none\r\n",
        ":1\r\n*2\r\n$-1\r\n$-1\r\n",
    );
    client.ask(
        format!(
            "*1000\r\n$7\r\nCOMMAND\r\n$4\r\nDOCS\r\n{}",
            "$6\r\nclient\r\n".repeat(998)
        ),
        TOO_LARGE,
    );
}

fn a_transaction_whose_answer_is_too_large_changes_nothing(engine: EngineKind) {
    let server = limited(
        engine,
        Limits {
            output_hard_bytes: 1 << 20,
            ..Limits::default()
        },
    );
    let mut client = server.connect();
    let value = "v".repeat(300_000);
    client.ask(request(&["SET", "v", &value]), "+OK\r\n");
    client.ask("MULTI\r\nSET n 1\r\n", "+OK\r\n+QUEUED\r\n");
    client.ask("GET v\r\n".repeat(4), "+QUEUED\r\n".repeat(4));
    client.ask("EXEC\r\n", TOO_LARGE);
    client.ask("EXISTS n\r\nPING\r\n", ":0\r\n+PONG\r\n");
    client.ask(
        "MULTI\r\nSET n 1\r\nEXEC\r\n",
        "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n",
    );
}

fn all_buffers_together_are_bounded(engine: EngineKind) {
    let server = limited(
        engine,
        Limits {
            buffers_bytes: 4 << 20,
            ..Limits::default()
        },
    );
    let mut modest = server.connect();
    modest.ask("PING\r\n", "+PONG\r\n");
    let mut greedy = server.connect();
    // A request that never ends, and stays below the limit of one connection.
    greedy.send("*2\r\n$4\r\nECHO\r\n$8000000\r\n");
    while greedy.0.write_all(&[b'x'; 4096]).is_ok() {}
    modest.send("INFO stats\r\n");
    let info = modest.bulk();
    assert!(info.contains("evicted_clients:1\r\n"), "{info}");
}

fn guessing_passwords_takes_long(engine: EngineKind) {
    // One thread, so that a client which blocks it blocks all others.
    let server = start(
        engine,
        Settings {
            threads: 1,
            ..with_password()
        },
    );
    let mut other = server.connect();
    other.ask("AUTH secret\r\n", "+OK\r\n");
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    let later = wrong.repeat(2) + "+OK\r\n+PONG\r\n";
    let mut denied = 0;
    // No other client waits meanwhile. If the machine pauses that long, this shows nothing, so it is
    // repeated.
    eventually("others are served while one guesses", || {
        let mut client = server.connect();
        let begun = Instant::now();
        client.send("AUTH a\r\n".repeat(3) + "AUTH secret\r\nPING\r\n");
        client.expect(wrong);
        for _ in 0..4 {
            other.ask("PING\r\n", "+PONG\r\n");
        }
        let before = client.arrived(later.len());
        client.expect(&later);
        assert!(begun.elapsed() >= Duration::from_millis(300));
        denied += 3;
        before < later.len()
    });
    other.send("INFO stats\r\n");
    let info = other.bulk();
    let count = format!("acl_access_denied_auth:{denied}\r\n");
    assert!(info.contains(&count), "{info}");
}
