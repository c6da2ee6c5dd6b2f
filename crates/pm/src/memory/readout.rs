//! A device mapped for reading only, to copy its bytes out.
//!
//! Invariant: the mapping is readable only, so even a bug cannot store to it. The kernel maps devdax devices
//! shared or not at all; that is why a view of one is a copy.

use crate::pool::header::Carrier;
use crate::pool::superblock::{Block, PAGE};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module text.
pub(crate) struct Readout {
    /// Page-aligned, readable for `bytes` bytes until drop.
    base: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value, and is only read, by atomics.
unsafe impl Send for Readout {}
// SAFETY: as for `Send`.
unsafe impl Sync for Readout {}

impl Readout {
    /// Maps the first `bytes` of a device, which has that many.
    pub(crate) fn new(device: BorrowedFd<'_>, bytes: u64) -> Result<Readout, Errno> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        let (anywhere, access) = (std::ptr::null_mut(), ProtFlags::READ);
        // SAFETY: no address is asked for, so no existing mapping is touched.
        let raw =
            unsafe { rustix::mm::mmap(anywhere, bytes, access, MapFlags::SHARED, device, 0) }?;
        let base = NonNull::new(raw).ok_or(Errno::NOMEM)?;
        Ok(Readout { base, bytes })
    }

    /// A copy of the page at `at`.
    ///
    /// If that page is not inside the mapping.
    /// If there is no whole page.
    pub(crate) fn page(&self, at: u64) -> Block {
        assert!(at.is_multiple_of(PAGE));
        assert!(
            at.checked_add(PAGE)
                .is_some_and(|end| end <= self.bytes as u64)
        );
        // SAFETY: inside the mapping (asserted).
        let first = unsafe { self.base.cast::<u8>().add(at as usize) }.cast::<AtomicU64>();
        // SAFETY: aligned (the base and `at` are multiples of a page), mapped for the whole page, and read
        // by atomic loads only, so that a process that ignores the lock causes no undefined behaviour.
        let words = unsafe { std::slice::from_raw_parts(first.as_ptr(), (PAGE / 8) as usize) };
        let mut page = [0; PAGE as usize];
        for (word, into) in words.iter().zip(page.as_chunks_mut::<8>().0) {
            *into = u64::from_le(word.load(Ordering::Relaxed)).to_le_bytes();
        }
        page
    }
}

impl Carrier for Readout {
    fn read(&self, at: u64) -> Result<Block, Errno> {
        Ok(self.page(at))
    }

    fn write(&self, _at: u64, _block: &Block) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }
}

impl Drop for Readout {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; no reference into it outlives a call.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
