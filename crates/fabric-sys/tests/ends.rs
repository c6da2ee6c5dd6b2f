//! Ports of this machine: what is told when connections end, and what is left behind.
//!
//! Without the library every test says so and passes.

mod support;

use everdram_fabric_sys::{Completion, Conn, Error, Event, Port, Sizes};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use support::{PATIENCE, SIZES, Side, exposed, listen, loaded, pair, provider, ticks};

#[test]
fn a_peer_that_goes_away_is_told_once() {
    let serve = |side: &mut Side, conn: Conn| {
        assert_eq!(side.message(), b"last words");
        side.closed(conn);
        assert!(side.within(Duration::from_millis(50)).is_none());
        assert!(matches!(
            side.port.send(conn, &[b"x"]),
            Err(Error::Closed(_))
        ));
        side.port.close(conn);
    };
    pair(SIZES, 4, serve, |side, conn| {
        side.port.send(conn, &[b"last words"]).unwrap();
        thread::sleep(Duration::from_millis(20));
        side.port
            .wait(Some(Duration::ZERO), &mut Vec::new())
            .unwrap();
        side.port.close(conn);
        assert!(side.within(Duration::from_millis(50)).is_none());
    });
}

#[test]
fn a_peer_that_goes_away_is_told_without_receive_buffers_too() {
    let serve = |side: &mut Side, conn: Conn| {
        let start = Instant::now();
        side.closed(conn);
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
    };
    pair(SIZES, 0, serve, |side, conn| side.port.close(conn));
}

#[test]
fn messages_stay_readable_after_their_connection() {
    let serve = |side: &mut Side, conn: Conn| {
        let Event::Message(_, buffer) = side.next() else {
            panic!("no message")
        };
        side.port.close(conn);
        side.port
            .wait(Some(Duration::from_millis(5)), &mut Vec::new())
            .unwrap();
        assert_eq!(side.port.message(&buffer), b"kept");
        side.port.give_back(buffer, true).unwrap();
    };
    pair(SIZES, 4, serve, |side, conn| {
        side.port.send(conn, &[b"kept"]).unwrap();
        side.closed(conn);
    });
}

