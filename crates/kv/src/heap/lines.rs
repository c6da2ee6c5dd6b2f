//! Which 64-byte lines are taken: runs of lines, allocated from chunks, in DRAM or in a pool. This
//! bookkeeping is volatile.
//!
//! An allocator *claims* a chunk and takes lines from it without any lock; every thread may give lines back.
//! A chunk goes through these states:
//!
//! ```text
//!   absent ─ add ─▶ pool ─ claim ─▶ owned ─ let go ─▶ full ─ enough given back ─▶ listed ─ claim ─▶ owned ...
//!                     ▲ │ take_run                                                   │
//!                     │ ▼                                                            │
//!                     run ─ give_back_run ─▶ pool ◀── wholly free, when a run needs it ┘
//! ```
//!
//! Invariants:
//! - Only the owner of a chunk sets bits of its `taken`. Any thread may clear a bit, once, for a line that
//!   was taken.
//! - `free` is the number of clear bits; for a moment it may be less.
//! - A chunk is in `ready` exactly once if its state is `LISTED`, and its number is in `pool` exactly if its
//!   state is `POOL`.

use everdram_pm::lock::lock;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Chunks of the first leaf of the table; each leaf has twice as many as the one before.
const LEAF_FIRST: usize = 16;
const LEAVES: usize = 24;
/// A chunk is worth claiming again once this share of its lines is free, if nothing else is said.
const READY_ONE_IN: u32 = 4;
/// Listed chunks to try before taking a wholly free one.
const LISTED_TRIES: usize = 2;

const ABSENT: u32 = 0;
const POOL: u32 = 1;
const OWNED: u32 = 2;
const FULL: u32 = 3;
const LISTED: u32 = 4;
const RUN: u32 = 5;

struct Chunk<'a> {
    state: &'a AtomicU32,
    /// Free lines; in the first chunk of a run: the number of its chunks.
    free: &'a AtomicU32,
    /// A bit for each line.
    taken: &'a [AtomicU64],
}

/// Chunks with consecutive numbers.
struct Leaf {
    /// State and free lines of each chunk.
    chunks: Box<[[AtomicU32; 2]]>,
    /// The bits of all chunks, one chunk after another.
    taken: Box<[AtomicU64]>,
}

/// See the module text.
pub(crate) struct Lines {
    chunk_lines: u32,
    /// Lines at the start of each chunk that are never handed out.
    header_lines: u32,
    /// Free lines with which a chunk is listed.
    ready_lines: u32,
    leaves: [OnceLock<Leaf>; LEAVES],
    stock: Mutex<Stock>,
}

#[derive(Default)]
struct Stock {
    /// Listed chunks.
    ready: VecDeque<u32>,
    /// Runs of wholly free chunks: first chunk and length.
    pool: BTreeMap<u32, u32>,
    /// Chunks of these runs.
    pooled: u64,
    chunks: u64,
}

/// A chunk that one allocator owns, and the position it has reached.
#[derive(Debug)]
pub(crate) struct Claim {
    chunk: u32,
    from: u32,
}

impl Lines {
    /// `chunk_lines`: a multiple of 64. The caller uses the first `header_lines` lines of each chunk itself.
    pub(crate) fn new(chunk_lines: u32, header_lines: u32) -> Lines {
        assert!(chunk_lines.is_multiple_of(64) && header_lines < chunk_lines);
        Lines {
            chunk_lines,
            header_lines,
            ready_lines: (chunk_lines - header_lines) / READY_ONE_IN,
            leaves: [const { OnceLock::new() }; LEAVES],
            stock: Mutex::default(),
        }
    }

    /// A chunk is claimed again once it has so many free lines. With few, little room lies idle, and claims
    /// are frequent.
    pub(crate) fn claimed_again_from(self, ready_lines: u32) -> Lines {
        assert!((1..=self.usable()).contains(&ready_lines));
        Lines {
            ready_lines,
            ..self
        }
    }

    /// Usable lines of a chunk: the longest run that [`Lines::take`] can return.
    pub(crate) fn usable(&self) -> u32 {
        self.chunk_lines - self.header_lines
    }

    /// Lines at the start of each chunk that are never handed out.
    pub(crate) fn header(&self) -> u32 {
        self.header_lines
    }

    /// Number of chunks.
    pub(crate) fn chunks(&self) -> u64 {
        lock(&self.stock).chunks
    }

