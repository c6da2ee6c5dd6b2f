//! The load of one connection: it writes its own keys, reads all keys, and judges the answers.
//!
//! A request is in the ledger before it is sent, and an answer right after it was read. The campaign's
//! [`Mix`] chooses the requests.

use super::expected::{Event, Moment, Seen, State, Window};
use super::journal::{Ledger, Notes, now_ms};
use super::keys::{Keys, Kind, MEMBERS};
use super::process::{Process, misconduct};
use super::tally::Tally;
use super::value;
use crate::client::{Client, Reply, SILENCE_MAX};
use anyhow::Context;
use hdrhistogram::Histogram;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Times from request to answer, in nanoseconds.
pub(crate) type Times = Histogram<u64>;

/// Chooses the requests of a campaign's connections.
pub(crate) trait Mix: Sync {
    /// Queues the requests of one round.
    fn round(&self, to: &mut Connection<'_>);

    /// Length of the next value of a key of this kind.
    fn value_bytes(&self, kind: Kind, random: &mut StdRng) -> usize;
}

/// What all connections of a stretch share.
pub(crate) struct Shared<'a> {
    pub(crate) keys: &'a dyn Keys,
    pub(crate) mix: &'a dyn Mix,
    pub(crate) ledger: Ledger<'a>,
    pub(crate) tally: &'a Tally,
    /// The key that each connection wrote last. Other connections read it while the write may be unanswered.
    pub(crate) latest: Box<[AtomicUsize]>,
    /// Ends the load in order.
    pub(crate) stop: AtomicBool,
    /// Whether the server was killed, so that connections may break.
    killed: AtomicBool,
}

impl<'a> Shared<'a> {
    /// The state at the start of a stretch.
    pub(crate) fn new(
        keys: &'a dyn Keys,
        mix: &'a dyn Mix,
        ledger: Ledger<'a>,
        tally: &'a Tally,
    ) -> Shared<'a> {
        Shared {
            keys,
            mix,
            ledger,
            tally,
            latest: (0..keys.connections())
                .map(|_| AtomicUsize::new(0))
                .collect(),
            stop: AtomicBool::new(false),
            killed: AtomicBool::new(false),
        }
    }

    /// Sends SIGKILL to the server of these connections.
    ///
    /// # Errors
    /// As [`Process::kill`].
    pub(crate) fn kill(&self, process: Process) -> anyhow::Result<()> {
        self.killed.store(true, Ordering::SeqCst);
        process.kill()
    }
}

/// Counts times from a nanosecond to a client's limit, to three digits; a longer time counts as the limit.
pub(crate) fn empty_times() -> anyhow::Result<Times> {
    let longest = u64::try_from(SILENCE_MAX.as_nanos())?;
    Ok(Histogram::new_with_bounds(1, longest, 3)?)
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

/// The correct answer to a write.
enum Answer {
    Ok,
    Integer(u64),
    /// Depends on when the server executes the write.
    Unknown,
    /// MULTI, commands with these replies, EXEC.
    Transaction(Vec<Reply>),
}

/// The connection broke. This is correct only if the server was killed.
#[derive(Debug)]
struct Cut(io::Error);

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a connection broke: {}", self.0)
    }
}

impl std::error::Error for Cut {}

/// Loads the server from one connection until `stop` is set or the server was killed.
///
/// # Errors
/// If the server refuses a request, a connection breaks before the kill, or the expected-state file cannot be
/// written. An error stops the load of all connections.
pub(super) fn run(
    shared: &Shared<'_>,
    number: usize,
    port: u16,
    seed: u64,
) -> anyhow::Result<Times> {
    let mut times = empty_times()?;
    let Err(error) = rounds(shared, number, port, seed, &mut times) else {
        return Ok(times);
    };
    let is_cut = error.is::<Cut>();
    if is_cut && shared.killed.load(Ordering::SeqCst) {
        return Ok(times);
    }
    shared.stop.store(true, Ordering::Relaxed);
    Err(if is_cut {
        misconduct(format_args!("before the server was killed, {error}"))
    } else {
        error
    })
}

