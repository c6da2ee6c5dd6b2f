//! The index checkpoint: a copy of the index in the pool, with which the next start need not read every
//! record.
//!
//! A checkpoint *covers* everything that had been written when it was begun: a block that was full, or being
//! compacted, wholly; one that was open, as far as it was filled. Of what it covers it says which records
//! count: those that the copy of the index leads to. Every other one has been replaced or removed, or is the
//! original of what compaction has moved, and it is dead wherever it lies, whether it is marked or not. So a
//! restart never has to put together what makes a record dead from blocks that it reads and blocks that it
//! does not.
//!
//! What has happened to a block since then is for the restart to find out (`load.rs`), and it can tell: the
//! checkpoint has the page word of each block that it covers, and a block that is claimed or freed gets
//! another one.
//!
//! # Why it is never wrong
//! It is a chain in overflow blocks, like a large value, and every piece has its sums. Two lines of the root
//! page name the last two checkpoints. A checkpoint that is cut, torn or half overwritten does not verify,
//! and the restart does without; so no order of stores is needed to keep it from being wrong, only to have it
//! when it is wanted.
//!
//! For one that verifies, take the newest record of a key, and whatever is older. That takes four steps in
//! this order:
//! 1. the blocks are listed, and how far the open ones are filled with records that are fenced, while
//!    compaction stands still: so of what it moves later the copy is not covered, and of what it has moved
//!    the original is;
//! 2. every stripe is locked once: whoever had fenced a record that is covered has published it by then, and
//!    has marked or noted what it replaced;
//! 3. all marks are fenced: no batch in what is covered is unfinished, and what a record that is covered has
//!    replaced is marked dead for good, also where it is not covered itself;
//! 4. the segments of the index are copied, each under its lock.
//!
//! If the newest record is covered, the copy leads to it, or it is dead. If it is not, the restart reads it,
//! and it wins over whatever the copy leads to. What is older is covered, and the copy does not lead to it;
//! or it is marked (3); or it is as young as the newest, and read with it.

pub(super) mod load;
pub(super) mod verify;

use super::Viper;
use super::block_table::{Block, Blocks, Info, State};
use super::chain::Stream;
use super::layout::{page_word, word_at};
use super::record::Chain;
use super::session::ViperSession;
use crate::concurrency::seam::looks;
use crate::error::Error;
use crate::index::SECRET_BYTES;
use everdram_pm::ROOT_BYTES;
use everdram_pm::lock::lock;
use everdram_pm::{LINE, Lane, Ordered, ROOT_AT, Region, Secret};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the two lines are that name checkpoints; each has a line of its own.
const NAMES_AT: [u64; 2] = [ROOT_AT + 2 * LINE, ROOT_AT + 3 * LINE];
/// Salt of the check of such a line.
const SALT_NAME: u64 = 0x6a;
/// A checkpoint is due when more than one of so many used blocks was claimed since the last one. What has
/// been claimed is read at a restart, and each checkpoint writes the whole index.
const USED_SHARE: u64 = 8;

/// The last bytes of a checkpoint, which say what is before them.
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
    /// Of the index's hashes.
    pub(super) secret: [u8; SECRET_BYTES],
    pub(super) entries: u64,
    pub(super) segments: u64,
    /// Block words, by block number from 0 on; the page word of a block of which something is covered, 0 for
    /// any other.
    pub(super) blocks: u64,
    /// Words of [`Limit`]s.
    pub(super) limits: u64,
    /// The floor when the checkpoint was begun. Under another one it says nothing.
    pub(super) floor: u64,
    /// No record that is covered has a greater version.
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

/// How far a block is covered whose records a restart reads in any case: because it was open, or because a
/// removed record's key may be gone, so that the index could do nothing with it.
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

/// A line of the root page that names a checkpoint: bytes of the chain, its first block and pieces, its name,
/// the number of the checkpoint, and a check of all that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) chain: Chain,
    /// The higher one is the newer one; the lowest bit chooses the line.
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

/// Wipes the names, so that no later start looks at blocks that are about to be used for something else.
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

