//! Which lanes store to which part of the image, so that memory is never replaced under a store.
//!
//! The image is divided into chunks of a huge page. A chunk of memory may be replaced by the file's own
//! pages, which hold the same bytes, while no lane stores to it. Stores are frequent and replacements rare,
//! so a store pays two plain stores to a line of its own lane, and one load:
//!
//! ```text
//!            a store                    watch                      bar
//!  Resting ──────────> Touched ──────────────────> Watched ───────────────> Barred ──> Resting
//!                         ^                           |                        |
//!                         +───────── a store ─────────+    a store waits here ─+
//! ```
//!
//! A lane announces a store ([`Announcer::during`]), loads the chunk's state, makes it `Touched` if it is
//! not, stores, and ends the announcement. [`Chunks::watch`] makes chunks `Watched`, passes the heavy
//! barrier, and waits for every lane that was storing. This has three consequences:
//!
//! 1. When `watch` returns, no lane stores to a chunk that is still `Watched`, and all earlier stores are
//!    visible. For each store the barrier has one of two effects: `watch` sees the announcement and has
//!    waited for it, or the lane sees the state and has made it `Touched` first.
//! 2. So a chunk that goes from `Watched` to `Barred` in one exchange had no store since `watch`.
//! 3. From then on stores to it wait until it is replaced and `Resting`. They hold nothing that `watch` or
//!    `bar` wait for: one thread does both, and it does not watch while it bars.

use crate::lock::lock;
use crate::memory::barrier::Barrier;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a chunk: a huge page.
pub(super) const CHUNK: u64 = 2 << 20;

/// No store since it was mapped from the file, or created.
const RESTING: u8 = 0;
/// Stored to; stores proceed without waiting.
const TOUCHED: u8 = 1;
/// No store since [`Chunks::watch`].
const WATCHED: u8 = 2;
/// Being replaced.
const BARRED: u8 = 3;

/// See the module text.
pub(super) struct Chunks {
    /// One for each chunk of the address space. Zeroed memory, so unused parts cost nothing.
    states: Box<[AtomicU8]>,
    barrier: Barrier,
    lanes: RwLock<Vec<Arc<Announcement>>>,
    /// Held while a chunk is barred; a store that must wait locks it for a moment.
    gate: Mutex<()>,
}

/// Odd while its lane stores. Alone on its line and on the adjacent line that the processor prefetches with
/// it.
#[repr(align(128))]
#[derive(Default)]
struct Announcement(AtomicU64);

/// A lane's side of the protocol.
pub(super) struct Announcer {
    chunks: Arc<Chunks>,
    mine: Arc<Announcement>,
}

/// A store in progress; dropping it ends the announcement, even after a panic.
struct Storing<'a> {
    announcement: &'a AtomicU64,
    turn: u64,
}

impl Drop for Storing<'_> {
    #[inline]
    fn drop(&mut self) {
        let done = self.turn.wrapping_add(2);
        self.announcement.store(done, Ordering::Release);
    }
}

impl Announcer {
    pub(super) fn new(chunks: &Arc<Chunks>) -> Announcer {
        let mine = Arc::new(Announcement::default());
        let mut lanes = chunks.lanes.write();
        // The other owner is the lane; announcements of dropped lanes are removed here.
        lanes.retain(|announcement| Arc::strong_count(announcement) > 1);
        lanes.push(Arc::clone(&mine));
        Announcer {
            chunks: Arc::clone(chunks),
            mine,
        }
    }

    /// Runs a store to `at .. at + bytes`; waits while that memory is being replaced.
    #[inline]
    pub(super) fn during<T>(&mut self, at: u64, bytes: u64, store: impl FnOnce() -> T) -> T {
        let Announcement(announcement) = &*self.mine;
        let turn = announcement.load(Ordering::Relaxed);
        announcement.store(turn.wrapping_add(1), Ordering::Relaxed);
        let _storing = Storing { announcement, turn };
        self.chunks.barrier.light();
        let first = (at / CHUNK) as usize;
        let last = ((at + bytes.saturating_sub(1)) / CHUNK) as usize;
        if first != last || self.chunks.states[first].load(Ordering::Acquire) != TOUCHED {
            self.chunks.touch(first, last);
        }
        store()
    }
}

