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

/// Puts the records that no worker has put yet.
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
