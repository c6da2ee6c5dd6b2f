//! What one connection does: loads its documents, runs the mixed load, checks its keys after a crash.
//!
//! Every request enters the ledger before it is sent and every answer after it is read, so that at the
//! moment of a kill the ledger knows exactly what was promised.

use crate::client::{Client, Reply};
use crate::demo::keys::Keys;
use crate::demo::ledger::{Ledger, Observed, Violation, Window};
use crate::killing::value;
use anyhow::Context;
use hdrhistogram::Histogram;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Requests under way on one connection.
const DEPTH: usize = 16;
/// Skew of the popularity of keys, as YCSB has it.
const ZIPF_EXPONENT: f64 = 0.99;
/// Violations that are told in words; all are counted.
const TOLD_MAX: usize = 20;
/// Requests under way while loading and checking.
const BULK_DEPTH: usize = 128;
/// Bytes after which a bulk request is sent early.
const BULK_BYTES: usize = 1 << 20;

/// What all connections of a run share.
pub struct Run {
    /// The keys.
    pub keys: Keys,
    /// What the store owes for them.
    pub ledger: Ledger,
    /// Requests answered.
    pub answered: AtomicU64,
    /// Writes among them that were acknowledged.
    pub acknowledged: AtomicU64,
    /// Answers to reads that were judged.
    pub reads: AtomicU64,
    /// Acknowledged writes whose key held what it should after the last crash.
    pub verified: AtomicU64,
    /// Keys that did not.
    pub lost: AtomicU64,
    /// Answers under load that broke a promise.
    pub inconsistent: AtomicU64,
    told: Mutex<Vec<String>>,
}

/// How a connection's load ended.
#[derive(Debug)]
pub enum Ended {
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
    },
    Put {
        key: usize,
        number: u64,
    },
    Increment {
        key: usize,
        number: u64,
    },
    Delete {
        key: usize,
        number: u64,
        present: bool,
    },
}

impl Run {
    /// A run over `keys`, all absent.
    #[must_use]
    pub fn new(keys: Keys) -> Run {
        let zero = || AtomicU64::new(0);
        Run {
            ledger: Ledger::new(keys.kinds()),
            keys,
            answered: zero(),
            acknowledged: zero(),
            reads: zero(),
            verified: zero(),
            lost: zero(),
            inconsistent: zero(),
            told: Mutex::default(),
        }
    }

