//! Giving memory back: chunks of the image that nobody stores to are mapped from the image file again, so
//! that they take room in the page cache, which the system can have at any time, and no memory of the
//! process.
//!
//! A chunk is replaced only if
//! 1. the log is healthy, under the lock of the checkpointer: so all that was ever written to the image is
//!    synced, and the page cache can lose nothing that the disk does not have;
//! 2. the file has the very bytes that memory has: they are compared. A store that nobody has flushed yet
//!    makes a difference, and its line is appended to the log, so that the next checkpoint writes its page
//!    (to the crash model that is a cache that evicts a line). It is logged like any other since no page goes
//!    to the image that no group touches: see `checkpoint.rs`;
//! 3. nobody stored to it since before the comparison, nor does until it is replaced: see `chunks.rs`.
//!
//! Readers notice nothing: the system replaces pages under its own lock, a load that comes in between waits
//! for that as for any page that is not there yet, and finds the same bytes.
//!
//! A chunk must have been quiet from one round of the checkpointer to the next, so what is written over and
//! over stays in memory, in huge pages. The chunk with the superblock stays for ever: the file's copy changes
//! by itself.

use super::Shared;
use super::chunks::{Announcer, CHUNK, Chunks};
use super::group::Content;
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
/// How often chunks may be mapped that have no mapped neighbour. Each makes up to two mappings more, and a
/// process may have some 65 000.
const ISLANDS_MAX: usize = 8192;

/// See the module text.
pub(super) struct Memory {
    pub(super) chunks: Arc<Chunks>,
    pub(super) reservation: Arc<Reservation>,
    mapped: Mutex<Mapped>,
}

/// What comparing needs, kept from chunk to chunk.
struct Compared {
    ours: Vec<u8>,
    theirs: Vec<u8>,
    /// The lines of a slice in which they differ.
    lines: Content,
}

/// What the file is mapped over.
struct Mapped {
    /// For each chunk, whether it is a mapping of the file, and not memory that the image grew by.
    chunks: Vec<bool>,
    islands: usize,
    /// Something went wrong that would go wrong again: memory is kept from then on.
    refused: bool,
}

impl Memory {
    /// `image_bytes` of the file are mapped.
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

    /// Whether the file may be mapped over the chunk; if so, it will be.
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
    /// The chunks that may be given back: whole ones, without the superblock's.
    fn whole_chunks(&self) -> Range<u64> {
        1..(self.options.region.len() / CHUNK).max(1)
    }

    /// Whether there is memory that [`Shared::give_back`] could give back now or later.
    pub(super) fn holds_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| {
            !memory.mapped.lock().refused && memory.chunks.any_awake(self.whole_chunks())
        })
    }

    /// Gives the memory back of chunks that were quiet since the call before; returns how many. Comes after a
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
                // Writers must not run out of segments meanwhile; a full disk is the checkpoint's to deal
                // with, and a failure ends the loop at its next turn.
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
            // SAFETY: memory and file have the same bytes, since they were compared and nobody has stored to
            // the chunk since before that (`chunks.rs`; the file is ours while we are the checkpointer).
            // Nobody stores to it before this returns.
            unsafe {
                memory
                    .reservation
                    .give_back(file, from, to, mapped.has(chunk))
            }?;
            mapped.add(chunk);
            Ok(())
        })
    }

    /// Whether the file has what memory has. Lines that it has not are appended to the log; or not, if that
    /// has no room just now, and then they are found again in the next round.
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
