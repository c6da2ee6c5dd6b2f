//! What an engine pays at least that keeps values on a data file and metadata in memory, as `dstore` does:
//! for a put, a get and a restart.

use super::files::{FILE_BYTES, Preallocated};
use super::random::Sequence;
use super::{Limits, Settings};
use crate::fixture::Place;
use crate::latency::{ALL, add_percentiles, histogram};
use crate::pace::{Closed, Pace};
use crate::row::Metric;
use crate::subject::Error;
use crate::timing::{Sample, Stopwatch};
use anyhow::{Context, ensure};
use everdram_pm::limits::{Line, Memory, Pages, Slowness};
use everdram_pm::{DiskPreset, FlushKind, Medium, MediumChoice, Preset, Secret};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of a block, and of a page of metadata.
pub const BLOCK_BYTES: usize = 4096;
/// Lines of a record.
const RECORD_LINES: usize = 2;
/// Memory that records are streamed over, round and round.
const LOG_BYTES: u64 = 4 << 20;
/// Presets of the figures in DStore's paper.
pub const DELAYS: (&str, &str) = ("optane", "p4800x");
/// The most that the random places of a bare put spread over.
const RANDOM_BYTES_MAX: u64 = 1 << 30;
/// Metadata of an object with a key of 16 bytes, about: what `arena` copies.
const OBJECT_BYTES: u64 = 128;

/// The delays of [`DELAYS`].
///
/// # Errors
/// If there are no presets of these names.
pub fn delays() -> Result<Slowness, Error> {
    let emulated = MediumChoice::Only(Medium::Emulated);
    let memory = Preset::by_name(DELAYS.0).map_err(Error::msg)?;
    let disk = DiskPreset::by_name(DELAYS.1, emulated).map_err(Error::msg)?;
    Ok(Slowness::new(Some(memory), Some(disk)))
}

/// Where a bare put writes its block.
#[derive(Clone, Copy, Debug)]
pub enum Places {
    /// Behind the last one, round and round in a file that caches hold: the least that a device asks for.
    InOrder,
    /// Anywhere in a file of so many bytes, as a store does that gives freed blocks to new values.
    Random {
        /// Bytes of the file.
        file_bytes: u64,
    },
}

/// Puts without a store: a block is written and synced, and a record streamed and fenced.
pub struct BarePut {
    file: Preallocated,
    // After the file, which is in it.
    _place: Place,
    /// Blocks of the file, and which is next, if the places are random.
    random: Option<(u64, Sequence)>,
    log: Memory,
    at: usize,
    block: Vec<u8>,
    slowness: Slowness,
    kind: FlushKind,
}

impl BarePut {
    /// Of values of `bytes`: the file in `file_dir`, the memory in `dir`.
    ///
    /// # Errors
    /// If they cannot be had.
    pub fn new(
        dir: &Path,
        file_dir: &Path,
        (bytes, places): (usize, Places),
        slowness: &Slowness,
    ) -> Result<BarePut, Error> {
        let place = Place::within(file_dir)?;
        let log = Memory::file(dir, LOG_BYTES)?;
        log.populate(0, log.len())?;
        let (file_bytes, random) = match places {
            Places::InOrder => (FILE_BYTES, None),
            Places::Random { file_bytes } => {
                let blocks = (file_bytes / bytes as u64).max(1);
                (blocks * bytes as u64, Some((blocks, Sequence::new(5))))
            }
        };
        Ok(BarePut {
            file: Preallocated::new(place.path(), file_bytes)?,
            _place: place,
            random,
            log,
            at: 0,
            block: vec![7; bytes],
            slowness: slowness.clone(),
            kind: FlushKind::detect(),
        })
    }

