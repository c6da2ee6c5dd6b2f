//! Which medium a path offers, and why.
//!
//! The only proof of persistent memory on a file system is a mapping with MAP_SYNC: the kernel grants it
//! where stores reach the medium past the page cache and metadata follows in time. A path that refuses it,
//! virtio-pmem and tmpfs included, is `file`. A character device counts if it belongs to the dax subsystem.
//! No probe returns `emulated`: the user chooses that.

use crate::error::Error;
use crate::medium::Medium;
use crate::memory::map;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};

/// Name of the image inside a pool directory.
pub(crate) const IMAGE: &str = "image";

/// The medium that a path offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// [`Medium::Pmem`] or [`Medium::File`].
    pub medium: Medium,
    /// Why, in a sentence.
    pub why: String,
    /// The file system lives in memory, so nothing on it survives a power loss, whatever is synced.
    pub volatile: bool,
}

/// Finds the medium for a pool at `path`. The path need not exist yet.
///
/// # Errors
/// [`Error::Io`] if the path cannot be examined, [`Error::Options`] if it cannot hold a pool.
pub fn probe(path: &Path) -> Result<Probe, Error> {
    let Some(existing) = nearest_existing(path) else {
        return Err(Error::io(
            path,
            "looking for a directory to put the pool in",
        )(Errno::NOENT));
    };
    let stat = rustix::fs::stat(&existing).map_err(Error::io(&existing, "looking at the path"))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => probe_device(&existing, stat.st_rdev),
        FileType::Directory => probe_directory(&existing),
        _ => Err(Error::Options {
            path: existing,
            what: "a pool is a directory or a devdax device, and this is neither".into(),
        }),
    }
}

pub(crate) fn nearest_existing(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    absolute
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .map(Path::to_path_buf)
}

fn probe_directory(directory: &Path) -> Result<Probe, Error> {
    let (name, volatile) = file_system(directory)?;
    let file = match fs::File::open(directory.join(IMAGE)) {
        Ok(file) => OwnedFd::from(file),
        Err(_) => scratch_file(directory)?,
    };
    let (medium, why) = match map::takes_map_sync(file.as_fd()) {
        Ok(()) => (
            Medium::Pmem,
            format!("{name} maps persistent memory directly (MAP_SYNC granted)"),
        ),
        Err(errno) if volatile => (
            Medium::File,
            format!(
                "{name} refuses MAP_SYNC ({errno}) and is gone after a power loss; ordinary files are the \
                 stricter promise, `emulated` is only used when asked for"
            ),
        ),
        Err(errno) => (
            Medium::File,
            format!(
                "{name} refuses MAP_SYNC ({errno}), so writes become durable by fdatasync of a redo log"
            ),
        ),
    };
    Ok(Probe {
        medium,
        why,
        volatile,
    })
}

/// A file without a name, so that nothing stays behind; where that is not supported, a named file, unlinked
/// at once.
fn scratch_file(directory: &Path) -> Result<OwnedFd, Error> {
    let failed = Error::io(directory, "creating a file to probe the file system");
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(CWD, directory, flags | OFlags::TMPFILE, mode) {
        Ok(file) => file,
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {
            let name = directory.join(format!(".everdram-probe-{:016x}", rand::random::<u64>()));
            let create = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let file = rustix::fs::openat(CWD, &name, create, mode).map_err(&failed)?;
            rustix::fs::unlink(&name).map_err(&failed)?;
            file
        }
        Err(errno) => return Err(failed(errno)),
    };
    rustix::fs::ftruncate(&file, crate::pool::superblock::PAGE).map_err(&failed)?;
    Ok(file)
}

/// Name of the file system, and whether it lives in memory.
pub(crate) fn file_system(path: &Path) -> Result<(&'static str, bool), Error> {
    let stat = rustix::fs::statfs(path).map_err(Error::io(path, "asking for the file system"))?;
    Ok(match stat.f_type as u64 & 0xffff_ffff {
        0xef53 => ("ext4", false),
        0x5846_5342 => ("xfs", false),
        0x9123_683e => ("btrfs", false),
        0xf2f5_2010 => ("f2fs", false),
        0x2fc1_2fc1 => ("zfs", false),
        0x794c_7630 => ("overlayfs", false),
        0x6969 => ("nfs", false),
        0x6573_5546 => ("fuse", false),
        0x0102_1997 => ("9p", false),
        0x0102_1994 => ("tmpfs", true),
        0x8584_58f6 => ("ramfs", true),
        _ => ("this file system", false),
    })
}

/// A dax device's numbers, from sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DaxDevice {
    /// Bytes of the device.
    pub(crate) bytes: u64,
    /// Mappings start and end at multiples of this.
    pub(crate) align: u64,
}

