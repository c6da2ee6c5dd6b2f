//! The operations of a store, one after another: half as many of each as there are records, as in section
//! 5.3.1 of Viper's paper, or as many as fit into the time of a point.

use crate::drive::Pass;
use crate::figure::progress::Progress;
use crate::figure::store::{Data, For};
use crate::figure::system::System;
use crate::figure::workers::Span;
use crate::named::named;
use crate::pace::Timing;
use crate::pass::{self, Passed};
use crate::row::{Metric, Row};
use crate::subject::{Error, Subject};
use crate::workload::{Action, Author, Step, Workload};
use anyhow::Context;

/// Steps of a thread in the first slice of an operation; each slice that follows is as long as all before.
const FIRST: u64 = 64;
/// Tells values that are put again from those before.
const AGAIN: u64 = 1;

named! {
    /// An operation.
    Operation, "operation":
    Insert = "insert": "new keys, each thread its own",
    Get = "get": "values of keys that are there, uniformly",
    Update = "update": "8 bytes of values that are there, uniformly",
    Copy = "read-modify-write": "a get and a put of the same key, uniformly",
    Delete = "delete": "keys that are there, each once",
}

impl Operation {
    /// Percent of its requests that write.
    fn writes(self) -> f64 {
        if self == Operation::Get { 0.0 } else { 100.0 }
    }

    /// Makes the steps of one thread.
    fn author(self, data: &Data<'_>, thread: usize, threads: usize) -> Author {
        let workload = match self {
            Operation::Insert => Workload::Insert,
            Operation::Get => Workload::Get,
            Operation::Update => Workload::UpdateWord,
            Operation::Copy => Workload::Overwrite,
            Operation::Delete => Workload::Delete,
        };
        Author::new(workload, data.records, thread, threads, data.settings.seed)
    }

    fn steps(self, author: &mut Author, count: u64) -> Vec<Step> {
        let mut steps = author.write(count);
        if self == Operation::Copy {
            for step in &mut steps {
                *step = Step::new(Action::ReadModifyWrite, step.number());
            }
        }
        steps
    }
}

/// Rows of all operations of the figure, of a fresh store for each number of workers.
pub(super) fn measure(data: &Data<'_>, progress: &mut Progress<'_>) -> Result<Vec<Row>, Error> {
    let operations = &data.settings.figure.operations;
    let threads = progress.curve.threads().iter();
    let rows = threads.map(|threads| measure_some(data, progress, *threads, operations));
    Ok(rows.collect::<Result<Vec<_>, _>>()?.concat())
}

/// The same of these operations, for one number of workers.
pub(super) fn measure_some(
    data: &Data<'_>,
    progress: &mut Progress<'_>,
    threads: usize,
    operations: &[Operation],
) -> Result<Vec<Row>, Error> {
    let curve = progress.curve;
    let filled = data.filled(&curve, For::Speed)?;
    let cores = curve.shared(progress.cores());
    let mut rows = Vec::new();
    for operation in operations.iter().copied() {
        let mut row = progress.row(operation.name(), operation.writes(), threads);
        #[cfg(feature = "steps")]
        let before = everdram::steps::taken();
        settle(curve.system, &*filled.subject)?;
        let passed = repeat(data, &*filled.subject, operation, threads)?;
        Span::of(threads, &passed).add_to(&mut row, cores);
        row.push(Metric::Operations, passed.sample.operations as f64);
        #[cfg(feature = "steps")]
        if operation == Operation::Insert && matches!(curve.system, System::Viper(_)) {
            add_steps(&mut row, everdram::steps::taken().since(before));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// One call after another, as fast as they go.
pub(super) fn pass<'a>(data: &'a Data<'_>) -> Pass<'a> {
    Pass {
        corpus: &data.corpus,
        batch: 1,
        generation: AGAIN,
        timing: Timing::Throughput,
        pin: false,
    }
}

/// What an operation leaves in logs is not to be gleaned beside the next one.
fn settle(system: System, store: &dyn Subject) -> Result<(), Error> {
    if system.gleans() {
        let store = store.store().context("no store of everdram")?;
        store.engine().reclaim()?;
    }
    Ok(())
}

/// Asks for an operation half as often as there are records, or for the time of a point.
fn repeat(
    data: &Data<'_>,
    store: &dyn Subject,
    operation: Operation,
    threads: usize,
) -> Result<Passed, Error> {
    let author = |thread| operation.author(data, thread, threads);
    let mut authors: Vec<Author> = (0..threads).map(author).collect();
    let wanted = (data.records / 2 / threads as u64).max(1);
    let (mut done, mut passed) = (0, Passed::default());
    while done < wanted && passed.sample.wall.as_secs_f64() < data.settings.seconds {
        let count = done.max(FIRST).min(wanted - done);
        let steps = authors
            .iter_mut()
            .map(|author| operation.steps(author, count));
        let scripts: Vec<Vec<Step>> = steps.collect();
        passed.add(pass::run(store, pass(data), &scripts)?);
        done += count;
    }
    Ok(passed)
}

/// Where the time of an insert goes; the rest is the key, its stripe and the clock itself.
#[cfg(feature = "steps")]
fn add_steps(row: &mut Row, taken: everdram::steps::Taken) {
    let each = |ns: u64| ns as f64 / row.get(Metric::Operations).max.max(1.0);
    let steps = [
        (Metric::AllocNs, each(taken.room_ns)),
        (Metric::WriteNs, each(taken.store_ns)),
        (Metric::PersistNs, each(taken.fence_ns)),
        (Metric::IndexNs, each(taken.index_ns)),
    ];
    let all: f64 = steps.iter().map(|(_, ns)| ns).sum();
    let rest = (row.get(Metric::MeanNs).max - all).max(0.0);
    for (metric, ns) in steps.into_iter().chain([(Metric::RestNs, rest)]) {
        row.push(metric, ns);
    }
}
