//! Opening a pool, from a path to mapped, recovered bytes.
//!
//! Lock, read the superblock, decide on the medium, map, raise the incarnation, recover. The steps up to the
//! incarnation only read, except that they cut off bytes that an interrupted growth left after the image. So
//! a refused pool is unchanged. With `read_only` the path continues in `view.rs` after the lock.

use super::carrier::{ThroughFile, ThroughRegion};
use super::growth::{Growth, Storage};
use super::header;
use super::header::{Carrier, Found, Header};
use super::place;
use super::place::Place;
use super::probe;
use super::report;
use super::superblock::{COPIES_AT, DATA_AT, PAGE, Superblock};
use super::{Pool, PoolOptions};
use crate::error::Error;
use crate::io::{Directory, File};
use crate::log::{Log, LogOptions, Setup};
use crate::medium::{Durability, Medium, MediumChoice, Report};
use crate::memory::cpu::{FENCE, FlushKind};
use crate::memory::delay::Delay;
use crate::memory::huge::HUGE_PAGE;
use crate::memory::map::{Reservation, Sharing};
use crate::memory::preset::Preset;
use crate::memory::region::{Heap, Region};
use rustix::fd::AsFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Alignment of mappings.
const ALIGN: u64 = HUGE_PAGE;

/// See [`Pool::heap`].
pub(crate) fn heap(bytes: u64, engine: u32, geometry: [u64; 8]) -> Arc<Pool> {
    assert!(
        bytes.is_multiple_of(PAGE) && bytes > DATA_AT,
        "a heap pool of {bytes} bytes"
    );
    let region = Arc::new(Region::new(
        Box::new(Heap::new(bytes as usize)),
        bytes,
        None,
    ));
    let superblock = Superblock::new(Medium::Emulated, engine, geometry, bytes);
    let secret = superblock.secret();
    let kind = FlushKind::detect();
    let carrier = Box::new(ThroughRegion {
        region: Arc::clone(&region),
        kind,
    });
    let path = Path::new("heap");
    let header = match Header::create(carrier, path, superblock) {
        Ok(header) => header,
        Err(error) => unreachable!("memory takes every store: {error}"),
    };
    Arc::new(Pool {
        log: None,
        region,
        kind,
        delay: None,
        data: OnceLock::new(),
        secret,
        header: Arc::new(header),
        growth: Growth::new(path.into(), Storage::Fixed),
        directory: None,
        engine,
        geometry,
        path: path.into(),
        created: true,
        was_clean: false,
        read_only: false,
        damage: Vec::new(),
        closed: AtomicBool::new(false),
        report: Report {
            uuid: [0; 16],
            medium: Medium::Emulated,
            why: "heap memory".into(),
            persist: format!("{kind} + {FENCE}"),
            durability: Durability::Always,
            latency: Duration::ZERO,
            acknowledgement: "Nothing survives the process.".into(),
            delay: None,
            data: None,
            data_delay: None,
        },
    })
}

/// See [`Pool::open`].
pub(super) fn open(
    path: &Path,
    options: &PoolOptions,
    place: &Place,
    preset: Option<&'static Preset>,
) -> Result<Arc<Pool>, Error> {
    match place.device {
        Some(device) => open_device(path, options, place, device, preset),
        None => open_file(path, options, place, preset),
    }
}

pub(super) fn check_delay(
    path: &Path,
    options: &PoolOptions,
) -> Result<Option<&'static Preset>, Error> {
    let Some(name) = &options.delay else {
        return Ok(None);
    };
    let preset = Preset::by_name(name).map_err(|what| Error::Options {
        path: path.into(),
        what,
    })?;
    if options.medium != MediumChoice::Only(Medium::Emulated) {
        let what = "a delay model works on the `emulated` medium only; ask for that, or leave the delay out";
        return Err(Error::Options {
            path: path.into(),
            what: what.into(),
        });
    }
    Ok(Some(preset))
}

