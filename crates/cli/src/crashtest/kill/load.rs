//! What one connection does between two kills: writes its own keys, reads everybody's, and judges what it is
//! shown.
//!
//! Every request is in the expected-state file before it is sent; every answer is there right after it was
//! read.

use super::expected::{Event, Expected, Moment, Seen, State, Violation, Window};
use super::journal::{Journal, now_ms};
use super::keys::{Keys, Kind};
use super::tally::Tally;
use crate::client::{Client, Reply};
use crate::killing::process::misconduct;
use crate::killing::value;
use anyhow::Context;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::fmt::Write;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Most requests under way on one connection.
const DEPTH_MAX: usize = 16;
/// Expiry far in the future, so that nothing of it happens within a campaign.
const FAR_MS: u64 = 86_400_000;
/// One in so many reads, deletions and changes of expiry is of a key whose values may be large.
const LARGE_ONE_IN: usize = 24;
/// One in so many rounds only looks at what others have just written; no answer of a write of its own holds
/// those answers up.
const LOOK_ONE_IN: u32 = 3;
/// Most requests of such a round.
const LOOKS_MAX: usize = 3;

/// What all connections of a stretch share.
pub(crate) struct Shared<'a> {
    pub(crate) keys: Keys,
    pub(crate) expected: &'a Expected,
    pub(crate) journal: &'a Journal,
    pub(crate) tally: &'a Tally,
    /// The key that each connection wrote last, for others to look at while nobody has been answered yet.
    pub(crate) latest: Box<[AtomicUsize]>,
    /// Ends the load in order.
    pub(crate) stop: AtomicBool,
}

impl<'a> Shared<'a> {
    /// What connections begin with.
    pub(crate) fn new(
        keys: Keys,
        expected: &'a Expected,
        journal: &'a Journal,
        tally: &'a Tally,
    ) -> Shared<'a> {
        Shared {
            keys,
            expected,
            journal,
            tally,
            latest: (0..keys.connections).map(|_| AtomicUsize::new(0)).collect(),
            stop: AtomicBool::new(false),
        }
    }
}

/// How a connection's load ended.
pub(crate) enum Ended {
    /// It was told to stop, and every request was answered.
    Stopped,
    /// The connection broke.
    Cut(io::Error),
}

/// A request under way.
enum Sent {
    Read {
        key: usize,
        window: Window,
        from_ms: u64,
    },
    Write {
        key: usize,
        state: State,
        answer: Answer,
    },
}

/// What a write is answered.
enum Answer {
    Ok,
    Integer(u64),
    /// The server's moment decides.
    Unknown,
    /// MULTI, commands that are answered so, EXEC.
    Transaction(Vec<Reply>),
}

/// The load of one connection, until it is told to stop or its connection breaks.
///
/// # Errors
/// If the server refuses a request, or the expected-state file cannot be written.
pub(crate) fn run(
    shared: &Shared<'_>,
    connection: usize,
    port: u16,
    seed: u64,
) -> anyhow::Result<Ended> {
    let mut client = match Client::connect(("127.0.0.1", port)) {
        Ok(client) => client,
        Err(error) => return Ok(Ended::Cut(error)),
    };
    let mut mixer = Mixer {
        shared,
        connection,
        random: StdRng::seed_from_u64(seed.wrapping_add(connection as u64)),
        lines: String::new(),
        value: Vec::new(),
    };
    while !shared.stop.load(Ordering::Relaxed) {
        if let Err(error) = mixer.round(&mut client)? {
            return Ok(Ended::Cut(error));
        }
    }
    Ok(Ended::Stopped)
}

/// Makes up requests and takes their answers.
struct Mixer<'a> {
    shared: &'a Shared<'a>,
    connection: usize,
    random: StdRng,
    /// Of the expected-state file, not written yet.
    lines: String,
    value: Vec<u8>,
}

