//! The machine that DIPPER makes persistent: slots and cells, changed by whole states of objects.

use super::blocks::Values;
use super::layout::{
    CELLS, GRAIN_BYTES, Geometry, Opcode, Operation, SLOT_BYTES, SLOTS, Slot, are_operations,
    has_key, operations,
};
use crate::crl::{Entry, RecordAt};
use crate::dipper::{Changes, Collected, Machine, Space};
use crate::engine::damage::Damage;
use crate::error::{Error, corrupt};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module text.
pub(super) struct Objects {
    pub(super) geometry: Geometry,
    pub(super) values: Arc<Values>,
    /// Slots and grains that the shadow has room for; an entry that names others was forged.
    pub(super) slots_max: AtomicU64,
    pub(super) grains_max: AtomicU64,
    /// While recovery reads the logs it learns here of the parcels that are in use.
    pub(super) is_recovering: AtomicBool,
    pub(super) parcels: Mutex<Vec<(RecordAt, Slot, Vec<u8>)>>,
    /// Where damage is noted, if the pool is being salvaged; and the objects whose record was lost: number,
    /// LSN, and the place of the damage.
    pub(super) damage: Option<Arc<Damage>>,
    pub(super) lost: Mutex<Vec<(u64, u64, u64)>>,
}

impl Objects {
    /// The shadow has room for segments of so many bytes.
    pub(super) fn limit(&self, segment_bytes: u64) {
        let max = |unit: u64| (segment_bytes / unit).saturating_sub(1);
        self.slots_max.fetch_max(max(SLOT_BYTES), Ordering::Relaxed);
        self.grains_max
            .fetch_max(max(GRAIN_BYTES), Ordering::Relaxed);
    }

    fn is_inside(&self, operation: &Operation<'_>) -> bool {
        let slot = &operation.slot;
        let fits = |cell: u64, bytes: usize| {
            cell + u64::from(super::layout::grains(bytes))
                <= self.grains_max.load(Ordering::Relaxed) + 1
        };
        let cell_bytes = operation.cell.map_or(0, <[u8]>::len);
        operation.number <= self.slots_max.load(Ordering::Relaxed)
            && (slot.is_dead
                || operation.opcode == Opcode::Parcel
                || fits(slot.key_cell, slot.key_bytes as usize)
                    && (slot.form == 1 || fits(slot.body, cell_bytes)))
    }

    /// Collects the changes of operations: `count`, or as many as there are in a parcel. `what` is said if no
    /// session writes such.
    fn collect(
        &self,
        at: RecordAt,
        (bytes, count): (&[u8], Option<u32>),
        what: &'static str,
        into: &mut Collected<()>,
    ) -> Result<(), Error> {
        for found in operations(&self.geometry, bytes, count) {
            let Some((operation, own)) = found else {
                return Err(corrupt(0, what));
            };
            if !self.is_inside(&operation) {
                return Err(corrupt(
                    0,
                    "a log record names a slot or a cell that there is no room for",
                ));
            }
            match operation.opcode {
                Opcode::Clear => into.raise_floor(operation.slot.lsn),
                Opcode::Write => into.push(operation.number, operation.slot.lsn, (), own),
                Opcode::Parcel => {
                    if let Err(error) = self.collect_parcel(at, &operation, into) {
                        super::salvage::lose_parcel(self, error)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Collects the changes of operations that no log has.
    pub(super) fn collect_bytes(
        &self,
        bytes: &[u8],
        count: u32,
        into: &mut Collected<()>,
    ) -> Result<(), Error> {
        let what = "operations of this process do not parse";
        self.collect(RecordAt::default(), (bytes, Some(count)), what, into)
    }

    /// Collects the changes of the operations in a parcel.
    fn collect_parcel(
        &self,
        at: RecordAt,
        operation: &Operation<'_>,
        into: &mut Collected<()>,
    ) -> Result<(), Error> {
        let cell = operation.cell.unwrap_or(&[]);
        let mut parcel = Vec::new();
        self.values.read(&operation.slot, cell, &mut parcel)?;
        self.collect(at, (&parcel, None), "a parcel has impossible content", into)?;
        if self.is_recovering.load(Ordering::Relaxed) {
            self.parcels
                .lock()
                .push((at, operation.slot, cell.to_vec()));
        }
        Ok(())
    }
}

impl Machine for Objects {
    type Change = ();

    fn is_sound(&self, entry: &Entry<'_>) -> bool {
        are_operations(&self.geometry, entry.bytes, Some(entry.operations))
    }

    fn read(&self, entry: &Entry<'_>, into: &mut Collected<()>) -> Result<(), Error> {
        let bytes = (entry.bytes, Some(entry.operations));
        let what = "a log record has impossible content";
        self.collect(entry.at, bytes, what, into)
    }

    fn lose(&self, error: Error, lost: &Entry<'_>) -> Result<(), Error> {
        super::salvage::lose(self, error, lost)
    }

    fn begins_torn(&self, at: u64) {
        super::salvage::begins_torn(self, at);
    }

    /// The last state counts, with the key of the last object that came to this slot.
    fn apply<S: Space>(&self, space: &mut S, changes: Changes<'_, ()>) -> Result<(), Error> {
        let at = changes.object() * SLOT_BYTES;
        let before = Slot::from_words([space.load(SLOTS, at)?, 0, 0, 0, 0, 0, 0, 0]).lsn;
        let parse = |bytes| match Operation::parse(&self.geometry, bytes) {
            Some((operation, _)) => operation,
            None => unreachable!("an operation was collected that does not parse"),
        };
        let mut new = changes.iter().rev().take_while(|(lsn, ..)| *lsn > before);
        let Some((_, (), last)) = new.next() else {
            return Ok(());
        };
        let with_key = match has_key(last) {
            true => Some(last),
            false => new.map(|(_, (), bytes)| bytes).find(|bytes| has_key(bytes)),
        };
        let last = parse(last);
        let key = with_key.map(parse).and_then(|created| {
            let bytes = created.key?;
            Some((created.slot.key_cell, bytes))
        });
        if !last.slot.is_dead {
            if let Some((cell, bytes)) = key {
                store_cell(space, cell, bytes)?;
            }
            if let Some(bytes) = last.cell {
                store_cell(space, last.slot.body, bytes)?;
            }
        }
        let secret = self.values.pool.secret();
        let words = last.slot.to_checked_words(secret, changes.object());
        let words = words.map(u64::to_le_bytes);
        space.store(SLOTS, at, words.as_flattened())
    }
}

fn store_cell<S: Space>(space: &mut S, cell: u64, bytes: &[u8]) -> Result<(), Error> {
    let mut words = bytes.to_vec();
    words.resize(bytes.len().next_multiple_of(8), 0);
    space.store(CELLS, cell * GRAIN_BYTES, &words)
}
