//! The Redis door without a network, for fuzzing (feature `fuzzing`): the parser by itself, and connections
//! whose turns run one after another on the caller's thread.

use crate::connection::peer::{Origin, Peer};
use crate::connection::stream::Stream;
use crate::connection::{Connection, Tools};
use crate::keyspace::Scratch;
use crate::request::frame::{FrameLimits, Parser};
use crate::server::config::Config;
use crate::server::settings::{Limits, Settings, StartError};
use crate::server::{Server, Shared};
use everdram::engine::{Engine, EngineSession};
use everdram::{Store, Ticket};
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Requests, and the error line that ended them.
pub type Parsed = (Vec<Vec<Vec<u8>>>, Option<Vec<u8>>);

/// Parses a stream that arrives in these pieces.
#[must_use]
pub fn parse(pieces: &[&[u8]], authenticated: bool) -> Parsed {
    let limits = limits(authenticated);
    let (mut parser, mut buffer, mut requests) = (Parser::default(), Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match parser.next(&mut buffer, &limits) {
                Ok(false) => break,
                Ok(true) => requests.push(arguments(&buffer, parser.spans())),
                Err(error) => return (requests, Some(error.line())),
            }
        }
        parser.compact(&mut buffer);
    }
    (requests, None)
}

fn limits(authenticated: bool) -> FrameLimits {
    let limits = Limits::default();
    FrameLimits {
        arguments_max: if authenticated {
            limits.arguments
        } else {
            limits.unauthenticated_arguments
        },
        bulk_bytes_max: if authenticated {
            limits.proto_max_bulk_len
        } else {
            limits.unauthenticated_bulk_bytes
        },
        inline_bytes_max: limits.inline_bytes,
        authenticated,
    }
}

/// Spans must lie in the buffer: here a wrong one panics, in the server it is an empty argument.
fn arguments(buffer: &[u8], spans: &[(u32, u32)]) -> Vec<Vec<u8>> {
    let span = |&(start, end): &(u32, u32)| buffer[start as usize..end as usize].to_vec();
    spans.iter().map(span).collect()
}

/// A server whose own event loops are idle.
pub struct Bench {
    shared: Arc<Shared>,
    server: Option<Server>,
    session: Box<dyn EngineSession>,
    scratch: Scratch,
    read_buffer: Vec<u8>,
    next_id: u64,
}

/// The outcome of one connection.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// All bytes that were sent to it.
    pub replies: Vec<u8>,
    /// Number of replies that the server counted.
    pub counted: usize,
    /// Whether all of them could leave: a connection that is closed at once keeps some.
    pub complete: bool,
}

impl Bench {
    /// A server over `store`.
    ///
    /// # Errors
    /// As [`Server::start`].
    ///
    /// # Panics
    /// If the engine has no session left.
    pub fn new(store: Store, settings: Settings) -> Result<Bench, StartError> {
        let engine = Arc::clone(store.engine());
        let session = match engine.session() {
            Ok(session) => session,
            Err(error) => panic!("a session: {error}"),
        };
        let server = Server::start(store, settings)?;
        Ok(Bench {
            shared: Arc::clone(server.shared()),
            server: Some(server),
            session,
            scratch: Scratch::default(),
            read_buffer: vec![0; 64 << 10],
            next_id: 1 << 32,
        })
    }

