//! Finds, checks, locks and creates the image that a pool's path names.
//!
//! Invariants:
//! - An image is used only while this process holds a `flock` on it: exclusive to write, shared to look. The
//!   lock belongs to the open file, so a second open is refused even in the same process, and a dead process
//!   leaves no lock behind.
//! - With `read_only` nothing is created, and the image is open for reading only.
//! - A new image appears under its name only when it is complete: it is built as `image.new`, made durable,
//!   and renamed. A crash in between leaves no half pool.
//! - Symbolic links to the image are not followed. It must be a regular file of the user who runs this
//!   process, in a directory that is not world-writable.

use super::PoolOptions;
use super::carrier::ThroughFile;
use super::header::Header;
use super::probe;
use super::probe::{DaxDevice, IMAGE, Probe};
use super::superblock::{DATA_AT, Superblock};
use crate::error::Error;
use crate::io::{Directory, File};
use crate::medium::{Medium, MediumChoice};
use rustix::fd::AsFd;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

const IMAGE_NEW: &str = "image.new";

/// An image that is open and locked.
pub(crate) struct Place {
    /// The image file, or the device.
    pub(crate) file: Arc<File>,
    /// Whether this call created it.
    pub(crate) created: bool,
    /// The numbers of the device, if it is one.
    pub(crate) device: Option<DaxDevice>,
    /// The medium that the path offers.
    pub(crate) probe: Probe,
}

/// Opens and locks the image at `path`, or creates it, as the options say.
pub(crate) fn open(path: &Path, options: &PoolOptions) -> Result<Place, Error> {
    match rustix::fs::stat(path) {
        Ok(stat) if file_type(&stat) == FileType::CharacterDevice => {
            open_device(path, &stat, options)
        }
        Ok(stat) if file_type(&stat) == FileType::Directory => open_directory(path, options),
        Ok(_) => {
            let what = "a pool is a directory or a devdax device, and this is neither";
            Err(Error::NotAPool {
                path: path.into(),
                what: what.into(),
            })
        }
        Err(Errno::NOENT) if may_create(options) => {
            create_directory(path)?;
            open_directory(path, options)
        }
        Err(Errno::NOENT) => Err(Error::NotFound { path: path.into() }),
        Err(errno) => Err(Error::io(path, "looking at the path")(errno)),
    }
}

fn may_create(options: &PoolOptions) -> bool {
    options.create && !options.read_only
}

/// The flags to open the image with.
fn access(options: &PoolOptions) -> OFlags {
    if options.read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    }
}

fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Creates the directory and its missing ancestors. Each name is durable before anything is created below it.
/// So only the lowest existing directory may have a name that an interrupted creation left un-synced; that
/// name is synced first.
pub(crate) fn create_directory(path: &Path) -> Result<(), Error> {
    let is_there = |path: &&Path| *path == Path::new("") || path.exists();
    if let Some(found) = path.ancestors().find(is_there) {
        sync_name(found)?;
    }
    let mut lacking: Vec<_> = path
        .ancestors()
        .take_while(|path| !is_there(path))
        .collect();
    while let Some(level) = lacking.pop() {
        // Another process may create it at the same time.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(level)
            .map_err(|error| Error::Io {
                path: level.into(),
                what: "creating the directory",
                source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
            })?;
        sync_parent(level)?;
    }
    Ok(())
}

/// Makes the name of an existing directory durable.
pub(crate) fn sync_name(path: &Path) -> Result<(), Error> {
    if path == Path::new("") {
        return Ok(());
    }
    match sync_parent(path) {
        // The directory above cannot be opened, or its file system needs no sync: then it existed before the
        // pool.
        Err(Error::Io {
            source: Errno::ACCESS | Errno::PERM | Errno::INVAL | Errno::ROFS,
            ..
        }) => Ok(()),
        other => other,
    }
}

fn sync_parent(path: &Path) -> Result<(), Error> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    Directory::from(parent.unwrap_or(Path::new("."))).sync()
}

