//! Changes of a part of a value: the map of the new state, with fresh blocks for what changes and the old
//! ones for the rest.
//!
//! ```text
//!   root of the new state      a  B'  c           B' and b' are fresh; a, c, b and their neighbours are
//!                             /   |    \          the old state's, and are not even read
//!   maps                     ..  b b' b  ..
//!   blocks                          |
//! ```
//!
//! A block at the edge of the part is read, patched, and written to a fresh place; nothing is changed where
//! it is (D2). So a change is atomic whatever its length: one record has the new root.

use super::blocks::{BlockAt, Staged, Values};
use super::layout::{REFERENCE, Slot};
use super::room::Freed;
use crate::error::Error;
use std::collections::HashMap;
use std::ops::Range;

/// What of a value changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patch<'a> {
    /// Bytes of the new state.
    pub(super) length: u64,
    /// Where `bytes` go; what is behind the old state's end and before this is zeros.
    pub(super) at: u64,
    pub(super) bytes: &'a [u8],
}

/// The state that is changed; one without a body if users saw none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before<'a> {
    pub(super) slot: &'a Slot,
    pub(super) cell: &'a [u8],
}

/// Builds the map of a new state.
pub(super) struct Editor<'a> {
    values: &'a Values,
    before: Before<'a>,
    patch: Patch<'a>,
    /// Form of the new state.
    form: u8,
    /// Blocks that are written: the part's, and perhaps the first or the last one of the old state.
    changed: [Range<u64>; 2],
    /// Blocks of the old and of the new state.
    blocks: [u64; 2],
    /// Maps of the old state that were read, by level and place in it.
    maps: HashMap<(u32, u64), Vec<u8>>,
}

/// Which level of a map the references in the root are to.
fn top(form: u8) -> Option<u32> {
    u32::from(form).checked_sub(2)
}

