//! Volatile memory for random look-ups: one range of addresses, on huge pages, that never moves.
//!
//! A look-up in a large table misses the caches. On small pages it misses the TLB too, which in a virtual
//! machine costs even more. So memory beyond the reach of the TLB with small pages lies on pages of 2 MiB,
//! where the kernel has them.
//!
//! Invariants:
//! - All addresses it may ever use are reserved at the start, at no cost. [`Dram::grow_to`] makes more of
//!   them usable, and none becomes unusable. A line's number is therefore as good as a pointer.
//! - The bytes are zero at first and accessed as atomic words only, so no order of calls causes undefined
//!   behaviour.
//! - An access to a line that is not usable is a bug of the caller and panics.

use super::cpu;
#[cfg(not(any(feature = "lab", miri)))]
use super::map::Reservation as Memory;
use super::region::Backing;
#[cfg(miri)]
use super::region::Heap as Memory;
use super::words;
#[cfg(all(feature = "lab", not(miri)))]
use crate::lab::Spare as Memory;
use parking_lot::Mutex;
use rustix::io::Errno;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::arch::x86_64::__m128i;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Size of a huge page, and the step of growth.
const HUGE_PAGE: u64 = 2 << 20;
/// Memory up to this size lies on small pages and grows in small steps.
const SMALL: u64 = 2 * HUGE_PAGE;
const SMALL_STEP: u64 = 128 << 10;
/// Words of a line.
const WORDS: usize = 8;

/// The system has too little memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory for {bytes} bytes: {source}; give the process more")]
pub struct DramRefused {
    /// Total bytes that were asked for.
    pub bytes: u64,
    /// The system's answer.
    pub source: Errno,
}

/// A cache line of [`Dram`]: eight words.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct DramLine([AtomicU64; WORDS]);

const _: () = assert!(size_of::<DramLine>() == 64);

impl Deref for DramLine {
    type Target = [AtomicU64; WORDS];

    #[inline]
    fn deref(&self) -> &[AtomicU64; WORDS] {
        &self.0
    }
}

impl DramLine {
    /// All words, each as by a load with acquire ordering.
    #[inline]
    #[must_use]
    pub fn load(&self) -> [u64; WORDS] {
        self.0.each_ref().map(|word| word.load(Ordering::Acquire))
    }

    /// The words equal to `wanted` in the bits of `mask`, each as by a load with acquire ordering.
    #[inline]
    #[must_use]
    pub fn equal(&self, mask: u64, wanted: u64) -> Matches {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
            // The compiler cannot join atomic loads, so the loads are written out. SAFETY: SSE2 is part of
            // x86-64. The 64 bytes are those of a live reference and aligned to 64. Writers store whole
            // aligned words, and a load of two of them tears neither; loads are in order on this processor,
            // and the compiler moves none across this.
            unsafe {
                std::arch::asm!(
                    "movdqa {a}, [{line}]",
                    "movdqa {b}, [{line} + 16]",
                    "movdqa {c}, [{line} + 32]",
                    "movdqa {d}, [{line} + 48]",
                    line = in(reg) self,
                    a = out(xmm_reg) a, b = out(xmm_reg) b, c = out(xmm_reg) c, d = out(xmm_reg) d,
                    options(nostack, preserves_flags, readonly)
                );
            }
            // SAFETY: SSE2 is part of x86-64.
            Matches(unsafe { equal_words([a, b, c, d], mask, wanted) })
        }
        #[cfg(any(miri, not(target_arch = "x86_64")))]
        {
            let mut matches = 0;
            for (at, word) in self.load().into_iter().enumerate() {
                matches |= u32::from(word & mask == wanted) << (2 * at);
            }
            Matches(matches)
        }
    }
}

/// The words, two in each vector, equal to `wanted` in the bits of `mask`: the bits of a [`Matches`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
#[target_feature(enable = "sse2")]
fn equal_words([a, b, c, d]: [__m128i; 4], mask: u64, wanted: u64) -> u32 {
    use std::arch::x86_64::{
        _mm_and_si128, _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32,
        _mm_set1_epi64x,
    };
    let mask = _mm_set1_epi64x(mask.cast_signed());
    let wanted = _mm_set1_epi64x(wanted.cast_signed());
    let equal = |words| _mm_cmpeq_epi32(_mm_and_si128(words, mask), wanted);
    // A byte for each half of a word, in order.
    let halves = _mm_packs_epi16(
        _mm_packs_epi32(equal(a), equal(b)),
        _mm_packs_epi32(equal(c), equal(d)),
    );
    let halves = _mm_movemask_epi8(halves).cast_unsigned();
    // A word matches if both halves do; keep the bit of the lower one.
    halves & halves >> 1 & 0x5555
}

