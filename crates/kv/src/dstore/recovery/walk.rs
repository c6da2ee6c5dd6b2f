//! The walk over all slots, by several threads: what live objects use is marked as taken, and they enter the
//! index. Their keys are on their way into order then.
//!
//! Each thread collects objects in *rows*, by the first bits of their hashes, and enters a whole row at once:
//! the lines of a part of the index lie close together, and are fetched side by side.
//!
//! Neighbours in the books are marked as taken together, so that two objects with the same room are found
//! when the later one is marked, or a little after that. A salvage marks each object at once.

use crate::concurrency::shares::share;
use crate::dstore::Dstore;
use crate::dstore::layout::{CELLS, GRAIN_BYTES, SLOTS_CHUNK, Slot, grains};
use crate::dstore::memory::Memory;
use crate::dstore::order::{Beginning, Keys, Parting};
use crate::dstore::salvage;
use crate::engine::damage::tolerate;
use crate::error::{Error, corrupt};
use crate::heap::Adopting;
use crate::index::{KeyHash, Location, Parts};
use everdram_pm::lock::lock;

/// Slots of a share: whole chunks, so that threads do not meet in the books.
const SHARE: u64 = 64 * SLOTS_CHUNK as u64;
/// Objects of a row.
const ROW: usize = 128;
/// Entries of a row whose places in the index are fetched ahead, and objects whose cells are.
const AHEAD: usize = 20;
/// Slots that are looked at to guess how many live, and what their keys are like.
const SAMPLE: u64 = 1 << 12;

/// What the walk found, besides what it entered elsewhere.
pub(super) struct Walked {
    pub(super) live: u64,
    pub(super) latest: u64,
    pub(super) expiring: bool,
    pub(super) keys: Vec<Keys>,
}

/// One thread's part.
struct Walk<'a> {
    dstore: &'a Dstore,
    parts: &'a Parts,
    /// Hash and number of objects that are to enter the index, by part.
    rows: Vec<Vec<(KeyHash, u64)>>,
    keys: Keys,
    slots: Adopting<'a>,
    cells: Adopting<'a>,
    blocks: Adopting<'a>,
    live: u64,
    /// The greatest LSN.
    latest: u64,
    expiring: bool,
    key: Vec<u8>,
    cell: Vec<u8>,
    /// One past the last block.
    blocks_end: u64,
}

/// Walks the slots up to number `slots`.
///
/// # Errors
/// [`Error::Corrupt`], without the path: two objects use the same room, or a slot is impossible.
pub(super) fn all(dstore: &Dstore, slots: u64, threads: usize) -> Result<Walked, Error> {
    let blocks_end = dstore.room.blocks_end();
    adopt_parcels(dstore, blocks_end)?;
    let (live, parting) = look_around(dstore, slots);
    // Without this room the index grows as objects come, and reports then if memory is short.
    let _ = dstore.index.make_room(live);
    let parts = Parts::of(&dstore.index);
    let room = &dstore.room;
    let is_salvage = dstore.damage.is_some();
    let begin = || Walk {
        dstore,
        parts: &parts,
        rows: (0..parts.count()).map(|_| Vec::new()).collect(),
        keys: Keys::new(&parting),
        slots: Adopting::of(&room.slots, is_salvage),
        cells: Adopting::of(&room.cells, is_salvage),
        blocks: Adopting::of(&room.blocks, is_salvage),
        live: 0,
        latest: 0,
        expiring: false,
        key: Vec::new(),
        cell: Vec::new(),
        blocks_end,
    };
    let shares = slots.div_ceil(SHARE) as usize;
    let walks = share(threads, shares, begin, |walk, number| {
        let first = number as u64 * SHARE;
        for number in first.max(1)..(first + SHARE).min(slots) {
            dstore.memory.prefetch(number + 2 * AHEAD as u64);
            dstore.memory.prefetch_cells(number + AHEAD as u64);
            walk.slot(number)?;
        }
        Ok(())
    })?;
    let mut walked = Walked {
        live: 0,
        latest: 0,
        expiring: false,
        keys: Vec::new(),
    };
    for mut walk in walks {
        for part in 0..walk.rows.len() {
            walk.enter(part)?;
        }
        let Walk {
            slots,
            cells,
            blocks,
            ..
        } = &mut walk;
        let [slots, cells, blocks] = [slots, cells, blocks].map(Adopting::flush);
        slots.map_err(|number| corrupt(0, format!("slot {number} is in use twice")))?;
        cells.map_err(|grain| corrupt(0, format!("grain {grain} of the cells is in use twice")))?;
        blocks.map_err(|number| corrupt(0, taken_twice(number)))?;
        walked.live += walk.live;
        walked.latest = walked.latest.max(walk.latest);
        walked.expiring |= walk.expiring;
        walked.keys.push(walk.keys);
    }
    Ok(walked)
}

