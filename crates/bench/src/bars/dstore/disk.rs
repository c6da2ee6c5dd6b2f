//! Values of 64 KiB on ordinary files: against `viper`, and behind the server against Redis.

use super::bed::{Bed, Ground, corpus};
use super::{Group, Host, Outcome, Settings, ratio};
use crate::machine::written_bytes;
use crate::pace::Timing;
use crate::row::Metric;
use crate::server::{self, Command, Comparison, Contender, Data, Load, Persistence, Pins};
use crate::subject::Error;
use crate::timing::Spread;
use crate::workload::Workload;
use everdram::EngineKind;

/// Bytes of a value.
const VALUE_BYTES: usize = 64 << 10;
/// Values of all keys together, at most.
const VALUES_BYTES: u64 = 1 << 30;
/// Threads that share syncs.
const THREADS: usize = 8;
/// Connections of the load.
const CONNECTIONS: usize = 50;

pub(super) fn against_viper(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let ground = Ground::Files;
    let corpus = corpus(settings, VALUE_BYTES);
    let most = VALUES_BYTES / VALUE_BYTES as u64;
    let records = ground.records(settings, VALUE_BYTES, 2)?.min(most);
    let how = (1, Timing::Throughput);
    let mut beds = Vec::new();
    for kind in [EngineKind::Dstore, EngineKind::Viper] {
        host.begin(Group::Large, kind.name());
        let setup = ((settings, Group::Large), ground, (&corpus, records));
        let mut bed = Bed::filled(setup.0, setup.1, setup.2, |opener| opener.engine = kind)?;
        if kind == EngineKind::Dstore {
            // As long as there is no other store, whose background would write meanwhile.
            written(settings, &mut bed, outcome)?;
        }
        beds.push(bed);
    }
    for (threads, least) in [(THREADS, 1.0), (1, 0.55)] {
        host.begin(Group::Large, &format!("{threads} threads"));
        let mut scripts = Vec::new();
        for bed in &mut beds {
            let mut script = bed.script(Workload::Overwrite, threads);
            let operations = bed.warm_up(&mut script, how)?;
            scripts.push((script, operations));
        }
        let mut rates = [const { Vec::new() }; 2];
        for _ in 0..settings.repeat {
            let stores = beds.iter_mut().zip(&mut scripts).zip(&mut rates);
            for ((bed, (script, operations)), rates) in stores {
                let passed = bed.pass(script, *operations, how, outcome)?;
                rates.push(passed.sample.rate() / 1e3);
            }
        }
        let [ours, viper] = rates.map(|rates| Spread::of(rates).median);
        let says = format!("put, 64 KiB, files, threads: {threads}");
        let (one, other) = ((ours, "k/s"), (viper, "viper"));
        let bar = ratio((Group::Large, &says), one, other, (least, None));
        outcome.bars.push(bar);
    }
    Ok(())
}

/// Bytes that the disk gets for each byte of values, until all of it is in its place.
fn written(settings: &Settings, bed: &mut Bed<'_>, outcome: &mut Outcome) -> Result<(), Error> {
    let how = (1, Timing::Throughput);
    let mut script = bed.script(Workload::Overwrite, THREADS);
    let operations = bed.warm_up(&mut script, how)? * settings.repeat as u64;
    bed.store()?.checkpoint()?;
    let before = written_bytes(&settings.file_dir);
    let passed = bed.pass(&mut script, operations, how, outcome)?;
    bed.store()?.checkpoint()?;
    bed.store()?.sync()?;
    let after = written_bytes(&settings.file_dir);
    let Some((before, after)) = before.zip(after) else {
        let why = format!("{} has no device of its own", settings.file_dir.display());
        outcome.skipped.push((Group::Large, why));
        return Ok(());
    };
    let values = (passed.sample.operations * VALUE_BYTES as u64) as f64;
    let mib = f64::from(1 << 20);
    let says = "bytes to the disk, 64 KiB, files";
    let (one, other) = (
        ((after - before) as f64 / mib, "MiB"),
        (values / mib, "values"),
    );
    let bar = ratio((Group::Large, says), one, other, (0.0, Some(1.15)));
    outcome.bars.push(bar);
    Ok(())
}

pub(super) fn against_redis(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    host.begin(Group::Server, "SET");
    let dir = &settings.file_dir;
    let redis = match Contender::redis("redis-server", Persistence::EachWrite, dir) {
        Ok(redis) => redis,
        Err(error) => {
            outcome.skipped.push((Group::Server, format!("{error:#}")));
            return Ok(());
        }
    };
    let own = Contender::everdram(&host.program()?, "file", dir, EngineKind::Dstore)?;
    let most = VALUES_BYTES / 4 / VALUE_BYTES as u64;
    let keys = Ground::Files.records(settings, VALUE_BYTES, 2)?.min(most);
    let comparison = Comparison {
        contenders: vec![own, redis],
        loads: vec![Load {
            command: Command::Set,
            data: Data {
                keys,
                value_bytes: VALUE_BYTES,
            },
            connections: CONNECTIONS,
            pipeline: 1,
            rate: None,
            most: None,
            warm_up_seconds: settings.seconds / 2.0,
            seconds: settings.seconds,
            seed: settings.seed,
        }],
        repetitions: settings.repeat,
        pins: Pins::apart(),
    };
    let rows = server::compare(&comparison, &mut |_, what| {
        host.begin(Group::Server, what);
    })?;
    let rate = |name: &str| {
        let row = rows.iter().find(|row| row.subject.contains(name));
        row.map_or(0.0, |row| row.get(Metric::Rate).median / 1e3)
    };
    outcome.bars.push(ratio(
        (Group::Server, "SET of 64 KiB, files"),
        (rate("everdram"), "k/s"),
        (rate("redis"), "redis-server, always"),
        (1.0, None),
    ));
    Ok(())
}
