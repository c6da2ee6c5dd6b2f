//! The index checkpoint: a copy of the index in the pool, with which the next start need not read every record.
//!
//! A checkpoint says where the records of *stable* blocks are: those that were sealed when it was begun, but for a
//! few with keys that are longer than a page. What has happened to any other block since then is for the restart to
//! find out (`restart.rs`), and it can tell: the checkpoint has the page word of each stable block, and a block that
//! is claimed or freed gets another one.
//!
//! # Why it is never wrong
//! It is a chain in overflow blocks, like a large value, and every piece has its sums. Two lines of the root page
//! name the last two checkpoints. A checkpoint that is cut, torn or half overwritten does not verify, and the restart
//! does without; so no order of stores is needed to keep it from being wrong, only to have it when it is wanted.
//!
//! One that verifies shows, for every key whose record lies in a block that is still as the checkpoint knows it,
//! either that record or one that has been replaced or removed since. That takes three steps in this order:
//! 1. the sealed blocks are listed;
//! 2. every stripe is locked once: whoever was writing a record into one of those blocks has published it by then;
//! 3. the marks that sessions have listed are fenced: no batch in one of those blocks is unfinished.
//!
//! Only then are the segments of the index copied, each under its lock. So a record in a stable block that the copy
//! does not lead to had been replaced or removed, and the fence that covers that came before the index was changed,
//! thus before the checkpoint got its name: it is dead for good, whether its mark is durable or not.

use super::Viper;
use super::blocks::{Blocks, State};
use super::chain::Stream;
use super::layout::{page_word, word_at};
use super::record::Chain;
use super::session::ViperSession;
use crate::error::Error;
use crate::index::SECRET_BYTES;
use crate::stripe::Stripes;
use everdram_pm::{LINE, Lane, ROOT_AT, Region, Secret};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the two lines are that name checkpoints; each has a line of its own.
const NAMES_AT: [u64; 2] = [ROOT_AT + 2 * LINE, ROOT_AT + 3 * LINE];
/// Salt of the check of such a line.
const SALT_NAME: u64 = 0x69;
/// A checkpoint is due when more than one of so many used blocks was claimed since the last one. What has been claimed is
/// read at a restart, and each checkpoint writes the whole index.
const USED_SHARE: u64 = 8;

/// The last bytes of a checkpoint, which say what is before them.
///
/// ```text
/// +-----------+---------------+-------------+-------------------------------------------------------------+
/// | entries   | segment words | block words | secret | entries | segments | blocks | floor | version | flags |
/// +-----------+---------------+-------------+-------------------------------------------------------------+
///   8 each      8 each          8 each        192      8 each
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// Of the index's hashes.
    pub(super) secret: [u8; SECRET_BYTES],
    pub(super) entries: u64,
    pub(super) segments: u64,
    /// Block words, by block number from 0 on; the page word of a stable block, 0 for any other.
    pub(super) blocks: u64,
    /// The floor when the checkpoint was begun. Under another one it says nothing.
    pub(super) floor: u64,
    /// No record of a stable block has a greater version.
    pub(super) version: u64,
    /// Bit 0: some record may have an expiry.
    pub(super) flags: u64,
}

/// Bytes of a [`Summary`].
pub(super) const SUMMARY_BYTES: usize = SECRET_BYTES + 6 * 8;
const FLAG_EXPIRIES: u64 = 1;

impl Summary {
    fn to_words(&self) -> Vec<u64> {
        let (secret, _) = self.secret.as_chunks::<8>();
        let fields = [
            self.entries,
            self.segments,
            self.blocks,
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
            floor: word_at(words, 24),
            version: word_at(words, 32),
            flags: word_at(words, 40),
        })
    }

    pub(super) fn has_expiries(&self) -> bool {
        self.flags & FLAG_EXPIRIES != 0
    }
}

/// A line of the root page that names a checkpoint: bytes of the chain, its first block and pieces, its name, the number
/// of the checkpoint, and a check of all that.
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

    fn write(self, lane: &mut Lane) {
        let at = NAMES_AT[self.number as usize % 2];
        let words = self.to_words(lane.pool().secret(), at);
        store_line(lane, at, words);
    }
}

