//! A failing disk: replies that waited for it are refused, no later write is acknowledged, and reads go on.

use crate::bed::Bed;
use crate::keys::independent_keys;
use crate::support::{Raw, Running, request, start_on};
use everdram::{EngineKind, Medium, test_each_engine};
use everdram_pm::faults::Faults;
use everdram_resp::{Settings, StopError};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::sync::Arc;

test_each_engine!(
    no_acknowledgement_comes_before_its_sync,
    a_failed_sync_refuses_what_waited_and_reads_go_on,
    some_acknowledgements_and_then_none,
    a_full_disk_refuses_writes_and_nothing_else,
);

/// A server whose disk the test controls.
fn start_with_faults(engine: EngineKind, threads: usize) -> (Running, Arc<Faults>) {
    let bed = Bed::new(engine, Medium::File);
    let faults = Faults::install(&bed.pool());
    let settings = Settings {
        threads,
        ..Settings::default()
    };
    (start_on(bed, settings), faults)
}

/// Stops a server whose store has failed.
fn stop_failed(mut server: Running) {
    server.handle.shutdown();
    if let Some(server) = server.server.take() {
        let stopped = server.wait();
        assert!(matches!(stopped, Err(StopError::Store(_))), "{stopped:?}");
    }
}

fn lines(client: &Raw<TcpStream>, count: usize) -> Vec<String> {
    let mut reader = BufReader::new(client.0.try_clone().expect("a second handle"));
    let mut next = || {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a reply");
        line
    };
    (0..count).map(|_| next()).collect()
}

fn no_acknowledgement_comes_before_its_sync(engine: EngineKind) {
    let (server, faults) = start_with_faults(engine, 1);
    let mut client = server.connect();
    for n in 0..20 {
        let before = faults.calls();
        client.ask(format!("SET k {n}\r\n"), "+OK\r\n");
        // The log was written and synced.
        assert!(faults.calls() >= before + 2, "{before}");
    }
}

fn a_failed_sync_refuses_what_waited_and_reads_go_on(engine: EngineKind) {
    let (server, faults) = start_with_faults(engine, 2);
    let (mut writer, mut other) = (server.connect(), server.connect());
    // A read of a key that shares its lock with a lost write is refused, too.
    let [kept, lost, counter] =
        independent_keys(&server.store).map(|key| String::from_utf8(key).expect("a name"));
    writer.ask(format!("SET {kept} 1\r\n"), "+OK\r\n");
    other.ask("PING\r\n", "+PONG\r\n");
    faults.fail_sync_after(0);
    const WRITES: usize = 1_000;
    writer.send(format!("SET {lost} 1\r\n").repeat(WRITES));
    other.send(format!("INCR {counter}\r\n").repeat(WRITES));
    for client in [&writer, &other] {
        for reply in lines(client, WRITES) {
            assert!(reply.starts_with("-MISCONF "), "{reply}");
        }
    }
    for client in [&mut writer, &mut other] {
        client.send(format!("GET {kept}\r\nPING\r\n"));
        assert_eq!(lines(client, 3), ["$1\r\n", "1\r\n", "+PONG\r\n"]);
        client.send(format!("SET {kept} 2\r\n"));
        let reply = lines(client, 1).concat();
        assert!(reply.starts_with("-MISCONF "), "{reply}");
        client.ask(format!("GET {kept}\r\n"), "$1\r\n1\r\n");
        // No client may see it: a restart would lose it.
        client.send(format!("GET {lost}\r\n"));
        let reply = lines(client, 1).concat();
        assert!(
            reply.starts_with("-MISCONF ") || reply == "$-1\r\n",
            "{reply}"
        );
    }
    stop_failed(server);
}

fn some_acknowledgements_and_then_none(engine: EngineKind) {
    let (server, faults) = start_with_faults(engine, 2);
    let mut client = server.connect();
    client.ask("PING\r\n", "+PONG\r\n");
    faults.fail_sync_after(5);
    const WRITES: usize = 100;
    let mut replies = Vec::new();
    while replies.iter().all(|reply| reply == "+OK\r\n") {
        client.send("SET k v\r\n".repeat(WRITES));
        replies.extend(lines(&client, WRITES));
    }
    let refused = replies.iter().skip_while(|reply| *reply == "+OK\r\n");
    assert!(refused.clone().all(|reply| reply.starts_with("-MISCONF ")));
    assert!(refused.count() < replies.len(), "nothing was acknowledged");
    stop_failed(server);
}

fn a_full_disk_refuses_writes_and_nothing_else(engine: EngineKind) {
    let (server, faults) = start_with_faults(engine, 1);
    let mut client = server.connect();
    client.ask("SET kept 1\r\n", "+OK\r\n");
    faults.room(Some(0));
    let value = "v".repeat(1 << 20);
    let refusal = loop {
        client.send(request(&["SET", &format!("big{}", faults.calls()), &value]));
        let reply = lines(&client, 1).concat();
        if reply != "+OK\r\n" {
            break reply;
        }
    };
    assert_eq!(
        refusal,
        "-OOM command not allowed when used memory > 'maxmemory'.\r\n"
    );
    client.ask("GET kept\r\n", "$1\r\n1\r\n");
    faults.room(None);
    client.ask(request(&["SET", "big", &value]), "+OK\r\n");
}
