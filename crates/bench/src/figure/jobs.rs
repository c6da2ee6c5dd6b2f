//! What workers do: answer requests, and between two of them take a turn at the store's own work.

use super::stream::Stream;
use super::workers::{Meter, Workers};
use crate::drive::Asker;
use crate::pace::Timer;
use crate::pool;
use crate::subject::{Client, Error, Subject};
use crate::workload::corpus::{Corpus, Maker};
use crate::workload::{Action, Step};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Kinds of calls that are timed, in the order of [`Asking::timed`].
pub(super) const KINDS: [&str; 2] = ["get", "put"];

/// What came of asking a job for a request.
pub(super) enum Done {
    /// A get was answered.
    Get,
    /// A put was answered.
    Put,
    /// So many puts were answered together.
    Puts(usize),
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
            Done::Puts(count) => (0..count).for_each(|_| meter.answered(true)),
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

/// Puts the records that no worker has put yet, some at a time; and then, if there are to be more puts, over
/// and over again.
pub(super) struct Loading<'a> {
    makers: Vec<Maker<'a>>,
    next: &'a AtomicU64,
    records: u64,
    puts: u64,
}

impl<'a> Loading<'a> {
    pub(super) fn new(
        corpus: &'a Corpus,
        next: &'a AtomicU64,
        (records, puts): (u64, u64),
        batch: usize,
    ) -> Loading<'a> {
        Loading {
            makers: (0..batch).map(|_| Maker::new(corpus)).collect(),
            next,
            records,
            puts,
        }
    }
}

impl Job for Loading<'_> {
    fn next(&mut self, client: &mut dyn Client) -> Result<Done, Error> {
        let batch = self.makers.len() as u64;
        let from = self.next.fetch_add(batch, Relaxed);
        if from >= self.puts {
            return Ok(Done::Over);
        }
        let numbers = from..self.puts.min(from + batch);
        let records = self.records;
        if let [maker] = self.makers.as_mut_slice() {
            let (key, value) = maker.record(from % records, from / records);
            client.put(key, value)?;
            return Ok(Done::Put);
        }
        let pairs = self.makers.iter_mut().zip(numbers);
        let together: Vec<_> = pairs
            .map(|(maker, number)| maker.record(number % records, number / records))
            .collect();
        client.put_many(&together)?;
        Ok(Done::Puts(together.len()))
    }
}

/// Gets and puts from the stream, without end; each timed by itself, if that is wanted.
pub(super) struct Asking<'a> {
    workers: &'a Workers,
    asker: Asker<'a>,
    stream: &'a Stream,
    at: usize,
    /// Latencies of gets and of puts, once they count. The worker's own thread makes them, since they leave
    /// out what that thread waited.
    pub(super) timed: Option<[Timer; 2]>,
}

impl<'a> Asking<'a> {
    /// One for each worker, from different places of the stream.
    pub(super) fn all(
        workers: &'a Workers,
        corpus: &'a Corpus,
        stream: &'a Stream,
    ) -> Vec<Asking<'a>> {
        let count = workers.count();
        (0..count)
            .map(|number| Asking {
                workers,
                asker: Asker::new(corpus),
                stream,
                at: stream.start(number, count),
                timed: None,
            })
            .collect()
    }
}

impl Job for Asking<'_> {
    #[inline]
    fn next(&mut self, client: &mut dyn Client) -> Result<Done, Error> {
        let request = self.stream.next(&mut self.at);
        let is_put = request.is_put(self.workers.writes());
        let action = if is_put { Action::Put } else { Action::Get };
        self.asker.generation += u64::from(is_put);
        let step = Step::new(action, request.number());
        if self.workers.is_timed() {
            let begun = Instant::now();
            self.asker.ask(client, step)?;
            let took = begun.elapsed();
            let timed = self
                .timed
                .get_or_insert_with(|| [Timer::new(), Timer::new()]);
            timed[usize::from(is_put)].record(took);
        } else {
            self.asker.ask(client, step)?;
        }
        Ok(if is_put { Done::Put } else { Done::Get })
    }
}
