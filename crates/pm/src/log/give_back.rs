//! Giving memory back: chunks of the image without stores are mapped from the image file again. They then
//! take no memory of the process, but room in the page cache, which the system can reclaim at any time.
//!
//! A chunk is replaced only if
//! 1. the log is healthy, under the checkpointer's lock: everything ever written to the image is then synced,
//!    so the page cache holds nothing that the disk lacks;
//! 2. the file has the very bytes of memory: they are compared. A store that was never flushed makes a
//!    difference. Its line is appended to the log, so that the next checkpoint writes its page (in the crash
//!    model a cache evicts a line). It must be logged, since no page goes to the image that no group touches:
//!    see `checkpoint.rs`;
//! 3. no lane stored to it since before the comparison, nor does until it is replaced: see `chunks.rs`.
//!
//! Readers notice nothing. The system replaces pages under its own lock; a load in between waits for that as
//! for any page fault, and finds the same bytes.
//!
//! A chunk must be quiet from one round of the checkpointer to the next, so memory that is rewritten again
//! and again stays, in huge pages. The chunk with the superblock always stays: the file's copy changes by
//! itself.

use super::Shared;
use super::chunks::{Announcer, CHUNK, Chunks};
use super::content::Content;
use crate::lock::lock;
use crate::memory::cpu::LINE;
use crate::memory::map::Reservation;
use parking_lot::Mutex;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes compared at a time.
const SLICE: usize = 128 << 10;
/// Limit of mapped chunks without a mapped neighbour. Each adds up to two mappings, and a process may have
/// some 65 000.
const ISLANDS_MAX: usize = 8192;

/// See the module text.
pub(super) struct Memory {
    pub(super) chunks: Arc<Chunks>,
    pub(super) reservation: Arc<Reservation>,
    mapped: Mutex<Mapped>,
}

/// Buffers for the comparison, kept from chunk to chunk.
struct Compared {
    ours: Vec<u8>,
    theirs: Vec<u8>,
    /// The lines of a slice that differ.
    lines: Content,
}

/// The chunks over which the file is mapped.
struct Mapped {
    /// Per chunk: whether it is a mapping of the file, not memory that the image grew by.
    chunks: Vec<bool>,
    islands: usize,
    /// A permanent failure: memory is kept from then on.
    refused: bool,
}

impl Memory {
    /// The first `image_bytes` are mapped from the file.
    pub(super) fn new(reservation: Arc<Reservation>, image_bytes: u64) -> Memory {
        Memory {
            chunks: Arc::new(Chunks::new(reservation.bytes())),
            reservation,
            mapped: Mutex::new(Mapped {
                chunks: vec![true; (image_bytes / CHUNK) as usize],
                islands: 0,
                refused: false,
            }),
        }
    }

    pub(super) fn announcer(&self) -> Announcer {
        Announcer::new(&self.chunks)
    }
}

impl Mapped {
    fn has(&self, chunk: u64) -> bool {
        self.chunks
            .get(chunk as usize)
            .is_some_and(|mapped| *mapped)
    }

    /// Whether the file may be mapped over the chunk. If so, counts it as mapped.
    fn admit(&mut self, chunk: u64) -> bool {
        if self.has(chunk) {
            return true;
        }
        if !self.has(chunk - 1) && !self.has(chunk + 1) {
            if self.islands == ISLANDS_MAX {
                return false;
            }
            self.islands += 1;
        }
        true
    }

    fn add(&mut self, chunk: u64) {
        if self.chunks.len() <= chunk as usize {
            self.chunks.resize(chunk as usize + 1, false);
        }
        self.chunks[chunk as usize] = true;
    }
}

impl Shared {
    /// The chunks that may be given back: all whole ones except the superblock's.
    fn whole_chunks(&self) -> Range<u64> {
        1..(self.options.region.len() / CHUNK).max(1)
    }

    /// Whether [`Shared::give_back`] could give memory back, now or later.
    pub(super) fn holds_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| {
            !memory.mapped.lock().refused && memory.chunks.any_awake(self.whole_chunks())
        })
    }

    /// Gives back the memory of chunks that were quiet since the last call; returns how many. Call it after a
    /// checkpoint.
    pub(super) fn give_back(&self) -> usize {
        let Some(memory) = &self.memory else { return 0 };
        let _alone = lock(&self.checkpointing);
        let mut mapped = memory.mapped.lock();
        let mut compared = Compared {
            ours: vec![0; SLICE],
            theirs: vec![0; SLICE],
            lines: Content::default(),
        };
        let chunks = self.whole_chunks();
        let mut count = 0;
        for chunk in chunks.clone() {
            if mapped.refused || self.healthy().is_err() || self.stopping.load(Ordering::Relaxed) {
                return count;
            }
            if memory.chunks.is_watched(chunk) {
                let given = self.give_back_chunk(memory, &mut mapped, chunk, &mut compared);
                mapped.refused |= given.is_err();
                count += usize::from(given == Ok(true));
                // Writers must not run out of segments meanwhile. The checkpoint deals with a full disk, and
                // the next turn of the loop sees a failure.
                let _ = self.prepare_what_fits();
            }
        }
        memory.chunks.watch(chunks);
        count
    }

    fn give_back_chunk(
        &self,
        memory: &Memory,
        mapped: &mut Mapped,
        chunk: u64,
        compared: &mut Compared,
    ) -> Result<bool, Errno> {
        let (from, to) = (chunk * CHUNK, (chunk + 1) * CHUNK);
        if !self.is_in_file(from..to, compared)? || !mapped.admit(chunk) {
            return Ok(false);
        }
        memory.chunks.bar(chunk, || {
            let file = self.options.image.inner().as_fd();
            // SAFETY: memory and file have the same bytes: they were compared, and no lane has stored to the
            // chunk since before that (`chunks.rs`; the file is ours while we are the checkpointer). No lane
            // stores to it before this returns.
            unsafe {
                memory
                    .reservation
                    .give_back(file, from, to, mapped.has(chunk))
            }?;
            mapped.add(chunk);
            Ok(())
        })
    }

    /// Whether the file has the bytes of memory. Lines that differ are appended to the log; if the log has no
    /// room now, the next round finds them again.
    fn is_in_file(&self, bytes: Range<u64>, compared: &mut Compared) -> Result<bool, Errno> {
        let Compared {
            ours,
            theirs,
            lines,
        } = compared;
        let mut same = true;
        for at in bytes.step_by(SLICE) {
            self.options.image.pread_exact(at, theirs)?;
            self.options.region.copy_out(at, ours);
            if ours == theirs {
                continue;
            }
            same = false;
            let pairs = ours.chunks(LINE as usize).zip(theirs.chunks(LINE as usize));
            for (line, (ours, theirs)) in (at / LINE..).zip(pairs) {
                if ours != theirs {
                    lines.push_shared(line * LINE, LINE);
                }
            }
            self.append_if_room(lines);
        }
        Ok(same)
    }
}
