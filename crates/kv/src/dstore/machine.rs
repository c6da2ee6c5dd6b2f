//! The machine that DIPPER makes persistent: slots and cells, changed by whole states of objects.

use super::blocks::Values;
use super::layout::{
    CELLS, GRAIN_BYTES, Geometry, Opcode, Operation, SLOT_BYTES, SLOTS, Slot, operations,
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

    fn collect(
        &self,
        at: RecordAt,
        operations: &[Operation<'_>],
        into: &mut Collected<()>,
    ) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for operation in operations {
            if !self.is_inside(operation) {
                return Err(corrupt(
                    0,
                    "a log record names a slot or a cell that there is no room for",
                ));
            }
            match operation.opcode {
                Opcode::Clear => into.raise_floor(operation.slot.lsn),
                Opcode::Write => {
                    bytes.clear();
                    operation.write(&mut bytes);
                    into.push(operation.number, operation.slot.lsn, (), &bytes);
                }
                Opcode::Parcel => {
                    if let Err(error) = self.collect_parcel(at, operation, into) {
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
        let Some(operations) = operations(&self.geometry, bytes, Some(count)) else {
            unreachable!("operations of this process do not parse");
        };
        self.collect(RecordAt::default(), &operations, into)
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
        let Some(inside) = operations(&self.geometry, &parcel, None) else {
            return Err(corrupt(0, "a parcel has impossible content"));
        };
        self.collect(at, &inside, into)?;
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
        operations(&self.geometry, entry.bytes, Some(entry.operations)).is_some()
    }

    fn read(&self, entry: &Entry<'_>, into: &mut Collected<()>) -> Result<(), Error> {
        let Some(operations) = operations(&self.geometry, entry.bytes, Some(entry.operations))
        else {
            return Err(corrupt(0, "a log record has impossible content"));
        };
        self.collect(entry.at, &operations, into)
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
        let (mut last, mut key) = (None, None);
        for (lsn, (), bytes) in changes.iter() {
            if lsn <= before {
                continue;
            }
            let Some((operation, _)) = Operation::parse(&self.geometry, bytes) else {
                unreachable!("an operation was collected that does not parse");
            };
            if let Some(bytes) = operation.key {
                key = Some((operation.slot.key_cell, bytes));
            }
            last = Some(operation);
        }
        let Some(last) = last else {
            return Ok(());
        };
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
