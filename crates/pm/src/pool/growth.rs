//! How an image grows by an extent, and how it lends room inside it to the file system.
//!
//! The order makes a crash safe at any point:
//!
//! 1. room on the medium, made durable;
//! 2. the mapping;
//! 3. the superblock: from here on the extent exists;
//! 4. the length that offsets are checked against.
//!
//! A crash before step 3 leaves a file longer than the superblock says. The next open cuts the surplus off,
//! so that the bytes of a new extent are always zero.

use super::header::Header;
use super::place;
use super::probe::DaxDevice;
use super::superblock::PAGE;
use super::superblock::extent::Extent;
use super::window::Windows;
use crate::error::Error;
use crate::io::File;
use crate::lock::lock;
use crate::memory::cpu::FlushKind;
use crate::memory::map::{Reservation, Sharing};
use crate::memory::region::Region;
use parking_lot::Mutex;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::Arc;

/// What an image grows in.
pub(crate) enum Storage {
    /// Memory that has its full size from the start: a heap pool, or a view of a pool.
    Fixed,
    /// A file, mapped into a reservation.
    File {
        file: Arc<File>,
        reservation: Arc<Reservation>,
        sharing: Sharing,
    },
    /// Memory of the crash lab, zero after the image.
    #[cfg(feature = "lab")]
    Memory { capacity: u64 },
    /// A file of the lab's disk; all `capacity` bytes of memory exist from the start.
    #[cfg(feature = "lab")]
    Simulated { file: Arc<File>, capacity: u64 },
    /// A device, mapped whole. Its old bytes are zeroed when room is handed out.
    Device {
        /// Holds the lock as long as the pool lives; nothing is read or written through it.
        _lock: Arc<File>,
        device: DaxDevice,
        kind: FlushKind,
    },
}

impl Storage {
    /// The address space, if stores through it reach no medium, so that its memory can be read again from the
    /// file.
    pub(crate) fn private_memory(&self) -> Option<Arc<Reservation>> {
        match self {
            Storage::File {
                reservation,
                sharing: Sharing::Private,
                ..
            } => Some(Arc::clone(reservation)),
            _ => None,
        }
    }
}

/// Grows one pool.
pub(crate) struct Growth {
    path: PathBuf,
    storage: Storage,
    /// One growth at a time.
    growing: Mutex<()>,
    /// Ranges that devices reach, which keep their room.
    windows: Windows,
}

impl Growth {
    pub(crate) fn new(path: PathBuf, storage: Storage) -> Growth {
        Growth {
            path,
            storage,
            growing: Mutex::new(()),
            windows: Windows::default(),
        }
    }

    /// See [`crate::Pool::allocate`].
    pub(crate) fn allocate(
        &self,
        header: &Header,
        region: &Region,
        owner: u32,
        bytes: u64,
        align: u64,
    ) -> Result<Extent, Error> {
        self.check(bytes, align)?;
        let _growing = lock(&self.growing);
        let mut extents = header.get().extents;
        let at = extents.end().checked_next_multiple_of(align);
        let Some((at, end)) = at.and_then(|at| Some((at, at.checked_add(bytes)?))) else {
            return Err(self.no_space());
        };
        let extent = Extent { owner, at, bytes };
        if end > self.limit(region) || !extents.push(extent) {
            return Err(self.no_space());
        }
        self.prepare(header, region, at, end)?;
        header.update(|superblock| {
            superblock.extents = extents;
            superblock.image_bytes = superblock.image_bytes.max(end);
        })?;
        region.set_len(end.max(region.len()));
        Ok(extent)
    }

    fn check(&self, bytes: u64, align: u64) -> Result<(), Error> {
        let align_fits = align != 0 && (align.is_multiple_of(PAGE) || PAGE.is_multiple_of(align));
        if bytes == 0 || !bytes.is_multiple_of(PAGE) || !align_fits {
            let what = format!(
                "an extent of {bytes} bytes at multiples of {align}: both go by whole pages"
            );
            return Err(Error::Options {
                path: self.path.clone(),
                what,
            });
        }
        Ok(())
    }

    fn no_space(&self) -> Error {
        Error::NoSpace {
            path: self.path.clone(),
            what: "grow the pool",
        }
    }

    /// The image cannot grow beyond this.
    fn limit(&self, region: &Region) -> u64 {
        match &self.storage {
            Storage::Fixed => region.len(),
            Storage::File { reservation, .. } => reservation.bytes(),
            #[cfg(feature = "lab")]
            Storage::Memory { capacity } | Storage::Simulated { capacity, .. } => *capacity,
            Storage::Device { device, .. } => device.bytes,
        }
    }

