//! Pools of persistent memory for the lab: an image in heap memory, opened by the code that opens any pool.

use super::disk::Disk;
use super::tap::TapRef;
use crate::error::Error;
use crate::io::Directory;
use crate::medium::{Durability, Medium, Report};
use crate::memory::cpu::FlushKind;
use crate::memory::region::{Heap, Region};
use crate::pool::Pool;
use crate::pool::carrier::ThroughTap;
use crate::pool::growth::{Growth, Storage};
use crate::pool::header;
use crate::pool::header::Header;
use crate::pool::superblock::{DATA_AT, PAGE, Superblock};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Seed of a new lab pool's identity and secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// A superblock whose random parts come from the seed.
    pub(crate) fn superblock(self, medium: Medium, engine: u32, geometry: [u64; 8]) -> Superblock {
        let mut superblock = Superblock::new(medium, engine, geometry, DATA_AT);
        let mut word = self.0;
        let mut fill = |bytes: &mut [u8]| {
            for byte in bytes {
                word = word
                    .wrapping_mul(0x5851_f42d_4c95_7f2d)
                    .wrapping_add(0x1405_7b7e_f767_814f);
                *byte = (word >> 56) as u8;
            }
        };
        fill(&mut superblock.uuid);
        fill(&mut superblock.seed);
        superblock
    }
}

/// The image of a new pool on persistent memory, without extents.
///
/// # Errors
/// None on memory.
pub fn create(seed: Seed, engine: u32, geometry: [u64; 8]) -> Result<Vec<u8>, Error> {
    let region = Arc::new(Region::simulated(
        Heap::new(DATA_AT as usize),
        DATA_AT,
        None,
    ));
    let carrier = Box::new(ThroughTap::new(Arc::clone(&region)));
    let superblock = seed.superblock(Medium::Emulated, engine, geometry);
    Header::create(carrier, Path::new("lab"), superblock)?;
    let mut image = vec![0; DATA_AT as usize];
    region.load(0, &mut image);
    Ok(image)
}

/// Opens an image as `pmem` is opened after a crash: reads both copies of the superblock and raises the
/// incarnation. The image may grow to `capacity` bytes, a multiple of 4096.
///
/// # Errors
/// As [`Pool::open`].
pub fn open(image: &[u8], capacity: u64, tap: Option<TapRef>) -> Result<Arc<Pool>, Error> {
    let nothing = Disk::new(std::collections::BTreeMap::new(), None);
    open_beside(image, capacity, tap, &Arc::new(nothing))
}

/// As [`open`], with a disk for the pool's data file.
///
/// # Errors
/// As [`Pool::open`].
pub fn open_beside(
    image: &[u8],
    capacity: u64,
    tap: Option<TapRef>,
    disk: &Arc<Disk>,
) -> Result<Arc<Pool>, Error> {
    let path = Path::new("lab");
    assert!(capacity.is_multiple_of(PAGE) && capacity >= image.len() as u64);
    let heap = Heap::copy_of(image, capacity as usize);
    let region = Arc::new(Region::simulated(heap, DATA_AT, tap));
    let carrier = Box::new(ThroughTap::new(Arc::clone(&region)));
    let found = header::read(&*carrier, path)?;
    let superblock = found.superblock.clone();
    if superblock.image_bytes > capacity {
        return Err(Error::Corrupt {
            path: path.into(),
            offset: capacity,
            what: "the image is longer than its medium".into(),
            remedy: "Restore the pool from a copy",
        });
    }
    region.set_len(superblock.image_bytes);
    region.blank_behind(superblock.image_bytes);
    let header = Arc::new(Header::adopt(carrier, path, found)?);
    header.update(Superblock::begin)?;
    Ok(Arc::new(Pool {
        log: None,
        region,
        kind: FlushKind::Nothing,
        delay: None,
        data: OnceLock::new(),
        secret: superblock.secret(),
        header,
        growth: Growth::new(path.into(), Storage::Memory { capacity }),
        directory: Some(Directory::simulated(disk, path)),
        engine: superblock.engine,
        geometry: superblock.geometry,
        path: path.into(),
        created: false,
        was_clean: superblock.clean,
        read_only: false,
        damage: Vec::new(),
        closed: AtomicBool::new(false),
        report: report(Medium::Emulated),
    }))
}

pub(crate) fn report(medium: Medium) -> Report {
    Report {
        uuid: [0; 16],
        medium,
        why: "the crash lab".into(),
        persist: "recorded".into(),
        durability: Durability::Always,
        latency: Duration::ZERO,
        acknowledgement: "Nothing survives the process.".into(),
        delay: None,
        data: None,
        data_delay: None,
    }
}