/// Numbers of the words of a line that matched, in order. Word `n` has bit `2 * n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matches(u32);

impl Matches {
    /// The lowest number.
    #[inline]
    #[must_use]
    pub fn first(self) -> Option<usize> {
        (self.0 != 0).then_some(self.0.trailing_zeros() as usize / 2)
    }
}

impl Iterator for Matches {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let first = self.first()?;
        self.0 &= self.0 - 1;
        Some(first)
    }
}

/// See the module text.
pub struct Dram {
    /// The first line; aligned to a huge page, where the machine has them.
    base: NonNull<DramLine>,
    /// Lines that can be accessed; only grows.
    lines: AtomicUsize,
    /// Bytes of reserved addresses.
    bytes_max: u64,
    /// Held while it grows.
    growing: Mutex<()>,
    /// Unmapped, or freed, on drop.
    #[cfg_attr(miri, expect(dead_code))]
    memory: Memory,
}

// SAFETY: the memory belongs to this value alone, and every access to it is an atomic one.
unsafe impl Send for Dram {}
// SAFETY: as for `Send`.
unsafe impl Sync for Dram {}

impl Dram {
    /// Reserves addresses for at most `bytes_max` bytes, by default for the memory of the machine; for fewer
    /// where the system limits address space. None of it is usable yet.
    ///
    /// # Errors
    /// If the system refuses even a small range.
    pub fn reserve(bytes_max: Option<u64>) -> Result<Dram, DramRefused> {
        let wanted = bytes_max.unwrap_or_else(machine_bytes);
        let refused = |source| DramRefused {
            bytes: wanted,
            source,
        };
        let wanted = wanted.max(1).checked_next_multiple_of(HUGE_PAGE);
        let wanted = wanted.ok_or(refused(Errno::NOMEM))?;
        let (memory, bytes_max) = reserve(wanted).map_err(refused)?;
        Ok(Dram {
            base: memory.base().cast(),
            lines: AtomicUsize::new(0),
            bytes_max,
            growing: Mutex::new(()),
            memory,
        })
    }

    /// Makes at least the first `bytes` usable. New bytes are zero, and become memory at the first access.
    ///
    /// # Errors
    /// If `bytes` exceeds the reserved addresses, or the system refuses. Nothing has changed then.
    pub fn grow_to(&self, bytes: u64) -> Result<(), DramRefused> {
        let _growing = self.growing.lock();
        if bytes <= self.bytes() {
            return Ok(());
        }
        let refused = |source| DramRefused { bytes, source };
        let small = bytes <= SMALL;
        let step = if small { SMALL_STEP } else { HUGE_PAGE };
        let usable = bytes.checked_next_multiple_of(step);
        let usable = usable.filter(|usable| *usable <= self.bytes_max);
        let usable = usable.ok_or(refused(Errno::NOMEM))?;
        assert!(
            usable >= bytes && usable > self.bytes(),
            "the usable memory would shrink"
        );
        #[cfg(not(miri))]
        self.memory.fill_with_zeros(usable).map_err(refused)?;
        if !small && self.bytes() <= SMALL {
            // The kernel moves the memory that lies on small pages when it likes.
            self.advise_huge_pages();
        }
        self.lines
            .store(usable as usize / size_of::<DramLine>(), Ordering::Release);
        Ok(())
    }

    #[cfg_attr(miri, allow(clippy::unused_self))]
    fn advise_huge_pages(&self) {
        #[cfg(not(miri))]
        {
            let (base, bytes) = (self.base.as_ptr().cast(), self.bytes_max as usize);
            let advice = rustix::mm::Advice::LinuxHugepage;
            // A kernel without huge pages refuses, and small ones work as well.
            // SAFETY: the addresses are ours; the advice changes how they are backed, not what they hold.
            let _refused = unsafe { rustix::mm::madvise(base, bytes, advice) };
        }
    }

