//! Bounds-checked access to a pool's mapped bytes.
//!
//! Invariants:
//! - The bytes are accessed word by word through atomics only (or by the line-wide instructions of `cpu`,
//!   which never tear a word). So a reader that races with a writer reads old or new words, and never
//!   commits undefined behaviour; what it read is judged by a checksum on the private copy.
//! - No reference into the mapping ever leaves this file.
//! - The address range is reserved once, up to the pool's maximum; growth maps more of it and only then
//!   raises `len`, so an offset that was valid stays valid, at the same address.
//! - An access outside `len` is a bug of the caller and panics: offsets that come from the pool's bytes are
//!   checked with [`Region::contains`] first.

use crate::cpu::{self, FlushKind, LINE};
use crate::delay::Delay;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A pool's bytes, by offset.
pub struct Region {
    /// Start of the reserved range; 4096-aligned, valid for `len` bytes for as long as `_backing` lives.
    base: NonNull<u8>,
    /// Mapped bytes; only grows; a multiple of 64.
    len: AtomicU64,
    /// What is freed or unmapped in the end.
    _backing: Box<dyn Backing>,
    /// Latency to add to reads (`emulated` only).
    delay: Option<Delay>,
}

/// Keeps the bytes behind a [`Region`] alive; unmaps or frees them when dropped.
///
/// # Safety
/// `base` is 4096-aligned and stays valid for reads and writes of the region's `len` bytes, never accessed
/// but through the region, until the backing is dropped.
pub(crate) unsafe trait Backing: Send + Sync {
    /// First byte.
    fn base(&self) -> NonNull<u8>;
}

// SAFETY: every access to the bytes behind `base` goes through atomics or word-preserving instructions.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// A region over a backing whose first `len` bytes are mapped.
    pub(crate) fn new(backing: Box<dyn Backing>, len: u64, delay: Option<Delay>) -> Region {
        assert!(len % LINE == 0);
        Region { base: backing.base(), len: AtomicU64::new(len), _backing: backing, delay }
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
        assert!(len % LINE == 0 && len >= self.len());
        self.len.store(len, Ordering::Release);
    }

    #[inline]
    fn words(&self, at: u64, bytes: u64) -> &[AtomicU64] {
        assert!(at % 8 == 0 && bytes % 8 == 0, "unaligned access at {at}, {bytes} bytes");
        assert!(self.contains(at, bytes), "access outside the pool at {at}, {bytes} bytes");
        // SAFETY: in bounds of one live allocation (asserted; field invariant of `base`).
        let first = unsafe { self.base.as_ptr().add(at as usize) }.cast::<AtomicU64>();
        // SAFETY: aligned (base is page-aligned, `at` a multiple of 8), in bounds, initialised (mapped
        // memory), only accessed through atomics, alive as long as `self`.
        unsafe { std::slice::from_raw_parts(first, (bytes / 8) as usize) }
    }

    /// The word at `at` (a multiple of 8), with acquire ordering.
    #[inline]
    #[must_use]
    pub fn load_word(&self, at: u64) -> u64 {
        u64::from_le(self.words(at, 8)[0].load(Ordering::Acquire))
    }

    /// Copies bytes out. `at` and the length are multiples of 8.
    ///
    /// # Panics
    /// If the range is not mapped or not aligned.
    #[inline]
    pub fn load(&self, at: u64, into: &mut [u8]) {
        for (word, chunk) in self.words(at, into.len() as u64).iter().zip(into.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&u64::from_le(word.load(Ordering::Relaxed)).to_le_bytes());
        }
        if let Some(delay) = &self.delay {
            delay.read(into.len() as u64);
        }
    }

    #[inline]
    pub(crate) fn store(&self, at: u64, bytes: &[u8]) {
        for (word, chunk) in self.words(at, bytes.len() as u64).iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*chunk).to_le(), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn store_word(&self, at: u64, word: u64) {
        self.words(at, 8)[0].store(word.to_le(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn exchange_word(&self, at: u64, old: u64, new: u64) -> Result<(), u64> {
        self.words(at, 8)[0]
            .compare_exchange(old.to_le(), new.to_le(), Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
            .map_err(u64::from_le)
    }

    /// Starts writing back every line that `at .. at + bytes` touches, the last one included (V7).
    #[inline]
    pub(crate) fn flush(&self, kind: FlushKind, at: u64, bytes: u64) {
        let first = at / LINE * LINE;
        let end = (at + bytes).next_multiple_of(LINE);
        let words = self.words(first, end - first);
        for line in words.chunks_exact((LINE / 8) as usize) {
            // SAFETY: the line is inside the live mapping (`words` asserted the range).
            unsafe { cpu::flush_line(kind, line.as_ptr().cast()) };
        }
    }

    /// Writes whole lines past the cache; `at` and the length are multiples of 64.
    #[inline]
    pub(crate) fn stream(&self, at: u64, lines: &[u8]) {
        assert!(at % LINE == 0 && lines.len() as u64 % LINE == 0);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let words = self.words(at, lines.len() as u64);
            for (into, from) in words.chunks_exact((LINE / 8) as usize).zip(lines.as_chunks::<64>().0) {
                // SAFETY: 64 mapped bytes at a line boundary (asserted above), accessed through atomics
                // only (region invariant); `AtomicU64` allows writes through a shared reference.
                unsafe { cpu::stream_line(into.as_ptr().cast::<u8>().cast_mut(), from) };
            }
        }
        #[cfg(any(not(target_arch = "x86_64"), miri))]
        self.store(at, lines);
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Zeroed heap memory, for tests and Miri.
pub(crate) struct Heap {
    base: NonNull<u8>,
    layout: std::alloc::Layout,
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
        let Some(base) = NonNull::new(raw) else { std::alloc::handle_alloc_error(layout) };
        Heap { base, layout }
    }
}

// SAFETY: allocated with 4096-byte alignment, freed only on drop.
unsafe impl Backing for Heap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}
