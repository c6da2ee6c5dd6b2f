//! One workload on an open store: a warm-up, a phase whose loops read no clock, and a shorter one that times
//! each call.
//!
//! Stores differ by a factor of a thousand: with as many operations for all, either the fast ones would be
//! over before the clock ticks or the slow ones never. So a phase is made of passes that grow until its time
//! is filled; what is counted is the passes, not the pauses between them. A pass that the machine disturbs
//! makes the next one shorter and ends nothing.

use super::turn::{BATCH, Measured, Turn};
use crate::corpus::Corpus;
use crate::pass::{self, Pass, Timing};
use crate::process::{self, Waited};
use crate::row::Figures;
use crate::subject::{Error, Subject};
use crate::timing::{Sample, Spread};
use crate::workload::{Author, Workload};
use hdrhistogram::Histogram;
use std::time::Duration;

/// Operations of a thread in the first pass.
const FIRST: u64 = 32;
/// A pass has at most so many times the operations of the one before.
const GROWTH: u64 = 8;
/// Operations of a thread in one phase, at most: a script takes 8 bytes each.
const MOST: u64 = 30_000_000;
/// A phase is over when less than this part of its time is left.
const LEFT: f64 = 0.1;
/// Time of the warm-up and of the timed calls, as parts of the time of the phase between them.
const WARM_UP: f64 = 0.1;
const TIMED: f64 = 0.5;
/// Calls that are timed at least, so that 99 of 100 of them says something.
const CALLS: u64 = 100;

/// An open store under the workloads of a turn.
pub(super) struct Stand<'a> {
    turn: &'a Turn,
    corpus: &'a Corpus,
    subject: &'a dyn Subject,
    generation: u64,
}

/// How long a phase goes on.
#[derive(Clone, Copy)]
struct Extent {
    seconds: f64,
    /// Operations of all threads, at least.
    least: u64,
    /// Operations of a thread, at most.
    most: u64,
}

/// The passes of a phase.
#[derive(Default)]
struct Total {
    operations: u64,
    wall: Duration,
    cpu: Duration,
    process_cpu: Duration,
    waited: Waited,
    latencies: Option<(Histogram<u64>, Histogram<u64>)>,
}

/// The writers of the threads' scripts, and how many steps each writes next.
struct Writers {
    workload: Workload,
    authors: Vec<Author>,
    count: u64,
}

impl<'a> Stand<'a> {
    pub(super) fn new(turn: &'a Turn, corpus: &'a Corpus, subject: &'a dyn Subject) -> Stand<'a> {
        Stand {
            turn,
            corpus,
            subject,
            generation: 0,
        }
    }

    pub(super) fn subject(&self) -> &dyn Subject {
        self.subject
    }

    /// One repetition of `workload`.
    pub(super) fn measure(&mut self, workload: Workload) -> Result<Measured, Error> {
        let turn = self.turn;
        let mut writers = Writers {
            workload,
            authors: (0..turn.threads)
                .map(|thread| Author::new(workload, turn.records, thread, turn.threads, turn.seed))
                .collect(),
            count: FIRST,
        };
        // Only so many records can be put or removed; the others can be asked for again and again.
        let most = match workload {
            Workload::Put | Workload::PutMany | Workload::Delete => {
                turn.records / turn.threads as u64
            }
            _ => MOST,
        };
        let extent = |part: f64, least: u64, eighths: u64| Extent {
            seconds: turn.seconds * part,
            least,
            most: (most * eighths / 8).max(1),
        };
        self.phase(&mut writers, Timing::Throughput, extent(WARM_UP, 0, 1))?;
        let whole = self.phase(&mut writers, Timing::Throughput, extent(1.0, 0, 5))?;
        let each = self.phase(&mut writers, Timing::Closed, extent(TIMED, CALLS, 2))?;
        Ok(self.measured(workload, &whole, &each))
    }

    fn phase(
        &mut self,
        writers: &mut Writers,
        timing: Timing,
        extent: Extent,
    ) -> Result<Total, Error> {
        let mut total = Total::default();
        let mut left = extent.most;
        loop {
            let each = writers.count.min(left);
            self.pass(writers, each, timing, &mut total)?;
            left -= each;
            let seconds = extent.seconds - total.wall.as_secs_f64();
            let is_full = seconds < extent.seconds * LEFT && total.operations >= extent.least;
            if is_full || left == 0 {
                return Ok(total);
            }
            let rate = total.sample().rate() / self.turn.threads as f64;
            let fitting = (rate * seconds.max(extent.seconds * LEFT)) as u64;
            writers.count = fitting.clamp(1, (each * GROWTH).max(FIRST));
        }
    }

    fn pass(
        &mut self,
        writers: &mut Writers,
        each: u64,
        timing: Timing,
        total: &mut Total,
    ) -> Result<(), Error> {
        self.generation += 1;
        let scripts: Vec<_> = writers
            .authors
            .iter_mut()
            .map(|author| author.write(each))
            .collect();
        let pass = Pass {
            corpus: self.corpus,
            batch: if writers.workload.is_batched() {
                BATCH
            } else {
                1
            },
            generation: self.generation,
            timing,
            pin: false,
        };
        // Read outside of the pass: the thread that waits for the others may wake long after they have begun.
        let before = process::cpu();
        let passed = pass::run(self.subject, pass, &scripts)?;
        total.process_cpu += process::cpu().saturating_sub(before);
        total.operations += passed.sample.operations;
        total.wall += passed.sample.wall;
        total.cpu += passed.sample.cpu;
        total.waited.ns += passed.waited.ns;
        total.waited.preempted += passed.waited.preempted;
        match (&mut total.latencies, passed.latencies) {
            (Some(sum), Some(more)) => {
                pass::merge(&mut sum.0, &more.0);
                pass::merge(&mut sum.1, &more.1);
            }
            (sum @ None, more) => *sum = more,
            (Some(_), None) => {}
        }
        Ok(())
    }

    fn measured(&self, workload: Workload, whole: &Total, each: &Total) -> Measured {
        let sample = whole.sample();
        let operations = whole.operations.max(1) as f64;
        let threads = self.turn.threads as f64;
        let one = |value: f64| Spread::of([value]);
        Measured {
            workload,
            operations: whole.operations,
            figures: Figures {
                rate: one(sample.rate()),
                wall_ns: one(sample.wall_ns() * threads),
                cpu_ns: one(sample.cpu_ns()),
                process_cpu_ns: one(whole.process_cpu.as_nanos() as f64 / operations),
                // A thread may wait for a core before its clock starts, too.
                queued_share: (whole.waited.ns as f64
                    / (whole.wall.as_nanos() as f64 * threads).max(1.0))
                .min(1.0),
                preempted: whole.waited.preempted,
                latency: each.latencies.as_ref().map(pass::tail),
                ..Figures::default()
            },
        }
    }
}

impl Total {
    fn sample(&self) -> Sample {
        Sample {
            operations: self.operations,
            wall: self.wall,
            cpu: self.cpu,
        }
    }
}
