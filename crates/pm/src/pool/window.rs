//! Memory of a pool that a device writes and reads by itself: a network adapter, or a library that plays one.
//!
//! Invariants:
//! - The mapping under a window is the memory itself and durable at the fence (`pmem`, `emulated`, memory of
//!   tests). On files it is private and its pages are replaced (`log/give_back.rs`): there is no window.
//! - The bytes have room on the medium, and keep it and their address while the window lives. A mapping only
//!   grows, an image is cut by nobody while it is open, and [`Pool::give_back`], which alone punches holes,
//!   refuses ranges with a window. So a window belongs in an extent whose owner gives no room back.
//! - A window keeps its pool, and with it the mapping and the lock.
//!
//! What a device writes is durable when somebody has flushed and fenced it: the device's own side, or
//! [`crate::Lane::flush_range`] and [`crate::Lane::fence`]. Nothing here does. It may arrive in any order, and
//! a crash keeps any of it; so a checksum decides what counts.

use super::Pool;
use crate::error::Error;
use crate::lock::lock;
use crate::memory::cpu::LINE;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// See the module text. [`Pool::window`] makes one.
pub struct Window {
    pool: Arc<Pool>,
    at: u64,
    bytes: u64,
}

impl Pool {
    /// A window for devices over `at .. at + bytes`: whole lines of 64 bytes, inside of one extent, whose
    /// owner never gives room back there. Windows may overlap. Allocates the range on the medium where it
    /// lacks room.
    ///
    /// # Errors
    /// [`Error::NoWindow`]: the medium, the open or the range has none. [`Error::NoSpace`],
    /// [`Error::Poisoned`], as for [`Pool::take_back`].
    pub fn window(self: &Arc<Self>, at: u64, bytes: u64) -> Result<Window, Error> {
        self.healthy()?;
        if let Some(what) = self.no_window(at, bytes) {
            let path = self.path.clone();
            return Err(Error::NoWindow { path, what });
        }
        // From here on nobody takes the room away.
        self.growth.windows().add(at, bytes);
        let window = Window {
            pool: Arc::clone(self),
            at,
            bytes,
        };
        self.take_back(&[(at, bytes)])?;
        Ok(window)
    }

    /// Why there is no window over a range.
    fn no_window(&self, at: u64, bytes: u64) -> Option<String> {
        if self.log.is_some() || !self.growth.is_direct() {
            let what = "the mapping of files is private; use the medium `pmem` or `emulated`";
            return Some(what.to_owned());
        }
        if self.read_only {
            let what = "the pool is open read-only, in a private copy; open it without `read_only`";
            return Some(what.to_owned());
        }
        let is_lines = bytes > 0 && at.is_multiple_of(LINE) && bytes.is_multiple_of(LINE);
        let superblock = self.header.get();
        let mut extents = superblock.extents.as_slice().iter();
        let is_inside = at
            .checked_add(bytes)
            .is_some_and(|end| extents.any(|extent| extent.at <= at && end <= extent.end()));
        (!is_lines || !is_inside).then(|| {
            format!("{bytes} bytes at {at} are not whole lines of 64 bytes in one extent; name such a range")
        })
    }
}

impl Window {
    /// The first byte. It and [`Window::bytes`] behind it are mapped and writable while the window lives.
    ///
    /// Rust must not make a reference of it, nor store through it but by atomics: the pool reads these bytes
    /// by atomics at any time.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.pool.region().pointer(self.at, self.bytes).as_ptr()
    }

    /// Bytes of the window.
    #[must_use]
    pub fn len(&self) -> usize {
        // They are mapped, so they fit.
        self.bytes as usize
    }

    /// Never: a window has at least one line.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its first byte in the pool.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Its pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.pool.growth.windows().remove(self.at, self.bytes);
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("at", &self.at)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Devices are used by any thread.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Window>();
};