/// An estimate of how many slots live, and of what their keys are like.
fn look_around(dstore: &Dstore, slots: u64) -> (u64, Parting) {
    let (memory, step) = (&dstore.memory, slots.div_ceil(SAMPLE));
    let (mut looks, mut live, mut beginning) = (0, Vec::new(), Beginning::default());
    let mut key = Vec::new();
    for number in (1..slots).step_by(step.max(1) as usize) {
        let (slot, _) = memory.slot(number);
        looks += 1;
        let has_key = memory.has_cell(slot.key_cell, slot.key_bytes as usize);
        if slot.lsn > dstore.floor() && !slot.is_dead && has_key {
            live.push(number);
            key.clear();
            memory.key(&slot, &mut key);
            beginning.meet(&key);
        }
    }
    let estimate = live.len() as u64 * slots / looks.max(1);
    (estimate, Parting::of(memory, beginning, &live, estimate))
}

impl Walk<'_> {
    fn slot(&mut self, number: u64) -> Result<(), Error> {
        let (dstore, memory) = (self.dstore, &self.dstore.memory);
        // Nobody else has it, and none is busy: that was refused.
        let slot = Slot::from_words(memory.words(number));
        if slot.lsn != 0 && dstore.damage.is_some() && !self.is_certain(number, slot) {
            memory.publish(number, &Slot::default().buried(1), None, None);
            return Ok(());
        }
        self.latest = self.latest.max(slot.lsn);
        if slot.lsn == 0 || slot.is_dead {
            return Ok(());
        }
        if slot.lsn <= dstore.floor() {
            // Removed together with everything else, and not swept before the end of the last process.
            memory.publish(number, &slot.buried(slot.lsn), None, None);
            return Ok(());
        }
        let is_sound = slot.is_sound(&dstore.geometry);
        let adopted = match is_sound {
            true => self.adopt(number, &slot),
            false => Err(corrupt(0, format!("slot {number} has an impossible state"))),
        };
        if let Err(error) = adopted {
            tolerate(dstore.damage.as_ref(), error)?;
        }
        // A salvage writes nothing, so that an object may stay whose map is damaged: its reads say so.
        if !is_sound {
            memory.publish(number, &slot.buried(slot.lsn), None, None);
            return Ok(());
        }
        self.expiring |= slot.expires_at_ms != 0;
        self.live += 1;
        self.keys.add(&self.key, number);
        let hash = KeyHash(slot.hash);
        let part = self.parts.part(hash);
        let Some(row) = self.rows.get_mut(part) else {
            unreachable!("a hash belongs to no part of the index");
        };
        row.push((hash, number));
        match row.len() < ROW {
            true => Ok(()),
            false => self.enter(part),
        }
    }

    #[cold]
    fn is_certain(&self, number: u64, slot: Slot) -> bool {
        salvage::is_certain(self.dstore, number, &slot)
    }

    /// Enters a row in the index.
    fn enter(&mut self, part: usize) -> Result<(), Error> {
        let (index, memory) = (&self.dstore.index, &self.dstore.memory);
        let mut rehash = |locations: &[Location], hashes: &mut Vec<KeyHash>| {
            let hash = |location: &Location| KeyHash(memory.hash(location.get()));
            hashes.extend(locations.iter().map(hash));
            Ok(())
        };
        let Some(row) = self.rows.get_mut(part) else {
            return Ok(());
        };
        let _own = self.parts.own(part);
        let prefetch = |(hash, _): &(KeyHash, u64)| index.prefetch(*hash);
        row.iter().take(AHEAD).for_each(prefetch);
        for (nth, &(hash, number)) in row.iter().enumerate() {
            row.get(nth + AHEAD).map(prefetch);
            let Some(location) = Location::new(number) else {
                unreachable!("number 0 is no slot");
            };
            let entered = index.insert_alone(hash, location, &mut rehash);
            entered.map_err(|error| Error::NoSpace(format!("the index in DRAM: {error}")))?;
        }
        row.clear();
        Ok(())
    }

    /// Marks what an object uses as taken, and leaves its key in `self.key`.
    fn adopt(&mut self, number: u64, slot: &Slot) -> Result<(), Error> {
        let dstore = self.dstore;
        let refuse = |what: &str| Err(corrupt(0, format!("slot {number}: {what}")));
        let twice = |grain: u64| {
            let what = format!("slot {number}, or one before it: grain {grain} is in use twice");
            corrupt(0, what)
        };
        let key = grains(slot.key_bytes as usize);
        self.key.clear();
        if !has_cell(&dstore.memory, slot.key_cell, key) {
            return refuse("its key lies outside the cells");
        }
        // What pads the key counts, too: lookups compare whole words.
        let is_padded = dstore.memory.key_and_padding(slot, &mut self.key);
        if dstore.hash(&self.key) != slot.hash || !is_padded {
            return refuse("its key is not that of its hash");
        }
        if self.slots.adopt(number, 1).is_err() {
            return refuse("the slot, or one before it, is in use twice");
        }
        self.cells.adopt(slot.key_cell, key).map_err(twice)?;
        let bytes = dstore.geometry.cell_bytes(slot.form, slot.length);
        if bytes > 0 {
            if !has_cell(&dstore.memory, slot.body, grains(bytes)) {
                return refuse("its body lies outside the cells");
            }
            self.cells.adopt(slot.body, grains(bytes)).map_err(twice)?;
        }
        match slot.form {
            0 => Ok(()),
            1 => adopt_block(slot.body, self.blocks_end, &mut self.blocks)
                .map_err(|number| corrupt(0, taken_twice(number))),
            _ => self.adopt_map(*slot),
        }
    }

    #[inline(never)]
    fn adopt_map(&mut self, slot: Slot) -> Result<(), Error> {
        self.dstore.cell_of(&slot, &mut self.cell);
        let (cell, blocks) = (&self.cell, &mut self.blocks);
        adopt_blocks(self.dstore, &slot, cell, self.blocks_end, blocks)
    }
}

