//! The files of the log: `log-000000`, `log-000001` and so on, all of one size, used in turn.
//!
//! A segment is a range of positions; a file serves as one segment after another. The frames in a file tell
//! which segment it holds; nothing else records it. Files are prepared by writing zeros and syncing, because
//! an extent that was only allocated costs metadata writes at the first `fdatasync` after each write.
//!
//! Invariants: `live[i]` holds segment `first + i`. A file leaves the front of `live`, for reuse or deletion,
//! only when the durable checkpoint is past its segment.

use super::frame::BLOCK;
use super::{LogOptions, Shared};
use crate::error::Error;
use crate::io::{Directory, File};
use crate::lock::lock;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Prepared segments to have after the end of the log.
pub(super) const AHEAD: u64 = 2;
/// Limit of a log that outgrows its checkpoints, unless `log_bytes` is more.
const GROWTH_BYTES_MAX: u64 = 1 << 30;

/// The bytes that files are filled with.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// One file of the log.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// The number in its name.
    pub(super) number: u32,
    pub(super) file: Arc<File>,
}

/// The files of a log.
#[derive(Clone)]
pub(super) struct Files {
    /// Those from the checkpoint's segment to the end of the log.
    pub(super) live: VecDeque<Segment>,
    /// Those without positions.
    pub(super) free: Vec<Segment>,
    /// Number of the next new one.
    pub(super) next_number: u32,
}

/// See the module text.
pub(super) struct Segments {
    directory: Directory,
    segment_bytes: u64,
    files: Files,
    /// Number of the first live segment.
    first: u64,
    /// Files to keep.
    keep: u64,
    /// Most files to have.
    limit: u64,
}

impl Segments {
    pub(super) fn new(options: &LogOptions, files: &Files) -> Segments {
        let count = |bytes: u64| (bytes / options.setup.segment_bytes).max(2 * AHEAD);
        let grown =
            (options.log_bytes.saturating_mul(4)).min(options.log_bytes.max(GROWTH_BYTES_MAX));
        Segments {
            directory: options.directory.clone(),
            segment_bytes: options.setup.segment_bytes,
            files: files.clone(),
            first: options.checkpoint_lsn / options.setup.segment_bytes,
            keep: count(options.log_bytes),
            limit: count(grown),
        }
    }

    /// One past the last position that has a segment.
    pub(super) fn end(&self) -> u64 {
        (self.first + self.files.live.len() as u64) * self.segment_bytes
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        (self.files.live.len() + self.files.free.len()) as u64 * self.segment_bytes
    }

    /// The file that holds position `at`.
    pub(super) fn file(&self, at: u64) -> Option<Arc<File>> {
        let index = (at / self.segment_bytes).checked_sub(self.first)?;
        self.files
            .live
            .get(index as usize)
            .map(|segment| Arc::clone(&segment.file))
    }

    /// Frees each file before the checkpoint at `lsn`: it becomes the next segment, or is deleted if the log
    /// has many.
    fn release(&mut self, lsn: u64) {
        assert!(lsn <= self.end(), "the log is freed beyond its end");
        while (self.first + 1) * self.segment_bytes <= lsn {
            let Some(segment) = self.files.live.pop_front() else {
                break;
            };
            self.first += 1;
            if self.bytes() >= self.keep * self.segment_bytes {
                // If that fails, the next open finds the file and uses it.
                let _ = self.directory.unlink(&name(segment.number));
            } else {
                self.files.live.push_back(segment);
            }
        }
    }

    /// The file to prepare next if the log ends at `end` and needs more segments: a free one, or the number
    /// of a new one.
    fn wanted(&mut self, end: u64) -> Option<Segmental> {
        if self.end() >= end + AHEAD * self.segment_bytes
            || self.files.live.len() as u64 >= self.limit
        {
            return None;
        }
        if let Some(segment) = self.files.free.pop() {
            return Some(Segmental::Free(segment));
        }
        self.files.next_number += 1;
        Some(Segmental::New(self.files.next_number - 1))
    }

