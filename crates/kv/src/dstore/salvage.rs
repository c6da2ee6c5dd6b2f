//! A salvage of a damaged pool: what verifies by itself, and a list of what does not.
//!
//! Where a page of the shadow does not verify, each of its slots still may: a slot has a check of its own,
//! its key the hash in the slot, and the cell of its body a sum.

use super::Dstore;
use super::layout::{Opcode, Operation, Slot, check};
use super::machine::Objects;
use crate::concurrency::stripes::STORED_VERSION_MAX;
use crate::crl::Entry;
use crate::dipper::Shadow;
use crate::engine::damage::{Damage, Doubt};
use crate::error::Error;
use crate::stats::Finding;
use std::sync::Arc;

/// The most operations of a damaged log record that are read.
const OPERATIONS_MAX: usize = 1 << 16;

/// Notes that both ledgers are damaged: nothing says where the shadow is.
///
/// # Errors
/// The given one, unless the pool is being salvaged.
pub(super) fn without_ledger(damage: Option<&Arc<Damage>>, error: Error) -> Result<(), Error> {
    let (Some(damage), Error::Corrupt { offset, what, .. }) = (damage, &error) else {
        return Err(error);
    };
    damage.note(Finding {
        missing: 1,
        stale: true,
        ..Finding::new(
            *offset,
            format!(
                "{what}, so nothing says where the metadata is: all that is not in the logs is missing, the bytes do not say \
                 which keys those are, and what was removed may be there again"
            ),
        )
    });
    Ok(())
}

/// Notes a log record that does not verify. Keys that it may change are doubtful.
///
/// # Errors
/// The given one, unless the pool is being salvaged.
pub(super) fn lose(machine: &Objects, error: Error, lost: &Entry<'_>) -> Result<(), Error> {
    let (Some(damage), Error::Corrupt { offset, what, .. }) = (&machine.damage, &error) else {
        return Err(error);
    };
    let (mut rest, mut noted) = (lost.bytes, 0);
    while noted < OPERATIONS_MAX
        && let Some((operation, behind)) = Operation::parse(&machine.geometry, rest)
    {
        rest = behind;
        noted += 1;
        note(machine, damage, &operation, *offset, what);
    }
    if noted == 0 {
        damage.note(Finding {
            missing: 1,
            stale: true,
            ..Finding::new(
                *offset,
                format!("{what}, and its bytes do not say which key it is about"),
            )
        });
    }
    Ok(())
}

/// Notes that a log has nothing that verifies, and something that does not.
pub(super) fn begins_torn(machine: &Objects, at: u64) {
    if let Some(damage) = &machine.damage {
        let what = "the first record of a log does not verify: a crash tore it, or the log is damaged, and all of its writes \
                    may be missing; the bytes do not say of which keys";
        damage.note(Finding {
            missing: 1,
            stale: true,
            ..Finding::new(at, what)
        });
    }
}

/// Notes a parcel of log records that cannot be read.
///
/// # Errors
/// An error about the pool, unless it is being salvaged.
pub(super) fn lose_parcel(machine: &Objects, error: Error) -> Result<(), Error> {
    let (offset, what) = match error {
        Error::Corrupt { offset, what, .. } => (offset, what),
        other => return Err(other),
    };
    let what =
        format!("a parcel of log records is damaged, at byte {offset} of the data file ({what})");
    let Some(damage) = &machine.damage else {
        return Err(crate::error::corrupt(0, what));
    };
    damage.note(Finding {
        file: Some(machine.values.blocks.path().to_path_buf()),
        missing: 1,
        stale: true,
        ..Finding::new(
            offset,
            format!("{what}: its keys may be wrong, and what it removed may be there again"),
        )
    });
    Ok(())
}

