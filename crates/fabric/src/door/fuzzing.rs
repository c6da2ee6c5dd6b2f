//! A door without threads, for fuzzing (feature `fuzzing`): a client that sends and writes what it likes, and
//! the loop that serves it, turn by turn on the caller's thread.

use super::turned::TurnedDoor;
use super::{Settings, StartError};
use crate::inside::{Network, Port};
use crate::link::{Event, Link};
use crate::wire::{self, Head, INLINE_BYTES, KEY_BYTES_MAX, Kind, Status, VALUE_BYTES_MAX};
use everdram::Store;
use std::time::Duration;

/// What a stranger does.
pub enum Step<'a> {
    /// Sends bytes as they are.
    Bytes(&'a [u8]),
    /// Sends a message that sums up.
    Message {
        /// Chooses the kind.
        kind: u8,
        /// Value bytes, expiry, grant, sum and place.
        fields: [u64; 5],
        /// A key; what is too long is cut off.
        key: &'a [u8],
        /// A body; what is too long is cut off.
        body: &'a [u8],
    },
    /// Writes these bytes so far behind the address of the last grant.
    Write(u64, &'a [u8]),
    /// Asks for the last grant to be fulfilled by these bytes.
    Done(&'a [u8]),
}

/// A door of one loop.
pub struct Bench {
    door: TurnedDoor,
    network: Network,
}

impl Bench {
    /// A door over `store`.
    ///
    /// # Errors
    /// The engine has no session left.
    pub fn new(store: &Store, settings: Settings) -> Result<Bench, StartError> {
        let network = Network::new();
        Ok(Bench {
            door: TurnedDoor::new(store, &network, settings)?,
            network,
        })
    }

    fn turn(&mut self) {
        let turned = self.door.turn(Duration::ZERO);
        assert!(turned.is_ok(), "a link of this process has failed");
    }

    /// Connects, takes these steps, and closes. Returns the number of replies.
    ///
    /// # Panics
    /// If the door breaks a promise: a request without a reply on an open connection, a reply to nothing or
    /// one that does not verify, or a connection that is not forgotten.
    pub fn run<'a>(&mut self, steps: impl Iterator<Item = Step<'a>>) -> usize {
        let mut port = Port::new();
        let conn = port.connect(&self.network, 64);
        self.door.hear(Duration::ZERO);
        self.turn();
        let opened = port.wait(Some(Duration::ZERO), &mut Vec::new());
        assert!(opened.is_ok(), "a link of this process has failed");
        let (mut grant, mut replies) = (None, 0);
        let mut sequence = 0;
        for step in steps {
            sequence += 1;
            let mut is_answered = false;
            match step {
                Step::Bytes(bytes) => {
                    // What is left of a message that sums up is a request, too.
                    is_answered = wire::read(bytes).is_some_and(|message| !message.head.is_reply);
                    let _closed = port.send(conn, &[bytes]);
                }
                Step::Message {
                    kind,
                    fields: [value_bytes, expires_at_ms, grant, sum, place],
                    key,
                    body,
                } => {
                    const KINDS: [Kind; 8] = [
                        Kind::Hello,
                        Kind::Get,
                        Kind::Probe,
                        Kind::Put,
                        Kind::Prepare,
                        Kind::Delete,
                        Kind::Done,
                        Kind::Part,
                    ];
                    let head = Head {
                        value_bytes,
                        expires_at_ms,
                        grant,
                        sum,
                        place,
                        ..Head::request(KINDS[usize::from(kind) % KINDS.len()], sequence)
                    };
                    let key = key.get(..KEY_BYTES_MAX).unwrap_or(key);
                    let body = body.get(..INLINE_BYTES).unwrap_or(body);
                    let bytes = head.to_bytes(key, body);
                    let _closed = port.send(conn, &[&bytes, key, wire::zeros(key), body]);
                    is_answered = true;
                }
                Step::Write(behind, bytes) => {
                    if let Some((head, key)) = grant {
                        let head: Head = head;
                        let target = (head.place.wrapping_add(behind), key);
                        let _closed = port.write(conn, bytes, target);
                    }
                }
                Step::Done(bytes) => {
                    if let Some((head, key)) = grant.take() {
                        let _closed = port.write(conn, bytes, (head.place, key));
                        let done = Head {
                            grant: head.grant,
                            sum: wire::slot_sum(head.sum, bytes),
                            ..Head::request(Kind::Done, sequence)
                        };
                        let _closed = port.send(conn, &[&done.to_bytes(&[], &[])]);
                        is_answered = true;
                    }
                }
            }
            self.turn();
            let mut events = Vec::new();
            let waited = port.wait(Some(Duration::ZERO), &mut events);
            assert!(waited.is_ok(), "a link of this process has failed");
            let (mut is_closed, before) = (false, replies);
            for event in events {
                match event {
                    Event::Message(_, buffer) => {
                        let bytes = port.message(&buffer);
                        let message = wire::read(bytes).filter(|message| message.head.is_reply);
                        let Some(message) = message else {
                            panic!("a reply that does not verify: {}", bytes.escape_ascii());
                        };
                        replies += 1;
                        let body = bytes.get(message.body).unwrap_or_default();
                        if message.head.kind == Kind::Hello && message.head.status == Status::Ok {
                            assert_eq!(body, self.door.hello(), "what a Hello is answered");
                            assert!(wire::read_hello(body).is_some());
                        }
                        if message.head.kind == Kind::Prepare && message.head.status == Status::Ok {
                            assert!(message.head.value_bytes <= VALUE_BYTES_MAX as u64);
                            let key = wire::first_word(body);
                            grant = key.map(|key| (message.head, key));
                        }
                        let _closed = port.give_back(buffer, true);
                    }
                    Event::Closed(_) => is_closed = true,
                    Event::Opened
                    | Event::Written(_)
                    | Event::Told(..)
                    | Event::Committed(..)
                    | Event::Read(..) => {}
                }
            }
            if is_closed {
                break;
            }
            assert_eq!(
                replies - before,
                usize::from(is_answered),
                "replies to a step"
            );
        }
        port.close(conn);
        self.turn();
        assert_eq!(self.door.connections(), 0, "a connection is not forgotten");
        replies
    }
}
