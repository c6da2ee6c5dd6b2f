//! Atomic batches: several keys, all or none, also across a crash (I5), and removing everything.
//!
//! ```text
//!  lock stripes ─ put blocks aside ─ journal ─ fence ─ records, marks ─ fence ─ publish ─ journal dead ─ unlock
//!                                               │
//!                                               └ from here on recovery finishes what is missing
//! ```
//! The journal is one record with every operation and its version, so a crash keeps all of it or nothing.
//! Recovery applies a live journal again; operations carry their versions, so a second application changes
//! nothing. A batch of one operation needs no journal.
//!
//! Nothing may fail between the journal's fence and the last record, so the session reserves all blocks
//! first. While it publishes the keys one by one, their stripes say so and readers wait: no reader sees half
//! a batch.

use super::block_table::State;
use super::compaction::backpressure::blocks_at_most;
use super::compaction::retired::Retired;
use super::index_error;
use super::layout::{floor_word, word_at};
use super::record::{Order, RecordKind, Stamp};
use super::session::{Old, Pending, Replaced, ViperSession};
use crate::concurrency::stripes::{StripeId, VERSION_MAX};
use crate::engine::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::engine::{BatchOp, Ticket, last_of_each_key};
use crate::error::Error;
use crate::index::KeyHash;
use everdram_pm::{Ordered, ROOT_AT};
use std::panic::resume_unwind;
use std::sync::atomic::Ordering;

/// One operation of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JournalOp<'a> {
    Put {
        key: &'a [u8],
        value: &'a [u8],
        expires_at_ms: u64,
        version: u64,
    },
    Delete {
        key: &'a [u8],
        version: u64,
    },
    /// Versions up to this one do not count.
    Clear {
        floor: u64,
    },
}

const OP_PUT: u64 = 1;
const OP_DELETE: u64 = 2;
const OP_CLEAR: u64 = 3;
const OP_HEAD: usize = 32;

/// Appends an operation: operation and key length, value length, version, expiry; key; value.
fn journal_op(into: &mut Vec<u8>, op: &JournalOp<'_>) {
    let (words, key, value): ([u64; 4], &[u8], &[u8]) = match *op {
        JournalOp::Put {
            key,
            value,
            expires_at_ms,
            version,
        } => (
            [
                OP_PUT | (key.len() as u64) << 8,
                value.len() as u64,
                version,
                expires_at_ms,
            ],
            key,
            value,
        ),
        JournalOp::Delete { key, version } => (
            [OP_DELETE | (key.len() as u64) << 8, 0, version, 0],
            key,
            b"",
        ),
        JournalOp::Clear { floor } => ([OP_CLEAR, 0, floor, 0], b"", b""),
    };
    assert!(
        key.len() <= KEY_BYTES_MAX && value.len() <= VALUE_BYTES_MAX,
        "a journal has an operation that recovery would refuse"
    );
    for word in words {
        into.extend_from_slice(&word.to_le_bytes());
    }
    into.extend_from_slice(key);
    into.extend_from_slice(value);
}

/// The operations of a verified journal; `None` if they do not parse (a bug of the writer).
pub(super) fn parse_journal(mut bytes: &[u8]) -> Option<Vec<JournalOp<'_>>> {
    let mut ops = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(OP_HEAD)?;
        let (op, key_len) = (word_at(head, 0) & 0xff, word_at(head, 0) >> 8);
        let sound = op == OP_CLEAR || (1..=KEY_BYTES_MAX as u64).contains(&key_len);
        if !sound
            || word_at(head, 8) > VALUE_BYTES_MAX as u64
            || word_at(head, 16) > VERSION_MAX / 2
        {
            return None;
        }
        let (key, rest) = rest.split_at_checked(usize::try_from(key_len).ok()?)?;
        let (value, rest) = rest.split_at_checked(usize::try_from(word_at(head, 8)).ok()?)?;
        let version = word_at(head, 16);
        ops.push(match op {
            OP_PUT => JournalOp::Put {
                key,
                value,
                expires_at_ms: word_at(head, 24),
                version,
            },
            OP_DELETE => JournalOp::Delete { key, version },
            OP_CLEAR => JournalOp::Clear { floor: version },
            _ => return None,
        });
        bytes = rest;
    }
    Some(ops)
}

/// An operation, its key's hash, stripe and version, and the record that it replaces.
struct Step<'a> {
    op: BatchOp<'a>,
    hash: KeyHash,
    stripe: StripeId,
    version: u64,
    old: Option<Old>,
}