fn note(machine: &Objects, damage: &Damage, operation: &Operation<'_>, offset: u64, what: &str) {
    let version = operation.slot.lsn;
    let (key, what) = match (operation.opcode, operation.key) {
        (Opcode::Clear, _) => (
            None,
            format!("{what}: what FLUSHALL removed may be there again"),
        ),
        (Opcode::Write, Some(key)) => {
            damage.doubt(key.to_vec(), Doubt { version, offset });
            (
                Some(key.to_vec()),
                format!("{what}, so the key that is read in it may be wrong"),
            )
        }
        (Opcode::Write, None) => {
            // The slot says which key it is, once all slots are known.
            machine
                .lost
                .lock()
                .push((operation.number, version, offset));
            (
                None,
                format!("{what}, so the key may be wrong, and may be there again"),
            )
        }
        (Opcode::Parcel, _) => (
            None,
            format!("{what}: a batch is missing, and its bytes do not say of which keys"),
        ),
    };
    damage.note(Finding {
        key,
        missing: 1,
        stale: true,
        ..Finding::new(offset, what)
    });
}

/// Reads of keys whose record was lost are errors, unless something newer was found.
pub(super) fn doubt_lost(dstore: &Dstore) {
    let Some(damage) = &dstore.damage else {
        return;
    };
    for (number, version, offset) in std::mem::take(&mut *dstore.machine.lost.lock()) {
        if number == 0 || number >= dstore.memory.slots() {
            continue;
        }
        let (slot, _) = dstore.memory.slot(number);
        if let Some(key) = key_of(dstore, &slot) {
            damage.doubt(key, Doubt { version, offset });
        }
    }
}

/// The key of a slot, if it has the hash that the slot says.
fn key_of(dstore: &Dstore, slot: &Slot) -> Option<Vec<u8>> {
    let bytes = slot.key_bytes as usize;
    let mut key = Vec::new();
    let is_there = slot.key_cell != 0 && dstore.memory.has_cell(slot.key_cell, bytes);
    if is_there {
        dstore.memory.key(slot, &mut key);
    }
    (is_there && dstore.hash(&key) == slot.hash).then_some(key)
}

/// Whether the cell of a slot's body, if it has one, verifies.
fn has_body(dstore: &Dstore, slot: &Slot) -> bool {
    if !slot.is_sound(&dstore.geometry) {
        return true;
    }
    let bytes = dstore.geometry.cell_bytes(slot.form, slot.length);
    let mut cell = Vec::new();
    if bytes > 0 && dstore.memory.has_cell(slot.body, bytes) {
        dstore.memory.read(slot.body, bytes, &mut cell);
    }
    bytes == 0 || dstore.values.cell_sum(&cell) == slot.sum && cell.len() == bytes
}

/// Notes pages that do not verify, if no object lacks anything because of them: then nothing else says so.
pub(super) fn note_pages(dstore: &Dstore, findings_before: u64) {
    let Some(damage) = &dstore.damage else {
        return;
    };
    let damaged = dstore.dipper.shadow(Shadow::take_damaged);
    if damage.stats().findings > findings_before {
        return;
    }
    for error in damaged {
        if let Error::Corrupt { offset, what, .. } = error {
            let what = format!("{what}; all objects that are there verify");
            damage.note(Finding::new(offset, what));
        }
    }
}

/// Whether a slot verifies by itself. If not, it is noted, and its key is doubtful, as far as that is known.
pub(super) fn is_certain(dstore: &Dstore, number: u64, slot: &Slot) -> bool {
    let Some(damage) = &dstore.damage else {
        return true;
    };
    let words = dstore.memory.words(number);
    let key = key_of(dstore, slot);
    let verifies = words[7] == check(dstore.pool.secret(), number, &words);
    if verifies && slot.is_dead {
        return true;
    }
    if let (true, Some(key)) = (verifies, &key) {
        if !has_body(dstore, slot) {
            // It stays: its reads are errors.
            damage.note(Finding {
                key: Some(key.clone()),
                missing: 1,
                ..Finding::new(0, format!("slot {number}: its value does not verify"))
            });
        }
        return true;
    }
    let what = match (verifies, &key) {
        (_, Some(_)) => "its state does not verify",
        (true, None) => "its key does not verify, and may be wrong",
        (false, None) => "its state does not verify, and its bytes do not say which key it is",
    };
    if let Some(key) = &key {
        let doubt = Doubt {
            version: STORED_VERSION_MAX,
            offset: 0,
        };
        damage.doubt(key.clone(), doubt);
    }
    damage.note(Finding {
        key,
        missing: 1,
        ..Finding::new(0, format!("slot {number}: {what}"))
    });
    false
}
