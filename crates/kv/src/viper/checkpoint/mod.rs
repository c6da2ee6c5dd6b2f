//! The checkpoint of the index: a copy in the pool, so that the next start need not read every record.
//!
//! A checkpoint *covers* everything written before it was begun: full blocks and blocks in compaction wholly,
//! open ones as far as they were filled. Of the covered records, those count to which the copy of the index
//! leads. Every other one was replaced, removed or moved by compaction, and is dead, marked or not. So a
//! restart never has to combine blocks that it reads and blocks that it skips to see that a record is dead.
//!
//! The restart finds out what happened to a block since then (`load.rs`). The checkpoint has the page word of
//! each covered block, and a claim or a free changes that word.
//!
//! # Why it is never wrong
//!
//! A checkpoint is a chain in overflow blocks, like a large value, and every piece has checksums. Two lines
//! of the root page name the last two checkpoints. A checkpoint that is cut, torn or half overwritten does
//! not verify, and the restart does without. So the order of stores is not needed for correctness, only to
//! have the checkpoint when it is wanted.
//!
//! For one that verifies, consider the newest record of a key, and the older ones. Writing takes four steps
//! in this order:
//! 1. List the blocks, and the fenced part of open ones, while compaction stands still. So the copy of a
//!    record that moves later is not covered, and the original of one that moved before is.
//! 2. Lock every stripe once. Afterwards, the writer of each covered record has published it, and has marked
//!    or noted the record that it replaced.
//! 3. Fence all marks. Now no covered batch is unfinished. The predecessor of a covered record is durably
//!    marked dead, even if the predecessor is not covered.
//! 4. Copy the segments of the index, each under its lock.
//!
//! If the newest record is covered, the copy leads to it, or it is dead. If it is not, the restart reads it,
//! and it wins over the record to which the copy leads. An older record is in one of three cases, and never
//! counts. It is covered, and the copy does not lead to it. It is marked (3). Or it is not covered either,
//! and the restart reads it with the newest.
//!
//! # With a tier below
//!
//! The copy leaves out the entries that lead to the log; the restart reads the log in any case
//! (`below/load.rs`). Three things more make that enough:
//! * Blocks are listed while all are free from which records have left, and then the pool is told so. So the
//!   part of the log that a restart reads before it answers was written after the list, and so was whatever
//!   tier 1 says of it: the restart reads that, too.
//! * The rest of the log is read after verification, which collects what the skipped blocks say of it.
//! * A record that leaves during the copy is not in it. So the checkpoint gets its name when the log counts
//!   that far: otherwise a crash could take both places of the record.

pub(super) mod load;
pub(super) mod verify;

use super::Viper;
use super::block_table::{Block, Blocks, Info, State};
use super::chain::Stream;
use super::layout::{page_word, word_at};
use super::record::Chain;
use super::session::ViperSession;
use crate::aof::is_below;
use crate::concurrency::seam::looks;
use crate::error::Error;
use crate::index::SECRET_BYTES;
use everdram_pm::ROOT_BYTES;
use everdram_pm::lock::lock;
use everdram_pm::{LINE, Lane, Ordered, ROOT_AT, Region, Secret};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Offsets of the two lines that name checkpoints.
const NAMES_AT: [u64; 2] = [ROOT_AT + 2 * LINE, ROOT_AT + 3 * LINE];
/// Salt of the check of such a line.
const SALT_NAME: u64 = 0x6a;
/// A checkpoint is due when more than one in this many used blocks was claimed since the last one. A restart
/// reads the blocks claimed since, and each checkpoint writes the whole index.
const USED_SHARE: u64 = 8;

/// The last bytes of a checkpoint, which describe those before them.
///
/// ```text
/// +---------+---------------+-------------+-----------------+
/// | entries | segment words | block words | words of limits |
/// +---------+---------------+-------------+-----------------+
///   8 each    8 each          8 each        8 each
/// +--------+---------+----------+--------+--------+-------+---------+-------+
/// | secret | entries | segments | blocks | limits | floor | version | flags |
/// +--------+---------+----------+--------+--------+-------+---------+-------+
///   192      8 each
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// The secret of the index's hashes.
    pub(super) secret: [u8; SECRET_BYTES],
    pub(super) entries: u64,
    pub(super) segments: u64,
    /// Block words, by block number from 0 on: the page word of a covered block, 0 for any other.
    pub(super) blocks: u64,
    /// Words of [`Limit`]s.
    pub(super) limits: u64,
    /// The floor when the checkpoint was begun. Under another floor the checkpoint is void.
    pub(super) floor: u64,
    /// No covered record has a greater version.
    pub(super) version: u64,
    /// Bit 0: some record may have an expiry.
    pub(super) flags: u64,
}