    /// Taken lines, including headers and whole runs.
    pub(crate) fn taken(&self) -> u64 {
        let mut taken = 0;
        for [state, free] in self
            .leaves
            .iter()
            .filter_map(OnceLock::get)
            .flat_map(|leaf| &leaf.chunks)
        {
            taken += match state.load(Ordering::Relaxed) {
                ABSENT | POOL => 0,
                RUN => u64::from(self.chunk_lines),
                _ => u64::from(self.chunk_lines - count_of(free)),
            };
        }
        taken
    }

    /// Free lines outside headers.
    pub(crate) fn free(&self) -> u64 {
        let leaves = self.leaves.iter().filter_map(OnceLock::get);
        let free = leaves.flat_map(|leaf| &leaf.chunks).map(|[state, free]| {
            match state.load(Ordering::Relaxed) {
                ABSENT | RUN => 0,
                POOL => self.usable(),
                _ => count_of(free),
            }
        });
        free.map(u64::from).sum()
    }

    /// For each chunk the share of its lines that is taken, in percent; 255: it is wholly free.
    pub(crate) fn map(&self) -> Vec<u8> {
        let leaves = self.leaves.iter().filter_map(OnceLock::get);
        let chunks = leaves.flat_map(|leaf| &leaf.chunks);
        let share = |[state, free]: &[AtomicU32; 2]| match state.load(Ordering::Relaxed) {
            ABSENT => None,
            POOL => Some(255),
            RUN => Some(100),
            _ => {
                let taken = self.chunk_lines - count_of(free).min(self.chunk_lines);
                Some((u64::from(taken) * 100 / u64::from(self.chunk_lines)) as u8)
            }
        };
        chunks.filter_map(share).collect()
    }

    /// As [`Lines::free`], counting wholly free chunks alone: their lines can serve any run up to the length
    /// of a chunk.
    pub(crate) fn free_whole(&self) -> u64 {
        let leaves = self.leaves.iter().filter_map(OnceLock::get);
        let whole = leaves
            .flat_map(|leaf| &leaf.chunks)
            .filter(|[state, free]| match state.load(Ordering::Relaxed) {
                POOL => true,
                LISTED => count_of(free) == self.usable(),
                _ => false,
            });
        whole.count() as u64 * u64::from(self.usable())
    }

    /// Free lines that a claim finds without a search, at least: those of wholly free chunks, and of listed
    /// ones the share that listed them. Quick to find out.
    pub(crate) fn at_hand(&self) -> u64 {
        let stock = lock(&self.stock);
        let listed = stock.ready.len() as u64 * u64::from(self.ready_lines);
        stock.pooled * u64::from(self.usable()) + listed
    }