impl Mixer<'_> {
    /// Some requests and their answers. The inner error is the connection's.
    fn round(&mut self, client: &mut Client) -> anyhow::Result<io::Result<()>> {
        let sent: Vec<Sent> = match self.random.random_range(0..LOOK_ONE_IN) {
            0 => (0..self.random.random_range(1..=LOOKS_MAX))
                .map(|_| self.look(client))
                .collect(),
            _ => (0..self.random.random_range(1..=DEPTH_MAX))
                .map(|_| self.queue(client))
                .collect(),
        };
        self.flush()?;
        if let Err(error) = client.send() {
            return Ok(Err(error));
        }
        let cut = self.take_answers(client, sent);
        // What was answered counts, also if the next answer was a refusal.
        self.flush()?;
        cut
    }

    fn take_answers(
        &mut self,
        client: &mut Client,
        sent: Vec<Sent>,
    ) -> anyhow::Result<io::Result<()>> {
        for request in sent {
            let cut = match request {
                Sent::Read {
                    key,
                    window,
                    from_ms,
                } => self.end_read(client, key, window, from_ms)?,
                Sent::Write { key, state, answer } => {
                    self.end_write(client, key, state, &answer)?
                }
            };
            if cut.is_err() {
                return Ok(cut);
            }
        }
        Ok(Ok(()))
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        let written = self.shared.journal.append(&self.lines);
        self.lines.clear();
        written
    }

    fn note(&mut self, event: Event) {
        self.shared.expected.apply(event);
        // Writing to a string cannot fail.
        let _ = write!(self.lines, "{event}");
    }

    fn queue(&mut self, client: &mut Client) -> Sent {
        let keys = self.shared.keys;
        let chosen = self.random.random_range(0..1 << 30);
        match self.random.random_range(0..1000) {
            0..220 => self.read(self.random_key(chosen), client),
            220..500 => self.put(keys.document(self.connection, chosen), client),
            500..560 => self.delete(self.value_key(self.connection, chosen), client),
            560..600 => self.expire(self.value_key(self.connection, chosen), client),
            600..604 => self.put(keys.large(self.connection, chosen), client),
            604..700 => self.increment(keys.counter(self.connection, chosen), client),
            _ => self.put_batch(keys.batch(self.connection, chosen), client),
        }
    }

    /// Reads what some connection wrote last.
    fn look(&mut self, client: &mut Client) -> Sent {
        let latest = &self.shared.latest;
        let other = self.random.random_range(0..latest.len());
        let key = latest[other].load(Ordering::Relaxed);
        self.read(key, client)
    }

    fn random_key(&self, chosen: usize) -> usize {
        let keys = self.shared.keys;
        let (connection, chosen) = (chosen % keys.connections, chosen / keys.connections);
        let chosen_key = chosen / 4;
        match chosen % 4 {
            0 => keys.batch(connection, chosen_key),
            1 => keys.counter(connection, chosen_key),
            _ => self.value_key(connection, chosen_key),
        }
    }

    /// A document as a rule, sometimes a large one.
    fn value_key(&self, connection: usize, chosen: usize) -> usize {
        let (keys, rest) = (self.shared.keys, chosen / LARGE_ONE_IN);
        match chosen % LARGE_ONE_IN {
            0 => keys.large(connection, rest),
            _ => keys.document(connection, rest),
        }
    }

    fn read(&mut self, key: usize, client: &mut Client) -> Sent {
        let keys = self.shared.keys;
        let by_writer = keys.is_owned(key, self.connection);
        let window = self.shared.expected.begin_read(key, by_writer);
        let from_ms = now_ms();
        queue_read(keys, key, client);
        Sent::Read {
            key,
            window,
            from_ms,
        }
    }

    fn end_read(
        &mut self,
        client: &mut Client,
        key: usize,
        window: Window,
        from_ms: u64,
    ) -> anyhow::Result<io::Result<()>> {
        let seen = match receive_read(self.shared.keys, key, client) {
            Ok(seen) => seen,
            Err(error) if is_refusal(&error) => {
                let name = self.shared.keys.name(key);
                return Err(misconduct(format_args!("reading {name}: {error}")));
            }
            Err(error) => return Ok(Err(error)),
        };
        let to_ms = now_ms();
        self.shared.tally.reads.add(1);
        let moment = Moment { from_ms, to_ms };
        match self.shared.expected.judge(key, window, &seen, moment) {
            Ok(Some(number)) => self.note(Event::Shown {
                key,
                number,
                at_ms: to_ms,
            }),
            Ok(None) => {}
            Err(violation) => self.convict(key, &violation),
        }
        Ok(Ok(()))
    }

    fn convict(&self, key: usize, violation: &Violation) {
        let name = self.shared.keys.name(key);
        let words = format!("read under load of {name}: {violation}");
        let tally = self.shared.tally;
        tally.convict_under_load(violation.breach, words);
    }

    /// Takes note of a write that is about to be sent.
    fn write(&mut self, key: usize, value: Option<u64>, expires_at_ms: u64) -> State {
        let number = self.shared.expected.last(key).number + 1;
        let state = State {
            number,
            value: value.unwrap_or(number),
            expires_at_ms,
            promised_at_ms: 0,
        };
        self.note(Event::Sent { key, state });
        self.shared.latest[self.connection].store(key, Ordering::Relaxed);
        state
    }

    fn put(&mut self, key: usize, client: &mut Client) -> Sent {
        let expires_at_ms = match self.random.random_range(0..10) {
            0 => now_ms() + self.random.random_range(1..400),
            1 => now_ms() + FAR_MS,
            _ => 0,
        };
        let state = self.write(key, None, expires_at_ms);
        let bytes = self.value_bytes(self.shared.keys.kind(key));
        let name = self.shared.keys.name(key);
        value::write(&mut self.value, name.as_bytes(), state.number, bytes);
        if expires_at_ms == 0 {
            client.queue(&[b"SET", name.as_bytes(), &self.value]);
        } else {
            let at = expires_at_ms.to_string();
            client.queue(&[b"SET", name.as_bytes(), &self.value, b"PXAT", at.as_bytes()]);
        }
        let answer = Answer::Ok;
        Sent::Write { key, state, answer }
    }

    fn delete(&mut self, key: usize, client: &mut Client) -> Sent {
        let is_there = self.shared.expected.is_there(key, now_ms());
        let answer = is_there.map_or(Answer::Unknown, |there| Answer::Integer(u64::from(there)));
        let state = self.write(key, Some(0), 0);
        client.queue(&[b"DEL", self.shared.keys.name(key).as_bytes()]);
        Sent::Write { key, state, answer }
    }

    /// Another expiry for the value that is there, or none at all; a value if there is none for certain.
    fn expire(&mut self, key: usize, client: &mut Client) -> Sent {
        let last = self.shared.expected.last(key);
        if self.shared.expected.is_there(key, now_ms()) != Some(true) {
            return self.put(key, client);
        }
        let name = self.shared.keys.name(key);
        if last.expires_at_ms != 0 {
            let state = self.write(key, Some(last.value), 0);
            client.queue(&[b"PERSIST", name.as_bytes()]);
            let answer = Answer::Integer(1);
            return Sent::Write { key, state, answer };
        }
        let from_now = if self.random.random() { FAR_MS } else { 150 };
        let expires_at_ms = now_ms() + from_now;
        let state = self.write(key, Some(last.value), expires_at_ms);
        let at = expires_at_ms.to_string();
        client.queue(&[b"PEXPIREAT", name.as_bytes(), at.as_bytes()]);
        let answer = Answer::Integer(1);
        Sent::Write { key, state, answer }
    }

    fn increment(&mut self, key: usize, client: &mut Client) -> Sent {
        let value = self.shared.expected.last(key).value + 1;
        let state = self.write(key, Some(value), 0);
        client.queue(&[b"INCR", self.shared.keys.name(key).as_bytes()]);
        let answer = Answer::Integer(value);
        Sent::Write { key, state, answer }
    }

    fn put_batch(&mut self, key: usize, client: &mut Client) -> Sent {
        let keys = self.shared.keys;
        let before = self.shared.expected.last(key).value;
        let state = self.write(key, None, 0);
        let members: Vec<(String, Vec<u8>)> = keys
            .members(key)
            .map(|(member, name)| {
                let mut bytes = Vec::new();
                if keys.is_put(key, state.number, member) {
                    let length = self.value_bytes(Kind::Document);
                    value::write(&mut bytes, name.as_bytes(), state.number, length);
                }
                (name, bytes)
            })
            .collect();
        if keys.kind(key) == Kind::Mset {
            let mut words: Vec<&[u8]> = vec![b"MSET"];
            for (name, value) in &members {
                words.extend([name.as_bytes(), value.as_slice()]);
            }
            client.queue(&words);
            let answer = Answer::Ok;
            return Sent::Write { key, state, answer };
        }
        client.queue(&[b"MULTI"]);
        let mut answers = Vec::new();
        for (member, (name, value)) in (0..).zip(&members) {
            // The empty value stands for a deletion: every real one has a header.
            if value.is_empty() {
                let was_there = before != 0 && keys.is_put(key, before, member);
                answers.push(Reply::Integer(i64::from(was_there)));
                client.queue(&[b"DEL", name.as_bytes()]);
            } else {
                answers.push(Reply::Simple("OK".into()));
                client.queue(&[b"SET", name.as_bytes(), value]);
            }
        }
        client.queue(&[b"EXEC"]);
        let answer = Answer::Transaction(answers);
        Sent::Write { key, state, answer }
    }

    fn end_write(
        &mut self,
        client: &mut Client,
        key: usize,
        state: State,
        answer: &Answer,
    ) -> anyhow::Result<io::Result<()>> {
        if let Answer::Transaction(answers) = answer {
            // MULTI's own answer and one "QUEUED" for each command: an error among them fails EXEC, too.
            for _ in 0..=answers.len() {
                if let Err(error) = client.receive() {
                    return Ok(Err(error));
                }
            }
        }
        let reply = match client.receive() {
            Ok(reply) => reply.accepted().context("a write")?,
            Err(error) => return Ok(Err(error)),
        };
        let (name, tally) = (self.shared.keys.name(key), self.shared.tally);
        if let Some(wrong) = answer.judge(reply)? {
            let words = format!("write {} of {name}: {wrong}", state.number);
            tally.convict_of(&tally.inconsistent, words);
        }
        tally.acknowledged.add(1);
        let (number, at_ms) = (state.number, now_ms());
        self.note(Event::Acknowledged { key, number, at_ms });
        Ok(Ok(()))
    }

    /// Mostly small, some larger than a page, a few larger than several blocks.
    fn value_bytes(&mut self, kind: Kind) -> usize {
        let most = match (kind, self.random.random_range(0..100)) {
            (Kind::Large, 0..30) => 1 << 20,
            (Kind::Large, _) => 200 << 10,
            (_, 0..60) => 300,
            (_, 60..92) => 4 << 10,
            (_, 92..99) => 20 << 10,
            (_, _) => 64 << 10,
        };
        self.random.random_range(value::VALUE_BYTES_MIN..most)
    }
}