/// Makes the names of the image and of the pool's directory durable.
fn sync_names(path: &Path) -> Result<(), Error> {
    Directory::from(path).sync()?;
    sync_name(path)
}

fn open_device(path: &Path, stat: &Stat, options: &PoolOptions) -> Result<Place, Error> {
    let device = probe::dax_device(path, stat.st_rdev, Path::new("/sys"))?;
    let flags = access(options) | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty())
        .map_err(Error::io(path, "opening the device"))?;
    lock(&file, path, options)?;
    let file = Arc::new(File::wrap(fs::File::from(file), path));
    Ok(Place {
        file,
        created: false,
        device: Some(device),
        probe: probe::probe(path)?,
    })
}

fn open_directory(path: &Path, options: &PoolOptions) -> Result<Place, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, path, flags, Mode::empty())
        .map_err(Error::io(path, "opening the pool's directory"))?;
    // Two processes that create or open at once take turns here; the second finds the image locked.
    rustix::fs::flock(&directory, FlockOperation::LockExclusive)
        .map_err(Error::io(path, "locking the pool's directory"))?;
    let stat =
        rustix::fs::fstat(&directory).map_err(Error::io(path, "looking at the directory"))?;
    if Mode::from_raw_mode(stat.st_mode).contains(Mode::WOTH) {
        let what = "everybody can write this directory, and could replace the pool; `chmod o-w` it";
        return Err(Error::Options {
            path: path.into(),
            what: what.into(),
        });
    }
    let name = path.join(IMAGE);
    let flags = access(options) | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(CWD, &name, flags, Mode::empty()) {
        Ok(_) if !options.open => Err(Error::Exists { path: path.into() }),
        Ok(file) => {
            lock(&file, path, options)?;
            check_file(&file, &name)?;
            if !options.read_only {
                // The process that created the pool may have died before its name was durable.
                sync_names(path)?;
            }
            let file = Arc::new(File::wrap(fs::File::from(file), &name));
            Ok(Place {
                file,
                created: false,
                device: None,
                probe: probe::probe(path)?,
            })
        }
        Err(Errno::NOENT) if may_create(options) => create_image(path, options),
        Err(Errno::NOENT) => Err(Error::NotFound { path: path.into() }),
        Err(Errno::LOOP) => Err(Error::NotAPool {
            path: name,
            what: "the image is a symbolic link".into(),
        }),
        Err(errno) => Err(Error::io(&name, "opening the image")(errno)),
    }
}

fn lock(file: impl AsFd, path: &Path, options: &PoolOptions) -> Result<(), Error> {
    let how = if options.read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match rustix::fs::flock(file, how) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(Error::Locked { path: path.into() }),
        Err(errno) => Err(Error::io(path, "locking the pool")(errno)),
    }
}

/// Refuses a file that is not regular, or belongs to another user.
fn check_file(file: impl AsFd, name: &Path) -> Result<(), Error> {
    let stat = rustix::fs::fstat(file).map_err(Error::io(name, "looking at the image"))?;
    if file_type(&stat) != FileType::RegularFile {
        return Err(Error::NotAPool {
            path: name.into(),
            what: "the image is not a regular file".into(),
        });
    }
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        let owner = stat.st_uid;
        let what =
            format!("belongs to user {owner}, this process runs as {user}; run it as the owner");
        return Err(Error::Options {
            path: name.into(),
            what,
        });
    }
    Ok(())
}

