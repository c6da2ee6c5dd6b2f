//! The front's budget of DRAM, and its excess over it.
//!
//! In use are the lines of nodes and chains, and the arrays. To count them takes a look at each chunk, so
//! that happens seldom: when sessions have claimed enough chunks to matter, and in the background thread. In
//! between, eviction works off an *excess*. So puts and gets count nothing; in return, the front may use one
//! chunk for each session more than was counted.
//!
//! ```text
//!   0                                                 low mark   high mark   budget
//!   |--------- nothing to do: filled as asked for --------|----------|----------|------------------
//!                                   eviction stops here ──┘          │          └── writers and readers help,
//!                                    the background thread evicts ───┘              nothing is filled
//! ```

use crate::concurrency::retired::Retired;
use crate::heap::CHUNK_LINES;
use crossbeam_utils::CachePadded;
use everdram_pm::LINE;
use everdram_pm::lock::lock;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

const CHUNK_BYTES: u64 = CHUNK_LINES as u64 * LINE;
/// The marks lie below the budget by one byte in this many.
const HIGH_ONE_IN: u64 = 20;
const LOW_ONE_IN: u64 = 16;
/// Mean number of chunks that the background thread counts in each round.
const CHUNKS_A_LOOK: u64 = 4096;

/// Evicted nodes that readers may still access: offset, bytes.
type Evicted = Retired<(u64, u64)>;

/// See the module text.
pub(in crate::bullet) struct Budget {
    bytes: Option<u64>,
    /// Bytes to evict, down to the low mark; 0 or less: none.
    excess: CachePadded<AtomicI64>,
    /// The excess above which the budget itself is exceeded.
    exceeded: i64,
    /// Bytes in use at the last count.
    used: AtomicU64,
    /// Chunks that may be claimed before the next count.
    claims: AtomicI64,
    /// Rounds of the background thread before its next count.
    rests: AtomicU64,
    /// Hardly any node could leave: gleaners must apply nodes first.
    stalled: AtomicBool,
    /// Pieces of the table that eviction has passed.
    hand: AtomicU64,
    evicted: Mutex<Evicted>,
    evicted_bytes: AtomicU64,
}

impl Budget {
    pub(in crate::bullet) fn new(bytes: Option<u64>) -> Budget {
        Budget {
            bytes,
            excess: CachePadded::default(),
            exceeded: bytes.map_or(i64::MAX, |bytes| (bytes / LOW_ONE_IN) as i64),
            used: AtomicU64::new(0),
            claims: AtomicI64::new(0),
            rests: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            hand: AtomicU64::new(0),
            evicted: Mutex::default(),
            evicted_bytes: AtomicU64::new(0),
        }
    }

    /// Bytes that may be used; `None`: no limit.
    pub(in crate::bullet) fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    #[inline]
    pub(in crate::bullet) fn is_set(&self) -> bool {
        self.bytes.is_some()
    }

    /// Whether the front uses more than its budget.
    #[inline]
    pub(in crate::bullet) fn is_exceeded(&self) -> bool {
        self.excess() > self.exceeded
    }

    /// Bytes to evict.
    #[inline]
    pub(in crate::bullet) fn excess(&self) -> i64 {
        self.excess.load(Ordering::Relaxed)
    }

    /// Whether the last count left room for `bytes` bytes.
    pub(in crate::bullet) fn has_room(&self, bytes: u64) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        self.bytes.is_none_or(|all| used + bytes <= all)
    }

    /// Notes that a chunk was claimed. `true`: a count is due.
    pub(in crate::bullet) fn claimed(&self) -> bool {
        self.is_set() && self.claims.fetch_sub(1, Ordering::Relaxed) <= 0
    }

    /// Whether a count by the background thread is due; asked in each round. `held`: bytes of all chunks.
    pub(in crate::bullet) fn is_due(&self, held: u64) -> bool {
        if !self.is_set() {
            return false;
        }
        let rests = self.rests.load(Ordering::Relaxed);
        let next = rests
            .checked_sub(1)
            .unwrap_or(held / CHUNK_BYTES / CHUNKS_A_LOOK);
        self.rests.store(next, Ordering::Relaxed);
        rests == 0
    }

    /// Sets the excess, after a count of the bytes in use.
    pub(in crate::bullet) fn weighed(&self, used: u64) {
        let Some(bytes) = self.bytes else {
            return;
        };
        // Evicted nodes only wait for readers to leave.
        let used = used.saturating_sub(self.evicted_bytes.load(Ordering::Relaxed));
        let (high, low) = (bytes - bytes / HIGH_ONE_IN, bytes - bytes / LOW_ONE_IN);
        let excess = if used > high { used - low } else { 0 };
        self.used.store(used, Ordering::Relaxed);
        self.excess.store(excess as i64, Ordering::Relaxed);
        // Several sessions may be filling the chunks that they have claimed.
        let claims = high.saturating_sub(used) / CHUNK_BYTES / 2;
        self.claims.store(claims as i64, Ordering::Relaxed);
    }

    /// The number of the next of `pieces` pieces that the hand passes.
    pub(in crate::bullet) fn next_piece(&self, pieces: u64) -> u64 {
        self.hand.fetch_add(1, Ordering::Relaxed) % pieces
    }

    pub(in crate::bullet) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    pub(in crate::bullet) fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    /// Keeps nodes that no new reader can find, until [`Budget::free`] takes them.
    pub(in crate::bullet) fn evicted(&self, nodes: &[(u64, u64)]) {
        let bytes: u64 = nodes.iter().map(|(_, bytes)| lines_of(*bytes)).sum();
        self.excess.fetch_sub(bytes as i64, Ordering::Relaxed);
        self.evicted_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut evicted = lock(&self.evicted);
        nodes.iter().for_each(|node| evicted.push(*node));
    }

    /// Lets `take` free some of the evicted nodes, unless another thread is doing that.
    pub(in crate::bullet) fn free(&self, take: impl FnOnce(&mut Evicted) -> u64) {
        if self.evicted_bytes.load(Ordering::Relaxed) > 0
            && let Some(mut evicted) = self.evicted.try_lock()
        {
            let freed = take(&mut evicted);
            let before = self.evicted_bytes.fetch_sub(freed, Ordering::Relaxed);
            assert!(freed <= before, "more is freed than was evicted");
        }
    }
}

/// Bytes that a node takes, up to the end of its last line.
pub(in crate::bullet) fn lines_of(bytes: u64) -> u64 {
    bytes.next_multiple_of(LINE)
}
