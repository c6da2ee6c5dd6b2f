//! Independent clients over shared buffers (figure 9).
//!
//! A client writes a request into its own buffer, waits for the answer, checks it, and does so again. A
//! worker takes the lock of a buffer in which there is a request, answers up to a thousand of that client,
//! and goes on to another buffer. The lock is among workers; worker and client pass the buffer to and fro by
//! its state word.

use crate::figure::jobs::{self, Done, Job};
use crate::figure::progress::Progress;
use crate::figure::store::Data;
use crate::figure::stream::Writes;
use crate::figure::workers::{Meter, Workers};
use crate::pool;
use crate::row::{Metric, Row};
use crate::subject::{Client, Error, Subject};
use crate::workload::corpus::Maker;
use anyhow::ensure;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Requests of one client that a worker answers before it goes on.
const SERVED: u32 = 1000;
/// Looks at a buffer before the core is yielded, with more clients and workers than cores; and with fewer.
const SPINS: u32 = 200;
const SPINS_WITH_CORE: u32 = 20_000;
/// Times that a worker gives its core away before it leaves a client that does not ask.
const PATIENCE: u32 = 4;

const WORD: usize = 8;
/// Words of the longest key and the longest value that a buffer takes.
const KEY_WORDS: usize = 4;
const VALUE_WORDS: usize = 32;

/// States of a buffer: the client's to write, or the worker's.
const IDLE: u32 = 0;
const GET: u32 = 1;
const PUT: u32 = 2;
const ANSWERED: u32 = 3;
const ABSENT: u32 = 4;

/// A client's request and its answer.
#[repr(align(128))]
#[derive(Default)]
struct Buffer {
    /// Among workers: whether one of them serves this client.
    is_served: AtomicBool,
    state: AtomicU32,
    key: [AtomicU64; KEY_WORDS],
    value: [AtomicU64; VALUE_WORDS],
}

impl Buffer {
    fn is_asked(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), GET | PUT)
    }

    /// Waits until the state satisfies; `false` if that takes longer than some turns of giving the core away.
    fn wait(&self, spins: u32, patience: u32, satisfied: impl Fn(u32) -> bool) -> bool {
        for _ in 0..=patience {
            for _ in 0..spins {
                if satisfied(self.state.load(Ordering::Relaxed)) {
                    return true;
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
        }
        false
    }
}

fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    for (word, chunk) in words.iter().zip(bytes.chunks(WORD)) {
        let mut padded = [0; WORD];
        padded[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
    }
}

fn load_bytes(words: &[AtomicU64], bytes: &mut [u8]) {
    for (word, chunk) in words.iter().zip(bytes.chunks_mut(WORD)) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes()[..chunk.len()]);
    }
}

/// A worker: which client it serves.
struct Serving<'a> {
    buffers: &'a [Buffer],
    spins: u32,
    at: usize,
    /// Whether it holds the lock of the buffer it is at.
    holds: bool,
    served: u32,
    key: Vec<u8>,
    value: Vec<u8>,
    /// What a get appends to.
    found: Vec<u8>,
}

impl Serving<'_> {
    /// Takes the lock of a buffer with a request, from the one after the last on.
    fn take(&mut self) -> bool {
        for step in 1..=self.buffers.len() {
            let at = (self.at + step) % self.buffers.len();
            let buffer = &self.buffers[at];
            if !buffer.is_asked() || buffer.is_served.swap(true, Ordering::Acquire) {
                continue;
            }
            // Another worker may have answered and gone on meanwhile; then the client may be writing its next
            // request.
            if !buffer.is_asked() {
                buffer.is_served.store(false, Ordering::Release);
                continue;
            }
            (self.at, self.holds, self.served) = (at, true, 0);
            return true;
        }
        false
    }

    fn answer(&mut self, client: &mut dyn Client) -> Result<Done, Error> {
        let buffer = &self.buffers[self.at];
        let state = buffer.state.load(Ordering::Acquire);
        load_bytes(&buffer.key, &mut self.key);
        let (answer, done) = if state == PUT {
            load_bytes(&buffer.value, &mut self.value);
            client.put(&self.key, &self.value)?;
            (ANSWERED, Done::Put)
        } else {
            self.found.clear();
            let found = client.get(&self.key, &mut self.found)?;
            store_bytes(&buffer.value, &self.found);
            let is_whole = found && self.found.len() == self.value.len();
            (if is_whole { ANSWERED } else { ABSENT }, Done::Get)
        };
        buffer.state.store(answer, Ordering::Release);
        self.served += 1;
        Ok(done)
    }
}