fn open_file(
    path: &Path,
    options: &PoolOptions,
    place: &Place,
    preset: Option<&'static Preset>,
) -> Result<Arc<Pool>, Error> {
    let found = read_file(path, &place.file)?;
    let medium = choose(path, options, &found.superblock, place)?;
    let kind = flush_kind(path, medium)?;
    let image_bytes = found.superblock.image_bytes;
    fit_file(path, &place.file, &found.superblock, medium)?;
    let sharing = match medium {
        Medium::Pmem => Sharing::Sync,
        Medium::File => Sharing::Private,
        Medium::Emulated => Sharing::Shared,
    };
    let reservation = Arc::new(
        Reservation::new(image_bytes, options.max_bytes, ALIGN)
            .map_err(Error::io(path, "reserving address space"))?,
    );
    // SAFETY: there is no region yet, and the file has `image_bytes` bytes.
    unsafe { reservation.map(place.file.inner().as_fd(), sharing, 0, image_bytes) }
        .map_err(Error::io(path, "mapping the image"))?;
    let delay = preset.map(Delay::new);
    let backing = Box::new(Arc::clone(&reservation));
    let region = Arc::new(Region::new(backing, image_bytes, delay.clone()));
    let file = Arc::clone(&place.file);
    let carrier: Box<dyn Carrier> = match medium {
        Medium::File => Box::new(ThroughFile(Arc::clone(&file))),
        Medium::Pmem | Medium::Emulated => Box::new(ThroughRegion {
            region: Arc::clone(&region),
            kind,
        }),
    };
    let storage = Storage::File {
        file,
        reservation,
        sharing,
    };
    finish(Parts {
        path,
        options,
        place,
        medium,
        found,
        carrier,
        region,
        kind,
        delay,
        storage,
        directory: path.into(),
        setup: Setup::REAL,
    })
}

/// Reads the superblock of an image file and checks that the image is as long as it says.
pub(crate) fn read_file(path: &Path, file: &Arc<File>) -> Result<Found, Error> {
    let bytes = file
        .len()
        .map_err(Error::io(path, "looking at the image"))?;
    if bytes < COPIES_AT[1] + PAGE {
        let what = format!(
            "{} has {bytes} bytes, less than a superblock",
            file.path().display()
        );
        return Err(Error::NotAPool {
            path: path.into(),
            what,
        });
    }
    let found = header::read(&ThroughFile(Arc::clone(file)), path)?;
    let image_bytes = found.superblock.image_bytes;
    if bytes < image_bytes {
        return Err(Error::Corrupt {
            path: file.path().into(),
            offset: bytes,
            what: format!("the image ends here, and should have {image_bytes} bytes"),
            remedy: "Nothing was changed; restore the pool from a backup",
        });
    }
    Ok(found)
}

/// Gives the file exactly the length in the superblock, without holes.
pub(crate) fn fit_file(
    path: &Path,
    file: &File,
    superblock: &Superblock,
    medium: Medium,
) -> Result<(), Error> {
    let io = |what| Error::io(path, what);
    let image_bytes = superblock.image_bytes;
    if medium != superblock.medium {
        // The new medium may rely only on what is really in the file.
        file.sync().map_err(io("syncing the image"))?;
    }
    if file.len().map_err(io("looking at the image"))? > image_bytes {
        file.set_len(image_bytes)
            .map_err(io("cutting off what an interrupted growth left"))?;
    }
    // A copy of the pool may have left out its zeros. On tmpfs this check takes a quarter of the time.
    if file.is_whole(image_bytes) {
        return Ok(());
    }
    place::back(file, 0, image_bytes).map_err(io("back the image with disk space"))
}

fn open_device(
    path: &Path,
    options: &PoolOptions,
    place: &Place,
    device: probe::DaxDevice,
    preset: Option<&'static Preset>,
) -> Result<Arc<Pool>, Error> {
    let io = |what| Error::io(path, what);
    check_room(path, device)?;
    let kind = flush_kind(path, Medium::Pmem)?;
    let reservation = Arc::new(
        Reservation::new(device.bytes, device.bytes, device.align.max(ALIGN))
            .map_err(io("reserving address space"))?,
    );
    // SAFETY: there is no region yet, and the device has `bytes` bytes.
    unsafe { reservation.map(place.file.inner().as_fd(), Sharing::Shared, 0, device.bytes) }
        .map_err(io("mapping the device"))?;
    let region = Arc::new(Region::new(Box::new(reservation), DATA_AT, None));
    let through = || {
        Box::new(ThroughRegion {
            region: Arc::clone(&region),
            kind,
        })
    };
    let mut created = false;
    let found = match header::read(&*through(), path) {
        Err(Error::NotAPool { .. }) if options.create && is_blank(&region) => {
            created = true;
            region.clear(kind, 0, DATA_AT);
            let superblock =
                Superblock::new(Medium::Pmem, options.engine, options.geometry, DATA_AT);
            Header::create(through(), path, superblock.clone())?;
            Found {
                superblock,
                stale: Vec::new(),
            }
        }
        Ok(_) if !options.open => return Err(Error::Exists { path: path.into() }),
        other => other?,
    };
    check_length(path, device, &found.superblock)?;
    region.set_len(found.superblock.image_bytes);
    let medium = choose(path, options, &found.superblock, place)?;
    check_pmem(path, medium, preset)?;
    let place = &Place {
        created,
        file: Arc::clone(&place.file),
        probe: place.probe.clone(),
        ..*place
    };
    let storage = Storage::Device {
        _lock: Arc::clone(&place.file),
        device,
        kind,
    };
    let carrier = through();
    finish(Parts {
        path,
        options,
        place,
        medium,
        found,
        carrier,
        region,
        kind,
        delay: None,
        storage,
        directory: path.into(),
        setup: Setup::REAL,
    })
}

