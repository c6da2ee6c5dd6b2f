//! Pages whose marks are only in the cache, on media where a flush costs more than a line.
//!
//! On files a flushed mark costs a line in the redo log and a page in the next checkpoint: twenty times the
//! bytes of a small record. So sessions there do not flush the marks of replaced records. After a crash that
//! loses marks, recovery finds several records of a key, and the newest wins. One case needs the marks: a
//! record that was *removed* is the tombstone of its predecessors. Before compaction drops it, their marks
//! must be durable. So must they before a record is dropped that has left to the tier below, since a restart
//! serves what the pool has before it reads the log: it counts as removed here.
//!
//! Invariants:
//! - A session notes a page after it stored the mark and before it releases the key's lock. It notes a
//!   removal before it stores that mark. So a thread that finds a removed record, and takes the notes then,
//!   has the pages of all its predecessors.
//! - Taken notes stay *in flight* until their taker shows the fence that covers their marks. Another taker
//!   meanwhile gets those in flight as well, because they are not durable yet. Without such a fence they go
//!   back.
//! - A record removed before the store was opened has no such predecessors: recovery makes the marks that it
//!   sets durable.
//!
//! A thread that drops dead records, or lets a restart skip them, first makes the marks of their predecessors
//! durable. These are the last marks that each session lists ([`ListedMarks`]), and the pages noted here.

use super::Viper;
use super::block_table::State;
use super::session::ViperSession;
use crate::concurrency::seam::publishes;
use crate::error::Error;
use everdram_pm::lock::lock;
use everdram_pm::{Ordered, Written};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Words of a chunk, each for 64 pages.
const CHUNK: usize = if cfg!(miri) { 1 << 4 } else { 1 << 12 };

/// Marks a session may leave unfenced before it fences them itself.
const LISTED_MAX: usize = 64;

/// Offsets of the mark words that one session stored and left in the cache. Only that session adds to them;
/// compaction reads, flushes and fences them before it drops records that only those marks keep dead.
pub(super) struct ListedMarks {
    offsets: Box<[AtomicU64]>,
    len: AtomicUsize,
}

impl Default for ListedMarks {
    fn default() -> ListedMarks {
        ListedMarks {
            offsets: (0..LISTED_MAX).map(|_| AtomicU64::new(0)).collect(),
            len: AtomicUsize::new(0),
        }
    }
}

impl ListedMarks {
    /// Lists a mark, before it is stored. Returns whether the list is full; the caller then fences and clears
    /// it.
    pub(super) fn push(&self, at: u64) -> bool {
        let len = self.len.load(Ordering::Relaxed);
        assert!(len < LISTED_MAX, "a full list of marks was not fenced");
        self.offsets[len].store(at, Ordering::Relaxed);
        self.len.store(len + 1, Ordering::Release);
        len + 1 == LISTED_MAX
    }

    /// The offsets listed.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let len = self.len.load(Ordering::Acquire);
        assert!(len <= LISTED_MAX, "a session lists more marks than it can");
        let listed = self.offsets.iter().take(len);
        listed.map(|at| at.load(Ordering::Acquire))
    }

    /// Empties the list. The caller has fenced all its marks.
    pub(super) fn clear(&self) {
        self.len.store(0, Ordering::Release);
    }
}

/// See the module text.
pub(super) struct DeferredMarks {
    page_bytes: u64,
    /// A bit for each page.
    chunks: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// Whether a record was removed since the notes were last taken.
    removed: AtomicBool,
    in_flight: Mutex<InFlight>,
}

/// Taken notes whose marks are not fenced yet.
#[derive(Default)]
struct InFlight {
    next: u64,
    lots: Vec<Lot>,
}

struct Lot {
    number: u64,
    /// Offsets of pages.
    pages: Vec<u64>,
    removed: bool,
}

/// Notes that one thread took. Dropping them returns them, unless [`Taken::settle`] comes first.
pub(super) struct Taken<'a> {
    notes: &'a DeferredMarks,
    /// The lot that this taker settles.
    number: u64,
    /// Offsets of the pages of all lots in flight, this one included.
    pages: Vec<u64>,
}

