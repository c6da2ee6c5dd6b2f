//! The log under crashes, damage, full disks and failing syncs.
//!
//! [`Bench`] is a pool reduced to what the log needs: an image file whose first page holds the checkpoint,
//! and heap memory instead of the private mapping. Its files are lossy: [`Faults::crash`] may take back
//! everything that no sync covered.

mod crash;
mod damage;
mod failure;
mod memory;
mod panic;
mod poison;
mod race;
mod shown;
mod waiting;

use super::{Group, Log, LogOptions, Setup};
use crate::checksum::Secret;
use crate::error::Error;
use crate::io::File;
use crate::io::faults::Faults;
use crate::medium::Durability;
use crate::memory::region::{Heap, Region};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;

pub(super) const SEGMENT: u64 = 16 << 10;
/// Where test data begins in the image.
pub(super) const DATA: u64 = 8192;

/// The files of one pool.
pub(super) struct Bench {
    pub(super) directory: tempfile::TempDir,
    pub(super) faults: Arc<Faults>,
    image_bytes: u64,
    pub(super) segment_bytes: u64,
    pub(super) durability: Durability,
    pub(super) write_ahead: bool,
}

/// The open pool.
pub(super) struct Open {
    pub(super) log: Log,
    pub(super) region: Arc<Region>,
}

impl Bench {
    pub(super) fn new(image_bytes: u64) -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let faults = Faults::install(directory.path());
        let image = File::open(&directory.path().join("image"), true).unwrap();
        image.set_len(image_bytes).unwrap();
        faults.lossy();
        Bench {
            directory,
            faults,
            image_bytes,
            segment_bytes: SEGMENT,
            durability: Durability::Always,
            write_ahead: true,
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Opens the pool as after any end of the last run: recovery included.
    pub(super) fn open(&self) -> Result<Open, Error> {
        let image = Arc::new(File::open(&self.path().join("image"), false)?);
        let failed = |source| image.error("testing", source);
        let mut bytes = vec![0; self.image_bytes as usize];
        image.pread_exact(0, &mut bytes).map_err(failed)?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (checkpoint_lsn, incarnation) = (word(0), word(8) + 1);
        let superblock = Mutex::new((checkpoint_lsn, incarnation));
        let region = Arc::new(Region::new(
            Box::new(Heap::new(bytes.len())),
            self.image_bytes,
            None,
        ));
        region.store(DATA, &bytes[DATA as usize..]);
        let file = Arc::clone(&image);
        let record = move |lsn: u64| {
            let mut words = superblock.lock();
            words.0 = lsn;
            let block = [words.0.to_le_bytes(), words.1.to_le_bytes()].concat();
            file.pwrite_all(0, &block)
                .and_then(|()| file.data_sync())
                .map_err(|source| file.error("testing", source))
        };
        record(checkpoint_lsn)?;
        let log = Log::open(LogOptions {
            directory: self.path().into(),
            image,
            region: Arc::clone(&region),
            reservation: None,
            secret: Secret::expand(&[7; 32]),
            durability: self.durability,
            log_bytes: 8 * self.segment_bytes,
            setup: Setup {
                segment_bytes: self.segment_bytes,
                #[cfg(feature = "lab")]
                background: Setup::REAL.background,
                write_ahead: self.write_ahead,
            },
            poison: Arc::default(),
            checkpoint_lsn,
            incarnation,
            record_checkpoint: Box::new(record),
        })?;
        Ok(Open { log, region })
    }
}

impl Open {
    /// Stores a line that only the caller writes.
    pub(super) fn line(&self, group: &mut Group, at: u64, value: u64) {
        let mut line = [0; 64];
        for (index, word) in line.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(value + ((index as u64) << 56)).to_le_bytes());
        }
        self.region.store(at, &line);
        group.push_lines(at, &line);
    }

    /// Stores a word of a line that others write too.
    pub(super) fn word(&self, group: &mut Group, at: u64, value: u64) {
        self.region.store_word(at, value);
        group.push_shared(at, 8);
    }
}
