//! Changing a word of a value in place (section 4.4): one aligned store and one fence, without a new record.
//!
//! The session opens the block for edits first, durably: edits void the checks of its values (V13).

use super::Viper;
use super::block_table::{Info, State};
use super::layout::{FixedShape, Kind, page_word};
use super::lookup::{Aim, Hit, locate};
use super::read::{Spot, UNIT};
use super::record::Record;
use super::session::ViperSession;
use crate::concurrency::epoch::Slot;
use crate::concurrency::seam::looks;
use crate::concurrency::stripes::GiveBack;
use crate::engine::backend::Taken;
use crate::error::Error;
use crate::index::KeyHash;

impl ViperSession {
    /// Changes a word of a fixed-size value in place, on a held stripe, and releases the stripe. `None`: the
    /// word cannot be changed in place, and the stripe is still held.
    pub(super) fn change_in_slot(
        &mut self,
        shape: &FixedShape,
        taken: Taken,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<[u64; 2]>, Error> {
        let Taken { hash, stripe } = taken;
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        let value_at = shape.value_at();
        let word_at = at.wrapping_add(value_at) as u64;
        let usual = usual_to_edit(engine, slot, KeyHash(hash), key, scratch, word_at);
        let (spot, record) = match usual {
            Some(usual) => usual,
            None => match any_to_edit(engine, slot, KeyHash(hash), key, scratch, word_at)? {
                Some((_, spot, record)) => (spot, record),
                None => return Ok(None),
            },
        };
        let is_inside = at.is_multiple_of(8) && at < record.value().len().saturating_sub(7);
        if !spot.info.kind.is_fixed() || !is_inside {
            return Ok(None);
        }
        let word_at = spot.at + (record.value().start + at) as u64;
        debug_assert!(
            word_at.is_multiple_of(8) && word_at + 8 <= spot.at + u64::from(record.bytes),
            "a word outside of its value is changed"
        );
        if !self.is_editable(&spot) {
            return Ok(None);
        }
        let word = self.engine.pool.region().load_word(word_at);
        let release = GiveBack {
            stripes: &self.engine.stripes,
            held: &[stripe],
        };
        let new = change(word);
        std::mem::forget(release);
        let ordered = self.store_and_fence(word_at, new);
        // Readers show the clock as the version of a value that is open to edits.
        self.engine.stripes.next_version(stripe);
        if !self.engine.durable_at_fence {
            self.engine.stripes.set_stamp(stripe, &ordered);
        }
        self.engine.stripes.release(stripe, &ordered);
        Ok(Some([word, new]))
    }

    /// Whether words of the block may be changed in place; opens it for edits if possible. Blocks of
    /// variable-size records, open ones and ones in compaction cannot be opened.
    fn is_editable(&mut self, spot: &Spot) -> bool {
        match (spot.info.state, spot.info.kind) {
            (State::Sealed, Kind::FixedEdited) => true,
            (State::Sealed, Kind::Fixed) => {
                let block = self.engine.space.blocks.number(spot.at);
                self.open_for_edits(block, spot.info)
            }
            _ => false,
        }
    }

    /// Voids the value checks of a block, durably, before the first word in it changes (V13).
    fn open_for_edits(&mut self, block: u32, info: Info) -> bool {
        let at = self.engine.space.blocks.at(block);
        let word = page_word(self.engine.pool.secret(), at, Kind::FixedEdited, info.epoch);
        let _ordered = self.store_and_fence(at, word);
        let edited = Info {
            kind: Kind::FixedEdited,
            ..info
        };
        self.engine.space.blocks.get(block).is_some_and(|entry| {
            // Another session may have opened it meanwhile. If compaction took it, it stays closed.
            entry.swap(info, edited) || entry.info() == edited
        })
    }
}

/// The record of `key`, to edit the word at so many bytes from its start, in the usual case: the index's
/// first candidate is an ordinary record of the key. `None` decides nothing: the caller takes the slow path.
/// This is [`any_to_edit`] in a straight line.
#[inline(always)]
fn usual_to_edit(
    engine: &Viper,
    slot: &Slot,
    hash: KeyHash,
    key: &[u8],
    scratch: &mut Vec<u8>,
    word_at: u64,
) -> Option<(Spot, Record)> {
    let pin = slot.pin();
    let location = engine.index.candidates(hash, &pin).next()?;
    looks!();
    let at = location.get() * UNIT;
    let region = engine.pool.region();
    region.prefetch_to_write(at.wrapping_add(word_at));
    let reader = engine.reader();
    let spot = reader.try_spot(at)?;
    // Whether a record of an unverified block is alive takes a separate look.
    if spot.info.state == State::Unverified {
        return None;
    }
    looks!();
    Some((spot, reader.header(&spot, key, scratch)?))
}

/// The record of `key`, to edit the word at so many bytes from its start.
#[cold]
#[inline(never)]
fn any_to_edit(
    engine: &Viper,
    slot: &Slot,
    hash: KeyHash,
    key: &[u8],
    scratch: &mut Vec<u8>,
    word_at: u64,
) -> Result<Option<Hit>, Error> {
    locate(engine, slot, hash, key, scratch, Aim::Edit(word_at))
}
