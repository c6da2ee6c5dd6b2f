//! Groups that no batch has taken yet, already laid out as in the segments.
//!
//! Invariants: `bytes[0]` is at position `start`, a multiple of 4096; frames begin where `frames` says and
//! never cross a segment. Headers are zero, except that closed frames have their length, which the log writer
//! reads when it seals them.

use super::frame::{BLOCK, ENTRY, FRAME_MAX, FRAME_MIN, HEADER, entry_header};
use crate::memory::cpu::LINE;
use crate::memory::region::Region;

/// A reusable buffer: bytes of a batch, and where in it frames start and end.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) frames: Vec<(usize, usize)>,
    /// Position of the first byte.
    pub(super) start: u64,
    /// Groups in it.
    pub(super) groups: u32,
}

impl Batch {
    /// Position after the last frame.
    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Pending {
    batch: Batch,
    segment_bytes: u64,
    /// Number of the batch that is being filled, modulo 2^32; the first is 1.
    number: u32,
    /// Groups to wait for before the batch is written.
    expected: u32,
    /// Whether a waiter keeps the clock of the batch that is being filled.
    clocked: bool,
}

impl Pending {
    pub(super) fn new(start: u64, segment_bytes: u64) -> Pending {
        Pending {
            batch: Batch {
                start,
                ..Batch::default()
            },
            segment_bytes,
            number: 1,
            expected: 0,
            clocked: false,
        }
    }

    /// Everything appended is before this position.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.batch.end()
    }

    /// Where the batch being filled starts; everything before it is durable or being written.
    pub(super) fn start(&self) -> u64 {
        self.batch.start
    }

    /// Bytes not yet taken.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.batch.bytes.len()
    }

    /// Whether `number` is the batch being filled, and more groups are expected in it.
    pub(super) fn is_gathering(&self, number: u32) -> bool {
        number == self.number && self.batch.groups < self.expected
    }

    /// Gives the clock of the batch being filled to the first caller.
    pub(super) fn take_clock(&mut self) -> bool {
        !std::mem::replace(&mut self.clocked, true)
    }

    /// A batch of `groups` groups is durable. Its waiters will soon append again, and others wait already:
    /// the next batch expects a group from each.
    pub(super) fn expect_again(&mut self, groups: u32) {
        self.expected = groups.saturating_add(self.batch.groups);
    }

    /// Number of the batch with `lsn` in it, if `lsn` is not durable yet.
    pub(super) fn number_of(&self, lsn: u64) -> u32 {
        if lsn > self.batch.start {
            self.number
        } else {
            self.number.wrapping_sub(1)
        }
    }

    /// Counts a group whose entries were all pushed; returns its LSN.
    #[inline]
    pub(super) fn finish_group(&mut self) -> u64 {
        self.batch.groups += 1;
        self.end()
    }

    /// Upper bound for `bytes` bytes of lines in `entries` entries, with the padding of the batch.
    pub(super) fn footprint(bytes: u64, entries: u64) -> u64 {
        let frames = bytes / (FRAME_MAX / 2) as u64 + 3;
        bytes + ENTRY as u64 * (entries + frames) + (HEADER + FRAME_MIN) as u64 * frames + 2 * BLOCK
    }

    /// Appends lines for offset `at` in the image.
    #[inline]
    pub(super) fn push_lines(&mut self, mut at: u64, mut lines: &[u8]) {
        while !lines.is_empty() {
            let part = self.begin_entry(at, lines.len() as u64);
            let (now, later) = lines.split_at(part as usize);
            self.batch.bytes.extend_from_slice(now);
            lines = later;
            at += part;
        }
    }

    /// Appends a copy of the image at `at`.
    #[inline]
    pub(super) fn push_image(&mut self, mut at: u64, mut bytes: u64, region: &Region) {
        while bytes > 0 {
            let part = self.begin_entry(at, bytes);
            let from = self.batch.bytes.len();
            self.batch.bytes.resize(from + part as usize, 0);
            region.copy_out(at, &mut self.batch.bytes[from..]);
            bytes -= part;
            at += part;
        }
    }

    /// Writes the header of an entry for the first of `bytes` bytes of lines; returns how many fit.
    #[inline]
    fn begin_entry(&mut self, at: u64, bytes: u64) -> u64 {
        let mut room = self.frame_room();
        if room < ENTRY as u64 + LINE {
            self.begin_frame();
            room = self.frame_room();
        }
        let part = bytes.min((room - ENTRY as u64) / LINE * LINE);
        debug_assert!(
            part != 0 && part.is_multiple_of(LINE),
            "an entry of the log has a partial line"
        );
        self.batch.bytes.extend_from_slice(&entry_header(at, part));
        part
    }

    /// Bytes that the open frame can still take; 0 if none is open.
    #[inline]
    fn frame_room(&self) -> u64 {
        let Some(&(from, _)) = self.batch.frames.last() else {
            return 0;
        };
        // Computed from the frame's start: a frame may fill its segment to the last byte.
        let start = self.batch.start + from as u64;
        let segment_end = (start / self.segment_bytes + 1) * self.segment_bytes;
        let frame_end = (start + FRAME_MAX as u64).min(segment_end);
        frame_end - self.end()
    }

    /// Bytes from the end of the batch to the end of its segment.
    #[inline]
    fn segment_room(&self) -> u64 {
        self.segment_bytes - self.end() % self.segment_bytes
    }

    fn begin_frame(&mut self) {
        self.end_frame();
        let room = self.segment_room();
        let batch = &mut self.batch;
        if room < FRAME_MIN as u64 {
            batch.bytes.resize(batch.bytes.len() + room as usize, 0);
        }
        let from = batch.bytes.len();
        batch.bytes.resize(from + HEADER, 0);
        batch.frames.push((from, from));
    }

    fn end_frame(&mut self) {
        if let Some((_, end)) = self.batch.frames.last_mut() {
            *end = self.batch.bytes.len();
        }
    }

    /// Moves the batch into `into`, whose buffer is reused for the next one. Returns the batch's number;
    /// `None`: nothing waits.
    pub(super) fn take(&mut self, into: &mut Batch) -> Option<u32> {
        if self.batch.groups == 0 {
            return None;
        }
        self.end_frame();
        into.bytes.clear();
        into.frames.clear();
        into.groups = 0;
        into.start = self.end().next_multiple_of(BLOCK);
        assert!(
            self.batch.start.is_multiple_of(BLOCK),
            "a batch begins inside a block, and would overwrite durable bytes"
        );
        std::mem::swap(&mut self.batch, into);
        self.clocked = false;
        let number = self.number;
        self.number = number.wrapping_add(1);
        Some(number)
    }
}