impl<'a> Editor<'a> {
    /// For a new state with a map.
    pub(super) fn new(values: &'a Values, before: Before<'a>, patch: Patch<'a>) -> Editor<'a> {
        let block = u64::from(values.geometry.block_bytes);
        let form = values.geometry.form(patch.length);
        assert!(form >= 2, "a value without a map is edited by parts");
        let old = before.slot.length;
        let blocks = [old.div_ceil(block), patch.length.div_ceil(block)];
        let mut changed = [0..0, 0..0];
        if !patch.bytes.is_empty() {
            let end = patch.at + patch.bytes.len() as u64;
            changed[0] = patch.at / block..end.div_ceil(block);
        }
        // A value in a cell moves to blocks. Behind a new end there must be zeros, and no references.
        if before.slot.form == 0 && old > 0 {
            changed[1] = 0..blocks[0];
        } else if patch.length < old {
            changed[1] = blocks[1] - 1..blocks[1];
        }
        Editor {
            values,
            before,
            patch,
            form,
            changed,
            blocks,
            maps: HashMap::new(),
        }
    }

    fn span(&self, level: u32) -> u64 {
        self.values.geometry.fan().pow(level)
    }

    /// Blocks below a place of a level.
    fn below(&self, level: u32, place: u64) -> Range<u64> {
        let span = self.span(level);
        place * span..(place + 1) * span
    }

    fn is_changed(&self, blocks: &Range<u64>) -> bool {
        let meets =
            |changed: &Range<u64>| changed.start.max(blocks.start) < changed.end.min(blocks.end);
        self.changed.iter().any(meets)
    }

    /// The most blocks that [`Editor::build`] writes.
    pub(super) fn blocks_to_write(&self) -> u64 {
        let leaves: u64 = self
            .changed
            .iter()
            .map(|range| range.end - range.start)
            .sum();
        let mut all = leaves;
        for level in 1..=top(self.form).unwrap_or(0) {
            let span = self.span(level);
            let places = self.changed.iter().filter(|range| !range.is_empty());
            let nodes = places.map(|range| range.end.div_ceil(span) - range.start / span);
            // And the one over what the old state had below its root.
            all += nodes.sum::<u64>() + 1;
        }
        all
    }

    /// Stages the new blocks, data first, and appends the root to `root`.
    ///
    /// # Errors
    /// As [`Values::read_part`]; [`Error::Pool`].
    pub(super) fn build(
        &mut self,
        staged: &mut Staged,
        numbers: &mut dyn Iterator<Item = u64>,
        root: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let Some(top) = top(self.form) else {
            unreachable!("the new state has a map");
        };
        let count = self.values.geometry.root_len(self.form, self.patch.length);
        for place in 0..count {
            self.place(top, place, staged, numbers)?.write(root);
        }
        Ok(())
    }

    /// The new state's reference to a place of a level.
    fn place(
        &mut self,
        level: u32,
        place: u64,
        staged: &mut Staged,
        numbers: &mut dyn Iterator<Item = u64>,
    ) -> Result<BlockAt, Error> {
        let below = self.below(level, place);
        let below = below.start..below.end.min(self.blocks[1]);
        if !self.is_changed(&below) {
            if below.start >= self.blocks[0] {
                return Ok(BlockAt::default());
            }
            if let Some(kept) = self.old(level, place)? {
                return Ok(kept);
            }
        }
        if level == 0 {
            let bytes = self.leaf(place)?;
            return self.values.stage_block(staged, next(numbers), &bytes);
        }
        let (fan, mut map) = (self.values.geometry.fan(), Vec::new());
        for child in place * fan..(place + 1) * fan {
            if self.below(level - 1, child).start >= below.end {
                break;
            }
            self.place(level - 1, child, staged, numbers)?
                .write(&mut map);
        }
        self.values.stage_block(staged, next(numbers), &map)
    }

    /// The bytes of a changed block.
    fn leaf(&self, place: u64) -> Result<Vec<u8>, Error> {
        let block = u64::from(self.values.geometry.block_bytes);
        let own = place * block..((place + 1) * block).min(self.patch.length);
        let end = self.patch.at + self.patch.bytes.len() as u64;
        let new = self.patch.at.max(own.start)..end.min(own.end);
        let mut bytes = Vec::with_capacity(block as usize);
        // What is new from the first byte to the last need not be read.
        if new != own {
            let Before { slot, cell } = self.before;
            self.values.read_part(slot, cell, own.clone(), &mut bytes)?;
        }
        bytes.resize((own.end - own.start) as usize, 0);
        if !new.is_empty() {
            let from = |base: u64| (new.start - base) as usize..(new.end - base) as usize;
            bytes[from(own.start)].copy_from_slice(&self.patch.bytes[from(self.patch.at)]);
        }
        Ok(bytes)
    }

    /// The old state's reference to a place of a level; `None`: it has no such level.
    fn old(&mut self, level: u32, place: u64) -> Result<Option<BlockAt>, Error> {
        let slot = self.before.slot;
        let Some(top) = top(slot.form) else {
            let only = BlockAt {
                number: slot.body,
                sum: slot.sum,
            };
            return Ok((slot.form == 1 && level == 0 && place == 0).then_some(only));
        };
        if level > top {
            return Ok(None);
        }
        let fan = self.values.geometry.fan();
        let mut at = place / fan.pow(top - level);
        let mut found = reference(self.before.cell, at);
        for above in (level..top).rev() {
            if found.number == 0 {
                break;
            }
            let key = (above + 1, at);
            if !self.maps.contains_key(&key) {
                // Neighbours are asked for one after the other.
                self.maps.retain(|(of, _), _| *of != above + 1);
                let map = self.values.read_map(found)?;
                self.maps.insert(key, map);
            }
            at = place / fan.pow(above - level);
            found = reference(&self.maps[&key], at % fan);
        }
        Ok(Some(found))
    }

    /// Collects the blocks that the old state has and the new one has not.
    ///
    /// # Errors
    /// As [`Values::read`].
    pub(super) fn freed(&mut self, freed: &mut Vec<Freed>) -> Result<(), Error> {
        let Some(old) = top(self.before.slot.form) else {
            if self.before.slot.form == 1 && self.is_changed(&(0..1)) {
                push(freed, self.before.slot.body);
            }
            return Ok(());
        };
        let count = self.before.cell.len() / REFERENCE;
        for place in 0..count as u64 {
            self.freed_below(old, place, freed)?;
        }
        Ok(())
    }

    fn freed_below(&mut self, level: u32, place: u64, freed: &mut Vec<Freed>) -> Result<(), Error> {
        let below = self.below(level, place);
        let is_kept = below.start < self.blocks[1]
            && !self.is_changed(&below)
            && top(self.form).is_some_and(|top| level <= top);
        if is_kept || below.start >= self.blocks[0] {
            return Ok(());
        }
        let Some(block) = self.old(level, place)?.filter(|block| block.number != 0) else {
            return Ok(());
        };
        push(freed, block.number);
        if level > 0 {
            let fan = self.values.geometry.fan();
            for child in place * fan..(place + 1) * fan {
                self.freed_below(level - 1, child, freed)?;
            }
        }
        Ok(())
    }
}

fn next(numbers: &mut dyn Iterator<Item = u64>) -> u64 {
    match numbers.next() {
        Some(number) => number,
        None => unreachable!("an edit has more blocks than were taken"),
    }
}

fn reference(map: &[u8], nth: u64) -> BlockAt {
    let found = map.as_chunks::<REFERENCE>().0.get(nth as usize);
    found.map_or_else(BlockAt::default, BlockAt::parse)
}

/// Adds a block to what is freed; neighbours together.
pub(super) fn push(freed: &mut Vec<Freed>, number: u64) {
    match freed.last_mut() {
        Some(Freed::Blocks { first, count })
            if first.checked_add(u64::from(*count)) == Some(number) && *count < u32::MAX =>
        {
            *count += 1;
        }
        _ => freed.push(Freed::Blocks {
            first: number,
            count: 1,
        }),
    }
}
