//! A view of a pool: opened to be looked at, in private memory.
//!
//! Invariants:
//! - Whatever a caller does with the view, nothing of the pool changes on the medium. The image is open for
//!   reading only and mapped privately, so the kernel also refuses what this file never asks for: it repairs
//!   or raises no superblock, writes no redo segment, creates, truncates or allocates no file, starts no
//!   thread.
//! - A view shows what a normal open would recover, by the same checks and with the same errors.
//! - Stores stay in the view. They are neither flushed nor logged, and a view acknowledges nothing.
//! - The lock is shared: several views may exist at once, but not while the pool is open to write.

use super::carrier::ThroughFile;
use super::growth::{Growth, Storage};
use super::header;
use super::header::{Found, Header};
use super::opening;
use super::place::Place;
use super::probe::DaxDevice;
use super::report;
use super::superblock::{Block, PAGE};
use super::{Pool, PoolOptions};
use crate::error::{Damage, Error};
use crate::log::Log;
use crate::medium::Medium;
use crate::memory::cpu::FlushKind;
use crate::memory::delay::Delay;
use crate::memory::map::{Reservation, Sharing};
use crate::memory::preset::Preset;
use crate::memory::readout::Readout;
use crate::memory::region::Region;
use rustix::fd::AsFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

/// A pool's superblock and medium, with its image in private memory.
struct Image {
    found: Found,
    medium: Medium,
    region: Arc<Region>,
}

/// See [`PoolOptions::read_only`]. The place was opened for reading only.
pub(super) fn open(
    path: &Path,
    options: &PoolOptions,
    place: &Place,
    preset: Option<&'static Preset>,
) -> Result<Arc<Pool>, Error> {
    let delay = preset.map(Delay::new);
    let Image {
        found,
        medium,
        region,
    } = match place.device {
        Some(device) => copy_device(path, options, place, device, preset)?,
        None => map_file(path, options, place, delay.clone())?,
    };
    let superblock = found.superblock.clone();
    let mut damage = match options.salvage {
        true => damaged_copies(place, &found),
        false => Vec::new(),
    };
    // The header never writes here. It keeps the file open, and with it the lock, as long as the pool.
    let carrier = Box::new(ThroughFile(Arc::clone(&place.file)));
    let header = Arc::new(Header::view(carrier, path, found));
    if medium == Medium::File {
        let log = opening::log_options(path.into(), options, place, &region, &header);
        match options.salvage {
            true => damage.extend(Log::salvage(&log)?),
            false => Log::replay(&log)?,
        }
    }
    Ok(Arc::new(Pool {
        log: None,
        region,
        kind: FlushKind::Nothing,
        report: report::of_view(medium, options.durability, delay.as_ref()),
        delay,
        data: OnceLock::new(),
        secret: superblock.secret(),
        header,
        growth: Growth::new(path.into(), Storage::Fixed),
        directory: place.device.is_none().then(|| path.into()),
        engine: superblock.engine,
        geometry: superblock.geometry,
        path: path.into(),
        created: false,
        was_clean: superblock.clean,
        read_only: true,
        damage,
        closed: AtomicBool::new(false),
    }))
}

/// Copies of the superblock that do not verify. A merely older copy is normal: its write was interrupted.
fn damaged_copies(place: &Place, found: &Found) -> Vec<Damage> {
    let copies = found.stale.iter().filter(|stale| stale.is_damaged);
    let damage = copies.map(|stale| Damage {
        file: place.file.path().into(),
        offset: stale.at,
        bytes: PAGE,
        is_loss: false,
        what: format!(
            "a copy of the superblock is damaged ({}); the other one is used, and nothing is missing",
            stale.why
        ),
    });
    damage.collect()
}

/// Address space for an image; it never grows.
fn reserve(path: &Path, image_bytes: u64) -> Result<Reservation, Error> {
    Reservation::new(image_bytes, image_bytes, PAGE)
        .map_err(Error::io(path, "reserving address space"))
}

/// Maps an image file privately: a page is read at its first access, and copied at its first store.
fn map_file(
    path: &Path,
    options: &PoolOptions,
    place: &Place,
    delay: Option<Delay>,
) -> Result<Image, Error> {
    let found = opening::read_file(path, &place.file)?;
    let medium = opening::choose(path, options, &found.superblock, place)?;
    let image_bytes = found.superblock.image_bytes;
    let reservation = reserve(path, image_bytes)?;
    let file = place.file.inner().as_fd();
    // SAFETY: there is no region yet, and the file has `image_bytes` bytes.
    unsafe { reservation.map(file, Sharing::Private, 0, image_bytes) }
        .map_err(Error::io(path, "mapping the image"))?;
    Ok(Image {
        found,
        medium,
        region: Arc::new(Region::new(Box::new(reservation), image_bytes, delay)),
    })
}