/// The ranges of all windows of a pool, as offset and bytes.
#[derive(Default)]
pub(crate) struct Windows(Mutex<Vec<(u64, u64)>>);

impl Windows {
    fn add(&self, at: u64, bytes: u64) {
        lock(&self.0).push((at, bytes));
    }

    fn remove(&self, at: u64, bytes: u64) {
        let mut ranges = lock(&self.0);
        if let Some(place) = ranges.iter().position(|&range| range == (at, bytes)) {
            ranges.swap_remove(place);
        }
    }

    /// Takes the room of a range away, while no window begins.
    ///
    /// # Panics
    /// If a window lies in the range: its owner was told not to give room back.
    pub(crate) fn beside<T>(&self, at: u64, bytes: u64, take: impl FnOnce() -> T) -> T {
        let ranges = lock(&self.0);
        for &(from, length) in ranges.iter() {
            let is_apart = at + bytes <= from || from + length <= at;
            assert!(
                is_apart,
                "{bytes} bytes at {at} are given back under a window of {length} at {from}"
            );
        }
        take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::superblock::DATA_AT;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU64, Ordering};

    fn pool() -> (Arc<Pool>, u64) {
        let pool = Pool::heap(1 << 18, 0, [0; 8]);
        let at = pool.allocate(100, 1 << 14, 4096).unwrap().at;
        (pool, at)
    }

    #[test]
    fn what_a_device_writes_is_read_and_flushed_by_the_pool() {
        let (pool, at) = pool();
        let window = pool.window(at + 4096, 8192).unwrap();
        assert_eq!((window.at(), window.len()), (at + 4096, 8192));
        let last = window.address().wrapping_add(8184).cast::<u64>();
        // SAFETY: the last word of the window, aligned, and accessed by atomics only.
        unsafe { AtomicU64::from_ptr(last) }.store(7, Ordering::Relaxed);
        assert_eq!(pool.region().load_word(at + 4096 + 8184), 7);
        let mut lane = pool.lane();
        let flushed = lane.flush_range(window.at(), window.len() as u64);
        let ordered = lane.fence(flushed);
        assert!(pool.wait(ordered.lsn()).is_ok());
    }

    #[test]
    fn a_window_outlives_every_other_handle_of_its_pool() {
        let (pool, at) = pool();
        let window = pool.window(at, 4096).unwrap();
        let weak = Arc::downgrade(&pool);
        drop(pool);
        assert_eq!(window.pool().region().load_word(at), 0);
        drop(window);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn only_whole_lines_of_one_extent_have_a_window() {
        let (pool, at) = pool();
        let end = at + (1 << 14);
        for (from, bytes) in [
            (at, 0),
            (at, 32),
            (at + 8, 64),
            (at, (1 << 14) + 64),
            (end, 64),
            (at - 64, 64),
            (DATA_AT - 4096, 64),
            (u64::MAX - 63, 64),
            (at, u64::MAX - 63),
        ] {
            let refused = pool.window(from, bytes);
            assert!(
                matches!(refused, Err(Error::NoWindow { .. })),
                "{from} {bytes} {refused:?}"
            );
        }
        assert!(pool.window(end - 64, 64).is_ok());
    }

    #[test]
    fn room_under_a_window_is_never_taken_away() {
        let windows = Windows::default();
        windows.add(8192, 4096);
        windows.add(8192, 4096);
        for free in [(4096, 4096), (12_288, 4096), (0, 8192)] {
            assert!(windows.beside(free.0, free.1, || true));
        }
        let refused = |at, bytes| {
            catch_unwind(AssertUnwindSafe(|| windows.beside(at, bytes, || ()))).is_err()
        };
        assert!(refused(8192, 4096) && refused(4096, 8192) && refused(0, 1 << 20));
        windows.remove(8192, 4096);
        assert!(refused(8192, 4096), "the other window is still there");
        windows.remove(8192, 4096);
        assert!(!refused(8192, 4096));
    }
}
