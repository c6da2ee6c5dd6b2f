//! The format of the log on disk: frames of entries.
//!
//! ```text
//!  frame   0  checksum     of everything after it, keyed with the pool's secret
//!          8  magic
//!         16  lsn          position of this frame in the log
//!         24  body bytes
//!         32  durable      the log was durable up to here when the frame was written
//!         40  incarnation  of the pool that wrote it
//!         48  chain        checksum of the frame before it
//!         56  zero
//!         64  body: entries, one after another
//!  entry   0  offset of the first line in the image
//!          8  bytes, a multiple of 64
//!         16  the lines
//! ```
//!
//! A batch is what one `fdatasync` covers: frames one after another, padded with zeros to a 4 KiB block.
//! A frame never crosses a segment; the rest of a segment in which no frame fits is zero. So the frame after
//! one that ends at `e` starts at `e`, or at the next multiple of 4096, and nowhere else.
//!
//! The chain makes the run of frames unambiguous: a frame after a torn one is never joined to another frame,
//! whatever a crash left behind.

use crate::checksum::Secret;
use crate::memory::cpu::LINE;

/// Batches start and end at multiples of this.
pub(super) const BLOCK: u64 = 4096;
/// Bytes of a frame's header.
pub(super) const HEADER: usize = 64;
/// Bytes of an entry's header.
pub(super) const ENTRY: usize = 16;
/// The smallest frame: one entry of one line.
pub(super) const FRAME_MIN: usize = HEADER + ENTRY + LINE as usize;
/// Longest frame, so that a torn batch loses little and a reader needs little memory.
pub(super) const FRAME_MAX: usize = 256 << 10;

const MAGIC: u64 = u64::from_le_bytes(*b"redo log");

const _: () = {
    // checksum, magic, lsn, body bytes, durable, incarnation, chain, zero; offset, bytes
    assert!(HEADER == 8 * 8 && ENTRY == 2 * 8);
    assert!(BLOCK.is_multiple_of(LINE) && (FRAME_MIN as u64) < BLOCK);
    assert!(FRAME_MAX as u64 > BLOCK && (FRAME_MAX as u64).is_multiple_of(BLOCK));
};

/// A frame's header, without checksum and magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) lsn: u64,
    pub(super) body_bytes: u64,
    pub(super) durable: u64,
    pub(super) incarnation: u64,
    pub(super) chain: u64,
}

impl Header {
    /// Writes the header before the body in `frame`; returns the checksum.
    pub(super) fn seal(&self, frame: &mut [u8], secret: &Secret) -> u64 {
        let words = [
            MAGIC,
            self.lsn,
            self.body_bytes,
            self.durable,
            self.incarnation,
            self.chain,
            0,
        ];
        for (into, word) in frame.as_chunks_mut::<8>().0.iter_mut().skip(1).zip(words) {
            *into = word.to_le_bytes();
        }
        let sum = secret.sum(frame.get(8..).unwrap_or_default());
        if let Some(into) = frame.first_chunk_mut::<8>() {
            *into = sum.to_le_bytes();
        }
        sum
    }

    /// Verifies the frame at the start of `bytes`, which must lie at `lsn`; returns its header, checksum and
    /// body. `bytes` ends where the segment ends.
    pub(super) fn open<'a>(
        bytes: &'a [u8],
        lsn: u64,
        secret: &Secret,
    ) -> Option<(Header, u64, &'a [u8])> {
        let header = Header::parse_unverified(bytes)?;
        // No frame lies in the part that was durable before it was written; one that claims so is foreign.
        if header.lsn != lsn || header.durable > lsn {
            return None;
        }
        let length = usize::try_from(header.body_bytes)
            .ok()?
            .checked_add(HEADER)?;
        let frame = bytes.get(..length)?;
        let sum = word(frame, 0)?;
        if secret.sum(frame.get(8..)?) != sum {
            return None;
        }
        Some((header, sum, frame.get(HEADER..)?))
    }

    /// The header that `bytes` seems to start with, not verified.
    pub(super) fn parse_unverified(bytes: &[u8]) -> Option<Header> {
        if word(bytes, 8)? != MAGIC || word(bytes, 56)? != 0 {
            return None;
        }
        Some(Header {
            lsn: word(bytes, 16)?,
            body_bytes: word(bytes, 24)?,
            durable: word(bytes, 32)?,
            incarnation: word(bytes, 40)?,
            chain: word(bytes, 48)?,
        })
    }

    /// Position after the frame.
    pub(super) fn end(&self) -> u64 {
        self.lsn + HEADER as u64 + self.body_bytes
    }
}

/// The entry header for `bytes` bytes of lines at `at`.
pub(super) fn entry_header(at: u64, bytes: u64) -> [u8; ENTRY] {
    let mut header = [0; ENTRY];
    for (into, word) in header.as_chunks_mut::<8>().0.iter_mut().zip([at, bytes]) {
        *into = word.to_le_bytes();
    }
    header
}

/// Splits the first entry off a body: offset in the image, lines, rest. `None` if the entry is malformed.
pub(super) fn split_entry(body: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (at, bytes) = (word(body, 0)?, word(body, 8)?);
    if !at.is_multiple_of(LINE) || !bytes.is_multiple_of(LINE) || bytes == 0 {
        return None;
    }
    let (lines, rest) = body
        .get(ENTRY..)?
        .split_at_checked(usize::try_from(bytes).ok()?)?;
    Some((at, lines, rest))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|chunk| u64::from_le_bytes(*chunk))
}
