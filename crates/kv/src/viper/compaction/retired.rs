//! What is retired, until it is free: blocks that compaction has emptied, and pieces of values.
//!
//! There is one queue, freed in its order. Recovery may need a later item as long as it finds an earlier one,
//! but not the reverse. For example, a moved record has no mark, so recovery reads it until its block is
//! free. If its key is longer than a block, recovery looks for the key in pieces, which may have been retired
//! *after* the move. So a block enters the queue when compaction begins to empty it.
//!
//! An item is freed when no session can be at work in it. A block waits for two graces, one after the other.
//! First come writers that marked a record in it and have yet to change the index; compaction does not wait
//! for them. Then come readers that found a location in it, which they could until the last of these writers
//! was done. Both are pinned. After the graces, compaction makes every mark durable that keeps an older copy
//! of a dead record dead. Then it stores and fences the free page word (V14). Pieces are retired after the
//! index has changed, so they wait only for readers. They need no page word: recovery never looks into an
//! overflow block that no live record leads to. But the marks of the records that led to them are fenced
//! first.
//!
//! A block that was *filled* while others were emptied must not be freed before them. Of two copies that
//! compaction made of a record, the older one has no mark. So all emptied blocks are freed before the next
//! ones are chosen.

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

/// Something that no index entry leads to any more.
#[derive(Clone, Copy, Debug)]
pub(in crate::viper) enum Retired {
    /// A block whose records have all been moved or are dead.
    Block(u32, Info),
    /// The pieces of a value that was replaced or removed.
    Chain(Chain),
    /// A block with one piece, in this life.
    Piece(u32, u32),
}

/// The grace that an item waits for.
#[derive(Clone, Copy, Debug)]
enum Grace {
    /// Its blocks are still being emptied.
    Gathering,
    /// Pins of writers from before this epoch: until they end, the index may lead to records that these
    /// writers have marked.
    Writers(u64),
    /// Pins of readers from before this epoch: later ones find no location there.
    Readers(u64),
}

/// Items that were retired together.
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

/// A place in the queue for blocks that are being emptied. Until it is dropped, no later item is freed.
pub(in crate::viper) struct Gathering<'a> {
    queue: &'a RetireQueue,
    epochs: &'a Epochs,
    number: u64,
    blocks: Vec<Retired>,
}

impl Gathering<'_> {
    /// Adds an emptied block.
    pub(in crate::viper) fn push(&mut self, block: u32, info: Info) {
        self.blocks.push(Retired::Block(block, info));
    }

    /// The number of blocks added.
    pub(in crate::viper) fn count(&self) -> usize {
        self.blocks.len()
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue.0);
        let grace = self.epochs.advance();
        let lot = queue.lots.iter_mut().find(|lot| lot.number == self.number);
        debug_assert!(lot.is_some(), "blocks being gathered are not in the queue");
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
    /// Retires items that readers can no longer find.
    pub(in crate::viper) fn push(&self, epochs: &Epochs, content: Vec<Retired>) {
        let mut queue = lock(&self.0);
        // The epoch advances under the lock, so stamps are in the queue's order.
        let grace = epochs.advance();
        queue.push(Grace::Readers(grace), content);
    }

    /// Takes a place in the queue for blocks that are about to be emptied.
    pub(in crate::viper) fn gather<'a>(&'a self, epochs: &'a Epochs) -> Gathering<'a> {
        Gathering {
            queue: self,
            epochs,
            number: lock(&self.0).push(Grace::Gathering, Vec::new()),
            blocks: Vec::new(),
        }
    }

    /// Whether the queue is empty.
    pub(in crate::viper) fn is_empty(&self) -> bool {
        let is_over = |lot: &Lot| !lot.is_gathering() && lot.content.is_empty();
        lock(&self.0).lots.iter().all(is_over)
    }

    /// Whether emptied blocks, or blocks being emptied, are in the queue.
    pub(in crate::viper) fn has_blocks(&self) -> bool {
        let is_block = |retired: &Retired| matches!(retired, Retired::Block(..));
        let has_block = |lot: &Lot| lot.is_gathering() || lot.content.iter().any(is_block);
        lock(&self.0).lots.iter().any(has_block)
    }

    /// Drops everything but blocks; the caller retires the rest in another way.
    pub(in crate::viper) fn forget_values(&self) {
        let is_block = |retired: &Retired| matches!(retired, Retired::Block(..));
        for lot in &mut lock(&self.0).lots {
            lot.content.retain(is_block);
        }
    }

    /// Takes the items at the head of the queue whose readers have gone.
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

    /// Asks the clock whether the graces at the head of the queue are over.
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

    /// Begins the grace of readers where that of writers is over. Returns whether it began any.
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

/// Frees what no session can reach any more; returns the bytes freed. Only the holder of the compactor calls
/// this.
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

/// Blocks whose graces are over.
#[derive(Default)]
struct Ready {
    /// With records.
    blocks: Vec<(u32, Info)>,
    /// Overflow blocks, and the lives in which they were retired.
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
            // Damaged pieces stay unusable until the next open; `check` lists them.
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

/// Frees pieces that are still in the lives in which they were retired. Returns how many.
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

    /// A writer marks a record; compaction sees the mark and empties the block. A reader then finds the
    /// record before the writer has changed the index.
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