impl Job for Serving<'_> {
    fn next(&mut self, client: &mut dyn Client) -> Result<Done, Error> {
        let is_asked = |state| matches!(state, GET | PUT);
        if self.holds
            && (self.served >= SERVED
                || !self.buffers[self.at].wait(self.spins, PATIENCE, is_asked))
        {
            self.release();
        }
        if !self.holds && !self.take() {
            std::thread::yield_now();
            return Ok(Done::Nothing);
        }
        self.answer(client)
    }

    fn release(&mut self) {
        if std::mem::take(&mut self.holds) {
            let is_served = &self.buffers[self.at].is_served;
            is_served.store(false, Ordering::Release);
        }
    }
}

/// Asks until it is over.
fn ask(
    data: &Data<'_>,
    workers: &Workers,
    (buffer, spins): (&Buffer, u32),
    slot: usize,
    (number, several): (usize, usize),
) -> Result<(), Error> {
    let mut maker = Maker::new(&data.corpus);
    let mut meter = Meter::start(workers, slot);
    let mut at = data.stream.start(number, several);
    let mut generation = 0;
    let mut value = vec![0; data.settings.paper().value_bytes];
    while !workers.is_over() {
        let request = data.stream.next(&mut at);
        let is_put = request.is_put(workers.writes());
        if is_put {
            generation += 1;
            let (key, value) = maker.record(request.number(), generation);
            store_bytes(&buffer.key, key);
            store_bytes(&buffer.value, value);
        } else {
            store_bytes(&buffer.key, maker.key(request.number()));
        }
        let state = if is_put { PUT } else { GET };
        buffer.state.store(state, Ordering::Release);
        while !buffer.wait(spins, 0, |state| matches!(state, ANSWERED | ABSENT)) {
            if workers.is_over() {
                return Ok(());
            }
        }
        let answer = buffer.state.load(Ordering::Acquire);
        if !is_put {
            ensure!(
                answer == ANSWERED,
                "record {} is not there",
                request.number()
            );
            load_bytes(&buffer.value, &mut value);
            data.corpus.check(request.number(), &value)?;
        }
        buffer.state.store(IDLE, Ordering::Relaxed);
        meter.answered(is_put);
    }
    Ok(())
}

/// A row for each share of writes, of so many clients.
pub(super) fn measure(
    data: &Data<'_>,
    store: &dyn Subject,
    clients: usize,
    progress: &mut Progress<'_>,
) -> Result<Vec<Row>, Error> {
    let settings = data.settings;
    let paper = settings.paper();
    ensure!(
        paper.key_bytes <= KEY_WORDS * WORD && paper.value_bytes <= VALUE_WORDS * WORD,
        "a client's buffer takes keys of {} bytes and values of {}",
        KEY_WORDS * WORD,
        VALUE_WORDS * WORD
    );
    let count = progress.curve.workers();
    let workers = Workers::new(count + clients, Writes::of_percent(settings.writes[0]));
    let spins = if count + clients <= progress.cores() {
        SPINS_WITH_CORE
    } else {
        SPINS
    };
    let buffers: Vec<Buffer> = (0..clients).map(|_| Buffer::default()).collect();
    let serving = (0..count)
        .map(|worker| Serving {
            buffers: &buffers,
            spins,
            at: worker % clients,
            holds: false,
            served: 0,
            key: vec![0; paper.key_bytes],
            value: vec![0; paper.value_bytes],
            found: Vec::with_capacity(2 * paper.value_bytes),
        })
        .collect();
    let look = || {
        let mut rows = Vec::with_capacity(settings.writes.len());
        for percent in &settings.writes {
            let mut row = progress.row("", *percent, count);
            row.conditions.insert("clients".into(), clients.into());
            workers.set_writes(Writes::of_percent(*percent));
            workers.sleep(settings.warm_up_seconds());
            let before = workers.tally(0..count);
            let seen = workers.span(count..count + clients, settings.seconds);
            let served = workers.tally(0..count).since(&before);
            seen.add_to(&mut row, None);
            row.push(Metric::GleaningShare, served.gleaning_share_of_all());
            row.push(Metric::LogTurns, progress.log_turns(seen.puts));
            rows.push(row);
        }
        workers.end();
        rows
    };
    let (rows, _) = jobs::run(store, &workers, serving, || {
        let ask = |number, buffer| {
            let slot = count + number;
            workers.or_end(|| ask(data, &workers, (buffer, spins), slot, (number, clients)))
        };
        Ok(pool::run(&buffers, ask, look)?.0)
    })?;
    Ok(rows)
}
