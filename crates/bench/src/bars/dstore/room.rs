//! What checkpoints get done and write, and what an object takes of each medium.

use super::bed::{Bed, Ground, corpus};
use super::tails::no_checkpoint;
use super::{Group, Host, Outcome, Settings, alone, ratio};
use crate::limits::data::BLOCK_BYTES;
use crate::pace::Timing;
use crate::process;
use crate::subject::Error;
use crate::timing::Spread;
use crate::workload::Workload;

/// Changes that one checkpoint applies, at most: what the default logs hold.
const CHANGES: u64 = 500_000;
/// Puts of a commit where only their number counts.
const BATCH: usize = 64;
/// Sessions that fill the default logs alike.
const SESSIONS: usize = 16;
/// Checkpoints over which their bytes are counted.
const CHECKPOINTS: u64 = 3;
/// Extent of a pool that a bar leaves free.
const FREE_BYTES: f64 = (32 << 20) as f64;

pub(super) fn traffic(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let ground = Ground::Memory;
    let corpus = corpus(settings, BLOCK_BYTES);
    let records = ground.records(settings, BLOCK_BYTES, 1)?;
    let setup = ((settings, Group::Traffic), ground, (&corpus, records));
    host.begin(Group::Traffic, "changes of a checkpoint");
    let mut bed = Bed::filled(setup.0, setup.1, setup.2, |opener| {
        no_checkpoint(settings, opener);
        opener.dstore.log_bytes = opener.dstore.log_bytes.max(512 << 20);
    })?;
    let mut script = bed.script(Workload::Overwrite, 1);
    let mut rates = Vec::new();
    for _ in 0..settings.repeat {
        bed.store()?.checkpoint()?;
        let how = (BATCH, Timing::Throughput);
        bed.pass(&mut script, CHANGES.min(records), how, outcome)?;
        let before = bed.count("checkpoint_changes")?;
        let cpu = process::cpu();
        bed.store()?.checkpoint()?;
        let seconds = (process::cpu() - cpu).as_secs_f64();
        let changes = bed.count("checkpoint_changes")? - before;
        rates.push(changes as f64 / seconds / 1e6);
    }
    outcome.bars.push(alone(
        (
            Group::Traffic,
            "changes of a checkpoint, a second of a core",
        ),
        (Spread::of(rates).median, "M/s"),
        (2.0, None),
    ));
    drop(bed);
    host.begin(Group::Traffic, "bytes of a put");
    let mut bed = Bed::filled(setup.0, setup.1, setup.2, |_| {})?;
    for (sessions, says, most) in [
        (
            SESSIONS,
            "bytes to persistent memory, put of 4 KiB, 16 sessions",
            Some(1024.0),
        ),
        (1, "the same, one session, which fills one log of 16", None),
    ] {
        let mut script = bed.script(Workload::Overwrite, sessions);
        bed.store()?.checkpoint()?;
        let counts = |bed: &Bed<'_>| -> Result<[u64; 3], Error> {
            let written =
                bed.count("log_written_bytes")? + bed.count("checkpoint_written_bytes")?;
            Ok([
                written,
                bed.count("checkpoints")?,
                bed.store()?.stats().puts,
            ])
        };
        let before = counts(&bed)?;
        while counts(&bed)?[1] < before[1] + CHECKPOINTS {
            let some = records.clamp(SESSIONS as u64 * BATCH as u64, CHANGES / 8);
            bed.pass(&mut script, some, (BATCH, Timing::Throughput), outcome)?;
        }
        bed.store()?.checkpoint()?;
        let after = counts(&bed)?;
        let [bytes, _, puts] = [0, 1, 2].map(|at| (after[at] - before[at]) as f64);
        let each = (bytes / puts.max(1.0), "B");
        outcome
            .bars
            .push(alone((Group::Traffic, says), each, (0.0, most)));
    }
    Ok(())
}

pub(super) fn space(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    host.begin(Group::Space, "filling the store");
    let ground = Ground::Memory;
    let corpus = corpus(settings, BLOCK_BYTES);
    let records = ground.records(settings, BLOCK_BYTES, 1)?;
    let mut log_bytes = 0;
    let bed = Bed::filled(
        (settings, Group::Space),
        ground,
        (&corpus, records),
        |opener| {
            // It grows as its objects need.
            opener.prefault = false;
            log_bytes = u64::from(opener.dstore.logs) * opener.dstore.log_bytes;
        },
    )?;
    bed.store()?.checkpoint()?;
    let pool = bed.store()?.stats().pool_bytes as f64;
    let metadata = bed.count("metadata_dram_bytes")? as f64;
    let file = bed.count("data_file_bytes")? as f64;
    let data = (records * BLOCK_BYTES as u64) as f64;
    let dram = bed.fixture.memory(records).dram;
    let mib = f64::from(1 << 20);
    let says = format!("DRAM an object, of {records}");
    let bar = alone((Group::Space, &says), (dram, "B"), (0.0, Some(150.0)));
    outcome.bars.push(bar);
    let beside = log_bytes as f64 + FREE_BYTES;
    let pm = (pool - beside).max(0.0);
    let whole = pool + file + dram * records as f64;
    for (says, one, (other, name), most) in [
        (
            "persistent memory, less logs and 32 MiB",
            pm,
            (metadata, "metadata in DRAM"),
            1.15,
        ),
        ("data file", file, (data, "values"), 1.02),
        (
            "all three media, set for 2M objects",
            whole,
            (data, "values"),
            1.12,
        ),
    ] {
        let (one, other) = ((one / mib, "MiB"), (other / mib, name));
        let bar = ratio((Group::Space, says), one, other, (0.0, Some(most)));
        outcome.bars.push(bar);
    }
    Ok(())
}