#[test]
fn writes_under_way_end_with_their_connection() {
    let (give, take) = channel::<(u64, u64)>();
    let serve = move |side: &mut Side, conn: Conn| {
        let area = side.port.expose(conn, 1 << 20).unwrap();
        give.send((area.address, area.key)).unwrap();
        assert_eq!(side.message(), b"ready");
        side.port.close(conn);
    };
    pair(SIZES, 1, serve, |side, conn| {
        let (address, key) = take.recv_timeout(PATIENCE).unwrap();
        let bytes = vec![1; 1 << 20];
        side.port.send(conn, &[b"ready"]).unwrap();
        let mut open = Vec::new();
        for token in 0..64 {
            if side
                .port
                .write(conn, &[&bytes], address, key, token, Completion::Sent)
                .is_ok()
            {
                open.push(token);
            }
        }
        let mut told = Vec::new();
        loop {
            match side.next() {
                Event::Written(_, token, _) => told.push(token),
                Event::Closed(closed) => break assert_eq!(closed, conn),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(told, open);
        assert!(side.within(Duration::from_millis(20)).is_none());
    });
}

#[test]
fn where_nobody_listens_the_connection_closes() {
    let Some(library) = loaded() else { return };
    let address = listen(library).local_address();
    let mut side = Side::new(Port::connecting(library, &provider(), address, SIZES).unwrap());
    match side.port.connect(address, b"", 4) {
        Ok(conn) => side.closed(conn),
        Err(error) => assert!(matches!(error, Error::Call { .. }), "{error}"),
    }
    assert!(side.within(Duration::from_millis(20)).is_none());
}

#[test]
fn a_refused_request_closes_the_connection() {
    let Some(library) = loaded() else { return };
    let mut listener = listen(library);
    let address = listener.local_address();
    let server = thread::spawn(move || {
        let incoming = listener.wait(PATIENCE).unwrap().expect("a request");
        // Also from another thread, after the listener.
        drop(listener);
        thread::spawn(move || drop(incoming)).join().unwrap();
    });
    let mut side = Side::new(Port::connecting(library, &provider(), address, SIZES).unwrap());
    let conn = side.port.connect(address, b"", 4).unwrap();
    side.port.send(conn, &[b"never"]).unwrap();
    side.closed(conn);
    assert!(side.within(Duration::from_millis(20)).is_none());
    server.join().unwrap();
}

#[test]
fn a_waker_wakes_a_wait_and_outlives_its_port() {
    let Some(library) = loaded() else { return };
    let mut port = Port::of(&listen(library), SIZES).unwrap();
    let waker = port.waker();
    let mut events = Vec::new();
    // A wake-up before the wait counts.
    waker.wake();
    waker.wake();
    port.wait(None, &mut events).unwrap();
    for _ in 0..100 {
        let other = waker.clone();
        let start = Instant::now();
        let thread = thread::spawn(move || {
            thread::sleep(Duration::from_millis(3));
            other.wake();
        });
        port.wait(None, &mut events).unwrap();
        assert!(
            start.elapsed() < Duration::from_millis(90),
            "woken, not timed out: {:?}",
            start.elapsed()
        );
        thread.join().unwrap();
    }
    // And none is left over.
    let start = Instant::now();
    port.wait(Some(Duration::from_millis(30)), &mut events)
        .unwrap();
    assert!(
        start.elapsed() >= Duration::from_millis(29),
        "{:?}",
        start.elapsed()
    );
    assert!(events.is_empty());
    drop(port);
    waker.wake();
    let mut port = Port::of(&listen(library), SIZES).unwrap();
    port.wait(Some(Duration::ZERO), &mut events).unwrap();
    waker.clone().wake();
}

#[test]
fn a_wrong_key_ends_the_connection_and_writes_nothing() {
    let (give, take) = channel::<(u64, u64)>();
    let serve = move |side: &mut Side, conn: Conn| {
        let area = exposed(side, conn, 4096);
        give.send((area.address, area.key)).unwrap();
        side.closed(conn);
        let mut copy = vec![1; 4096];
        side.port.read_area(&area, 0, &mut copy).unwrap();
        assert_eq!(copy, vec![0; 4096]);
    };
    pair(SIZES, 4, serve, |side, conn| {
        let (address, key) = take.recv_timeout(PATIENCE).unwrap();
        side.port
            .write(conn, &[&[9; 4096]], address, key ^ 1, 5, Completion::Sent)
            .unwrap();
        loop {
            match side.next() {
                Event::Written(..) => {}
                Event::Closed(closed) => break assert_eq!(closed, conn),
                other => panic!("{other:?}"),
            }
        }
    });
}

/// A key is worth nothing at another port, also of the same process.
#[test]
fn a_key_of_another_port_opens_nothing() {
    let (give, take) = channel::<(u64, u64)>();
    let serve = move |side: &mut Side, conn: Conn| {
        // Both ports have an area, so that a key that both count up from one would fit.
        let own = exposed(side, conn, 4096);
        let library = loaded().expect("it was there");
        let mut other = Side::new(Port::of(&listen(library), SIZES).unwrap());
        let areas = [0; 3].map(|_| exposed(&mut other, conn, 4096));
        give.send((areas[2].address, areas[2].key)).unwrap();
        side.closed(conn);
        let mut copy = vec![1; 4096];
        for area in &areas {
            other.port.read_area(area, 0, &mut copy).unwrap();
            assert_eq!(copy, vec![0; 4096]);
        }
        side.port.read_area(&own, 0, &mut copy).unwrap();
        assert_eq!(copy, vec![0; 4096]);
    };
    pair(SIZES, 4, serve, |side, conn| {
        let (address, key) = take.recv_timeout(PATIENCE).unwrap();
        side.port
            .write(conn, &[&[9; 4096]], address, key, 5, Completion::Sent)
            .unwrap();
        loop {
            match side.next() {
                Event::Written(..) => {}
                Event::Closed(closed) => break assert_eq!(closed, conn),
                other => panic!("{other:?}"),
            }
        }
    });
}

/// Two ends may differ in their sizes; then the shorter one protects itself.
#[test]
fn a_message_that_fits_no_buffer_ends_the_connection() {
    let Some(library) = loaded() else { return };
    let mut listener = listen(library);
    let address = listener.local_address();
    let server = thread::spawn(move || {
        let incoming = listener.wait(PATIENCE).unwrap().expect("a request");
        let mut side = Side::new(Port::of(&listener, Sizes { message_bytes: 64 }).unwrap());
        let conn = side.port.accept(incoming, 4).unwrap();
        side.opened(conn);
        assert_eq!(side.message(), [1; 64]);
        side.closed(conn);
    });
    let mut side = Side::new(Port::connecting(library, &provider(), address, SIZES).unwrap());
    let conn = side.port.connect(address, b"", 4).unwrap();
    side.opened(conn);
    side.port.send(conn, &[&[1; 64]]).unwrap();
    side.port.send(conn, &[&[1; 65]]).unwrap();
    side.closed(conn);
    server.join().unwrap();
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs this test binary again with one test alone, so that other tests open no files meanwhile.
#[test]
fn two_hundred_connections_leave_no_file_open() {
    const ALONE: &str = "EVERDRAM_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "two_hundred_connections_leave_no_file_open";
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        print!("{}", String::from_utf8_lossy(&out.stdout));
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        return;
    }
    let Some(library) = loaded() else { return };
    let mut listener = listen(library);
    let address = listener.local_address();
    let (stop, stopped) = channel::<()>();
    let server = thread::spawn(move || {
        let mut port = Port::of(&listener, SIZES).unwrap();
        let mut events = Vec::new();
        let mut closed = 0;
        while stopped.try_recv().is_err() {
            if let Some(incoming) = listener.wait(Duration::ZERO).unwrap() {
                port.accept(incoming, 4).unwrap();
            }
            port.wait(Some(Duration::from_millis(1)), &mut events)
                .unwrap();
            for event in events.drain(..) {
                match event {
                    Event::Message(conn, buffer) => {
                        let bytes = port.message(&buffer).to_vec();
                        port.give_back(buffer, true).unwrap();
                        port.send(conn, &[&bytes]).unwrap();
                    }
                    Event::Closed(_) => closed += 1,
                    _ => {}
                }
            }
        }
        closed
    });
    let mut side = Side::new(Port::connecting(library, &provider(), address, SIZES).unwrap());
    let mut early = 0;
    let mut last = None;
    for round in 0..200u32 {
        let conn = side.port.connect(address, b"p", 4).unwrap();
        assert!(last < Some(conn));
        last = Some(conn);
        side.opened(conn);
        side.port.send(conn, &[&round.to_le_bytes()]).unwrap();
        assert_eq!(side.message(), round.to_le_bytes());
        side.port.close(conn);
        if round == 20 {
            early = open_files();
        }
    }
    let until = Instant::now() + PATIENCE;
    while open_files() > early && Instant::now() < until {
        assert!(side.within(Duration::from_millis(10)).is_none());
    }
    println!(
        "open files after 20 connections {early}, after 200 {}",
        open_files()
    );
    assert!(
        open_files() <= early,
        "{} files, {early} before",
        open_files()
    );
    thread::sleep(Duration::from_millis(150));
    stop.send(()).unwrap();
    assert_eq!(server.join().unwrap(), 200);
}

#[test]
fn an_idle_port_sleeps() {
    let serve = |side: &mut Side, conn: Conn| side.closed(conn);
    pair(SIZES, 4, serve, |side, _| {
        let before = ticks();
        assert!(side.within(Duration::from_secs(2)).is_none());
        // One that spins has 200; an emulated processor takes a few for twenty looks.
        assert!(
            ticks() - before <= 10,
            "{} ticks of 10 ms in 2 s",
            ticks() - before
        );
    });
}
