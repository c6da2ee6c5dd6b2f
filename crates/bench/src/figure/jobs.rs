//! What workers do: answer requests, and between two of them take a turn at the store's own work.

use super::stream::Stream;
use super::workers::{Meter, Workers};
use crate::pace::Timer;
use crate::pool;
use crate::subject::{Client, Error, Subject};
use crate::workload::corpus::{Corpus, Maker};
use anyhow::ensure;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// What came of asking a job for a request.
pub(super) enum Done {
    /// A get was answered.
    Get,
    /// A put was answered.
    Put,
    /// There is no request now.
    Nothing,
    /// There will be no more requests.
    Over,
}

/// Where a worker's requests come from.
pub(super) trait Job: Send {
    /// Takes the next request and answers it.
    ///
    /// # Errors
    /// What the store says, and an answer that is wrong.
    fn next(&mut self, client: &mut dyn Client) -> Result<Done, Error>;

    /// The worker has become a gleaner: gives up what it holds.
    fn release(&mut self) {}
}

fn work(
    client: &mut dyn Client,
    workers: &Workers,
    thread: usize,
    job: &mut impl Job,
) -> Result<(), Error> {
    let mut meter = Meter::start(workers, thread);
    while !workers.is_over() {
        while client.turn()? {
            job.release();
            meter.gleaned();
            if workers.is_over() {
                return Ok(());
            }
        }
        match job.next(client)? {
            Done::Get => meter.answered(false),
            Done::Put => meter.answered(true),
            Done::Nothing => meter.waited(),
            Done::Over => break,
        }
    }
    Ok(())
}

/// Runs a worker for each job until `watch` returns. Returns what it says, and the jobs.
///
/// # Errors
/// The first error of a worker, or that of `watch`.
pub(super) fn run<J: Job, T>(
    store: &dyn Subject,
    workers: &Workers,
    jobs: Vec<J>,
    watch: impl FnOnce() -> Result<T, Error>,
) -> Result<(T, Vec<J>), Error> {
    let (seen, jobs) = pool::run(
        jobs,
        |thread, mut job| {
            workers.or_end(|| work(&mut *store.client()?, workers, thread, &mut job))?;
            Ok(job)
        },
        || {
            let seen = watch();
            workers.end();
            seen
        },
    )?;
    Ok((seen?, jobs))
}

/// Puts the records that nobody has put yet.
pub(super) struct Loading<'a> {
    maker: Maker<'a>,
    next: &'a AtomicU64,
    records: u64,
}

impl<'a> Loading<'a> {
    pub(super) fn new(corpus: &'a Corpus, next: &'a AtomicU64, records: u64) -> Loading<'a> {
        Loading {
            maker: Maker::new(corpus),
            next,
            records,
        }
    }
}

impl Job for Loading<'_> {
    fn next(&mut self, client: &mut dyn Client) -> Result<Done, Error> {
        let number = self.next.fetch_add(1, Relaxed);
        if number >= self.records {
            return Ok(Done::Over);
        }
        let (key, value) = self.maker.record(number, 0);
        client.put(key, value)?;
        Ok(Done::Put)
    }
}

/// Gets and puts from the stream, without end; each timed by itself, if that is wanted.
pub(super) struct Asking<'a> {
    workers: &'a Workers,
    corpus: &'a Corpus,
    maker: Maker<'a>,
    stream: &'a Stream,
    at: usize,
    generation: u64,
    value: Vec<u8>,
    /// Latencies of gets and of puts, once they count. The worker's own thread makes them, since they leave
    /// out what that thread waited.
    pub(super) timed: Option<[Timer; 2]>,
}

impl<'a> Asking<'a> {
    /// The one of several that has this number.
    pub(super) fn new(
        workers: &'a Workers,
        corpus: &'a Corpus,
        stream: &'a Stream,
        (number, several): (usize, usize),
    ) -> Asking<'a> {
        Asking {
            workers,
            corpus,
            maker: Maker::new(corpus),
            stream,
            at: stream.start(number, several),
            generation: 0,
            value: Vec::with_capacity(256),
            timed: None,
        }
    }

    /// One for each worker.
    pub(super) fn all(
        workers: &'a Workers,
        corpus: &'a Corpus,
        stream: &'a Stream,
    ) -> Vec<Asking<'a>> {
        let count = workers.count();
        (0..count)
            .map(|number| Asking::new(workers, corpus, stream, (number, count)))
            .collect()
    }

    fn answer(&mut self, client: &mut dyn Client, number: u64, is_put: bool) -> Result<(), Error> {
        if is_put {
            self.generation += 1;
            let (key, value) = self.maker.record(number, self.generation);
            client.put(key, value)?;
        } else {
            self.value.clear();
            let found = client.get(self.maker.key(number), &mut self.value)?;
            ensure!(found, "record {number} is not there");
            self.corpus.check(number, &self.value)?;
        }
        Ok(())
    }
}

impl Job for Asking<'_> {
    #[inline]
    fn next(&mut self, client: &mut dyn Client) -> Result<Done, Error> {
        let request = self.stream.next(&mut self.at);
        let is_put = request.is_put(self.workers.writes());
        if self.workers.is_timed() {
            let begun = Instant::now();
            self.answer(client, request.number(), is_put)?;
            let took = begun.elapsed();
            let timed = self
                .timed
                .get_or_insert_with(|| [Timer::new(), Timer::new()]);
            timed[usize::from(is_put)].record(took);
        } else {
            self.answer(client, request.number(), is_put)?;
        }
        Ok(if is_put { Done::Put } else { Done::Get })
    }
}
