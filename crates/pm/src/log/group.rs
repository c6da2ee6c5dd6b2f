//! What one lane has flushed since its last fence.
//!
//! Lines that only this lane writes are copied at once. Of ranges that other lanes may write, only the
//! position is kept; the lines are copied from the image when the group closes, under the log's lock: see
//! rule 1 in `mod.rs`. A large group is appended early, in parts: in the crash model a cache evicts lines
//! early, which it may always do. Buffers are kept from group to group.

use super::Shared;
use super::chunks::Announcer;
use super::content::Content;
use super::give_back::Memory;
use crate::memory::cpu::LINE;
use crate::memory::position::Lsn;
use std::sync::Arc;

/// A group of this size is appended before its fence.
const SPILL_BYTES: u64 = 256 << 10;

/// See the module text.
pub(crate) struct Group {
    log: Arc<Shared>,
    /// Announces stores, where memory may be given back meanwhile.
    announcer: Option<Announcer>,
    content: Content,
    /// LSN of the last part appended.
    last: u64,
    /// Bytes at which a group is appended early.
    spill_bytes: u64,
}

impl Group {
    pub(super) fn new(log: Arc<Shared>) -> Group {
        let spill_bytes = SPILL_BYTES.min(log.options.setup.segment_bytes / 4);
        let announcer = log.memory.as_ref().map(Memory::announcer);
        Group {
            log,
            announcer,
            content: Content::default(),
            last: 0,
            spill_bytes,
        }
    }

    /// Runs a store to memory; that memory is not given back meanwhile.
    #[inline]
    pub(crate) fn during<T>(&mut self, at: u64, bytes: u64, store: impl FnOnce() -> T) -> T {
        match &mut self.announcer {
            None => store(),
            Some(announcer) => announcer.during(at, bytes, store),
        }
    }

    /// Adds whole lines that only this lane writes before its next fence.
    ///
    /// # Panics
    /// If offset or length is no multiple of 64.
    #[inline]
    pub(crate) fn push_lines(&mut self, at: u64, lines: &[u8]) {
        assert!(at.is_multiple_of(LINE) && (lines.len() as u64).is_multiple_of(LINE));
        let mut at = at;
        for part in lines.chunks(self.spill_bytes as usize) {
            let content = &mut self.content;
            content.bytes.extend_from_slice(part);
            match content.own.last_mut() {
                Some((from, bytes)) if *from + *bytes == at => *bytes += part.len() as u64,
                _ => content.own.push((at, part.len() as u64)),
            }
            at += part.len() as u64;
            self.spill_if_large();
        }
    }

    /// Adds a range that other lanes may write: its lines are copied from the image when the group closes.
    #[inline]
    pub(crate) fn push_shared(&mut self, at: u64, bytes: u64) {
        let end = (at + bytes).next_multiple_of(LINE);
        let mut at = at / LINE * LINE;
        while at < end {
            let part = (end - at).min(self.spill_bytes);
            self.content.push_shared(at, part);
            at += part;
            self.spill_if_large();
        }
    }

    #[inline]
    fn spill_if_large(&mut self) {
        if self.content.line_bytes() >= self.spill_bytes {
            self.last = self.log.append(&mut self.content);
        }
    }

    /// Appends the group; returns the position that covers everything this lane ever flushed.
    #[inline]
    pub(crate) fn close(&mut self) -> Lsn {
        if self.content.line_bytes() > 0 {
            self.last = self.log.append(&mut self.content);
        }
        Lsn(self.last)
    }
}
