//! Passwords, settings, reports, and the tools that use them.

use crate::support::{eventually, start, with_password};
use everdram::{EngineKind, test_each_engine};
use everdram_resp::Settings;
use std::io::Read;
use std::process::Command;

test_each_engine!(
    authentication,
    clients_can_be_listed_and_killed,
    the_slow_log_keeps_what_was_slow_and_no_secrets,
    config_changes_all_or_nothing_and_no_paths,
    info_says_what_an_acknowledgement_means,
    a_redis_library_can_use_it,
    redis_cli_can_use_it,
);

fn authentication(engine: EngineKind) {
    let server = start(engine, with_password());
    let mut client = server.connect();
    client.ask("GET k\r\n", "-NOAUTH Authentication required.\r\n");
    client.ask(
        "nothing\r\n",
        "-ERR unknown command 'nothing', with args beginning with: \r\n",
    );
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    for attempt in [
        "AUTH wrong\r\n",
        "AUTH secre\r\n",
        "AUTH secretsecret\r\n",
        "AUTH \"\"\r\n",
        "AUTH other secret\r\n",
    ] {
        client.ask(attempt, wrong);
    }
    client.ask("GET k\r\n", "-NOAUTH Authentication required.\r\n");
    client.send("HELLO 3\r\n");
    client.expect("-NOAUTH HELLO must be called with the client already authenticated");
    let mut client = server.connect();
    client.ask("AUTH secret\r\nGET k\r\n", "+OK\r\n$-1\r\n");
    client.ask(
        "RESET\r\nGET k\r\n",
        "+RESET\r\n-NOAUTH Authentication required.\r\n",
    );
    let mut client = server.connect();
    client.send("HELLO 3 AUTH default secret\r\n");
    client.expect("%7\r\n");
}

fn clients_can_be_listed_and_killed(engine: EngineKind) {
    let server = start(
        engine,
        Settings {
            threads: 2,
            ..Settings::default()
        },
    );
    let (mut one, mut two, mut three) = (server.connect(), server.connect(), server.connect());
    one.ask("CLIENT ID\r\nCLIENT SETNAME one\r\n", ":1\r\n+OK\r\n");
    two.ask("CLIENT ID\r\n", ":2\r\n");
    three.ask("CLIENT ID\r\n", ":3\r\n");
    one.send("CLIENT LIST\r\n");
    let list = one.bulk();
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(
        list.contains(" name=one ") && list.contains(" cmd=client|id "),
        "{list}"
    );
    one.ask("CLIENT KILL ID 2\r\n", ":1\r\n");
    two.expect_closed();
    let address = three.0.local_addr().expect("an address").to_string();
    one.ask(format!("CLIENT KILL {address}\r\n"), "+OK\r\n");
    three.expect_closed();
    eventually("both are gone", || {
        one.send("CLIENT LIST\r\n");
        one.bulk().lines().count() == 1
    });
    one.ask("CLIENT KILL 1.2.3.4:5\r\n", "-ERR No such client\r\n");
    one.ask("CLIENT KILL ID 1 SKIPME no\r\n", ":1\r\n");
    one.expect_closed();
}

fn the_slow_log_keeps_what_was_slow_and_no_secrets(engine: EngineKind) {
    let server = start(
        engine,
        Settings {
            slowlog_slower_than_us: 0,
            slowlog_max_len: 2,
            ..Settings::default()
        },
    );
    let mut client = server.connect();
    client.ask(
        "CONFIG SET requirepass hidden\r\nAUTH hidden\r\n",
        "+OK\r\n+OK\r\n",
    );
    client.ask("SLOWLOG LEN\r\n", ":2\r\n");
    client.ask(
        "SLOWLOG RESET\r\nECHO x\r\nAUTH hidden\r\n",
        "+OK\r\n$1\r\nx\r\n+OK\r\n",
    );
    client.send("SLOWLOG GET 1\r\nPING\r\n");
    let mut log = String::new();
    while !log.ends_with("+PONG\r\n") {
        let mut byte = [0];
        client.0.read_exact(&mut byte).expect("a reply");
        log.push(char::from(byte[0]));
    }
    assert!(
        log.contains("AUTH") && log.contains("(redacted)") && !log.contains("hidden"),
        "{log}"
    );
}

