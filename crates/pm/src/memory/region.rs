//! Bounds-checked access to a pool's mapped bytes.
//!
//! Invariants:
//! - The bytes are accessed word by word through atomics only (or by the line-wide instructions of `cpu`,
//!   which never tear a word). So a reader that races with a writer reads old or new words, without undefined
//!   behaviour. The reader copies them and verifies the checksum of the copy.
//! - A device, or a library that plays one, writes and reads bytes too, but only inside a [`crate::Window`].
//!   It keeps no word whole: whoever reads there verifies a copy, as after any race.
//! - No reference into the mapping ever leaves this file. A pointer leaves it for windows alone.
//! - The address range is reserved once, up to the pool's maximum; growth maps more of it and only then
//!   raises `len`, so an offset that was valid stays valid, at the same address.
//! - An access outside `len` is a bug of the caller and panics: offsets that come from the pool's bytes are
//!   checked with [`Region::contains`] first.

use super::cpu;
use super::cpu::{FlushKind, LINE};
use super::delay::Delay;
use super::words;
#[cfg(feature = "lab")]
use crate::lab::TapRef;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A pool's bytes, by offset.
pub struct Region {
    /// Start of the reserved range; 4096-aligned, valid for `len` bytes for as long as `_backing` lives.
    base: NonNull<u8>,
    /// Mapped bytes; only grows; a multiple of 64.
    len: AtomicU64,
    /// Frees or unmaps the bytes on drop.
    _backing: Box<dyn Backing>,
    /// Latency to add to reads (`emulated` only).
    delay: Option<Delay>,
    /// The lab's tap, which records events here.
    #[cfg(feature = "lab")]
    tap: Option<TapRef>,
    /// Whether this is plain memory of the crash lab, which needs no flushes.
    #[cfg(feature = "lab")]
    simulated: bool,
}

/// Keeps the bytes behind a [`Region`] alive; unmaps or frees them when dropped.
///
/// # Safety
/// `base` is 4096-aligned and stays valid for reads and writes of the region's `len` bytes until the backing
/// is dropped. Only the region accesses them, and devices inside of a [`crate::Window`].
pub(crate) unsafe trait Backing: Send + Sync {
    /// First byte.
    fn base(&self) -> NonNull<u8>;

    /// Zeroes the bytes from `from` on, where the backing is longer than its region.
    #[cfg(feature = "lab")]
    fn blank_behind(&self, _from: u64) {}
}

