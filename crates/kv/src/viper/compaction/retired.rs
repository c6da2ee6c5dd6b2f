//! What was taken out of the readers' sight, until it is free: blocks that compaction has emptied, and pieces
//! of values.
//!
//! There is one queue, and it is freed in its order. What comes first may be needed by a recovery that still
//! finds what comes later, and the other way round not: a record that compaction has moved has no mark, so
//! recovery reads it as long as its block is not free; and if its key is longer than a block it looks for the
//! key in pieces that were let go of *after* the record had been moved. So a block is in the queue from the
//! moment in which compaction begins to empty it.
//!
//! Something is freed when nobody can be at work in it any more. For a block that is two graces, one after
//! the other: first of writers that marked a record there and have still to change the index, which
//! compaction does not wait for; then of readers that found a location in it, which they could until the last
//! of these writers had gone. Both are pinned. Then every mark is made durable that keeps an older copy of
//! one of its dead records dead, and the free page word is stored and fenced (V14). Pieces are let go of when
//! the index has changed, so only readers are waited for. They need no page word: recovery never looks into
//! an overflow block that no live record leads to; but the marks of the records that led to them are fenced
//! first.
//!
//! Blocks are not freed after blocks that were *filled* when they were emptied: of two copies that compaction
//! made of a record, the older one has no mark. So all are freed before the next blocks are chosen.

use crate::concurrency::epoch::Epochs;
use crate::viper::block_table::{Info, State};
use crate::viper::layout::{Kind, page_word};
use crate::viper::record::Chain;
use crate::viper::session::ViperSession;
use crate::viper::space::Space;
use crate::viper::{Viper, bump_shared};
use everdram_pm::Ordered;
use everdram_pm::lock::lock;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Something that nothing leads to any more.
#[derive(Clone, Copy, Debug)]
pub(in crate::viper) enum Retired {
    /// Its records have all been moved or are dead.
    Block(u32, Info),
    /// A value that was replaced or removed.
    Chain(Chain),
    /// A block with a piece of one, in this life.
    Piece(u32, u32),
}

/// What has to end before something is free.
#[derive(Clone, Copy, Debug)]
enum Grace {
    /// It is still being gathered.
    Gathering,
    /// Pins from before this epoch, of writers: until then the index may lead to records that they have
    /// marked.
    Writers(u64),
    /// Pins from before this epoch, of readers: nothing leads there any more.
    Readers(u64),
}

/// What was retired together.
struct Lot {
    number: u64,
    grace: Grace,
    content: Vec<Retired>,
}

/// See the module text.
#[derive(Default)]
pub(in crate::viper) struct RetireQueue(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    lots: VecDeque<Lot>,
    next: u64,
}

/// A place in the queue for blocks that are being emptied. Nothing behind it is freed before it is dropped.
pub(in crate::viper) struct Gathering<'a> {
    queue: &'a RetireQueue,
    epochs: &'a Epochs,
    number: u64,
    blocks: Vec<Retired>,
}

impl Gathering<'_> {
    /// A block has been emptied.
    pub(in crate::viper) fn push(&mut self, block: u32, info: Info) {
        self.blocks.push(Retired::Block(block, info));
    }

    /// How many were.
    pub(in crate::viper) fn count(&self) -> usize {
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
            lot.grace = Grace::Writers(grace);
        }
    }
}

impl Lot {
    fn is_gathering(&self) -> bool {
        matches!(self.grace, Grace::Gathering)
    }
}

