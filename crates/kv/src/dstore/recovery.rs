//! From bytes to a running engine: the shadow is copied, the logs are replayed on the copy, and everything
//! volatile follows from the slots: which slots, cells and blocks are in use, the index, the order of keys.

use super::Dstore;
use super::layout::{
    BUSY, CELLS, GRAIN_BYTES, GRAINS_CHUNK, SEGMENTS, SLOT_BYTES, SLOTS, SLOTS_CHUNK, Slot, grains,
};
use super::machine::Objects;
use super::memory::Memory;
use super::order::Order;
use super::room::BLOCKS_CHUNK;
use super::salvage;
use crate::crl::Logs;
use crate::dipper::{Found, Machine, Shadow};
use crate::engine::damage::tolerate;
use crate::error::{Error, corrupt};
use crate::index::{KeyHash, Location};
use crate::options::Options;
use everdram_pm::Pool;
use everdram_pm::lock::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The size and duration of a recovery.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summary {
    pub(super) records: u64,
    pub(super) microseconds: u64,
}

/// What recovery found besides memory.
pub(super) struct Loaded {
    pub(super) floor: u64,
    pub(super) records: u64,
}

/// Copies the shadow to memory, and replays the logs there.
///
/// # Errors
/// [`Error::Corrupt`], without the path.
pub(super) fn load(
    pool: &Arc<Pool>,
    shadow: &Shadow,
    logs: &Logs,
    machine: &Objects,
    memory: &Memory,
    options: &Options,
) -> Result<Loaded, Error> {
    let threads = options.recoverers();
    for segment in [SLOTS, CELLS] {
        memory.grow(segment, shadow.segment_bytes(segment))?;
    }
    shadow.copy_out(threads, &|segment, at, bytes| {
        memory.store_at(segment, at, bytes);
        match segment {
            SLOTS => refuse_busy(machine, memory, at, bytes.len() as u64),
            _ => Ok(()),
        }
    })?;
    let progress = options.progress.clone();
    let report = move |done, all| {
        if let Some(progress) = &progress {
            progress(done, all);
        }
    };
    let mut found = Found::read(pool, logs, machine, threads, &report)?;
    machine.is_recovering.store(false, Ordering::Relaxed);
    let mut space = memory;
    let (floor, records) = (found.floor(shadow), found.len() as u64);
    found.by_object(floor, |changes| machine.apply(&mut space, changes))?;
    Ok(Loaded { floor, records })
}

/// Refuses slots that are busy: no shadow has one, and readers would wait for ever.
fn refuse_busy(machine: &Objects, memory: &Memory, at: u64, bytes: u64) -> Result<(), Error> {
    for number in at / SLOT_BYTES..(at + bytes) / SLOT_BYTES {
        let word = memory.words(number)[0];
        if word & BUSY != 0 {
            tolerate(
                machine.damage.as_ref(),
                corrupt(0, format!("slot {number} has an impossible state")),
            )?;
            let word = (word & !BUSY).to_le_bytes();
            memory.store_at(SLOTS, number * SLOT_BYTES, &word);
        }
    }
    Ok(())
}