fn config_changes_all_or_nothing_and_no_paths(engine: EngineKind) {
    let server = start(engine, Settings::default());
    let mut client = server.connect();
    let failed = |name: &str, reason: &str| {
        format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}\r\n")
    };
    client.ask(
        "CONFIG SET dir /\r\n",
        failed("dir", "can't set protected config"),
    );
    client.ask(
        "CONFIG SET unixsocket /a\r\n",
        failed("unixsocket", "can't set immutable config"),
    );
    client.ask(
        "CONFIG SET appendonly no\r\n",
        failed("appendonly", "can't set immutable config"),
    );
    client.ask("CONFIG SET appendonly yes save ''\r\n", "+OK\r\n");
    client.ask(
        "CONFIG SET timeout 5 maxclients 0\r\n",
        failed(
            "maxclients",
            "argument must be between 1 and 4294967295 inclusive",
        ),
    );
    client.ask(
        "CONFIG GET timeout\r\n",
        "*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n",
    );
    client.ask("CONFIG SET timeout 5 proto-max-bulk-len 1mb\r\n", "+OK\r\n");
    client.ask(
        "CONFIG GET timeout\r\n",
        "*2\r\n$7\r\ntimeout\r\n$1\r\n5\r\n",
    );
    client.send("*2\r\n$4\r\nECHO\r\n$1048577\r\n");
    assert_eq!(
        client.rest(),
        b"-ERR Protocol error: invalid bulk length\r\n"
    );
}

fn info_says_what_an_acknowledgement_means(engine: EngineKind) {
    let server = start(engine, Settings::default());
    let mut client = server.connect();
    client.ask("SET k v\r\n", "+OK\r\n");
    client.send("INFO\r\n");
    let info = client.bulk();
    let report = server.store.report();
    for line in [
        format!("medium:{}\r\n", report.medium),
        format!("durability:{}\r\n", report.durability),
        format!("acknowledgement:{}\r\n", report.acknowledgement),
        format!("tcp_port:{}\r\n", server.address.port()),
        "db0:keys=1,expires=0,avg_ttl=0\r\n".into(),
        "write_commands_processed:1\r\n".into(),
    ] {
        assert!(info.contains(&line), "no {line:?} in {info}");
    }
}

fn a_redis_library_can_use_it(engine: EngineKind) {
    let server = start(engine, with_password());
    let url = format!("redis://:secret@{}/0?protocol=resp3", server.address);
    let client = redis::Client::open(url).expect("a URL");
    let mut connection = client.get_connection().expect("a connection");
    let () = redis::cmd("SET")
        .arg("k")
        .arg(b"\0\r\n")
        .query(&mut connection)
        .expect("SET");
    let value: Vec<u8> = redis::cmd("GET")
        .arg("k")
        .query(&mut connection)
        .expect("GET");
    assert_eq!(value, b"\0\r\n");
    let (a, b): (i64, Option<String>) = redis::pipe()
        .atomic()
        .cmd("INCR")
        .arg("n")
        .cmd("GET")
        .arg("none")
        .query(&mut connection)
        .expect("MULTI");
    assert_eq!((a, b), (1, None));
}

fn redis_cli_can_use_it(engine: EngineKind) {
    let server = start(engine, Settings::default());
    let port = server.address.port().to_string();
    let run = |arguments: &[&str]| {
        Command::new("redis-cli")
            .args(["-p", &port])
            .args(arguments)
            .output()
    };
    let Ok(output) = run(&["SET", "k", "v"]) else {
        println!("skipped: redis-cli is not installed");
        return;
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "OK\n");
    let output = run(&["-3", "--json", "COMMAND", "DOCS", "get"]).expect("redis-cli runs");
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"group\":\"string\""));
}