    #[inline]
    fn chunk(&self, number: u32) -> Option<Chunk<'_>> {
        let (leaf, nth) = leaf_of(number);
        let leaf = self.leaves.get(leaf)?.get()?;
        let [state, free] = leaf.chunks.get(nth)?;
        let words = self.chunk_lines as usize / 64;
        let taken = leaf.taken.get(nth * words..(nth + 1) * words)?;
        Some(Chunk { state, free, taken })
    }

    /// The chunk; the caller knows that it exists.
    fn known(&self, number: u32) -> Chunk<'_> {
        match self.chunk(number) {
            Some(chunk) => chunk,
            None => panic!("there is no chunk {number}"),
        }
    }

    /// Adds absent chunks, all free. `false`: the number space of chunks is exhausted.
    pub(crate) fn add(&self, first: u32, count: u32) -> bool {
        if leaf_of(first + count).0 >= LEAVES {
            return false;
        }
        let mut stock = lock(&self.stock);
        for number in first..first + count {
            let (leaf, _) = leaf_of(number);
            self.leaves[leaf].get_or_init(|| self.leaf(LEAF_FIRST << leaf));
            let state = self.known(number).state;
            assert_eq!(state.load(Ordering::Relaxed), ABSENT);
            state.store(POOL, Ordering::Release);
        }
        stock.chunks += u64::from(count);
        stock.put(first, count);
        true
    }

    fn leaf(&self, chunks: usize) -> Leaf {
        let header = |from: u32| low_bits(self.header_lines.saturating_sub(from).min(64));
        let of_one = || {
            (0..self.chunk_lines)
                .step_by(64)
                .map(header)
                .map(AtomicU64::new)
        };
        Leaf {
            chunks: (0..chunks)
                .map(|_| [AtomicU32::new(ABSENT), AtomicU32::new(self.usable())])
                .collect(),
            taken: (0..chunks).flat_map(|_| of_one()).collect(),
        }
    }

    /// Marks the lines as taken that a pool has in use: `words` has a bit for each line of a chunk in state
    /// `POOL`. Call it before anything is taken. Header bits count as set.
    pub(crate) fn adopt(&self, number: u32, words: impl Iterator<Item = u64>) {
        let chunk = self.known(number);
        for (taken, word) in chunk.taken.iter().zip(words) {
            taken.fetch_or(word, Ordering::Relaxed);
        }
        let free: u32 = chunk
            .taken
            .iter()
            .map(|word| word.load(Ordering::Relaxed).count_zeros())
            .sum();
        chunk.free.store(free, Ordering::Relaxed);
        if free < self.usable() {
            self.leave_pool(number);
        }
    }

    /// As [`Lines::adopt`], for `count` chunks that are one run. `false`: one of them is not wholly free.
    pub(crate) fn adopt_run(&self, first: u32, count: u32) -> bool {
        let mut stock = lock(&self.stock);
        let carved = stock.carve(first, count);
        if carved {
            self.make_run(first, count);
        }
        carved
    }

    /// As [`Lines::adopt`], for some lines. `false`: they are taken, or do not lie in one chunk.
    pub(crate) fn adopt_lines(&self, line: u64, lines: u32) -> bool {
        let (number, from) = self.place_of(line);
        let inside = from >= self.header_lines && lines <= self.chunk_lines - from;
        let Some(chunk) = self.chunk(number).filter(|_| inside && lines > 0) else {
            return false;
        };
        let state = chunk.state.load(Ordering::Relaxed);
        if state == ABSENT
            || state == RUN
            || next_taken(chunk.taken, from, from + lines) < from + lines
        {
            return false;
        }
        if state == POOL {
            self.leave_pool(number);
        }
        mark(chunk.taken, from, lines);
        chunk.free.fetch_sub(lines, Ordering::SeqCst);
        true
    }

    /// Whether lines from `64 * word` on are of the first `chunks` chunks.
    pub(super) fn is_word(&self, word: u64, chunks: u64) -> bool {
        word / u64::from(self.chunk_lines / 64) < chunks
    }

    /// As [`Lines::adopt_lines`], by several threads at once, for those of 64 lines from `64 * word` on that
    /// have a bit. Nothing may be taken before [`Lines::count_adopted`]. Returns the bits of lines that are
    /// taken already; those of headers are.
    pub(super) fn adopt_word(&self, word: u64, bits: u64) -> u64 {
        let (number, from) = self.place_of(64 * word);
        match self.known(number).taken.get(from as usize / 64) {
            Some(taken) => taken.fetch_or(bits, Ordering::Relaxed) & bits,
            None => unreachable!("a chunk has a word for each 64 of its lines"),
        }
    }

    /// Counts the lines that were adopted together, and sorts all chunks by what is free in them. There are
    /// no claims and no runs yet.
    pub(crate) fn count_adopted(&self) {
        let mut stock = lock(&self.stock);
        stock.ready.clear();
        stock.pool.clear();
        stock.pooled = 0;
        for number in 0..stock.chunks as u32 {
            let chunk = self.known(number);
            let before = chunk.state.load(Ordering::Relaxed);
            assert!(
                matches!(before, POOL | FULL | LISTED),
                "chunk {number} is in use before its lines are counted"
            );
            let free = chunk.taken.iter();
            let free = free.map(|word| word.load(Ordering::Relaxed).count_zeros());
            let free: u32 = free.sum();
            chunk.free.store(free, Ordering::Relaxed);
            let state = match free {
                free if free == self.usable() => POOL,
                free if free >= self.ready_lines => LISTED,
                _ => FULL,
            };
            chunk.state.store(state, Ordering::SeqCst);
            match state {
                POOL => stock.put(number, 1),
                LISTED => stock.ready.push_back(number),
                _ => {}
            }
        }
    }

    fn leave_pool(&self, number: u32) {
        let mut stock = lock(&self.stock);
        let was_there = stock.carve(number, 1);
        assert!(was_there, "chunk {number} is not in the pool");
        self.change_state(number, POOL, FULL);
        drop(stock);
        self.list_if_ready(number);
    }

    /// As [`Lines::take`], from the claimed chunk alone.
    ///
    /// # Panics
    /// If `lines` is 0, or more than a chunk has.
    #[inline]
    pub(crate) fn take_claimed(&self, claim: &mut Option<Claim>, lines: u32) -> Option<u64> {
        assert!((1..=self.usable()).contains(&lines));
        self.take_of(claim.as_mut()?, lines)
    }

    /// Takes `lines` adjacent lines and returns the number of the first: from the claimed chunk, or from
    /// another one, which is then claimed instead. `None`: chunks must be added.
    ///
    /// # Panics
    /// If `lines` is 0, or more than a chunk has.
    pub(crate) fn take(&self, claim: &mut Option<Claim>, lines: u32) -> Option<u64> {
        if let Some(line) = self.take_claimed(claim, lines) {
            return Some(line);
        }
        if let Some(claim) = claim.take() {
            self.let_go(claim);
        }
        // The free lines of a listed chunk may be scattered. Chunks released just now are at the end of the
        // list.
        for _ in 0..LISTED_TRIES {
            let Some(number) = self.next_listed() else {
                break;
            };
            let mut other = self.claim_of(number);
            match self.take_of(&mut other, lines) {
                Some(line) => {
                    *claim = Some(other);
                    return Some(line);
                }
                None => self.let_go(other),
            }
        }
        let mut stock = lock(&self.stock);
        let (&first, _) = stock.pool.first_key_value()?;
        stock.carve(first, 1);
        self.change_state(first, POOL, OWNED);
        drop(stock);
        let mut whole = self.claim_of(first);
        let line = self.take_of(&mut whole, lines);
        *claim = Some(whole);
        line
    }

    /// As [`Lines::take`], from any unclaimed chunk, for a heap that cannot grow any more. Searches all
    /// chunks.
    pub(crate) fn take_anywhere(&self, claim: &mut Option<Claim>, lines: u32) -> Option<u64> {
        if let Some(claim) = claim.take() {
            self.let_go(claim);
        }
        let leaves = self.leaves.iter().enumerate();
        let numbers = leaves.filter_map(|(leaf, chunks)| {
            let chunks = chunks.get()?.chunks.len();
            let first = (LEAF_FIRST << leaf) - LEAF_FIRST;
            Some(first..first + chunks)
        });
        for number in numbers.flatten() {
            let mut other = self.claim_of(number as u32);
            let state = self.known(other.chunk).state;
            let owned = [FULL, LISTED].into_iter().any(|before| {
                state
                    .compare_exchange(before, OWNED, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
            });
            if !owned {
                continue;
            }
            if let Some(line) = self.take_of(&mut other, lines) {
                *claim = Some(other);
                return Some(line);
            }
            self.let_go(other);
        }
        None
    }

    fn next_listed(&self) -> Option<u32> {
        let mut stock = lock(&self.stock);
        loop {
            let number = stock.ready.pop_front()?;
            let state = self.known(number).state;
            let listed = state.compare_exchange(LISTED, OWNED, Ordering::SeqCst, Ordering::Relaxed);
            if listed.is_ok() {
                return Some(number);
            }
        }
    }

    fn claim_of(&self, chunk: u32) -> Claim {
        Claim {
            chunk,
            from: self.header_lines,
        }
    }

    #[inline]
    fn take_of(&self, claim: &mut Claim, lines: u32) -> Option<u64> {
        let chunk = self.known(claim.chunk);
        debug_assert_eq!(
            chunk.state.load(Ordering::Relaxed),
            OWNED,
            "lines are taken from an unclaimed chunk"
        );
        let at = find(chunk.taken, claim.from, lines)?;
        debug_assert!(
            at >= self.header_lines && at + lines <= self.chunk_lines,
            "lines are taken outside the usable part of a chunk"
        );
        mark(chunk.taken, at, lines);
        chunk.free.fetch_sub(lines, Ordering::SeqCst);
        claim.from = at + lines;
        Some(u64::from(claim.chunk) * u64::from(self.chunk_lines) + u64::from(at))
    }

    /// Releases a claimed chunk.
    pub(crate) fn let_go(&self, claim: Claim) {
        self.change_state(claim.chunk, OWNED, FULL);
        self.list_if_ready(claim.chunk);
    }

    /// Gives lines back that were taken in one piece. No reader may still access them.
    pub(crate) fn give_back(&self, line: u64, lines: u32) {
        let (number, from) = self.place_of(line);
        assert!(
            lines > 0 && from >= self.header_lines && from + lines <= self.chunk_lines,
            "lines are given back that are not one usable piece"
        );
        clear(self.known(number).taken, from, lines);
        self.known(number).free.fetch_add(lines, Ordering::SeqCst);
        self.list_if_ready(number);
    }

    fn list_if_ready(&self, number: u32) {
        let chunk = self.known(number);
        if count_of(chunk.free) < self.ready_lines {
            return;
        }
        let full = chunk
            .state
            .compare_exchange(FULL, LISTED, Ordering::SeqCst, Ordering::Relaxed);
        if full.is_ok() {
            let mut stock = lock(&self.stock);
            stock.ready.push_back(number);
            // A chunk that was claimed past the list is still in it.
            if stock.ready.len() as u64 > 2 * stock.chunks {
                let chunks: BTreeSet<u32> = stock.ready.drain(..).collect();
                stock.ready.extend(chunks);
            }
        }
    }

    /// Takes `count` adjacent, wholly free chunks; returns the number of the first. `None`: more must be
    /// added.
    pub(crate) fn take_run(&self, count: u32) -> Option<u32> {
        let mut stock = lock(&self.stock);
        let mut first = stock.find(count);
        if first.is_none() {
            self.pool_what_is_free(&mut stock);
            first = stock.find(count);
        }
        let first = first?;
        stock.carve(first, count);
        self.make_run(first, count);
        Some(first)
    }

    /// Changes the state of a chunk; no other thread may change it now.
    fn change_state(&self, number: u32, from: u32, to: u32) {
        let before = self.known(number).state.swap(to, Ordering::SeqCst);
        assert_eq!(before, from, "chunk {number} is in another state");
    }

    fn make_run(&self, first: u32, count: u32) {
        for number in first..first + count {
            self.change_state(number, POOL, RUN);
        }
        self.known(first).free.store(count, Ordering::SeqCst);
    }

    /// Gives a run back; returns its number of chunks.
    pub(crate) fn give_back_run(&self, first: u32) -> u32 {
        let mut stock = lock(&self.stock);
        let chunk = self.known(first);
        assert_eq!(chunk.state.load(Ordering::SeqCst), RUN);
        let count = chunk.free.swap(self.usable(), Ordering::SeqCst);
        for number in first..first + count {
            self.change_state(number, RUN, POOL);
        }
        stock.put(first, count);
        count
    }

    /// Moves wholly free listed chunks into the pool.
    fn pool_what_is_free(&self, stock: &mut Stock) {
        let mut kept = VecDeque::with_capacity(stock.ready.len());
        for number in std::mem::take(&mut stock.ready) {
            let chunk = self.known(number);
            let exchange = |from, to| {
                let done =
                    chunk
                        .state
                        .compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
                done.is_ok()
            };
            // A thread that takes lines anywhere may have claimed the chunk; it lists the chunk again when it
            // releases it.
            if !exchange(LISTED, OWNED) {
                continue;
            }
            if count_of(chunk.free) == self.usable() {
                debug_assert_eq!(
                    next_taken(chunk.taken, self.header_lines, self.chunk_lines),
                    self.chunk_lines,
                    "a chunk counts as wholly free, but has taken lines"
                );
                chunk.state.store(POOL, Ordering::SeqCst);
                stock.put(number, 1);
            } else {
                chunk.state.store(LISTED, Ordering::SeqCst);
                kept.push_back(number);
            }
        }
        stock.ready = kept;
    }

    /// Whether these lines are taken.
    pub(crate) fn are_taken(&self, line: u64, lines: u32) -> bool {
        let (number, from) = self.place_of(line);
        let inside = from >= self.header_lines && lines <= self.chunk_lines - from;
        inside && next_free(self.known(number).taken, from) >= from + lines
    }

    fn place_of(&self, line: u64) -> (u32, u32) {
        let lines = u64::from(self.chunk_lines);
        ((line / lines) as u32, (line % lines) as u32)
    }
}

