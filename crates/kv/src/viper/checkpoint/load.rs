//! Starting with a checkpoint of the index: the store answers before it has read every record.
//!
//! 1. Find the newest checkpoint that verifies (`mod.rs`). Its floor must be the one in force.
//! 2. Compare the page word of each block with the checkpoint's. An equal page word means that the block
//!    holds the same records; only marks and edits in place may differ. If the block is covered wholly, it
//!    becomes [`State::Unverified`]. If it is covered in part, or must be read for another reason, it is
//!    *partial*. Any other block has *changed*.
//! 3. Load the copy of the index, with only the entries that lead to stable blocks. Of entries that lead to
//!    the covered part of a partial block, keep the places ([`Roles::counts`]).
//! 4. Recovery reads the partial and the changed blocks into this index, as it otherwise reads all blocks
//!    (`recovery/scan.rs`). A covered record there to which the copy did not lead is a loser.
//!
//! The rest happens while the store is in use (`verify.rs`): verification reads the unverified blocks as
//! recovery would have read them. Until then, readers check the mark of a record there, because the copy
//! still has entries of records removed after the checkpoint (`Viper::has_died`).
//!
//! Any damage of a checkpoint has the same answer: recovery drops it, and reads everything.

use super::{Kept, Limit, Name, SUMMARY_BYTES, Summary};
use crate::error::Error;
use crate::error::corrupt;
use crate::index::{Location, Restoring, entries_of};
use crate::viper::block_table::{Info, State};
use crate::viper::layout::{Kind, parse_page_word};
use crate::viper::read::Pieces;
use crate::viper::read::{Reader, UNIT};
use crate::viper::space::Space;
use crate::viper::{Viper, checkpoint};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// A checkpoint whose end was read and verified, but not its entries.
pub(in crate::viper) struct Found {
    name: Name,
    pub(in crate::viper) summary: Summary,
    pieces: Vec<Piece>,
    segments: Vec<u64>,
    /// By block number.
    blocks: Vec<u64>,
    limits: Vec<Limit>,
}

/// A piece of a checkpoint.
struct Piece {
    /// Offset of its data.
    at: u64,
    bytes: u64,
    check: u64,
}

impl Piece {
    fn read(&self, reader: &Reader<'_>, into: &mut Vec<u8>) -> Result<(), Error> {
        into.clear();
        let region = reader.pool.region();
        region.load_behind(self.at, self.bytes.next_multiple_of(8), into);
        into.truncate(self.bytes as usize);
        match reader.pool.secret().sum(into) == self.check {
            true => Ok(()),
            false => Err(damaged(self.at)),
        }
    }
}

fn damaged(at: u64) -> Error {
    corrupt(at, "a checkpoint of the index does not verify")
}

/// The newest checkpoint whose end verifies.
pub(in crate::viper) fn find(reader: &Reader<'_>) -> Option<Found> {
    let names = checkpoint::names(reader.pool.secret(), reader.pool.region());
    names.into_iter().find_map(|name| open(reader, name).ok())
}

fn open(reader: &Reader<'_>, name: Name) -> Result<Found, Error> {
    let mut pieces = Vec::new();
    let mut walk = Pieces::new(reader, &name.chain);
    let room = reader.geometry.overflow_room();
    while let Some((head, at)) = walk.next_piece()? {
        // All pieces but the last are full, so the place of every byte is known.
        let is_last = pieces.len() as u32 + 1 == name.chain.pieces;
        if head.bytes > room || head.bytes != room && !is_last {
            return Err(damaged(at));
        }
        pieces.push(Piece {
            at,
            bytes: head.bytes,
            check: head.data_check,
        });
    }
    let whole = Bytes {
        reader,
        pieces: &pieces,
        bytes: name.chain.bytes,
    };
    let (summary, [segments, blocks, limits]) = whole.tail()?;
    Ok(Found {
        name,
        summary,
        pieces,
        segments,
        blocks,
        limits: limits.into_iter().map(Limit::of_word).collect(),
    })
}

/// The bytes of a checkpoint.
struct Bytes<'a> {
    reader: &'a Reader<'a>,
    pieces: &'a [Piece],
    bytes: u64,
}

