//! How much DRAM the front may use, and by how much it uses more.
//!
//! What it uses is the lines of nodes and of chains, and its arrays. Counting them takes a look at each
//! chunk, so that is done seldom: when chunks have been claimed that could make a difference, and by the
//! background thread. In between there is an *excess*, which eviction works off. So nobody counts on the path
//! of a put or a get; instead the front may use a chunk for each session more than it was found to.
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
/// The marks lie below the budget by one in so many bytes of it.
const HIGH_ONE_IN: u64 = 20;
const LOW_ONE_IN: u64 = 16;
/// The background thread weighs so many chunks each time it looks, as a mean.
const CHUNKS_A_LOOK: u64 = 4096;

/// Nodes that were evicted and that readers may still be looking at: offset, bytes.
type Evicted = Retired<(u64, u64)>;

/// See the module text.
pub(in crate::bullet) struct Budget {
    bytes: Option<u64>,
    /// Bytes that are to be evicted, down to the low mark; 0 or less: none.
    excess: CachePadded<AtomicI64>,
    /// The excess from which on the budget itself is exceeded.
    exceeded: i64,
    /// Bytes that were in use when somebody looked.
    used: AtomicU64,
    /// Chunks that may be claimed until somebody has to look again.
    claims: AtomicI64,
    /// Times that the background thread goes without looking.
    rests: AtomicU64,
    /// There was hardly anything that could be evicted: it is for gleaners to go on.
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

    /// Bytes that may be used; `None`: as many as there are.
    pub(in crate::bullet) fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    #[inline]
    pub(in crate::bullet) fn is_set(&self) -> bool {
        self.bytes.is_some()
    }

    /// Whether more is used than may be.
    #[inline]
    pub(in crate::bullet) fn is_exceeded(&self) -> bool {
        self.excess() > self.exceeded
    }

    /// Bytes that are to be evicted.
    #[inline]
    pub(in crate::bullet) fn excess(&self) -> i64 {
        self.excess.load(Ordering::Relaxed)
    }

    /// Whether there was room for so many bytes when somebody looked.
    pub(in crate::bullet) fn has_room(&self, bytes: u64) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        self.bytes.is_none_or(|all| used + bytes <= all)
    }

    /// A chunk was claimed. `true`: it is time to look at what is in use.
    pub(in crate::bullet) fn claimed(&self) -> bool {
        self.is_set() && self.claims.fetch_sub(1, Ordering::Relaxed) <= 0
    }

    /// As [`Budget::claimed`], whenever the background thread looks. `held`: bytes of all chunks.
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

    /// So much is in use.
    pub(in crate::bullet) fn weighed(&self, used: u64) {
        let Some(bytes) = self.bytes else {
            return;
        };
        // What was evicted is only waiting for readers to leave.
        let used = used.saturating_sub(self.evicted_bytes.load(Ordering::Relaxed));
        let (high, low) = (bytes - bytes / HIGH_ONE_IN, bytes - bytes / LOW_ONE_IN);
        let excess = if used > high { used - low } else { 0 };
        self.used.store(used, Ordering::Relaxed);
        self.excess.store(excess as i64, Ordering::Relaxed);
        // Several sessions may be filling the chunks that they have claimed.
        let claims = high.saturating_sub(used) / CHUNK_BYTES / 2;
        self.claims.store(claims as i64, Ordering::Relaxed);
    }

    /// The number of the next piece of the table that eviction passes, of so many.
    pub(in crate::bullet) fn next_piece(&self, pieces: u64) -> u64 {
        self.hand.fetch_add(1, Ordering::Relaxed) % pieces
    }

    pub(in crate::bullet) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    pub(in crate::bullet) fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    /// Keeps nodes that nobody can find any more until `free` may have them.
    pub(in crate::bullet) fn evicted(&self, nodes: &[(u64, u64)]) {
        let bytes: u64 = nodes.iter().map(|(_, bytes)| lines_of(*bytes)).sum();
        self.excess.fetch_sub(bytes as i64, Ordering::Relaxed);
        self.evicted_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut evicted = lock(&self.evicted);
        nodes.iter().for_each(|node| evicted.push(*node));
    }

    /// Lets `take` free some of what was evicted, if nobody else is doing that.
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