impl ViperSession {
    /// The ticket of a batch that changes nothing: the state it found may not be durable yet.
    fn nothing_to_do(&self, stripes: &[StripeId]) -> Ticket {
        let found = stripes
            .iter()
            .map(|&stripe| self.engine.stripes.stamp(stripe));
        Ticket(found.fold(self.last_ticket.0, u64::max))
    }

    /// Applies operations whose stripes are held; `clear` removes everything else first (all stripes held).
    pub(super) fn apply_locked(
        &mut self,
        clear: bool,
        ops: &[BatchOp<'_>],
        stripes: &[StripeId],
    ) -> Result<Ticket, Error> {
        debug_assert!(
            stripes.is_sorted_by(|one, next| one < next)
                && stripes
                    .iter()
                    .all(|&stripe| self.engine.stripes.held_by(stripe, self.id)),
            "a batch is applied without the locks of its keys"
        );
        self.engine.healthy()?;
        // One more than any version: every stripe's clock moves, so readers that compare it notice the
        // change.
        let floor = clear.then(|| self.highest_version() + 1);
        assert!(
            floor.is_none_or(|floor| floor > self.engine.floor.load(Ordering::Acquire)),
            "a new floor is not above the old one: removed records would count again"
        );
        let clearing = floor.map(|floor| Clearing {
            floor,
            pieces: self.engine.overflow_blocks(),
        });
        let mut steps = self.steps(clear, ops, floor)?;
        match (&clearing, steps.len()) {
            (None, 0) => return Ok(self.nothing_to_do(stripes)),
            (Some(clearing), 0) => return self.clear_locked(clearing, stripes),
            _ => {}
        }
        let journaled = clear || steps.len() > 1;
        let result = self
            .put_blocks_aside(&steps, journaled)
            .and_then(|()| self.apply_steps(clearing.as_ref(), &mut steps, stripes, journaled));
        for block in std::mem::take(&mut self.reserved) {
            self.engine.space.blocks.give_back(block);
        }
        result
    }

    /// The last operation of each key, with its current record and its version.
    fn steps<'a>(
        &mut self,
        clear: bool,
        ops: &[BatchOp<'a>],
        floor: Option<u64>,
    ) -> Result<Vec<Step<'a>>, Error> {
        let ops = last_of_each_key(ops);
        let mut steps = Vec::with_capacity(ops.len());
        for op in ops {
            let hash = self.engine.hash(op.key());
            let stripe = self.engine.stripe(hash);
            let old = if clear {
                None
            } else {
                self.locate_old(hash, op.key())?
            };
            if matches!(op, BatchOp::Delete { .. }) && old.is_none() {
                continue;
            }
            self.engine.stripes.raise(stripe, floor.unwrap_or(0));
            let version = self.engine.stripes.next_version(stripe);
            steps.push(Step {
                op: *op,
                hash,
                stripe,
                version,
                old,
            });
        }
        Ok(steps)
    }

    /// Reserves as many free blocks as the batch can need at most.
    fn put_blocks_aside(&mut self, steps: &[Step<'_>], journaled: bool) -> Result<(), Error> {
        let bytes = |op: &BatchOp<'_>| match op {
            BatchOp::Put { key, value, .. } => (key.len(), Some(value.len())),
            BatchOp::Delete { key } => (key.len(), None),
        };
        let steps = || steps.iter().map(|step| bytes(&step.op));
        let journal = steps().map(|(key, value)| OP_HEAD + key + value.unwrap_or(0));
        let journal = journaled.then(|| journal.sum::<usize>() + OP_HEAD);
        // With a log below, a removal may need a record, too.
        let has_graves = self.engine.below.is_some();
        let puts = steps().filter_map(|(key, value)| match value {
            None if has_graves => Some((key, 0)),
            value => Some((key, value?)),
        });
        let blocks = blocks_at_most(&self.engine.space.geometry, puts, journal.unwrap_or(0));
        let mut reserved = std::mem::take(&mut self.reserved);
        let result = self
            .engine
            .space
            .blocks
            .claim(blocks, self.compaction, &mut reserved);
        self.reserved = reserved;
        result
    }