    /// Usable bytes: the most that this holds of the machine's memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.lines.load(Ordering::Acquire) * size_of::<DramLine>()) as u64
    }

    /// A line by its number.
    ///
    /// # Panics
    /// If it is not usable.
    #[inline]
    #[must_use]
    pub fn line(&self, number: usize) -> &DramLine {
        if number >= self.lines.load(Ordering::Acquire) {
            no_line(number);
        }
        // SAFETY: inside the usable part of the one live mapping (checked above), whose size fits an `isize`.
        let line = unsafe { self.base.add(number) };
        // SAFETY: aligned (the base is, and the type's size is a multiple of its alignment), initialised (by
        // zeros of the kernel or the allocator), only accessed through atomics, and alive as long as `self`.
        unsafe { line.as_ref() }
    }

    /// The words of `at .. at + bytes`; both are multiples of 8.
    ///
    /// # Panics
    /// If they are not, or not all of it is usable.
    #[inline]
    #[must_use]
    pub fn words(&self, at: u64, bytes: u64) -> &[AtomicU64] {
        let end = at.checked_add(bytes).filter(|end| *end <= self.bytes());
        if !(at | bytes).is_multiple_of(8) || end.is_none() {
            no_line((at / 64) as usize);
        }
        // SAFETY: inside the usable part of the one live mapping (checked above), whose size fits an `isize`.
        let first = unsafe {
            self.base
                .as_ptr()
                .cast::<AtomicU64>()
                .add((at / 8) as usize)
        };
        // SAFETY: aligned (the base is, and so is `at`), in bounds, initialised (by zeros of the kernel or
        // the allocator), only accessed through atomics, and alive as long as `self`.
        unsafe { std::slice::from_raw_parts(first, (bytes / 8) as usize) }
    }

    /// Copies `into.len()` bytes out; `at` and the length are multiples of 8. Each word is read as by a
    /// relaxed load.
    ///
    /// # Panics
    /// As [`Dram::words`].
    #[inline]
    pub fn load(&self, at: u64, into: &mut [u8]) {
        words::copy_out(self.words(at, into.len() as u64), into);
    }

    /// As [`Dram::load`], of `bytes` bytes to the end of `into`.
    ///
    /// # Panics
    /// As [`Dram::words`].
    #[inline]
    pub fn load_behind(&self, at: u64, bytes: u64, into: &mut Vec<u8>) {
        words::copy_behind(self.words(at, bytes), into);
    }

    /// Stores bytes, word by word with relaxed ordering; `at` and the length are multiples of 8.
    ///
    /// # Panics
    /// As [`Dram::words`].
    #[inline]
    pub fn store(&self, at: u64, bytes: &[u8]) {
        words::copy_in(self.words(at, bytes.len() as u64), bytes);
    }

    /// Starts loading a line into the caches. Any number is allowed.
    #[inline]
    pub fn prefetch(&self, number: usize) {
        cpu::prefetch_line(self.base.as_ptr().wrapping_add(number).cast());
    }

    /// As [`Dram::prefetch`], of several lines that are to be written.
    #[inline]
    pub fn prefetch_to_write(&self, number: usize, lines: usize) {
        for line in 0..lines {
            let line = self.base.as_ptr().wrapping_add(number.wrapping_add(line));
            cpu::prefetch_line_to_write(line.cast());
        }
    }
}

impl std::fmt::Debug for Dram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dram")
            .field("bytes", &self.bytes())
            .field("bytes_max", &self.bytes_max)
            .finish_non_exhaustive()
    }
}

/// Separate, so that a look-up does not carry this code.
#[cold]
fn no_line(number: usize) -> ! {
    panic!("line {number} is not usable")
}

/// Memory of the machine.
fn machine_bytes() -> u64 {
    #[cfg(not(miri))]
    {
        let info = rustix::system::sysinfo();
        (info.totalram as u64).saturating_mul(u64::from(info.mem_unit).max(1))
    }
    #[cfg(miri)]
    {
        8 << 20
    }
}

#[cfg(not(miri))]
fn reserve(bytes: u64) -> Result<(Memory, u64), Errno> {
    let memory = Memory::new(HUGE_PAGE, bytes, HUGE_PAGE)?;
    let bytes = memory.bytes() / HUGE_PAGE * HUGE_PAGE;
    Ok((memory, bytes))
}