    /// One put.
    ///
    /// # Errors
    /// If the disk refuses.
    #[inline]
    pub fn put(&mut self) -> Result<(), Error> {
        let BarePut {
            file,
            block,
            random,
            ..
        } = self;
        let bytes = block.len() as u64;
        self.slowness.write(bytes, || match random {
            None => file.write(block),
            Some((blocks, random)) => file.write_at(random.below(*blocks) as u64 * bytes, block),
        })?;
        self.file.sync()?;
        let lines: &mut [Line] = self.log.lines_mut();
        self.at = (self.at + RECORD_LINES) % lines.len();
        self.slowness.stream_and_fence(
            self.kind,
            &mut lines[self.at..self.at + RECORD_LINES],
            &[[5; 64]; RECORD_LINES],
        );
        Ok(())
    }
}

/// Gets without a store: random blocks of a file are read.
pub struct BareGet {
    file: File,
    blocks: u64,
    random: Sequence,
    block: Vec<u8>,
    slowness: Slowness,
}

impl BareGet {
    /// From any file of at least one block; it need not be one of its own.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn new(path: &Path, slowness: &Slowness) -> Result<BareGet, Error> {
        let reading = || format!("reading {}", path.display());
        let file = File::open(path).with_context(reading)?;
        let blocks = file.metadata().with_context(reading)?.len() / BLOCK_BYTES as u64;
        ensure!(blocks > 0, "{} is empty", path.display());
        Ok(BareGet {
            file,
            blocks,
            random: Sequence::new(11),
            block: vec![0; BLOCK_BYTES],
            slowness: slowness.clone(),
        })
    }

    /// One get.
    ///
    /// # Errors
    /// If the disk refuses.
    #[inline]
    pub fn get(&mut self) -> Result<(), Error> {
        let at = (self.random.below(self.blocks) * BLOCK_BYTES) as u64;
        let (file, block) = (&self.file, &mut self.block);
        self.slowness
            .read(BLOCK_BYTES as u64, || file.read_exact_at(block, at))
            .context("reading a block")
    }
}

/// A restart without a store: `bytes` of metadata copied page by page into memory that is not present yet,
/// and summed, and `words` put at random places of an index. The sample is of one operation.
///
/// # Errors
/// If there is not as much memory.
pub fn arena(dir: &Path, bytes: u64, words: u64, slowness: &Slowness) -> Result<Sample, Error> {
    let mut from = Memory::file(dir, bytes)?;
    from.populate(0, from.len())?;
    from.bytes_mut().fill(3);
    let mut into = Memory::anonymous(bytes, Pages::Huge)?;
    let slots = words.next_power_of_two().max(512);
    let mut index = Memory::anonymous(slots * 8, Pages::Huge)?;
    let secret = Secret::expand(&[9; 32]);
    let mut random = Sequence::new(3);
    let watch = Stopwatch::start();
    let pages = from.bytes().chunks(BLOCK_BYTES);
    let mut sum = 0;
    for (from, into) in pages.zip(into.bytes_mut().chunks_mut(BLOCK_BYTES)) {
        slowness.load(BLOCK_BYTES as u64);
        into.copy_from_slice(from);
        sum ^= secret.sum(into);
    }
    let index = index.words_mut();
    for word in 0..words {
        index[random.below(slots)] = word;
    }
    let sample = watch.stop(1);
    std::hint::black_box((sum, &index[..1]));
    Ok(sample)
}

/// Calls that are to be made in search of one that had a core to itself.
const TRIES: u64 = 1_000;