// SAFETY: every access to the bytes behind `base` goes through atomics or word-preserving instructions; what
// a device does in a window, it does past the rules of Rust, as another process does to shared memory.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// A region over a backing whose first `len` bytes are mapped.
    pub(crate) fn new(backing: Box<dyn Backing>, len: u64, delay: Option<Delay>) -> Region {
        assert!(len.is_multiple_of(LINE));
        Region {
            base: backing.base(),
            len: AtomicU64::new(len),
            _backing: backing,
            delay,
            #[cfg(feature = "lab")]
            tap: None,
            #[cfg(feature = "lab")]
            simulated: false,
        }
    }

    /// The first `len` bytes of memory of the crash lab.
    #[cfg(feature = "lab")]
    pub(crate) fn simulated(heap: Heap, len: u64, tap: Option<TapRef>) -> Region {
        Region {
            tap,
            simulated: true,
            ..Region::new(Box::new(heap), len, None)
        }
    }

    /// Whether this is memory of the crash lab: flushes matter only to its tap.
    #[cfg(feature = "lab")]
    pub(crate) fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// The lab's tap.
    #[cfg(feature = "lab")]
    pub(crate) fn tap(&self) -> Option<&TapRef> {
        self.tap.as_ref()
    }

    /// Tells the tap of a read.
    #[inline(always)]
    fn report_load(&self, _at: u64, _bytes: u64) {
        #[cfg(feature = "lab")]
        if let Some(tap) = &self.tap {
            self.tell_of_load(tap, _at, _bytes);
        }
    }

    /// Apart, so that what a read needs beside it stays small where there is no tap.
    #[cfg(feature = "lab")]
    #[cold]
    #[inline(never)]
    fn tell_of_load(&self, tap: &TapRef, at: u64, bytes: u64) {
        tap.load(self, at, bytes);
    }

    /// Writes bytes of an image without reporting a store: a crash decided these bytes, not a program.
    ///
    /// # Panics
    /// If the range is not mapped or not aligned.
    #[cfg(feature = "lab")]
    pub fn imprint(&self, at: u64, bytes: &[u8]) {
        self.store_unreported(at, bytes);
    }

    /// Every byte, without reporting a read: the copy that a killed process leaves is not a read of the
    /// program.
    #[cfg(feature = "lab")]
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len() as usize];
        self.copy_out(0, &mut bytes);
        bytes
    }

    /// Tells the tap of a store before it happens.
    #[inline(always)]
    fn report_store(&self, _at: u64, _bytes: u64) {
        #[cfg(feature = "lab")]
        if let Some(tap) = &self.tap {
            self.tell_of_store(tap, _at, _bytes);
        }
    }

    #[cfg(feature = "lab")]
    #[cold]
    #[inline(never)]
    fn tell_of_store(&self, tap: &TapRef, at: u64, bytes: u64) {
        tap.before_store(self, at, bytes);
    }

    /// Zeroes the bytes from `from` to the end of the backing.
    #[cfg(feature = "lab")]
    pub(crate) fn blank_behind(&self, from: u64) {
        self._backing.blank_behind(from);
    }

    /// Mapped bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Whether nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `at .. at + bytes` is mapped.
    #[inline]
    #[must_use]
    pub fn contains(&self, at: u64, bytes: u64) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.len())
    }

    /// Raises the mapped length, after the backing mapped the bytes.
    pub(crate) fn set_len(&self, len: u64) {
        assert!(len.is_multiple_of(LINE) && len >= self.len());
        self.len.store(len, Ordering::Release);
    }

    /// Where the bytes of a window lie.
    ///
    /// # Panics
    /// If the range is not mapped.
    pub(crate) fn pointer(&self, at: u64, bytes: u64) -> NonNull<u8> {
        assert!(self.contains(at, bytes));
        // SAFETY: in bounds of one live allocation (asserted; field invariant of `base`).
        unsafe { self.base.add(at as usize) }
    }

    #[inline]
    fn words(&self, at: u64, bytes: u64) -> &[AtomicU64] {
        if !(at | bytes).is_multiple_of(8) || !self.contains(at, bytes) {
            refuse(at, bytes);
        }
        // SAFETY: in bounds of one live allocation (asserted; field invariant of `base`).
        let first = unsafe { self.base.as_ptr().add(at as usize) }.cast::<AtomicU64>();
        // SAFETY: aligned (base is page-aligned, `at` a multiple of 8), in bounds, initialised (mapped
        // memory), only accessed through atomics, alive as long as `self`.
        unsafe { std::slice::from_raw_parts(first, (bytes / 8) as usize) }
    }

    /// The word at `at` (a multiple of 8), with acquire ordering.
    #[inline(always)]
    #[must_use]
    pub fn load_word(&self, at: u64) -> u64 {
        self.report_load(at, 8);
        u64::from_le(self.words(at, 8)[0].load(Ordering::Acquire))
    }

    /// Copies bytes out. `at` and the length are multiples of 8.
    ///
    /// # Panics
    /// If the range is not mapped or not aligned.
    #[inline(always)]
    pub fn load(&self, at: u64, into: &mut [u8]) {
        self.report_load(at, into.len() as u64);
        self.copy_out(at, into);
        if let Some(delay) = &self.delay {
            delay.read(into.len() as u64);
        }
    }

    /// As [`Region::load`], appending `bytes` bytes to `into`. Large values go where the caller wants them,
    /// without zeroing that memory first.
    ///
    /// # Panics
    /// As [`Region::load`].
    pub fn load_behind(&self, at: u64, bytes: u64, into: &mut Vec<u8>) {
        self.report_load(at, bytes);
        words::copy_behind(self.words(at, bytes), into);
        if let Some(delay) = &self.delay {
            delay.read(bytes);
        }
    }

    /// As [`Region::load`], for the redo log. A copy that stands for a cache's write-back is not a read of
    /// the program, so the tap does not record it.
    #[inline(always)]
    pub(crate) fn copy_out(&self, at: u64, into: &mut [u8]) {
        words::copy_out(self.words(at, into.len() as u64), into);
    }

    /// Prefetches `LINES` lines from the one of `at` on: a hint, ignored outside the pool.
    #[inline]
    pub fn prefetch<const LINES: usize>(&self, at: u64) {
        if !self.contains(at, 8) {
            return;
        }
        let first = self.base.as_ptr().wrapping_add(at as usize);
        // The last lines may lie outside the mapping: a hint needs no valid address.
        cpu::prefetch_lines::<LINES>(first);
    }

    /// As [`Region::prefetch`], for the lines of all these words.
    pub fn prefetch_each(&self, words: &[u64]) {
        let (base, len) = (self.base.as_ptr(), self.len());
        for &at in words.iter().filter(|&&at| at < len) {
            cpu::prefetch_line(base.wrapping_add(at as usize));
        }
    }

    /// As [`Region::prefetch`], for one line that is to be written.
    #[inline]
    pub fn prefetch_to_write(&self, at: u64) {
        if self.contains(at, 8) {
            cpu::prefetch_line_to_write(self.base.as_ptr().wrapping_add(at as usize));
        }
    }

    /// As [`Region::prefetch_each`], for lines that are to be written.
    pub fn prefetch_each_to_write(&self, words: &[u64]) {
        let (base, len) = (self.base.as_ptr(), self.len());
        for &at in words.iter().filter(|&&at| at < len) {
            cpu::prefetch_line_to_write(base.wrapping_add(at as usize));
        }
    }

    /// Fetches the lines of all these words, which the caller is about to read word by word and write. Their
    /// latencies overlap, also in the delay model.
    pub fn fetch_each_to_write(&self, words: &[u64]) {
        self.prefetch_each_to_write(words);
        if let Some(delay) = &self.delay {
            delay.read_each(words.len() as u64);
        }
    }

    #[inline]
    pub(crate) fn store(&self, at: u64, bytes: &[u8]) {
        self.report_store(at, bytes.len() as u64);
        self.store_unreported(at, bytes);
    }

    #[inline]
    fn store_unreported(&self, at: u64, bytes: &[u8]) {
        words::copy_in(self.words(at, bytes.len() as u64), bytes);
    }

    #[inline]
    pub(crate) fn store_word(&self, at: u64, word: u64) {
        self.report_store(at, 8);
        self.words(at, 8)[0].store(word.to_le(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn exchange_word(&self, at: u64, old: u64, new: u64) -> Result<(), u64> {
        self.report_store(at, 8);
        self.words(at, 8)[0]
            .compare_exchange(
                old.to_le(),
                new.to_le(),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .map(|_| ())
            .map_err(u64::from_le)
    }

    /// Starts writing back these lines.
    #[inline]
    pub(crate) fn flush(&self, kind: FlushKind, lines: Range<u64>) {
        let words = self.words(lines.start, lines.end - lines.start);
        for line in words.chunks_exact((LINE / 8) as usize) {
            // SAFETY: the line is inside the live mapping (`words` asserted the range).
            unsafe { cpu::flush_line(kind, line.as_ptr().cast()) };
        }
    }

    /// Writes whole lines past the cache, or through it where the processor has no streaming stores; `at` and
    /// the length are multiples of 64.
    #[inline]
    #[cfg_attr(all(target_arch = "x86_64", not(miri)), allow(unused_variables))]
    pub(crate) fn stream(&self, kind: FlushKind, at: u64, lines: &[u8]) {
        assert!(at.is_multiple_of(LINE) && (lines.len() as u64).is_multiple_of(LINE));
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let words = self.words(at, lines.len() as u64);
            let into = words.as_ptr().cast::<u8>().cast_mut();
            // SAFETY: `into` has as many mapped bytes at a line boundary (asserted above), accessed through
            // atomics only (region invariant); `AtomicU64` allows writes through a shared reference.
            unsafe { cpu::stream_lines(into, lines.as_chunks::<64>().0) };
        }
        #[cfg(any(not(target_arch = "x86_64"), miri))]
        {
            self.store(at, lines);
            self.flush(kind, at..at + lines.len() as u64);
        }
    }

    /// Zeroes whole pages, durably on persistent memory.
    pub(crate) fn clear(&self, kind: FlushKind, at: u64, bytes: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        assert!(bytes.is_multiple_of(ZEROS.len() as u64));
        for page in (at..at + bytes).step_by(ZEROS.len()) {
            self.stream(kind, page, &ZEROS);
        }
        cpu::fence();
    }
}

/// An access outside the pool, or not to whole words.
#[cold]
#[inline(never)]
fn refuse(at: u64, bytes: u64) -> ! {
    panic!("access outside the pool, or unaligned: {bytes} bytes at {at}")
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// Zeroed heap memory, for tests and Miri.
pub(crate) struct Heap {
    base: NonNull<u8>,
    layout: std::alloc::Layout,
    /// Whether the memory is kept for the next copy of an image.
    #[cfg(feature = "lab")]
    kept: bool,
}

#[cfg(feature = "lab")]
thread_local! {
    /// Memory of an earlier copy of an image. To free it and allocate it again page by page would take longer
    /// than the recovery of a small pool.
    static SPARE: std::cell::RefCell<Option<Heap>> = const { std::cell::RefCell::new(None) };
}

// SAFETY: the memory is owned, and accessed through the region's atomics only.
unsafe impl Send for Heap {}
// SAFETY: as for `Send`.
unsafe impl Sync for Heap {}

impl Heap {
    pub(crate) fn new(bytes: usize) -> Heap {
        assert!(bytes > 0);
        let Ok(layout) = std::alloc::Layout::from_size_align(bytes, 4096) else {
            panic!("{bytes} bytes do not fit the address space")
        };
        // SAFETY: the layout has a non-zero size (asserted).
        let raw = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(raw) else {
            std::alloc::handle_alloc_error(layout)
        };
        Heap {
            base,
            layout,
            #[cfg(feature = "lab")]
            kept: false,
        }
    }

    /// Memory of `bytes` that begins with `image`; the rest is zero.
    #[cfg(feature = "lab")]
    pub(crate) fn copy_of(image: &[u8], bytes: usize) -> Heap {
        assert!(image.len() <= bytes);
        #[cfg(not(miri))]
        crate::lab::this_thread_simulates();
        let spare = SPARE.take().filter(|heap| heap.layout.size() == bytes);
        let mut heap = spare.unwrap_or_else(|| Heap::new(bytes));
        heap.kept = true;
        // SAFETY: the allocation has `bytes` initialised bytes, and no other owner.
        let memory = unsafe { std::slice::from_raw_parts_mut(heap.base.as_ptr(), bytes) };
        let (front, behind) = memory.split_at_mut(image.len());
        front.copy_from_slice(image);
        behind.fill(0);
        heap
    }
}

// SAFETY: allocated with 4096-byte alignment, freed only on drop.
unsafe impl Backing for Heap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[cfg(feature = "lab")]
    fn blank_behind(&self, from: u64) {
        let words = (self.layout.size() as u64).saturating_sub(from) / 8;
        for word in 0..words {
            // SAFETY: in bounds of the allocation: `from + word * 8` is below its size.
            let at = unsafe { self.base.as_ptr().add((from + word * 8) as usize) };
            // SAFETY: aligned (`from` is a whole page), in bounds, and accessed through atomics only.
            unsafe { AtomicU64::from_ptr(at.cast()) }.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        #[cfg(feature = "lab")]
        if std::mem::take(&mut self.kept) {
            let (base, layout, kept) = (self.base, self.layout, false);
            let mut spare = Some(Heap { base, layout, kept });
            // This frees the heap kept before; the end of the thread frees the last one.
            let _ = SPARE.try_with(|slot| spare = slot.replace(spare.take()));
            return;
        }
        // SAFETY: allocated in `new` with this very layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn region(bytes: usize) -> Region {
        Region::new(Box::new(Heap::new(bytes)), bytes as u64, None)
    }

    #[test]
    fn bytes_come_back_in_their_order() {
        let region = region(4096);
        let bytes: Vec<u8> = (0..64).collect();
        region.store(128, &bytes);
        let mut found = [0; 64];
        region.load(128, &mut found);
        assert_eq!(found[..], bytes);
        assert_eq!(
            region.load_word(128),
            0x0706_0504_0302_0100,
            "little-endian"
        );
        region.store_word(136, 5);
        assert_eq!(region.exchange_word(136, 4, 6), Err(5));
        assert_eq!(region.exchange_word(136, 5, 6), Ok(()));
        assert_eq!(region.load_word(136), 6);
    }

    /// Every length that the copy treats differently: blocks of 64 bytes, of 16, and a last word.
    #[test]
    fn bytes_are_appended_behind_what_is_there() {
        let region = region(4096);
        let bytes: Vec<u8> = (0..256).map(|byte| byte as u8).collect();
        region.store(8, &bytes);
        for length in (0..=bytes.len()).step_by(8) {
            let mut found = b"odd".to_vec();
            region.load_behind(8, length as u64, &mut found);
            assert_eq!(found, [b"odd", &bytes[..length]].concat());
        }
    }

    #[test]
    fn nothing_outside_is_contained() {
        let region = region(4096);
        for (at, bytes) in [
            (4096, 8),
            (4089, 8),
            (u64::MAX, 1),
            (u64::MAX - 7, 8),
            (0, u64::MAX),
            (8, 4096),
        ] {
            assert!(!region.contains(at, bytes), "{at} {bytes}");
        }
        assert!(region.contains(0, 4096) && region.contains(4096, 0));
    }

    #[test]
    fn access_outside_or_unaligned_is_a_panic_not_undefined() {
        let region = region(4096);
        let refused = |access: &dyn Fn()| catch_unwind(AssertUnwindSafe(access)).is_err();
        assert!(refused(&|| assert_ne!(region.load_word(4096), 1)));
        assert!(refused(&|| assert_ne!(region.load_word(4), 1)));
        assert!(refused(&|| assert_ne!(region.load_word(u64::MAX - 7), 1)));
        assert!(refused(&|| region.load(4088, &mut [0; 16])));
        assert!(refused(&|| region.store(0, &[0; 7])));
        assert!(refused(&|| region.stream(FlushKind::Nothing, 32, &[0; 64])));
        assert!(refused(&|| region.flush(FlushKind::Nothing, 4096..4160)));
    }

    /// Readers race with a writer: each word is one that was written, never a mixture.
    #[test]
    fn words_never_tear() {
        let region = region(4096);
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    region.store(64, &[round as u8; 64]);
                }
            });
            for _ in 0..rounds {
                let mut seen = [0; 64];
                region.load(64, &mut seen);
                for word in seen.as_chunks::<8>().0 {
                    assert_eq!(*word, [word[0]; 8]);
                }
            }
        });
    }
}