impl Bytes<'_> {
    /// Everything after the entries.
    fn tail(&self) -> Result<(Summary, [Vec<u64>; 3]), Error> {
        let place = self.pieces.first().map_or(0, |piece| piece.at);
        let wrong = || damaged(place);
        let found: u64 = self.pieces.iter().map(|piece| piece.bytes).sum();
        let end = self.bytes.checked_sub(SUMMARY_BYTES as u64);
        let end = end.filter(|_| found == self.bytes).ok_or_else(wrong)?;
        let summary = self.bytes_of(end, self.bytes)?;
        let summary = Summary::parse(&summary).ok_or_else(wrong)?;
        // The counts may be anything, but must add up to the length.
        let mut starts = [0; 5];
        let parts = [
            summary.entries,
            summary.segments,
            summary.blocks,
            summary.limits,
        ];
        for (at, count) in parts.into_iter().enumerate() {
            let length = count.checked_mul(8).filter(|length| *length <= end);
            starts[at + 1] = starts[at] + length.ok_or_else(wrong)?;
        }
        let [_, segments, blocks, limits, after] = starts;
        if after != end {
            return Err(wrong());
        }
        let mut words = [const { Vec::new() }; 3];
        let ranges = [(segments, blocks), (blocks, limits), (limits, after)];
        for ((from, to), into) in ranges.into_iter().zip(&mut words) {
            self.words_of(from, to, into)?;
        }
        let counted = words[0].iter().map(|segment| entries_of(*segment)).sum();
        match summary.entries == counted {
            true => Ok((summary, words)),
            false => Err(wrong()),
        }
    }

    /// The words in bytes `from .. to` of the checkpoint.
    fn words_of(&self, from: u64, to: u64, into: &mut Vec<u64>) -> Result<(), Error> {
        let bytes = self.bytes_of(from, to)?;
        let (words, _) = bytes.as_chunks::<8>();
        into.clear();
        into.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
        Ok(())
    }

    /// Bytes `from .. to` of the checkpoint.
    fn bytes_of(&self, from: u64, to: u64) -> Result<Vec<u8>, Error> {
        let room = self.reader.geometry.overflow_room();
        let first = from / room;
        let mut bytes = Vec::new();
        let mut one = Vec::new();
        for piece in self.pieces.iter().skip(first as usize) {
            if first * room + bytes.len() as u64 >= to {
                break;
            }
            piece.read(self.reader, &mut one)?;
            bytes.extend_from_slice(&one);
        }
        let (from, to) = ((from - first * room) as usize, (to - first * room) as usize);
        let wanted = bytes.get(from..to);
        wanted
            .map(<[u8]>::to_vec)
            .ok_or_else(|| damaged(from as u64))
    }
}

/// The role of each block in a restart.
pub(in crate::viper) struct Roles {
    of: Vec<AtomicU8>,
    /// How far the partial blocks are covered.
    limits: HashMap<u32, u32>,
    /// Offsets of the records that count in the covered part of partial blocks; sorted once the copy is
    /// loaded.
    counting: Vec<u64>,
}

const CHANGED: u8 = 0;
const STABLE: u8 = 1;
const PIECE: u8 = 2;
const PARTIAL: u8 = 3;

impl Roles {
    #[inline]
    fn get(&self, block: u32) -> u8 {
        let role = self.of.get(block as usize);
        role.map_or(CHANGED, |role| role.load(Ordering::Relaxed))
    }

    fn set(&self, block: u32, role: u8) {
        if let Some(place) = self.of.get(block as usize) {
            place.store(role, Ordering::Relaxed);
        }
    }

    /// Whether recovery has to read the block.
    pub(in crate::viper) fn is_read(&self, block: u32) -> bool {
        matches!(self.get(block), CHANGED | PARTIAL)
    }

    /// The blocks that are as the checkpoint knows them, so recovery skips them.
    pub(in crate::viper) fn stable(&self) -> Vec<u32> {
        let roles = (0..self.of.len() as u32).filter(|block| self.get(*block) == STABLE);
        roles.collect()
    }

    /// Bytes of a block that the checkpoint covers, in the order in which its pages are filled. Only for
    /// blocks that recovery reads.
    pub(in crate::viper) fn covered(&self, block: u32) -> u64 {
        match self.get(block) {
            PARTIAL => self.limits.get(&block).map_or(0, |bytes| u64::from(*bytes)),
            _ => 0,
        }
    }

    /// Whether a covered record counts.
    pub(in crate::viper) fn counts(&self, at: u64) -> bool {
        self.counting.binary_search(&at).is_ok()
    }
}

/// Loads a checkpoint into the empty index; `None` if it cannot be used. Also returns the number of entries.
pub(in crate::viper) fn load(viper: &Viper, found: &Found, threads: usize) -> Option<(Roles, u64)> {
    let summary = &found.summary;
    if summary.floor != viper.floor.load(Ordering::Acquire) {
        return None;
    }
    // The copy lacks what is in the log.
    let restoring = viper
        .index
        .restore(&found.segments, viper.below.is_some())?;
    let mut roles = compare_blocks(viper, found, threads);
    let Some((entries, counting)) = fill(&viper.space, found, &restoring, &roles, threads) else {
        restoring.discard();
        return None;
    };
    roles.counting = counting;
    roles.counting.sort_unstable();
    if !restoring.finish() {
        return None;
    }
    if summary.has_expiries() {
        viper.expiries.store(true, Ordering::Relaxed);
    }
    *viper.checkpoint.lock() =
        Kept::restored(&found.name, pieces(&viper.space, found), summary.floor);
    Some((roles, entries))
}

/// The blocks of a checkpoint, and their lives.
fn pieces(space: &Space, found: &Found) -> Vec<(u32, u32)> {
    let block_of = |piece: &Piece| space.blocks.number(piece.at);
    let blocks = found.pieces.iter().map(block_of);
    let epoch = |block| {
        space
            .blocks
            .get(block)
            .map_or(0, |entry| entry.info().epoch)
    };
    blocks.map(|block| (block, epoch(block))).collect()
}