impl DeferredMarks {
    /// For a pool of at most `bytes`.
    pub(super) fn new(page_bytes: u64, bytes: u64) -> DeferredMarks {
        let words = (bytes / page_bytes / 64) as usize + 1;
        DeferredMarks {
            page_bytes,
            chunks: (0..words.div_ceil(CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
            removed: AtomicBool::new(false),
            in_flight: Mutex::default(),
        }
    }

    /// Notes the page of the mark word at `at`.
    #[inline]
    pub(super) fn note(&self, at: u64) {
        publishes!();
        let page = at / self.page_bytes;
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        let chunk = self.chunks[word / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect());
        // Always a read-modify-write: either the taker of the notes sees the mark, or the note stays for the
        // next taker.
        chunk[word % CHUNK].fetch_or(bit, Ordering::SeqCst);
    }

    /// Notes that a record is about to be removed.
    #[inline]
    pub(super) fn note_removal(&self) {
        publishes!();
        // Usually only a load. If it reads `true`, the next take comes later in the SeqCst order. So it takes
        // the predecessors' notes, which were there before this load.
        if !self.removed.load(Ordering::SeqCst) {
            self.removed.store(true, Ordering::SeqCst);
        }
    }

    /// Takes the notes if a record was removed since the last ones were settled. A record that was only
    /// replaced has a newer one that keeps its predecessors dead.
    pub(super) fn take_if_removed(&self) -> Option<Taken<'_>> {
        publishes!();
        let mut in_flight = lock(&self.in_flight);
        let removed = self.removed.swap(false, Ordering::SeqCst);
        let is_wanted = removed || in_flight.lots.iter().any(|lot| lot.removed);
        is_wanted.then(|| self.take(&mut in_flight, removed))
    }

    /// Takes all notes.
    pub(super) fn take_all(&self) -> Taken<'_> {
        publishes!();
        let mut in_flight = lock(&self.in_flight);
        let removed = self.removed.swap(false, Ordering::SeqCst);
        self.take(&mut in_flight, removed)
    }

    fn take(&self, in_flight: &mut InFlight, removed: bool) -> Taken<'_> {
        let others = in_flight.lots.iter().flat_map(|lot| &lot.pages);
        let mut all: Vec<u64> = others.copied().collect();
        let pages = self.take_bits();
        all.extend_from_slice(&pages);
        let number = in_flight.next;
        in_flight.next += 1;
        in_flight.lots.push(Lot {
            number,
            pages,
            removed,
        });
        Taken {
            notes: self,
            number,
            pages: all,
        }
    }

    fn take_bits(&self) -> Vec<u64> {
        let mut pages = Vec::new();
        for (chunk, words) in (0..).zip(&self.chunks) {
            for (index, word) in (0..).zip(words.get().into_iter().flatten()) {
                if word.load(Ordering::SeqCst) == 0 {
                    continue;
                }
                let mut bits = word.swap(0, Ordering::SeqCst);
                while bits != 0 {
                    let first = (chunk * CHUNK as u64 + index) * 64;
                    pages.push((first + u64::from(bits.trailing_zeros())) * self.page_bytes);
                    bits &= bits - 1;
                }
            }
        }
        pages
    }
}

impl Taken<'_> {
    /// Offsets of the pages.
    pub(super) fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// Declares the marks of these pages durable before everything after the fence. `flushed`: the time of
    /// their last flush; `None` if there was nothing to flush.
    pub(super) fn settle(self, after: &Ordered, flushed: Option<Written>) {
        if let Some(flushed) = flushed {
            after.assert_covers(flushed);
        }
        assert!(self.take_lot().is_some(), "notes are settled twice");
    }

    fn take_lot(&self) -> Option<Lot> {
        let lots = &mut lock(&self.notes.in_flight).lots;
        let place = lots.iter().position(|lot| lot.number == self.number)?;
        Some(lots.swap_remove(place))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // A settled lot is not in flight any more.
        let Some(lot) = self.take_lot() else { return };
        lot.pages.iter().for_each(|&at| self.notes.note(at));
        if lot.removed {
            self.notes.note_removal();
        }
    }
}

impl Viper {
    /// Flushes and fences the deferred marks on older copies of the records about to be dropped. Without it,
    /// a crash after the drop could bring an older copy back.
    ///
    /// The caller has seen the mark of each record that it is about to drop. The session that set that mark
    /// took the key's lock after the mark on the older copy had been listed or noted, so it is found here.
    pub(super) fn fence_marks(&self, session: &mut ViperSession) {
        self.flush_listed_marks(session);
        let taken = self.deferred_marks.take_if_removed();
        self.fence_taken(session, taken);
    }

    /// Makes all deferred marks durable.
    pub(super) fn fence_all_marks(&self, session: &mut ViperSession) {
        self.flush_listed_marks(session);
        let taken = self.deferred_marks.take_all();
        self.fence_taken(session, Some(taken));
    }

    /// As [`Viper::fence_all_marks`], so that the next open finds less to do.
    pub(super) fn fence_marks_at_close(self: &Arc<Self>) -> Result<(), Error> {
        if self.healthy().is_ok() {
            self.fence_all_marks(&mut ViperSession::new(Arc::clone(self))?);
        }
        Ok(())
    }

