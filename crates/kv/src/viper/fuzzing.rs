//! A forger, for fuzzing (feature `fuzzing`). It knows a pool's key and fixes every check of viper's format
//! over given bytes, so that fuzzing also reaches the code behind the checks.

use super::block_table::OWNER;
use super::layout::{
    ChainHead, GRAIN, Geometry, Kind, MARKS_PER_WORD, floor_word, mark_word, page_word,
    parse_page_word, tail_word, word_at,
};
use super::record::{self, RecordKind, Stamp};
use super::recovery::block_walk::BlockWalk;
use everdram_pm::{ROOT_AT, Secret};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The owner of viper's extents.
pub const EXTENT_OWNER: u32 = OWNER;

/// The place of a record, or of a piece of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Byte offset in the image.
    pub at: usize,
    /// Bytes.
    pub bytes: usize,
    /// The block's epoch.
    pub epoch: u32,
}

/// The contents of a forged record.
#[derive(Clone, Copy, Debug)]
pub struct Forged<'a> {
    /// 1 value, 2 chained, 3 journal, 4 chained journal, 5 big key; anything else counts as 1.
    pub kind: u8,
    /// The key; at least one byte.
    pub key: &'a [u8],
    /// The value, or its chain.
    pub value: &'a [u8],
    /// Unix milliseconds; 0 = never.
    pub expires_at_ms: u64,
    /// Version; 47 bits count.
    pub version: u64,
    /// How often compaction has moved it.
    pub moves: u16,
    /// Whether the record says that everything before it was fenced.
    pub first: bool,
}

/// Forges one image.
pub struct Forger {
    secret: Secret,
    geometry: Geometry,
}

impl Forger {
    /// For images with this key and these geometry words. `None` if the words are invalid.
    #[must_use]
    pub fn new(secret: Secret, geometry: [u64; 8]) -> Option<Forger> {
        let geometry = Geometry::from_words(geometry)?;
        Some(Forger { secret, geometry })
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.geometry.block_bytes as usize
    }

    /// Offset of the page of `at`, by its block's page word.
    #[must_use]
    pub fn page_of(&self, image: &[u8], at: usize) -> usize {
        let block = at / self.block_bytes() * self.block_bytes();
        let large = word_at(image, block) & 0xff == Kind::Large as u64;
        let bytes = if large {
            self.block_bytes()
        } else {
            self.geometry.page_bytes as usize
        };
        at / bytes * bytes
    }

    /// The epoch that the page at `at` states.
    #[must_use]
    pub fn epoch_of(&self, image: &[u8], at: usize) -> u32 {
        (word_at(image, self.page_of(image, at)) >> 8) as u32
    }

    /// A page word.
    pub fn page(&self, image: &mut [u8], at: usize, kind: u8, epoch: u32) {
        let kind = Kind::from_byte(kind).unwrap_or(Kind::Free);
        put(image, at, page_word(&self.secret, at as u64, kind, epoch));
    }

    /// A page's tail word.
    pub fn tail(&self, image: &mut [u8], page_at: usize, epoch: u32, tail: u32) {
        let word = tail_word(&self.secret, page_at as u64, epoch, tail & 0xff_ffff);
        put(image, page_at + 8, word);
    }

    /// The mark word at `at`.
    pub fn marks(&self, image: &mut [u8], at: usize, epoch: u32, bits: u64) {
        let bits = bits & ((1 << MARKS_PER_WORD) - 1);
        put(image, at, mark_word(&self.secret, at as u64, epoch, bits));
    }

    /// The floor word: versions up to it do not count.
    pub fn floor(&self, image: &mut [u8], floor: u64) {
        let floor = floor & ((1 << 47) - 1);
        put(
            image,
            ROOT_AT as usize,
            floor_word(&self.secret, ROOT_AT, floor),
        );
    }

    /// Fixes the check of the bytes at `at`, as a record of the length they state.
    pub fn seal(&self, image: &mut [u8], at: usize, epoch: u32) {
        let fixed = [Kind::Fixed as u64, Kind::FixedEdited as u64]
            .contains(&(word_at(image, self.page_of(image, at)) & 0xff));
        let Some(rest) = image.get_mut(at..) else {
            return;
        };
        if let Some(shape) = self.geometry.fixed.filter(|_| fixed) {
            if let Some(slot) = rest.get_mut(..shape.slot_bytes() as usize) {
                record::seal_slot(&self.secret, &shape, slot, at as u64, epoch);
            }
        } else if let Some(parsed) = record::parse(rest) {
            record::seal(
                &self.secret,
                &mut rest[..parsed.bytes as usize],
                at as u64,
                epoch,
            );
        }
    }

