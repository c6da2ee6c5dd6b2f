//! What a disk makes durable: blocks written in place into a file that has its space, each followed by a
//! sync.

use super::Limits;
use crate::latency::{ALL, add_percentiles, histogram};
use crate::row::Metric;
use crate::subject::Error;
use crate::timing::{Sample, Stopwatch};
use anyhow::Context;
use hdrhistogram::Histogram;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Length of a file that is written round and round.
pub const FILE_BYTES: u64 = 64 << 20;
/// Block of a single write: one page.
pub const SINGLE_BYTES: usize = 4096;
/// Block of a group commit.
pub const GROUP_BYTES: usize = 64 << 10;

/// A file that was written from end to end beforehand; removed when this is dropped.
pub struct Preallocated {
    file: File,
    path: PathBuf,
    bytes: u64,
    at: u64,
}

impl Preallocated {
    /// Of `bytes`, in `dir`.
    ///
    /// # Errors
    /// If it cannot be made and written there.
    pub fn new(dir: &Path, bytes: u64) -> Result<Preallocated, Error> {
        let path = dir.join(format!("everdram-limits-{}", std::process::id()));
        let making = || format!("making {} to measure the disk", path.display());
        let mut options = File::options();
        let file = options.write(true).create_new(true).open(&path);
        let made = Preallocated {
            file: file.with_context(making)?,
            path: path.clone(),
            bytes,
            at: 0,
        };
        let zeros = vec![0; 1 << 20];
        for at in (0..bytes).step_by(zeros.len()) {
            let part = zeros.len().min((bytes - at) as usize);
            made.file
                .write_all_at(&zeros[..part], at)
                .with_context(making)?;
        }
        made.file.sync_all().with_context(making)?;
        Ok(made)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the next block, after which it is in the page cache.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn write(&mut self, block: &[u8]) -> Result<(), Error> {
        let bytes = block.len() as u64;
        if self.at + bytes > self.bytes {
            self.at = 0;
        }
        self.write_at(self.at, block)?;
        self.at += bytes;
        Ok(())
    }

    /// As [`Preallocated::write`], at a place inside the file.
    ///
    /// # Errors
    /// If the disk refuses.
    #[inline]
    pub fn write_at(&self, at: u64, block: &[u8]) -> Result<(), Error> {
        debug_assert!(
            at + block.len() as u64 <= self.bytes,
            "a write would lengthen the file"
        );
        let written = self.file.write_all_at(block, at);
        written.with_context(|| format!("writing {}", self.path.display()))
    }

    /// Waits until what was written is durable.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn sync(&self) -> Result<(), Error> {
        let synced = self.file.sync_data();
        synced.with_context(|| format!("syncing {}", self.path.display()))
    }

    /// Writes and syncs blocks of `bytes` for `time`, at least once.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn run(
        &mut self,
        bytes: usize,
        time: Duration,
        latency: &mut Histogram<u64>,
    ) -> Result<Sample, Error> {
        let block = vec![7; bytes];
        let mut count = 0;
        let watch = Stopwatch::start();
        let end = Instant::now() + time;
        loop {
            let begun = Instant::now();
            if count > 0 && begun >= end {
                return Ok(watch.stop(count));
            }
            self.write(&block)?;
            self.sync()?;
            latency
                .saturating_record(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
            count += 1;
        }
    }
}

impl Drop for Preallocated {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Adds the limits of this file to `limits`.
pub(super) fn measure(
    dir: &Path,
    limits: &mut Limits<'_>,
    progress: &mut dyn FnMut(f64, &str),
) -> Result<(), Error> {
    let settings = limits.settings;
    let time = Duration::from_millis(if settings.quick { 300 } else { 2000 });
    let mut file = Preallocated::new(dir, FILE_BYTES)?;
    let kinds = [
        ("sync-4k", SINGLE_BYTES, "4 KiB written in place, synced"),
        (
            "sync-64k",
            GROUP_BYTES,
            "64 KiB written in place, synced: a group commit",
        ),
    ];
    let mut samples = [Vec::new(), Vec::new()];
    let mut latencies = [histogram(), histogram()];
    for round in 0..settings.repeat {
        for (index, (name, bytes, _)) in kinds.iter().enumerate() {
            progress(
                (round as f64 + index as f64 / 2.0) / settings.repeat as f64,
                name,
            );
            samples[index].push(file.run(*bytes, time, &mut latencies[index])?);
        }
    }
    for (((name, bytes, what), samples), latency) in kinds.iter().zip(&samples).zip(&latencies) {
        let row = limits.add(("files", name), what, "sync", samples);
        row.push(Metric::MovedBytes, *bytes as f64);
        add_percentiles(row, ALL, latency);
    }
    Ok(())
}
