//! Memory and instructions for bare loops that measure the limits of the machine.
//!
//! The loops are in the benchmark, without `unsafe`. This file offers memory of each kind as an ordinary
//! slice, and the persistence instructions on the target of a reference. A [`Memory`] has one owner: no other
//! mapping of it exists and its file has no name, so a slice of it is as safe as one of the heap.

use crate::blocks::delay::DiskDelay;
use crate::error::Error;
use crate::memory::cpu;
use crate::memory::cpu::FlushKind;
use crate::memory::delay::Delay;
use crate::memory::huge::HUGE_PAGE;
use crate::memory::map::{Reservation, Sharing};
use crate::memory::preset::{DiskPreset, Preset};
use crate::memory::region::Backing;
use rustix::fd::AsFd;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::Advice;
use std::path::Path;
use std::sync::Arc;

/// Alignment of every memory, so that huge pages fit.
const ALIGN: u64 = HUGE_PAGE;

/// A cache line of any memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u8; 64]);

/// Page size to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB (or the processor's smallest page).
    Small,
    /// 2 MiB, if the kernel has them.
    Huge,
}

/// Zeroed memory of one kind, owned alone.
pub struct Memory {
    reservation: Reservation,
    bytes: usize,
}

impl Memory {
    /// Memory of this process. Its pages appear at the first access, or by [`Memory::populate`].
    ///
    /// # Errors
    /// [`Error::Io`] if the system has too little.
    pub fn anonymous(bytes: u64, pages: Pages) -> Result<Memory, Error> {
        let failed = |errno| Error::io(Path::new("memory"), "reserving memory to measure")(errno);
        let memory = Memory::reserve(bytes).map_err(failed)?;
        memory
            .reservation
            .fill_with_zeros(memory.bytes as u64)
            .map_err(failed)?;
        let advice = match pages {
            Pages::Small => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        };
        let at = memory.reservation.base().as_ptr().cast();
        // A kernel without huge pages refuses, and then gives small ones in either case.
        // SAFETY: the range is our own mapping; the advice changes how it is backed, not what it holds.
        let _refused = unsafe { rustix::mm::madvise(at, memory.bytes, advice) };
        Ok(memory)
    }

    /// A nameless file in `dir`, mapped as a pool of the `emulated` medium is.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the file system has too little room, [`Error::Io`] if it has no nameless files.
    pub fn file(dir: &Path, bytes: u64) -> Result<Memory, Error> {
        let failed = |doing| Error::io(dir, doing);
        let memory = Memory::reserve(bytes).map_err(failed("reserving address space"))?;
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)
            .map_err(failed("making a file without a name"))?;
        let length = memory.bytes as u64;
        // Allocate before mapping, so that no access finds the medium full.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length)
            .map_err(failed("allocating a file to measure"))?;
        // SAFETY: no thread accesses the reservation yet, and the file has `length` bytes.
        unsafe {
            memory
                .reservation
                .map(file.as_fd(), Sharing::Shared, 0, length)
        }
        .map_err(failed("mapping a file to measure"))?;
        let _huge = memory.reservation.collapse(0, length);
        Ok(memory)
    }

    fn reserve(bytes: u64) -> Result<Memory, Errno> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGN);
        let bytes = bytes.ok_or(Errno::NOMEM)?;
        Ok(Memory {
            reservation: Reservation::new(bytes, bytes, ALIGN)?,
            bytes: usize::try_from(bytes).map_err(|_| Errno::NOMEM)?,
        })
    }

    /// Makes the pages of `from .. to` (bytes) present and writable.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel refuses.
    pub fn populate(&self, from: usize, to: usize) -> Result<(), Error> {
        assert!(from <= to && to <= self.bytes);
        self.reservation
            .populate(from as u64, to as u64)
            .map_err(Error::io(Path::new("memory"), "populating memory"))
    }

    /// Bytes: at least what was asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Always `false`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All of it, as bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `bytes` readable bytes are mapped at the base for as long as `self` lives, zeroed by the
        // kernel; writers hold `self` exclusively.
        unsafe { std::slice::from_raw_parts(self.reservation.base().as_ptr(), self.bytes) }
    }

    /// All of it, as bytes to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, writable, and `self` is held exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.reservation.base().as_ptr(), self.bytes) }
    }

    /// All of it, as words.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        let base = self.reservation.base().cast::<u64>();
        // SAFETY: as for `bytes`; the base is aligned to `ALIGN`, and every pattern of bits is a word.
        unsafe { std::slice::from_raw_parts(base.as_ptr(), self.bytes / 8) }
    }

    /// All of it, as words to write.
    pub fn words_mut(&mut self) -> &mut [u64] {
        let base = self.reservation.base().cast::<u64>();
        // SAFETY: as for `words`, writable, and `self` is held exclusively.
        unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), self.bytes / 8) }
    }

    /// All of it, as cache lines to write.
    pub fn lines_mut(&mut self) -> &mut [Line] {
        let base = self.reservation.base().cast::<Line>();
        // SAFETY: as for `bytes_mut`; the base is aligned to `ALIGN`, and every pattern of bits is a line.
        unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), self.bytes / size_of::<Line>()) }
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// What slower media add to a loop, as they do to a pool and its data file.
#[derive(Clone, Debug, Default)]
pub struct Slowness {
    memory: Option<Delay>,
    disk: Option<Arc<DiskDelay>>,
}