#[cfg(miri)]
fn reserve(bytes: u64) -> Result<(Memory, u64), Errno> {
    let bytes_max = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
    Ok((Memory::new(bytes_max), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn there_is(dram: &Dram, number: usize) -> bool {
        catch_unwind(AssertUnwindSafe(|| dram.line(number).load())).is_ok()
    }

    #[test]
    fn it_is_zero_and_grows_in_place() {
        let dram = Dram::reserve(Some(7 << 20)).unwrap();
        assert_eq!(dram.bytes(), 0);
        assert!(!there_is(&dram, 0));
        dram.grow_to(1).unwrap();
        assert_eq!(dram.bytes(), SMALL_STEP);
        let last = SMALL_STEP as usize / 64 - 1;
        assert_eq!(dram.line(last).load(), [0; 8]);
        assert!(!there_is(&dram, last + 1));

        let line = dram.line(last);
        line[3].store(7, Ordering::Relaxed);
        dram.grow_to(SMALL + 1).unwrap();
        assert_eq!(dram.bytes(), 3 * HUGE_PAGE);
        assert_eq!(line.load(), [0, 0, 0, 7, 0, 0, 0, 0]);
        assert!(std::ptr::eq(line, dram.line(last)));
        assert_eq!(dram.line(3 * HUGE_PAGE as usize / 64 - 1).load(), [0; 8]);
        assert!(!there_is(&dram, 3 * HUGE_PAGE as usize / 64));
        dram.grow_to(5).unwrap();
        assert_eq!(dram.bytes(), 3 * HUGE_PAGE, "it never shrinks");
    }

    #[test]
    fn what_cannot_be_had_is_an_error_that_changes_nothing() {
        let dram = Dram::reserve(Some(1)).unwrap();
        dram.grow_to(100).unwrap();
        for bytes in [HUGE_PAGE + 1, SMALL + 1, u64::MAX] {
            let refused = dram.grow_to(bytes).unwrap_err();
            assert_eq!(refused.bytes, bytes);
            assert_eq!(dram.bytes(), SMALL_STEP);
        }
        assert!(Dram::reserve(Some(u64::MAX)).is_err());
    }

    #[test]
    #[cfg(not(miri))]
    fn without_a_size_it_has_addresses_for_the_whole_machine() {
        let dram = Dram::reserve(None).unwrap();
        assert!(dram.bytes_max >= machine_bytes() && machine_bytes() > 16 << 20);
    }

    #[test]
    fn words_that_match_are_found_in_order() {
        let line = DramLine::default();
        let matches = |mask, wanted| line.equal(mask, wanted).collect::<Vec<_>>();
        assert_eq!(matches(u64::MAX, 0), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(line.equal(0, 1).first(), None);
        for (at, word) in line.iter().enumerate() {
            word.store((at as u64 % 3) << 40 | 1 << at, Ordering::Relaxed);
        }
        assert_eq!(matches(3 << 40, 1 << 40), [1, 4, 7]);
        assert_eq!(matches(3 << 40, 2 << 40), [2, 5]);
        for at in 0..8 {
            // One half alone is not enough.
            assert_eq!(
                matches(u64::MAX, 1 << at),
                if at % 3 == 0 { vec![at] } else { vec![] }
            );
            assert_eq!(matches(0xff, 1 << at), [at]);
            assert_eq!(line.equal(0xff, 1 << at).first(), Some(at));
        }
        assert_eq!(matches(u64::MAX << 32, 0), [0, 3, 6]);
    }

    #[test]
    fn prefetching_is_harmless_anywhere() {
        let dram = Dram::reserve(Some(1)).unwrap();
        dram.grow_to(64).unwrap();
        for number in [0, 1 << 20, 1 << 57, usize::MAX] {
            dram.prefetch(number);
            dram.prefetch_to_write(number, 2);
        }
        assert_eq!(dram.line(0).load(), [0; 8]);
    }

    /// A search sees each word that is being stored as it was before or after the store.
    #[test]
    fn a_search_never_sees_a_torn_word() {
        let dram = Dram::reserve(Some(1)).unwrap();
        dram.grow_to(64).unwrap();
        let rounds = if cfg!(miri) { 100 } else { 100_000 };
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    let word = if round % 2 == 0 { u64::MAX } else { 0 };
                    dram.line(0)
                        .iter()
                        .for_each(|place| place.store(word, Ordering::Release));
                }
                done.store(1, Ordering::Release);
            });
            while done.load(Ordering::Acquire) == 0 {
                for torn in [u64::MAX << 32, u64::MAX >> 32] {
                    assert_eq!(dram.line(0).equal(u64::MAX, torn).first(), None);
                }
                std::thread::yield_now();
            }
        });
    }
}