/// Builds what follows from the slots.
///
/// # Errors
/// [`Error::Corrupt`], without the path: two objects use the same room, or a slot is impossible.
pub(super) fn build(dstore: &Dstore, options: &Options) -> Result<(), Error> {
    let memory = &dstore.memory;
    let file = &dstore.values.blocks;
    // A new data file has no blocks yet.
    let initial = match !dstore.read_only && file.end() < u64::from(BLOCKS_CHUNK) {
        true => options.initial_bytes / file.block_bytes(),
        false => 0,
    };
    // If there is too little room for so many objects, the store starts smaller.
    let (slots, cells) = match cover(dstore, initial) {
        Err(Error::NoSpace(_)) => cover(dstore, 0)?,
        other => other?,
    };
    dstore.room.cover_file(file, dstore.read_only, initial)?;
    adopt_parcels(dstore)?;
    let findings = dstore
        .damage
        .as_ref()
        .map_or(0, |damage| damage.stats().findings);
    let (mut latest, mut keys) = (dstore.floor(), 0);
    let mut live = Vec::new();
    for number in 1..slots {
        let (slot, _) = memory.slot(number);
        if slot.lsn != 0 && dstore.damage.is_some() && !salvage::is_certain(dstore, number, &slot) {
            memory.publish(number, &Slot::default().buried(1), None, None);
            continue;
        }
        latest = latest.max(slot.lsn);
        if slot.lsn == 0 || slot.is_dead {
            continue;
        }
        if slot.lsn <= dstore.floor() {
            // Removed together with everything else, and not swept before the end of the last process.
            memory.publish(number, &slot.buried(slot.lsn), None, None);
            continue;
        }
        let adopted = match slot.is_sound(&dstore.geometry) {
            true => adopt(dstore, number, &slot, cells),
            false => Err(corrupt(0, format!("slot {number} has an impossible state"))),
        };
        if let Err(error) = adopted {
            tolerate(dstore.damage.as_ref(), error)?;
        }
        // A salvage writes nothing, so that an object may stay whose map is damaged: its reads say so.
        if !slot.is_sound(&dstore.geometry) {
            memory.publish(number, &slot.buried(slot.lsn), None, None);
            continue;
        }
        if slot.expires_at_ms != 0 {
            dstore.expiries.store(true, Ordering::Relaxed);
        }
        keys += 1;
        live.push(number);
    }
    enter(dstore, &live)?;
    let (order, twice) = Order::of(memory, live);
    if let Some(number) = twice {
        let what = format!("slot {number}: another one has its key");
        tolerate(dstore.damage.as_ref(), corrupt(0, what))?;
    }
    *lock(&dstore.order) = order;
    for stripe in dstore.stripes.all() {
        dstore.stripes.raise(stripe, latest);
    }
    dstore.keys_before.store(keys, Ordering::Relaxed);
    salvage::doubt_lost(dstore);
    salvage::note_pages(dstore, findings);
    Ok(())
}

/// Enters slots and cells in the books, for at least so many objects with short keys; returns how many there
/// are.
fn cover(dstore: &Dstore, objects: u64) -> Result<(u64, u64), Error> {
    let chunk = [
        u64::from(SLOTS_CHUNK) * SLOT_BYTES,
        u64::from(GRAINS_CHUNK) * GRAIN_BYTES,
    ];
    let (last, wanted) = (last_used(dstore), [SLOT_BYTES, GRAIN_BYTES]);
    let mut bytes = [0; SEGMENTS];
    for segment in [SLOTS, CELLS] {
        let wanted = objects.saturating_mul(wanted[segment]);
        bytes[segment] = last[segment].max(wanted).div_ceil(chunk[segment]).max(1) * chunk[segment];
    }
    if !dstore.read_only {
        dstore.dipper.reserve(&bytes)?;
        if let Some(cow) = &dstore.cow {
            cow.grow(&bytes)?;
        }
        dstore
            .machine
            .limit(bytes.iter().copied().max().unwrap_or(0));
    }
    for segment in [SLOTS, CELLS] {
        dstore.memory.grow(segment, bytes[segment])?;
    }
    let counts = [0, 1].map(|segment| bytes[segment] / chunk[segment]);
    dstore.room.cover_memory(counts[SLOTS], counts[CELLS])?;
    Ok((bytes[SLOTS] / SLOT_BYTES, bytes[CELLS] / GRAIN_BYTES))
}

/// Bytes of each segment that any object may use.
fn last_used(dstore: &Dstore) -> [u64; SEGMENTS] {
    let memory = &dstore.memory;
    let mut last = [0; SEGMENTS];
    for number in 1..memory.slots() {
        let (slot, _) = memory.slot(number);
        if slot.lsn == 0 {
            continue;
        }
        last[SLOTS] = (number + 1) * SLOT_BYTES;
        if slot.is_dead || !slot.is_sound(&dstore.geometry) {
            continue;
        }
        let end = |cell: u64, bytes: usize| (cell + u64::from(grains(bytes))) * GRAIN_BYTES;
        let body = dstore.geometry.cell_bytes(slot.form, slot.length);
        let body = if body > 0 { end(slot.body, body) } else { 0 };
        let key = end(slot.key_cell, slot.key_bytes as usize);
        last[CELLS] = last[CELLS].max(key).max(body);
    }
    // A forged slot may name cells that do not exist; `adopt` refuses it.
    last[CELLS] = last[CELLS].min(memory.cells_bytes());
    last
}

