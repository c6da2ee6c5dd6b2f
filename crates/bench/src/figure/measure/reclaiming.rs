//! Throughput of gets and of inserts while room is reclaimed, and before (section 5.3.8 of Viper's paper): a
//! third of the records was deleted, and nothing was reclaimed since.

use super::operations;
use crate::drive::Asker;
use crate::figure::jobs::{self, Done, Job};
use crate::figure::progress::Progress;
use crate::figure::store::{Data, For};
use crate::figure::stream::Writes;
use crate::figure::workers::Workers;
use crate::pass;
use crate::row::{Metric, Row};
use crate::subject::{Client, Error};
use crate::workload::distribution::Permutation;
use crate::workload::{Action, Author, Step, Workload};
use anyhow::Context;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::time::Instant;

/// One of so many records is deleted.
const GONE: u64 = 3;
/// Gets that a worker goes through, again and again.
const GETS: usize = 1 << 18;

/// Asks for one step after another.
struct Taking<'a, S> {
    asker: Asker<'a>,
    steps: S,
}

impl<S: Iterator<Item = Step> + Send> Job for Taking<'_, S> {
    #[inline]
    fn next(&mut self, client: &mut dyn Client) -> Result<Done, Error> {
        let Some(step) = self.steps.next() else {
            return Ok(Done::Over);
        };
        self.asker.ask(client, step)?;
        Ok(match step.action() {
            Action::Put => Done::Put,
            _ => Done::Get,
        })
    }
}

/// Gets of records that are still there, in a circle.
fn gets(data: &Data<'_>, gone: u64, thread: usize) -> impl Iterator<Item = Step> + Send {
    // Deletes go through the records in this order.
    let order = Permutation::new(data.records, data.settings.seed);
    let mut random = SmallRng::seed_from_u64(data.settings.seed ^ (thread as u64 + 1) << 32);
    let mut step = || {
        Step::new(
            Action::Get,
            order.of(random.random_range(gone..data.records)),
        )
    };
    let steps: Vec<Step> = (0..GETS).map(|_| step()).collect();
    steps.into_iter().cycle()
}

/// Four rows: each load, before and while.
pub(super) fn measure(data: &Data<'_>, progress: &mut Progress<'_>) -> Result<Vec<Row>, Error> {
    let (threads, seed) = (progress.curve.workers(), data.settings.seed);
    let gone = data.records / GONE;
    let of = |thread| gets(data, gone, thread);
    let gets = beside(data, progress, ("gets", 0.0, gone), (0..threads).map(of))?;
    let new = |thread| Author::new(Workload::Insert, data.records, thread, threads, seed);
    let inserts = beside(
        data,
        progress,
        ("inserts", 100.0, gone),
        (0..threads).map(new),
    )?;
    Ok([gets, inserts].concat())
}

/// Workers that take these steps, alone and beside one thread that reclaims.
fn beside<S: Iterator<Item = Step> + Send>(
    data: &Data<'_>,
    progress: &mut Progress<'_>,
    (load, percent, gone): (&str, f64, u64),
    steps: impl Iterator<Item = S>,
) -> Result<Vec<Row>, Error> {
    let (settings, curve) = (data.settings, progress.curve);
    let cores = Some(progress.cores());
    let filled = data.filled(&curve, For::Reclaiming)?;
    let store = &*filled.subject;
    let mut author = Author::new(Workload::Delete, data.records, 0, 1, settings.seed);
    let deletes = [author.write(gone)];
    pass::run(store, operations::pass(data), &deletes)?;
    let asking: Vec<_> = steps
        .map(|steps| Taking {
            asker: Asker::new(&data.corpus),
            steps,
        })
        .collect();
    let threads = asking.len();
    let workers = Workers::new(threads, Writes::ALL);
    let engine = store.store().context("no store of everdram")?.engine();
    let (rows, _) = jobs::run(store, &workers, asking, || {
        let mut alone = progress.row(load, percent, threads);
        workers.sleep(settings.warm_up_seconds());
        workers
            .span(0..threads, settings.seconds)
            .add_to(&mut alone, cores);
        let mut both = progress.row(&format!("{load} beside it"), percent, threads);
        let (before, begun) = (workers.tally(0..threads), Instant::now());
        let freed = engine.reclaim()?;
        both.push(Metric::ReclaimNs, begun.elapsed().as_nanos() as f64);
        workers
            .tally(0..threads)
            .since(&before)
            .add_to(&mut both, cores);
        both.push(Metric::FreedBytes, freed as f64);
        for row in [&mut alone, &mut both] {
            row.conditions.insert("deleted".into(), gone.into());
        }
        Ok(vec![alone, both])
    })?;
    Ok(rows)
}
