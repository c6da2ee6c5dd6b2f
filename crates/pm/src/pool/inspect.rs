//! Reads the state of a pool without opening it: it writes nothing and recovers nothing.

use super::Pool;
use super::header;
use super::header::{Carrier, Stale};
use super::probe;
use super::probe::IMAGE;
use super::superblock::extent::Extent;
use super::superblock::{Block, PAGE};
use crate::error::Error;
use crate::medium::Medium;
use crate::memory::readout::Readout;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::path::Path;

/// The superblock's contents.
#[derive(Clone, Debug)]
pub struct PoolInfo {
    /// Medium the pool was last opened on.
    pub medium: Medium,
    /// The engine's number.
    pub engine: u32,
    /// The engine's geometry words.
    pub geometry: [u64; 8],
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Closed cleanly, and not open.
    pub clean: bool,
    /// Some process has the pool open, so this may be out of date.
    pub open: bool,
    /// The owner of each range.
    pub extents: Vec<Extent>,
    /// Every field by name, for display.
    pub fields: Vec<(&'static str, String)>,
    /// Faults that the next open repairs: copies that do not verify or are older.
    pub notes: Vec<String>,
}

/// Reads copies through a file that is open for reading only.
struct ReadOnly(OwnedFd);

impl Carrier for ReadOnly {
    fn read(&self, at: u64) -> Result<Block, Errno> {
        let mut block = [0; PAGE as usize];
        let mut done = 0;
        while let Some(rest) = block.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&self.0, rest, at + done as u64) {
                Ok(0) => return Err(Errno::NODATA),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(block)
    }

    fn write(&self, _at: u64, _block: &Block) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }
}

impl Pool {
    /// Reads the superblock of the pool at `path`, even while it is open elsewhere. Changes nothing.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn inspect(path: &Path) -> Result<PoolInfo, Error> {
        let (file, bytes, is_device) = open_image(path)?;
        let open = rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockShared).is_err();
        if !open {
            // Unlock at once: a process that opens the pool now must not find it locked by this inspection.
            rustix::fs::flock(file.as_fd(), FlockOperation::Unlock)
                .map_err(Error::io(path, "unlocking"))?;
        }
        if bytes < 2 * PAGE {
            let what = format!("the image has {bytes} bytes, less than a superblock");
            return Err(Error::NotAPool {
                path: path.into(),
                what,
            });
        }
        let found = if is_device {
            // The kernel does not support `read` on a devdax device; it can only be mapped.
            let readout =
                Readout::new(file.as_fd(), bytes).map_err(Error::io(path, "mapping the device"))?;
            header::read(&readout, path)?
        } else {
            header::read(&ReadOnly(file), path)?
        };
        let superblock = found.superblock;
        let mut notes: Vec<_> = found
            .stale
            .iter()
            .map(|Stale { at, why, .. }| {
                format!("superblock copy at {at}: {why}; the other copy is used")
            })
            .collect();
        if bytes < superblock.image_bytes {
            notes.push(format!(
                "the image ends at {bytes}, {} bytes are missing",
                superblock.image_bytes - bytes
            ));
        }
        if !superblock.clean && !open {
            notes.push("not closed cleanly; the next open recovers".into());
        }
        let uuid: String = superblock
            .uuid
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let mut fields = vec![
            ("format version", superblock.version().to_string()),
            ("uuid", uuid),
            ("medium", superblock.medium.to_string()),
            ("engine", superblock.engine.to_string()),
            ("generation", superblock.generation.to_string()),
            ("incarnation", superblock.incarnation.to_string()),
            ("closed cleanly", superblock.clean.to_string()),
            ("open now", open.to_string()),
            ("image bytes", superblock.image_bytes.to_string()),
            ("checkpoint lsn", superblock.checkpoint_lsn.to_string()),
        ];
        for (index, word) in superblock.geometry.iter().enumerate() {
            const NAMES: [&str; 8] = [
                "geometry 0",
                "geometry 1",
                "geometry 2",
                "geometry 3",
                "geometry 4",
                "geometry 5",
                "geometry 6",
                "geometry 7",
            ];
            fields.extend(NAMES.get(index).map(|name| (*name, word.to_string())));
        }
        Ok(PoolInfo {
            medium: superblock.medium,
            engine: superblock.engine,
            geometry: superblock.geometry,
            image_bytes: superblock.image_bytes,
            clean: superblock.clean && !open,
            open,
            extents: superblock.extents.as_slice().to_vec(),
            fields,
            notes,
        })
    }
}

/// The image, open for reading only; its length; whether it is a devdax device.
pub(crate) fn open_image(path: &Path) -> Result<(OwnedFd, u64, bool), Error> {
    let stat = match rustix::fs::stat(path) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Err(Error::NotFound { path: path.into() }),
        Err(errno) => return Err(Error::io(path, "looking at the path")(errno)),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {}
        FileType::CharacterDevice => return open_device(path, &stat),
        _ => {
            let what = "a pool is a directory or a devdax device, and this is neither";
            return Err(Error::NotAPool {
                path: path.into(),
                what: what.into(),
            });
        }
    }
    let name = path.join(IMAGE);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(CWD, &name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Err(Error::NotFound { path: path.into() }),
        Err(errno) => return Err(Error::io(&name, "opening the image")(errno)),
    };
    let stat = rustix::fs::fstat(&file).map_err(Error::io(&name, "looking at the image"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::NotAPool {
            path: name,
            what: "the image is not a regular file".into(),
        });
    }
    Ok((file, u64::try_from(stat.st_size).unwrap_or(0), false))
}

fn open_device(path: &Path, stat: &Stat) -> Result<(OwnedFd, u64, bool), Error> {
    let device = probe::dax_device(path, stat.st_rdev, Path::new("/sys"))?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty())
        .map_err(Error::io(path, "opening the device"))?;
    Ok((file, device.bytes, true))
}
