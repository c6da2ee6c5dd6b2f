//! A server over a store of its own on a free port, and connections that speak raw bytes.

use crate::MEDIUM;
use crate::bed::{Bed, asked_medium};
use everdram::{EngineKind, Medium, Store};
use everdram_resp::{Server, Settings, ShutdownHandle};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longest wait for something that must happen.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// A running server; dropping it stops it and waits.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) store: Store,
    pub(crate) handle: ShutdownHandle,
    pub(crate) server: Option<Server>,
    /// Dropped last; `None` once it was given away.
    bed: Option<Bed>,
}

/// Starts a server with these settings, by default on a free port.
pub(crate) fn start(engine: EngineKind, settings: Settings) -> Running {
    start_on(Bed::new(engine, medium()), settings)
}

/// The medium of this run.
pub(crate) fn medium() -> Medium {
    asked_medium().unwrap_or(MEDIUM)
}

/// As [`start`], over a store in this place.
pub(crate) fn start_on(bed: Bed, settings: Settings) -> Running {
    let store = bed.open();
    start_over(bed, store, settings)
}

/// As [`start`], over a store that is open.
pub(crate) fn start_over(bed: Bed, store: Store, settings: Settings) -> Running {
    let server = Server::start(
        store.clone(),
        Settings {
            port: 0,
            ..settings
        },
    )
    .expect("the server starts");
    let address = server
        .local_addrs()
        .first()
        .copied()
        .unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    Running {
        address,
        store,
        handle: server.shutdown_handle(),
        server: Some(server),
        bed: Some(bed),
    }
}

impl Running {
    pub(crate) fn connect(&self) -> Raw<TcpStream> {
        let stream = TcpStream::connect(self.address).expect("the server accepts");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream
            .set_read_timeout(Some(TIMEOUT))
            .expect("a read timeout");
        stream
            .set_write_timeout(Some(TIMEOUT))
            .expect("a write timeout");
        Raw(stream)
    }

    /// Stops the server and closes the store; the files stay.
    pub(crate) fn leave(mut self) -> Bed {
        self.handle.shutdown();
        if let Some(server) = self.server.take() {
            server.wait().expect("the server stops cleanly");
        }
        self.bed.take().expect("it is taken only here")
    }

    /// Waits for a server that was told to stop.
    pub(crate) fn wait(mut self) {
        if let Some(server) = self.server.take() {
            server.wait().expect("the server stops cleanly");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown();
        if let Some(server) = self.server.take() {
            let stopped = server.wait();
            assert!(stopped.is_ok() || std::thread::panicking(), "{stopped:?}");
        }
    }
}

/// A connection without any protocol.
pub(crate) struct Raw<S>(pub(crate) S);

impl<S: Read + Write> Raw<S> {
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0
            .write_all(bytes.as_ref())
            .expect("the server takes the bytes");
    }

    /// Reads exactly as many bytes as `expected` has, and compares.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut found = vec![0; expected.len()];
        let mut filled = 0;
        while filled < found.len() {
            match self.0.read(&mut found[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) => panic!(
                    "{error} after {:?}",
                    String::from_utf8_lossy(&found[..filled])
                ),
            }
        }
        assert_eq!(
            String::from_utf8_lossy(&found[..filled]),
            String::from_utf8_lossy(expected)
        );
    }

    /// Sends `request` and expects exactly `reply`.
    #[track_caller]
    pub(crate) fn ask(&mut self, request: impl AsRef<[u8]>, reply: impl AsRef<[u8]>) {
        self.send(request);
        self.expect(reply);
    }

    /// Reads until the server closes the connection; returns the bytes before that.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => {}
            // Bytes that were sent and the server did not read.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the server did not close: {error}"),
        }
        rest
    }

    #[track_caller]
    pub(crate) fn expect_closed(&mut self) {
        assert_eq!(String::from_utf8_lossy(&self.rest()), "");
    }

    /// Reads one bulk or verbatim string.
    pub(crate) fn bulk(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).expect("a reply");
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).expect("a length");
        let length: usize = head[1..]
            .trim()
            .parse()
            .unwrap_or_else(|_| panic!("no string: {head}"));
        let mut text = vec![0; length + 2];
        self.0.read_exact(&mut text).expect("the whole string");
        text.truncate(length);
        String::from_utf8(text).expect("text")
    }
}

impl Raw<TcpStream> {
    /// How many of the next `bytes` bytes have arrived, without waiting for them or consuming them.
    pub(crate) fn arrived(&self, bytes: usize) -> usize {
        let set_nonblocking = |on| self.0.set_nonblocking(on).expect("a socket option");
        set_nonblocking(true);
        let arrived = match self.0.peek(&mut vec![0; bytes]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            arrived => arrived.expect("an open connection"),
        };
        set_nonblocking(false);
        arrived
    }

    /// Sent bytes that the server's socket does not have yet: even on the loopback device, delivery may come
    /// after the sending call.
    pub(crate) fn unacknowledged(&self) -> u64 {
        let port = |address: std::io::Result<SocketAddr>| {
            format!(":{:04X}", address.expect("a connected socket").port())
        };
        let (ours, theirs) = (port(self.0.local_addr()), port(self.0.peer_addr()));
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
        // Number, own address, the other's, state, queues `sent:received`.
        let queues = table.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words.get(1)?.ends_with(&ours) && words.get(2)?.ends_with(&theirs))
                .then(|| words.get(4)?.split_once(':'))?
        });
        let (sent, _) = queues.expect("the connection is in the table");
        u64::from_str_radix(sent, 16).expect("a number of bytes")
    }
}

/// A line of INFO; `None`: there is no such line.
pub(crate) fn told(client: &mut Raw<TcpStream>, name: &str) -> Option<String> {
    client.send("INFO everdram\r\n");
    let info = client.bulk();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(str::to_owned)
}

/// A number in INFO.
pub(crate) fn number(client: &mut Raw<TcpStream>, name: &str) -> u64 {
    let told = told(client, name).unwrap_or_else(|| panic!("no {name} in INFO"));
    told.parse().expect("a number")
}

/// A request as an array of bulk strings.
pub(crate) fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

/// Waits until `holds`, or panics with what was awaited.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        std::thread::yield_now();
    }
}

/// Settings of a server with a password.
pub(crate) fn with_password() -> Settings {
    Settings {
        password: Some("secret".into()),
        ..Settings::default()
    }
}
