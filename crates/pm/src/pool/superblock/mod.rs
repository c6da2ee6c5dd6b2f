//! The superblock: the identity and state of a pool, in 4096 bytes, kept in two copies.
//!
//! ```text
//!  image offset 0      superblock, copy A
//!             4096     superblock, copy B
//!             8192     root page of the engine
//!            12288     spare: zero, except for the line that the latency measurement stores to
//!            65536     extents
//! ```
//!
//! This file encodes and decodes a superblock, and trusts no byte. The checksum covers every byte and the
//! offset of the copy, so a copy that was moved does not verify. Each field is then checked by itself,
//! because a checksum with a known key stops accidents, not forgers. `header.rs` decides where the copies
//! live and in which order they are written.
//!
//! Every format version keeps magic, version and checksum at these offsets, so that an older everdram can
//! tell a newer pool from a damaged one.

pub(crate) mod extent;

use crate::assert_layout;
use crate::checksum::{Secret, fixed_sum};
use crate::medium::Medium;
use extent::{EXTENTS_MAX, Extent, Extents};
use std::mem::offset_of;

/// Bytes of a page, and of one copy of the superblock.
pub(crate) const PAGE: u64 = 4096;
/// Offsets of the copies.
pub(crate) const COPIES_AT: [u64; 2] = [0, PAGE];
/// Where the engine's root page starts; 4096 bytes that belong to the engine, zero in a new pool.
pub const ROOT_AT: u64 = 8192;
/// Bytes of the engine's root page.
pub const ROOT_BYTES: u64 = 4096;
/// Spare bytes between root page and extents.
pub(crate) const SPARE_AT: u64 = ROOT_AT + ROOT_BYTES;
/// Where extents start.
pub const DATA_AT: u64 = 65_536;
/// The format version of most pools. Version 1 had other checksums, and was never released.
const VERSION: u32 = 2;
/// That of a pool with an extent that nobody may ignore, which an everdram that knows no such extents
/// refuses.
pub(crate) const VERSION_MAX: u32 = 3;
/// Owners from this number on are no parts of an engine: whoever opens the pool must know what to do with
/// their extents. Without the version of its own, an older everdram would open the pool without them, and
/// lose what they hold.
pub const OWNER_REQUIRED: u32 = 100;
/// Upper bound of every count and position, which no amount of use reaches. A greater number was forged, and
/// could overflow.
const COUNT_MAX: u64 = 1 << 62;
/// Largest image: what a signed file offset can address, in whole pages.
pub(crate) const IMAGE_BYTES_MAX: u64 = i64::MAX as u64 / PAGE * PAGE;

const MAGIC: [u8; 8] = *b"everdram";
const FLAG_CLEAN: u32 = 1;
/// The superblock's checksum has a public key: the pool's own key is inside.
const KEY: [u8; 32] = *b"everdram superblock checksum key";

/// One copy, byte for byte; all numbers little-endian.
#[repr(C)]
struct Layout {
    magic: [u8; 8],
    version: [u8; 4],
    medium: [u8; 4],
    uuid: [u8; 16],
    seed: [u8; 32],
    engine: [u8; 4],
    flags: [u8; 4],
    generation: [u8; 8],
    incarnation: [u8; 8],
    image_bytes: [u8; 8],
    checkpoint_lsn: [u8; 8],
    extent_count: [u8; 8],
    geometry: [[u8; 8]; 8],
    reserved: [u8; 1512],
    extents: [ExtentLayout; EXTENTS_MAX],
    checksum: [u8; 8],
}

/// One entry of the extent table.
#[repr(C)]
struct ExtentLayout {
    owner: [u8; 4],
    reserved: [u8; 4],
    at: [u8; 8],
    bytes: [u8; 8],
}

