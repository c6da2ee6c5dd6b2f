//! Which pages of the image were stored to since they were last copied to the image file.
//!
//! One bit a page, in chunks that are allocated at their first use: a pool that may grow to terabytes costs
//! nothing before it does.
//!
//! Invariant: a bit is set with a read-modify-write after its stores, and cleared with one before the page is
//! copied. So the copy sees the store, or the bit is still set afterwards.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
const CHUNK_WORDS: u64 = 4096;
const CHUNK_PAGES: u64 = CHUNK_WORDS * 64;
/// 256 blocks of 512 chunks of 2^18 pages: 2^47 bytes, all that a process can map.
const BLOCK_CHUNKS: u64 = 512;
const BLOCKS: usize = 256;

type Chunk = Box<[AtomicU64]>;
type Block = Box<[OnceLock<Chunk>]>;

/// See the module text.
pub(super) struct DirtyPages {
    blocks: Box<[OnceLock<Block>]>,
}

impl Default for DirtyPages {
    fn default() -> DirtyPages {
        DirtyPages {
            blocks: (0..BLOCKS).map(|_| OnceLock::new()).collect(),
        }
    }
}

impl DirtyPages {
    /// Marks the pages that `at .. at + bytes` touches. A group of the log must have those bytes, and be
    /// appended before any thread can learn its LSN: see `checkpoint.rs`.
    #[inline]
    pub(super) fn mark(&self, at: u64, bytes: u64) {
        for page in at / PAGE..(at + bytes).div_ceil(PAGE) {
            self.word(page).fetch_or(1 << (page % 64), Ordering::AcqRel);
        }
    }

    #[inline]
    fn word(&self, page: u64) -> &AtomicU64 {
        let chunk = page / CHUNK_PAGES;
        let block = self.blocks[(chunk / BLOCK_CHUNKS) as usize]
            .get_or_init(|| (0..BLOCK_CHUNKS).map(|_| OnceLock::new()).collect());
        let words = block[(chunk % BLOCK_CHUNKS) as usize]
            .get_or_init(|| (0..CHUNK_WORDS).map(|_| AtomicU64::new(0)).collect());
        &words[(page % CHUNK_PAGES / 64) as usize]
    }

    /// Clears marks and passes each page to `take`, lowest first; stops at the first error.
    pub(super) fn drain<E>(&self, mut take: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        for (block_index, block) in (0..).zip(&self.blocks) {
            let Some(block) = block.get() else { continue };
            for (chunk_index, chunk) in (0..).zip(block) {
                let Some(words) = chunk.get() else { continue };
                let first = (block_index * BLOCK_CHUNKS + chunk_index) * CHUNK_PAGES;
                for (word_index, word) in (0..).zip(words) {
                    drain_word(word, first + word_index * 64, &mut take)?;
                }
            }
        }
        Ok(())
    }
}

#[inline]
fn drain_word<E>(
    word: &AtomicU64,
    first: u64,
    take: &mut impl FnMut(u64) -> Result<(), E>,
) -> Result<(), E> {
    if word.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    let mut bits = word.swap(0, Ordering::AcqRel);
    while bits != 0 {
        take(first + u64::from(bits.trailing_zeros()))?;
        bits &= bits - 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_over_each_marked_page_once_and_in_order() {
        let dirty = DirtyPages::default();
        dirty.mark(3 << 40, 1);
        dirty.mark(PAGE - 64, 128);
        dirty.mark(65 * PAGE, PAGE);
        let drained = || {
            let mut pages = Vec::new();
            let done: Result<(), ()> = dirty.drain(|page| {
                pages.push(page);
                Ok(())
            });
            assert_eq!(done, Ok(()));
            pages
        };
        assert_eq!(drained(), [0, 1, 65, (3 << 40) / PAGE]);
        assert_eq!(drained(), []);
    }
}