impl Stock {
    /// Adds a run to the pool and joins it with its neighbours.
    fn put(&mut self, mut first: u32, mut count: u32) {
        let before = self.pool.range(..first + count).next_back();
        assert!(
            before.is_none_or(|(before, length)| before + length <= first),
            "chunks are added to the pool twice"
        );
        self.pooled += u64::from(count);
        if let Some((&before, &length)) = self.pool.range(..first).next_back()
            && before + length == first
        {
            self.pool.remove(&before);
            (first, count) = (before, count + length);
        }
        if let Some(behind) = self.pool.remove(&(first + count)) {
            count += behind;
        }
        self.pool.insert(first, count);
    }

    /// The first chunk of the shortest run that is long enough.
    fn find(&self, count: u32) -> Option<u32> {
        let long = self.pool.iter().filter(|(_, length)| **length >= count);
        long.min_by_key(|(_, length)| **length)
            .map(|(&first, _)| first)
    }

    /// Removes these chunks from the pool. `false`: some of them are not in it.
    fn carve(&mut self, first: u32, count: u32) -> bool {
        let Some((&start, &length)) = self.pool.range(..=first).next_back() else {
            return false;
        };
        if start + length < first + count {
            return false;
        }
        self.pool.remove(&start);
        self.pooled -= u64::from(count);
        if start < first {
            self.pool.insert(start, first - start);
        }
        if first + count < start + length {
            self.pool
                .insert(first + count, start + length - first - count);
        }
        true
    }
}