impl Queue {
    fn push(&mut self, grace: Grace, content: Vec<Retired>) -> u64 {
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
    pub(in crate::viper) fn push(&self, epochs: &Epochs, content: Vec<Retired>) {
        let mut queue = lock(&self.0);
        // Under the lock, so that stamps are in the queue's order.
        let grace = epochs.advance();
        queue.push(Grace::Readers(grace), content);
    }

    /// Takes a place for blocks that are about to be emptied.
    pub(in crate::viper) fn gather<'a>(&'a self, epochs: &'a Epochs) -> Gathering<'a> {
        Gathering {
            queue: self,
            epochs,
            number: lock(&self.0).push(Grace::Gathering, Vec::new()),
            blocks: Vec::new(),
        }
    }

    /// Whether nothing waits.
    pub(in crate::viper) fn is_empty(&self) -> bool {
        let is_over = |lot: &Lot| !lot.is_gathering() && lot.content.is_empty();
        lock(&self.0).lots.iter().all(is_over)
    }

    /// Whether blocks wait that were emptied.
    pub(in crate::viper) fn has_blocks(&self) -> bool {
        let is_block = |retired: &Retired| matches!(retired, Retired::Block(..));
        let has_block = |lot: &Lot| lot.is_gathering() || lot.content.iter().any(is_block);
        lock(&self.0).lots.iter().any(has_block)
    }

    /// Leaves nothing but blocks: everything else is retired in another way.
    pub(in crate::viper) fn forget_values(&self) {
        let is_block = |retired: &Retired| matches!(retired, Retired::Block(..));
        for lot in &mut lock(&self.0).lots {
            lot.content.retain(is_block);
        }
    }

    /// Takes what nobody is in any more, as far as everything before it is in the same case.
    fn take_passed(&self, epochs: &Epochs) -> Vec<Retired> {
        self.ask(epochs);
        if self.begin_graces_of_readers(epochs) {
            self.ask(epochs);
        }
        let mut queue = lock(&self.0);
        let has_passed = |lot: &Lot| match lot.grace {
            Grace::Readers(grace) => epochs.is_known_to_have_passed(grace),
            Grace::Gathering | Grace::Writers(_) => false,
        };
        let ready = queue.lots.iter().take_while(|lot| has_passed(lot)).count();
        queue
            .lots
            .drain(..ready)
            .flat_map(|lot| lot.content)
            .collect()
    }

    /// Finds out which graces are over, of those that are next.
    fn ask(&self, epochs: &Epochs) {
        let newest = {
            let queue = lock(&self.0);
            let next = queue.lots.iter().map_while(|lot| match lot.grace {
                Grace::Writers(grace) | Grace::Readers(grace) => Some(grace),
                Grace::Gathering => None,
            });
            next.max()
        };
        epochs.ask(newest);
    }

    /// Where no writer has to change the index any more, readers are waited for. Whether that begins for
    /// anything.
    fn begin_graces_of_readers(&self, epochs: &Epochs) -> bool {
        let mut queue = lock(&self.0);
        let mut has_begun = false;
        for lot in &mut queue.lots {
            if let Grace::Writers(grace) = lot.grace
                && epochs.is_known_to_have_passed(grace)
            {
                lot.grace = Grace::Readers(epochs.advance());
                has_begun = true;
            }
        }
        has_begun
    }
}

/// Frees what nobody can be in; returns how many bytes. One thread at a time: the one that has the compactor.
pub(in crate::viper) fn free_passed(viper: &Viper, session: &mut ViperSession) -> u64 {
    let ready = viper.compaction.retired.take_passed(&viper.epochs);
    if ready.is_empty() {
        return 0;
    }
    let Ready { blocks, pieces } = sort_out(&viper.space, &ready);
    viper.fence_marks(session);
    for &(block, info) in &blocks {
        let now = viper.space.blocks.get(block).map(|entry| entry.info());
        assert_eq!(now, Some(info), "block {block} is freed in another life");
        let at = viper.space.blocks.at(block);
        let word = page_word(viper.pool.secret(), at, Kind::Free, info.epoch);
        let dirty = session.lane.store_word(at, word);
        let flushed = session.lane.flush(dirty);
        session.unfenced.add(flushed);
    }
    let ordered = session.settle_and_fence();
    for &(block, info) in &blocks {
        viper.space.blocks.release(block, info.epoch, &ordered);
    }
    let pieces = release_pieces(&viper.space, &pieces, &ordered);
    let blocks = blocks.len() as u64;
    bump_shared(&viper.compaction.blocks_reclaimed, blocks);
    (blocks + pieces) * viper.space.geometry.block_bytes
}

/// Blocks that are to be free.
#[derive(Default)]
struct Ready {
    /// With records.
    blocks: Vec<(u32, Info)>,
    /// With pieces, and the lives that these were retired in.
    pieces: Vec<(u32, u32)>,
}

fn sort_out(space: &Space, ready: &[Retired]) -> Ready {
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
                let found = space.reader().chain_blocks(&chain).unwrap_or_default();
                pieces.extend(found.into_iter().filter_map(|block| {
                    let life = space.blocks.get(block)?.info().epoch;
                    Some((block, life))
                }));
            }
        }
    }
    Ready { blocks, pieces }
}

/// Releases pieces that are still in the lives they were retired in. Returns how many.
fn release_pieces(space: &Space, pieces: &[(u32, u32)], ordered: &Ordered) -> u64 {
    let mut count = 0;
    for &(block, life) in pieces {
        let info = space.blocks.get(block).map(|entry| entry.info());
        if info.is_some_and(|info| info.state == State::Overflow && info.epoch == life) {
            space.blocks.release(block, life, ordered);
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer marks a record, and compaction, which sees the mark, empties the block. A reader comes before
    /// the writer has changed the index: it finds the record there.
    #[test]
    fn whoever_comes_before_a_writer_has_changed_the_index_is_waited_for() {
        let epochs = Epochs::new(2);
        let (writer, reader) = (epochs.register().unwrap(), epochs.register().unwrap());
        let queue = RetireQueue::default();
        let marking = writer.pin();
        let info = Info {
            kind: Kind::Variable,
            state: State::Compacting,
            epoch: 1,
        };
        queue.gather(&epochs).push(0, info);
        let reading = reader.pin();
        assert!(queue.take_passed(&epochs).is_empty());
        // The index has changed.
        drop(marking);
        assert!(queue.take_passed(&epochs).is_empty());
        assert!(queue.take_passed(&epochs).is_empty());
        let after = writer.pin();
        drop(reading);
        assert_eq!(queue.take_passed(&epochs).len(), 1);
        drop(after);
    }
}
