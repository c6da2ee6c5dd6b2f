//! The contents of a group: lines of the image that go to the log together.

use super::pending::Pending;
use crate::memory::cpu::LINE;

/// Lines of the image: offset of the first byte, bytes; both multiples of 64.
pub(super) type Lines = (u64, u64);

/// The contents of a group.
#[derive(Default)]
pub(super) struct Content {
    /// Copied lines, one entry after another.
    pub(super) bytes: Vec<u8>,
    /// Their places in the image.
    pub(super) own: Vec<Lines>,
    /// Ranges to copy when the group closes.
    pub(super) shared: Vec<Lines>,
    /// Bytes of `shared`.
    pub(super) shared_bytes: u64,
}

impl Content {
    #[inline]
    pub(super) fn push_shared(&mut self, at: u64, bytes: u64) {
        debug_assert!(
            at.is_multiple_of(LINE) && bytes.is_multiple_of(LINE),
            "a partial line goes to the log"
        );
        if let Some((from, length)) = self.shared.last_mut()
            && (*from..=*from + *length).contains(&at)
        {
            let grown = (at + bytes).max(*from + *length) - *from;
            self.shared_bytes += grown - *length;
            *length = grown;
            return;
        }
        self.shared.push((at, bytes));
        self.shared_bytes += bytes;
    }

    /// Bytes of lines in the group.
    #[inline]
    pub(super) fn line_bytes(&self) -> u64 {
        self.bytes.len() as u64 + self.shared_bytes
    }

    /// Upper bound of its bytes in the log.
    #[inline]
    pub(super) fn footprint(&self) -> u64 {
        let entries = (self.own.len() + self.shared.len()) as u64;
        Pending::footprint(self.line_bytes(), entries)
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.own.clear();
        self.shared.clear();
        self.shared_bytes = 0;
    }
}
