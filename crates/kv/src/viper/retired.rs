//! What was taken out of the readers' sight, until it is free: blocks that compaction has emptied, and pieces of values.
//!
//! There is one queue, and it is freed in its order. What comes first may be needed by a recovery that still finds what comes
//! later, and the other way round not: a record that compaction has moved has no mark, so recovery reads it as long as
//! its block is not free; and if its key is longer than a block it looks for the key in pieces that were let go of *after*
//! the record had been moved. So a block is in the queue from the moment in which compaction begins to empty it.
//!
//! Something is freed when nobody can be at work in it any more: no reader that found a location in it, no writer that
//! marked a record in it and has still to change the index. Both are pinned. Then every mark is made durable that
//! keeps an older copy of one of its dead records dead, and the free page word is stored and fenced (V14). Pieces need no
//! page word: recovery never looks into an overflow block that no live record leads to; but the marks of the
//! records that led to them are fenced first.
//!
//! Blocks are not freed after blocks that were *filled* when they were emptied: of two copies that compaction made of a
//! record, the older one has no mark. So all are freed before the next blocks are chosen.

use super::Viper;
use super::blocks::{Info, State};
use super::bump_shared;
use super::layout::{Kind, page_word};
use super::record::Chain;
use super::session::ViperSession;
use crate::broken::Hole;
use crate::epoch::Epochs;
use everdram_pm::Ordered;
use everdram_pm::lock::lock;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Something that nothing leads to any more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Retired {
    /// Its records have all been moved or are dead.
    Block(u32, Info),
    /// A value that was replaced or removed.
    Chain(Chain),
    /// A block with a piece of one, in this life.
    Piece(u32, u32),
}

/// What was retired together.
struct Lot {
    number: u64,
    /// The epoch after which nobody is in it; `None`: it is still being gathered.
    grace: Option<u64>,
    content: Vec<Retired>,
}

/// See the module text.
#[derive(Default)]
pub(super) struct RetireQueue(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    lots: VecDeque<Lot>,
    next: u64,
}

/// A place in the queue for blocks that are being emptied. Nothing behind it is freed before it is dropped.
pub(super) struct Gathering<'a> {
    queue: &'a RetireQueue,
    epochs: &'a Epochs,
    number: u64,
    blocks: Vec<Retired>,
}

impl Gathering<'_> {
    /// A block has been emptied.
    pub(super) fn push(&mut self, block: u32, info: Info) {
        self.blocks.push(Retired::Block(block, info));
    }

    /// How many were.
    pub(super) fn count(&self) -> usize {
        self.blocks.len()
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue.0);
        let grace = self.epochs.advance();
        let lot = queue.lots.iter_mut().find(|lot| lot.number == self.number);
        debug_assert!(lot.is_some(), "what is being gathered is not in the queue");
        if let Some(lot) = lot {
            lot.content = std::mem::take(&mut self.blocks);
            lot.grace = Some(grace);
        }
    }
}

impl Queue {
    fn push(&mut self, grace: Option<u64>, content: Vec<Retired>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.lots.push_back(Lot {
            number,
            grace,
            content,
        });
        number
    }
}

impl RetireQueue {
    /// Retires something that has just been taken out of the readers' sight.
    pub(super) fn push(&self, epochs: &Epochs, content: Vec<Retired>) {
        let mut queue = lock(&self.0);
        // Under the lock, so that stamps are in the queue's order.
        let grace = epochs.advance();
        queue.push(Some(grace), content);
    }

    /// Takes a place for blocks that are about to be emptied.
    pub(super) fn gather<'a>(&'a self, epochs: &'a Epochs) -> Gathering<'a> {
        Gathering {
            queue: self,
            epochs,
            number: lock(&self.0).push(None, Vec::new()),
            blocks: Vec::new(),
        }
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        let is_over = |lot: &Lot| lot.grace.is_some() && lot.content.is_empty();
        lock(&self.0).lots.iter().all(is_over)
    }

    /// Whether blocks wait that were emptied.
    pub(super) fn has_blocks(&self) -> bool {
        let is_block = |retired: &Retired| matches!(retired, Retired::Block(..));
        let has_block = |lot: &Lot| lot.grace.is_none() || lot.content.iter().any(is_block);
        lock(&self.0).lots.iter().any(has_block)
    }

    /// Leaves nothing but blocks: everything else is retired in another way.
    pub(super) fn forget_values(&self) {
        let is_block = |retired: &Retired| matches!(retired, Retired::Block(..));
        for lot in &mut lock(&self.0).lots {
            lot.content.retain(is_block);
        }
    }

