//! A door without threads, for fuzzing (feature `fuzzing`): guests that send and write what they like, and
//! the loop that serves them, turn by turn on the caller's thread.

use super::turned::TurnedDoor;
use super::{Settings, StartError};
use crate::PoolId;
use crate::inside::{Network, Port};
use crate::link::{Conn, Event, Link};
use crate::wire::{
    self, BY_CLIENT, Head, INLINE_BYTES, KEY_BYTES_MAX, Kind, Status, VALUE_BYTES_MAX,
};
use everdram::engine::Engine;
use everdram::landing::{Grant, Landing, PAGE_BYTES, slot};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The bit of the place of a prepare that asks for lent blocks.
pub const LENT: u64 = wire::LENT;

/// What a guest does.
#[derive(Clone, Debug)]
pub enum Step<'a> {
    /// Sends bytes as they are, unless they happen to be a message that sums up.
    Bytes(&'a [u8]),
    /// Sends a message that sums up.
    Message {
        /// Chooses the kind; see [`KINDS`].
        kind: u8,
        /// Value bytes, expiry, grant, sum and place.
        fields: [u64; 5],
        /// A key; what is too long is cut off.
        key: &'a [u8],
        /// A body; what is too long is cut off.
        body: &'a [u8],
    },
    /// Writes any bytes, so far behind the address of a grant that it was told at any time.
    Write(usize, u64, &'a [u8]),
    /// Writes what a grant is for, or the part of that from one offset to another.
    Fulfil(usize, &'a [u8], [usize; 2]),
    /// Says that it has written what a grant is for.
    Done(usize),
}

/// Kinds of requests, by number.
pub const KINDS: [&str; 8] = [
    "hello", "get", "probe", "put", "prepare", "delete", "done", "part",
];
const KINDS_SENT: [Kind; KINDS.len()] = [
    Kind::Hello,
    Kind::Get,
    Kind::Probe,
    Kind::Put,
    Kind::Prepare,
    Kind::Delete,
    Kind::Done,
    Kind::Part,
];

/// A grant that a guest was told.
#[derive(Clone, Debug)]
pub struct Told {
    /// Whether it is for a slot of the landing area.
    pub by_client: bool,
    /// As in the reply.
    pub number: u64,
    /// As in the reply.
    pub nonce: u64,
    /// Of a slot; otherwise 0.
    pub generation: u64,
    /// What it is for.
    pub key: Vec<u8>,
    /// What it is for.
    pub value_bytes: u64,
    /// What it is for.
    pub expires_at_ms: u64,
    target: (u64, u64),
    /// Where its parts are written instead, if blocks were lent.
    pieces: Vec<wire::Piece>,
}

impl Told {
    /// As the store gave it, where the slots of the landing area begin at `first`.
    #[must_use]
    pub fn grant(&self, first: u64) -> Grant {
        Grant {
            number: self.number as u32,
            offset: first + self.number * PAGE_BYTES,
            bytes: slot::bytes(self.key.len(), self.value_bytes),
            generation: self.generation,
            nonce: self.nonce,
        }
    }

    /// Sum and checks by which a Done says that this value was written, if it is not for a slot.
    fn said(&self, value: &[u8]) -> (u64, Vec<u8>) {
        if self.pieces.is_empty() {
            return (wire::slot_sum(self.nonce, value), Vec::new());
        }
        let parts = self.parts(value.len()).into_iter();
        let parts = parts.map(|(_, range)| &value[range]);
        (0, wire::checks_of(self.nonce, parts))
    }

    /// Address and key of each part, and its place in what is written.
    fn parts(&self, bytes: usize) -> Vec<((u64, u64), Range<usize>)> {
        if self.pieces.is_empty() {
            return vec![(self.target, 0..bytes)];
        }
        let mut from = 0;
        let part = |piece: &wire::Piece| {
            let range = from..from + piece.bytes as usize;
            from = range.end;
            ((piece.address, piece.key), range)
        };
        self.pieces.iter().map(part).collect()
    }

    /// The bytes that make the put of a value, which is `text` over and over.
    fn bytes(&self, text: &[u8]) -> Vec<u8> {
        let text: &[u8] = if text.is_empty() { b"." } else { text };
        let value = text.iter().copied().cycle();
        let value: Vec<u8> = value.take(self.value_bytes as usize).collect();
        let mut bytes = value.clone();
        if self.by_client {
            let grant = self.grant(0);
            slot::encode(&mut bytes, &grant, &self.key, &value, self.expires_at_ms);
        }
        bytes
    }
}

/// A request, as far as its effect goes.
#[derive(Clone, Debug)]
pub enum Asked {
    /// Of a value, until some time.
    Put(Vec<u8>, Vec<u8>, u64),
    /// Of a key.
    Delete(Vec<u8>),
    /// Of a key.
    Get(Vec<u8>),
    /// Of a key.
    Probe(Vec<u8>),
    /// Of a slot of the landing area.
    Prepare,
    /// Of the slot with this number, in this generation.
    Arrived(u64, u64),
    /// It changes nothing that a slot or a key could show.
    Other,
}

/// What came of a request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The request.
    pub asked: Asked,
    /// How it ended.
    pub status: Status,
    /// Value bytes of the reply.
    pub value_bytes: u64,
    /// The body of the reply.
    pub body: Vec<u8>,
    /// The grant that it tells.
    pub told: Option<Told>,
}

/// What a guest has heard.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Replies, in order.
    pub answers: Vec<Answer>,
    /// Requests without a reply, if the connection was closed.
    pub lost: Option<Vec<Asked>>,
}