/// Whether there are these grains.
fn has_cell(memory: &Memory, first: u64, count: u32) -> bool {
    let grains = memory.used_bytes(CELLS) / GRAIN_BYTES;
    first + u64::from(count) <= grains
}

/// Marks a block as taken, or names one that is already, or is outside of the file.
#[inline]
fn adopt_block(number: u64, end: u64, blocks: &mut Adopting<'_>) -> Result<(), u64> {
    match number < end {
        true => blocks.adopt(number, 1),
        false => Err(number),
    }
}

/// Marks the blocks of a value as taken. A map that cannot be read hides some of them, which stay free: the
/// value is damaged in any case, and its reads say so.
fn adopt_blocks(
    dstore: &Dstore,
    slot: &Slot,
    cell: &[u8],
    end: u64,
    blocks: &mut Adopting<'_>,
) -> Result<(), Error> {
    let mut refused = None;
    let walked = dstore.values.walk(slot, cell, &mut |block, _| {
        adopt_block(block.number, end, blocks).map_err(|number| {
            refused = Some(number);
            // Whoever forged it may have made a map that refers to itself.
            corrupt(0, "")
        })
    });
    match (refused, walked) {
        (Some(number), _) => Err(corrupt(0, taken_twice(number))),
        (None, Ok(()) | Err(Error::Corrupt { .. })) => Ok(()),
        (None, Err(other)) => Err(other),
    }
}

fn taken_twice(number: u64) -> String {
    format!("block {number} of the data file is in use twice, or outside of it")
}