/// Copies the image out of a device, which cannot be mapped privately.
fn copy_device(
    path: &Path,
    options: &PoolOptions,
    place: &Place,
    device: DaxDevice,
    preset: Option<&'static Preset>,
) -> Result<Image, Error> {
    opening::check_room(path, device)?;
    let readout = Readout::new(place.file.inner().as_fd(), device.bytes)
        .map_err(Error::io(path, "mapping the device"))?;
    let found = header::read(&readout, path)?;
    if !options.open {
        return Err(Error::Exists { path: path.into() });
    }
    opening::check_length(path, device, &found.superblock)?;
    let medium = opening::choose(path, options, &found.superblock, place)?;
    opening::check_pmem(path, medium, preset)?;
    let image_bytes = found.superblock.image_bytes;
    let reservation = reserve(path, image_bytes)?;
    reservation
        .fill_with_zeros(image_bytes)
        .map_err(Error::io(path, "taking memory for a copy of the device"))?;
    let region = Arc::new(Region::new(Box::new(reservation), image_bytes, None));
    copy(&readout, &region);
    Ok(Image {
        found,
        medium,
        region,
    })
}

/// Copies as much as the region has room for; pages of zeros take no memory.
fn copy(readout: &Readout, region: &Region) {
    const ZEROS: Block = [0; PAGE as usize];
    for at in (0..region.len()).step_by(PAGE as usize) {
        let page = readout.page(at);
        if page != ZEROS {
            region.store(at, &page);
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::io::File;
    use crate::medium::MediumChoice;
    use crate::pool::probe::{IMAGE, Probe};
    use crate::pool::superblock::{DATA_AT, ROOT_AT, Superblock};

    const IMAGE_BYTES: u64 = DATA_AT + 4 * PAGE;

    /// A directory with the image of a pool that was last open on persistent memory.
    fn pmem_image() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let file = Arc::new(File::open(&directory.path().join(IMAGE), true).unwrap());
        file.set_len(IMAGE_BYTES + 10 * PAGE).unwrap();
        let superblock = Superblock::new(Medium::Pmem, 7, [0; 8], IMAGE_BYTES);
        let carrier = Box::new(ThroughFile(Arc::clone(&file)));
        Header::create(carrier, directory.path(), superblock).unwrap();
        file.pwrite_all(ROOT_AT, &[5; 8]).unwrap();
        file.pwrite_all(IMAGE_BYTES - 8, &[6; 8]).unwrap();
        directory
    }

    fn options() -> PoolOptions {
        PoolOptions {
            read_only: true,
            medium: MediumChoice::Auto,
            ..PoolOptions::default()
        }
    }

    fn check(pool: &Arc<Pool>, directory: &Path) {
        let before = std::fs::read(directory.join(IMAGE)).unwrap();
        assert_eq!(pool.medium(), Medium::Pmem);
        assert_eq!(pool.region().len(), IMAGE_BYTES);
        let word = |at| pool.region().load_word(at).to_le_bytes();
        assert_eq!(
            [ROOT_AT, DATA_AT, IMAGE_BYTES - 8].map(word),
            [[5; 8], [0; 8], [6; 8]]
        );
        let mut lane = pool.lane();
        for at in (0..IMAGE_BYTES).step_by(PAGE as usize) {
            let flushed = lane.stream(at, &[9; 64]);
            let _unwaited = lane.fence(flushed);
            assert_eq!(word(at), [9; 8]);
        }
        pool.close().unwrap();
        assert!(std::fs::read(directory.join(IMAGE)).unwrap() == before);
    }

    /// A backup on ordinary files can be opened on a machine without persistent memory.
    #[test]
    fn persistent_memory_need_not_be_there() {
        let directory = pmem_image();
        let pool = Pool::open(directory.path(), &options()).unwrap();
        check(&pool, directory.path());
    }

    /// Test machines have no device; a file is mapped and copied by the same calls.
    #[test]
    fn a_device_is_copied() {
        let directory = pmem_image();
        let file = File::open_to_read(&directory.path().join(IMAGE)).unwrap();
        let device = |bytes| Place {
            file: Arc::new(File::wrap(
                file.inner().try_clone().unwrap(),
                directory.path(),
            )),
            created: false,
            device: Some(DaxDevice { bytes, align: PAGE }),
            probe: Probe {
                medium: Medium::Pmem,
                why: "a device".into(),
                volatile: false,
            },
        };
        let opened = |bytes| open(directory.path(), &options(), &device(bytes), None);
        check(&opened(IMAGE_BYTES + 10 * PAGE).unwrap(), directory.path());
        let short = opened(IMAGE_BYTES - PAGE).map(|_| ());
        assert!(matches!(short, Err(Error::Corrupt { .. })), "{short:?}");
        let tiny = opened(DATA_AT).map(|_| ());
        assert!(matches!(tiny, Err(Error::Options { .. })), "{tiny:?}");
    }
}
