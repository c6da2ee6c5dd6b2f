//! More threads and more records: how rates hold up, and what a record costs in DRAM.

use super::stage::{Pages, Stage, Taken};
use super::{Bar, Group, Host, Outcome, Settings, Skipped, USUAL};
use crate::place::Opened;
use crate::process;
use crate::subject::Error;
use crate::workload::Workload;

/// Times as many records.
const LARGE: u64 = 4;
/// Bytes that must be free for each record of a large store, everything counted.
const LARGE_RECORD_BYTES: u64 = 400;

/// A rate as a ratio to another of the same workload.
fn ratio(
    group: Group,
    operation: String,
    reference: String,
    ours: &Taken,
    other: &Taken,
    bar: f64,
) -> Bar {
    Bar {
        group,
        operation,
        measured: ours.cpu_rate(),
        unit: "M/s".into(),
        reference: Some(other.cpu_rate()),
        reference_name: Some(reference),
        value: ours.cpu_rate() / other.cpu_rate(),
        wall_value: Some(ours.rate() / other.rate()),
        bar,
        at_most: false,
    }
}

/// Two threads against one, each on a core of its own. Threads that sleep for each other spend no processor
/// time, so by the clock is what counts where two cores are free.
pub(super) fn threads(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let mut stage = Stage::new(settings, USUAL, Pages::Variable, settings.records);
    let filled = stage.filled()?;
    for workload in [
        Workload::Get,
        Workload::Overwrite,
        Workload::YcsbA,
        Workload::Put,
    ] {
        host.begin(Group::Threads, workload.name());
        let mut taken = [Taken::default(), Taken::default()];
        for _ in 0..settings.repeat {
            for (threads, taken) in [1, 2].into_iter().zip(&mut taken) {
                let mut authors = stage.authors(workload, threads);
                let empty = workload.begins_empty().then(|| stage.open()).transpose()?;
                let store = empty.as_ref().unwrap_or(&filled);
                let operations = settings.operations;
                let mut sample = stage
                    .pass(store, workload, &mut authors, operations)?
                    .sample;
                // As much time of each thread is a rate of both together.
                sample.cpu /= threads as u32;
                taken.0.push(sample);
            }
        }
        let [one, two] = taken;
        let name = format!("{workload}, two threads");
        outcome.bars.push(ratio(
            Group::Threads,
            name,
            "one thread".into(),
            &two,
            &one,
            1.9,
        ));
    }
    Ok(())
}

/// Four times the records against as many as usual.
pub(super) fn large(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let records = settings.records * LARGE;
    let needed = records * LARGE_RECORD_BYTES * 5 / 4;
    let available = process::available_bytes();
    if available < needed {
        outcome.skipped.push(Skipped {
            group: Group::Large,
            why: format!(
                "{records} records need about {} MiB of memory, and {} are free: take fewer --records",
                needed >> 20,
                available >> 20
            ),
        });
        return Ok(());
    }
    let mut small = Stage::new(settings, USUAL, Pages::Variable, settings.records);
    let mut large = Stage::new(settings, USUAL, Pages::Variable, records);
    let mut puts = [Taken::default(), Taken::default()];
    host.begin(Group::Large, "put");
    let small_store = put_all(&mut small, &mut puts[0])?;
    let before = process::private_bytes();
    let large_store = put_all(&mut large, &mut puts[1])?;
    let dram = process::private_bytes().saturating_sub(before) as f64 / records as f64;
    host.begin(Group::Large, "get");
    let mut gets = [Taken::default(), Taken::default()];
    for _ in 0..settings.repeat {
        for (stage, store, taken) in [(&mut small, &small_store, 0), (&mut large, &large_store, 1)]
        {
            let mut authors = stage.authors(Workload::Get, 1);
            let operations = settings.operations;
            let passed = stage.pass(store, Workload::Get, &mut authors, operations)?;
            gets[taken].0.push(passed.sample);
        }
    }
    let name = |what: &str| format!("{what}, {LARGE} times the records");
    let reference = format!("{} records", settings.records);
    for (what, [few, many], bar) in [("put", &puts, 0.85), ("get", &gets, 0.75)] {
        outcome.bars.push(ratio(
            Group::Large,
            name(what),
            reference.clone(),
            many,
            few,
            bar,
        ));
    }
    let name = format!("DRAM a record, of {records}");
    let bar = Bar::at_most(Group::Large, name, "B", dram, 12.0);
    outcome.bars.push(bar);
    Ok(())
}

/// Fills an empty store, a part at a time: what a script needs of memory is then gone when DRAM is asked for.
fn put_all(stage: &mut Stage, taken: &mut Taken) -> Result<Opened, Error> {
    const PART: u64 = 1 << 19;
    let store = stage.open()?;
    let mut authors = stage.authors(Workload::Put, 1);
    let mut left = stage.records;
    let mut whole: Option<crate::timing::Sample> = None;
    while left > 0 {
        let part = left.min(PART);
        let sample = stage
            .pass(&store, Workload::Put, &mut authors, part)?
            .sample;
        let sum = whole.get_or_insert(crate::timing::Sample {
            operations: 0,
            wall: std::time::Duration::ZERO,
            cpu: std::time::Duration::ZERO,
        });
        sum.operations += sample.operations;
        sum.wall += sample.wall;
        sum.cpu += sample.cpu;
        left -= part;
    }
    taken.0.extend(whole);
    Ok(store)
}