impl Chunks {
    /// Chunks for `bytes` of address space, all `Resting`.
    pub(super) fn new(bytes: u64) -> Chunks {
        let states = vec![0_u8; bytes.div_ceil(CHUNK) as usize].into_boxed_slice();
        let states = Box::into_raw(states) as *mut [AtomicU8];
        Chunks {
            // SAFETY: just taken out of a box of as many bytes, and atomic bytes have the size and alignment
            // of bytes.
            states: unsafe { Box::from_raw(states) },
            barrier: Barrier::new(),
            lanes: RwLock::default(),
            gate: Mutex::new(()),
        }
    }

    /// Makes chunks `Touched`.
    #[cold]
    #[inline(never)]
    fn touch(&self, first: usize, last: usize) {
        for state in &self.states[first..=last] {
            let mut found = state.load(Ordering::Acquire);
            while found != TOUCHED {
                if found == BARRED {
                    drop(lock(&self.gate));
                    found = state.load(Ordering::Acquire);
                    continue;
                }
                match state.compare_exchange(found, TOUCHED, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break,
                    Err(other) => found = other,
                }
            }
        }
    }

    /// Makes a `Resting` chunk `Touched`: it differs from the file, or soon may.
    pub(super) fn disturb(&self, at: u64) {
        let state = &self.states[(at / CHUNK) as usize];
        let _was_not_at_rest =
            state.compare_exchange(RESTING, TOUCHED, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether any of the chunks is not `Resting`.
    pub(super) fn any_awake(&self, chunks: std::ops::Range<u64>) -> bool {
        chunks
            .into_iter()
            .any(|chunk| self.states[chunk as usize].load(Ordering::Relaxed) != RESTING)
    }

    /// Whether no lane has stored to the chunk since [`Chunks::watch`].
    pub(super) fn is_watched(&self, chunk: u64) -> bool {
        self.states[chunk as usize].load(Ordering::Acquire) == WATCHED
    }

    /// Watches, from now on, those of the chunks that were stored to.
    pub(super) fn watch(&self, chunks: std::ops::Range<u64>) {
        let states = &self.states[chunks.start as usize..chunks.end as usize];
        let exchange = |state: &AtomicU8, from, to| {
            state
                .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let touched = states
            .iter()
            .filter(|state| exchange(state, TOUCHED, WATCHED));
        if touched.count() == 0 {
            return;
        }
        if !self.barrier.heavy() {
            // The barrier failed and promised nothing, so nothing is watched.
            for state in states {
                exchange(state, WATCHED, TOUCHED);
            }
            return;
        }
        for Announcement(announcement) in self.lanes.read().iter().map(|lane| &**lane) {
            let seen = announcement.load(Ordering::Acquire);
            while seen % 2 == 1 && announcement.load(Ordering::Acquire) == seen {
                std::thread::yield_now();
            }
        }
    }

    /// Calls `replace` if no lane has stored to the chunk since [`Chunks::watch`]; none stores before it
    /// returns. Afterwards the chunk is `Resting`, or still `Watched` if `replace` failed. Returns whether it
    /// was called.
    pub(super) fn bar<E>(
        &self,
        chunk: u64,
        replace: impl FnOnce() -> Result<(), E>,
    ) -> Result<bool, E> {
        let state = &self.states[chunk as usize];
        let _gate = lock(&self.gate);
        if state
            .compare_exchange(WATCHED, BARRED, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return Ok(false);
        }
        let replaced = replace();
        let next = if replaced.is_ok() { RESTING } else { WATCHED };
        state.store(next, Ordering::Release);
        replaced.map(|()| true)
    }
}