    fn flush_listed_marks(&self, session: &mut ViperSession) {
        for listed in self.listed_marks.iter().take(self.epochs.slots_used()) {
            for at in listed.iter() {
                if at != 0 && self.pool.region().contains(at, 8) {
                    let flushed = session.lane.flush_range(at, 8);
                    session.unfenced.add(flushed);
                }
            }
        }
    }

    /// Flushes the marks of all taken pages, and fences everything that the session has flushed.
    fn fence_taken(&self, session: &mut ViperSession, taken: Option<Taken<'_>>) {
        for &page_at in taken.iter().flat_map(|taken| taken.pages()) {
            let block = self.space.blocks.number(page_at);
            let info = self.space.blocks.get(block).map(|entry| entry.info());
            // A free block has no records that a mark would keep dead.
            if let Some(info) = info.filter(|info| info.state != State::Free) {
                let marks = 8 * self.space.geometry.pages_of(info.kind).mark_words;
                let flushed = session.lane.flush_range(page_at + 16, marks);
                session.unfenced.add(flushed);
            }
        }
        let flushed = session.unfenced.written(&session.lane);
        #[cfg(test)]
        test_hook::run();
        let ordered = session.settle_and_fence();
        if let Some(taken) = taken {
            taken.settle(&ordered, flushed);
        }
    }
}

/// Runs a test's code after its thread has taken the notes and before the fence.
#[cfg(test)]
pub(super) mod test_hook {
    use std::cell::RefCell;

    type Work = Box<dyn FnOnce()>;

    thread_local! {
        static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
    }

    #[cfg(feature = "lab")]
    pub(in crate::viper) fn set(work: Work) {
        WORK.set(Some(work));
    }

    #[cfg(feature = "lab")]
    pub(in crate::viper) fn is_set() -> bool {
        WORK.with_borrow(Option::is_some)
    }

    pub(super) fn run() {
        let work = WORK.take();
        if let Some(work) = work {
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everdram_pm::{DATA_AT, Pool};

    /// A fence, and the last write before it.
    fn fence() -> (Ordered, Option<Written>) {
        let pool = Pool::heap(1 << 18, 0, [0; 8]);
        let mut lane = pool.lane();
        let dirty = lane.store_word(DATA_AT, 1);
        let flushed = lane.flush(dirty);
        let written = lane.written();
        (lane.fence(flushed), Some(written))
    }

    #[test]
    fn each_noted_page_is_taken_once() {
        let notes = DeferredMarks::new(512, 1 << 30);
        let far = (1 << 30) - 512;
        for at in [512 + 16, 512 + 40, 65 * 512 + 24, far + 16] {
            notes.note(at);
        }
        let (ordered, written) = fence();
        let taken = notes.take_all();
        assert_eq!(taken.pages(), [512, 65 * 512, far]);
        taken.settle(&ordered, written);
        assert_eq!(notes.take_all().pages(), [0; 0]);
    }

    /// Another thread believed marks durable that were only taken.
    #[test]
    fn notes_without_a_fence_go_back() {
        let notes = DeferredMarks::new(4096, 1 << 20);
        notes.note(4096 + 16);
        notes.note_removal();
        drop(notes.take_if_removed());
        let taken = notes.take_if_removed();
        assert_eq!(taken.as_ref().map(Taken::pages), Some(&[4096][..]));
    }

    #[test]
    fn removals_are_told_once() {
        let notes = DeferredMarks::new(4096, 1 << 20);
        assert!(notes.take_if_removed().is_none());
        notes.note_removal();
        let (ordered, written) = fence();
        if let Some(taken) = notes.take_if_removed() {
            taken.settle(&ordered, written);
        }
        assert!(notes.take_if_removed().is_none());
    }

    /// One thread had taken the notes and not fenced them; another found none, and dropped the tombstone.
    #[test]
    fn who_comes_second_gets_what_the_first_has_not_fenced() {
        let notes = DeferredMarks::new(4096, 1 << 20);
        notes.note(4096 + 16);
        notes.note_removal();
        let (ordered, written) = fence();
        let first = notes.take_if_removed();
        notes.note(2 * 4096 + 16);
        let pages = |taken: &Option<Taken<'_>>| taken.as_ref().map(|taken| taken.pages().to_vec());
        let second = notes.take_if_removed();
        assert_eq!(pages(&second), Some(vec![4096, 2 * 4096]));
        for taken in [first, second].into_iter().flatten() {
            taken.settle(&ordered, written);
        }
        assert_eq!(pages(&notes.take_if_removed()), None);
    }
}