assert_layout!(Layout, size 4096, align 1, {
    magic @ 0, version @ 8, medium @ 12, uuid @ 16, seed @ 32, engine @ 64, flags @ 68, generation @ 72,
    incarnation @ 80, image_bytes @ 88, checkpoint_lsn @ 96, extent_count @ 104, geometry @ 112,
    reserved @ 176, extents @ 1688, checksum @ 4088,
});
assert_layout!(ExtentLayout, size 24, align 1, { owner @ 0, reserved @ 4, at @ 8, bytes @ 16 });
const _: () = {
    assert!(COPIES_AT[0] == 0 && COPIES_AT[1] == PAGE && COPIES_AT[1] + PAGE <= ROOT_AT);
    assert!(ROOT_AT + ROOT_BYTES == SPARE_AT && SPARE_AT <= DATA_AT);
    assert!(ROOT_AT.is_multiple_of(PAGE) && ROOT_BYTES.is_multiple_of(PAGE));
    assert!(DATA_AT.is_multiple_of(PAGE) && IMAGE_BYTES_MAX.is_multiple_of(PAGE));
    assert!(
        1688 + size_of::<ExtentLayout>() * EXTENTS_MAX == 4088,
        "the extents end at the checksum"
    );
};

/// One copy as bytes.
pub(crate) type Block = [u8; PAGE as usize];

/// A superblock in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Medium the pool was last opened on; another one may only take over a pool that was closed cleanly.
    pub(crate) medium: Medium,
    /// Identifies the pool.
    pub(crate) uuid: [u8; 16],
    /// Expands to the pool's checksum key.
    pub(crate) seed: [u8; 32],
    /// The engine's number.
    pub(crate) engine: u32,
    /// The engine's geometry words.
    pub(crate) geometry: [u64; 8],
    /// Counts updates; the valid copy with the higher one is the newer.
    pub(crate) generation: u64,
    /// Counts opens; the redo log never continues a run of groups with leftovers of an earlier one.
    pub(crate) incarnation: u64,
    /// Whether the pool was closed cleanly: image complete, log empty.
    pub(crate) clean: bool,
    /// Mapped length of the image.
    pub(crate) image_bytes: u64,
    /// The image holds all groups of the redo log before this position (`file` medium).
    pub(crate) checkpoint_lsn: u64,
    /// The owner of each range.
    pub(crate) extents: Extents,
}

/// Why a block is not a valid superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// No magic.
    Foreign,
    /// It verifies, but a newer everdram wrote it.
    Newer(u32),
    /// It does not verify, or a field is impossible. Offset inside the copy.
    Damaged {
        /// Byte offset in the copy.
        at: usize,
        /// What is wrong there.
        what: String,
    },
}

fn damaged(at: usize, what: impl Into<String>) -> Flaw {
    Flaw::Damaged {
        at,
        what: what.into(),
    }
}

/// The checksum of a copy at image offset `at`: over all its bytes, with the offset in place of the checksum
/// itself.
fn checksum(block: &Block, at: u64) -> u64 {
    let mut block = *block;
    put(&mut block, offset_of!(Layout, checksum), &at.to_le_bytes());
    fixed_sum(&KEY, &block)
}

/// Recomputes the checksum of a copy, whatever the copy says.
#[cfg(feature = "fuzzing")]
pub(crate) fn seal(block: &mut Block, at: u64) {
    let sum = checksum(block, at);
    put(block, offset_of!(Layout, checksum), &sum.to_le_bytes());
}

/// The seed in the first copy of an image.
#[cfg(feature = "fuzzing")]
pub(crate) fn seed(image: &[u8]) -> [u8; 32] {
    let at = offset_of!(Layout, seed);
    let mut seed = [0; 32];
    seed.copy_from_slice(&image[at..at + 32]);
    seed
}

fn put(block: &mut Block, at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

fn array<const N: usize>(block: &Block, at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&block[at..at + N]);
    bytes
}

fn u32_at(block: &Block, at: usize) -> u32 {
    u32::from_le_bytes(array(block, at))
}

fn u64_at(block: &Block, at: usize) -> u64 {
    u64::from_le_bytes(array(block, at))
}

const fn medium_code(medium: Medium) -> u32 {
    match medium {
        Medium::Pmem => 1,
        Medium::File => 2,
        Medium::Emulated => 3,
    }
}

impl Superblock {
    /// The format version: it follows from the extents.
    pub(crate) fn version(&self) -> u32 {
        match self.is_layered() {
            true => VERSION_MAX,
            false => VERSION,
        }
    }

    /// Whether there is an extent of an owner that nobody may ignore.
    pub(crate) fn is_layered(&self) -> bool {
        let mut extents = self.extents.as_slice().iter();
        extents.any(|extent| extent.owner >= OWNER_REQUIRED)
    }

    /// Records that a process opens the pool, and may die without closing it.
    pub(crate) fn begin(&mut self) {
        self.incarnation += 1;
        self.clean = false;
    }