    /// Prepares segments so that a log that ends at `end` has some ahead; for a log not yet in use. A full
    /// disk does not fail the open of a log that still has room: the checkpointer tries again later.
    pub(super) fn prepare_ahead(&mut self, end: u64) -> Result<(), Error> {
        for segment in &self.files.live {
            let file = &segment.file;
            fill(file, self.segment_bytes)
                .map_err(|source| file.error("preparing a segment of the redo log", source))?;
        }
        while let Some(wanted) = self.wanted(end) {
            match prepare(&self.directory, self.segment_bytes, wanted) {
                Ok(segment) => self.files.live.push_back(segment),
                Err(Error::NoSpace { .. }) if self.end() >= end + BLOCK => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Nanoseconds of one write and sync, the median of a few, in the last block of the last segment; 0 if a
    /// log that ends at `end` uses that segment.
    pub(super) fn measure(&self, end: u64) -> Result<u64, Error> {
        let Some(segment) = self.files.live.back() else {
            return Ok(0);
        };
        if end > self.end() - self.segment_bytes {
            return Ok(0);
        }
        let block = [0; BLOCK as usize];
        let mut took = [0; 15];
        for sample in &mut took {
            let begun = Instant::now();
            let file = &segment.file;
            write_synced(file, self.segment_bytes - BLOCK, &block)
                .map_err(|source| file.error("measuring a write and sync of the log", source))?;
            *sample = begun.elapsed().as_nanos() as u64;
        }
        took.sort_unstable();
        Ok(took[took.len() / 2])
    }
}

/// A file to be prepared.
enum Segmental {
    Free(Segment),
    New(u32),
}

/// The name of file `number`.
pub(super) fn name(number: u32) -> String {
    format!("log-{number:06}")
}

/// The number in the file name, if it is the name of a log file.
pub(super) fn number(file: &str) -> Option<u32> {
    let number = file.strip_prefix("log-")?.parse().ok()?;
    (name(number) == file).then_some(number)
}

/// Gives a file the length of a segment, on disk.
fn prepare(directory: &Directory, segment_bytes: u64, wanted: Segmental) -> Result<Segment, Error> {
    let full = || Error::NoSpace {
        path: directory.path().into(),
        what: "prepare a segment of the redo log",
    };
    let (segment, new) = match wanted {
        Segmental::Free(segment) => (segment, false),
        Segmental::New(number) => match directory.open(&name(number), true) {
            Ok(file) => {
                let file = Arc::new(file);
                (Segment { number, file }, true)
            }
            // A directory entry needs room, too.
            Err(Error::Io {
                source: Errno::NOSPC | Errno::DQUOT,
                ..
            }) => return Err(full()),
            Err(error) => return Err(error),
        },
    };
    match fill(&segment.file, segment_bytes) {
        Ok(()) => {}
        Err(source) => {
            if new {
                // Half a segment is useless. If deleting it fails, the next open fills it.
                let _ = directory.unlink(&name(segment.number));
            }
            return Err(match source {
                Errno::NOSPC | Errno::DQUOT => full(),
                _ => segment
                    .file
                    .error("preparing a segment of the redo log", source),
            });
        }
    }
    if new {
        directory.sync()?;
    }
    Ok(segment)
}

/// Writes bytes and makes them durable.
#[cfg_attr(feature = "lab", track_caller)]
pub(super) fn write_synced(file: &File, at: u64, bytes: &[u8]) -> Result<(), Errno> {
    file.pwrite_all(at, bytes)?;
    file.data_sync()
}

/// Writes zeros from the end of the file to the end of the segment, and syncs.
fn fill(file: &File, segment_bytes: u64) -> Result<(), Errno> {
    let mut at = file.len()?;
    if at >= segment_bytes {
        return Ok(());
    }
    while at < segment_bytes {
        let bytes = (segment_bytes - at).min(ZEROS.len() as u64);
        file.pwrite_all(at, &ZEROS[..bytes as usize])?;
        at += bytes;
    }
    file.sync()
}

impl Shared {
    /// Prepares segments ahead of the end of the log; returns whether all wanted ones exist.
    pub(super) fn prepare_segments(&self) -> Result<bool, Error> {
        loop {
            let end = self.end();
            let mut segments = lock(&self.segments);
            let Some(wanted) = segments.wanted(end) else {
                return Ok(segments.end() >= end + AHEAD * self.options.setup.segment_bytes);
            };
            drop(segments);
            let segment = prepare(
                &self.options.directory,
                self.options.setup.segment_bytes,
                wanted,
            )?;
            let mut segments = lock(&self.segments);
            segments.files.live.push_back(segment);
            self.publish_segments(&segments);
        }
    }

    /// As [`Shared::prepare_segments`], for the checkpointer. A full disk is no error here, since its next
    /// checkpoint makes room; the answer is then `false`. Any other error poisons the pool: a failed sync
    /// would wrongly succeed if repeated.
    pub(super) fn prepare_what_fits(&self) -> Result<bool, Error> {
        match self.prepare_segments() {
            Err(Error::NoSpace { .. }) => Ok(false),
            Err(Error::Io { path, source, .. }) => Err(self.fail(&path, source)),
            prepared => prepared,
        }
    }

    /// Frees segments before `lsn`, which the superblock records durably.
    pub(super) fn release_segments(&self, lsn: u64) {
        let mut segments = lock(&self.segments);
        segments.release(lsn);
        self.publish_segments(&segments);
    }

    fn publish_segments(&self, segments: &Segments) {
        let end = segments.end();
        assert!(
            end >= self.prepared_end.load(Ordering::Acquire),
            "the log has less room than an append may rely on"
        );
        self.prepared_end.store(end, Ordering::Release);
        self.room.notify_all();
    }
}