fn probe_device(path: &Path, number: u64) -> Result<Probe, Error> {
    let device = dax_device(path, number, Path::new("/sys"))?;
    Ok(Probe {
        medium: Medium::Pmem,
        why: format!("a devdax device of {} bytes, mapped directly", device.bytes),
        volatile: false,
    })
}

/// Reads size and alignment of the character device `number`, which must belong to the dax subsystem.
pub(crate) fn dax_device(path: &Path, number: u64, sysfs: &Path) -> Result<DaxDevice, Error> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let directory = sysfs.join(format!("dev/char/{major}:{minor}"));
    let subsystem = fs::read_link(directory.join("subsystem")).ok();
    if subsystem.as_deref().and_then(Path::file_name) != Some("dax".as_ref()) {
        let what =
            "a character device that is not dax cannot hold a pool; use a directory or /dev/daxX.Y";
        return Err(Error::Options {
            path: path.into(),
            what: what.into(),
        });
    }
    let Some(bytes) = number_in(&directory.join("size")) else {
        let what = "sysfs does not say how large this dax device is";
        return Err(Error::Options {
            path: path.into(),
            what: what.into(),
        });
    };
    let align = number_in(&directory.join("align"))
        .or_else(|| number_in(&directory.join("device/align")))
        .filter(|align| align.is_power_of_two())
        .unwrap_or(2 << 20);
    Ok(DaxDevice {
        bytes: bytes / align * align,
        align,
    })
}

fn number_in(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Whether the processor's caches are inside the persistence domain (eADR): the firmware must say so for
/// every region of persistent memory.
pub(crate) fn caches_persist(sysfs: &Path) -> bool {
    let Ok(devices) = fs::read_dir(sysfs.join("bus/nd/devices")) else {
        return false;
    };
    let mut domains = devices
        .flatten()
        .filter(|device| device.file_name().to_string_lossy().starts_with("region"))
        .map(|device| {
            fs::read_to_string(device.path().join("persistence_domain")).unwrap_or_default()
        })
        .peekable();
    domains.peek().is_some() && domains.all(|domain| domain.trim() == "cpu_cache")
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_that_is_not_there_yet_takes_the_medium_of_its_parent() {
        let directory = tempfile::tempdir().unwrap();
        let now = probe(directory.path()).unwrap();
        assert_eq!(probe(&directory.path().join("not/yet")).unwrap(), now);
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            0,
            "nothing stays behind"
        );
    }

    #[test]
    fn tmpfs_is_file_and_says_why() {
        let Ok((name, true)) = file_system(Path::new("/dev/shm")) else {
            eprintln!("skipped: no tmpfs at /dev/shm");
            return;
        };
        let found = probe(Path::new("/dev/shm")).unwrap();
        assert_eq!((found.medium, found.volatile), (Medium::File, true));
        assert!(
            found.why.contains(name) && found.why.contains("power loss"),
            "{}",
            found.why
        );
    }

    #[test]
    fn files_and_ordinary_devices_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(probe(file.path()), Err(Error::Options { .. })));
        assert!(matches!(
            probe(Path::new("/dev/null")),
            Err(Error::Options { .. })
        ));
    }

    /// Test machines have no dax device, but sysfs is only files.
    #[test]
    fn dax_devices_are_read_from_sysfs() {
        let sysfs = tempfile::tempdir().unwrap();
        let device = sysfs.path().join("dev/char/250:3");
        fs::create_dir_all(&device).unwrap();
        let number = rustix::fs::makedev(250, 3);
        let path = Path::new("/dev/dax0.0");
        assert!(
            dax_device(path, number, sysfs.path()).is_err(),
            "no subsystem"
        );
        symlink("../../../bus/dax", device.join("subsystem")).unwrap();
        assert!(dax_device(path, number, sysfs.path()).is_err(), "no size");
        fs::write(device.join("size"), "0x10000000\n").unwrap();
        fs::write(device.join("align"), "2097152\n").unwrap();
        let found = dax_device(path, number, sysfs.path()).unwrap();
        assert_eq!(
            found,
            DaxDevice {
                bytes: 256 << 20,
                align: 2 << 20
            }
        );
    }

    #[test]
    fn every_region_must_keep_its_caches() {
        let sysfs = tempfile::tempdir().unwrap();
        assert!(!caches_persist(sysfs.path()), "no regions at all");
        for (region, domain) in [
            ("region0", "cpu_cache\n"),
            ("region1", "memory_controller\n"),
        ] {
            let directory = sysfs.path().join("bus/nd/devices").join(region);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("persistence_domain"), domain).unwrap();
            assert_eq!(
                caches_persist(sysfs.path()),
                region == "region0",
                "{region}"
            );
        }
    }
}