/// Compares the page word of every block with that in the checkpoint.
fn compare_blocks(viper: &Viper, found: &Found, threads: usize) -> Roles {
    const SHARE: usize = 1024;
    let blocks: Vec<u32> = viper.space.blocks.all().collect();
    let end = blocks.iter().max().map_or(0, |last| *last as usize + 1);
    let limits = found.limits.iter().map(|limit| (limit.block, limit.bytes));
    let roles = Roles {
        of: (0..end).map(|_| AtomicU8::new(CHANGED)).collect(),
        limits: limits.collect(),
        counting: Vec::new(),
    };
    let next = AtomicUsize::new(0);
    in_threads(threads, || {
        loop {
            let from = next.fetch_add(SHARE, Ordering::Relaxed);
            let Some(share) = blocks.get(from..(from + SHARE).min(blocks.len())) else {
                return;
            };
            for &block in share {
                compare(viper, block, found, &roles);
            }
            if share.is_empty() {
                return;
            }
        }
    });
    for piece in &found.pieces {
        let block = viper.space.blocks.number(piece.at);
        roles.set(block, PIECE);
        set_state(viper, block, State::Checkpoint);
    }
    roles
}

fn compare(viper: &Viper, block: u32, found: &Found, roles: &Roles) {
    let known = found.blocks.get(block as usize).copied().unwrap_or(0);
    let at = viper.space.blocks.at(block);
    let word = viper.pool.region().load_word(at);
    if known == 0 {
        return;
    }
    let secret = viper.pool.secret();
    // A block of fixed-size records may have been opened for edits since; its records keep their places.
    let is_edited = || {
        let (then, now) = (
            parse_page_word(secret, at, known),
            parse_page_word(secret, at, word),
        );
        matches!((then, now), (Some((Kind::Fixed, life)), Some((Kind::FixedEdited, same))) if life == same)
    };
    if word != known && !is_edited() {
        return;
    }
    if roles.limits.contains_key(&block) {
        roles.set(block, PARTIAL);
    } else {
        roles.set(block, STABLE);
        set_state(viper, block, State::Unverified);
    }
}

/// Enters a block into the block table from its page word.
fn set_state(viper: &Viper, block: u32, state: State) {
    let at = viper.space.blocks.at(block);
    let word = viper.pool.region().load_word(at);
    let parsed = parse_page_word(viper.pool.secret(), at, word);
    if let (Some(entry), Some((kind, epoch))) = (viper.space.blocks.get(block), parsed) {
        let pages = viper.space.geometry.pages_of(kind);
        entry.set_filled((pages.room() * pages.count) as u32);
        entry.set(Info { state, kind, epoch });
    }
}

/// Segments that a thread fills at a time.
const SEGMENTS: usize = 64;

/// Fills the index from the copy. Returns the number of entries that lead to stable blocks, and the places in
/// partial blocks to which entries lead.
fn fill(
    space: &Space,
    found: &Found,
    restoring: &Restoring<'_>,
    roles: &Roles,
    threads: usize,
) -> Option<(u64, Vec<u64>)> {
    let reader = space.reader();
    let whole = Bytes {
        reader: &reader,
        pieces: &found.pieces,
        bytes: found.name.chain.bytes,
    };
    // The first byte of the entries of each share of the segments.
    let mut starts = vec![0];
    for share in found.segments.chunks(SEGMENTS) {
        let words: u64 = share.iter().map(|segment| entries_of(*segment)).sum();
        starts.push(starts.last().unwrap_or(&0) + 8 * words);
    }
    let next = AtomicUsize::new(0);
    let (entries, has_failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let counting = Mutex::new(Vec::new());
    let keep = |location: Location| {
        let at = location.get() * UNIT;
        let role = roles.get(space.blocks.number(at));
        if role == PARTIAL {
            counting.lock().push(at);
        }
        role == STABLE
    };
    in_threads(threads, || {
        let mut words = Vec::new();
        loop {
            let share = next.fetch_add(1, Ordering::Relaxed);
            let (Some(&from), Some(&to)) = (starts.get(share), starts.get(share + 1)) else {
                return;
            };
            let segments = found
                .segments
                .iter()
                .enumerate()
                .skip(share * SEGMENTS)
                .take(SEGMENTS);
            let fill_share = || {
                whole.words_of(from, to, &mut words).ok()?;
                let mut rest = words.as_slice();
                let mut kept = 0;
                for (number, segment) in segments {
                    let (own, others) = rest.split_at_checked(entries_of(*segment) as usize)?;
                    kept += restoring.fill(number, own, keep)?;
                    rest = others;
                }
                Some(kept)
            };
            match fill_share() {
                Some(kept) => entries.fetch_add(kept, Ordering::Relaxed),
                None => return has_failed.store(true, Ordering::Relaxed),
            };
        }
    });
    (!has_failed.into_inner()).then(|| (entries.into_inner(), counting.into_inner()))
}

/// Runs `work` in `threads` threads.
fn in_threads(threads: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(&work);
        }
        work();
    });
}