/// A connection, as the client has it.
pub struct Guest {
    port: Port,
    conn: Conn,
    sequence: u32,
    /// Every grant that it was told.
    pub told: Vec<Told>,
    /// With the key, or the body of a Done.
    asked: HashMap<u32, (Asked, Head, Vec<u8>)>,
    /// What it wrote, by the key of the memory: what lies in memory of the door.
    written: HashMap<u64, Vec<u8>>,
    is_closed: bool,
}

/// A door of one loop.
pub struct Bench {
    door: TurnedDoor,
    network: Network,
}

impl Bench {
    /// A door over an engine, and the landing area below it.
    ///
    /// # Errors
    /// The engine has no session left.
    pub fn new(
        engine: Arc<dyn Engine>,
        landing: Option<Arc<Landing>>,
        settings: Settings,
    ) -> Result<Bench, StartError> {
        let network = Network::new();
        let hello = wire::hello(PoolId([7; 16]), "nothing survives");
        let door = TurnedDoor::over((engine, landing, hello), &network, settings)?;
        Ok(Bench { door, network })
    }

    /// Carries out what was sent.
    ///
    /// # Panics
    /// The link fails.
    pub fn turn(&mut self) {
        let turned = self.door.turn(Duration::ZERO);
        assert!(turned.is_ok(), "a link of this process has failed");
    }

    /// Connects.
    ///
    /// # Panics
    /// The link fails, or the loop has ended.
    pub fn connect(&mut self) -> Guest {
        let mut port = Port::new();
        let conn = port.connect(&self.network, 64);
        self.door.hear(Duration::ZERO);
        self.turn();
        let opened = port.wait(Some(Duration::ZERO), &mut Vec::new());
        assert!(opened.is_ok(), "a link of this process has failed");
        Guest {
            port,
            conn,
            sequence: 0,
            told: Vec::new(),
            asked: HashMap::new(),
            written: HashMap::new(),
            is_closed: false,
        }
    }

    /// Takes in what has come for a guest. Call it after a [`Bench::turn`]: then every request has its reply.
    ///
    /// # Panics
    /// If the door breaks a promise: a request without a reply on an open connection, a reply to nothing or
    /// one that does not verify, a put of what does not sum up.
    pub fn listen(&mut self, guest: &mut Guest) -> Heard {
        let (mut heard, mut events) = (Heard::default(), Vec::new());
        let waited = guest.port.wait(Some(Duration::ZERO), &mut events);
        assert!(waited.is_ok(), "a link of this process has failed");
        for event in events {
            match event {
                Event::Message(_, buffer) => {
                    let bytes = guest.port.message(&buffer).to_vec();
                    let _closed = guest.port.give_back(buffer, true);
                    let answer = self.answer(guest, &bytes);
                    guest.told.extend(answer.told.clone());
                    heard.answers.push(answer);
                }
                Event::Closed(_) => guest.is_closed = true,
                Event::Opened
                | Event::Written(_)
                | Event::Committed(..)
                | Event::Told(..)
                | Event::Read(..) => {}
            }
        }
        if guest.is_closed {
            let lost = guest.asked.drain().map(|(_, (asked, ..))| asked);
            heard.lost = Some(lost.collect());
        }
        assert!(guest.asked.is_empty(), "a request has no reply");
        heard
    }

