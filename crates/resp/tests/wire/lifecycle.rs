//! Starting, stopping, and refusing to start.

use crate::support::{Raw, TIMEOUT, eventually, request, start};
use everdram::{EngineKind, test_each_engine};
use everdram_resp::{Server, Settings, StartError};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

test_each_engine!(
    unix_socket,
    a_server_that_cannot_start_says_why,
    shutdown_answers_what_has_arrived,
    shutdown_command_ends_the_server,
    a_client_that_does_not_take_its_replies_cannot_hold_up_a_shutdown,
);

fn unix_socket(engine: EngineKind) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("everdram.sock");
    let settings = Settings {
        bind: Vec::new(),
        unix_socket: Some(path.clone()),
        ..Settings::default()
    };
    let server = start(engine, settings.clone());
    let mode = std::fs::metadata(&path)
        .expect("the socket")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    let mut client = Raw(UnixStream::connect(&path).expect("the server accepts"));
    client.ask("SET k v\r\nGET k\r\n", "+OK\r\n$1\r\nv\r\n");
    let second = Server::start(server.store.clone(), settings);
    assert!(matches!(second, Err(StartError::UnixSocketInUse { .. })));
    drop(server);
    assert!(!path.exists(), "the socket's file goes with the server");
    client.expect_closed();
}

fn a_server_that_cannot_start_says_why(engine: EngineKind) {
    let server = start(engine, Settings::default());
    let refuse = |settings| {
        Server::start(server.store.clone(), settings)
            .map(drop)
            .expect_err("a refusal")
    };
    let open = Settings {
        bind: vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
        port: 0,
        ..Settings::default()
    };
    assert!(refuse(open).to_string().contains("Set a password"));
    let taken = Settings {
        port: server.address.port(),
        ..Settings::default()
    };
    assert!(matches!(refuse(taken), StartError::Bind { .. }));
    assert!(matches!(
        refuse(Settings {
            bind: Vec::new(),
            ..Settings::default()
        }),
        StartError::NowhereToListen
    ));
    let file = tempfile::NamedTempFile::new().expect("a file");
    let settings = Settings {
        port: 0,
        unix_socket: Some(file.path().to_owned()),
        ..Settings::default()
    };
    assert!(matches!(refuse(settings), StartError::NotASocket { .. }));
    assert!(file.path().exists());
}

fn shutdown_answers_what_has_arrived(engine: EngineKind) {
    let server = start(
        engine,
        Settings {
            threads: 2,
            ..Settings::default()
        },
    );
    let mut clients: Vec<_> = (0..4).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.ask("PING\r\n", "+PONG\r\n");
    }
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("INCR n{number}\r\n").repeat(3000));
    }
    eventually("everything has arrived", || {
        clients.iter().all(|client| client.unacknowledged() == 0)
    });
    server.handle.shutdown();
    let store = server.store.clone();
    server.wait();
    for client in &mut clients {
        let replies = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(replies.ends_with(":3000\r\n"), "{}", replies.len());
    }
    assert_eq!(store.len(), 4);
}

fn shutdown_command_ends_the_server(engine: EngineKind) {
    let server = start(engine, Settings::default());
    let mut client = server.connect();
    client.ask("SHUTDOWN foo\r\n", "-ERR syntax error\r\n");
    client.ask("SHUTDOWN ABORT\r\n", "-ERR No shutdown in progress.\r\n");
    client.ask(
        "MULTI\r\nSHUTDOWN\r\nDISCARD\r\n",
        "+OK\r\n-ERR Command not allowed inside a transaction\r\n+OK\r\n",
    );
    client.send("SET k v\r\nSHUTDOWN NOSAVE\r\nPING\r\n");
    assert_eq!(String::from_utf8_lossy(&client.rest()), "+OK\r\n");
    server.wait();
}

fn a_client_that_does_not_take_its_replies_cannot_hold_up_a_shutdown(engine: EngineKind) {
    let server = start(
        engine,
        Settings {
            drain_timeout: Duration::from_millis(300),
            ..Settings::default()
        },
    );
    let mut client = server.connect();
    client.ask(request(&["SET", "k", &"v".repeat(8 << 20)]), "+OK\r\n");
    client.send("GET k\r\n".repeat(8));
    server.handle.shutdown();
    let start = std::time::Instant::now();
    server.wait();
    assert!(start.elapsed() < TIMEOUT / 2, "{:?}", start.elapsed());
}