    /// Writes a record at `at`, cut at the end of the image.
    pub fn record(&self, image: &mut [u8], at: usize, epoch: u32, forged: &Forged<'_>) -> usize {
        let kind = match forged.kind {
            2 => RecordKind::Chained,
            3 => RecordKind::Journal,
            4 => RecordKind::ChainedJournal,
            5 => RecordKind::BigKey,
            _ => RecordKind::Value,
        };
        let stamp = Stamp {
            version: forged.version & ((1 << 47) - 1),
            moves: forged.moves,
            first: forged.first,
        };
        let mut bytes = Vec::new();
        record::encode(
            &mut bytes,
            kind,
            forged.key,
            forged.value,
            forged.expires_at_ms,
            (stamp, false),
        );
        record::seal(&self.secret, &mut bytes, at as u64, epoch);
        let rest = image.get_mut(at..).unwrap_or_default();
        let count = bytes.len().min(rest.len());
        rest[..count].copy_from_slice(&bytes[..count]);
        bytes.len()
    }

    /// Writes the header of a piece of a chained value: next, piece (negative: its writer made the check of
    /// the data), bytes, name. The check of the data holds.
    pub fn piece(&self, image: &mut [u8], at: usize, epoch: u32, words: [u64; 4]) {
        let [next, piece, bytes, name] = words;
        let data = image.get(at + 64..).unwrap_or_default();
        let data = data
            .get(..usize::try_from(bytes).unwrap_or(0))
            .unwrap_or_default();
        let is_by_writer = piece >> 63 != 0;
        let head = ChainHead {
            next,
            piece: piece & (u64::MAX >> 1),
            bytes,
            data_check: match is_by_writer {
                true => xxh3_64_with_seed(data, name),
                false => self.secret.sum(data),
            },
            is_by_writer,
            name,
        };
        let bytes = head.to_bytes(&self.secret, at as u64, epoch);
        if let Some(into) = image.get_mut(at..at + 64) {
            into.copy_from_slice(&bytes);
        }
    }

    /// Everything that verifies: records, ends of open pages (0 bytes), pieces.
    #[must_use]
    pub fn survey(&self, image: &[u8]) -> Survey {
        let mut survey = Survey::default();
        let block_bytes = self.block_bytes();
        for (number, bytes) in image.chunks_exact(block_bytes).enumerate() {
            let at = number * block_bytes;
            let Some((kind, epoch)) = parse_page_word(&self.secret, at as u64, word_at(bytes, 0))
            else {
                continue;
            };
            survey.blocks.push(Place {
                at,
                bytes: block_bytes,
                epoch,
            });
            match kind {
                Kind::Free => {}
                Kind::Overflow => survey.pieces.push(Place {
                    at,
                    bytes: block_bytes,
                    epoch,
                }),
                _ => self.walk((number, at), kind, epoch, bytes, &mut survey),
            }
        }
        survey
    }

    fn walk(
        &self,
        (number, at): (usize, usize),
        kind: Kind,
        epoch: u32,
        bytes: &[u8],
        survey: &mut Survey,
    ) {
        let walk = BlockWalk {
            secret: &self.secret,
            geometry: &self.geometry,
            block: number as u32,
            at: at as u64,
            kind,
            epoch,
        };
        let walked = walk.run(&mut bytes.to_vec(), &mut |visited| {
            survey.records.push(Place {
                at: visited.at as usize,
                bytes: visited.bytes.len(),
                epoch,
            });
            Ok(())
        });
        for (page_at, end) in walked.map_or(Vec::new(), |walked| walked.open_pages) {
            let at = (page_at as usize + end as usize).next_multiple_of(GRAIN as usize);
            survey.open_ends.push(Place {
                at,
                bytes: 0,
                epoch,
            });
        }
    }
}

/// The places that a [`Forger`] found in an image.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Blocks whose first page word verifies.
    pub blocks: Vec<Place>,
    /// Records, dead ones too.
    pub records: Vec<Place>,
    /// The ends of open pages.
    pub open_ends: Vec<Place>,
    /// Pieces of chained values.
    pub pieces: Vec<Place>,
}

fn put(image: &mut [u8], at: usize, word: u64) {
    if let Some(into) = image.get_mut(at..at + 8) {
        into.copy_from_slice(&word.to_le_bytes());
    }
}