/// Parcels that log records name are in use until those are reclaimed.
fn adopt_parcels(dstore: &Dstore, end: u64) -> Result<(), Error> {
    let parcels = std::mem::take(&mut *dstore.machine.parcels.lock());
    for (entry, slot, cell) in parcels {
        let mut runs = Vec::new();
        let blocks = &mut Adopting::of(&dstore.room.blocks, true);
        let adopted = adopt_blocks(dstore, &slot, &cell, end, blocks).and_then(|()| {
            dstore.values.walk(&slot, &cell, &mut |block, _| {
                runs.push((block.number, 1));
                Ok(())
            })
        });
        adopted.or_else(|error| tolerate(dstore.damage.as_ref(), error))?;
        lock(&dstore.parcels).push((entry, runs));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dstore::layout::{ENTRY_HEAD, Opcode, Operation};
    use crate::dstore::session::DstoreSession;
    use crate::engine::backend::Backend;
    use crate::engine::kind::EngineKind;
    use crate::engine::{Engine, EngineSession, open};
    use crate::options::{DstoreOptions, Options};
    use std::path::Path;
    use std::sync::Arc;

    /// Several shares of slots, and several rows for each part of the index.
    const OBJECTS: u64 = 5 * SHARE / 2;

    fn open(path: &Path, threads: usize) -> Result<Arc<Dstore>, Error> {
        let options = Options {
            engine: Some(EngineKind::Dstore),
            initial_bytes: 1 << 20,
            recovery_threads: threads,
            dstore: DstoreOptions {
                block_bytes: 512,
                page_bytes: 512,
                inline_bytes: 16,
                ..DstoreOptions::default()
            },
            ..Options::default()
        };
        let pool = open::pool(path, &options).unwrap();
        Dstore::over(pool, path, &options)
    }

    fn key(number: u64) -> Vec<u8> {
        format!("{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
    }

    /// A value of each form: in a cell, in a block, with a map.
    fn value(number: u64) -> Vec<u8> {
        vec![number as u8; [5, 100, 2000][number as usize % 3]]
    }

    fn fill(dstore: &Arc<Dstore>, objects: std::ops::Range<u64>) {
        let mut session = DstoreSession::new(Arc::clone(dstore)).unwrap();
        for number in objects {
            session.put(&key(number), &value(number), 0).unwrap();
            if number % 5 == 0 {
                session.delete(&key(number)).unwrap();
            }
        }
        session.commit_pending().unwrap();
    }

    #[test]
    fn threads_recover_what_one_recovers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let dstore = open(&path, 1).unwrap();
        fill(&dstore, 0..OBJECTS / 2);
        dstore.checkpoint_all().unwrap();
        fill(&dstore, OBJECTS / 3..OBJECTS);
        drop(dstore);
        let mut first = None;
        for threads in [1, 4, 3] {
            let dstore = open(&path, threads).unwrap();
            let room = [&dstore.room.slots, &dstore.room.cells, &dstore.room.blocks];
            let found = (
                dstore.len(),
                room.map(|lines| (lines.taken(), lines.free())),
                lock(&dstore.order).slots().collect::<Vec<u64>>(),
            );
            assert!(
                first.get_or_insert_with(|| found.clone()) == &found,
                "{threads}"
            );
            let findings = dstore.check().unwrap().findings;
            assert!(findings.is_empty(), "{findings:?}");
            let mut session = DstoreSession::new(Arc::clone(&dstore)).unwrap();
            for number in 0..OBJECTS {
                let mut found = Vec::new();
                let is_there = session.get(&key(number), &mut found).unwrap().is_some();
                assert_eq!(is_there, number % 5 != 0, "{number}");
                assert!(!is_there || found == value(number), "{number}");
            }
        }
    }

    /// Two objects with one block, in shares that different threads walk.
    #[test]
    fn threads_find_room_that_is_used_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let dstore = open(&path, 1).unwrap();
        fill(&dstore, 0..OBJECTS);
        let live = |number: &u64| {
            let (slot, _) = dstore.memory.slot(*number);
            slot.lsn != 0 && !slot.is_dead && slot.form == 1
        };
        let ones: Vec<u64> = (1..dstore.memory.slots()).filter(live).collect();
        let [one, other] = [ones[0], ones[ones.len() - 1]];
        let [slot, last] = [one, other].map(|number| dstore.memory.slot(number).0);
        let forged = Operation {
            opcode: Opcode::Write,
            number: other,
            slot: Slot {
                lsn: last.lsn + 1,
                body: slot.body,
                sum: slot.sum,
                ..last
            },
            key: None,
            cell: None,
            before: None,
        };
        let mut session = DstoreSession::new(Arc::clone(&dstore)).unwrap();
        let mut group = None;
        session.entry.resize(ENTRY_HEAD, 0);
        forged.write(&mut session.entry);
        session.append(&mut group, 1, 0..0).unwrap();
        session.fence(group);
        drop((session, dstore));
        let wanted = format!("block {} of the data file is in use twice", slot.body);
        for threads in [1, 4] {
            let refused = open(&path, threads).map(drop);
            assert!(
                matches!(&refused, Err(Error::Corrupt { what, .. }) if what.contains(&wanted)),
                "{threads}: {refused:?}"
            );
        }
    }
}
