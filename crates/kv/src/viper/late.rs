//! Pages whose marks are in the cache alone, on media where a flush costs more than a line.
//!
//! On files a flushed mark is a line in the redo log, and a page that the next checkpoint writes: twenty times the bytes of
//! a small record. So a session does not flush the marks it puts on replaced records there. A crash that loses one leaves
//! two records of which the newer wins, however many there are. Only one thing needs them: a record that was *removed*
//! is the tombstone of its elders, and before compaction drops it, their marks must be durable.
//!
//! Invariants:
//! - A page is noted after its mark was stored and before the key's lock is given back, a removal before its own mark is
//!   stored. So whoever finds a removed record, and takes the notes then, has the pages of all its elders.
//! - What was removed before the store was opened has no such elders: recovery makes the marks that it sets durable.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Words of a chunk, each for 64 pages.
const CHUNK: usize = if cfg!(miri) { 1 << 4 } else { 1 << 12 };

/// See the module text.
pub(super) struct LateMarks {
    page_bytes: u64,
    /// A bit for each page.
    chunks: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// Whether a record was removed since the notes were taken.
    removed: AtomicBool,
}

impl LateMarks {
    /// For a pool that has at most `bytes`.
    pub(super) fn new(page_bytes: u64, bytes: u64) -> LateMarks {
        let words = (bytes / page_bytes / 64) as usize + 1;
        LateMarks {
            page_bytes,
            chunks: (0..words.div_ceil(CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
            removed: AtomicBool::new(false),
        }
    }

    /// Notes the page of the mark word at `at`.
    #[inline]
    pub(super) fn note(&self, at: u64) {
        let page = at / self.page_bytes;
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        let chunk = self.chunks[word / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect());
        // Always a read-modify-write: either whoever takes the notes sees the mark, or the note stays for the next one.
        chunk[word % CHUNK].fetch_or(bit, Ordering::SeqCst);
    }

    /// Notes that a record is about to be removed.
    #[inline]
    pub(super) fn note_removal(&self) {
        // Mostly a load. Who finds it true, and is then not seen, has noted elders before: all of these calls are in one
        // order, so that they are taken.
        if !self.removed.load(Ordering::SeqCst) {
            self.removed.store(true, Ordering::SeqCst);
        }
    }

    /// Whether a record was removed since this was asked last.
    pub(super) fn take_removals(&self) -> bool {
        self.removed.swap(false, Ordering::SeqCst)
    }

    /// Takes the notes: offsets of pages.
    pub(super) fn take(&self, mut page_at: impl FnMut(u64)) {
        for (chunk, words) in (0..).zip(&self.chunks) {
            for (index, word) in (0..).zip(words.get().into_iter().flatten()) {
                if word.load(Ordering::SeqCst) == 0 {
                    continue;
                }
                let mut bits = word.swap(0, Ordering::SeqCst);
                while bits != 0 {
                    let first = (chunk * CHUNK as u64 + index) * 64;
                    page_at((first + u64::from(bits.trailing_zeros())) * self.page_bytes);
                    bits &= bits - 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_noted_page_is_taken_once() {
        let notes = LateMarks::new(512, 1 << 30);
        let far = (1 << 30) - 512;
        for at in [512 + 16, 512 + 40, 65 * 512 + 24, far + 16] {
            notes.note(at);
        }
        let taken = || {
            let mut pages = Vec::new();
            notes.take(|at| pages.push(at));
            pages
        };
        assert_eq!(taken(), [512, 65 * 512, far]);
        assert_eq!(taken(), []);
    }

    #[test]
    fn removals_are_told_once() {
        let notes = LateMarks::new(4096, 1 << 20);
        assert!(!notes.take_removals());
        notes.note_removal();
        assert_eq!([(); 2].map(|()| notes.take_removals()), [true, false]);
    }
}