    /// Takes what nobody is in any more, as far as everything before it is in the same case.
    fn take_passed(&self, epochs: &Epochs) -> Vec<Retired> {
        let newest = {
            let queue = lock(&self.0);
            let closed = queue.lots.iter().map_while(|lot| lot.grace);
            closed.max()
        };
        epochs.ask(newest);
        let mut queue = lock(&self.0);
        let has_passed = |lot: &Lot| {
            lot.grace
                .is_some_and(|grace| epochs.is_known_to_have_passed(grace))
        };
        let ready = queue.lots.iter().take_while(|lot| has_passed(lot)).count();
        queue
            .lots
            .drain(..ready)
            .flat_map(|lot| lot.content)
            .collect()
    }

    /// Hole V14: takes everything that was gathered.
    fn take_all(&self) -> Vec<Retired> {
        let mut queue = lock(&self.0);
        let ready = queue
            .lots
            .iter()
            .take_while(|lot| lot.grace.is_some())
            .count();
        queue
            .lots
            .drain(..ready)
            .flat_map(|lot| lot.content)
            .collect()
    }
}

/// Frees what nobody can be in; returns how many bytes. One thread at a time: the one that has the compactor.
pub(super) fn free_passed(viper: &Viper, session: &mut ViperSession) -> u64 {
    if viper.is_broken(Hole::V14) {
        return free_at_once(viper);
    }
    let ready = viper.retired.take_passed(&viper.epochs);
    if ready.is_empty() {
        return 0;
    }
    let Ready { blocks, pieces } = sort_out(viper, &ready);
    viper.fence_marks(session);
    for &(block, info) in &blocks {
        let at = viper.blocks.at(block);
        let word = page_word(viper.pool.secret(), at, Kind::Free, info.epoch);
        let dirty = session.lane.store_word(at, word);
        let flushed = session.lane.flush(dirty);
        session.unfenced.add(flushed);
    }
    let ordered = session.settle_and_fence();
    for &(block, info) in &blocks {
        let life = viper.last_life(info.epoch);
        viper.blocks.release(block, life, &ordered);
    }
    let pieces = release_pieces(viper, &pieces, &ordered);
    let blocks = blocks.len() as u64;
    bump_shared(&viper.blocks_reclaimed, blocks);
    (blocks + pieces) * viper.geometry.block_bytes
}

/// Blocks that are to be free.
#[derive(Default)]
struct Ready {
    /// With records.
    blocks: Vec<(u32, Info)>,
    /// With pieces, and the lives that these were retired in.
    pieces: Vec<(u32, u32)>,
}

fn sort_out(viper: &Viper, ready: &[Retired]) -> Ready {
    let Ready {
        mut blocks,
        mut pieces,
    } = Ready::default();
    for retired in ready {
        match *retired {
            Retired::Block(block, info) => blocks.push((block, info)),
            Retired::Piece(block, life) => pieces.push((block, life)),
            // Damaged pieces stay lost until the pool is opened again; `check` names them.
            Retired::Chain(chain) => {
                let found = viper.reader().chain_blocks(&chain).unwrap_or_default();
                pieces.extend(found.into_iter().filter_map(|block| {
                    let life = viper.blocks.get(block)?.info().epoch;
                    Some((block, life))
                }));
            }
        }
    }
    Ready { blocks, pieces }
}

/// Releases pieces that are still in the lives they were retired in. Returns how many.
fn release_pieces(viper: &Viper, pieces: &[(u32, u32)], ordered: &Ordered) -> u64 {
    let mut count = 0;
    for &(block, life) in pieces {
        let info = viper.blocks.get(block).map(|entry| entry.info());
        if info.is_some_and(|info| info.state == State::Overflow && info.epoch == life) {
            viper.blocks.release(block, life, ordered);
            count += 1;
        }
    }
    count
}

/// Hole V14: nobody is waited for, and the pool does not know that the blocks are free.
fn free_at_once(viper: &Viper) -> u64 {
    let Ready { blocks, pieces } = sort_out(viper, &viper.retired.take_all());
    let ordered = Ordered::when_found();
    for &(block, info) in &blocks {
        viper.blocks.release(block, info.epoch, &ordered);
    }
    let pieces = release_pieces(viper, &pieces, &ordered);
    let blocks = blocks.len() as u64;
    bump_shared(&viper.blocks_reclaimed, blocks);
    (blocks + pieces) * viper.geometry.block_bytes
}