    /// The superblock of a new pool.
    pub(crate) fn new(
        medium: Medium,
        engine: u32,
        geometry: [u64; 8],
        image_bytes: u64,
    ) -> Superblock {
        Superblock {
            medium,
            uuid: rand::random(),
            seed: rand::random(),
            engine,
            geometry,
            generation: 1,
            incarnation: 0,
            clean: true,
            image_bytes,
            checkpoint_lsn: 0,
            extents: Extents::default(),
        }
    }

    /// The bytes of the copy at image offset `at`.
    pub(crate) fn encode(&self, at: u64) -> Block {
        let mut block = [0; PAGE as usize];
        let mut field = |at: usize, bytes: &[u8]| put(&mut block, at, bytes);
        field(offset_of!(Layout, magic), &MAGIC);
        field(offset_of!(Layout, version), &self.version().to_le_bytes());
        field(
            offset_of!(Layout, medium),
            &medium_code(self.medium).to_le_bytes(),
        );
        field(offset_of!(Layout, uuid), &self.uuid);
        field(offset_of!(Layout, seed), &self.seed);
        field(offset_of!(Layout, engine), &self.engine.to_le_bytes());
        let flags = if self.clean { FLAG_CLEAN } else { 0 };
        field(offset_of!(Layout, flags), &flags.to_le_bytes());
        field(
            offset_of!(Layout, generation),
            &self.generation.to_le_bytes(),
        );
        field(
            offset_of!(Layout, incarnation),
            &self.incarnation.to_le_bytes(),
        );
        field(
            offset_of!(Layout, image_bytes),
            &self.image_bytes.to_le_bytes(),
        );
        field(
            offset_of!(Layout, checkpoint_lsn),
            &self.checkpoint_lsn.to_le_bytes(),
        );
        let extents = self.extents.as_slice();
        field(
            offset_of!(Layout, extent_count),
            &(extents.len() as u64).to_le_bytes(),
        );
        for (index, word) in self.geometry.iter().enumerate() {
            field(
                offset_of!(Layout, geometry) + 8 * index,
                &word.to_le_bytes(),
            );
        }
        for (index, extent) in extents.iter().enumerate() {
            let entry = offset_of!(Layout, extents) + size_of::<ExtentLayout>() * index;
            field(
                entry + offset_of!(ExtentLayout, owner),
                &extent.owner.to_le_bytes(),
            );
            field(
                entry + offset_of!(ExtentLayout, at),
                &extent.at.to_le_bytes(),
            );
            field(
                entry + offset_of!(ExtentLayout, bytes),
                &extent.bytes.to_le_bytes(),
            );
        }
        let sum = checksum(&block, at);
        put(&mut block, offset_of!(Layout, checksum), &sum.to_le_bytes());
        block
    }

    /// Decodes the copy at image offset `at`.
    pub(crate) fn decode(block: &Block, at: u64) -> Result<Superblock, Flaw> {
        if array::<8>(block, offset_of!(Layout, magic)) != MAGIC {
            return Err(Flaw::Foreign);
        }
        if u64_at(block, offset_of!(Layout, checksum)) != checksum(block, at) {
            return Err(damaged(
                offset_of!(Layout, checksum),
                "the superblock's checksum does not match",
            ));
        }
        let version = u32_at(block, offset_of!(Layout, version));
        match version {
            VERSION..=VERSION_MAX => {}
            older @ ..VERSION => {
                let what = format!("format version {older}, which no released everdram wrote");
                return Err(damaged(offset_of!(Layout, version), what));
            }
            newer => return Err(Flaw::Newer(newer)),
        }
        let image_bytes = u64_at(block, offset_of!(Layout, image_bytes));
        if !image_bytes.is_multiple_of(PAGE) || !(DATA_AT..=IMAGE_BYTES_MAX).contains(&image_bytes)
        {
            let what = format!("an image cannot have {image_bytes} bytes");
            return Err(damaged(offset_of!(Layout, image_bytes), what));
        }
        if block[offset_of!(Layout, reserved)..offset_of!(Layout, extents)]
            .iter()
            .any(|&byte| byte != 0)
        {
            return Err(damaged(
                offset_of!(Layout, reserved),
                "reserved bytes are not zero",
            ));
        }
        for at in [
            offset_of!(Layout, generation),
            offset_of!(Layout, incarnation),
            offset_of!(Layout, checkpoint_lsn),
        ] {
            let count = u64_at(block, at);
            if count > COUNT_MAX {
                return Err(damaged(at, format!("no pool ever counts to {count}")));
            }
        }
        let mut geometry = [0; 8];
        for (index, word) in geometry.iter_mut().enumerate() {
            *word = u64_at(block, offset_of!(Layout, geometry) + 8 * index);
        }
        let superblock = Superblock {
            medium: decode_medium(block)?,
            uuid: array(block, offset_of!(Layout, uuid)),
            seed: array(block, offset_of!(Layout, seed)),
            engine: u32_at(block, offset_of!(Layout, engine)),
            geometry,
            generation: u64_at(block, offset_of!(Layout, generation)),
            incarnation: u64_at(block, offset_of!(Layout, incarnation)),
            clean: decode_clean(block)?,
            image_bytes,
            checkpoint_lsn: u64_at(block, offset_of!(Layout, checkpoint_lsn)),
            extents: decode_extents(block, image_bytes)?,
        };
        if superblock.version() != version {
            let what = format!("format version {version} does not fit the owners of the extents");
            return Err(damaged(offset_of!(Layout, version), what));
        }
        Ok(superblock)
    }

