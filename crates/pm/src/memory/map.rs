//! Address space for a pool: reserved once, filled in as the image grows.
//!
//! Invariants:
//! - Opening the pool reserves the whole range (inaccessible, at no cost). So growth never moves a byte, and
//!   an address that was valid stays valid until the pool is dropped.
//! - The image is mapped over the front of the reservation, without gaps.
//! - Only bytes that the medium has room for are mapped. The file is allocated first: otherwise a later
//!   access could find the disk full, which is a signal and not an error.
//! - A mapped page is replaced only by a page with the same bytes, and only while no thread stores to it.

use super::huge::HUGE_PAGE;
use super::region::Backing;
use crate::pool::superblock::PAGE;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// How the image's bytes are shared with the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Stores reach the page cache, or a device's memory (tmpfs, devdax).
    Shared,
    /// Stores reach persistent memory, and metadata is durable before a page can be written (fsdax).
    Sync,
    /// Stores stay in this process; the kernel never writes them back (`file` medium, and every view).
    Private,
}

impl Sharing {
    fn flags(self) -> MapFlags {
        match self {
            Sharing::Shared => MapFlags::SHARED,
            Sharing::Sync => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            Sharing::Private => MapFlags::PRIVATE | MapFlags::NORESERVE,
        }
    }
}

/// Address space reserved for one pool.
pub(crate) struct Reservation {
    /// The whole mapping, to unmap it.
    whole: NonNull<c_void>,
    whole_bytes: usize,
    /// First byte at the wanted alignment, inside `whole`.
    base: NonNull<u8>,
    /// From `base` to the end of `whole`.
    bytes: u64,
}

