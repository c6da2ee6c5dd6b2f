//! A pool that grows and is compacted while it is written: how large it gets, and how slow its slowest calls
//! are.

use super::{Group, Host, Outcome, Settings, Stores, USUAL, at_most};
use crate::drive::Pass;
use crate::everdram::Everdram;
use crate::pace::Timing;
use crate::pass;
use crate::plan::{Extent, Plan};
use crate::row::Metric;
use crate::subject::{Error, Subject};
use crate::verdict::{Compared, Verdict};
use crate::workload::distribution::Permutation;
use crate::workload::sizes::Sizes;
use crate::workload::{Action, Step, Workload};
use everdram::Medium;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Times that every record is overwritten.
const ROUNDS: u64 = 5;

/// Between two looks at the pool.
const LOOK: Duration = Duration::from_millis(10);
/// A pool that has not changed for so long has settled.
const AT_REST: Duration = Duration::from_secs(3);
/// The longest wait for a pool to settle.
const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes of the pool on the medium while every record is overwritten again and again, in another order each
/// time, and when the pool has come to rest afterwards; processor time of all of it.
pub(super) fn overwritten(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    host.begin(Group::Space, "overwriting");
    let mut stores = Stores::new(settings, USUAL, false, settings.records);
    stores.opener.prefault = false;
    let fixture = stores.filled()?;
    let most = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let subject = &*fixture.subject;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(subject.medium_bytes().unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(LOOK);
            }
        });
        let result = overwrite_all(&stores, subject);
        is_over.store(true, Ordering::Relaxed);
        result
    })?;
    host.begin(Group::Space, "at rest");
    let rest = at_rest(subject);
    for (when, bytes) in [
        (format!("pool after {ROUNDS} rounds of overwriting"), rest),
        ("the most meanwhile".into(), most.into_inner()),
    ] {
        let live = stores.records as f64 * (USUAL.0 + USUAL.1) as f64;
        let (mib, name) = (f64::from(1 << 20), "keys and values".into());
        let share = Compared {
            made_of: Some((bytes as f64 / mib, "MiB".into())),
            against: Some((live / mib, name)),
            ..Compared::new(&when, bytes as f64 / live)
        };
        let says = (Group::Space.name(), &*when);
        let bar = Verdict::new(says, vec![share], (0.0, Some(1.25)), true);
        outcome.bars.push(bar);
    }
    Ok(())
}

fn overwrite_all(stores: &Stores<'_>, subject: &dyn Subject) -> Result<(), Error> {
    for round in 1..=ROUNDS {
        let order = Permutation::new(stores.records, stores.settings.seed ^ round);
        let steps: Vec<Step> = (0..stores.records)
            .map(|turn| Step::new(Action::Put, order.of(turn)))
            .collect();
        let pass = Pass {
            corpus: &stores.corpus,
            batch: 1,
            generation: round,
            timing: Timing::Throughput,
            pin: false,
        };
        pass::run(subject, pass, &[steps])?;
    }
    Ok(())
}

/// Bytes of the pool on the medium when they have not changed for a while.
fn at_rest(subject: &dyn Subject) -> u64 {
    let begun = Instant::now();
    let (mut bytes, mut since) = (subject.medium_bytes().unwrap_or(0), begun);
    while since.elapsed() < AT_REST && begun.elapsed() < PATIENCE {
        std::thread::sleep(LOOK);
        let seen = subject.medium_bytes().unwrap_or(0);
        if seen != bytes {
            (bytes, since) = (seen, Instant::now());
        }
    }
    bytes
}

/// The slowest calls of two threads while the pool grows and is compacted.
pub(super) fn tail(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let opener = Everdram {
        prefault: false,
        ..Everdram::on(Medium::Emulated)
    };
    for workload in [Workload::Put, Workload::YcsbA] {
        host.begin(Group::Tail, workload.name());
        let plan = Plan {
            workloads: vec![workload],
            records: settings.records,
            extent: Extent::Operations(settings.records),
            threads: 2,
            keys: Sizes::Fixed(USUAL.0),
            values: Sizes::Fixed(USUAL.1),
            batch: 1,
            rate: None,
            repeat: settings.repeat,
            seed: settings.seed,
            pin: true,
            dir: settings.dir.clone(),
        };
        plan.measure(&opener, &mut |_, _| {}, &mut |row| {
            for (whose, metric) in [
                ("all calls", Metric::P999Ns),
                ("had a core", Metric::CoreP999Ns),
            ] {
                let name = format!("{workload}, 99.9 %, {whose}");
                let us = row.get(metric).median / 1e3;
                let bar = at_most(Group::Tail, &name, "us", us, 20.0);
                outcome.bars.push(bar);
            }
            Ok(())
        })?;
    }
    Ok(())
}