impl Answer {
    /// What is wrong with a reply, if it is none of the right ones.
    ///
    /// # Errors
    /// If it is none that a write can have.
    fn judge(&self, reply: Reply) -> anyhow::Result<Option<String>> {
        let is_right = match (self, &reply) {
            (Answer::Ok, Reply::Simple(text)) if text == "OK" => true,
            (Answer::Unknown, Reply::Integer(_)) => true,
            (&Answer::Integer(expected), &Reply::Integer(found)) => {
                u64::try_from(found) == Ok(expected)
            }
            (Answer::Transaction(expected), Reply::Array(found))
                if expected.len() == found.len()
                    && !found.iter().any(|one| matches!(one, Reply::Error(_))) =>
            {
                expected == found
            }
            _ => anyhow::bail!("a write was answered {reply:?}"),
        };
        let wrong = || match self {
            Answer::Transaction(expected) => {
                format!("EXEC was answered {reply:?}, expected was {expected:?}")
            }
            Answer::Integer(expected) => {
                format!("it was answered {reply:?}, expected was {expected}")
            }
            Answer::Ok | Answer::Unknown => format!("it was answered {reply:?}"),
        };
        Ok((!is_right).then(wrong))
    }
}

/// Queues what reads a key: one GET, or one command that reads all names of a batch at one moment.
pub(crate) fn queue_read(keys: Keys, key: usize, client: &mut Client) {
    let names: Vec<String> = keys.members(key).map(|(_, name)| name).collect();
    match keys.kind(key) {
        Kind::Mset => {
            let mut words: Vec<&[u8]> = vec![b"MGET"];
            words.extend(names.iter().map(String::as_bytes));
            client.queue(&words);
        }
        Kind::Exec => {
            client.queue(&[b"MULTI"]);
            names
                .iter()
                .for_each(|name| client.queue(&[b"GET", name.as_bytes()]));
            client.queue(&[b"EXEC"]);
        }
        _ => client.queue(&[b"GET", keys.name(key).as_bytes()]),
    }
}

/// The answer to [`queue_read`].
///
/// # Errors
/// The connection's, or the server's refusal ([`is_refusal`]).
pub(crate) fn receive_read(keys: Keys, key: usize, client: &mut Client) -> io::Result<Seen> {
    match keys.kind(key) {
        Kind::Exec => {
            for _ in 0..=keys.members(key).count() {
                client.receive()?.accepted()?;
            }
        }
        Kind::Mset => {}
        _ => return keys.seen(key, client.receive()?),
    }
    match client.receive()?.accepted()? {
        Reply::Array(replies) => keys.seen_together(key, replies),
        other => Err(io::Error::other(format!("a batch was answered {other:?}"))),
    }
}

/// Whether an error is the server's word and not the connection's end.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Other
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
