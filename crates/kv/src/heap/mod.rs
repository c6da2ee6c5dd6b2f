//! A persistent heap: objects of any size in a pool, allocated and freed by transactions (Bullet, section 3).
//!
//! ```text
//! chunk of 256 KiB                                       run of chunks, for one object that is larger
//! +------------+--------------+-------+-------+- - -     +------------+---------------------------- - -
//! | descriptor | a bit a line | lines | lines |          | descriptor | lines, also of later chunks
//! +------------+--------------+-------+-------+- - -     +------------+---------------------------- - -
//! ```
//!
//! A writer *takes* lines, fills them, and lets a transaction *publish* them together with the word that
//! makes them reachable. Taking is volatile: a crash before that transaction leaves nothing behind. Lines
//! that a transaction *retracts* are *given back* once no reader can access them. So a crash neither leaks
//! lines nor frees lines in use, and recovery has nothing to search for (B12).
//!
//! Invariants:
//! - The persistent bit of a line is set exactly if a committed transaction published it and none has
//!   retracted it since.
//! - The volatile bookkeeping ([`Lines`]) marks every line with a persistent bit, and also lines that are
//!   taken or not yet given back.
//! - Headers of later chunks of a run are data. So the run's descriptor exists before any of them is
//!   overwritten, and disappears after all of them are headers again.

mod adopting;
mod lines;
#[cfg(test)]
mod tests;
mod txn;

use crate::engine::persist_on_read::ReadFlusher;
use crate::error::{Error, corrupt};
use everdram_pm::lock::lock;
use everdram_pm::{Extent, Flushed, LINE, Lane, Pool, Secret};
use parking_lot::Mutex;
use std::sync::Arc;

pub(crate) use adopting::Adopting;
pub(crate) use lines::{Claim, Lines};
pub(crate) use txn::{Redo, Txn};

/// Bytes of a run before its object.
const RUN_HEAD: u64 = LINE;
/// Lines of a chunk by default; small pools use fewer.
pub(crate) const CHUNK_LINES: u32 = 4096;

/// The kind of a chunk, in its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Descriptor {
    /// Lines and their bits. A new extent is all zeros, and so is this word.
    Lines,
    /// The first of this many chunks, taken; nothing in the pool refers to the object.
    Taken(u32),
    /// The first of this many chunks of a published object.
    Run(u32),
}

const TAKEN: u64 = 1;
const PUBLISHED: u64 = 2;
const SALT: u64 = 0x68;

const _: () = {
    assert!(RUN_HEAD == LINE && TAKEN != PUBLISHED);
    assert!(TAKEN <= 0xff && PUBLISHED <= 0xff);
    assert!(
        CHUNK_LINES.is_multiple_of(64),
        "a bit for each line, in whole words"
    );
};

impl Descriptor {
    fn word(self, secret: &Secret, at: u64) -> u64 {
        let body = match self {
            Descriptor::Lines => return 0,
            Descriptor::Taken(chunks) => TAKEN | u64::from(chunks) << 8,
            Descriptor::Run(chunks) => PUBLISHED | u64::from(chunks) << 8,
        };
        body | secret.sum_words([SALT, at, body]) >> 40 << 40
    }

    fn parse(secret: &Secret, at: u64, word: u64) -> Option<Descriptor> {
        let chunks = (word >> 8) as u32;
        let descriptor = match word & 0xff {
            0 => Descriptor::Lines,
            TAKEN => Descriptor::Taken(chunks),
            PUBLISHED => Descriptor::Run(chunks),
            _ => return None,
        };
        (descriptor.word(secret, at) == word).then_some(descriptor)
    }
}

/// See the module text.
pub(crate) struct Heap {
    pool: Arc<Pool>,
    /// The owner of its extents.
    owner: u32,
    lines: Lines,
    chunk_bytes: u64,
    /// Limit of growth ahead of need.
    step_bytes: u64,
    bytes_max: u64,
    /// Held while chunks are added.
    growth: Mutex<()>,
    /// First chunks of the runs that were taken when the pool was opened and that nothing has adopted.
    found: Mutex<Vec<u32>>,
}

