//! The client: blocking calls, and calls that are submitted and polled.
//!
//! One thread owns a client and its one connection. Up to as many requests as the door allows are under way
//! at once; a call that would exceed that waits for a reply first. Puts and removals of one key take effect
//! in the order in which they were submitted.

mod buffers;
mod error;
mod in_place;
mod outcome;
mod pending;
mod replies;
mod way;

pub use error::ClientError;
pub use outcome::{Done, Outcome, Probed, Ticket};
pub use way::Way;

use crate::identity::PoolId;
use crate::inside::Network;
use crate::libfabric::{self, Place};
use crate::link::{Conn, Event, Link, LinkError};
use crate::wire::{
    self, BY_CLIENT, BY_CLIENT_TOLD, Head, IN_PLACE, INLINE_BYTES, KEY_BYTES_MAX, Kind, LENT,
    VALUE_BYTES_MAX, zeros,
};
use buffers::Buffers;
use in_place::Reading;
use pending::{Get, Landed, Long, Pending, Stage};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Buffers for replies: one more than requests are ever under way.
const BUFFERS: usize = 17;

/// How a client connects.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The password of the door.
    pub password: Option<String>,
    /// Values up to this many bytes travel with their request, at most [`INLINE_BYTES`] (the default), or
    /// what a modelled network takes.
    pub inline_bytes: usize,
    /// Whether long values are read where they lie in the server's memory, without a thread of it, if the
    /// door lets clients do so. `true` by default.
    pub reads_in_place: bool,
    /// How long connecting may take. 5 s by default.
    pub connect_timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            password: None,
            inline_bytes: INLINE_BYTES,
            reads_in_place: true,
            connect_timeout: Duration::from_secs(5),
        }
    }
}

/// A client of a fabric door.
pub struct Client {
    link: Box<dyn Link>,
    conn: Conn,
    is_open: bool,
    inline_bytes: usize,
    credits: usize,
    sequence: u32,
    last: u64,
    /// The bits of what the door and this link can do beside the usual: [`BY_CLIENT`] and so on.
    ways: u64,
    /// Values that are being made durable over there, by ticket.
    committing: HashMap<u64, Committing>,
    /// Requests without a reply, by sequence.
    under_way: HashMap<u32, Pending>,
    reads_in_place: bool,
    /// Values that are being read in place.
    reading: HashMap<Ticket, Reading>,
    /// Reads under way by their tokens: of which call, and which piece.
    reads: HashMap<u64, (Ticket, usize)>,
    /// The last such token.
    last_read: u64,
    /// The long value that is being read part by part.
    long: Option<Long>,
    /// What the door could not take while others were under way.
    again: VecDeque<Again>,
    done: VecDeque<Done>,
    pool: PoolId,
    acknowledgement: String,
    events: Vec<Event>,
    buffers: Buffers,
}