/// The checkpoint that the pool has now.
#[derive(Default)]
pub(super) struct Kept {
    /// Number of the last one.
    number: u64,
    /// Its blocks, and the lives they are in.
    blocks: Vec<(u32, u32)>,
    /// The floor it was made under.
    floor: u64,
    /// Blocks that had been claimed when it was begun.
    claims: u64,
    /// Blocks in use that it did not cover when the store was opened.
    uncovered: u64,
}

impl Kept {
    /// What a restart has begun with.
    pub(super) fn restored(name: &Name, blocks: Vec<(u32, u32)>, floor: u64) -> Kept {
        Kept {
            number: name.number,
            blocks,
            floor,
            ..Kept::default()
        }
    }

    /// Recovery is done: the checkpoint covers so many blocks.
    pub(super) fn covers(&mut self, blocks: &Blocks, count: usize) {
        let known = blocks.free_count() + (count + self.blocks.len()) as u64;
        self.uncovered = blocks.total().saturating_sub(known);
        self.claims = blocks.claims();
    }
}

/// Writes a checkpoint if one is due: for the background thread.
pub(super) fn write_if_due(viper: &Arc<Viper>) -> Result<(), Error> {
    match is_due(viper, USED_SHARE) {
        true => write(viper),
        false => Ok(()),
    }
}

/// Writes a checkpoint if a restart without it would read more than a little: for whoever closes the store.
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
    // The next one is written when as much has changed as if this one were there.
    true
}

/// Whether more blocks were claimed since the last checkpoint than the options allow, and more than one of
/// `share`.
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
/// [`Error::NoSpace`]: the pool has the checkpoint that it had.
pub(super) fn write(viper: &Arc<Viper>) -> Result<(), Error> {
    if viper.read_only || viper.verification.is_running() {
        return Ok(());
    }
    let mut kept = lock(&viper.checkpoint);
    viper.healthy()?;
    let claims = viper.space.blocks.claims();
    // Whatever becomes of it: one that fails is tried again after as many blocks, not at once.
    (kept.claims, kept.uncovered) = (claims, 0);
    let floor = viper.floor.load(Ordering::Acquire);
    let mut session = ViperSession::new(Arc::clone(viper))?;
    let covered = Covered::now(viper);
    let version = pass_all_stripes(viper, &session)?;
    assert!(
        version >= floor,
        "a checkpoint would say that nothing counts which it covers"
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
    // A batch that failed half-way may have left its journal in what is covered, or a commit a record that it
    // has not published.
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
    // Nobody reads them but a restart, and it finds the newer one first.
    for (block, epoch) in before.blocks {
        viper.space.blocks.release(block, epoch, &ordered);
    }
    Ok(())
}

/// What there is in the pool when a checkpoint is begun.
struct Covered {
    /// Page words, by block number.
    words: Vec<u64>,
    limits: Vec<Limit>,
}

impl Covered {
    /// Nothing is compacted meanwhile: what has been moved from one block to another would be covered in
    /// neither, or in one of them only.
    fn now(viper: &Viper) -> Covered {
        let _still = viper.compactor();
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

/// A block, and how far it is covered if that is not wholly, or if it has to be read at a restart.
fn extent(entry: &Block) -> (Info, Option<u32>) {
    loop {
        let info = entry.info();
        let limit = match info.state {
            State::Sealed | State::Compacting => entry.has_long_keys().then_some(u32::MAX),
            State::Open => Some(entry.written()),
            State::Outside | State::Free | State::Overflow | State::Checkpoint => Some(0),
            State::Unverified => unreachable!("no checkpoint is made before all is verified"),
        };
        // It may have become full meanwhile.
        if entry.info() == info {
            return (info, limit);
        }
    }
}

/// Waits for everybody who is writing now. Returns the highest version given out.
///
/// # Errors
/// The engine takes no more writes: then who holds a key may never give it back.
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
    viper.index.copy(|segment, words| {
        segments.push(segment);
        entries += words.len() as u64;
        stream.push(words)
    })?;
    stream.push(&segments)?;
    stream.push(&covered.words)?;
    let limits: Vec<u64> = covered.limits.iter().map(|limit| limit.to_word()).collect();
    assert!(
        covered.limits.iter().all(|limit| covered
            .words
            .get(limit.block as usize)
            .is_some_and(|&word| word != 0)),
        "a block is covered in part, and not known"
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