    /// Backs and maps the image up to `end`; the new extent starts at `at`.
    fn prepare(&self, header: &Header, region: &Region, at: u64, end: u64) -> Result<(), Error> {
        let from = region.len();
        match &self.storage {
            Storage::Fixed => Ok(()),
            #[cfg(feature = "lab")]
            Storage::Memory { .. } => {
                region.blank_behind(from);
                Ok(())
            }
            Storage::File {
                file,
                reservation,
                sharing,
            } => {
                self.back(header, file, from, end)?;
                // Unwritten bytes of the file are zero, and stores through a private mapping never reach the
                // file.
                if *sharing == Sharing::Private {
                    return reservation
                        .add_zeros(from, end)
                        .map_err(Error::io(&self.path, "taking memory for new bytes"));
                }
                // SAFETY: `from` is the region's length, which only this function's caller raises, under the
                // growth lock; the file was just extended to `end`.
                unsafe { reservation.map(file.inner().as_fd(), *sharing, from, end) }
                    .map_err(Error::io(&self.path, "mapping new bytes"))
            }
            #[cfg(feature = "lab")]
            Storage::Simulated { file, .. } => {
                self.back(header, file, from, end)?;
                let mut bytes = vec![0; end.saturating_sub(from) as usize];
                file.pread_exact(from, &mut bytes)
                    .map_err(Error::io(&self.path, "reading new bytes"))?;
                region.set_len(end.max(from));
                region.imprint(from, &bytes);
                Ok(())
            }
            Storage::Device { kind, .. } => {
                region.set_len(end.max(from));
                region.clear(*kind, at, end - at);
                Ok(())
            }
        }
    }

    /// Allocates `from .. end` of the image on the medium, durably.
    fn back(&self, header: &Header, file: &File, from: u64, end: u64) -> Result<(), Error> {
        place::back(file, from, end).map_err(Error::io(&self.path, "grow the pool"))?;
        header.guard(|| file.sync())
    }

    /// See [`crate::Pool::gives_back`].
    pub(crate) fn gives_back(&self) -> bool {
        self.direct_file().is_some()
    }

    /// See [`crate::Pool::give_back`].
    pub(crate) fn give_back(&self, at: u64, bytes: u64) -> Result<bool, Error> {
        let Some(file) = self.direct_file() else {
            return Ok(false);
        };
        let punched = self.windows.beside(at, bytes, || file.punch(at, bytes));
        match punched {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(Error::io(&self.path, "giving room back")(errno)),
        }
    }

    /// Whether stores to memory are stores to the medium: the mapping is the memory itself, or there is no
    /// medium but memory.
    pub(crate) fn is_direct(&self) -> bool {
        match &self.storage {
            Storage::File { sharing, .. } => *sharing != Sharing::Private,
            Storage::Fixed | Storage::Device { .. } => true,
            #[cfg(feature = "lab")]
            Storage::Memory { .. } => true,
            #[cfg(feature = "lab")]
            Storage::Simulated { .. } => false,
        }
    }

    /// The ranges that devices reach.
    pub(crate) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// See [`crate::Pool::take_back`].
    pub(crate) fn take_back(&self, header: &Header, ranges: &[(u64, u64)]) -> Result<(), Error> {
        let Some(file) = self.direct_file() else {
            return Ok(());
        };
        for &(at, bytes) in ranges {
            match file.allocate(at, bytes) {
                // Without support no room was ever given back.
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(Error::io(&self.path, "grow the pool")(errno)),
            }
        }
        header.guard(|| file.sync())
    }

    /// The file that stores reach directly, without a log.
    fn direct_file(&self) -> Option<&File> {
        match &self.storage {
            Storage::File { file, sharing, .. } if *sharing != Sharing::Private => Some(file),
            _ => None,
        }
    }

    /// See [`crate::Pool::backed_bytes`].
    pub(crate) fn backed_bytes(&self, region: &Region) -> u64 {
        let backed = match &self.storage {
            Storage::File { file, .. } => file.backed_bytes().ok(),
            _ => None,
        };
        backed.unwrap_or(region.len())
    }

    /// See [`crate::Pool::prefault`].
    pub(crate) fn prefault(&self, at: u64, bytes: u64) {
        if let Storage::File { reservation, .. } = &self.storage {
            // Kernels before 5.14 lack the call; pages then appear at their first access.
            let _refused = reservation.populate(at, at + bytes);
        }
    }

    /// See [`crate::Pool::collapse`].
    pub(crate) fn collapse(&self, at: u64, bytes: u64) {
        if let Storage::File {
            reservation,
            sharing: Sharing::Shared,
            ..
        } = &self.storage
        {
            let _huge = reservation.collapse(at, at + bytes);
        }
    }
}