    fn answer(&self, guest: &mut Guest, bytes: &[u8]) -> Answer {
        let message = wire::read(bytes).filter(|message| message.head.is_reply);
        let Some(message) = message else {
            panic!("a reply that does not verify: {}", bytes.escape_ascii());
        };
        let head = message.head;
        let asked = guest.asked.remove(&head.sequence);
        let Some((asked, request, rest)) =
            asked.filter(|(_, request, _)| request.kind == head.kind)
        else {
            panic!("a reply to nothing: {head:?}");
        };
        let body = bytes.get(message.body).unwrap_or_default().to_vec();
        let is_done = head.status == Status::Ok;
        let mut told = None;
        match (head.kind, &asked) {
            (Kind::Hello, _) if is_done => {
                assert_eq!(body, self.door.hello(), "what a Hello is answered");
                assert!(wire::read_hello(&body).is_some());
            }
            (Kind::Prepare, _) if is_done => {
                assert!(head.value_bytes <= VALUE_BYTES_MAX as u64);
                assert_eq!(head.value_bytes, request.value_bytes);
                let word = |at| body.get(at..).and_then(wire::first_word);
                let pieces: Vec<wire::Piece> = match request.place & LENT {
                    0 => Vec::new(),
                    _ => wire::Piece::all_of(&body).collect(),
                };
                let bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
                assert!(
                    pieces.is_empty() || bytes == head.value_bytes,
                    "pieces that are not all of a value"
                );
                told = word(0).map(|area| Told {
                    by_client: body.len() == 16,
                    number: head.grant,
                    nonce: head.sum,
                    generation: word(8).unwrap_or(0),
                    key: rest,
                    value_bytes: head.value_bytes,
                    expires_at_ms: request.expires_at_ms,
                    target: match pieces.first() {
                        Some(piece) => (piece.address, piece.key),
                        None => (head.place, area),
                    },
                    pieces,
                });
            }
            (Kind::Done, Asked::Put(_, value, _)) if is_done => {
                let told = guest.told.iter();
                let mut told = told.filter(|told| !told.by_client && told.number == request.grant);
                let said = told.next().map(|told| told.said(value));
                let is_said = said.is_some_and(|(sum, checks)| match checks.is_empty() {
                    true => sum == request.sum,
                    false => checks == rest,
                });
                assert!(is_said, "a put of what does not sum up");
            }
            (Kind::Done, Asked::Other) => assert!(!is_done, "a put without a grant"),
            _ => {}
        }
        Answer {
            asked,
            status: head.status,
            value_bytes: head.value_bytes,
            body,
            told,
        }
    }

    /// Closes the connection of a guest. Returns its requests without a reply: they may have happened.
    ///
    /// # Panics
    /// The link fails.
    pub fn hang_up(&mut self, mut guest: Guest) -> Vec<Asked> {
        guest.port.close(guest.conn);
        self.turn();
        guest.asked.into_values().map(|(asked, ..)| asked).collect()
    }

    /// Connections that the door has.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.door.connections()
    }
}