/// Bytes of a [`Summary`].
pub(super) const SUMMARY_BYTES: usize = SECRET_BYTES + 7 * 8;
const _: () = {
    assert!(SECRET_BYTES.is_multiple_of(8) && SUMMARY_BYTES.is_multiple_of(8));
    // Each name has a line of its own, behind the words of the root page's first line.
    assert!(NAMES_AT[0] >= ROOT_AT + LINE && NAMES_AT[1] == NAMES_AT[0] + LINE);
    assert!(NAMES_AT[1] + LINE <= ROOT_AT + ROOT_BYTES);
};
const FLAG_EXPIRIES: u64 = 1;

impl Summary {
    fn to_words(&self) -> Vec<u64> {
        let (secret, _) = self.secret.as_chunks::<8>();
        let fields = [
            self.entries,
            self.segments,
            self.blocks,
            self.limits,
            self.floor,
            self.version,
            self.flags,
        ];
        let secret = secret.iter().map(|word| u64::from_le_bytes(*word));
        secret.chain(fields).collect()
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Summary> {
        let (secret, words) = bytes.split_first_chunk::<SECRET_BYTES>()?;
        Some(Summary {
            secret: *secret,
            entries: word_at(words, 0),
            segments: word_at(words, 8),
            blocks: word_at(words, 16),
            limits: word_at(words, 24),
            floor: word_at(words, 32),
            version: word_at(words, 40),
            flags: word_at(words, 48),
        })
    }

    pub(super) fn has_expiries(&self) -> bool {
        self.flags & FLAG_EXPIRIES != 0
    }
}

/// How far a block is covered whose records a restart reads in any case. Such a block was open, or the keys
/// of its removed records may be gone, so that the restart could not find their entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) block: u32,
    /// Bytes in the order in which pages are filled; see
    /// [`Block::written`](super::block_table::Block::written).
    pub(super) bytes: u32,
}

impl Limit {
    fn to_word(self) -> u64 {
        u64::from(self.block) | u64::from(self.bytes) << 32
    }

    pub(super) fn of_word(word: u64) -> Limit {
        Limit {
            block: word as u32,
            bytes: (word >> 32) as u32,
        }
    }
}

/// A line of the root page that names a checkpoint. Its words: bytes of the chain, first block and pieces,
/// name, number of the checkpoint, and a check of them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) chain: Chain,
    /// The newer checkpoint has the higher number; the lowest bit chooses the line.
    number: u64,
}

impl Name {
    fn to_words(self, secret: &Secret, at: u64) -> [u64; 8] {
        let Chain {
            bytes,
            first,
            pieces,
            name,
            ..
        } = self.chain;
        let place = u64::from(first) | u64::from(pieces) << 32;
        let begun = secret.sum_words([SALT_NAME, at, bytes]);
        let check = secret.sum_words([secret.sum_words([begun, place, name]), self.number, 0]);
        [bytes, place, name, self.number, check, 0, 0, 0]
    }

    fn read(secret: &Secret, region: &Region, at: u64) -> Option<Name> {
        let word = |number: u64| region.load_word(at + 8 * number);
        let name = Name {
            chain: Chain {
                bytes: word(0),
                first: word(1) as u32,
                pieces: (word(1) >> 32) as u32,
                key_bytes: 0,
                name: word(2),
            },
            number: word(3),
        };
        (name.to_words(secret, at)[4] == word(4)).then_some(name)
    }

    fn write(self, lane: &mut Lane) -> Ordered {
        let at = NAMES_AT[self.number as usize % 2];
        let words = self.to_words(lane.pool().secret(), at);
        store_line(lane, at, words)
    }
}

/// Stores and fences a line of the root page.
fn store_line(lane: &mut Lane, at: u64, words: [u64; 8]) -> Ordered {
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let dirty = lane.store(at, &bytes);
    let flushed = lane.flush(dirty);
    lane.fence(flushed)
}

/// The names in the root page that verify, the newest first.
pub(super) fn names(secret: &Secret, region: &Region) -> Vec<Name> {
    let mut names: Vec<Name> = NAMES_AT
        .into_iter()
        .filter_map(|at| Name::read(secret, region, at))
        .collect();
    names.sort_unstable_by_key(|name| std::cmp::Reverse(name.number));
    names
}