// SAFETY: the range belongs to this value alone, and is accessed through the region's atomics only.
unsafe impl Send for Reservation {}
// SAFETY: as for `Send`; `map` changes only pages that no thread accesses yet, and `give_back` replaces pages
// only by the same bytes while no thread stores to them (their contracts).
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `wanted` bytes, or as much as the system allows, at least `needed`. `align` is a power of
    /// two.
    pub(crate) fn new(needed: u64, wanted: u64, align: u64) -> Result<Reservation, Errno> {
        assert!(align.is_power_of_two() && align >= PAGE);
        let mut bytes = wanted
            .max(needed)
            .checked_next_multiple_of(PAGE)
            .ok_or(Errno::NOMEM)?;
        loop {
            match Self::reserve(bytes, align) {
                Err(Errno::NOMEM) if bytes > needed => {
                    bytes = (bytes / 2 / PAGE * PAGE).max(needed)
                }
                other => return other,
            }
        }
    }

    fn reserve(bytes: u64, align: u64) -> Result<Reservation, Errno> {
        let whole_bytes = bytes
            .checked_add(align)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is asked for, so no existing mapping is touched.
        let raw = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole_bytes, ProtFlags::empty(), flags)
        }?;
        let whole = NonNull::new(raw).ok_or(Errno::NOMEM)?;
        let skip =
            (whole.as_ptr() as usize).next_multiple_of(align as usize) - whole.as_ptr() as usize;
        // SAFETY: `skip < align`, and the mapping is `align` bytes longer than `bytes`.
        let base = unsafe { whole.cast::<u8>().add(skip) };
        Ok(Reservation {
            whole,
            whole_bytes,
            base,
            bytes,
        })
    }

    /// Bytes that can be mapped.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the base has this alignment.
    #[cfg(all(feature = "lab", not(miri)))]
    pub(crate) fn is_aligned(&self, align: u64) -> bool {
        (self.base.as_ptr() as u64).is_multiple_of(align)
    }

    /// Maps `from .. to` of the file at the same offsets of the reservation.
    ///
    /// # Safety
    /// No thread accesses `from ..` yet: the region's length is at most `from`. The file has these bytes.
    pub(crate) unsafe fn map(
        &self,
        file: BorrowedFd<'_>,
        sharing: Sharing,
        from: u64,
        to: u64,
    ) -> Result<(), Errno> {
        assert!(
            from.is_multiple_of(PAGE) && to.is_multiple_of(PAGE) && from < to && to <= self.bytes
        );
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let at = self.address(from);
        let bytes = (to - from) as usize;
        // SAFETY: MAP_FIXED replaces pages of our own reservation only (bounds asserted), which no thread
        // accesses yet (caller).
        unsafe {
            rustix::mm::mmap(
                at,
                bytes,
                protection,
                sharing.flags() | MapFlags::FIXED,
                file,
                from,
            )
        }?;
        if sharing != Sharing::Sync {
            // Kernels and file systems without huge pages refuse, and ordinary pages serve as well.
            // SAFETY: the pages were just mapped; the advice changes how they are backed, not what they hold.
            let _refused = unsafe { rustix::mm::madvise(at, bytes, Advice::LinuxHugepage) };
        }
        Ok(())
    }

    /// Makes the first `bytes`, where nothing was mapped, usable as private zeros.
    pub(crate) fn fill_with_zeros(&self, bytes: u64) -> Result<(), Errno> {
        assert!(bytes <= self.bytes);
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: inside our own reservation; allowing access to its pages invalidates no reference.
        unsafe { rustix::mm::mprotect(self.address(0), bytes as usize, access) }
    }

    /// Makes `from .. to`, where nothing was mapped, usable as private zeros, in huge pages where possible. A
    /// private mapping of the file would hold the same zeros, but the first store to each page would read it
    /// into the page cache and copy it.
    pub(crate) fn add_zeros(&self, from: u64, to: u64) -> Result<(), Errno> {
        assert!(from.is_multiple_of(PAGE) && from <= to && to <= self.bytes);
        let (at, bytes) = (self.address(from), (to - from) as usize);
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: inside our own reservation; allowing access to its pages invalidates no reference.
        unsafe { rustix::mm::mprotect(at, bytes, access) }?;
        // SAFETY: as above; the advice changes how pages are backed, not what they hold.
        let _refused = unsafe { rustix::mm::madvise(at, bytes, Advice::LinuxHugepage) };
        Ok(())
    }

    /// Frees the memory of `from .. to` and shows the file's own pages in its place, privately as before.
    /// `mapped`: the whole range is already a private mapping of the file, of which stores made copies.
    ///
    /// # Errors
    /// The system's error; nothing has changed then.
    ///
    /// # Safety
    /// The file has the same bytes as memory. No thread stores to the range during the call. Loads are
    /// allowed: the system changes mappings under a lock that a page fault takes, too, so each load finds one
    /// mapping or the other, with the same bytes.
    pub(crate) unsafe fn give_back(
        &self,
        file: BorrowedFd<'_>,
        from: u64,
        to: u64,
        mapped: bool,
    ) -> Result<(), Errno> {
        assert!(
            from.is_multiple_of(PAGE) && to.is_multiple_of(PAGE) && from < to && to <= self.bytes
        );
        let (at, bytes) = (self.address(from), (to - from) as usize);
        if mapped {
            // SAFETY: inside our own reservation; loads then find the file's bytes, which are the same
            // (caller).
            return unsafe { rustix::mm::madvise(at, bytes, Advice::LinuxDontNeed) };
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = Sharing::Private.flags() | MapFlags::FIXED;
        // SAFETY: MAP_FIXED replaces pages of our own reservation only (bounds asserted), by the same bytes
        // (caller).
        let replaced = unsafe { rustix::mm::mmap(at, bytes, access, flags, file, from) };
        replaced.map(drop).inspect_err(|_| {
            let unchanged = MprotectFlags::READ | MprotectFlags::WRITE;
            // According to the manual a failed call may have removed the old mapping.
            // SAFETY: inside our own reservation; the pages have this protection already, if they are there.
            if unsafe { rustix::mm::mprotect(at, bytes, unchanged) }.is_err() {
                eprintln!("everdram: a failed mmap removed {bytes} bytes of a pool's memory, and the process cannot continue");
                std::process::abort();
            }
        })
    }

    /// Puts the bytes of `from .. to`, which must be a shared mapping of a file, into huge pages. A huge page
    /// that begins before `from` is made if it ends by `to`, so ranges that follow each other leave no gap.
    /// Loads and stores may go on meanwhile. tmpfs has huge pages since Linux 6.1, whatever its own setting
    /// says. Returns whether the whole range lies in such pages now; otherwise ordinary pages serve as well.
    pub(crate) fn collapse(&self, from: u64, to: u64) -> bool {
        let from = from / HUGE_PAGE * HUGE_PAGE;
        let to = to.min(self.bytes) / HUGE_PAGE * HUGE_PAGE;
        if from >= to {
            return false;
        }
        let (at, bytes) = (self.address(from), (to - from) as usize);
        // SAFETY: inside our reservation; the call changes how the pages are backed, not what they hold.
        // Unmapped ones give an error.
        unsafe { libc::madvise(at, bytes, libc::MADV_COLLAPSE) == 0 }
    }

    /// Makes the pages of `from .. to`, which must be mapped, present and writable ahead of their use.
    pub(crate) fn populate(&self, from: u64, to: u64) -> Result<(), Errno> {
        let from = from / PAGE * PAGE;
        let to = to.next_multiple_of(PAGE).min(self.bytes);
        if from >= to {
            return Ok(());
        }
        let at = self.address(from);
        // SAFETY: inside our reservation; populating writes no byte. Unmapped pages give an error.
        unsafe { rustix::mm::madvise(at, (to - from) as usize, Advice::LinuxPopulateWrite) }
    }

    /// Makes the page at `at` present to be read. Where the file has become too short, that is an error here,
    /// and would be a signal for a load.
    pub(crate) fn touch(&self, at: u64) -> Result<(), Errno> {
        assert!(at.is_multiple_of(PAGE) && at < self.bytes);
        // SAFETY: inside our reservation; populating for reads changes no byte.
        unsafe { rustix::mm::madvise(self.address(at), PAGE as usize, Advice::LinuxPopulateRead) }
    }

    fn address(&self, at: u64) -> *mut c_void {
        assert!(at <= self.bytes);
        // SAFETY: inside (or one past) the reservation.
        unsafe { self.base.as_ptr().add(at as usize) }.cast()
    }
}