impl Guest {
    /// Takes a step. Nothing is carried out before the next [`Bench::turn`], but bytes are written.
    pub fn act(&mut self, step: &Step<'_>) {
        match *step {
            Step::Bytes(bytes) => {
                if wire::read(bytes).is_none() {
                    let _closed = self.port.send(self.conn, &[bytes]);
                }
            }
            Step::Message {
                kind,
                fields: [value_bytes, expires_at_ms, grant, sum, place],
                key,
                body,
            } => {
                let head = Head {
                    value_bytes,
                    expires_at_ms,
                    grant,
                    sum,
                    place,
                    ..Head::request(KINDS_SENT[usize::from(kind) % KINDS.len()], 0)
                };
                self.ask(head, key, body);
            }
            Step::Write(number, behind, bytes) => {
                if let Some(told) = self.told.get(number).cloned() {
                    let (address, area) = told.target;
                    self.write((address.wrapping_add(behind), area), bytes);
                }
            }
            Step::Fulfil(number, text, [from, to]) => {
                if let Some(told) = self.told.get(number).cloned() {
                    let bytes = told.bytes(text);
                    for ((address, area), range) in told.parts(bytes.len()) {
                        let from = from.clamp(range.start, range.end);
                        let part = &bytes[from..to.clamp(from, range.end)];
                        let at = address + (from - range.start) as u64;
                        if !part.is_empty() || told.pieces.is_empty() {
                            self.write((at, area), part);
                        }
                    }
                }
            }
            Step::Done(number) => {
                if let Some(told) = self.told.get(number).cloned() {
                    let (sum, checks) = match told.by_client {
                        true => (told.generation, Vec::new()),
                        false => told.said(&self.landed(&told)),
                    };
                    let head = Head {
                        grant: told.number,
                        sum,
                        place: u64::from(told.by_client),
                        ..Head::request(Kind::Done, 0)
                    };
                    self.ask(head, &[], &checks);
                }
            }
        }
    }

    fn ask(&mut self, head: Head, key: &[u8], body: &[u8]) {
        self.sequence += 1;
        let head = Head {
            sequence: self.sequence,
            ..head
        };
        let key = key.get(..KEY_BYTES_MAX).unwrap_or(key);
        let body = body.get(..INLINE_BYTES).unwrap_or(body);
        let bytes = head.to_bytes(key, body);
        let sent = self
            .port
            .send(self.conn, &[&bytes, key, wire::zeros(key), body]);
        if sent.is_err() {
            return;
        }
        let asked = match head.kind {
            Kind::Get => Asked::Get(key.to_vec()),
            Kind::Probe => Asked::Probe(key.to_vec()),
            Kind::Put => Asked::Put(key.to_vec(), body.to_vec(), head.expires_at_ms),
            Kind::Delete => Asked::Delete(key.to_vec()),
            Kind::Prepare if head.place & !LENT == BY_CLIENT => Asked::Prepare,
            Kind::Done if head.place == BY_CLIENT => Asked::Arrived(head.grant, head.sum),
            Kind::Done => {
                let mut told = self.told.iter();
                let told = told.find(|told| !told.by_client && told.number == head.grant);
                told.map_or(Asked::Other, |told| {
                    Asked::Put(told.key.clone(), self.landed(told), told.expires_at_ms)
                })
            }
            Kind::Hello | Kind::Prepare | Kind::Part => Asked::Other,
        };
        let rest = match head.kind {
            Kind::Done => body,
            _ => key,
        };
        self.asked
            .insert(self.sequence, (asked, head, rest.to_vec()));
    }

    fn write(&mut self, target: (u64, u64), bytes: &[u8]) {
        let mut events = Vec::new();
        let written = self.port.write(self.conn, bytes, target);
        if written.is_err() || self.port.wait(Some(Duration::ZERO), &mut events).is_err() {
            return;
        }
        let is_written = events
            .iter()
            .any(|event| matches!(event, Event::Written(true)));
        self.is_closed |= events.iter().any(|event| matches!(event, Event::Closed(_)));
        if is_written {
            let memory = self.written.entry(target.1).or_default();
            let (from, end) = (target.0 as usize, target.0 as usize + bytes.len());
            memory.resize(memory.len().max(end), 0);
            memory[from..end].copy_from_slice(bytes);
        }
    }

    /// What lies in the memory of a grant, which the door has zeroed once. Lent blocks may have had anything
    /// where nothing was written, so what is not whole there mostly does not sum up.
    fn landed(&self, told: &Told) -> Vec<u8> {
        let mut landed = Vec::new();
        for ((address, area), range) in told.parts(told.value_bytes as usize) {
            let memory = self.written.get(&area);
            let there = memory.and_then(|memory| memory.get(address as usize..));
            let there = there.unwrap_or_default();
            landed.extend_from_slice(there.get(..range.len()).unwrap_or(there));
            landed.resize(range.end, 0);
        }
        landed
    }
}
