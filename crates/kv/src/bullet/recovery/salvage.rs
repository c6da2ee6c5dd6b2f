//! Salvage reads the undamaged parts of a damaged pool.
//!
//! * A log record that does not verify is skipped. The keys that it seems to name are in doubt, up to its
//!   version. An edit may be lost with it, so every key whose value is made of edits is in doubt, too.
//! * A damaged object of the back stays where it is: the tag in its slot says which keys it may be of, and
//!   reads of those fail.
//! * The objects of a damaged bucket are found by a walk over the heap, and the front leads to them. Reads of
//!   other keys of the bucket fail, since it cannot prove that they are absent.
//!
//! All of it happens in private memory.

use super::Recovery;
use crate::bullet::Bullet;
use crate::bullet::back::Back;
use crate::bullet::front::Node;
use crate::bullet::front::node_of;
use crate::bullet::layout::{HEAP_OWNER, Named, Opcode, Operation, operations};
use crate::crl::{Entry, Ledger};
use crate::engine::damage::tolerate;
use crate::engine::damage::{Damage, Doubt};
use crate::error::Error;
use crate::stats::Finding;
use everdram_pm::LINE;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most operations of a damaged log record that are read.
const OPERATIONS_MAX: u32 = 1 << 16;

/// The ledger for a recovery that finds both copies damaged: it knows no log.
///
/// # Errors
/// The one given, unless the pool is being salvaged.
pub(in crate::bullet) fn without_ledger(
    damage: Option<&Arc<Damage>>,
    error: Error,
) -> Result<Ledger, Error> {
    let (Some(damage), Error::Corrupt { offset, what, .. }) = (damage, &error) else {
        return Err(error);
    };
    damage.note(Finding {
        missing: 1,
        stale: true,
        ..Finding::new(
            *offset,
            format!(
                "{what}, so nothing says what counts in the logs, and they are not read: the latest writes are missing, keys may \
                 have older values, and what FLUSHALL removed may be there again"
            ),
        )
    });
    Ok(Ledger::default())
}

impl Back {
    /// Handles a reference to memory that the heap says is free. Salvage notes it, once, and goes on: the
    /// heap's records may be what is damaged, and lines and objects have checks of their own.
    pub(in crate::bullet) fn doubt_books(&self, error: Error) -> Result<(), Error> {
        match &self.damage {
            Some(damage) if !self.is_known.load(Ordering::Relaxed) => damage.note_error(error),
            Some(_) => Ok(()),
            None => Err(error),
        }
    }

    /// From here on, all damage counts as noted.
    pub(in crate::bullet) fn is_looked_through(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Whether a place is in an array of the table.
    pub(in crate::bullet) fn is_of_table(&self, at: u64) -> bool {
        let arrays = [
            Some(self.table.current()),
            self.table.moving().map(|(old, _)| old),
        ];
        let mut arrays = arrays.into_iter().flatten();
        arrays.any(|array| (array.at()..array.at() + array.bytes()).contains(&at))
    }
}

impl Bullet {
    /// Notes damage and goes on, if the pool is being salvaged.
    ///
    /// # Errors
    /// The one given otherwise.
    pub(in crate::bullet) fn tolerate(&self, error: Error) -> Result<(), Error> {
        tolerate(self.damage.as_ref(), error)
    }

    /// As [`Bullet::tolerate`], for damage that has been noted.
    ///
    /// # Errors
    /// As [`Bullet::tolerate`].
    pub(in crate::bullet) fn pass_over(&self, error: Error) -> Result<(), Error> {
        match (&self.damage, error) {
            (Some(_), Error::Corrupt { .. }) => Ok(()),
            (_, error) => Err(error),
        }
    }

    fn doubt(&self, damage: &Damage, operation: &Operation<'_>, offset: u64) -> Option<Vec<u8>> {
        let mut key = operation.key.to_vec();
        if operation.opcode == Opcode::Link {
            let at = Named::read(operation.payload).at;
            self.back.head(at, &mut key).ok()?;
        }
        if key.is_empty() {
            return None;
        }
        let version = operation.version;
        damage.doubt(key.clone(), Doubt { version, offset });
        Some(key)
    }
}

impl Recovery<'_> {
    /// Goes on without an operation that cannot be replayed.
    ///
    /// # Errors
    /// The one given, unless the pool is being salvaged.
    pub(in crate::bullet) fn lose(
        &mut self,
        operation: &Operation<'_>,
        error: Error,
    ) -> Result<(), Error> {
        let (Some(damage), Error::Corrupt { offset, what, .. }) = (&self.engine.damage, &error)
        else {
            return Err(error);
        };
        self.has_lost = true;
        damage.note(Finding {
            key: self.engine.doubt(damage, operation, *offset),
            missing: 1,
            ..Finding::new(*offset, what.clone())
        });
        Ok(())
    }

