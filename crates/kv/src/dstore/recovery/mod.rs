//! From bytes to a running engine: the shadow is copied, the logs are replayed on the copy, and everything
//! volatile follows from the slots: which slots, cells and blocks are in use, the index, the order of keys.
//!
//! Several threads do each of these steps together. A salvage walks the slots with one, so that its findings
//! come in order.

#[cfg(test)]
mod timing;
mod walk;

use super::Dstore;
use super::layout::{BUSY, CELLS, GRAIN_BYTES, SEGMENTS, SLOT_BYTES, SLOTS, word_at};
use super::machine::Objects;
use super::memory::Memory;
use super::order::Order;
use super::room::{BLOCKS_CHUNK, CHUNK_BYTES};
use super::salvage;
use crate::concurrency::stripes::STORED_VERSION_MAX;
use crate::crl::Logs;
use crate::dipper::{Found, Machine, Shadow};
use crate::engine::damage::tolerate;
use crate::error::{Error, corrupt};
use crate::options::Options;
use everdram_pm::Pool;
use everdram_pm::lock::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The size and duration of a recovery.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summary {
    pub(super) records: u64,
    pub(super) microseconds: u64,
    /// The time of each phase, with its name in INFO.
    pub(super) phases: [(&'static str, u64); PHASES.len()],
}

/// The phases of a recovery: pages of the shadow are copied, logs are replayed, slots are walked, keys are
/// brought into order.
const PHASES: [&str; 4] = [
    "recovery_copy_us",
    "recovery_logs_us",
    "recovery_slots_us",
    "recovery_order_us",
];

/// Measures a recovery.
pub(super) struct Timing {
    begun: Instant,
    ends: [Instant; PHASES.len()],
    ended: usize,
}

impl Timing {
    pub(super) fn begin() -> Timing {
        let begun = Instant::now();
        Timing {
            begun,
            ends: [begun; PHASES.len()],
            ended: 0,
        }
    }

    /// The phase under way ends.
    fn next(&mut self) {
        self.ends[self.ended] = Instant::now();
        self.ended += 1;
    }

    /// The recovery ends, which has replayed so many records.
    pub(super) fn end(&self, records: u64) -> Summary {
        let begins = [&[self.begun], &self.ends[..PHASES.len() - 1]].concat();
        let took = |nth: usize| self.ends[nth].duration_since(begins[nth]).as_micros() as u64;
        Summary {
            records,
            microseconds: self.begun.elapsed().as_micros() as u64,
            phases: std::array::from_fn(|nth| (PHASES[nth], took(nth))),
        }
    }
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
    timing: &mut Timing,
) -> Result<Loaded, Error> {
    let threads = options.recoverers();
    for segment in [SLOTS, CELLS] {
        memory.grow(segment, shadow.segment_bytes(segment))?;
    }
    shadow.copy_out(threads, &|segment, at, bytes| {
        memory.store_at(segment, at, bytes);
        match segment {
            SLOTS => refuse_busy(machine, memory, at, bytes),
            _ => Ok(()),
        }
    })?;
    timing.next();
    let progress = options.progress.clone();
    let report = move |done, all| {
        if let Some(progress) = &progress {
            progress(done, all);
        }
    };
    let found = Found::read(pool, logs, machine, threads, &report)?;
    machine.is_recovering.store(false, Ordering::Relaxed);
    let (floor, records) = (found.floor(shadow), found.len() as u64);
    let approach = |object| memory.prefetch(object);
    found.by_object(threads, floor, &approach, |changes| {
        machine.apply(&mut { memory }, changes)
    })?;
    timing.next();
    Ok(Loaded { floor, records })
}

/// Refuses slots that are busy: no shadow has one, and readers would wait for ever.
fn refuse_busy(machine: &Objects, memory: &Memory, at: u64, bytes: &[u8]) -> Result<(), Error> {
    let slots = bytes.as_chunks::<{ SLOT_BYTES as usize }>().0;
    for (number, slot) in (at / SLOT_BYTES..).zip(slots) {
        let word = word_at(slot, 0);
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
pub(super) fn build(dstore: &Dstore, options: &Options, timing: &mut Timing) -> Result<(), Error> {
    let file = &dstore.values.blocks;
    // A new data file has no blocks yet.
    let initial = match !dstore.read_only && file.end() < u64::from(BLOCKS_CHUNK) {
        true => options.initial_bytes / file.block_bytes(),
        false => 0,
    };
    // If there is too little room for so many objects, the store starts smaller.
    let slots = match cover(dstore, initial) {
        Err(Error::NoSpace(_)) => cover(dstore, 0)?,
        other => other?,
    };
    dstore.room.cover_file(file, dstore.read_only, initial)?;
    let findings = dstore
        .damage
        .as_ref()
        .map_or(0, |damage| damage.stats().findings);
    let threads = match dstore.damage {
        Some(_) => 1,
        None => options.recoverers(),
    };
    let walked = walk::all(dstore, slots, threads)?;
    dstore.room.count_adopted();
    timing.next();
    let expiring = walked.expiring;
    dstore.expiries.fetch_or(expiring, Ordering::Relaxed);
    dstore.keys_before.store(walked.live, Ordering::Relaxed);
    let (order, twice) = Order::of(&dstore.memory, threads, walked.keys)?;
    if let Some(number) = twice {
        let what = format!("slot {number}: another one has its key");
        tolerate(dstore.damage.as_ref(), corrupt(0, what))?;
    }
    *lock(&dstore.order) = order;
    let latest = walked.latest.max(dstore.floor());
    if latest > STORED_VERSION_MAX {
        let what = "a version that no store ever reaches";
        tolerate(dstore.damage.as_ref(), corrupt(0, what))?;
    }
    let latest = latest.min(STORED_VERSION_MAX);
    for stripe in dstore.stripes.all() {
        dstore.stripes.raise(stripe, latest);
    }
    salvage::doubt_lost(dstore);
    salvage::note_pages(dstore, findings);
    timing.next();
    Ok(())
}

/// Enters slots and cells in the books, for at least so many objects with short keys; returns how many slots
/// there are.
fn cover(dstore: &Dstore, objects: u64) -> Result<u64, Error> {
    let (chunk, wanted) = (CHUNK_BYTES, [SLOT_BYTES, GRAIN_BYTES]);
    let mut bytes = [0; SEGMENTS];
    for segment in [SLOTS, CELLS] {
        let wanted = objects.saturating_mul(wanted[segment]);
        let used = dstore.memory.used_bytes(segment);
        bytes[segment] = used.max(wanted).div_ceil(chunk[segment]).max(1) * chunk[segment];
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
    Ok(bytes[SLOTS] / SLOT_BYTES)
}