/// Marks what an object uses as taken.
fn adopt(dstore: &Dstore, number: u64, slot: &Slot, cells: u64) -> Result<(), Error> {
    let twice = |what: &str| Err(corrupt(0, format!("slot {number}: {what} is in use twice")));
    let room = &dstore.room;
    let fits = |first: u64, count: u32| first + u64::from(count) <= cells;
    let key = grains(slot.key_bytes as usize);
    if !fits(slot.key_cell, key) {
        return Err(corrupt(
            0,
            format!("slot {number}: its key lies outside the cells"),
        ));
    }
    let mut bytes = Vec::new();
    dstore.memory.key(slot, &mut bytes);
    if dstore.hash(&bytes) != slot.hash {
        return Err(corrupt(
            0,
            format!("slot {number}: its key is not that of its hash"),
        ));
    }
    if !room.slots.adopt_lines(number, 1) {
        return twice("the slot");
    }
    if !room.cells.adopt_lines(slot.key_cell, key) {
        return twice("the cell of its key");
    }
    let bytes = dstore.geometry.cell_bytes(slot.form, slot.length);
    if bytes > 0 {
        if !fits(slot.body, grains(bytes)) {
            return Err(corrupt(
                0,
                format!("slot {number}: its body lies outside the cells"),
            ));
        }
        if !room.cells.adopt_lines(slot.body, grains(bytes)) {
            return twice("the cell of its body");
        }
    }
    let mut cell = Vec::new();
    dstore.cell_of(slot, &mut cell);
    adopt_blocks(dstore, slot, &cell)
}

/// Marks the blocks of a value as taken. A map that cannot be read hides some of them, which stay free: the
/// value is damaged in any case, and its reads say so.
fn adopt_blocks(dstore: &Dstore, slot: &Slot, cell: &[u8]) -> Result<(), Error> {
    let (mut taken_twice, end) = (None, dstore.room.blocks.chunks() * u64::from(BLOCKS_CHUNK));
    let walked = dstore.values.walk(slot, cell, &mut |block, _| {
        let inside = block.number < end;
        if !(inside && dstore.room.blocks.adopt_lines(block.number, 1)) {
            let number = block.number;
            taken_twice = Some(format!(
                "block {number} of the data file is in use twice, or outside of it"
            ));
            // Whoever forged it may have made a map that refers to itself.
            return Err(corrupt(0, ""));
        }
        Ok(())
    });
    match (taken_twice, walked) {
        (Some(what), _) => Err(corrupt(0, what)),
        (None, Ok(()) | Err(Error::Corrupt { .. })) => Ok(()),
        (None, Err(other)) => Err(other),
    }
}

/// Parcels that log records name are in use until those are reclaimed.
fn adopt_parcels(dstore: &Dstore) -> Result<(), Error> {
    let parcels = std::mem::take(&mut *dstore.machine.parcels.lock());
    for (entry, slot, cell) in parcels {
        let mut runs = Vec::new();
        let adopted = adopt_blocks(dstore, &slot, &cell).and_then(|()| {
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

/// Enters live slots in the index.
fn enter(dstore: &Dstore, live: &[u64]) -> Result<(), Error> {
    let memory = &dstore.memory;
    let mut rehash = |locations: &[Location], hashes: &mut Vec<KeyHash>| {
        let hash = |location: &Location| KeyHash(memory.hash(location.get()));
        hashes.extend(locations.iter().map(hash));
        Ok(())
    };
    const AHEAD: usize = 16;
    for (nth, &number) in live.iter().enumerate() {
        if let Some(next) = live.get(nth + AHEAD) {
            dstore.index.prefetch(KeyHash(memory.hash(*next)));
        }
        let Some(location) = Location::new(number) else {
            continue;
        };
        let hash = KeyHash(memory.hash(number));
        let entered = dstore.index.insert_alone(hash, location, &mut rehash);
        entered.map_err(|error| Error::NoSpace(format!("the index in DRAM: {error}")))?;
    }
    Ok(())
}
