//! What single instructions and accesses cost here: the figures that explain the others.

use super::random::{self, Sequence};
use super::{Limits, Settings};
use crate::row::Metric;
use crate::subject::Error;
use crate::timing::{Sample, Stopwatch};
use everdram_pm::FlushKind;
use everdram_pm::limits::{Line, Memory, Pages, fence, flush, stream};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;

/// Whose memory a loop runs over.
#[derive(Clone, Copy)]
enum Ground {
    /// Of the process, in pages of 4 KiB.
    Small,
    /// Of the process, in pages of 2 MiB.
    Huge,
    /// A file on the medium.
    File,
}

impl Ground {
    fn memory(self, settings: &Settings, bytes: u64) -> Result<Memory, Error> {
        Ok(match self {
            Ground::Small => Memory::anonymous(bytes, Pages::Small)?,
            Ground::Huge => Memory::anonymous(bytes, Pages::Huge)?,
            Ground::File => Memory::file(&settings.dir, bytes)?,
        })
    }

    fn present(self, settings: &Settings, bytes: u64) -> Result<Memory, Error> {
        let memory = self.memory(settings, bytes)?;
        memory.populate(0, memory.len())?;
        Ok(memory)
    }
}

/// Adds the limits of this file to `limits`.
pub(super) fn measure(
    limits: &mut Limits<'_>,
    progress: &mut dyn FnMut(f64, &str),
) -> Result<(), Error> {
    let settings = limits.settings;
    let shrink = if settings.quick { 8 } else { 1 };
    progress(0.0, "instructions");
    instructions(limits, 16_000_000 / shrink);
    for (index, (ground, name, where_)) in [
        (Ground::Small, "load-small-pages", "memory in 4 KiB pages"),
        (Ground::Huge, "load-huge-pages", "memory in 2 MiB pages"),
        (Ground::File, "load-medium", "a file on the medium"),
    ]
    .into_iter()
    .enumerate()
    {
        progress(0.1 + index as f64 * 0.15, name);
        let memory = ground.present(settings, settings.load_bytes)?;
        let what = format!(
            "dependent load over {} MiB of {where_}",
            memory.len() as u64 / MIB
        );
        let samples = repeat(settings, || dependent_loads(&memory, 2_000_000 / shrink));
        limits.add(("machine", name), &what, "load", &samples);
    }
    progress(0.55, "stores");
    stores(limits, 2_000_000 / shrink)?;
    progress(0.75, "pages");
    pages(limits, 256 * MIB / shrink)?;
    progress(0.9, "streams");
    streams(limits, 1024 * MIB / shrink)
}

fn repeat(settings: &Settings, mut one: impl FnMut() -> Sample) -> Vec<Sample> {
    (0..settings.repeat).map(|_| one()).collect()
}

fn instructions(limits: &mut Limits<'_>, count: u64) {
    let settings = limits.settings;
    let fences = repeat(settings, || {
        let watch = Stopwatch::start();
        (0..count).for_each(|_| fence());
        watch.stop(count)
    });
    limits.add(("machine", "fence"), "store fence alone", "fence", &fences);
    let counter = AtomicU64::new(0);
    let adds = repeat(settings, || {
        let counter = black_box(&counter);
        let watch = Stopwatch::start();
        for _ in 0..count {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        watch.stop(count)
    });
    let what = "atomic add to a word in the first cache";
    limits.add(("machine", "atomic-add"), what, "add", &adds);
}

/// The next address comes out of the loaded word (a zero, which the compiler does not know) and a generator.
fn dependent_loads(memory: &Memory, count: u64) -> Sample {
    let words = memory.words();
    let lines = words.len() as u64 / 8;
    let mut state = 1;
    let watch = Stopwatch::start();
    for _ in 0..count {
        let line = ((state >> 32) * lines) >> 32;
        state = random::step(state ^ words[line as usize * 8]);
    }
    let sample = watch.stop(count);
    black_box(state);
    sample
}

fn stores(limits: &mut Limits<'_>, count: u64) -> Result<(), Error> {
    let settings = limits.settings;
    let kind = FlushKind::detect();
    let mut memory = Ground::File.present(settings, 512 * MIB)?;
    let lines = memory.lines_mut();
    let mut add = |name: &str, what: &str, samples: Vec<Sample>| {
        limits.add(("machine", name), what, "store", &samples);
    };
    let (sequential, random, same) = (
        "64 B stored in order, flushed, fence",
        "64 B stored at random, flushed, fence",
        "64 B stored in the same line again, flushed, fence",
    );
    let longer = "256 B stored in order, flushed, fence";
    for (name, what, each, order) in [
        ("flush-sequential", sequential, 1, Order::Sequential),
        ("flush-random", random, 1, Order::Random),
        ("flush-same", same, 1, Order::Same),
        ("flush-256", longer, 4, Order::Sequential),
    ] {
        let one = || store_lines(kind, lines, each, count, order);
        add(name, what, repeat(settings, one));
    }
    let samples = repeat(settings, || stream_lines(kind, lines, 4, count));
    add("stream-256", "256 B streamed in order, fence", samples);
    Ok(())
}

/// Which place a store goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Sequential,
    Random,
    Same,
}