/// The leaf of a chunk, and its index there.
#[inline]
fn leaf_of(number: u32) -> (usize, usize) {
    let number = number as usize + LEAF_FIRST;
    let leaf = (number / LEAF_FIRST).ilog2() as usize;
    (leaf, number - (LEAF_FIRST << leaf))
}

pub(super) fn low_bits(count: u32) -> u64 {
    match count {
        0 => 0,
        count => u64::MAX >> (64 - count.min(64)),
    }
}

/// Calls `each` with the words that hold `lines` lines from `from` on, and their bits.
pub(super) fn masks(from: u32, lines: u32, mut each: impl FnMut(usize, u64)) {
    let end = from + lines;
    let mut at = from;
    while at < end {
        let bits = (64 - at % 64).min(end - at);
        each((at / 64) as usize, low_bits(bits) << (at % 64));
        at += bits;
    }
}

fn mark(taken: &[AtomicU64], from: u32, lines: u32) {
    masks(from, lines, |word, bits| {
        let before = taken[word].fetch_or(bits, Ordering::Relaxed);
        assert_eq!(before & bits, 0, "lines are taken twice");
    });
}

fn clear(taken: &[AtomicU64], from: u32, lines: u32) {
    masks(from, lines, |word, bits| {
        // Release: the next owner must see that all readers are done.
        let before = taken[word].fetch_and(!bits, Ordering::Release);
        assert_eq!(before & bits, bits, "free lines are given back");
    });
}