// SAFETY: `base` is aligned to at least a page; the reservation lives until drop, and the pool raises the
// region's length only over bytes that `map` mapped readable and writable.
unsafe impl Backing for Reservation {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
}

// SAFETY: `Reservation` keeps these promises for as long as any owner of the `Arc` lives.
unsafe impl Backing for Arc<Reservation> {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and every access goes through a region that owns us.
        let unmapped = unsafe { rustix::mm::munmap(self.whole.as_ptr(), self.whole_bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Whether a file accepts a synchronous shared mapping; only DAX file systems on persistent memory do.
pub(crate) fn takes_map_sync(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = Sharing::Sync.flags();
    // SAFETY: no address is asked for, so no existing mapping is touched.
    let raw = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            PAGE as usize,
            ProtFlags::READ,
            flags,
            file,
            0,
        )
    }?;
    // SAFETY: just mapped, and nothing else uses it.
    unsafe { rustix::mm::munmap(raw, PAGE as usize) }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::memory::huge::huge_within;
    use crate::memory::region::Region;
    use rustix::fd::AsFd;

    fn file(bytes: u64) -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        file
    }

    fn region(reservation: &Arc<Reservation>, bytes: u64) -> Region {
        Region::new(Box::new(Arc::clone(reservation)), bytes, None)
    }

    #[test]
    fn more_than_there_is_becomes_what_there_is() {
        let reservation = Reservation::new(PAGE, 1 << 60, 2 << 20).unwrap();
        assert!(reservation.bytes() >= 1 << 30 && reservation.bytes() < 1 << 60);
        assert!(
            Reservation::new(1 << 60, 1 << 60, 2 << 20).is_err(),
            "what is needed cannot be had"
        );
    }

    #[test]
    fn growth_keeps_addresses_and_bytes() {
        let file = file(8 * PAGE);
        let reservation = Arc::new(Reservation::new(PAGE, 1 << 30, 2 << 20).unwrap());
        // SAFETY: no region yet; the file has eight pages.
        unsafe { reservation.map(file.as_fd(), Sharing::Shared, 0, PAGE) }.unwrap();
        let region = region(&reservation, PAGE);
        region.store_word(PAGE - 8, 11);
        // SAFETY: the region ends at the first page; the file has eight.
        unsafe { reservation.map(file.as_fd(), Sharing::Shared, PAGE, 8 * PAGE) }.unwrap();
        region.set_len(8 * PAGE);
        reservation.populate(0, 8 * PAGE).unwrap();
        region.store_word(8 * PAGE - 8, 12);
        assert_eq!(
            (region.load_word(PAGE - 8), region.load_word(8 * PAGE - 8)),
            (11, 12)
        );
        assert_eq!(region.load_word(PAGE), 0);
    }

