//! Recovery: applies the longest unbroken run of frames from the checkpoint on to the image's private pages.
//!
//! The run ends at a torn tail (the batch that was being written; normal) or at damage. It is damage if any
//! later frame says that the log was durable beyond this point: the writer had seen the sync succeed. Then
//! recovery changes nothing, and its error names the place.
//!
//! Recovery can be interrupted and repeated at any point. It writes to files only
//! - the last batch of the run once more, the same bytes to the same place, with a sync. No frame says that
//!   its sync had succeeded. Without this, data that readers are about to see could vanish in the next crash:
//!   after a failed sync the page cache has what the disk lacks;
//! - zeros over the checksum and the magic of each frame outside the run. Without this, a later run, which
//!   may start at any block, could take a leftover for its own. This includes torn frames: the next batch may
//!   write the very bytes that such a frame lacks, and if the beginning of that batch is lost, the frame
//!   verifies.
//!
//! The recovered memory is written to the image before any reader sees it (`checkpoint.rs`). Recovery only
//! marks each page that the run touches.
//!
//! A read-only open replays the same run, without these two writes. To salvage a damaged pool, it applies the
//! run as far as it goes, and reports the damage after it instead of refusing.

use super::LogOptions;
use super::dirty::DirtyPages;
use super::frame::{BLOCK, HEADER, Header, split_entry};
use super::run::{Found, Run};
use super::segment::{self, Files, Segment};
use crate::error::{Damage, Error};
use crate::io::{Directory, File};
use crate::pool::superblock::ROOT_AT;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that identify a frame: its checksum and its magic. Frames start at multiples of this.
const NAME: usize = 16;

const REMEDY: &str =
    "Restore the pool from a copy, or save what is sound with `everdram export --salvage`";

/// Where the log continues.
pub(super) struct Recovered {
    /// Position of the next batch.
    pub(super) start: u64,
    /// Position after the last frame.
    pub(super) end: u64,
    /// Checksum of the last frame; 0 if there is none.
    pub(super) chain: u64,
    pub(super) files: Files,
}

/// The files of the log, and the contents of one of them.
struct Reader<'a> {
    options: &'a LogOptions,
    files: Vec<Segment>,
    loaded: Option<usize>,
    buffer: Vec<u8>,
    /// Bytes of the log after the run that are known to have been durable.
    lost: u64,
}

/// See the module text.
pub(super) fn recover(options: &LogOptions, dirty: &DirtyPages) -> Result<Recovered, Error> {
    let files = list(options, |directory, name| directory.open(name, false))?;
    let mut reader = Reader::new(options, files);
    let (run, found) = reader.apply_run(dirty)?;
    let start = run.end.next_multiple_of(BLOCK);
    reader.write_tail_again(&run, start)?;
    reader.wipe_leftovers(&found)?;
    Ok(reader.finish(&run, start))
}

/// Applies the run and changes no file; they are open for reading only.
pub(super) fn replay(options: &LogOptions) -> Result<(), Error> {
    let files = list(options, Directory::open_to_read)?;
    Reader::new(options, files).apply_run(&DirtyPages::default())?;
    Ok(())
}

/// As [`replay`], for a damaged log, too: applies its intact part and returns the damage at the end of the
/// run, if any.
pub(super) fn salvage(options: &LogOptions) -> Result<Option<Damage>, Error> {
    let files = list(options, Directory::open_to_read)?;
    let mut reader = Reader::new(options, files);
    match reader.apply_run(&DirtyPages::default()) {
        Ok(_) => Ok(None),
        // Everything before the damage has been applied.
        Err(Error::Corrupt {
            path, offset, what, ..
        }) => Ok(Some(Damage {
            file: path,
            offset,
            bytes: reader.lost,
            is_loss: true,
            what: format!(
                "{what}; the log is not applied from here on, so acknowledged writes may be missing, and keys may have \
                 older values"
            ),
        })),
        Err(other) => Err(other),
    }
}

/// The files of the log, by number.
fn list(
    options: &LogOptions,
    open: impl Fn(&Directory, &str) -> Result<File, Error>,
) -> Result<Vec<Segment>, Error> {
    let directory = &options.directory;
    let names = directory.names().map_err(|source| Error::Io {
        path: directory.path().into(),
        what: "listing the redo log",
        source,
    })?;
    let mut numbers: Vec<_> = names
        .iter()
        .filter_map(|name| segment::number(name))
        .collect();
    numbers.sort_unstable();
    let open = |number| {
        Ok(Segment {
            number,
            file: Arc::new(open(directory, &segment::name(number))?),
        })
    };
    numbers.into_iter().map(open).collect()
}