impl Heap {
    /// Opens the heap in the extents of `owner`. `chunk_lines` must be the same at each open, a multiple of
    /// 64. Ahead of need it grows by up to `step_bytes`, to at most `bytes_max`.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path, unless `tolerate` accepts it: the chunk's contents are then
    /// unknown, and all of it counts as taken.
    pub(crate) fn open(
        pool: Arc<Pool>,
        found: &mut ReadFlusher,
        owner: u32,
        chunk_lines: u32,
        [step_bytes, bytes_max]: [u64; 2],
        tolerate: impl Fn(Error) -> Result<(), Error>,
    ) -> Result<Heap, Error> {
        let header_words = 1 + u64::from(chunk_lines) / 64;
        let header_lines = (header_words * 8).div_ceil(LINE) as u32;
        let heap = Heap {
            owner,
            lines: Lines::new(chunk_lines, header_lines),
            chunk_bytes: u64::from(chunk_lines) * LINE,
            step_bytes,
            bytes_max,
            growth: Mutex::new(()),
            found: Mutex::default(),
            pool,
        };
        for extent in heap.pool.extents(owner) {
            heap.read_extent(found, extent, &tolerate)?;
        }
        Ok(heap)
    }

    fn read_extent(
        &self,
        found: &mut ReadFlusher,
        extent: Extent,
        tolerate: impl Fn(Error) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let region = self.pool.region();
        let first = self.chunk_of(extent.at);
        let count = (extent.bytes / self.chunk_bytes) as u32;
        let sound = extent.at.is_multiple_of(self.chunk_bytes) && count > 0;
        if !sound || !self.lines.add(first, count) {
            return Err(corrupt(extent.at, "the heap has an impossible extent"));
        }
        let words = self.chunk_bytes / LINE / 64;
        let mut header = vec![0; ((1 + words) * 8) as usize];
        let mut number = first;
        while number < first + count {
            let at = self.at_of(number);
            // Persist the descriptor before trusting it: if it were lost, chunks in use would look free.
            found.keep(at, LINE);
            region.load(at, &mut header);
            let mut words = header
                .as_chunks::<8>()
                .0
                .iter()
                .map(|word| u64::from_le_bytes(*word));
            let descriptor = Descriptor::parse(self.pool.secret(), at, words.next().unwrap_or(0));
            let chunks = match descriptor {
                Some(Descriptor::Lines) => {
                    self.lines.adopt(number, words);
                    1
                }
                Some(Descriptor::Taken(chunks) | Descriptor::Run(chunks))
                    if (1..=first + count - number).contains(&chunks) =>
                {
                    let adopted = self.lines.adopt_run(number, chunks);
                    assert!(adopted, "a run of unread chunks is adopted");
                    if matches!(descriptor, Some(Descriptor::Taken(_))) {
                        self.found.lock().push(number);
                    }
                    chunks
                }
                _ => {
                    tolerate(corrupt(at, "the descriptor of a chunk is damaged"))?;
                    self.lines.adopt(number, std::iter::repeat(u64::MAX));
                    1
                }
            };
            number += chunks;
        }
        Ok(())
    }

    /// Marks an object as taken that nothing published refers to, but a log record does. Call it before
    /// anything else is taken. `false`: no such object can exist.
    pub(crate) fn adopt(&self, at: u64, bytes: u64) -> bool {
        if !at.is_multiple_of(LINE) || bytes == 0 {
            return false;
        }
        if self.is_run(bytes) {
            let number = self.chunk_of(at);
            let mut found = self.found.lock();
            let Some(place) = found.iter().position(|run| *run == number) else {
                return false;
            };
            let word = self.pool.region().load_word(self.at_of(number));
            let fits = Descriptor::Taken(self.chunks_for(bytes))
                .word(self.pool.secret(), self.at_of(number))
                == word;
            if fits {
                found.swap_remove(place);
            }
            return fits;
        }
        self.lines.adopt_lines(at / LINE, lines_for(bytes))
    }

    /// Frees the runs that a crash left taken and that nothing adopted.
    pub(crate) fn sweep(&self, lane: &mut Lane) {
        for number in std::mem::take(&mut *self.found.lock()) {
            self.free_run(lane, number);
        }
    }

    /// Takes room for an object of `bytes` bytes, growing the pool if necessary; returns the offset of its
    /// first byte, a multiple of 64. The object owns the bytes up to the next multiple of 64. Its content is
    /// undefined.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::Pool`].
    #[inline]
    pub(crate) fn take(
        &self,
        lane: &mut Lane,
        claim: &mut Option<Claim>,
        bytes: u64,
    ) -> Result<u64, Error> {
        if self.is_run(bytes) {
            return self.take_run(lane, bytes);
        }
        let lines = lines_for(bytes);
        loop {
            if let Some(line) = self.lines.take(claim, lines) {
                debug_assert!(
                    self.pool.region().contains(line * LINE, bytes),
                    "an object lies outside the pool"
                );
                return Ok(line * LINE);
            }
            if let Err(error) = self.grow(1) {
                let line = self.lines.take_anywhere(claim, lines);
                return line.map(|line| line * LINE).ok_or(error);
            }
        }
    }

