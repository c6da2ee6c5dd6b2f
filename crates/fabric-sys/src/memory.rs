//! Memory that the library, a device or a peer may read and write while Rust looks elsewhere.
//!
//! It is reached through raw pointers, so moving its owner invalidates nothing. Whoever hands out a piece
//! says who may touch it and until when.

use crate::Error;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A zeroed range of bytes that never moves.
pub(crate) struct Memory {
    pointer: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an owner of plain bytes; nothing in it belongs to a thread.
unsafe impl Send for Memory {}

impl Memory {
    /// `bytes` bytes (at least one), aligned to `align`, a power of two.
    pub(crate) fn new(bytes: usize, align: usize) -> Result<Memory, Error> {
        let layout =
            Layout::from_size_align(bytes.max(1), align).map_err(|_| Error::NoMemory { bytes })?;
        // SAFETY: the layout is not empty.
        let pointer = unsafe { alloc_zeroed(layout) };
        let pointer = NonNull::new(pointer).ok_or(Error::NoMemory { bytes })?;
        Ok(Memory { pointer, layout })
    }

    /// Bytes that were asked for, at least one.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    /// A pointer to `bytes` bytes at an offset.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "bytes {offset} and {bytes} more of {}",
            self.len()
        );
        self.pointer.as_ptr().wrapping_add(offset)
    }

    /// Copies bytes to an offset.
    ///
    /// # Safety
    ///
    /// Nobody else uses that range now.
    pub(crate) unsafe fn write(&mut self, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
        // SAFETY: `at` checked the range; a slice of another allocation does not overlap it; the caller says
        // the range is free.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// The bytes at an offset.
    ///
    /// # Safety
    ///
    /// Nobody writes that range while the slice lives.
    pub(crate) unsafe fn read(&self, offset: usize, bytes: usize) -> &[u8] {
        let from = self.at(offset, bytes);
        // SAFETY: `at` checked the range, which was zeroed at first; the caller says nobody writes it.
        unsafe { std::slice::from_raw_parts(from, bytes) }
    }

    /// Copies bytes that somebody may write meanwhile: each byte is old or new, and no order is promised.
    pub(crate) fn read_shared(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: `at` checked the range, which lives as long as `self`; Rust accesses it through atomics
        // only while peers may write.
        unsafe { copy_shared(from, into) };
    }
}

/// Copies bytes that somebody may write meanwhile, word by word where the source is aligned.
///
/// # Safety
///
/// The source is live for as many bytes, and Rust accesses it through atomics only meanwhile.
pub(crate) unsafe fn copy_shared(mut from: *mut u8, into: &mut [u8]) {
    let head = from.align_offset(8).min(into.len());
    let (head, rest) = into.split_at_mut(head);
    // SAFETY: the first bytes of the source, of which the caller says so.
    from = unsafe { copy_bytes(from, head) };
    let (words, tail) = rest.split_at_mut(rest.len() / 8 * 8);
    for word in words.chunks_exact_mut(8) {
        // SAFETY: eight bytes of the source, aligned by `align_offset`, and accessed through atomics only
        // (caller).
        let from_word = unsafe { AtomicU64::from_ptr(from.cast()) };
        word.copy_from_slice(&u64::from_le(from_word.load(Ordering::Relaxed)).to_le_bytes());
        from = from.wrapping_add(8);
    }
    // SAFETY: the last bytes of the source, of which the caller says so.
    unsafe { copy_bytes(from, tail) };
}

/// Copies byte by byte; returns the pointer behind.
///
/// # Safety
///
/// As for [`copy_shared`].
unsafe fn copy_bytes(mut from: *mut u8, into: &mut [u8]) -> *mut u8 {
    for byte in into {
        // SAFETY: a byte of the source, accessed through atomics only (caller).
        let from_byte = unsafe { AtomicU8::from_ptr(from) };
        *byte = from_byte.load(Ordering::Relaxed);
        from = from.wrapping_add(1);
    }
    from
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody else frees it.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_reads_agree_with_plain_ones_at_every_offset() {
        let mut memory = Memory::new(64, 64).unwrap();
        let bytes: Vec<u8> = (0..64).collect();
        // SAFETY: nobody else knows the memory.
        unsafe { memory.write(0, &bytes) };
        for at in 0..64 {
            for end in at..=64 {
                let mut copy = vec![0; end - at];
                memory.read_shared(at, &mut copy);
                assert_eq!(copy, bytes[at..end], "{at}..{end}");
            }
        }
    }
}