impl<'a> Reader<'a> {
    fn new(options: &'a LogOptions, files: Vec<Segment>) -> Reader<'a> {
        Reader {
            options,
            files,
            loaded: None,
            buffer: Vec::new(),
            lost: 0,
        }
    }

    /// Applies the run to the region; returns it with all valid frames, and writes to no file. Missing frames
    /// of the run are an error.
    fn apply_run(&mut self, dirty: &DirtyPages) -> Result<(Run, Vec<Found>), Error> {
        let (mut found, buried) = self.scan()?;
        let checkpoint = self.options.checkpoint_lsn;
        if !checkpoint.is_multiple_of(BLOCK) {
            return Err(self.corrupt(
                0,
                0,
                format!("the superblock's checkpoint {checkpoint} is not a block boundary"),
            ));
        }
        let mut run = Run::new(self.options, self.files.len());
        while self.step(&mut run, &mut found, dirty)? {}
        if let Some(later) = found
            .iter()
            .find(|frame| frame.lsn > run.end && frame.durable > run.end)
        {
            let known = found.iter().map(|frame| frame.durable).max();
            self.lost = known.unwrap_or(0).saturating_sub(run.end);
            return Err(self.damaged(&run, later));
        }
        found.extend(self.behind(&run)?);
        let inside = self.inside_leftovers(&found)?;
        found.extend(inside.into_iter().chain(buried));
        Ok((run, found))
    }

    /// What looks like a frame inside a leftover frame, and would count once that frame is wiped.
    fn inside_leftovers(&mut self, found: &[Found]) -> Result<Vec<Found>, Error> {
        let mut inside = Vec::new();
        for leftover in found.iter().filter(|frame| !frame.accepted) {
            self.load(leftover.file)?;
            let begins = leftover.lsn % self.options.setup.segment_bytes;
            inside.extend(self.inside(leftover.file, begins, leftover.bytes));
        }
        Ok(inside)
    }

    /// What looks like a frame at or after the checkpoint, inside the frame of `bytes` bytes at offset
    /// `begins` of the loaded file.
    fn inside(&self, file: usize, begins: u64, bytes: u64) -> impl Iterator<Item = Found> {
        let segment_bytes = self.options.setup.segment_bytes;
        let first = (begins / BLOCK + 1) * BLOCK;
        let blocks = (first..begins + bytes).step_by(BLOCK as usize);
        blocks.filter_map(move |offset| {
            let bytes = self.buffer.get(offset as usize..).unwrap_or_default();
            let lsn = Header::parse_unverified(bytes)?.lsn;
            let counts = lsn % segment_bytes == offset && lsn >= self.options.checkpoint_lsn;
            counts.then_some(Found {
                lsn,
                durable: 0,
                bytes: 0,
                file,
                accepted: false,
            })
        })
    }

    /// The torn frame in the block where the run ends.
    fn behind(&mut self, run: &Run) -> Result<Option<Found>, Error> {
        let (lsn, Some(&file)) = (run.end, run.files.last()) else {
            return Ok(None);
        };
        if lsn.is_multiple_of(BLOCK) {
            return Ok(None);
        }
        self.load(file)?;
        let offset = lsn % self.options.setup.segment_bytes;
        let bytes = self.buffer.get(offset as usize..).unwrap_or_default();
        let is_frame = Header::parse_unverified(bytes).is_some_and(|header| header.lsn == lsn);
        Ok(is_frame.then_some(Found {
            lsn,
            durable: 0,
            bytes: 0,
            file,
            accepted: false,
        }))
    }

    /// Reads a file into the buffer; missing bytes of a segment are zero.
    fn load(&mut self, index: usize) -> Result<(), Error> {
        if self.loaded == Some(index) {
            return Ok(());
        }
        self.loaded = None;
        let Some(segment) = self.files.get(index) else {
            return Ok(());
        };
        let file = &segment.file;
        let failed = |source| file.error("reading the redo log", source);
        let length = file.len().map_err(failed)?;
        if length > self.options.setup.segment_bytes {
            let what = format!(
                "the segment has {length} bytes instead of {}",
                self.options.setup.segment_bytes
            );
            return Err(self.corrupt(index, self.options.setup.segment_bytes, what));
        }
        self.buffer
            .resize(self.options.setup.segment_bytes as usize, 0);
        let (there, lacking) = self.buffer.split_at_mut(length as usize);
        file.pread_exact(0, there).map_err(failed)?;
        lacking.fill(0);
        self.loaded = Some(index);
        Ok(())
    }

    /// All frames at block boundaries at or after the checkpoint, in every file, torn ones included. Bytes
    /// inside a frame that verifies, anywhere, are no frame: a group may store old frames as its data. The
    /// second list has what looks like a frame inside a frame before the checkpoint: it would count once a
    /// later segment overwrites the beginning of that frame.
    fn scan(&mut self) -> Result<(Vec<Found>, Vec<Found>), Error> {
        let (mut found, mut buried) = (Vec::new(), Vec::new());
        let LogOptions {
            checkpoint_lsn,
            secret,
            ..
        } = self.options;
        let segment_bytes = self.options.setup.segment_bytes;
        for file in 0..self.files.len() {
            self.load(file)?;
            let mut offset = 0;
            while offset < segment_bytes {
                let bytes = self.buffer.get(offset as usize..).unwrap_or_default();
                let seen = Header::parse_unverified(bytes)
                    .filter(|seen| seen.lsn % segment_bytes == offset);
                let verified = seen.and_then(|seen| Header::open(bytes, seen.lsn, secret));
                if let Some(Header { lsn, .. }) = seen
                    && lsn >= *checkpoint_lsn
                    && offset.is_multiple_of(BLOCK)
                {
                    found.push(Found {
                        lsn,
                        durable: verified.map_or(0, |(header, ..)| header.durable),
                        bytes: verified.map_or(0, |(.., body)| (HEADER + body.len()) as u64),
                        file,
                        accepted: false,
                    });
                }
                offset = match verified {
                    Some((header, _, body)) => {
                        let bytes = (HEADER + body.len()) as u64;
                        if header.lsn < *checkpoint_lsn {
                            buried.extend(self.inside(file, offset, bytes));
                        }
                        offset + bytes
                    }
                    None => (offset / BLOCK + 1) * BLOCK,
                };
            }
        }
        found.sort_by_key(|frame| frame.lsn);
        Ok((found, buried))
    }

    /// Extends the run by one frame; `false` at its end.
    fn step(
        &mut self,
        run: &mut Run,
        found: &mut [Found],
        dirty: &DirtyPages,
    ) -> Result<bool, Error> {
        let block = run.end.next_multiple_of(BLOCK);
        if block != run.end
            && let Some(&file) = run.files.last()
            && self.accept(run, run.end, file, dirty)?
        {
            return Ok(true);
        }
        for frame in run.at(found, block) {
            if self.accept(run, block, frame.file, dirty)? {
                frame.accepted = true;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Applies the frame at `lsn` in a file, if it continues the run.
    fn accept(
        &mut self,
        run: &mut Run,
        lsn: u64,
        file: usize,
        dirty: &DirtyPages,
    ) -> Result<bool, Error> {
        let segment = lsn / self.options.setup.segment_bytes;
        if !run.admits(segment, file) {
            return Ok(false);
        }
        self.load(file)?;
        let offset = lsn % self.options.setup.segment_bytes;
        let bytes = self.buffer.get(offset as usize..).unwrap_or_default();
        let Some((header, sum, body)) = Header::open(bytes, lsn, &self.options.secret) else {
            return Ok(false);
        };
        if run.chain.is_some_and(|chain| chain != header.chain)
            || header.incarnation < run.incarnation
        {
            return Ok(false);
        }
        if header.incarnation > self.options.incarnation {
            let what = format!(
                "a group was written when the pool was opened for time {}, but its superblock says that it was \
                 opened {} times: image and log are not of one pool, or not of one moment",
                header.incarnation, self.options.incarnation
            );
            return Err(self.corrupt(file, offset, what));
        }
        let body_at = offset + HEADER as u64;
        if let Err((at, what)) = apply(self.options, body, dirty) {
            return Err(self.corrupt(file, body_at + at, what));
        }
        run.end = header.end();
        run.chain = Some(sum);
        run.incarnation = header.incarnation;
        run.durable = run.durable.max(header.durable);
        run.admit(segment, file);
        Ok(true)
    }

    /// Writes the tail that no later frame confirms once more, and syncs it.
    fn write_tail_again(&mut self, run: &Run, start: u64) -> Result<(), Error> {
        let segment_bytes = self.options.setup.segment_bytes;
        let doubtful = run.durable.next_multiple_of(BLOCK);
        for (segment, index) in run.files() {
            let first = segment * segment_bytes;
            let (from, end) = (doubtful.max(first), start.min(first + segment_bytes));
            if from >= end {
                continue;
            }
            self.load(index)?;
            let bytes = self
                .buffer
                .get((from - first) as usize..(end - first) as usize)
                .unwrap_or_default();
            self.write(index, from - first, bytes)?;
        }
        Ok(())
    }

    fn wipe_leftovers(&self, found: &[Found]) -> Result<(), Error> {
        for leftover in found.iter().filter(|frame| !frame.accepted) {
            let offset = leftover.lsn % self.options.setup.segment_bytes;
            // Zero only these bytes, which lie in one sector: zeros in another sector may be what the frame
            // lacks.
            self.write(leftover.file, offset, &[0; NAME])?;
        }
        Ok(())
    }

    #[cfg_attr(feature = "lab", track_caller)]
    fn write(&self, index: usize, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let Some(segment) = self.files.get(index) else {
            return Ok(());
        };
        let file = &segment.file;
        segment::write_synced(file, at, bytes)
            .map_err(|source| file.error("writing the tail of the redo log", source))
    }

    /// Sorts the files into those of the run and free ones.
    fn finish(mut self, run: &Run, start: u64) -> Recovered {
        let next_number = self.files.last().map_or(0, |segment| segment.number + 1);
        let mut slots: Vec<Option<Segment>> = self.files.drain(..).map(Some).collect();
        let live: VecDeque<Segment> = (run.files.iter())
            .filter_map(|&index| slots.get_mut(index)?.take())
            .collect();
        let free = slots.into_iter().flatten().collect();
        Recovered {
            start,
            end: run.end,
            chain: run.chain.unwrap_or(0),
            files: Files {
                live,
                free,
                next_number,
            },
        }
    }

    /// The error for a run that ends where acknowledged groups should follow.
    fn damaged(&mut self, run: &Run, later: &Found) -> Error {
        let segment_bytes = self.options.setup.segment_bytes;
        let last = run.files().next_back();
        // The damaged frame begins right after the run if the bytes there look like a frame.
        let mut at = run.end.next_multiple_of(BLOCK);
        if let Some((_, index)) = last {
            if let Err(error) = self.load(index) {
                return error;
            }
            let behind = self
                .buffer
                .get((run.end % segment_bytes) as usize..)
                .unwrap_or_default();
            if Header::parse_unverified(behind).is_some_and(|header| header.lsn == run.end) {
                at = run.end;
            }
        }
        let segment = at / segment_bytes;
        let in_segment = |&(last, index): &(u64, usize)| (last == segment).then_some(index);
        let file = last.as_ref().and_then(in_segment);
        let file = file.or_else(|| in_segment(&(later.lsn / segment_bytes, later.file)));
        let what = format!(
            "the acknowledged group at position {at} of the redo log does not verify; the log was durable up to {}",
            later.durable
        );
        match file {
            Some(index) => self.corrupt(index, at % segment_bytes, what),
            None => Error::Corrupt {
                path: self.options.directory.path().into(),
                offset: at,
                what: format!("{what}, and no segment begins there"),
                remedy: REMEDY,
            },
        }
    }

    fn corrupt(&self, index: usize, offset: u64, what: String) -> Error {
        let path = self
            .files
            .get(index)
            .map_or(self.options.directory.path(), |segment| segment.file.path());
        Error::Corrupt {
            path: path.into(),
            offset,
            what,
            remedy: REMEDY,
        }
    }
}

/// Applies the entries of a body; a malformed one is an error with its offset in the body.
fn apply(options: &LogOptions, body: &[u8], dirty: &DirtyPages) -> Result<(), (u64, String)> {
    let mut rest = body;
    while !rest.is_empty() {
        let position = (body.len() - rest.len()) as u64;
        let Some((at, lines, later)) = split_entry(rest) else {
            return Err((position, "an entry of the redo log is malformed".into()));
        };
        let bytes = lines.len() as u64;
        if at < ROOT_AT || !options.region.contains(at, bytes) {
            let what = format!("a redo entry leads to {at}, {bytes} bytes, outside the image");
            return Err((position, what));
        }
        options.region.store(at, lines);
        dirty.mark(at, bytes);
        rest = later;
    }
    Ok(())
}