/// Wipes the names, so that no later start reads checkpoint blocks after their reuse.
pub(super) fn forget(viper: &Viper) -> Ordered {
    let mut lane = viper.pool.lane();
    let mut ordered = Ordered::when_found();
    for at in NAMES_AT {
        if (0..LINE / 8).any(|word| viper.pool.region().load_word(at + 8 * word) != 0) {
            ordered = store_line(&mut lane, at, [0; 8]);
        }
    }
    ordered
}

/// The current checkpoint of the pool.
#[derive(Default)]
pub(super) struct Kept {
    /// Number of the last one.
    number: u64,
    /// Its blocks, and their lives.
    blocks: Vec<(u32, u32)>,
    /// The floor under which it was made.
    floor: u64,
    /// Claims of blocks before it was begun.
    claims: u64,
    /// Blocks in use that it did not cover when the store was opened.
    uncovered: u64,
}

impl Kept {
    /// The checkpoint with which a restart began.
    pub(super) fn restored(name: &Name, blocks: Vec<(u32, u32)>, floor: u64) -> Kept {
        Kept {
            number: name.number,
            blocks,
            floor,
            ..Kept::default()
        }
    }

    /// Notes after recovery that the checkpoint covers `count` blocks.
    pub(super) fn covers(&mut self, blocks: &Blocks, count: usize) {
        let known = blocks.free_count() + (count + self.blocks.len()) as u64;
        self.uncovered = blocks.total().saturating_sub(known);
        self.claims = blocks.claims();
    }
}

/// Writes a checkpoint if one is due; the background thread calls this.
pub(super) fn write_if_due(viper: &Arc<Viper>) -> Result<(), Error> {
    match is_due(viper, USED_SHARE) {
        true => write(viper),
        false => Ok(()),
    }
}

/// Writes a checkpoint at close, if a restart without it would read more than a little.
pub(super) fn write_at_close(viper: &Arc<Viper>) -> Result<(), Error> {
    match is_due(viper, u64::MAX) {
        true => write(viper),
        false => Ok(()),
    }
}

/// Frees the blocks of the checkpoint when the pool is full; `false` if there is no checkpoint. A slower
/// restart is better than a refused write.
pub(super) fn give_way(viper: &Viper) -> bool {
    let mut kept = lock(&viper.checkpoint);
    if kept.blocks.is_empty() || viper.verification.is_running() {
        return false;
    }
    let ordered = forget(viper);
    for (block, epoch) in std::mem::take(&mut kept.blocks) {
        viper.space.blocks.release(block, epoch, &ordered);
    }
    // The next one is due after as many claims as if this one still existed.
    true
}

/// Whether the blocks claimed since the last checkpoint exceed what the options allow, and one in `share`
/// used blocks.
fn is_due(viper: &Viper, share: u64) -> bool {
    if viper.checkpoint_bytes == 0 {
        return false;
    }
    let kept = lock(&viper.checkpoint);
    let used = viper
        .space
        .blocks
        .total()
        .saturating_sub(viper.space.blocks.free_count());
    let allowed = (viper.checkpoint_bytes / viper.space.geometry.block_bytes).max(used / share);
    let is_void = !kept.blocks.is_empty() && kept.floor != viper.floor.load(Ordering::Acquire);
    is_void || viper.space.blocks.claims() - kept.claims + kept.uncovered > allowed
}

/// Writes a checkpoint. The caller holds no stripe.
///
/// # Errors
/// [`Error::NoSpace`]: the pool keeps its previous checkpoint.
pub(super) fn write(viper: &Arc<Viper>) -> Result<(), Error> {
    if viper.read_only || viper.verification.is_running() || viper.is_loading() {
        return Ok(());
    }
    let mut kept = lock(&viper.checkpoint);
    viper.healthy()?;
    let claims = viper.space.blocks.claims();
    // A checkpoint that fails is tried again after as many claims, not at once.
    (kept.claims, kept.uncovered) = (claims, 0);
    let floor = viper.floor.load(Ordering::Acquire);
    let mut session = ViperSession::new(Arc::clone(viper))?;
    let Some(covered) = Covered::now(viper)? else {
        return Ok(());
    };
    let version = pass_all_stripes(viper, &session)?;
    assert!(
        version >= floor,
        "every record that a checkpoint covers is below its floor"
    );
    viper.fence_all_marks(&mut session);
    let mut stream = Stream::new(&mut session, State::Checkpoint)?;
    let (chain, blocks) = match fill(viper, &mut stream, &covered, floor, version) {
        Ok(()) => stream.finish(),
        Err(error) => {
            stream.give_up();
            return Err(error);
        }
    };
    if let Some(below) = &viper.below {
        below.await_settled();
    }
    // A batch that failed half-way may have left its journal in a covered block, or a commit a record that it
    // has not published. Or the log does not count as far as records have left.
    viper.healthy()?;
    let number = kept.number + 1;
    let ordered = Name { chain, number }.write(&mut session.lane);
    let before = std::mem::replace(
        &mut *kept,
        Kept {
            number,
            blocks,
            floor,
            claims,
            uncovered: 0,
        },
    );
    // Only a restart reads the old checkpoint, and it finds the newer one first.
    for (block, epoch) in before.blocks {
        viper.space.blocks.release(block, epoch, &ordered);
    }
    Ok(())
}