/// Refuses a device without room for a superblock and the first extent.
pub(crate) fn check_room(path: &Path, device: probe::DaxDevice) -> Result<(), Error> {
    if device.bytes > DATA_AT {
        return Ok(());
    }
    let what = format!("a device of {} bytes is too small for a pool", device.bytes);
    Err(Error::Options {
        path: path.into(),
        what,
    })
}

/// Refuses a device that ends before the image does.
pub(crate) fn check_length(
    path: &Path,
    device: probe::DaxDevice,
    superblock: &Superblock,
) -> Result<(), Error> {
    let image_bytes = superblock.image_bytes;
    if image_bytes <= device.bytes {
        return Ok(());
    }
    Err(Error::Corrupt {
        path: path.into(),
        offset: device.bytes,
        what: format!("the device ends here, the image has {image_bytes} bytes"),
        remedy: "Nothing was changed; use the whole device the pool was created on",
    })
}

/// Refuses options that a device cannot satisfy.
pub(crate) fn check_pmem(
    path: &Path,
    medium: Medium,
    preset: Option<&'static Preset>,
) -> Result<(), Error> {
    if medium == Medium::Pmem && preset.is_none() {
        return Ok(());
    }
    let what = "a devdax device is always `pmem`, without a delay model";
    Err(Error::Options {
        path: path.into(),
        what: what.into(),
    })
}

/// Whether a device may become a new pool: the bytes of the superblock are all zeros.
fn is_blank(region: &Region) -> bool {
    (0..DATA_AT / 8).all(|word| region.load_word(word * 8) == 0)
}

/// Refuses a pool whose engine the options do not allow.
fn check_engine(path: &Path, options: &PoolOptions, superblock: &Superblock) -> Result<(), Error> {
    let engine = superblock.engine;
    if options.engines.is_empty() || options.engines.contains(&engine) {
        return Ok(());
    }
    Err(Error::Engine {
        path: path.into(),
        engine,
    })
}

/// Chooses the medium for an existing pool, if the options allow its engine. That is the recorded medium,
/// unless the options name another and the pool was closed cleanly: only then does the image alone hold
/// everything. A read-only open persists nothing, so the recorded medium need not exist.
pub(crate) fn choose(
    path: &Path,
    options: &PoolOptions,
    superblock: &Superblock,
    place: &Place,
) -> Result<Medium, Error> {
    check_engine(path, options, superblock)?;
    let recorded = superblock.medium;
    let refuse = |what: String| {
        Err(Error::Options {
            path: path.into(),
            what,
        })
    };
    let medium = match options.medium {
        MediumChoice::Only(medium) => medium,
        MediumChoice::Auto if recorded == Medium::Emulated && !options.read_only => {
            return refuse(
                "this pool is `emulated`, which is never picked by `auto`; ask for `emulated`, or for \
                 another medium if it was closed cleanly"
                    .into(),
            );
        }
        MediumChoice::Auto => recorded,
    };
    if medium != recorded && !superblock.clean {
        return refuse(format!(
            "this pool was last open as `{recorded}` and not closed cleanly; open it as `{recorded}` and \
             close it before it becomes `{medium}`"
        ));
    }
    // What such an extent is for is written past this process, so no log could make it durable.
    if medium == Medium::File && superblock.is_layered() {
        return refuse(
            "this pool has a landing area, which the medium `file` cannot have; open it as `pmem` or `emulated`"
                .into(),
        );
    }
    if !options.read_only || medium != recorded {
        place::check_possible(path, medium, &place.probe)?;
    }
    Ok(medium)
}

fn flush_kind(path: &Path, medium: Medium) -> Result<FlushKind, Error> {
    let kind = FlushKind::detect();
    if medium != Medium::Pmem {
        return Ok(kind);
    }
    if probe::caches_persist(Path::new("/sys")) {
        return Ok(FlushKind::Nothing);
    }
    if kind == FlushKind::Nothing {
        let what = "this processor has no instruction to clean a cache line to persistent memory; use `file`";
        return Err(Error::Options {
            path: path.into(),
            what: what.into(),
        });
    }
    Ok(kind)
}