impl Slowness {
    /// Of memory and of a disk, each by its preset; `None`: as fast as they are.
    #[must_use]
    pub fn new(memory: Option<&'static Preset>, disk: Option<&'static DiskPreset>) -> Slowness {
        Slowness {
            memory: memory.map(Delay::new),
            disk: disk.map(|disk| Arc::new(DiskDelay::new(disk))),
        }
    }

    /// Lines are copied out of memory.
    #[inline]
    pub fn load(&self, bytes: u64) {
        if let Some(memory) = &self.memory {
            memory.read(bytes);
        }
    }

    /// As [`stream`] and [`fence`].
    #[inline]
    pub fn stream_and_fence(&self, kind: FlushKind, into: &mut [Line], from: &[[u8; 64]]) {
        stream(kind, into, from);
        if let Some(memory) = &self.memory {
            memory.flush(from.len() as u64);
        }
        fence();
        if let Some(memory) = &self.memory {
            memory.fence();
        }
    }

    /// A call that writes so many bytes to a file.
    #[inline]
    pub fn write<T>(&self, bytes: u64, call: impl FnOnce() -> T) -> T {
        let Some(disk) = &self.disk else {
            return call();
        };
        let begun = disk.begin();
        let result = call();
        disk.end_write(begun, bytes);
        result
    }

    /// A call that reads so many bytes of a file.
    #[inline]
    pub fn read<T>(&self, bytes: u64, call: impl FnOnce() -> T) -> T {
        let Some(disk) = &self.disk else {
            return call();
        };
        let begun = disk.begin();
        let result = call();
        disk.end_read(begun, bytes);
        result
    }
}

/// Starts writing back every line that `what` touches.
#[inline]
pub fn flush<T: ?Sized>(kind: FlushKind, what: &T) {
    let start = std::ptr::from_ref(what).cast::<u8>();
    let end = start.wrapping_add(size_of_val(what));
    let mut line = start.map_addr(|at| at & !(cpu::LINE as usize - 1));
    while line < end {
        // SAFETY: the line holds a byte of a live reference (the first line may begin before it, in the same
        // page).
        unsafe { cpu::flush_line(kind, line) };
        line = line.wrapping_add(cpu::LINE as usize);
    }
}

/// Orders every flush and streaming store of this thread before what follows.
#[inline]
pub fn fence() {
    cpu::fence();
}

/// Writes whole lines past the cache, as many as both slices have. Processors that cannot do so store and
/// flush them.
#[inline]
#[cfg_attr(all(target_arch = "x86_64", not(miri)), allow(unused_variables))]
pub fn stream(kind: FlushKind, into: &mut [Line], from: &[[u8; 64]]) {
    let lines = into.len().min(from.len());
    let (into, from) = (&mut into[..lines], &from[..lines]);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: `into` is aligned to 64, as long as `from`, and held exclusively, so no other thread can see it
    // torn.
    unsafe {
        cpu::stream_lines(into.as_mut_ptr().cast(), from);
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    {
        for (into, from) in into.iter_mut().zip(from) {
            into.0 = *from;
        }
        flush(kind, into);
    }
}

/// Prefetches the line in which `what` begins.
#[inline]
pub fn prefetch<T>(what: &T) {
    cpu::prefetch_line(std::ptr::from_ref(what).cast());
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::memory::preset::{DISK_PRESETS, PRESETS};
    use std::time::{Duration, Instant};

    #[test]
    fn every_memory_is_zero_and_takes_what_is_written() {
        let dir = tempfile::tempdir().unwrap();
        for mut memory in [
            Memory::anonymous(1, Pages::Small).unwrap(),
            Memory::anonymous(3 << 20, Pages::Huge).unwrap(),
            Memory::file(dir.path(), 100_000).unwrap(),
        ] {
            memory.populate(0, memory.len()).unwrap();
            assert!(memory.len().is_multiple_of(ALIGN as usize));
            assert!(memory.words().iter().all(|word| *word == 0));
            let kind = FlushKind::detect();
            stream(kind, &mut memory.lines_mut()[1..2], &[[9; 64]; 2]);
            let last = memory.len() - 1;
            memory.bytes_mut()[last] = 7;
            flush(kind, &memory.bytes()[60..last]);
            prefetch(&memory.bytes()[last]);
            fence();
            assert_eq!(memory.bytes()[63..129], {
                let mut wanted = [9; 66];
                wanted[0] = 0;
                wanted[65] = 0;
                wanted
            });
            let last = memory.words_mut().last().copied().map(u64::to_le_bytes);
            assert_eq!(last, Some([0, 0, 0, 0, 0, 0, 0, 7]));
        }
    }

    #[test]
    fn slow_media_take_longer() {
        let slow = Slowness::new(Some(&PRESETS[0]), Some(&DISK_PRESETS[0]));
        let mut memory = Memory::anonymous(1, Pages::Small).unwrap();
        let begun = Instant::now();
        slow.load(64);
        slow.stream_and_fence(FlushKind::detect(), memory.lines_mut(), &[[9; 64]; 2]);
        let one = slow.write(4096, || 1) + slow.read(4096, || 2);
        let least = PRESETS[0].read_ns + DISK_PRESETS[0].write_ns + DISK_PRESETS[0].read_ns;
        assert!(begun.elapsed() >= Duration::from_nanos(least) && one == 3);
        assert_eq!(
            memory.bytes()[..192]
                .iter()
                .filter(|byte| **byte == 9)
                .count(),
            128
        );
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error_with_its_name() {
        let error = Memory::file(Path::new("/nowhere/at/all"), 1).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