    /// Where the kernel has huge pages to give: a machine may have none free.
    #[test]
    fn huge_pages_hold_what_was_there_and_have_no_gaps() {
        const BYTES: u64 = 3 * HUGE_PAGE;
        let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
            eprintln!("skipped: no /dev/shm");
            return;
        };
        file.set_len(BYTES).unwrap();
        let reservation = Arc::new(Reservation::new(BYTES, BYTES, HUGE_PAGE).unwrap());
        // SAFETY: no region yet; the file has so many bytes.
        unsafe { reservation.map(file.as_fd(), Sharing::Shared, 0, BYTES) }.unwrap();
        let region = region(&reservation, BYTES);
        let places = [0, HUGE_PAGE - 8, HUGE_PAGE + PAGE, BYTES - 8];
        for at in places {
            region.store_word(at, at + 1);
        }
        assert!(!reservation.collapse(0, HUGE_PAGE - PAGE), "no whole page");
        let base = reservation.base().as_ptr() as u64;
        let huge = || {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            huge_within(&smaps, base, base + BYTES)
        };
        // A range that ends within a page leaves it to the next one.
        let middle = HUGE_PAGE + PAGE;
        for (from, to, expected) in [(0, middle, HUGE_PAGE), (middle, BYTES, BYTES)] {
            if !reservation.collapse(from, to) {
                eprintln!("skipped: the kernel gives no huge pages");
                return;
            }
            assert_eq!(huge(), expected);
        }
        for at in places {
            assert_eq!(region.load_word(at), at + 1);
        }
    }

    #[test]
    fn a_page_behind_the_end_of_the_file_is_an_error() {
        let file = file(2 * PAGE);
        let reservation = Reservation::new(2 * PAGE, 2 * PAGE, PAGE).unwrap();
        // SAFETY: no region at all; the file has two pages.
        unsafe { reservation.map(file.as_fd(), Sharing::Private, 0, 2 * PAGE) }.unwrap();
        reservation.touch(PAGE).unwrap();
        file.set_len(PAGE).unwrap();
        reservation.touch(0).unwrap();
        assert_eq!(reservation.touch(PAGE), Err(Errno::FAULT));
    }

    #[test]
    fn zeros_are_added_behind_what_is_mapped() {
        let file = file(PAGE);
        let reservation = Arc::new(Reservation::new(PAGE, 1 << 30, 2 << 20).unwrap());
        // SAFETY: no region yet; the file has a page.
        unsafe { reservation.map(file.as_fd(), Sharing::Private, 0, PAGE) }.unwrap();
        let region = region(&reservation, PAGE);
        region.store_word(PAGE - 8, 11);
        reservation.add_zeros(PAGE, 1025 * PAGE).unwrap();
        region.set_len(1025 * PAGE);
        assert_eq!(region.load_word(1025 * PAGE - 8), 0);
        region.store_word(PAGE, 12);
        assert_eq!(
            (region.load_word(PAGE - 8), region.load_word(PAGE)),
            (11, 12)
        );
    }

    #[test]
    fn private_stores_stay_private_and_shared_ones_do_not() {
        use std::os::unix::fs::FileExt;
        for (sharing, reaches) in [(Sharing::Private, 0), (Sharing::Shared, 5)] {
            let file = file(PAGE);
            let reservation = Arc::new(Reservation::new(PAGE, PAGE, PAGE).unwrap());
            // SAFETY: no region yet; the file has a page.
            unsafe { reservation.map(file.as_fd(), sharing, 0, PAGE) }.unwrap();
            let region = region(&reservation, PAGE);
            region.store_word(64, 5);
            let mut found = [0; 8];
            file.read_exact_at(&mut found, 64).unwrap();
            assert_eq!(u64::from_le_bytes(found), reaches, "{sharing:?}");
            assert_eq!(region.load_word(64), 5);
        }
    }
}
