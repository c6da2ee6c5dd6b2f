//! Pools of ordinary files for the lab: image and redo log on a [`Disk`], opened by the code that opens any
//! pool.
//!
//! The image is copied, not mapped; to the process a private mapping is no more. The log has no threads: a
//! waiter writes it, and does the checkpointer's work if any is due. So in one thread the same calls lead to
//! the same calls on the disk.

use super::disk::Disk;
use super::memory::Seed;
use super::tap::TapRef;
use crate::error::Error;
use crate::io::{Directory, File};
use crate::log::Setup;
use crate::medium::{Durability, Medium, MediumChoice};
use crate::memory::cpu::FlushKind;
use crate::memory::region::{Heap, Region};
use crate::pool::carrier::ThroughFile;
use crate::pool::growth::Storage;
use crate::pool::header::Header;
use crate::pool::opening;
use crate::pool::opening::Parts;
use crate::pool::place::Place;
use crate::pool::probe::{IMAGE, Probe};
use crate::pool::superblock::{DATA_AT, PAGE};
use crate::pool::{Pool, PoolOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Options to open a pool on a disk of the lab.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// The image may grow to this many bytes, a multiple of 4096.
    pub capacity: u64,
    /// Redo log bytes to keep; a checkpoint is due when half of them are used. From 8 segments on files are
    /// reused instead of deleted.
    pub log_bytes: u64,
    /// Bytes of a segment of the log, a multiple of 4096; the same at each open of a pool.
    pub segment_bytes: u64,
    /// Acknowledgement class.
    pub durability: Durability,
    /// Leaves out the write-ahead rule; a good lab detects that.
    pub break_write_ahead: bool,
}

/// The files of a new pool, all of them durable: an image without extents. The first open creates the log.
///
/// # Errors
/// None on memory.
pub fn create_files(
    seed: Seed,
    engine: u32,
    geometry: [u64; 8],
) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let image = BTreeMap::from([(IMAGE.into(), vec![0; DATA_AT as usize])]);
    let disk = Arc::new(Disk::new(image, None));
    let directory = Directory::simulated(&disk, Path::new("lab"));
    let carrier = Box::new(ThroughFile(Arc::new(directory.open(IMAGE, false)?)));
    let superblock = seed.superblock(Medium::File, engine, geometry);
    Header::create(carrier, directory.path(), superblock)?;
    Ok(disk.files())
}

/// Opens the pool on a disk as [`Pool::open`] opens one in a directory. Nothing else may have the disk open.
///
/// # Errors
/// As [`Pool::open`].
///
/// # Panics
/// If the options are not whole pages, or the log is shorter than two segments.
pub fn open_files(
    disk: &Arc<Disk>,
    options: &FileOptions,
    tap: Option<TapRef>,
) -> Result<Arc<Pool>, Error> {
    let segment_bytes = options.segment_bytes;
    assert!(options.capacity.is_multiple_of(PAGE) && segment_bytes.is_multiple_of(PAGE));
    assert!(segment_bytes > 0 && options.log_bytes >= 2 * segment_bytes);
    let path = Path::new("lab");
    let directory = Directory::simulated(disk, path);
    let file = Arc::new(directory.open(IMAGE, false)?);
    let (place, pool) = (place(&file), pool_options(options));
    let found = opening::read_file(path, &file)?;
    let medium = opening::choose(path, &pool, &found.superblock, &place)?;
    opening::fit_file(path, &file, &found.superblock, medium)?;
    let image_bytes = found.superblock.image_bytes;
    let capacity = options.capacity.max(image_bytes);
    let heap = disk.read(IMAGE, |image| {
        Heap::copy_of(&image[..image_bytes as usize], capacity as usize)
    });
    let heap = heap.map_err(Error::io(path, "reading the image"))?;
    let region = Region::simulated(heap, image_bytes, tap);
    opening::finish(Parts {
        path,
        options: &pool,
        place: &place,
        medium,
        found,
        carrier: Box::new(ThroughFile(Arc::clone(&file))),
        region: Arc::new(region),
        kind: FlushKind::Nothing,
        delay: None,
        storage: Storage::Simulated { file, capacity },
        directory,
        setup: Setup {
            segment_bytes,
            background: false,
            write_ahead: !options.break_write_ahead,
        },
    })
}

/// The place that opening a path would have found.
fn place(file: &Arc<File>) -> Place {
    Place {
        file: Arc::clone(file),
        created: false,
        device: None,
        probe: Probe {
            medium: Medium::File,
            why: "the crash lab".into(),
            volatile: false,
        },
    }
}

fn pool_options(options: &FileOptions) -> PoolOptions {
    PoolOptions {
        medium: MediumChoice::Only(Medium::File),
        create: false,
        durability: options.durability,
        max_bytes: options.capacity,
        log_bytes: options.log_bytes,
        ..PoolOptions::default()
    }
}
