//! What goes to the log, how often records move before they do, and what happens if the disk is too slow.

use super::bed::{Bed, Ground, Kind};
use super::{Group, Host, Outcome, Settings, alone, ratio};
use crate::fixture::Place;
use crate::latency::histogram;
use crate::limits::files::{FILE_BYTES, Preallocated};
use crate::pace::Timing;
use crate::process;
use crate::subject::Error;
use crate::timing::Spread;
use crate::workload::{Action, Step, Workload};
use anyhow::ensure;

/// Values whose records leave.
const VALUES: [(usize, f64); 2] = [(200, 1.35), (1024, 1.08)];
/// Bytes of a batch of the log.
const BATCH_BYTES: usize = 1 << 20;
/// Times as many overwrites as records, before and while they are counted.
const OVERWRITES: u64 = 3;
/// Segments of a log of all records, at least: of a few, none would be worth cleaning for long.
const SEGMENTS: u64 = 64;
/// Operations of a part of a script.
const PART: u64 = 1 << 18;
/// Values of floods, and bytes of the log for one of their records' keys and values. Small ones take the
/// processors more than a good disk.
const FLOODS: [(usize, f64); 2] = [(200, 1.33), (16 << 10, 1.01)];
/// Records that a flood leaves, at most: their keys are all in DRAM.
const FLOOD_MAX: u64 = 40_000_000;

const MIB: f64 = (1 << 20) as f64;

pub(super) fn written(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    for (value_bytes, most) in VALUES {
        let what = format!("values of {value_bytes} bytes");
        host.begin(Group::Written, &what);
        let records = settings.records * VALUES[0].0 as u64 / value_bytes as u64;
        let ground = Ground::new(settings, records.max(1), value_bytes)?;
        let before = process::written_bytes();
        let bed = ground.bed(Kind::Tight)?;
        bed.rest()?;
        let bytes = (process::written_bytes() - before) as f64;
        let left = ground.payload(bed.count("evicted_records")?);
        let says = format!("bytes to the log, {what}, without cleaning");
        let (one, other) = ((bytes / MIB, "MiB"), (left / MIB, "keys and values"));
        let bar = ratio((Group::Written, &says), one, other, (0.0, Some(most)));
        outcome.bars.push(bar);
    }
    let ground = Ground::usual(settings)?;
    for workload in [None, Some(Workload::YcsbA)] {
        let name = name(workload);
        host.begin(Group::Written, name);
        let churn = churn(&ground, workload)?;
        let left = ground.payload(churn.evicted);
        let says = format!("bytes to the log, {name}, with cleaning");
        let (one, other) = (
            (churn.written as f64 / MIB, "MiB"),
            (left / MIB, "keys and values"),
        );
        // The bar is about overwrites.
        let most = workload.is_none().then_some(2.5);
        let bar = ratio((Group::Written, &says), one, other, (0.0, most));
        outcome.bars.push(bar);
        if workload.is_none() && churn.cleaned == 0 {
            let why = "no segment was cleaned; take more --records";
            outcome.skipped.push((Group::Written, why.into()));
        }
    }
    Ok(())
}

pub(super) fn moves(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let ground = Ground::usual(settings)?;
    for workload in [None, Some(Workload::YcsbA)] {
        let name = name(workload);
        host.begin(Group::Moves, name);
        let churn = churn(&ground, workload)?;
        let moves = churn.moved_bytes as f64 / ground.record_bytes;
        let says = format!("moves of records for a put, {name}");
        let (one, other) = ((moves, "moves"), (churn.puts as f64, "puts"));
        let bar = ratio((Group::Moves, &says), one, other, (0.0, Some(1.3)));
        outcome.bars.push(bar);
    }
    Ok(())
}

fn name(workload: Option<Workload>) -> &'static str {
    workload.map_or("zipf overwrites", Workload::name)
}

/// What happened meanwhile.
struct Churn {
    puts: u64,
    moved_bytes: u64,
    written: u64,
    evicted: u64,
    cleaned: u64,
}