fn rounds(
    shared: &Shared<'_>,
    number: usize,
    port: u16,
    seed: u64,
    times: &mut Times,
) -> anyhow::Result<()> {
    let mut connection = Connection::open(shared, number, port, seed)?;
    while !shared.stop.load(Ordering::Relaxed) {
        shared.mix.round(&mut connection);
        connection.exchange(times)?;
    }
    Ok(())
}

/// One connection: sends requests and takes their answers.
pub(crate) struct Connection<'a> {
    pub(crate) shared: &'a Shared<'a>,
    pub(crate) number: usize,
    pub(crate) random: StdRng,
    client: Client,
    /// Requests queued or sent, without an answer so far.
    sent: Vec<Sent>,
    notes: Notes<'a>,
    value: Vec<u8>,
}

impl<'a> Connection<'a> {
    /// # Errors
    /// If the connection fails.
    pub(crate) fn open(
        shared: &'a Shared<'a>,
        number: usize,
        port: u16,
        seed: u64,
    ) -> anyhow::Result<Connection<'a>> {
        Ok(Connection {
            shared,
            number,
            random: StdRng::seed_from_u64(seed.wrapping_add(number as u64)),
            client: Client::connect(("127.0.0.1", port)).map_err(Cut)?,
            sent: Vec::new(),
            notes: shared.ledger.notes(),
            value: Vec::new(),
        })
    }

    /// The number of queued requests, and their bytes.
    pub(crate) fn queued(&self) -> (usize, usize) {
        (self.sent.len(), self.client.queued_bytes())
    }

    /// Sends the queued requests and receives the answers.
    ///
    /// # Errors
    /// If the connection breaks, the server refuses a request, or the expected-state file cannot be written.
    pub(crate) fn exchange(&mut self, times: &mut Times) -> anyhow::Result<()> {
        self.notes.flush()?;
        let begun = Instant::now();
        self.client.send().map_err(Cut)?;
        let taken = self.take_answers(begun, times);
        // The answers received so far count, even if the next one was a refusal.
        self.notes.flush()?;
        taken
    }

    fn take_answers(&mut self, begun: Instant, times: &mut Times) -> anyhow::Result<()> {
        for request in std::mem::take(&mut self.sent) {
            match request {
                Sent::Read {
                    key,
                    window,
                    from_ms,
                } => self.end_read(key, window, from_ms)?,
                Sent::Write { key, state, answer } => self.end_write(key, state, &answer)?,
            }
            self.shared.tally.answered.add(1);
            let took = u64::try_from(begun.elapsed().as_nanos());
            times.saturating_record(took.unwrap_or(u64::MAX));
        }
        Ok(())
    }

    pub(crate) fn read(&mut self, key: usize) {
        let keys = self.shared.keys;
        let by_writer = keys.writer(key) == self.number;
        let window = self.shared.ledger.expected.begin_read(key, by_writer);
        let from_ms = now_ms();
        queue_read(keys, key, &mut self.client);
        self.sent.push(Sent::Read {
            key,
            window,
            from_ms,
        });
    }

    fn end_read(&mut self, key: usize, window: Window, from_ms: u64) -> anyhow::Result<()> {
        let seen = receive_read(self.shared.keys, key, &mut self.client).map_err(|error| {
            if is_refusal(&error) {
                misconduct(format_args!("reading {}: {error}", self.name(key)))
            } else {
                Cut(error).into()
            }
        })?;
        let to_ms = now_ms();
        self.shared.tally.reads.add(1);
        let moment = Moment { from_ms, to_ms };
        let expected = self.shared.ledger.expected;
        match expected.judge(key, window, &seen, moment) {
            Ok(Some(number)) => self.notes.add(Event::Shown {
                key,
                number,
                at_ms: to_ms,
            }),
            Ok(None) => {}
            Err(violation) => {
                let words = format!("read under load of {}: {violation}", self.name(key));
                self.shared
                    .tally
                    .convict_under_load(violation.breach, words);
            }
        }
        Ok(())
    }

    fn name(&self, key: usize) -> String {
        self.shared.keys.name(key).escape_ascii().to_string()
    }

    /// The state that the writer of `key` will see next.
    pub(crate) fn last(&self, key: usize) -> State {
        self.shared.ledger.expected.last(key)
    }

    /// Whether `key` has a value; `None` if its writer cannot tell.
    pub(crate) fn is_there(&self, key: usize) -> Option<bool> {
        self.shared.ledger.expected.is_there(key, now_ms())
    }

    /// Records a write before it is sent.
    fn write(&mut self, key: usize, value: Option<u64>, expires_at_ms: u64) -> State {
        let number = self.last(key).number + 1;
        let state = State {
            number,
            value: value.unwrap_or(number),
            expires_at_ms,
            promised_at_ms: 0,
        };
        self.notes.add(Event::Sent { key, state });
        self.shared.latest[self.number].store(key, Ordering::Relaxed);
        state
    }

    fn is_sent(&mut self, key: usize, state: State, answer: Answer) {
        self.sent.push(Sent::Write { key, state, answer });
    }

    /// Puts a value of the mix's length. It expires at `expires_at_ms`; 0 = never.
    pub(crate) fn put(&mut self, key: usize, expires_at_ms: u64) {
        let state = self.write(key, None, expires_at_ms);
        let (keys, mix) = (self.shared.keys, self.shared.mix);
        let bytes = mix.value_bytes(keys.kind(key), &mut self.random);
        let name = keys.name(key);
        value::write(&mut self.value, &name, state.number, bytes);
        if expires_at_ms == 0 {
            self.client.queue(&[b"SET", &name, &self.value]);
        } else {
            let at = expires_at_ms.to_string();
            self.client
                .queue(&[b"SET", &name, &self.value, b"PXAT", at.as_bytes()]);
        }
        self.is_sent(key, state, Answer::Ok);
    }

    /// Puts a value that does not name its write. [`Keys::write_of`] must recognise it.
    pub(crate) fn put_bytes(&mut self, key: usize, value: &[u8]) {
        let state = self.write(key, None, 0);
        self.client
            .queue(&[b"SET", &self.shared.keys.name(key), value]);
        self.is_sent(key, state, Answer::Ok);
    }

    pub(crate) fn delete(&mut self, key: usize) {
        let is_there = self.is_there(key);
        let answer = is_there.map_or(Answer::Unknown, |there| Answer::Integer(u64::from(there)));
        let state = self.write(key, Some(0), 0);
        self.client.queue(&[b"DEL", &self.shared.keys.name(key)]);
        self.is_sent(key, state, answer);
    }

    /// Gives the key's value another expiry, or none if `expires_at_ms` is 0. The key must have a value.
    pub(crate) fn change_expiry(&mut self, key: usize, expires_at_ms: u64) {
        let last = self.last(key);
        let state = self.write(key, Some(last.value), expires_at_ms);
        let name = self.shared.keys.name(key);
        if expires_at_ms == 0 {
            self.client.queue(&[b"PERSIST", &name]);
        } else {
            let at = expires_at_ms.to_string();
            self.client.queue(&[b"PEXPIREAT", &name, at.as_bytes()]);
        }
        self.is_sent(key, state, Answer::Integer(1));
    }

    pub(crate) fn increment(&mut self, key: usize) {
        let value = self.last(key).value + 1;
        let state = self.write(key, Some(value), 0);
        self.client.queue(&[b"INCR", &self.shared.keys.name(key)]);
        self.is_sent(key, state, Answer::Integer(value));
    }

    /// Writes a batch: one MSET, or one MULTI/EXEC that puts most of its names and deletes the others.
    pub(crate) fn put_batch(&mut self, key: usize) {
        let (keys, mix) = (self.shared.keys, self.shared.mix);
        let before = self.last(key).value;
        let state = self.write(key, None, 0);
        let members: Vec<(u64, Vec<u8>, Vec<u8>)> = (0..)
            .zip(keys.names(key))
            .map(|(member, name)| {
                let mut bytes = Vec::new();
                if keys.is_put(key, state.number, member) {
                    let length = mix.value_bytes(keys.kind(key), &mut self.random);
                    value::write(&mut bytes, &name, state.number, length);
                }
                (member, name, bytes)
            })
            .collect();
        if keys.kind(key) == Kind::Mset {
            let mut words: Vec<&[u8]> = vec![b"MSET"];
            for (_, name, value) in &members {
                words.extend([name.as_slice(), value.as_slice()]);
            }
            self.client.queue(&words);
            return self.is_sent(key, state, Answer::Ok);
        }
        self.client.queue(&[b"MULTI"]);
        let mut answers = Vec::new();
        for (member, name, value) in &members {
            // An empty value stands for a deletion, as every value has a header.
            if value.is_empty() {
                let was_there = before != 0 && keys.is_put(key, before, *member);
                answers.push(Reply::Integer(i64::from(was_there)));
                self.client.queue(&[b"DEL", name]);
            } else {
                answers.push(Reply::Simple("OK".into()));
                self.client.queue(&[b"SET", name, value]);
            }
        }
        self.client.queue(&[b"EXEC"]);
        self.is_sent(key, state, Answer::Transaction(answers));
    }

    fn end_write(&mut self, key: usize, state: State, answer: &Answer) -> anyhow::Result<()> {
        if let Answer::Transaction(answers) = answer {
            // The replies to MULTI and to each queued command. An error among them also makes EXEC fail.
            for _ in 0..=answers.len() {
                self.client.receive().map_err(Cut)?;
            }
        }
        let reply = self.client.receive().map_err(Cut)?;
        let reply = reply.accepted().context("a write")?;
        let tally = self.shared.tally;
        if let Some(wrong) = answer.judge(reply)? {
            let words = format!("write {} of {}: {wrong}", state.number, self.name(key));
            tally.convict_of(&tally.inconsistent, words);
        }
        tally.acknowledged.add(1);
        let (number, at_ms) = (state.number, now_ms());
        self.notes.add(Event::Acknowledged { key, number, at_ms });
        Ok(())
    }
}

