//! Erases a devdax device, so that the next open may create a pool there.
//!
//! A pool of files is removed with its directory. A device has no other way to be freed, since the kernel
//! does not support `write` on it.

use super::PoolOptions;
use super::opening;
use super::place;
use super::superblock::DATA_AT;
use crate::error::Error;
use crate::memory::cpu::FlushKind;
use crate::memory::map::{Reservation, Sharing};
use crate::memory::region::Region;
use rustix::fd::AsFd;
use std::path::Path;

/// Erases what makes the devdax device at `path` a pool, durably. All data of the pool is lost. The rest need
/// not be erased: a pool zeroes room before it hands it out.
///
/// # Errors
/// [`Error::Locked`] if the pool is open, [`Error::Options`] if `path` is not a devdax device or too small to
/// have been a pool, [`Error::Io`] if it cannot be mapped.
pub fn erase(path: &Path) -> Result<(), Error> {
    let place = place::open(
        path,
        &PoolOptions {
            create: false,
            ..PoolOptions::default()
        },
    )?;
    let Some(device) = place.device else {
        return Err(Error::Options {
            path: path.into(),
            what: "only a devdax device is erased; a pool in a directory is removed with it".into(),
        });
    };
    opening::check_room(path, device)?;
    let io = |what| Error::io(path, what);
    let bytes = DATA_AT.next_multiple_of(device.align);
    let reservation =
        Reservation::new(bytes, bytes, device.align).map_err(io("reserving address space"))?;
    // SAFETY: there is no region yet. The device has more than `DATA_AT` bytes and a multiple of its
    // alignment.
    unsafe { reservation.map(place.file.inner().as_fd(), Sharing::Shared, 0, bytes) }
        .map_err(io("mapping the device"))?;
    Region::new(Box::new(reservation), DATA_AT, None).clear(FlushKind::detect(), 0, DATA_AT);
    Ok(())
}