    /// Whether a command has stopped the server: then make another one.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.shared.is_stopping()
    }

    /// Runs a connection that sends these pieces, each after the one before was processed, and closes. Then
    /// restores the initial keys and settings.
    ///
    /// # Panics
    /// If a socket fails.
    pub fn run(&mut self, pieces: &[&[u8]], authenticated: bool) -> Outcome {
        let (near, far) = match mio::net::UnixStream::pair() {
            Ok(pair) => pair,
            Err(error) => panic!("a pair of sockets: {error}"),
        };
        let mut far = Some(Stream::Unix(far));
        let mut connection = self.connect(near, authenticated);
        let mut outcome = Outcome::default();
        for piece in pieces {
            if let Some(far) = &mut far {
                write_all(far, piece);
            }
            self.work(&mut connection, far.as_mut(), &mut outcome);
        }
        outcome.complete = !connection.client.close_now;
        drop(far.take());
        connection.closed_by_peer = true;
        self.work(&mut connection, None, &mut Outcome::default());
        self.shared.forget(connection.client.id);
        self.reset();
        outcome
    }

    fn connect(&mut self, near: mio::net::UnixStream, authenticated: bool) -> Connection {
        self.next_id += 1;
        let origin = Origin {
            address: "fuzzing:0".into(),
            local_address: "fuzzing:0".into(),
            is_unix: true,
            descriptor: 0,
        };
        let peer = Arc::new(Peer::new(self.next_id, 0, origin));
        self.shared.connected.fetch_add(1, Relaxed);
        self.shared.remember(&peer);
        Connection::new(Stream::Unix(near), peer, authenticated)
    }

    /// Takes turns until there is no more work.
    fn work(
        &mut self,
        connection: &mut Connection,
        mut far: Option<&mut Stream>,
        outcome: &mut Outcome,
    ) {
        connection.readable = true;
        let engine: Arc<dyn Engine> = Arc::clone(&self.shared.engine);
        let statistics = &self.shared.mailbox(0).statistics;
        while connection.has_work() {
            let mut uncommitted = false;
            let mut tools = Tools {
                shared: &self.shared,
                session: &mut *self.session,
                engine: &*engine,
                scratch: &mut self.scratch,
                statistics,
                read_buffer: &mut self.read_buffer,
                uncommitted: &mut uncommitted,
                now: Instant::now(),
                now_ms: 1_000_000,
            };
            connection.take_turn(&mut tools);
            if uncommitted && let Err(error) = self.session.commit() {
                panic!("a commit failed: {error}");
            }
            if let Some(turn) = connection.turn.take() {
                outcome.counted += turn.replies;
                connection
                    .output
                    .settle(Ticket::NONE, Ticket::NONE, turn.replies);
            }
            connection.publish(&self.shared);
            loop {
                connection.flush(statistics);
                let taken = far
                    .as_deref_mut()
                    .map_or(0, |far| take(far, &mut outcome.replies));
                if taken == 0 {
                    break;
                }
            }
            connection.tick(&self.shared, statistics, Instant::now());
        }
    }

    /// Restores the initial state: no keys, and the settings it was started with.
    fn reset(&mut self) {
        if let Err(error) = self.session.clear() {
            panic!("removing everything: {error}");
        }
        let (config, first) = (&self.shared.config, Config::new(&self.shared.settings));
        macro_rules! restore {
            ($($field:ident),*) => {
                $(config.$field.store(first.$field.load(Relaxed), Relaxed);)*
            };
        }
        restore!(
            maxclients,
            timeout_s,
            query_buffer_bytes,
            proto_max_bulk_len,
            output_hard_bytes,
            output_soft_bytes,
            output_soft_s,
            slowlog_slower_than_us,
            slowlog_max_len
        );
        let password = self.shared.settings.password.clone();
        config.password.set(password.map(String::into_bytes));
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.shared.begin_shutdown();
        if let Some(server) = self.server.take()
            && let Err(error) = server.wait()
        {
            eprintln!("ending the server: {error}");
        }
    }
}

/// Ignores a closed connection: the caller notices it when it reads the replies.
fn write_all(far: &mut Stream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match far.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("a piece that is too long for the socket")
            }
            Err(_) => return,
        }
    }
}

/// Reads what is there; returns the number of bytes.
fn take(far: &mut Stream, into: &mut Vec<u8>) -> usize {
    let before = into.len();
    let mut buffer = [0; 16 << 10];
    while let Ok(count) = far.read(&mut buffer)
        && count > 0
    {
        into.extend_from_slice(&buffer[..count]);
    }
    into.len() - before
}