/// The covered part of the pool.
struct Covered {
    /// Page words, by block number.
    words: Vec<u64>,
    limits: Vec<Limit>,
}

impl Covered {
    /// Holds the compactor, so that no record moves meanwhile. Without this, a moved record could be covered
    /// in neither of its blocks, or in only one. `None`: readers stay pinned.
    fn now(viper: &Viper) -> Result<Option<Covered>, Error> {
        let still = match &viper.below {
            None => viper.compactor(),
            Some(_) => match viper.settled_compactor()? {
                Some(compactor) => compactor,
                None => return Ok(None),
            },
        };
        let covered = Covered::list(viper);
        if let Some(below) = &viper.below {
            viper.healthy()?;
            below.settle_freed(&mut viper.pool.lane());
        }
        drop(still);
        Ok(Some(covered))
    }

    fn list(viper: &Viper) -> Covered {
        let mut covered = Covered {
            words: Vec::new(),
            limits: Vec::new(),
        };
        for block in viper.space.blocks.all() {
            let Some(entry) = viper.space.blocks.get(block) else {
                continue;
            };
            let (info, limit) = extent(entry);
            if limit == Some(0) {
                continue;
            }
            let (at, number) = (viper.space.blocks.at(block), block as usize);
            let word = page_word(viper.pool.secret(), at, info.kind, info.epoch);
            covered.words.resize(covered.words.len().max(number + 1), 0);
            covered.words[number] = word;
            if let Some(bytes) = limit {
                covered.limits.push(Limit { block, bytes });
                looks!();
            }
        }
        covered
    }
}

/// A block, and how far it is covered, if that is not wholly or if a restart must read the block.
fn extent(entry: &Block) -> (Info, Option<u32>) {
    loop {
        let info = entry.info();
        let limit = match info.state {
            State::Sealed | State::Compacting => entry.has_long_keys().then_some(u32::MAX),
            State::Open => Some(entry.written()),
            State::Outside | State::Free | State::Overflow | State::Checkpoint | State::Lent => {
                Some(0)
            }
            State::Unverified => unreachable!("a checkpoint is made before verification is done"),
        };
        // A session may have sealed the block meanwhile.
        if entry.info() == info {
            return (info, limit);
        }
    }
}

/// Waits for the sessions that are writing now. Returns the highest version given out.
///
/// # Errors
/// The engine takes no more writes: the holder of a stripe may never release it.
fn pass_all_stripes(viper: &Viper, session: &ViperSession) -> Result<u64, Error> {
    let mut highest = 0;
    for stripe in viper.stripes.all() {
        let version = viper.stripes.pass(stripe, session.id, || viper.healthy())?;
        highest = highest.max(version);
    }
    Ok(highest)
}

fn fill(
    viper: &Viper,
    stream: &mut Stream<'_>,
    covered: &Covered,
    floor: u64,
    version: u64,
) -> Result<(), Error> {
    let mut segments = Vec::new();
    let mut entries = 0;
    viper.index.copy(
        |location| !is_below(location),
        |segment, words| {
            segments.push(segment);
            entries += words.len() as u64;
            stream.push(words)
        },
    )?;
    stream.push(&segments)?;
    stream.push(&covered.words)?;
    let limits: Vec<u64> = covered.limits.iter().map(|limit| limit.to_word()).collect();
    assert!(
        covered.limits.iter().all(|limit| covered
            .words
            .get(limit.block as usize)
            .is_some_and(|&word| word != 0)),
        "a partly covered block has no page word"
    );
    stream.push(&limits)?;
    let summary = Summary {
        secret: *viper.index.secret(),
        entries,
        segments: segments.len() as u64,
        blocks: covered.words.len() as u64,
        limits: limits.len() as u64,
        floor,
        version,
        flags: u64::from(viper.expiries.load(Ordering::Relaxed)) * FLAG_EXPIRIES,
    };
    stream.push(&summary.to_words())
}
