//! The redo log by itself, for fuzzing: it writes logs, seals frames again after they were changed, and
//! recovers whatever lies on a disk.

use super::dirty::DirtyPages;
use super::frame::{BLOCK, HEADER, Header};
use super::{Log, LogOptions, Setup, recover};
use crate::checksum::Secret;
use crate::error::Error;
use crate::io::Directory;
use crate::lab::Disk;
use crate::medium::Durability;
use crate::memory::region::{Heap, Region};
use std::path::Path;
use std::sync::Arc;

/// Sizes.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of the image, a multiple of 4096.
    pub image_bytes: u64,
    /// Bytes of a segment, a multiple of 4096.
    pub segment_bytes: u64,
    /// The superblock's checkpoint position.
    pub checkpoint_lsn: u64,
}

/// The result of recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The image, the log applied.
    pub image: Vec<u8>,
    /// Where the log continues.
    pub start: u64,
}

fn secret() -> Secret {
    Secret::expand(&[7; 32])
}

fn options(disk: &Arc<Disk>, shape: Shape) -> Result<LogOptions, Error> {
    let region = Region::new(
        Box::new(Heap::new(shape.image_bytes as usize)),
        shape.image_bytes,
        None,
    );
    let directory = Directory::simulated(disk, Path::new("fuzzing"));
    Ok(LogOptions {
        image: Arc::new(directory.open("image", true)?),
        directory,
        region: Arc::new(region),
        reservation: None,
        secret: secret(),
        durability: Durability::Always,
        // So many that no checkpoint starts by itself.
        log_bytes: 64 * shape.segment_bytes,
        setup: Setup {
            segment_bytes: shape.segment_bytes,
            // The disk is simulated, and no threads are needed to write to it.
            background: false,
            ..Setup::REAL
        },
        poison: Arc::default(),
        checkpoint_lsn: shape.checkpoint_lsn,
        incarnation: 1,
        record_checkpoint: Box::new(|_| Ok(())),
    })
}

/// Writes a log: one group for each step, which is a list of lines (offset in the image, byte to fill with).
/// Each group is durable before the next begins if the step says so.
///
/// # Errors
/// As the log.
pub fn write(
    disk: &Arc<Disk>,
    shape: Shape,
    steps: &[(bool, Vec<(u64, u8)>)],
) -> Result<(), Error> {
    let options = options(disk, shape)?;
    let region = Arc::clone(&options.region);
    let log = Log::open(options)?;
    let mut group = log.group();
    for (wait, lines) in steps {
        for &(at, byte) in lines {
            region.store(at, &[byte; 64]);
            group.push_lines(at, &[byte; 64]);
        }
        let end = group.close();
        if *wait {
            log.wait(end)?;
        }
    }
    log.sync()
}

/// Recovers the log on `disk`: with `write` as an open to write does, else as a read-only open.
///
/// # Errors
/// As opening the log.
pub fn recover(disk: &Arc<Disk>, shape: Shape, write: bool) -> Result<Recovered, Error> {
    let options = options(disk, shape)?;
    let mut start = 0;
    if write {
        start = recover::recover(&options, &DirtyPages::default())?.start;
    } else {
        recover::replay(&options)?;
    }
    let mut image = vec![0; shape.image_bytes as usize];
    options.region.load(0, &mut image);
    Ok(Recovered { image, start })
}

/// The frames in a log's files, found by walking from frame to frame as recovery does.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    /// File, offset in it, position in the log.
    places: Vec<(usize, usize, u64)>,
}

impl Frames {
    /// Whatever looks like a frame in these files, by position.
    #[must_use]
    pub fn find(files: &[Vec<u8>]) -> Frames {
        let mut places = Vec::new();
        for (index, file) in files.iter().enumerate() {
            let mut at = 0;
            while at + HEADER <= file.len() {
                let next = at.next_multiple_of(BLOCK as usize).max(at + BLOCK as usize);
                let Some(header) = Header::parse_unverified(&file[at..]) else {
                    at = if at.is_multiple_of(BLOCK as usize) {
                        next
                    } else {
                        at.next_multiple_of(BLOCK as usize)
                    };
                    continue;
                };
                places.push((index, at, header.lsn));
                at = match usize::try_from(header.body_bytes) {
                    Ok(body) if body < file.len() - at => at + HEADER + body,
                    _ => next,
                };
            }
        }
        places.sort_by_key(|&(_, _, lsn)| lsn);
        Frames { places }
    }

    /// How many frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// File and offset of a frame.
    #[must_use]
    pub fn place(&self, index: usize) -> (usize, usize) {
        let (file, at, _) = self.places[index];
        (file, at)
    }

    /// Recomputes the chain and the checksum of each frame, in order; `keep` names those whose chain stays.
    pub fn seal(&self, files: &mut [Vec<u8>], keep: &[usize]) {
        let mut chain = None;
        for (index, &(file, at, _)) in self.places.iter().enumerate() {
            let Some(bytes) = files.get_mut(file).and_then(|file| file.get_mut(at..)) else {
                continue;
            };
            let Some(mut header) = Header::parse_unverified(bytes) else {
                continue;
            };
            let length = usize::try_from(header.body_bytes).ok();
            let length = length.and_then(|body| body.checked_add(HEADER));
            let Some(frame) = length.and_then(|length| bytes.get_mut(..length)) else {
                continue;
            };
            if let Some(chain) = chain
                && !keep.contains(&index)
            {
                header.chain = chain;
            }
            chain = Some(header.seal(frame, &secret()));
        }
    }
}
