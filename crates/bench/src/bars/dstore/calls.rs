//! Single calls: puts and gets against the bare loops that do the same, several at once, and in order.

use super::bed::{Bed, Ground, corpus};
use super::{Group, Host, Outcome, Settings, alone, ratio};
use crate::bars::share;
use crate::fixture::Script;
use crate::latency::Latencies;
use crate::limits::data::{BLOCK_BYTES, BareGet, Places, time_each};
use crate::pace::Timing;
use crate::pass::Passed;
use crate::pool;
use crate::subject::Error;
use crate::timing::{Sample, Spread, Stopwatch};
use crate::verdict::{Compared, Verdict};
use crate::workload::Workload;
use crate::workload::corpus::Maker;
use anyhow::{Context, ensure};
use std::fmt::Display;
use std::fs::File;
use std::ops::Bound;
use std::path::Path;

/// Calls that are to be slower than a percentile, so that it says something.
const BEYOND: f64 = 10.0;
/// Threads that share the syncs of a disk.
const THREADS: usize = 8;
/// Keys of a range, and of a call of it.
const KEYS: usize = 1000;
const PART: usize = 100;

/// How much of the calls a percentile is of.
const QUANTILES: [f64; 4] = [0.5, 0.99, 0.999, 0.9999];

pub(super) fn puts(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    for (ground, blocks, goals) in [
        (Ground::Modelled, 1, [Some(1.10), None, None, None]),
        (Ground::Modelled, 4, [Some(1.04), None, None, None]),
        (
            Ground::Disk,
            1,
            [Some(1.05), Some(1.15), Some(1.3), Some(1.5)],
        ),
        (Ground::Disk, 4, [None; 4]),
    ] {
        let bytes = blocks * BLOCK_BYTES;
        let name = format!("{} KiB, {}", bytes >> 10, ground.name());
        host.begin(Group::Put, &name);
        let corpus = corpus(settings, bytes);
        // The bare loop has a file as large as the store's.
        let records = ground.records(settings, bytes, 2)?;
        let mut bed = Bed::filled((settings, Group::Put), ground, (&corpus, records), |_| {})?;
        let mut bare = ground.bare_put(settings, bytes, Places::InOrder)?;
        let mut random = ground.bare_put(settings, bytes, anywhere(records, bytes))?;
        let bares: [Call<'_>; 2] = [&mut || bare.put(), &mut || random.put()];
        let (ours, [others, random]) =
            in_turns(settings, &mut bed, Workload::Overwrite, bares, outcome)?;
        let limit = format!("data-{}k", bytes >> 10);
        for (quantile, most) in QUANTILES.into_iter().zip(goals) {
            let what = (Group::Put, &*format!("put, {name}"));
            let (limit, bounds) = ((&*limit, &others), (0.0, most));
            let bar = percentile(what, &ours, limit, quantile, bounds);
            outcome.bars.push(bar);
        }
        // Freed blocks are anywhere in the file, so a store does not write from end to end.
        let what = (Group::Put, &*format!("put, {name}, at random"));
        let random = (&*format!("{limit}-random"), &random);
        let bar = percentile(what, &ours, random, 0.5, (0.0, None));
        outcome.bars.push(bar);
    }
    Ok(())
}

/// Random places in a file as large as that of a store.
fn anywhere(records: u64, bytes: usize) -> Places {
    let file_bytes = records * bytes as u64;
    Places::Random { file_bytes }
}

pub(super) fn gets(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    for (ground, most) in [(Ground::Modelled, 1.10), (Ground::Disk, 1.9)] {
        host.begin(Group::Get, ground.name());
        let corpus = corpus(settings, BLOCK_BYTES);
        let records = ground.records(settings, BLOCK_BYTES, 1)?;
        let mut bed = Bed::filled((settings, Group::Get), ground, (&corpus, records), |_| {})?;
        let mut bare = BareGet::new(&bed.data_path(), &ground.slowness()?)?;
        let bares: [Call<'_>; 1] = [&mut || bare.get()];
        let (ours, [others]) = in_turns(settings, &mut bed, Workload::Get, bares, outcome)?;
        let cached = match ground {
            Ground::Disk => ", blocks in the page cache",
            _ => "",
        };
        let name = format!("get, 4 KiB, {}{cached}", ground.name());
        let (what, limit) = ((Group::Get, &*name), ("data-read-4k", &others));
        let bar = percentile(what, &ours, limit, 0.5, (0.0, Some(most)));
        outcome.bars.push(bar);
    }
    Ok(())
}

/// A call of a bare loop.
type Call<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// Latencies of the store and of bare loops, which take turns.
fn in_turns<const BARES: usize>(
    settings: &Settings,
    bed: &mut Bed<'_>,
    workload: Workload,
    mut bares: [Call<'_>; BARES],
    outcome: &mut Outcome,
) -> Result<(Latencies, [Latencies; BARES]), Error> {
    let how = (1, Timing::Closed);
    let mut script = bed.script(workload, 1);
    let operations = bed.warm_up(&mut script, how)?;
    let (mut ours, mut others) = (
        Latencies::default(),
        [(); BARES].map(|()| Latencies::default()),
    );
    for _ in 0..settings.repeat {
        for (bare, taken) in bares.iter_mut().zip(&mut others) {
            let (_, pace) = time_each(settings.time(), bare)?;
            taken.add(&pace.timer.latencies);
        }
        let passed = bed.pass(&mut script, operations, how, outcome)?;
        passed.latencies.iter().for_each(|more| ours.add(more));
    }
    Ok((ours, others))
}

/// A percentile against that of other calls; not measured if too few calls are beyond it.
pub(in crate::bars) fn percentile(
    (group, what): (impl Display, &str),
    ours: &Latencies,
    (name, others): (&str, &Latencies),
    quantile: f64,
    bounds: (f64, Option<f64>),
) -> Verdict {
    let says = format!("{what}, p{}", quantile * 100.0);
    let least = ours.undisturbed.len().min(others.undisturbed.len());
    let is_enough = least as f64 * (1.0 - quantile) >= BEYOND;
    let of = |calls: &hdrhistogram::Histogram<u64>| calls.value_at_quantile(quantile) as f64 / 1e3;
    let [one, other] = [ours, others].map(|latencies| of(&latencies.undisturbed));
    let measured = Compared {
        by_clock: Some(of(&ours.all) / of(&others.all)),
        made_of: Some((one, "us".into())),
        against: Some((other, name.into())),
        ..Compared::new(&says, one / other)
    };
    let group = group.to_string();
    Verdict::new((&group, &says), vec![measured], bounds, is_enough)
}

pub(super) fn threads(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    host.begin(Group::Threads, "put");
    let ground = Ground::Disk;
    let corpus = corpus(settings, BLOCK_BYTES);
    let records = ground.records(settings, BLOCK_BYTES, 1)?;
    let mut bed = Bed::filled(
        (settings, Group::Threads),
        ground,
        (&corpus, records),
        |_| {},
    )?;
    let how = (1, Timing::Throughput);
    let counts = [1, THREADS];
    let mut scripts: Vec<Script> = counts
        .map(|threads| bed.script(Workload::Overwrite, threads))
        .into();
    let mut operations = Vec::new();
    for script in &mut scripts {
        operations.push(bed.warm_up(script, how)?);
    }
    let (mut ours, mut bare) = ([const { Vec::new() }; 2], [const { Vec::new() }; 2]);
    for _ in 0..settings.repeat {
        for (at, threads) in counts.into_iter().enumerate() {
            bare[at].push(bare_rate(settings, ground, threads)?);
            let passed = bed.pass(&mut scripts[at], operations[at], how, outcome)?;
            ours[at].push(passed.sample.rate());
        }
    }
    let middle = |rates: &[f64]| Spread::of(rates.iter().copied()).median / 1e3;
    for (says, [one, many], least) in [
        ("put, 4 KiB, disk, 8 threads", &ours, 3.0),
        ("data-4k, disk, 8 threads", &bare, 0.0),
    ] {
        let (one, many) = ((middle(one), "one thread"), (middle(many), "k/s"));
        let bar = ratio((Group::Threads, says), many, one, (least, None));
        outcome.bars.push(bar);
    }
    Ok(())
}

/// Bare puts a second of so many threads, each on a file of its own.
fn bare_rate(settings: &Settings, ground: Ground, threads: usize) -> Result<f64, Error> {
    let bare: Result<Vec<_>, Error> = (0..threads)
        .map(|_| ground.bare_put(settings, BLOCK_BYTES, Places::InOrder))
        .collect();
    let one = |_, mut bare: crate::limits::data::BarePut| {
        Ok(time_each(settings.time(), &mut || bare.put())?.0.rate())
    };
    let ((), rates) = pool::run(bare?, one, || ())?;
    Ok(rates.iter().sum())
}

pub(super) fn cold(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    host.begin(Group::Cold, "get");
    let ground = Ground::Disk;
    let corpus = corpus(settings, BLOCK_BYTES);
    let records = ground.records(settings, BLOCK_BYTES, 1)?;
    let mut bed = Bed::filled((settings, Group::Cold), ground, (&corpus, records), |_| {})?;
    let batch = crate::compare::BATCH;
    let mut script = bed.script(Workload::Get, 1);
    // A part of the records, so that few are asked for twice.
    let most = (records / 8).max(batch as u64);
    forget(&bed.data_path())?;
    let operations = bed.warm_up(&mut script, (1, Timing::Throughput))?.min(most);
    let mut taken = [const { Vec::new() }; 2];
    for _ in 0..settings.repeat {
        for (batch, taken) in [1, batch].into_iter().zip(&mut taken) {
            forget(&bed.data_path())?;
            let how = (batch, Timing::Throughput);
            let passed: Passed = bed.pass(&mut script, operations, how, outcome)?;
            taken.push(passed.sample.rate() / 1e3);
        }
    }
    let [single, many] = taken.map(|rates| Spread::of(rates).median);
    outcome.bars.push(ratio(
        (Group::Cold, "16 gets at once, 4 KiB, disk, page cache cold"),
        (many, "k/s"),
        (single, "single gets"),
        (4.0, None),
    ));
    Ok(())
}

/// Has the kernel forget what it keeps of a file in memory.
fn forget(path: &Path) -> Result<(), Error> {
    let forgetting = || format!("dropping {} from the page cache", path.display());
    let file = File::open(path).with_context(forgetting)?;
    file.sync_all().with_context(forgetting)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).with_context(forgetting)
}

pub(super) fn processor(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    host.begin(Group::Cpu, "put");
    let ground = Ground::Memory;
    let corpus = corpus(settings, BLOCK_BYTES);
    let records = ground.records(settings, BLOCK_BYTES, 2)?;
    let mut bed = Bed::filled((settings, Group::Cpu), ground, (&corpus, records), |_| {})?;
    let limits = [
        ("data-4k", Places::InOrder, 0.5),
        ("data-4k-random", anywhere(records, BLOCK_BYTES), 0.0),
    ];
    let mut bares = Vec::new();
    for (_, places, _) in limits {
        bares.push((ground.bare_put(settings, BLOCK_BYTES, places)?, Vec::new()));
    }
    let how = (1, Timing::Throughput);
    let mut script = bed.script(Workload::Overwrite, 1);
    let operations = bed.warm_up(&mut script, how)?;
    let mut ours = Vec::new();
    for _ in 0..settings.repeat {
        for (bare, samples) in &mut bares {
            let watch = Stopwatch::start();
            for _ in 0..operations {
                bare.put()?;
            }
            samples.push(watch.stop(operations));
        }
        ours.push(bed.pass(&mut script, operations, how, outcome)?.sample);
    }
    for ((limit, places, least), (_, samples)) in limits.into_iter().zip(&bares) {
        let says = match places {
            Places::InOrder => "put, 4 KiB, memory, processor time",
            Places::Random { .. } => "put, 4 KiB, memory, processor time, at random",
        };
        let against = (limit, &**samples);
        let bar = share(Group::Cpu.name(), says, &ours, against, least);
        outcome.bars.push(bar);
    }
    Ok(())
}

pub(super) fn range(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    host.begin(Group::Range, "keys");
    let ground = Ground::Memory;
    let corpus = corpus(settings, BLOCK_BYTES);
    let records = ground.records(settings, BLOCK_BYTES, 1)?;
    let bed = Bed::filled((settings, Group::Range), ground, (&corpus, records), |_| {})?;
    let mut session = bed.store()?.session()?;
    let engine = session.engine();
    let (mut maker, mut numbers) = (
        Maker::new(&corpus),
        Script::new(Workload::Get, records, 1, 5),
    );
    let mut rates = Vec::new();
    for _ in 0..settings.repeat {
        let mut visited = 0;
        let watch = Stopwatch::start();
        let end = std::time::Instant::now() + settings.time();
        while visited == 0 || std::time::Instant::now() < end {
            let number = numbers.write(1)[0][0].number();
            let mut seen = 0;
            let mut visit = |_: &[u8], _: u64, _: u64| seen += 1;
            let mut from = Bound::Included(maker.key(number).to_vec());
            for _ in 0..KEYS.div_ceil(PART) {
                let at = from.as_ref().map(Vec::as_slice);
                match engine.range(at, Bound::Unbounded, PART, &mut visit)? {
                    Some(last) => from = Bound::Excluded(last),
                    None => break,
                }
            }
            ensure!(seen > 0, "a range from a key that is there visits nothing");
            visited += seen;
        }
        let sample: Sample = watch.stop(visited);
        rates.push(sample.rate() / 1e6);
    }
    outcome.bars.push(alone(
        (Group::Range, "keys of ranges of 1000, without values"),
        (Spread::of(rates).median, "M/s"),
        (3.0, None),
    ));
    Ok(())
}