    /// The first broken promises, in words.
    #[must_use]
    pub fn told(&self) -> Vec<String> {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn tell(&self, counter: &AtomicU64, key: usize, violation: &Violation) {
        counter.fetch_add(1, Ordering::Relaxed);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < TOLD_MAX {
            told.push(format!(
                "{}: {violation}",
                self.keys.name(key).escape_ascii()
            ));
        }
    }

    fn acknowledge(&self, key: usize, number: u64) {
        self.ledger.acknowledge(key, number);
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts the first values of the documents that `connection` owns.
    ///
    /// # Errors
    /// If the server refuses one, or the connection breaks.
    pub fn load(
        &self,
        connection: usize,
        port: u16,
        documents: &[(Vec<u8>, Vec<u8>)],
    ) -> anyhow::Result<()> {
        let mut client = Client::connect(("127.0.0.1", port))?;
        let mut sent = Vec::new();
        for key in self.keys.owned_by(connection) {
            let Some((name, value)) = documents.get(key) else {
                break;
            };
            sent.push((key, self.ledger.write(key)));
            client.queue(&[b"SET", name, value]);
            if sent.len() >= BULK_DEPTH || client.queued_bytes() >= BULK_BYTES {
                self.receive_loaded(&mut client, &mut sent)?;
            }
        }
        self.receive_loaded(&mut client, &mut sent)
    }

    fn receive_loaded(
        &self,
        client: &mut Client,
        sent: &mut Vec<(usize, u64)>,
    ) -> anyhow::Result<()> {
        client.send()?;
        for (key, number) in sent.drain(..) {
            client.receive()?.accepted()?;
            self.acknowledge(key, number);
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads every key that `connection` owns and has the ledger settle it. To be called with nobody writing.
    ///
    /// # Errors
    /// If the server refuses, or the connection breaks. What it finds is counted, not an error.
    pub fn verify(&self, connection: usize, port: u16) -> anyhow::Result<()> {
        let mut client = Client::connect(("127.0.0.1", port))?;
        let owned: Vec<usize> = self.keys.owned_by(connection).collect();
        for keys in owned.chunks(BULK_DEPTH) {
            keys.iter()
                .for_each(|&key| client.queue(&[b"GET", self.keys.name(key)]));
            client.send()?;
            for &key in keys {
                let seen = self.seen(key, client.receive()?)?;
                match self.ledger.settle(key, &seen) {
                    Ok(()) => {
                        let writes = self.ledger.acknowledged(key);
                        self.verified.fetch_add(writes, Ordering::Relaxed);
                    }
                    Err(violation) => self.tell(&self.lost, key, &violation),
                }
            }
        }
        Ok(())
    }

    fn seen(&self, key: usize, reply: Reply) -> anyhow::Result<Observed> {
        match reply.accepted()? {
            Reply::Bulk(value) => Ok(self.keys.observe(key, Some(&value))),
            Reply::Null => Ok(self.keys.observe(key, None)),
            other => anyhow::bail!("the server answered GET with {other:?}"),
        }
    }

    /// The mixed load of one connection, until `stop` or until the connection breaks. Times go to `times`,
    /// in nanoseconds.
    ///
    /// # Errors
    /// If the server refuses a request.
    pub fn mix(
        &self,
        connection: usize,
        port: u16,
        seed: u64,
        stop: &AtomicBool,
        times: &mut Histogram<u64>,
    ) -> anyhow::Result<Ended> {
        let mut client = match Client::connect(("127.0.0.1", port)) {
            Ok(client) => client,
            Err(error) => return Ok(Ended::Cut(error)),
        };
        let mut mixer = Mixer::new(self, connection, seed)?;
        let mut sent = Vec::with_capacity(DEPTH);
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..DEPTH {
                sent.push(mixer.queue(&mut client));
            }
            let begun = Instant::now();
            if let Err(error) = client.send() {
                return Ok(Ended::Cut(error));
            }
            for request in sent.drain(..) {
                let reply = match client.receive() {
                    Ok(reply) => reply,
                    Err(error) => return Ok(Ended::Cut(error)),
                };
                times.saturating_record(
                    u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
                );
                self.answer(request, reply)?;
            }
        }
        Ok(Ended::Stopped)
    }

    fn answer(&self, request: Sent, reply: Reply) -> anyhow::Result<()> {
        self.answered.fetch_add(1, Ordering::Relaxed);
        match request {
            Sent::Read { key, window } => {
                self.reads.fetch_add(1, Ordering::Relaxed);
                let seen = self.seen(key, reply)?;
                if let Err(violation) = self.ledger.end_read(key, window, &seen) {
                    self.tell(&self.inconsistent, key, &violation);
                }
            }
            Sent::Put { key, number } => {
                let accepted = reply.accepted()?;
                anyhow::ensure!(
                    accepted == Reply::Simple("OK".into()),
                    "SET was answered {accepted:?}"
                );
                self.acknowledge(key, number);
            }
            Sent::Increment { key, number } => {
                self.expect(key, i64::try_from(number).unwrap_or(i64::MAX), reply)?;
                self.acknowledge(key, number);
            }
            Sent::Delete {
                key,
                number,
                present,
            } => {
                self.expect(key, i64::from(present), reply)?;
                self.acknowledge(key, number);
            }
        }
        Ok(())
    }

    /// The writer of a key knows what its increments and deletions must answer.
    fn expect(&self, key: usize, expected: i64, reply: Reply) -> anyhow::Result<()> {
        match reply.accepted()? {
            Reply::Integer(found) if found == expected => {}
            Reply::Integer(found) => {
                self.tell(
                    &self.inconsistent,
                    key,
                    &Violation::Answer { expected, found },
                );
            }
            other => anyhow::bail!("a number was expected, the server answered {other:?}"),
        }
        Ok(())
    }
}

/// Makes up the requests of one connection: half reads of anybody's keys, half writes of its own.
struct Mixer<'a> {
    run: &'a Run,
    connection: usize,
    random: StdRng,
    ranks: Zipf<f64>,
    value: Vec<u8>,
}

impl<'a> Mixer<'a> {
    fn new(run: &'a Run, connection: usize, seed: u64) -> anyhow::Result<Mixer<'a>> {
        let ranks = Zipf::new(run.keys.documents() as f64, ZIPF_EXPONENT).context("zipf")?;
        let random = StdRng::seed_from_u64(seed.wrapping_add(connection as u64));
        Ok(Mixer {
            run,
            connection,
            random,
            ranks,
            value: Vec::new(),
        })
    }

    fn queue(&mut self, client: &mut Client) -> Sent {
        let (keys, ledger) = (&self.run.keys, &self.run.ledger);
        match self.random.random_range(0..100) {
            0..45 => {
                let key = self.document();
                self.read(key, client)
            }
            45..50 => {
                let key = self.random.random_range(keys.documents()..keys.len());
                self.read(key, client)
            }
            50..86 => {
                let key = self.own_document();
                let number = ledger.write(key);
                let bytes = self.value_bytes();
                value::write(&mut self.value, keys.name(key), number, bytes);
                client.queue(&[b"SET", keys.name(key), &self.value]);
                Sent::Put { key, number }
            }
            86..92 => {
                let key = self.own_document();
                let (number, present) = ledger.delete(key);
                client.queue(&[b"DEL", keys.name(key)]);
                Sent::Delete {
                    key,
                    number,
                    present,
                }
            }
            _ => {
                let key = keys.owned_counter(self.random.random_range(0..1024), self.connection);
                let number = ledger.write(key);
                client.queue(&[b"INCR", keys.name(key)]);
                Sent::Increment { key, number }
            }
        }
    }

    fn read(&self, key: usize, client: &mut Client) -> Sent {
        let by_writer = self.run.keys.is_owned(key, self.connection);
        let window = self.run.ledger.begin_read(key, by_writer);
        client.queue(&[b"GET", self.run.keys.name(key)]);
        Sent::Read { key, window }
    }

    /// A document by popularity. The popular ones are spread over the corpus, the same ones for everybody.
    fn document(&mut self) -> usize {
        let documents = self.run.keys.documents();
        let rank = self.ranks.sample(&mut self.random) as u64;
        let spread = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        usize::try_from(spread % documents as u64).unwrap_or(0)
    }

    fn own_document(&mut self) -> usize {
        let key = self.document();
        self.run.keys.owned_document(key, self.connection)
    }

    /// Mostly 40 bytes to 1 KiB; one in a hundred up to 64 KiB, so that every page kind is met.
    fn value_bytes(&mut self) -> usize {
        let most = if self.random.random_ratio(1, 100) {
            64 << 10
        } else {
            1 << 10
        };
        self.random.random_range(value::VALUE_BYTES_MIN..most)
    }
}