    fn apply_steps(
        &mut self,
        clearing: Option<&Clearing>,
        steps: &mut [Step<'_>],
        stripes: &[StripeId],
        journaled: bool,
    ) -> Result<Ticket, Error> {
        let floor = clearing.map(|clearing| clearing.floor);
        let journal = if journaled {
            Some(self.write_journal(floor, steps)?)
        } else {
            None
        };
        // The journal has committed the batch. After an error from here on, nothing may build upon the state.
        let result = self.held(|session| session.finish_steps(clearing, steps, stripes, journal));
        let result = result.unwrap_or_else(|panic| resume_unwind(panic));
        result.map_err(|error| match journal {
            Some(_) => self.engine.halt(error),
            None => error,
        })
    }

    fn finish_steps(
        &mut self,
        clearing: Option<&Clearing>,
        steps: &mut [Step<'_>],
        stripes: &[StripeId],
        journal: Option<Old>,
    ) -> Result<Ticket, Error> {
        let floor = clearing.map(|clearing| clearing.floor);
        let mut writes = Vec::with_capacity(steps.len());
        for step in steps.iter() {
            let new = match step.op {
                BatchOp::Put {
                    key,
                    value,
                    expires_at_ms,
                } => Some(self.write(
                    RecordKind::Value,
                    key,
                    value,
                    expires_at_ms,
                    Order::new(step.version, self.may_be_below(step.hash)),
                )?),
                BatchOp::Delete { key } => {
                    match &step.old {
                        Some(old) if old.mark.is_none() => self.write_grave(key, step.version)?,
                        Some(old) => self.mark(old)?,
                        None => {}
                    }
                    self.note_removal(key);
                    None
                }
            };
            let (hash, stripe, old) = (step.hash, step.stripe, step.old);
            writes.push(Pending {
                hash,
                stripe,
                new,
                old: Replaced::Known(old),
                moved: false,
                written: self.lane.written(),
            });
        }
        if let Some(floor) = floor {
            self.write_floor(floor);
        }
        let ordered = self.settle_and_fence();
        self.counters().publishing.begin();
        let published = self.publish_all(clearing, &writes, stripes, journal, &ordered);
        self.counters().publishing.end();
        published.map_err(|error| self.engine.halt(error))
    }

    fn publish_all(
        &mut self,
        clearing: Option<&Clearing>,
        writes: &[Pending],
        stripes: &[StripeId],
        journal: Option<Old>,
        ordered: &Ordered,
    ) -> Result<Ticket, Error> {
        for &stripe in stripes {
            self.engine.stripes.publish(stripe);
        }
        if let Some(clearing) = clearing {
            self.forget_everything(clearing, stripes, ordered)?;
        }
        for write in writes {
            self.publish(write, ordered)?;
        }
        if let Some(journal) = journal {
            self.count_garbage(&journal);
            self.defer_mark(&journal)?;
            self.let_go(&journal);
        }
        Ok(Ticket(self.last_ticket.0))
    }

    /// Writes and fences the journal. Its fence commits the batch.
    fn write_journal(&mut self, floor: Option<u64>, steps: &[Step<'_>]) -> Result<Old, Error> {
        assert!(
            floor.is_some() || steps.len() > 1,
            "one operation needs no journal"
        );
        let mut payload = Vec::new();
        if let Some(floor) = floor {
            journal_op(&mut payload, &JournalOp::Clear { floor });
        }
        for step in steps {
            let version = step.version;
            let op = match step.op {
                BatchOp::Put {
                    key,
                    value,
                    expires_at_ms,
                } => JournalOp::Put {
                    key,
                    value,
                    expires_at_ms,
                    version,
                },
                BatchOp::Delete { key } => JournalOp::Delete { key, version },
            };
            journal_op(&mut payload, &op);
        }
        let version = steps.iter().map(|step| step.version).max().unwrap_or(1);
        let order = Order::new(version, false);
        let location = self.write(RecordKind::Journal, b"j", &payload, 0, order)?;
        let _ordered = self.settle_and_fence();
        let reader = self.engine.reader();
        let spot = reader.spot(location.get() * super::read::UNIT)?;
        let record = reader.copy(&spot, &mut self.scratch)?;
        let chain = match record.kind.is_chained() {
            true => Some(super::read::chain_of(&record, &self.scratch)?),
            false => None,
        };
        let stamp = Stamp {
            version,
            moves: 0,
            first: false,
        };
        let bytes = record.bytes;
        Ok(Old {
            location,
            bytes,
            chain,
            expired: false,
            stamp,
            version,
            mark: Some(reader.mark_of(&spot)),
            unmarkable: false,
        })
    }

    /// The highest version given out. The caller holds every stripe.
    fn highest_version(&self) -> u64 {
        let stripes = &self.engine.stripes;
        stripes
            .all()
            .map(|stripe| stripes.version(stripe))
            .max()
            .unwrap_or(0)
    }

    fn clear_locked(&mut self, clearing: &Clearing, stripes: &[StripeId]) -> Result<Ticket, Error> {
        self.write_floor(clearing.floor);
        let ordered = self.settle_and_fence();
        let forgotten = self.held(|session| {
            // The index is emptied piece by piece. Readers wait, so none sees some keys gone and others still
            // there.
            session.counters().publishing.begin();
            stripes
                .iter()
                .for_each(|&stripe| session.engine.stripes.publish(stripe));
            let forgotten = session.forget_everything(clearing, stripes, &ordered);
            session.counters().publishing.end();
            forgotten
        });
        let forgotten = forgotten.unwrap_or_else(|panic| resume_unwind(panic));
        // The floor is in force, whether or not the index has followed.
        forgotten.map_err(|error| self.engine.halt(error))?;
        Ok(Ticket(self.last_ticket.0))
    }

    /// Stores the floor: one aligned word, so a crash leaves either all earlier keys or none.
    fn write_floor(&mut self, floor: u64) {
        let word = floor_word(self.engine.pool.secret(), ROOT_AT, floor);
        let dirty = self.lane.store_word(ROOT_AT, word);
        let flushed = self.lane.flush(dirty);
        self.unfenced.add(flushed);
    }

    /// Empties DRAM's view after the fence of the floor. The caller holds every stripe.
    fn forget_everything(
        &mut self,
        clearing: &Clearing,
        stripes: &[StripeId],
        ordered: &Ordered,
    ) -> Result<(), Error> {
        let engine = &self.engine;
        engine.floor.store(clearing.floor, Ordering::Release);
        for &stripe in stripes {
            engine.stripes.raise(stripe, clearing.floor);
            if !engine.durable_at_fence {
                engine.stripes.set_stamp(stripe, ordered);
            }
        }
        engine.index.clear(ordered).map_err(index_error)?;
        for session in &engine.counters {
            session.keys.store(0, Ordering::Relaxed);
        }
        engine.mark_all_dead(&clearing.pieces);
        if let Some(below) = &engine.below {
            below.log.all_stale();
        }
        engine.background.wake();
        Ok(())
    }
}

/// State from before a clear that the clear needs.
struct Clearing {
    floor: u64,
    /// Overflow blocks and their epochs: all of them become unreachable.
    pieces: Vec<(u32, u32)>,
}

impl super::Viper {
    fn overflow_blocks(&self) -> Vec<(u32, u32)> {
        let of = |block| {
            self.space
                .blocks
                .get(block)
                .map(|entry| (block, entry.info()))
        };
        let overflow = self.space.blocks.all().filter_map(of);
        overflow
            .filter(|(_, i)| i.state == State::Overflow)
            .map(|(b, i)| (b, i.epoch))
            .collect()
    }

    /// Counts every record as garbage and retires every piece of a value, because the index is empty now.
    fn mark_all_dead(&self, pieces: &[(u32, u32)]) {
        for block in self.space.blocks.all() {
            let Some(entry) = self.space.blocks.get(block) else {
                continue;
            };
            let info = entry.info();
            if matches!(info.state, State::Open | State::Sealed | State::Unverified) {
                let pages = self.space.geometry.pages_of(info.kind);
                entry.set_garbage((pages.room() * pages.count) as u32);
            }
        }
        // The pieces of queued values are among the overflow blocks.
        self.compaction.retired.forget_values();
        let pieces = pieces
            .iter()
            .map(|&(block, life)| Retired::Piece(block, life));
        self.compaction.retired.push(&self.epochs, pieces.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_reads_back_and_cut_ones_do_not() {
        let ops = [
            JournalOp::Clear { floor: 4 },
            JournalOp::Put {
                key: b"a",
                value: b"",
                expires_at_ms: 9,
                version: 5,
            },
            JournalOp::Delete {
                key: b"bb",
                version: 6,
            },
        ];
        let mut bytes = Vec::new();
        for op in &ops {
            journal_op(&mut bytes, op);
        }
        assert_eq!(parse_journal(&bytes).as_deref(), Some(&ops[..]));
        for cut in 1..bytes.len() {
            if let Some(parsed) = parse_journal(&bytes[..cut]) {
                assert!(parsed.len() < ops.len());
            }
        }
    }
}
