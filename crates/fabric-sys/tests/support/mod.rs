//! Two ports of this machine, for the tests of this crate: over `tcp` and 127.0.0.1, or over what
//! `EVERDRAM_TEST_FABRIC` names, `verbs://10.77.0.1:0` for example. Not every test file uses all of it.
#![allow(dead_code, reason = "each test file is a crate of its own")]

use everdram_fabric_sys::{Area, Conn, Event, Library, Listener, Port, Sizes, library};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const SIZES: Sizes = Sizes {
    message_bytes: 4096,
};

/// The library, or a line that says why the test does nothing.
pub(crate) fn loaded() -> Option<&'static Library> {
    match library() {
        Ok(library) => Some(library),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Provider and address.
pub(crate) fn place() -> (String, SocketAddr) {
    let named = std::env::var("EVERDRAM_TEST_FABRIC");
    let named = named.unwrap_or_else(|_| "tcp://127.0.0.1:0".to_owned());
    let (provider, address) = named.split_once("://").expect("PROVIDER://ADDRESS:PORT");
    (provider.to_owned(), address.parse().unwrap())
}

pub(crate) fn provider() -> String {
    place().0
}

/// Whether the test is about `tcp` alone and another provider is tested; says so.
pub(crate) fn is_other_than_tcp(why: &str) -> bool {
    let is_other = provider() != "tcp";
    if is_other {
        println!("skipped over `{}`: {why}", provider());
    }
    is_other
}

pub(crate) fn listen(library: &'static Library) -> Listener {
    let (provider, address) = place();
    Listener::bind(library, &provider, address).unwrap()
}

/// A port and its events, taken one at a time.
pub(crate) struct Side {
    pub(crate) port: Port,
    pub(crate) events: VecDeque<Event>,
}

impl Side {
    pub(crate) fn new(port: Port) -> Side {
        Side {
            port,
            events: VecDeque::new(),
        }
    }

    /// The next event; a test that waits longer than `PATIENCE` has failed.
    pub(crate) fn next(&mut self) -> Event {
        self.within(PATIENCE).expect("an event")
    }

    pub(crate) fn within(&mut self, time: Duration) -> Option<Event> {
        let until = Instant::now() + time;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if Instant::now() >= until {
                return None;
            }
            let mut events = Vec::new();
            self.port
                .wait(Some(until - Instant::now()), &mut events)
                .unwrap();
            self.events.extend(events);
        }
    }

    /// The next event must be a message; its bytes, and the buffer is posted again.
    pub(crate) fn message(&mut self) -> Vec<u8> {
        match self.next() {
            Event::Message(_, buffer) => {
                let bytes = self.port.message(&buffer).to_vec();
                self.port.give_back(buffer, true).unwrap();
                bytes
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn opened(&mut self, conn: Conn) {
        let event = self.next();
        assert!(
            matches!(event, Event::Opened(opened) if opened == conn),
            "{event:?}"
        );
    }

    pub(crate) fn closed(&mut self, conn: Conn) {
        let event = self.next();
        assert!(
            matches!(event, Event::Closed(closed) if closed == conn),
            "{event:?}"
        );
    }
}

/// Two connected ports: `serve` runs in a thread of its own with the accepting one, `work` here with the
/// other.
pub(crate) fn pair(
    sizes: Sizes,
    buffers: usize,
    serve: impl FnOnce(&mut Side, Conn) + Send + 'static,
    work: impl FnOnce(&mut Side, Conn),
) {
    let Some(library) = loaded() else { return };
    let mut listener = listen(library);
    let address = listener.local_address();
    let server = thread::spawn(move || {
        let incoming = listener.wait(PATIENCE).unwrap().expect("a request");
        let mut side = Side::new(Port::of(&listener, sizes).unwrap());
        let conn = side.port.accept(incoming, buffers).unwrap();
        side.opened(conn);
        serve(&mut side, conn);
    });
    let mut side = Side::new(Port::connecting(library, &provider(), address, sizes).unwrap());
    let conn = side.port.connect(address, b"parameter", buffers).unwrap();
    side.opened(conn);
    work(&mut side, conn);
    drop(side);
    server.join().unwrap();
}

/// Sends every message back until the connection ends.
pub(crate) fn echo(side: &mut Side, conn: Conn) {
    loop {
        match side.next() {
            Event::Message(_, buffer) => {
                let bytes = side.port.message(&buffer).to_vec();
                side.port.give_back(buffer, true).unwrap();
                side.port.send(conn, &[&bytes]).unwrap();
            }
            Event::Closed(closed) => return assert_eq!(closed, conn),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn exposed(side: &mut Side, conn: Conn, bytes: usize) -> Area {
    let area = side.port.expose(conn, bytes).unwrap();
    assert_eq!(area.bytes, bytes);
    area
}

/// Processor time of this thread, in ticks of 10 ms, as the kernel counts it.
pub(crate) fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