impl Client {
    /// Connects to a door, such as `tcp://127.0.0.1:7700`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn connect(address: &str, options: &ClientOptions) -> Result<Client, ClientError> {
        let place =
            Place::parse(address).ok_or_else(|| ClientError::Address(address.to_owned()))?;
        let (port, conn) = libfabric::Port::to(&place, BUFFERS)??;
        Client::over(Box::new(port), conn, options)
    }

    /// Connects to a door of this process.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn inside(network: &Network, options: &ClientOptions) -> Result<Client, ClientError> {
        let mut port = network.own_port();
        let conn = port.connect(network, BUFFERS);
        Client::over(Box::new(port), conn, options)
    }

    fn over(
        link: Box<dyn Link>,
        conn: Conn,
        options: &ClientOptions,
    ) -> Result<Client, ClientError> {
        let mut client = Client {
            inline_bytes: options.inline_bytes.min(link.body_bytes()),
            link,
            conn,
            is_open: true,
            credits: 1,
            sequence: 0,
            last: 0,
            ways: 0,
            committing: HashMap::new(),
            under_way: HashMap::new(),
            reads_in_place: options.reads_in_place,
            reading: HashMap::new(),
            reads: HashMap::new(),
            last_read: 0,
            long: None,
            again: VecDeque::new(),
            done: VecDeque::new(),
            pool: PoolId::default(),
            acknowledgement: String::new(),
            events: Vec::new(),
            buffers: Buffers::default(),
        };
        client.await_opening(options.connect_timeout)?;
        let password = options.password.as_deref().unwrap_or_default().as_bytes();
        let password = password.get(..INLINE_BYTES).unwrap_or(password);
        let ticket = client.ticket();
        client.ask(Kind::Hello, ticket, Stage::Hello, &[], password)?;
        let until = Instant::now().checked_add(options.connect_timeout);
        while !client.under_way.is_empty() && client.is_open {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(ClientError::NoDoor);
            }
            client.take_in(left)?;
        }
        match client.finish(ticket) {
            Ok(_) => Ok(client),
            Err(ClientError::Unknown) => Err(ClientError::NoDoor),
            Err(error) => Err(error),
        }
    }

    fn await_opening(&mut self, timeout: Duration) -> Result<(), ClientError> {
        let until = Instant::now().checked_add(timeout);
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(ClientError::NoDoor);
            }
            self.link.wait(left, &mut self.events)?;
            for event in self.events.drain(..) {
                match event {
                    Event::Opened => return Ok(()),
                    Event::Closed(_) => return Err(ClientError::NoDoor),
                    Event::Message(..)
                    | Event::Told(..)
                    | Event::Written(..)
                    | Event::Committed(..)
                    | Event::Read(..) => {}
                }
            }
        }
    }

    /// Its clock, on a modelled network.
    #[cfg(feature = "modelled")]
    #[must_use]
    pub fn clock(&self) -> Option<crate::inside::EndClock> {
        self.link.clock()
    }

    /// Whether the door offers [`Way::ClientCentric`].
    #[must_use]
    pub fn takes_client_centric(&self) -> bool {
        self.ways & BY_CLIENT != 0
    }

    /// Whether the door offers [`Way::ClientCentricImmediate`].
    #[must_use]
    pub fn takes_immediate(&self) -> bool {
        self.ways & BY_CLIENT_TOLD != 0
    }

    /// Whether long values are read where they lie in the server's memory: the door lets clients, and
    /// [`ClientOptions::reads_in_place`] is set.
    #[must_use]
    pub fn reads_in_place(&self) -> bool {
        self.reads_in_place && self.ways & IN_PLACE != 0
    }

    /// Whether the door lends blocks of its store, so that long values are written where they stay.
    #[must_use]
    pub fn borrows(&self) -> bool {
        self.ways & LENT != 0
    }

    /// The pool that the door serves.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// What one may rely on after a put or a removal has returned, in a sentence of the server.
    #[must_use]
    pub fn acknowledgement(&self) -> &str {
        &self.acknowledgement
    }

    /// Stores a value. It is durable when this returns. Returns how it travelled.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Way, ClientError> {
        self.put_expiring(key, value, 0, Way::Auto)
    }

    /// Stores a value that expires at this time (Unix milliseconds; 0 = never), as [`Client::put`].
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn put_expiring(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
        way: Way,
    ) -> Result<Way, ClientError> {
        let ticket = self.submit_put(key, value, expires_at_ms, way)?;
        match self.finish(ticket)? {
            Outcome::Stored(way) => Ok(way),
            _ => Err(ClientError::Unknown),
        }
    }

    /// The value of a key; `None`: there is no such key.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        let ticket = self.submit_get(key)?;
        match self.finish(ticket)? {
            Outcome::Found(value, _) => Ok(Some(value)),
            _ => Ok(None),
        }
    }

    /// Length and expiry of a key's value; `None`: there is no such key.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn probe(&mut self, key: &[u8]) -> Result<Option<Probed>, ClientError> {
        check_key(key)?;
        self.await_grants_of(key)?;
        let ticket = self.ticket();
        self.ask(Kind::Probe, ticket, Stage::Probe, key, &[])?;
        match self.finish(ticket)? {
            Outcome::Probed(probed) => Ok(Some(probed)),
            _ => Ok(None),
        }
    }

    /// Removes a key, durably when this returns; `false`: there was none.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, ClientError> {
        let ticket = self.submit_delete(key)?;
        Ok(self.finish(ticket)? == Outcome::Removed)
    }

    /// Submits a put. The value is copied.
    ///
    /// # Errors
    /// See [`ClientError`]; then nothing was submitted.
    pub fn submit_put(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
        way: Way,
    ) -> Result<Ticket, ClientError> {
        check_key(key)?;
        let is_short = value.len() <= self.inline_bytes;
        let is_inline = match way {
            Way::Auto => is_short,
            Way::Inline => true,
            Way::ServerAssisted => false,
            way if self.ways & way.place() != 0 => false,
            _ => return Err(ClientError::NotOffered),
        };
        let most = if is_inline {
            self.link.body_bytes()
        } else {
            VALUE_BYTES_MAX
        };
        if value.len() > most {
            return Err(ClientError::ValueLength(value.len()));
        }
        self.await_grants_of(key)?;
        let ticket = self.ticket();
        let head = Head {
            value_bytes: value.len() as u64,
            expires_at_ms,
            ..Head::request(Kind::Put, 0)
        };
        if is_inline {
            self.send(head, ticket, Stage::Put(Way::Inline), key, value)?;
        } else {
            let head = Head {
                kind: Kind::Prepare,
                place: way.asked(self.ways),
                ..head
            };
            let stage = Stage::Prepare {
                way: if way == Way::Auto {
                    Way::ServerAssisted
                } else {
                    way
                },
                key: key.to_vec(),
                value: self.buffers.copy_of(value),
                expires_at_ms,
            };
            self.send(head, ticket, stage, key, &[])?;
        }
        Ok(ticket)
    }

    /// Submits a get.
    ///
    /// # Errors
    /// See [`ClientError`]; then nothing was submitted.
    pub fn submit_get(&mut self, key: &[u8]) -> Result<Ticket, ClientError> {
        check_key(key)?;
        self.await_grants_of(key)?;
        let ticket = self.ticket();
        let get = Get {
            key: key.to_vec(),
            tries: 0,
            begun: Instant::now(),
        };
        let head = Head {
            place: self.place_of(&get),
            ..Head::request(Kind::Get, 0)
        };
        self.send(head, ticket, Stage::Get(get), key, &[])?;
        Ok(ticket)
    }

    /// Submits a removal.
    ///
    /// # Errors
    /// See [`ClientError`]; then nothing was submitted.
    pub fn submit_delete(&mut self, key: &[u8]) -> Result<Ticket, ClientError> {
        check_key(key)?;
        self.await_grants_of(key)?;
        let ticket = self.ticket();
        self.ask(Kind::Delete, ticket, Stage::Delete, key, &[])?;
        Ok(ticket)
    }

    /// Calls that have ended, in that order. Waits for one, at most for `timeout`, if calls are under way.
    ///
    /// # Errors
    /// [`ClientError::Link`]. The end of the connection is an outcome of each call that was under way.
    pub fn poll(&mut self, timeout: Duration) -> Result<Vec<Done>, ClientError> {
        let until = Instant::now().checked_add(timeout);
        while self.done.is_empty() && self.calls_under_way() > 0 {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            self.take_in(left)?;
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
        }
        Ok(self.done.drain(..).collect())
    }

    /// Calls that have not ended.
    #[must_use]
    pub fn calls_under_way(&self) -> usize {
        self.under_way.len() + self.committing.len() + self.reading.len() + self.again.len()
    }

    /// Whether the connection has not ended, as far as this end knows.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// No ticket will be one of an earlier connection.
    pub(crate) fn number_after(&mut self, earlier: &Client) {
        self.last = self.last.max(earlier.last);
    }

    fn ticket(&mut self) -> Ticket {
        self.last += 1;
        Ticket(self.last)
    }

    fn ask(
        &mut self,
        kind: Kind,
        ticket: Ticket,
        stage: Stage,
        key: &[u8],
        body: &[u8],
    ) -> Result<(), ClientError> {
        self.send(Head::request(kind, 0), ticket, stage, key, body)
    }

    /// Sends a request, after waiting until the door takes one more. Values that are being read in place
    /// count: each has all its memory.
    fn send(
        &mut self,
        head: Head,
        ticket: Ticket,
        stage: Stage,
        key: &[u8],
        body: &[u8],
    ) -> Result<(), ClientError> {
        while self.is_open && self.under_way.len() + self.reading.len() >= self.credits {
            self.take_in(None)?;
        }
        self.send_now(head, ticket, stage, key, body)
    }

    fn send_now(
        &mut self,
        mut head: Head,
        ticket: Ticket,
        mut stage: Stage,
        key: &[u8],
        body: &[u8],
    ) -> Result<(), ClientError> {
        if let Stage::Get(get) = &mut stage {
            // It may have waited, and its lease does not count that.
            get.begun = Instant::now();
        }
        if !self.is_open {
            return Err(ClientError::Link(LinkError::Closed));
        }
        self.sequence = self.sequence.wrapping_add(1);
        while self.under_way.contains_key(&self.sequence) {
            self.sequence = self.sequence.wrapping_add(1);
        }
        head.sequence = self.sequence;
        let bytes = head.to_bytes(key, body);
        self.under_way
            .insert(self.sequence, Pending { ticket, stage });
        let parts = [&bytes[..], key, zeros(key), body];
        if self.link.send(self.conn, &parts).is_err() {
            // Also this call has an outcome.
            self.end();
        }
        Ok(())
    }

    /// Waits for the outcome of a call.
    fn finish(&mut self, ticket: Ticket) -> Result<Outcome, ClientError> {
        loop {
            let place = self.done.iter().position(|done| done.ticket == ticket);
            if let Some(done) = place.and_then(|place| self.done.remove(place)) {
                return done.outcome;
            }
            if !self.is_open {
                return Err(ClientError::Unknown);
            }
            self.take_in(None)?;
        }
    }

    /// A put that has not been carried out would be overtaken by a later call of the same key.
    fn await_grants_of(&mut self, key: &[u8]) -> Result<(), ClientError> {
        while self
            .under_way
            .values()
            .any(|pending| pending.stage.writes(key))
            || self.again.iter().any(|again| again.stage.writes(key))
            || self.committing.values().any(|one| one.landed.key == key)
        {
            self.take_in(None)?;
        }
        Ok(())
    }

    fn take_in(&mut self, timeout: Option<Duration>) -> Result<(), ClientError> {
        let mut events = std::mem::take(&mut self.events);
        if let Err(error) = self.link.wait(timeout, &mut events) {
            self.end();
            return Err(error.into());
        }
        for event in events.drain(..) {
            match event {
                Event::Message(_, buffer) => {
                    let bytes = self.link.message(&buffer);
                    let message = wire::read_up_to(bytes, self.link.body_bytes());
                    let message = message.filter(|message| message.head.is_reply);
                    let reply = message.map(|message| {
                        let body = bytes.get(message.body).unwrap_or_default();
                        (message.head, body.to_vec())
                    });
                    let given = self.link.give_back(buffer, true);
                    match reply {
                        _ if !self.is_open => {}
                        Some((head, body)) if given.is_ok() => self.answer(&head, body),
                        // Nothing behind it can be trusted.
                        _ => self.end(),
                    }
                }
                Event::Closed(_)
                | Event::Written(false)
                | Event::Committed(_, false)
                | Event::Read(_, None) => self.end(),
                Event::Committed(token, true) => self.committed(token),
                Event::Read(token, Some(bytes)) => self.take_in_place(token, &bytes),
                Event::Opened | Event::Written(true) | Event::Told(..) => {}
            }
        }
        self.events = events;
        Ok(())
    }

    /// The connection has ended, and with it whatever was under way.
    fn end(&mut self) {
        self.is_open = false;
        self.link.close(self.conn);
        let under_way = std::mem::take(&mut self.under_way).into_values();
        let mut tickets: Vec<Ticket> = under_way.map(|pending| pending.ticket).collect();
        tickets.extend(self.again.drain(..).map(|again| again.ticket));
        tickets.extend(self.reading.drain().map(|(ticket, _)| ticket));
        self.reads.clear();
        tickets.extend(self.committing.drain().map(|(_, one)| one.ticket));
        tickets.extend(self.long.take().map(|long| long.ticket));
        tickets.sort_unstable();
        tickets.dedup();
        let unknown = |ticket| Done {
            ticket,
            outcome: Err(ClientError::Unknown),
        };
        self.done.extend(tickets.into_iter().map(unknown));
    }
}

/// A value that is on its way to persistent memory of the server.
struct Committing {
    ticket: Ticket,
    /// Writes that have not ended.
    pieces: usize,
    landed: Landed,
}

/// A call that is to be asked for again.
struct Again {
    ticket: Ticket,
    stage: Stage,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.link.close(self.conn);
    }
}

fn check_key(key: &[u8]) -> Result<(), ClientError> {
    match key.len() {
        1..=KEY_BYTES_MAX => Ok(()),
        bytes => Err(ClientError::KeyLength(bytes)),
    }
}
