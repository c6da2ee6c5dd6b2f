//! The header of a data file, in two copies: whose it is, and its token.
//!
//! ```text
//! +----------+---------+-------+------+-------+-------+- - -+
//! | magic    | version | block | uuid | token | check |  0  |      512 bytes
//! +----------+---------+-------+------+-------+-------+- - -+
//! 0          8         12      16     32      40      48
//! ```
//!
//! `block` is the size of a block, `uuid` the pool's. The check is keyed with the pool's secret and covers
//! everything before it and the place of the copy.

use crate::assert_layout;
use crate::checksum::Secret;
use std::mem::offset_of;

/// Bytes before the first block.
pub(crate) const HEADER_BYTES: u64 = 8192;
/// Offsets of the copies.
pub(super) const COPIES_AT: [u64; 2] = [0, 4096];
/// Bytes of a copy: one sector, which a crash does not tear.
pub(super) const COPY_BYTES: usize = 512;
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"everdata";
const SALT: u64 = 0x64;

#[repr(C)]
struct Layout {
    magic: [u8; 8],
    version: [u8; 4],
    block: [u8; 4],
    uuid: [u8; 16],
    token: [u8; 8],
    check: [u8; 8],
    reserved: [u8; 464],
}

assert_layout!(Layout, size 512, align 1, {
    magic @ 0, version @ 8, block @ 12, uuid @ 16, token @ 32, check @ 40, reserved @ 48,
});
const _: () = assert!(COPIES_AT[1] + COPY_BYTES as u64 <= HEADER_BYTES);

/// A copy in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) block_bytes: u32,
    pub(super) uuid: [u8; 16],
    pub(super) token: u64,
}

/// What a copy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing was ever written there.
    Blank,
    /// It verifies.
    Header(Header),
    /// The header of another pool's data file.
    Foreign,
    /// Anything else.
    Damaged,
}

impl Header {
    pub(super) fn encode(&self, secret: &Secret, at: u64) -> [u8; COPY_BYTES] {
        let mut bytes = [0; COPY_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(offset_of!(Layout, magic), &MAGIC);
        put(offset_of!(Layout, version), &VERSION.to_le_bytes());
        put(offset_of!(Layout, block), &self.block_bytes.to_le_bytes());
        put(offset_of!(Layout, uuid), &self.uuid);
        put(offset_of!(Layout, token), &self.token.to_le_bytes());
        let check = check(secret, at, &bytes);
        bytes[offset_of!(Layout, check)..][..8].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads the copy at offset `at` of the data file of a pool.
    pub(super) fn decode(
        secret: &Secret,
        uuid: &[u8; 16],
        at: u64,
        bytes: &[u8; COPY_BYTES],
    ) -> Found {
        if bytes.iter().all(|byte| *byte == 0) {
            return Found::Blank;
        }
        fn field<const N: usize>(bytes: &[u8; COPY_BYTES], at: usize) -> [u8; N] {
            let mut field = [0; N];
            field.copy_from_slice(&bytes[at..at + N]);
            field
        }
        if field(bytes, offset_of!(Layout, magic)) != MAGIC {
            return Found::Damaged;
        }
        if field(bytes, offset_of!(Layout, uuid)) != *uuid {
            return Found::Foreign;
        }
        let found = u64::from_le_bytes(field(bytes, offset_of!(Layout, check)));
        let version = u32::from_le_bytes(field(bytes, offset_of!(Layout, version)));
        if found != check(secret, at, bytes) || version != VERSION {
            return Found::Damaged;
        }
        Found::Header(Header {
            block_bytes: u32::from_le_bytes(field(bytes, offset_of!(Layout, block))),
            uuid: *uuid,
            token: u64::from_le_bytes(field(bytes, offset_of!(Layout, token))),
        })
    }
}

fn check(secret: &Secret, at: u64, bytes: &[u8; COPY_BYTES]) -> u64 {
    let covered = &bytes[..offset_of!(Layout, check)];
    secret.sum_words([secret.sum(covered), at, SALT])
}