impl Answer {
    /// Says what is wrong with a reply; `None` if it is correct.
    ///
    /// # Errors
    /// If no write can have such a reply.
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

/// Queues the read of a key: one GET, or for a batch one command that reads all names at one moment.
pub(super) fn queue_read(keys: &dyn Keys, key: usize, client: &mut Client) {
    let names = keys.names(key);
    match keys.kind(key) {
        Kind::Mset => {
            let mut words: Vec<&[u8]> = vec![b"MGET"];
            words.extend(names.iter().map(Vec::as_slice));
            client.queue(&words);
        }
        Kind::Exec => {
            client.queue(&[b"MULTI"]);
            names.iter().for_each(|name| client.queue(&[b"GET", name]));
            client.queue(&[b"EXEC"]);
        }
        _ => client.queue(&[b"GET", &keys.name(key)]),
    }
}

/// Receives the answer to [`queue_read`].
///
/// # Errors
/// Those of the connection, or a refusal by the server ([`is_refusal`]).
pub(super) fn receive_read(keys: &dyn Keys, key: usize, client: &mut Client) -> io::Result<Seen> {
    match keys.kind(key) {
        Kind::Exec => {
            for _ in 0..=MEMBERS {
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

/// Whether the server refused the request, so that the connection still works.
fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Other
}

/// Whether the server refused the request because it still loads.
pub(super) fn is_loading(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<io::Error>();
    refused.is_some_and(|error| is_refusal(error) && error.to_string().contains("LOADING"))
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