/// Calls `one` again and again for `time`, and times each call. On a machine so busy that no call had a core
/// to itself, it goes on until one has, for a while: percentiles are of such calls.
///
/// # Errors
/// Those of `one`.
pub(crate) fn time_each(
    time: Duration,
    one: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<(Sample, Closed), Error> {
    let (mut pace, mut count) = (Closed::new(), 0);
    let watch = Stopwatch::start();
    let end = Instant::now() + time;
    let lacks = |pace: &Closed, count| pace.timer.latencies.undisturbed.is_empty() && count < TRIES;
    while lacks(&pace, count) || Instant::now() < end {
        pace.before();
        one()?;
        pace.after();
        count += 1;
    }
    Ok((watch.stop(count), pace))
}

/// Adds the limits of this file to `limits`.
pub(super) fn measure(
    limits: &mut Limits<'_>,
    progress: &mut dyn FnMut(f64, &str),
) -> Result<(), Error> {
    let settings = limits.settings;
    let memory = &*settings.dir;
    let delayed = format!(
        "on {}, as slow as {} and {}",
        memory.display(),
        DELAYS.0,
        DELAYS.1
    );
    let mut grounds = vec![
        (
            "",
            memory,
            format!("on {}", memory.display()),
            Slowness::default(),
        ),
        ("-delayed", memory, delayed, delays()?),
    ];
    if let Some(disk) = &settings.file_dir {
        let what = format!("on {}", disk.display());
        grounds.push(("-disk", disk, what, Slowness::default()));
    }
    let steps = grounds.len() as f64;
    for (step, (suffix, dir, what, slowness)) in grounds.iter().enumerate() {
        progress(step as f64 / steps, &format!("data{suffix}"));
        calls(limits, (suffix, dir, what), slowness)?;
        if *suffix == "-disk" {
            continue;
        }
        let bytes = settings.records * OBJECT_BYTES;
        let samples = (0..settings.repeat)
            .map(|_| arena(memory, bytes, settings.records, slowness))
            .collect::<Result<Vec<_>, Error>>()?;
        let what = format!(
            "{} MiB copied and summed, {} index words: a restart, {what}",
            bytes >> 20,
            settings.records
        );
        let row = limits.add(
            ("data", &format!("arena{suffix}")),
            &what,
            "restart",
            &samples,
        );
        row.push(Metric::MovedBytes, bytes as f64);
    }
    Ok(())
}

/// A call, in words, and how it is made.
type Call<'a> = (&'a str, &'a str, &'a mut dyn FnMut() -> Result<(), Error>);

/// Calls on one data file.
fn calls(
    limits: &mut Limits<'_>,
    (suffix, dir, what): (&str, &Path, &str),
    slowness: &Slowness,
) -> Result<(), Error> {
    let settings: &Settings = limits.settings;
    let time = Duration::from_millis(if settings.quick { 100 } else { 1000 });
    let put = |bytes, places| BarePut::new(&settings.dir, dir, (bytes, places), slowness);
    let file_bytes = (settings.records * BLOCK_BYTES as u64).clamp(FILE_BYTES, RANDOM_BYTES_MAX);
    let random = Places::Random { file_bytes };
    let mut small = put(BLOCK_BYTES, Places::InOrder)?;
    let mut large = put(4 * BLOCK_BYTES, Places::InOrder)?;
    let mut anywhere = put(BLOCK_BYTES, random)?;
    let mut get = BareGet::new(anywhere.file.path(), slowness)?;
    let mut loops: [Call<'_>; 4] = [
        ("data-4k", "4 KiB written and synced", &mut || small.put()),
        ("data-16k", "16 KiB written and synced", &mut || large.put()),
        (
            "data-4k-random",
            "4 KiB written at random and synced",
            &mut || anywhere.put(),
        ),
        ("data-read-4k", "4 KiB read at random", &mut || get.get()),
    ];
    let mut samples = [const { Vec::new() }; 4];
    let mut latencies = [(); 4].map(|()| histogram());
    for _ in 0..settings.repeat {
        for (((_, _, one), samples), latency) in
            loops.iter_mut().zip(&mut samples).zip(&mut latencies)
        {
            let (sample, pace) = time_each(time, one)?;
            samples.push(sample);
            latency.add(&pace.timer.latencies.all)?;
        }
    }
    for (((name, does, _), samples), latency) in loops.iter().zip(&samples).zip(&latencies) {
        let record = match name.contains("read") {
            true => "",
            false => ", 128 bytes streamed and fenced",
        };
        let what = format!("{does}{record}, {what}");
        let row = limits.add(("data", &format!("{name}{suffix}")), &what, "call", samples);
        add_percentiles(row, ALL, latency);
    }
    Ok(())
}