/// What is known of a pool once its image is mapped.
pub(crate) struct Parts<'a> {
    pub(crate) path: &'a Path,
    pub(crate) options: &'a PoolOptions,
    pub(crate) place: &'a Place,
    pub(crate) medium: Medium,
    pub(crate) found: Found,
    pub(crate) carrier: Box<dyn Carrier>,
    pub(crate) region: Arc<Region>,
    pub(crate) kind: FlushKind,
    pub(crate) delay: Option<Delay>,
    pub(crate) storage: Storage,
    /// Where the redo log lies, and how it works (`file`).
    pub(crate) directory: Directory,
    pub(crate) setup: Setup,
}

/// Raises the incarnation, recovers, and assembles the pool.
pub(crate) fn finish(parts: Parts<'_>) -> Result<Arc<Pool>, Error> {
    let Parts {
        path,
        options,
        place,
        medium,
        found,
        carrier,
        region,
        kind,
        delay,
        storage,
        directory,
        setup,
    } = parts;
    let superblock = found.superblock.clone();
    let header = Arc::new(Header::adopt(carrier, path, found)?);
    header.update(|superblock| {
        superblock.begin();
        superblock.medium = medium;
    })?;
    let secret = superblock.secret();
    let files = directory.clone();
    let log = match medium {
        Medium::File => Some(Log::open(LogOptions {
            setup,
            reservation: storage.private_memory(),
            ..log_options(directory, options, place, &region, &header)
        })?),
        Medium::Pmem | Medium::Emulated => None,
    };
    let latency = match &log {
        Some(log) => log.sync_latency(),
        None => report::measure(&region, kind, delay.as_ref()),
    };
    let report = report::of(
        medium,
        kind,
        options.durability,
        &place.probe,
        latency,
        delay.as_ref(),
    );
    Ok(Arc::new(Pool {
        log,
        region,
        kind,
        delay,
        data: OnceLock::new(),
        secret,
        header,
        growth: Growth::new(path.into(), storage),
        directory: place.device.is_none().then_some(files),
        engine: superblock.engine,
        geometry: superblock.geometry,
        path: path.into(),
        created: place.created,
        was_clean: superblock.clean && !place.created,
        read_only: false,
        damage: Vec::new(),
        closed: AtomicBool::new(false),
        report,
    }))
}

/// The options of a pool's log.
pub(crate) fn log_options(
    directory: Directory,
    options: &PoolOptions,
    place: &Place,
    region: &Arc<Region>,
    header: &Arc<Header>,
) -> LogOptions {
    let superblock = header.get();
    let recorder = Arc::clone(header);
    LogOptions {
        directory,
        image: Arc::clone(&place.file),
        region: Arc::clone(region),
        reservation: None,
        secret: superblock.secret(),
        durability: options.durability,
        log_bytes: options.log_bytes,
        setup: Setup::REAL,
        poison: Arc::clone(header.poison()),
        checkpoint_lsn: superblock.checkpoint_lsn,
        incarnation: superblock.incarnation,
        record_checkpoint: Box::new(move |lsn| {
            recorder.update(|superblock| superblock.checkpoint_lsn = lsn)
        }),
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::pool::probe::{DaxDevice, Probe};
    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;

    /// A pool on a devdax device released its lock as soon as it was open: the mapping kept the device's
    /// bytes, but nothing kept the open file, which owns the lock. A second server could then open, and ruin,
    /// the same pool. Test machines have no such device; a file is locked and mapped by the same calls.
    #[test]
    fn a_device_stays_locked_while_its_pool_is_open() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let device = DaxDevice {
            bytes: 4 << 20,
            align: PAGE,
        };
        named.as_file().set_len(device.bytes).unwrap();
        let lock = FlockOperation::NonBlockingLockExclusive;
        let place = Place {
            file: Arc::new(File::wrap(named.reopen().unwrap(), named.path())),
            created: false,
            device: Some(device),
            probe: Probe {
                medium: Medium::Pmem,
                why: "a device".into(),
                volatile: false,
            },
        };
        flock(place.file.inner(), lock).unwrap();
        let pool =
            open_device(named.path(), &PoolOptions::default(), &place, device, None).unwrap();
        drop(place);
        let second = || flock(named.as_file(), lock);
        assert_eq!(second(), Err(Errno::WOULDBLOCK));
        drop(pool);
        assert_eq!(second(), Ok(()));
    }
}