    fn take_run(&self, lane: &mut Lane, bytes: u64) -> Result<u64, Error> {
        let chunks = self.chunks_for(bytes);
        let number = loop {
            match self.lines.take_run(chunks) {
                Some(number) => break number,
                None => self.grow(chunks)?,
            }
        };
        let at = self.at_of(number);
        let word = Descriptor::Taken(chunks).word(self.pool.secret(), at);
        let dirty = lane.store_word(at, word);
        let flushed = lane.flush(dirty);
        let _ordered = lane.fence(flushed);
        Ok(at + RUN_HEAD)
    }

    /// Releases a claim: another allocator may continue in its chunk.
    pub(crate) fn let_go(&self, claim: &mut Option<Claim>) {
        if let Some(claim) = claim.take() {
            self.lines.let_go(claim);
        }
    }

    /// Bytes of free lines, even scattered ones.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.lines.free() * LINE
    }

    /// Whether a pool that has grown as far as it may could hold so many bytes.
    pub(crate) fn could_hold(&self, bytes: u64) -> bool {
        bytes < self.bytes_max.max(self.pool.region().len())
    }

    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Bytes of lines in wholly free chunks.
    pub(crate) fn free_whole_bytes(&self) -> u64 {
        self.lines.free_whole() * LINE
    }

    /// Grows the pool until `bytes` bytes are free in wholly free chunks.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`].
    pub(crate) fn grow_to(&self, bytes: u64) -> Result<(), Error> {
        loop {
            let free = self.free_whole_bytes();
            if free >= bytes {
                return Ok(());
            }
            self.grow((bytes - free).div_ceil(self.chunk_bytes) as u32)?;
        }
    }

    #[cold]
    fn grow(&self, chunks: u32) -> Result<(), Error> {
        let before = self.lines.chunks();
        let _growth = lock(&self.growth);
        if self.lines.chunks() != before {
            // Another thread has grown it meanwhile: retry first.
            return Ok(());
        }
        let needed = u64::from(chunks) * self.chunk_bytes;
        // A small pool grows by an eighth.
        let ahead = (before * self.chunk_bytes / 8).min(self.step_bytes) / self.chunk_bytes
            * self.chunk_bytes;
        let room = self.bytes_max.saturating_sub(self.pool.region().len());
        if needed > room {
            return Err(Error::NoSpace(format!(
                "it has grown to {} bytes of at most {}; raise Options::max_bytes, or delete something",
                self.pool.region().len(),
                self.bytes_max
            )));
        }
        let bytes = needed.max(ahead.min(room / self.chunk_bytes * self.chunk_bytes));
        let extent = match self.pool.allocate(self.owner, bytes, self.chunk_bytes) {
            Err(everdram_pm::Error::NoSpace { .. }) if bytes > needed => {
                self.pool.allocate(self.owner, needed, self.chunk_bytes)
            }
            other => other,
        };
        let extent = extent.map_err(|error| match error {
            everdram_pm::Error::NoSpace { .. } => Error::NoSpace(error.to_string()),
            other => Error::Pool(other),
        })?;
        assert!(
            (extent.at | extent.bytes).is_multiple_of(self.chunk_bytes),
            "the pool has grown by a part of a chunk"
        );
        let count = (extent.bytes / self.chunk_bytes) as u32;
        match self.lines.add(self.chunk_of(extent.at), count) {
            true => Ok(()),
            false => Err(Error::NoSpace(
                "the heap has no more chunk numbers; make a new pool with larger chunks".into(),
            )),
        }
    }

    /// Adds to a transaction that an object becomes permanent. Flush its bytes before the commit.
    #[inline]
    pub(crate) fn publish(&self, txn: &mut Txn, at: u64, bytes: u64) {
        match self.is_run(bytes) {
            true => self.describe(txn, at, Descriptor::Run(self.chunks_for(bytes))),
            false => {
                debug_assert!(
                    self.lines.are_taken(at / LINE, lines_for(bytes)),
                    "an object with free lines is published"
                );
                self.bits(at, bytes, |word, bits| txn.raise(word, bits));
            }
        }
    }

    /// Adds to a transaction that an object is freed. Give it back after the commit, once no reader can
    /// access it.
    #[inline]
    pub(crate) fn retract(&self, txn: &mut Txn, at: u64, bytes: u64) {
        match self.is_run(bytes) {
            true => self.describe(txn, at, Descriptor::Taken(self.chunks_for(bytes))),
            false => self.bits(at, bytes, |word, bits| txn.lower(word, bits)),
        }
    }

    /// Prefetches the words that [`Heap::retract`] is going to change.
    #[inline]
    pub(crate) fn prefetch(&self, at: u64, bytes: u64) {
        if !self.is_run(bytes) {
            self.bits(at, bytes, |word, _| {
                self.pool.region().prefetch_to_write(word)
            });
        }
    }

    fn describe(&self, txn: &mut Txn, at: u64, descriptor: Descriptor) {
        let at = at - RUN_HEAD;
        assert!(
            at.is_multiple_of(self.chunk_bytes),
            "an object is a run, but does not begin at a chunk"
        );
        txn.set(at, descriptor.word(self.pool.secret(), at));
    }

    /// Calls `each` with the offset and the bits of each word that holds bits of the object.
    fn bits(&self, at: u64, bytes: u64, mut each: impl FnMut(u64, u64)) {
        let header = self.at_of(self.chunk_of(at)) + 8;
        let first = (at % self.chunk_bytes / LINE) as u32;
        lines::masks(first, lines_for(bytes), |word, bits| {
            each(header + word as u64 * 8, bits);
        });
    }

    /// Gives back an object that was taken and is not published.
    #[inline]
    pub(crate) fn give_back(&self, lane: &mut Lane, at: u64, bytes: u64) {
        match self.is_run(bytes) {
            true => self.free_run(lane, self.chunk_of(at)),
            false => self.lines.give_back(at / LINE, lines_for(bytes)),
        }
    }

    /// Writes the headers of all chunks of a run, then ends the run.
    fn free_run(&self, lane: &mut Lane, number: u32) {
        let at = self.at_of(number);
        let header = (u64::from(self.lines.header()) * LINE) as usize;
        let zeros = vec![0; header];
        let word = self.pool.region().load_word(at);
        let chunks = (word >> 8) as u32;
        // The rest of the descriptor's line is stored before it, and reaches the pool no later: it needs no
        // flush of its own.
        let (line, rest) = zeros.split_at(LINE as usize);
        let with_descriptor = lane.store(at + 8, &line[8..]);
        let others =
            (1..u64::from(chunks)).map(|chunk| (at + chunk * self.chunk_bytes, &zeros[..]));
        // A run of one chunk must clear a longer header.
        let headers = std::iter::once((at + LINE, rest)).chain(others);
        let streamed = headers
            .filter(|(_, zeros)| !zeros.is_empty())
            .map(|(at, zeros)| lane.stream(at, zeros));
        let flushed = streamed
            .reduce(Flushed::and)
            .unwrap_or_else(|| lane.flush(with_descriptor));
        let ordered = lane.fence(flushed);
        let dirty = lane.publish(at, Descriptor::Lines.word(self.pool.secret(), at), &ordered);
        let flushed = lane.flush(dirty);
        let _ordered = lane.fence(flushed);
        self.lines.give_back_run(number);
    }

    /// Whether the pool has every line of the object in use.
    pub(crate) fn is_published(&self, at: u64, bytes: u64) -> bool {
        let region = self.pool.region();
        let inside = region.contains(at, bytes) && at.is_multiple_of(LINE);
        let chunk = self.at_of(self.chunk_of(at));
        if !inside || bytes == 0 {
            return false;
        }
        if self.is_run(bytes) {
            let descriptor = Descriptor::Run(self.chunks_for(bytes));
            return at == chunk + RUN_HEAD
                && region.load_word(chunk) == descriptor.word(self.pool.secret(), chunk);
        }
        let behind = at % self.chunk_bytes + lines_for(bytes) as u64 * LINE;
        let mut all = behind <= self.chunk_bytes
            && at % self.chunk_bytes >= u64::from(self.lines.header()) * LINE;
        if all {
            self.bits(at, bytes, |word, bits| {
                all &= region.load_word(word) & bits == bits
            });
        }
        all
    }

    /// Bytes of all chunks, and bytes taken.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (
            self.lines.chunks() * self.chunk_bytes,
            self.lines.taken() * LINE,
        )
    }

    #[inline]
    fn is_run(&self, bytes: u64) -> bool {
        bytes > u64::from(self.lines.usable()) * LINE
    }

    fn chunks_for(&self, bytes: u64) -> u32 {
        (bytes + RUN_HEAD).div_ceil(self.chunk_bytes) as u32
    }

    #[inline]
    fn chunk_of(&self, at: u64) -> u32 {
        (at / self.chunk_bytes) as u32
    }

    fn at_of(&self, number: u32) -> u64 {
        u64::from(number) * self.chunk_bytes
    }
}

#[inline]
fn lines_for(bytes: u64) -> u32 {
    bytes.div_ceil(LINE) as u32
}
