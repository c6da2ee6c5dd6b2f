//! The redo log by itself, for fuzzing: logs written by the log, files whose frames are sealed again after
//! they were changed, and recovery of whatever lies on a disk.

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

/// Size of everything.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of the image, a multiple of 4096.
    pub image_bytes: u64,
    /// Bytes of a segment, a multiple of 4096.
    pub segment_bytes: u64,
    /// What the superblock says that the image holds.
    pub checkpoint_lsn: u64,
}

/// What recovery made of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The image, the log applied.
    pub image: Vec<u8>,
    /// Where the log goes on.
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
            // The disk is not real, and neither are threads needed to write to it.
            background: false,
            ..Setup::REAL
        },
        poison: Arc::default(),
        checkpoint_lsn: shape.checkpoint_lsn,
        incarnation: 1,
        record_checkpoint: Box::new(|_| Ok(())),
    })
}

/// Writes a log: one group for each step, which is a list of lines (offset in the image, byte to fill with);
/// each is durable before the next is begun if the step says so.
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

/// Recovers what lies on `disk`. With `write` as an open to write does, else as one to look only.
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

/// The frames of a log's files, found by walking from frame to frame as recovery does.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    /// File, offset in it, position in the log.
    places: Vec<(usize, usize, u64)>,
}

impl Frames {
    /// What looks like frames in these files, in the order of their positions.
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

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
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

    /// Makes the chain and the checksum of each frame hold, in order; `keep` names those whose chain stays.
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