fn store_lines(
    kind: FlushKind,
    lines: &mut [Line],
    each: usize,
    count: u64,
    order: Order,
) -> Sample {
    let mut random = Sequence::new(3);
    let places = (lines.len() / each) as u64;
    let watch = Stopwatch::start();
    for number in 0..count {
        let place = match order {
            Order::Sequential => (number % places) as usize,
            Order::Random => random.below(places),
            Order::Same => 0,
        };
        let lines = &mut lines[place * each..][..each];
        lines.fill(Line([number as u8; 64]));
        flush(kind, lines);
        fence();
    }
    watch.stop(count)
}

fn stream_lines(kind: FlushKind, lines: &mut [Line], each: usize, count: u64) -> Sample {
    let places = (lines.len() / each) as u64;
    let mut from = vec![[0; 64]; each];
    let watch = Stopwatch::start();
    for number in 0..count {
        let place = (number % places) as usize * each;
        from.fill([number as u8; 64]);
        stream(kind, &mut lines[place..place + each], &from);
        fence();
    }
    watch.stop(count)
}

/// Pages not yet present: faulted in by the first store, or populated beforehand.
fn pages(limits: &mut Limits<'_>, bytes: u64) -> Result<(), Error> {
    let settings = limits.settings;
    for (ground, touch, populate, where_) in [
        (
            Ground::File,
            "touch-medium",
            "populate-medium",
            "a file on the medium",
        ),
        (
            Ground::Small,
            "touch-memory",
            "populate-memory",
            "memory in 4 KiB pages",
        ),
    ] {
        let (mut touched, mut populated) = (Vec::new(), Vec::new());
        for _ in 0..settings.repeat {
            let mut memory = ground.memory(settings, bytes)?;
            let pages = (memory.len() / PAGE) as u64;
            let watch = Stopwatch::start();
            memory
                .bytes_mut()
                .iter_mut()
                .step_by(PAGE)
                .for_each(|byte| *byte = 1);
            touched.push(watch.stop(pages));
            drop(memory);
            let memory = ground.memory(settings, bytes)?;
            let watch = Stopwatch::start();
            memory.populate(0, memory.len())?;
            populated.push(watch.stop(pages));
        }
        let what = format!("first store to a page of {where_}");
        limits.add(("machine", touch), &what, "page", &touched);
        let what = format!("page of {where_} made present beforehand");
        limits.add(("machine", populate), &what, "page", &populated);
    }
    Ok(())
}

fn streams(limits: &mut Limits<'_>, bytes: u64) -> Result<(), Error> {
    let settings = limits.settings;
    let kind = FlushKind::detect();
    let mut medium = Ground::File.present(settings, bytes)?;
    let mut memory = Ground::Huge.present(settings, bytes)?;
    let from = [[5; 64]; PAGE / 64];
    let blocks = (medium.len().min(memory.len()) / PAGE) as u64;
    let mut add = |name: &str, what: &str, samples: Vec<Sample>| {
        let row = limits.add(("machine", name), what, "4 KiB", &samples);
        row.push(Metric::MovedBytes, PAGE as f64);
    };
    let samples = repeat(settings, || {
        let watch = Stopwatch::start();
        let sum = medium.words().iter().fold(0, |sum, word| sum ^ word);
        let sample = watch.stop(blocks);
        black_box(sum);
        sample
    });
    add("read-medium", "the medium read from end to end", samples);
    let samples = repeat(settings, || {
        let watch = Stopwatch::start();
        memory.bytes_mut().copy_from_slice(medium.bytes());
        watch.stop(blocks)
    });
    add("copy", "the medium copied to memory", samples);
    let samples = repeat(settings, || {
        let watch = Stopwatch::start();
        for page in medium.lines_mut().chunks_mut(from.len()) {
            stream(kind, page, &from);
        }
        fence();
        watch.stop(blocks)
    });
    add(
        "stream-medium",
        "the medium streamed over, one fence",
        samples,
    );
    Ok(())
}