/// Overwrites all records of a tight store some times, by a zipfian distribution, without gets or with those
/// of a workload.
fn churn(ground: &Ground<'_>, workload: Option<Workload>) -> Result<Churn, Error> {
    let mut bed = Bed::filled(ground, Kind::Tight, ground.records, |opener| {
        let usual = opener.tiered.segment_bytes;
        let some = ground.payload(ground.records) as u64 / SEGMENTS;
        opener.tiered.segment_bytes = some.next_multiple_of(4096).min(usual);
    })?;
    let mut script = bed.script(workload.unwrap_or(Workload::YcsbA), ground.records);
    let mut overwrite = |bed: &mut Bed<'_>| -> Result<Churn, Error> {
        let mut left = ground.records * OVERWRITES;
        while left > 0 {
            let part = left.min(PART);
            let mut steps = script.write(part);
            if workload.is_none() {
                for step in steps.iter_mut().flatten() {
                    *step = Step::new(Action::Put, step.number());
                }
            }
            bed.fixture.pass(&steps, (1, Timing::Throughput, false))?;
            left -= part;
        }
        bed.rest()?;
        let stats = bed.store()?.stats();
        Ok(Churn {
            puts: stats.puts,
            moved_bytes: stats.bytes_moved,
            written: process::written_bytes(),
            evicted: bed.count("evicted_records")?,
            cleaned: bed.count("cleaned_bytes")?,
        })
    };
    let before = overwrite(&mut bed)?;
    let after = overwrite(&mut bed)?;
    Ok(Churn {
        puts: after.puts - before.puts,
        moved_bytes: after.moved_bytes - before.moved_bytes,
        written: after.written - before.written,
        evicted: after.evicted - before.evicted,
        cleaned: after.cleaned - before.cleaned,
    })
}

/// New keys, several at once, faster than the disk takes them.
pub(super) fn flood(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    for (value_bytes, overhead) in FLOODS {
        let records = settings.records * FLOODS[0].0 as u64 / value_bytes as u64;
        let ground = Ground::new(settings, records.max(1), value_bytes)?;
        flood_with(&ground, overhead, host, outcome)?;
    }
    Ok(())
}

fn flood_with(
    ground: &Ground<'_>,
    overhead: f64,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let settings = ground.settings;
    let what = format!("values of {} bytes", ground.value_bytes);
    let part = PART.min(ground.records);
    let place = Place::within(&settings.file_dir)?;
    let mut bare = Preallocated::new(place.path(), FILE_BYTES)?;
    host.begin(Group::Flood, &format!("filling, {what}"));
    let mut bed = Bed::filled(ground, Kind::Tight, 0, |_| {})?;
    let mut script = bed.script(Workload::PutMany, ground.records);
    let how = (crate::compare::BATCH, Timing::Throughput, false);
    let mut put = 0;
    while put < ground.records {
        bed.fixture.pass(&script.write(part), how)?;
        put += part;
    }
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for _ in 0..settings.repeat {
        host.begin(Group::Flood, "bare writes");
        // Alone: the log is not written meanwhile.
        bed.rest()?;
        let sample = bare.run(BATCH_BYTES, settings.time(), &mut histogram())?;
        others.push(sample.rate() * BATCH_BYTES as f64 / overhead / MIB);
        host.begin(Group::Flood, "puts");
        let begun = std::time::Instant::now();
        let (mut operations, mut wall) = (0, std::time::Duration::ZERO);
        while begun.elapsed() < settings.time() && put < FLOOD_MAX {
            let passed = bed.fixture.pass(&script.write(part), how)?;
            operations += passed.sample.operations;
            wall += passed.sample.wall;
            put += part;
        }
        let bytes = ground.payload(operations);
        ours.push(bytes / wall.as_secs_f64().max(1e-9) / MIB);
    }
    let middle = |rates: Vec<f64>| Spread::of(rates).median;
    let beside = format!("1 MiB and a sync, / {overhead}");
    let (one, other) = ((middle(ours), "MiB/s"), (middle(others), beside.as_str()));
    let says = format!("puts that leave at once, {what}, by the clock");
    let bar = ratio((Group::Flood, &says), one, other, (0.8, None));
    outcome.bars.push(bar);
    host.begin(Group::Flood, "looking for them");
    let keys = bed.store()?.stats().keys;
    let lost = put.abs_diff(keys);
    let says = format!("keys of {put} that are lost, {what}");
    let bar = alone((Group::Flood, &says), (lost as f64, ""), (0.0, Some(0.0)));
    outcome.bars.push(bar);
    ensure!(lost == 0, "{keys} keys of {put} are there");
    // Their values are checked.
    let mut script = bed.script(Workload::Get, put);
    let steps = script.write(part);
    bed.fixture.pass(&steps, (1, Timing::Throughput, false))?;
    Ok(())
}