    /// Goes on without an entry of a log.
    ///
    /// # Errors
    /// As [`Recovery::lose`].
    pub(in crate::bullet) fn lose_entry(
        &mut self,
        error: Error,
        lost: &Entry<'_>,
    ) -> Result<(), Error> {
        let (Some(damage), Error::Corrupt { offset, what, .. }) = (&self.engine.damage, &error)
        else {
            return Err(error);
        };
        self.has_lost = true;
        let count = lost.operations.min(OPERATIONS_MAX);
        let mut bytes = lost.bytes.len() as u64;
        let mut noted = 0;
        for operation in operations(lost.bytes, count) {
            let what = match operation.opcode {
                Opcode::Clear => format!("{what}: what FLUSHALL removed may be there again"),
                _ => format!("{what}, so the key that is read in it may be wrong"),
            };
            damage.note(Finding {
                key: self.engine.doubt(damage, &operation, *offset),
                bytes: std::mem::take(&mut bytes),
                missing: 1,
                stale: operation.opcode == Opcode::Clear,
                ..Finding::new(*offset, what)
            });
            noted += 1;
        }
        if noted == 0 {
            damage.note(Finding {
                bytes,
                missing: 1,
                ..Finding::new(
                    *offset,
                    format!("{what}, and does not say which keys it was of"),
                )
            });
        }
        Ok(())
    }

    /// Goes on without the value of a key.
    ///
    /// # Errors
    /// As [`Recovery::lose`].
    pub(in crate::bullet) fn lose_key(&mut self, key: &[u8], error: Error) -> Result<(), Error> {
        let (Some(damage), Error::Corrupt { offset, what, .. }) = (&self.engine.damage, &error)
        else {
            return Err(error);
        };
        let offset = *offset;
        damage.note(Finding {
            key: Some(key.to_vec()),
            missing: 1,
            ..Finding::new(offset, what.clone())
        });
        let version = u64::MAX;
        damage.doubt(key.to_vec(), Doubt { version, offset });
        Ok(())
    }

    /// Puts a value made of edits in doubt, if one of them may be lost.
    pub(in crate::bullet) fn doubt_edits(&self, key: &[u8]) {
        if let (Some(damage), true) = (&self.engine.damage, self.has_lost) {
            let (version, offset) = (u64::MAX, 0);
            damage.doubt(key.to_vec(), Doubt { version, offset });
            damage.note(Finding {
                key: Some(key.to_vec()),
                missing: 1,
                ..Finding::new(
                    offset,
                    "a change of this value may be among the log records that are damaged",
                )
            });
        }
    }
}

/// Verifies the back of a pool that is being salvaged, and finds the objects of damaged buckets.
///
/// # Errors
/// Errors other than damage.
pub(in crate::bullet) fn look_through(recovery: &mut Recovery<'_>) -> Result<(), Error> {
    let engine = recovery.engine;
    let Some(damage) = &engine.damage else {
        return Ok(());
    };
    let mut has_lost = engine.back.has_lost_table;
    let mut cursor = 0;
    loop {
        let mut objects = Vec::new();
        let next = engine.back.table.next(cursor);
        if let Err(error) = engine.back.visit(cursor, |at| objects.push(at)) {
            has_lost = true;
            damage.note_error(error)?;
        }
        for at in objects {
            verify(engine, damage, at)?;
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    if has_lost {
        find_objects(recovery)?;
    }
    engine.back.is_looked_through();
    Ok(())
}

/// Notes an object of the table that does not verify.
fn verify(engine: &Bullet, damage: &Damage, at: u64) -> Result<(), Error> {
    let back = &engine.back;
    match back.value_at(at, &mut Vec::new(), &mut Vec::new()) {
        Ok(head) if back.heap.is_published(at, head.bytes()) => {}
        Ok(_) => {
            let what =
                "the table has an object that the heap says is free: nothing is missing for it";
            damage.note(Finding::new(at, what));
        }
        Err(error) => damage.note(damaged_object(engine, at, error)?),
    }
    Ok(())
}

/// The finding for an object of the table that cannot be read.
///
/// # Errors
/// The one given, if it is no damage.
pub(in crate::bullet) fn damaged_object(
    engine: &Bullet,
    at: u64,
    error: Error,
) -> Result<Finding, Error> {
    let Error::Corrupt { offset, what, .. } = error else {
        return Err(error);
    };
    let mut key = Vec::new();
    let Ok(head) = engine.back.head(at, &mut key) else {
        return Ok(Finding {
            missing: 1,
            ..Finding::new(offset, format!("{what}; its key cannot be read"))
        });
    };
    let newer = engine.front.find(head.hash, &key);
    let is_newer = newer.is_some_and(|node| node.version > head.version);
    let what = match is_newer {
        true => {
            format!("{what}; a log record has what came after it, and nothing is missing for it")
        }
        false => what,
    };
    Ok(Finding {
        bytes: head.bytes(),
        key: Some(key),
        missing: u64::from(!is_newer),
        ..Finding::new(offset, what)
    })
}

/// Makes the front lead to all objects that are in the heap and that the table does not lead to.
fn find_objects(recovery: &mut Recovery<'_>) -> Result<(), Error> {
    let engine = recovery.engine;
    let back = &engine.back;
    let (mut key, mut scratch) = (Vec::new(), Vec::new());
    for extent in engine.pool.extents(HEAP_OWNER) {
        for at in (extent.at..extent.at + extent.bytes).step_by(LINE as usize) {
            key.clear();
            let Ok(head) = back.head(at, &mut key) else {
                continue;
            };
            let is_current = back.heap.is_published(at, head.bytes()) && !back.is_of_table(at);
            let mut is_lost = || match back.find(head.hash, &key, &mut scratch) {
                Ok(_) => back.has_lost_table,
                Err(_) => true,
            };
            if is_current && is_lost() {
                let node = Node {
                    object: at,
                    ..node_of(&head)
                };
                recovery.put(node, &key, &[])?;
            }
        }
    }
    recovery.show_lot()
}
