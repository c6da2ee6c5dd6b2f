//! More threads and more records: how rates hold up, and what a record costs in DRAM.

use super::{Group, Host, Outcome, Settings, Skipped, Stores, USUAL, at_most, pass, share};
use crate::fixture::Fixture;
use crate::process;
use crate::subject::Error;
use crate::timing::Sample;
use crate::workload::Workload;

/// Times as many records.
const LARGE: u64 = 4;
/// Bytes that must be free for each record of a large store, everything counted.
const LARGE_RECORD_BYTES: u64 = 400;

/// Two threads against one, each on a core of its own. Threads that sleep for each other spend no processor
/// time, so by the clock is what counts where two cores are free.
pub(super) fn threads(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let stores = Stores::new(settings, USUAL, false, settings.records);
    let mut filled = stores.filled()?;
    for workload in [
        Workload::Get,
        Workload::Overwrite,
        Workload::YcsbA,
        Workload::Put,
    ] {
        host.begin(Group::Threads, workload.name());
        let mut taken = [Vec::new(), Vec::new()];
        for _ in 0..settings.repeat {
            for (threads, taken) in [1, 2].into_iter().zip(&mut taken) {
                let mut script = stores.script(workload, threads);
                let mut empty = workload.begins_empty().then(|| stores.open()).transpose()?;
                let store = empty.as_mut().unwrap_or(&mut filled);
                let mut sample = pass(store, &mut script, settings.operations)?;
                // As much time of each thread is a rate of both together.
                sample.cpu /= threads as u32;
                taken.push(sample);
            }
        }
        let [one, two] = taken;
        let name = format!("{workload}, two threads");
        let bar = share(
            Group::Threads.name(),
            &name,
            &two,
            ("one thread", &one),
            1.9,
        );
        outcome.bars.push(bar);
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
    let small = Stores::new(settings, USUAL, false, settings.records);
    let large = Stores::new(settings, USUAL, false, records);
    host.begin(Group::Large, "put");
    let (mut small_store, few_puts) = put_all(&small)?;
    let (mut large_store, many_puts) = put_all(&large)?;
    let dram = large_store.memory(records).dram;
    host.begin(Group::Large, "get");
    let (mut few_gets, mut many_gets) = (Vec::new(), Vec::new());
    for _ in 0..settings.repeat {
        for (stores, store, taken) in [
            (&small, &mut small_store, &mut few_gets),
            (&large, &mut large_store, &mut many_gets),
        ] {
            let mut script = stores.script(Workload::Get, 1);
            taken.push(pass(store, &mut script, settings.operations)?);
        }
    }
    let reference = format!("{} records", settings.records);
    for (what, few, many, least) in [
        ("put", &few_puts, &many_puts, 0.85),
        ("get", &few_gets, &many_gets, 0.75),
    ] {
        let name = format!("{what}, {LARGE} times the records");
        let bar = share(Group::Large.name(), &name, many, (&reference, few), least);
        outcome.bars.push(bar);
    }
    let name = format!("DRAM a record, of {records}");
    outcome
        .bars
        .push(at_most(Group::Large, &name, "B", dram, 12.0));
    Ok(())
}

/// Fills an empty store, a part at a time: what a script needs of memory is then gone when DRAM is asked for.
fn put_all<'a>(stores: &'a Stores<'_>) -> Result<(Fixture<'a>, Vec<Sample>), Error> {
    const PART: u64 = 1 << 19;
    let mut store = stores.open()?;
    let mut script = stores.script(Workload::Put, 1);
    let mut whole = Sample::default();
    let mut left = stores.records;
    while left > 0 {
        let part = left.min(PART);
        let sample = pass(&mut store, &mut script, part)?;
        whole.operations += sample.operations;
        whole.wall += sample.wall;
        whole.cpu += sample.cpu;
        left -= part;
    }
    Ok((store, vec![whole]))
}