/// Stores and fences a line of the root page.
fn store_line(lane: &mut Lane, at: u64, words: [u64; 8]) {
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let dirty = lane.store(at, &bytes);
    let flushed = lane.flush(dirty);
    let _ordered = lane.fence(flushed);
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
pub(super) fn forget(viper: &Viper) {
    let mut lane = viper.pool.lane();
    for at in NAMES_AT {
        if (0..LINE / 8).any(|word| viper.pool.region().load_word(at + 8 * word) != 0) {
            store_line(&mut lane, at, [0; 8]);
        }
    }
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

/// Gives the room of the checkpoint to whoever found none; `false` if there is no checkpoint. Keys are worth more than a quick
/// restart.
pub(super) fn give_way(viper: &Viper) -> bool {
    let mut kept = viper.checkpoint.lock();
    if kept.blocks.is_empty() || viper.verification.is_running() {
        return false;
    }
    forget(viper);
    for (block, epoch) in std::mem::take(&mut kept.blocks) {
        viper.blocks.release(block, epoch);
    }
    // The next one is written when as much has changed as if this one were there.
    true
}

/// Whether more blocks were claimed since the last checkpoint than the options allow, and more than one of `share`.
fn is_due(viper: &Viper, share: u64) -> bool {
    if viper.checkpoint_bytes == 0 {
        return false;
    }
    let kept = viper.checkpoint.lock();
    let used = viper
        .blocks
        .total()
        .saturating_sub(viper.blocks.free_count());
    let allowed = (viper.checkpoint_bytes / viper.geometry.block_bytes).max(used / share);
    let is_void = !kept.blocks.is_empty() && kept.floor != viper.floor.load(Ordering::Acquire);
    is_void || viper.blocks.claims() - kept.claims + kept.uncovered > allowed
}

/// Writes a checkpoint. The caller holds no stripe.
///
/// # Errors
/// [`Error::NoSpace`]: the pool has the checkpoint that it had.
pub(super) fn write(viper: &Arc<Viper>) -> Result<(), Error> {
    if viper.read_only || viper.verification.is_running() {
        return Ok(());
    }
    let mut kept = viper.checkpoint.lock();
    viper.healthy()?;
    let claims = viper.blocks.claims();
    // Whatever becomes of it: one that fails is tried again after as many blocks, not at once.
    (kept.claims, kept.uncovered) = (claims, 0);
    let floor = viper.floor.load(Ordering::Acquire);
    let words = stable_blocks(viper);
    let mut session = ViperSession::new(Arc::clone(viper))?;
    let version = pass_all_stripes(viper, &session);
    viper.fence_marks(&mut session);
    let mut stream = Stream::new(&mut session, State::Checkpoint)?;
    let (chain, blocks) = match fill(viper, &mut stream, &words, floor, version) {
        Ok(()) => stream.finish(),
        Err(error) => {
            stream.give_up();
            return Err(error);
        }
    };
    // A batch that failed half-way may have left its journal in a block that is listed as stable.
    viper.healthy()?;
    let number = kept.number + 1;
    Name { chain, number }.write(&mut session.lane);
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
        viper.blocks.release(block, epoch);
    }
    Ok(())
}

/// The page words of sealed blocks, by block number.
fn stable_blocks(viper: &Viper) -> Vec<u64> {
    let mut words = Vec::new();
    for block in viper.blocks.all() {
        let Some(entry) = viper.blocks.get(block) else {
            continue;
        };
        let info = entry.info();
        // The index can do nothing with a removed record whose key is gone.
        if info.state == State::Sealed && !entry.has_long_keys() {
            let (at, number) = (viper.blocks.at(block), block as usize);
            words.resize(words.len().max(number + 1), 0);
            words[number] = page_word(viper.pool.secret(), at, info.kind, info.epoch);
        }
    }
    words
}

/// Waits for everybody who is writing now. Returns the highest version given out.
fn pass_all_stripes(viper: &Viper, session: &ViperSession) -> u64 {
    let pass = |stripe| {
        viper.stripes.lock(stripe, session.id);
        let version = viper.stripes.version(stripe);
        viper.stripes.unlock(stripe);
        version
    };
    Stripes::all().map(pass).max().unwrap_or(0)
}

fn fill(
    viper: &Viper,
    stream: &mut Stream<'_>,
    blocks: &[u64],
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
    stream.push(blocks)?;
    let summary = Summary {
        secret: *viper.index.secret(),
        entries,
        segments: segments.len() as u64,
        blocks: blocks.len() as u64,
        floor,
        version,
        flags: u64::from(viper.expiries.load(Ordering::Relaxed)) * FLAG_EXPIRIES,
    };
    stream.push(&summary.to_words())
}