/// The count of free lines, at least 0. Lines that were given back may be taken again before they are
/// counted, so the counter is briefly negative.
fn count_of(free: &AtomicU32) -> u32 {
    free.load(Ordering::SeqCst)
        .cast_signed()
        .max(0)
        .cast_unsigned()
}

/// The first run of `lines` free lines at or after `from`.
fn find(taken: &[AtomicU64], from: u32, lines: u32) -> Option<u32> {
    let all = taken.len() as u32 * 64;
    let mut at = from;
    loop {
        at = next_free(taken, at);
        if all < at + lines {
            return None;
        }
        let end = next_taken(taken, at, at + lines);
        if end == at + lines {
            return Some(at);
        }
        at = end;
    }
}

/// The first free line at or after `from`; the number of lines if there is none.
fn next_free(taken: &[AtomicU64], from: u32) -> u32 {
    let all = taken.len() as u32 * 64;
    let mut at = from;
    while at < all {
        let word = taken[(at / 64) as usize].load(Ordering::Acquire) >> (at % 64);
        let ones = word.trailing_ones();
        if ones < 64 - at % 64 {
            return at + ones;
        }
        at = (at / 64 + 1) * 64;
    }
    all
}

/// The first taken line at or after `from`, at most `end`.
fn next_taken(taken: &[AtomicU64], from: u32, end: u32) -> u32 {
    let mut at = from;
    while at < end {
        let word = taken[(at / 64) as usize].load(Ordering::Acquire) >> (at % 64);
        let zeros = word.trailing_zeros();
        if zeros < 64 - at % 64 {
            return end.min(at + zeros);
        }
        at = (at / 64 + 1) * 64;
    }
    end
}
