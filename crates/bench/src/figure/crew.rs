//! A pool of workers: one thread and one session each, that between two requests takes its turn at the
//! store's own work.
//!
//! What a request is, a [`Duty`] says. One who measures sleeps beside the workers and looks at the [`Board`].

use super::board::{Board, Meter};
use super::stream::Stream;
use crate::pace::Timer;
use crate::subject::Error;
use crate::workload::corpus::{Corpus, Maker};
use anyhow::{anyhow, ensure};
use everdram::{Session, Store};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// What came of asking a duty for a request.
pub(super) enum Done {
    /// A get was answered.
    Get,
    /// A put was answered.
    Put,
    /// There is no request now.
    Nothing,
    /// There will be none any more.
    Over,
}

/// Where a worker's requests come from.
pub(super) trait Duty {
    /// Takes the next request and answers it.
    ///
    /// # Errors
    /// What the store says, and an answer that is wrong.
    fn next(&mut self, session: &mut Session) -> Result<Done, Error>;

    /// The worker has become a gleaner: what it holds is for others.
    fn let_go(&mut self) {}
}

/// Works until it is over.
pub(super) fn work(
    session: &mut Session,
    board: &Board,
    thread: usize,
    duty: &mut impl Duty,
) -> Result<(), Error> {
    let mut meter = Meter::start(board, thread);
    while !board.is_over() {
        while session.turn()? {
            duty.let_go();
            meter.gleaned();
            if board.is_over() {
                return Ok(());
            }
        }
        match duty.next(session)? {
            Done::Get => meter.answered(false),
            Done::Put => meter.answered(true),
            Done::Nothing => meter.waited(),
            Done::Over => break,
        }
    }
    Ok(())
}

/// Runs one thread for each duty while `watch` looks on; when that returns, all stop. Returns what it says,
/// and the duties.
///
/// # Errors
/// The first of what the store says to anybody.
pub(super) fn run<D: Duty + Send, T>(
    store: &Store,
    board: &Board,
    duties: Vec<D>,
    watch: impl FnOnce() -> Result<T, Error>,
) -> Result<(T, Vec<D>), Error> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = duties
            .into_iter()
            .enumerate()
            .map(|(thread, mut duty)| {
                scope.spawn(move || {
                    let result = store
                        .session()
                        .map_err(Error::from)
                        .and_then(|mut session| work(&mut session, board, thread, &mut duty));
                    if result.is_err() {
                        board.end();
                    }
                    result.map(|()| duty)
                })
            })
            .collect();
        let seen = watch();
        board.end();
        let mut duties = Vec::with_capacity(threads.len());
        for thread in threads {
            duties.push(thread.join().map_err(|_| anyhow!("a worker panicked"))??);
        }
        Ok((seen?, duties))
    })
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

impl Duty for Loading<'_> {
    fn next(&mut self, session: &mut Session) -> Result<Done, Error> {
        let number = self.next.fetch_add(1, Relaxed);
        if number >= self.records {
            return Ok(Done::Over);
        }
        let (key, value) = self.maker.record(number, 0);
        session.put(key, value)?;
        Ok(Done::Put)
    }
}

/// Gets and puts from the stream, without end; each timed by itself, if that is wanted.
pub(super) struct Asking<'a> {
    board: &'a Board,
    corpus: &'a Corpus,
    maker: Maker<'a>,
    stream: &'a Stream,
    at: usize,
    generation: u64,
    value: Vec<u8>,
    /// Latencies of gets and of puts, once they count. The worker itself makes them: they know whose waiting
    /// they leave out.
    pub(super) timed: Option<[Timer; 2]>,
}

impl<'a> Asking<'a> {
    /// The one of several that has this number.
    pub(super) fn new(
        board: &'a Board,
        corpus: &'a Corpus,
        stream: &'a Stream,
        (number, several): (usize, usize),
    ) -> Asking<'a> {
        Asking {
            board,
            corpus,
            maker: Maker::new(corpus),
            stream,
            at: stream.start(number, several),
            generation: 0,
            value: Vec::with_capacity(256),
            timed: None,
        }
    }

    /// So many of them.
    pub(super) fn crew(
        board: &'a Board,
        corpus: &'a Corpus,
        stream: &'a Stream,
        workers: usize,
    ) -> Vec<Asking<'a>> {
        (0..workers)
            .map(|number| Asking::new(board, corpus, stream, (number, workers)))
            .collect()
    }

    fn answer(&mut self, session: &mut Session, number: u64, is_put: bool) -> Result<(), Error> {
        if is_put {
            self.generation += 1;
            let (key, value) = self.maker.record(number, self.generation);
            session.put(key, value)?;
        } else {
            self.value.clear();
            let found = session.get_into(self.maker.key(number), &mut self.value)?;
            ensure!(found.is_some(), "record {number} is not there");
            self.corpus.check(number, &self.value)?;
        }
        Ok(())
    }
}

impl Duty for Asking<'_> {
    #[inline]
    fn next(&mut self, session: &mut Session) -> Result<Done, Error> {
        let request = self.stream.next(&mut self.at);
        let is_put = request.is_put(self.board.writes());
        if self.board.is_timed() {
            let begun = Instant::now();
            self.answer(session, request.number(), is_put)?;
            let took = begun.elapsed();
            let timed = self
                .timed
                .get_or_insert_with(|| [Timer::new(), Timer::new()]);
            timed[usize::from(is_put)].record(took);
        } else {
            self.answer(session, request.number(), is_put)?;
        }
        Ok(if is_put { Done::Put } else { Done::Get })
    }
}