fn create_image(path: &Path, options: &PoolOptions) -> Result<Place, Error> {
    let probe = probe::probe(path)?;
    let medium = match options.medium {
        MediumChoice::Auto => probe.medium,
        MediumChoice::Only(medium) => medium,
    };
    check_possible(path, medium, &probe)?;
    let (name, new) = (path.join(IMAGE), path.join(IMAGE_NEW));
    match rustix::fs::unlink(&new) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => {
            return Err(Error::io(
                &new,
                "removing what an interrupted creation left",
            )(errno));
        }
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, &new, flags, Mode::RUSR | Mode::WUSR)
        .map_err(Error::io(&new, "creating the image"))?;
    lock(&file, path, options)?;
    let file = Arc::new(File::wrap(fs::File::from(file), &name));
    back(&file, 0, DATA_AT).map_err(Error::io(&new, "creating the image"))?;
    let superblock = Superblock::new(medium, options.engine, options.geometry, DATA_AT);
    Header::create(Box::new(ThroughFile(Arc::clone(&file))), path, superblock)?;
    file.sync()
        .map_err(Error::io(&new, "syncing the new image"))?;
    rustix::fs::rename(&new, &name).map_err(Error::io(&name, "naming the new image"))?;
    Directory::from(path).sync()?;
    Ok(Place {
        file,
        created: true,
        device: None,
        probe,
    })
}

/// Refuses `pmem` on a path without persistent memory.
pub(crate) fn check_possible(path: &Path, medium: Medium, probe: &Probe) -> Result<(), Error> {
    if medium == Medium::Pmem && probe.medium != Medium::Pmem {
        let what = format!(
            "no persistent memory here: {}. Use `auto` or `file`",
            probe.why
        );
        return Err(Error::Options {
            path: path.into(),
            what,
        });
    }
    Ok(())
}

/// Allocates `from .. to` of the image on the medium. On error the file keeps its length.
#[cfg_attr(feature = "lab", track_caller)]
pub(crate) fn back(file: &File, from: u64, to: u64) -> Result<(), Errno> {
    let before = file.len()?;
    let backed = match file.allocate(from, to - from) {
        // Some file systems cannot allocate; writing zeros from the end of the file takes the room as well.
        Err(Errno::OPNOTSUPP) => write_zeros(file, from.max(before), to),
        other => other,
    };
    if backed.is_err() {
        // Some file systems keep the part that still fitted. If this truncation fails too, the next open cuts
        // the surplus off.
        let _surplus_stays = file.set_len(before);
    }
    backed
}

#[cfg_attr(feature = "lab", track_caller)]
fn write_zeros(file: &File, mut from: u64, to: u64) -> Result<(), Errno> {
    let zeros = vec![0; 1 << 20];
    while from < to {
        let bytes = (to - from).min(zeros.len() as u64);
        file.pwrite_all(from, zeros.get(..bytes as usize).unwrap_or(&zeros))?;
        from += bytes;
    }
    Ok(())
}

#[cfg(all(test, feature = "faults"))]
mod tests {
    use super::*;
    use crate::io::faults::Faults;

    /// Creation made several levels at once and synced only the lowest one's parent: a power loss could take
    /// the whole branch, with a pool whose writes had been acknowledged.
    #[test]
    fn each_level_that_is_created_is_durable() {
        let top = tempfile::tempdir().unwrap();
        let levels = ["", "a", "a/b", "a/b/c"].map(|name| match name {
            "" => top.path().to_path_buf(),
            name => top.path().join(name),
        });
        let faults = levels.each_ref().map(|level| Faults::install(level));
        create_directory(&levels[3]).unwrap();
        let syncs = || faults.each_ref().map(|faults| faults.directory_syncs());
        assert_eq!(syncs(), [1, 1, 1, 0]);
        // A creation that was interrupted before its last sync is continued.
        std::fs::remove_dir(&levels[3]).unwrap();
        create_directory(&levels[3]).unwrap();
        assert_eq!(syncs(), [1, 2, 2, 0]);
    }

    #[test]
    fn nothing_is_created_below_a_name_that_may_be_lost() {
        let top = tempfile::tempdir().unwrap();
        let faults = Faults::install(top.path());
        faults.fail_directory_syncs(true);
        let path = top.path().join("a/b");
        assert!(matches!(create_directory(&path), Err(Error::Io { .. })));
        assert!(top.path().join("a").exists() && !path.exists());
        faults.fail_directory_syncs(false);
        create_directory(&path).unwrap();
        assert_eq!(
            faults.directory_syncs(),
            2,
            "the name of `a` is synced again"
        );
    }
}