    /// The key for everything else in the pool.
    pub(crate) fn secret(&self) -> Secret {
        Secret::expand(&self.seed)
    }
}

fn decode_medium(block: &Block) -> Result<Medium, Flaw> {
    let code = u32_at(block, offset_of!(Layout, medium));
    [Medium::Pmem, Medium::File, Medium::Emulated]
        .into_iter()
        .find(|medium| medium_code(*medium) == code)
        .ok_or_else(|| {
            damaged(
                offset_of!(Layout, medium),
                format!("medium {code} does not exist"),
            )
        })
}

fn decode_clean(block: &Block) -> Result<bool, Flaw> {
    match u32_at(block, offset_of!(Layout, flags)) {
        0 => Ok(false),
        FLAG_CLEAN => Ok(true),
        flags => Err(damaged(
            offset_of!(Layout, flags),
            format!("flags {flags:#x} do not exist"),
        )),
    }
}

fn decode_extents(block: &Block, image_bytes: u64) -> Result<Extents, Flaw> {
    let count = u64_at(block, offset_of!(Layout, extent_count));
    if count > EXTENTS_MAX as u64 {
        return Err(damaged(
            offset_of!(Layout, extent_count),
            format!("{count} extents do not fit"),
        ));
    }
    let mut entries = Vec::with_capacity(count as usize);
    for index in 0..EXTENTS_MAX {
        let at = offset_of!(Layout, extents) + size_of::<ExtentLayout>() * index;
        let extent = Extent {
            owner: u32_at(block, at + offset_of!(ExtentLayout, owner)),
            at: u64_at(block, at + offset_of!(ExtentLayout, at)),
            bytes: u64_at(block, at + offset_of!(ExtentLayout, bytes)),
        };
        let reserved = u32_at(block, at + offset_of!(ExtentLayout, reserved));
        let unused = (index as u64) >= count;
        if reserved != 0 || (unused && (extent.owner != 0 || extent.at != 0 || extent.bytes != 0)) {
            return Err(damaged(
                at,
                format!("reserved bytes of extent {index} are not zero"),
            ));
        }
        if !unused {
            entries.push(extent);
        }
    }
    Extents::check(entries, image_bytes).map_err(|(index, what)| {
        damaged(
            offset_of!(Layout, extents) + size_of::<ExtentLayout>() * index,
            what,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        let mut superblock = Superblock::new(
            Medium::File,
            7,
            [1, 2, 3, 4, 5, 6, 7, 8],
            DATA_AT + (1 << 20),
        );
        superblock.generation = 42;
        superblock.incarnation = 9;
        superblock.checkpoint_lsn = 4711;
        assert!(superblock.extents.push(Extent {
            owner: 3,
            at: DATA_AT,
            bytes: 1 << 19
        }));
        assert!(superblock.extents.push(Extent {
            owner: 4,
            at: DATA_AT + (1 << 19),
            bytes: PAGE
        }));
        superblock
    }

    /// Changes bytes and recomputes the checksum, as a forger who knows the format could.
    fn forge(at: usize, bytes: &[u8]) -> Result<Superblock, Flaw> {
        let mut block = sample().encode(0);
        put(&mut block, at, bytes);
        let sum = checksum(&block, 0);
        put(&mut block, offset_of!(Layout, checksum), &sum.to_le_bytes());
        Superblock::decode(&block, 0)
    }

    #[test]
    fn comes_back_as_it_was() {
        let superblock = sample();
        for at in COPIES_AT {
            assert_eq!(
                Superblock::decode(&superblock.encode(at), at).as_ref(),
                Ok(&superblock)
            );
        }
    }

    /// An older everdram ignored extents of owners that it did not know, and what they held with them.
    #[test]
    fn a_pool_with_an_extent_that_nobody_may_ignore_is_of_a_later_version() {
        let mut superblock = sample();
        assert_eq!(u32_at(&superblock.encode(0), 8), VERSION);
        let [owner, at] = [u64::from(OWNER_REQUIRED), superblock.extents.end()];
        assert!(superblock.extents.push(Extent {
            owner: owner as u32,
            at,
            bytes: PAGE
        }));
        let block = superblock.encode(0);
        assert_eq!(u32_at(&block, 8), VERSION_MAX);
        assert_eq!(Superblock::decode(&block, 0).as_ref(), Ok(&superblock));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let block = sample().encode(PAGE);
        for at in 0..block.len() {
            for bit in 0..8 {
                let mut flipped = block;
                flipped[at] ^= 1 << bit;
                assert!(
                    Superblock::decode(&flipped, PAGE).is_err(),
                    "byte {at}, bit {bit}"
                );
            }
        }
    }

    #[test]
    fn a_copy_in_the_wrong_place_is_seen() {
        assert!(matches!(
            Superblock::decode(&sample().encode(0), PAGE),
            Err(Flaw::Damaged { .. })
        ));
    }

    /// Opening raises generation and incarnation. A superblock with an incarnation of 2^64 - 1, found by
    /// fuzzing, overflowed there (a panic, or a count that starts over); an equally large position of the
    /// redo log overflowed in recovery.
    #[test]
    fn counts_that_would_overflow_are_refused() {
        for at in [
            offset_of!(Layout, generation),
            offset_of!(Layout, incarnation),
            offset_of!(Layout, checkpoint_lsn),
        ] {
            assert!(forge(at, &(1u64 << 40).to_le_bytes()).is_ok(), "byte {at}");
            for count in [u64::MAX, u64::MAX - 4095, (1 << 62) + 1] {
                let outcome = forge(at, &count.to_le_bytes());
                assert!(
                    matches!(outcome, Err(Flaw::Damaged { .. })),
                    "byte {at}: {count}"
                );
            }
        }
    }

    #[test]
    fn forged_fields_are_refused() {
        assert!(
            forge(0, b"everdram").is_ok(),
            "an unchanged forgery verifies"
        );
        let cases: [(usize, &[u8]); 9] = [
            (offset_of!(Layout, medium), &9u32.to_le_bytes()),
            (offset_of!(Layout, flags), &2u32.to_le_bytes()),
            (offset_of!(Layout, image_bytes), &u64::MAX.to_le_bytes()),
            (offset_of!(Layout, image_bytes), &4096u64.to_le_bytes()),
            (offset_of!(Layout, extent_count), &101u64.to_le_bytes()),
            (offset_of!(Layout, extent_count), &1u64.to_le_bytes()),
            (offset_of!(Layout, reserved) + 100, &[1]),
            (offset_of!(Layout, extents) + 8, &4096u64.to_le_bytes()),
            (
                offset_of!(Layout, extents) + 24 + 16,
                &(1u64 << 63).to_le_bytes(),
            ),
        ];
        for (at, bytes) in cases {
            assert!(
                matches!(forge(at, bytes), Err(Flaw::Damaged { .. })),
                "byte {at}"
            );
        }
        let newer = VERSION_MAX + 1;
        assert_eq!(
            forge(offset_of!(Layout, version), &newer.to_le_bytes()),
            Err(Flaw::Newer(newer))
        );
        // The last one is that of pools with other extents.
        for other in (0..VERSION).chain([VERSION_MAX]) {
            let forged = forge(offset_of!(Layout, version), &other.to_le_bytes());
            assert!(matches!(forged, Err(Flaw::Damaged { .. })), "{other}");
        }
        assert_eq!(forge(0, b"everdraw"), Err(Flaw::Foreign));
    }
}
