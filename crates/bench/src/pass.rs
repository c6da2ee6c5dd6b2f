//! One pass of all threads over their scripts, begun at once and timed together.

use crate::drive::{Pass, drive};
use crate::latency::Latencies;
use crate::pace::{Closed, Free, Open, Timing};
use crate::pool;
use crate::process::{self, Waited, Waiting};
use crate::subject::{Error, Subject};
use crate::timing::{Sample, Stopwatch};
use crate::workload::Step;
use crate::workload::corpus::{Corpus, Maker};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Records that a load puts at once.
const LOAD_BATCH: u64 = 64;

/// What a pass gave, or several.
#[derive(Default)]
pub(crate) struct Passed {
    /// Operations, time from the first start to the last end, processor time of the threads.
    pub sample: Sample,
    /// Time of the threads by the clock, each from its start to its end, together.
    pub asked: Duration,
    /// Processor time of the whole process.
    pub process_cpu: Duration,
    /// What the threads waited for cores, together.
    pub waited: Waited,
    /// Latencies of its calls, unless it was timed as a whole: histograms take memory.
    pub latencies: Option<Latencies>,
}

impl Passed {
    /// Adds another pass of the same threads.
    pub(crate) fn add(&mut self, other: Passed) {
        self.sample.operations += other.sample.operations;
        self.sample.wall += other.sample.wall;
        self.sample.cpu += other.sample.cpu;
        self.asked += other.asked;
        self.process_cpu += other.process_cpu;
        self.waited.ns += other.waited.ns;
        self.waited.preempted += other.waited.preempted;
        match (&mut self.latencies, other.latencies) {
            (Some(sum), Some(more)) => sum.add(&more),
            (sum @ None, more) => *sum = more,
            (Some(_), None) => {}
        }
    }
}

/// Runs one thread for each script.
pub(crate) fn run(
    subject: &dyn Subject,
    pass: Pass<'_>,
    scripts: &[Vec<Step>],
) -> Result<Passed, Error> {
    let start = Barrier::new(scripts.len() + 1);
    let (cpu, parts) = pool::run(
        scripts,
        |thread, steps| part(subject, pass, steps, (thread, scripts.len()), &start),
        || {
            // Before the threads begin: this one may not get a core for a while then.
            let cpu = process::cpu();
            start.wait();
            cpu
        },
    )?;
    let process_cpu = process::cpu().saturating_sub(cpu);
    let begun = parts.iter().map(|(begun, ..)| *begun).min();
    let ended = parts.iter().map(|(_, ended, _)| *ended).max();
    let mut passed = Passed::default();
    parts.into_iter().for_each(|(.., part)| passed.add(part));
    let wall = begun.zip(ended).map(|(begun, ended)| ended - begun);
    passed.sample.wall = wall.unwrap_or_default();
    passed.process_cpu = process_cpu;
    Ok(passed)
}

/// What one of several threads does: when it began, when it ended, and what it gave.
fn part(
    subject: &dyn Subject,
    pass: Pass<'_>,
    steps: &[Step],
    (thread, threads): (usize, usize),
    start: &Barrier,
) -> Result<(Instant, Instant, Passed), Error> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pinned = if pass.pin {
        process::pin(thread % cores)
    } else {
        Ok(())
    };
    let client = subject.client();
    // Whatever failed until here: the others wait at the barrier for all threads.
    start.wait();
    pinned?;
    let mut client = client?;
    let waiting = Waiting::of_this_thread();
    let before = waiting.so_far();
    let watch = Stopwatch::start();
    let begun = Instant::now();
    let latencies = match pass.timing {
        Timing::Throughput => {
            drive(&mut *client, pass, steps, &mut Free)?;
            None
        }
        Timing::Closed => {
            let mut pace = Closed::new();
            drive(&mut *client, pass, steps, &mut pace)?;
            Some(pace.timer.latencies)
        }
        Timing::Open(rate) => {
            let mut pace = Open::new(rate / threads as f64 / pass.batch.max(1) as f64);
            drive(&mut *client, pass, steps, &mut pace)?;
            Some(pace.timer.latencies)
        }
    };
    let ended = Instant::now();
    let sample = watch.stop(steps.len() as u64);
    let passed = Passed {
        sample,
        asked: sample.wall,
        waited: waiting.so_far().since(before),
        latencies,
        ..Passed::default()
    };
    Ok((begun, ended, passed))
}

/// Puts records `0..records`, several at once, by so many threads.
pub(crate) fn load(
    subject: &dyn Subject,
    corpus: &Corpus,
    records: u64,
    threads: usize,
) -> Result<(), Error> {
    let share = records.div_ceil(threads.max(1) as u64).max(1);
    let ranges = (0..records).step_by(share as usize);
    let load = |_, from| load_range(subject, corpus, from, (from + share).min(records));
    pool::run(ranges, load, || ()).map(|_| ())
}

/// As [`load`], of records `from..to`, by this thread.
pub(crate) fn load_range(
    subject: &dyn Subject,
    corpus: &Corpus,
    from: u64,
    to: u64,
) -> Result<(), Error> {
    let mut client = subject.client()?;
    let mut makers: Vec<Maker<'_>> = (0..LOAD_BATCH).map(|_| Maker::new(corpus)).collect();
    for at in (from..to).step_by(LOAD_BATCH as usize) {
        let numbers = at..(at + LOAD_BATCH).min(to);
        let records: Vec<_> = makers
            .iter_mut()
            .zip(numbers)
            .map(|(maker, number)| maker.record(number, 0))
            .collect();
        client.put_many(&records)?;
    }
    Ok(())
}
