//! The write path of a session up to its commit: from a change to blocks and an operation.

use super::blocks::BlockAt;
use super::change::{Body, Write};
use super::edit::{self, Before, Editor, Patch};
use super::layout::{Opcode, Operation, Slot, grains};
use super::room::{Freed, Grow};
use super::session::{At, DstoreSession, PENDING_MAX, Pending};
use crate::crl::ENTRY_HEAD;
use crate::engine::OBJECT_BYTES_MAX;
use crate::engine::backend::{Backend, Seen, Taken};
use crate::engine::part::Part;
use crate::error::Error;
use crate::steps::{self, Step};
use std::ops::Range;
use std::sync::Arc;

/// The new state of an object, and what was taken for it.
struct New {
    number: u64,
    slot: Slot,
    /// The key, if the object is new.
    has_key: bool,
}

impl DstoreSession {
    /// Submits a write of a key whose stripe the caller holds. On an error it gives the stripe back.
    #[inline]
    pub(super) fn write(
        &mut self,
        taken: Taken,
        key: &[u8],
        seen: &Seen<At>,
        what: Write<'_>,
    ) -> Result<(), Error> {
        let begun = steps::begin();
        match self.prepare(taken, key, seen, what) {
            Ok(pending) => {
                begun.end(Step::Prepare);
                self.pending.push(pending);
                match self.pending.len() >= PENDING_MAX {
                    true => self.commit_all(),
                    false => Ok(()),
                }
            }
            Err(error) => {
                self.give_back(taken.stripe);
                Err(error)
            }
        }
    }

    /// As [`DstoreSession::write`], of a part of a value. Returns its length before and after.
    ///
    /// # Errors
    /// [`Error::ValueLength`], [`Error::Corrupt`]; as [`DstoreSession::prepare`].
    pub(super) fn write_part(
        &mut self,
        taken: Taken,
        key: &[u8],
        seen: &Seen<At>,
        part: Part<'_>,
    ) -> Result<[u64; 2], Error> {
        let slot = &seen.at.slot;
        let (before, expires_at_ms) = match seen.is_live {
            true => (slot.length, slot.expires_at_ms),
            false => (0, 0),
        };
        // Nothing of the old state is kept.
        let keeps = seen.is_live && !matches!(part, Part::Zeros(_));
        let seen = &Seen {
            is_live: keeps,
            ..*seen
        };
        let mut whole = Vec::new();
        let prepared = part.length(before, OBJECT_BYTES_MAX).and_then(|length| {
            let (at, bytes) = part.bytes(before);
            let patch = Patch { length, at, bytes };
            if self.engine.geometry.form(length) >= 2 {
                return Ok((length, Body::Part(patch)));
            }
            // What fits a block is written as a whole.
            if keeps {
                self.see_part(seen, 0..length, &mut whole)?;
            }
            whole.resize(length as usize, 0);
            if !bytes.is_empty() {
                whole[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
            }
            Ok((length, Body::Whole(&whole)))
        });
        let (length, body) = prepared.inspect_err(|_| self.give_back(taken.stripe))?;
        let what = Write::Put {
            body,
            expires_at_ms,
        };
        self.write(taken, key, seen, what)?;
        Ok([before, length])
    }

    /// Takes room for a change, stages its blocks, and writes its operation. Nothing is persistent or visible
    /// yet.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`]; nothing is taken then.
    pub(super) fn prepare(
        &mut self,
        taken: Taken,
        key: &[u8],
        seen: &Seen<At>,
        what: Write<'_>,
    ) -> Result<Pending, Error> {
        debug_assert!(self.holds(taken.stripe), "a write without its key's stripe");
        let is_ahead = matches!(
            what,
            Write::Put {
                body: Body::Ahead(_),
                ..
            }
        );
        if !is_ahead {
            // A put that panicked may have left what it had copied.
            self.staged.forget_ahead();
        }
        let (begin, freed, runs) = (self.operations.len(), self.freed.len(), self.runs.len());
        let point = self.staged.point();
        let old = (seen.at.number != 0).then_some(seen.at.slot);
        let made = match what {
            Write::Remove => self.bury(taken, &seen.at),
            Write::Put {
                body,
                expires_at_ms,
            } => self.place(taken, key, seen, (body, expires_at_ms)),
        };
        let New {
            number,
            slot,
            has_key,
        } = made.inspect_err(|_| {
            self.staged.roll_back(point);
            self.freed.truncate(freed);
        })?;
        if let Some(old) = &old {
            let is_part = matches!(
                what,
                Write::Put {
                    body: Body::Part(_),
                    ..
                }
            );
            // An edit has noted which of the old blocks it does not use.
            if !is_part || !seen.is_live {
                self.note_freed_blocks(old);
            }
            self.note_freed(number, old, &slot);
        }
        let cell = std::mem::take(&mut self.cell);
        let before = match &old {
            Some(old) if self.engine.system.logs_words() => Some(self.words_of(old)),
            _ => None,
        };
        let operation = Operation {
            opcode: Opcode::Write,
            number,
            slot,
            key: has_key.then_some(key),
            cell: (!cell.is_empty()).then_some(&cell),
            before: before.as_deref(),
        };
        operation.write(&mut self.operations);
        self.cell = cell;
        let operation = begin..self.operations.len();
        let mut pending = Pending {
            stripe: taken.stripe,
            number,
            slot,
            old,
            is_new: !seen.is_live && !slot.is_dead,
            logged: operation.clone(),
            operation,
            parcel: self.runs.len()..self.runs.len(),
            freed: freed..self.freed.len(),
        };
        let is_logged = self.engine.system.is_logged();
        if is_logged && ENTRY_HEAD + pending.operation.len() > self.engine.dipper.logs.entry_most()
        {
            match self.wrap(pending.operation.clone()) {
                Ok((logged, parcel)) => (pending.logged, pending.parcel) = (logged, parcel),
                Err(error) => {
                    self.staged.roll_back(point);
                    self.undo(&pending);
                    self.drop_runs(runs);
                    self.freed.truncate(freed);
                    self.operations.truncate(begin);
                    return Err(error);
                }
            }
        }
        Ok(pending)
    }

    /// The words of a state, and of its cell.
    fn words_of(&self, slot: &Slot) -> Vec<u8> {
        let mut cell = Vec::new();
        self.engine.cell_of(slot, &mut cell);
        let mut words = slot
            .to_words()
            .map(u64::to_le_bytes)
            .as_flattened()
            .to_vec();
        words.append(&mut cell);
        words
    }

    /// The state of a removed object.
    fn bury(&mut self, taken: Taken, at: &At) -> Result<New, Error> {
        assert!(at.number != 0, "a key is removed that has no object");
        self.cell.clear();
        Ok(New {
            number: at.number,
            slot: at
                .slot
                .buried(self.engine.stripes.next_version(taken.stripe)),
            has_key: false,
        })
    }

    /// Writes operations that are too long for an entry to blocks, and an operation that names them.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`], [`Error::ValueLength`]; no block is taken then.
    pub(super) fn wrap(
        &mut self,
        operations: Range<usize>,
    ) -> Result<(Range<usize>, Range<usize>), Error> {
        let (geometry, runs) = (self.engine.geometry, self.runs.len());
        let bytes = self.operations[operations].to_vec();
        crate::engine::check_value(&bytes)?;
        let form = geometry.form(bytes.len() as u64).max(1);
        let DstoreSession {
            engine,
            claims,
            staged,
            runs: taken,
            ..
        } = self;
        let (values, count) = (
            &engine.values,
            engine.values.count(form, bytes.len() as u64),
        );
        engine
            .room
            .take_blocks(claims, &values.blocks, count, taken)?;
        let numbers = taken[runs..]
            .iter()
            .flat_map(|&(first, count)| first..first + u64::from(count));
        let mut cell = Vec::new();
        let new = values.stage(staged, &bytes, numbers, &mut cell)?;
        let slot = Slot {
            lsn: 1,
            form: new.form,
            length: bytes.len() as u64,
            // A parcel has no key, and its root lies in the entry alone.
            key_cell: 1,
            key_bytes: 1,
            body: new.block.number.max(1),
            sum: match cell.is_empty() {
                true => new.block.sum,
                false => values.cell_sum(&cell),
            },
            ..Slot::default()
        };
        let begin = self.operations.len();
        let parcel = Operation {
            opcode: Opcode::Parcel,
            number: 0,
            slot,
            key: None,
            cell: (!cell.is_empty()).then_some(&cell),
            before: None,
        };
        parcel.write(&mut self.operations);
        Ok((begin..self.operations.len(), runs..self.runs.len()))
    }

    /// Takes slot, cells and blocks for a value, and stages the blocks. Leaves what the cell of the body will
    /// hold in `self.cell`.
    fn place(
        &mut self,
        taken: Taken,
        key: &[u8],
        seen: &Seen<At>,
        (body, expires_at_ms): (Body<'_>, u64),
    ) -> Result<New, Error> {
        let runs = self.runs.len();
        let length = match body {
            Body::Whole(value) | Body::Ahead(value) => value.len() as u64,
            Body::Part(patch) => patch.length,
        };
        let geometry = self.engine.geometry;
        let form = geometry.form(length);
        // Users see no old state of a key that has expired.
        let (before, mut cell) = (
            if seen.is_live {
                seen.at.slot
            } else {
                Slot::default()
            },
            Vec::new(),
        );
        let part = match body {
            Body::Whole(_) | Body::Ahead(_) => None,
            Body::Part(patch) => {
                self.engine.cell_of(&before, &mut cell);
                Some((Arc::clone(&self.engine), patch))
            }
        };
        let mut editor = part.as_ref().map(|(engine, patch)| {
            let before = Before {
                slot: &before,
                cell: &cell,
            };
            Editor::new(&engine.values, before, *patch)
        });
        let mut slot = Slot {
            hash: taken.hash,
            form,
            length,
            expires_at_ms,
            key_bytes: key.len() as u32,
            ..Slot::default()
        };
        let (is_object_new, old) = (seen.at.number == 0, seen.at.slot);
        let mut number = seen.at.number;
        let mut took: [Option<Freed>; 3] = [None; 3];
        let result = (|| -> Result<(), Error> {
            let DstoreSession {
                engine,
                claims,
                runs,
                ..
            } = &mut *self;
            let grow = Grow {
                dipper: &engine.dipper,
                machine: &engine.machine,
                memory: &engine.memory,
                cow: engine.cow.as_ref(),
            };
            let _alone = engine.alone();
            if is_object_new {
                number = engine.room.take_slot(claims, &grow)?;
                took[0] = Some(Freed::Slot(number));
                slot.key_cell = engine.room.take_cell(claims, &grow, key.len())?;
                took[1] = Some(Freed::Cell {
                    first: slot.key_cell,
                    grains: grains(key.len()),
                });
            } else {
                slot.key_cell = old.key_cell;
            }
            let bytes = geometry.cell_bytes(form, length);
            if bytes > 0 {
                let before = match is_object_new {
                    true => 0,
                    false => grains(geometry.cell_bytes(old.form, old.length)),
                };
                // A cell of the same size is changed in place: the operation has all of it.
                slot.body = match before == grains(bytes) {
                    true => old.body,
                    false => {
                        let first = engine.room.take_cell(claims, &grow, bytes)?;
                        took[2] = Some(Freed::Cell {
                            first,
                            grains: grains(bytes),
                        });
                        first
                    }
                };
            }
            let blocks = match &editor {
                None => engine.values.count(form, length),
                Some(editor) => editor.blocks_to_write(),
            };
            if blocks > 0 {
                engine
                    .room
                    .take_blocks(claims, &engine.values.blocks, blocks, runs)?;
            }
            Ok(())
        })();
        let result = result.and_then(|()| match (body, &mut editor) {
            (_, Some(editor)) => self.fill_part(&mut slot, editor, runs),
            (Body::Whole(value) | Body::Ahead(value), None) => self.fill(&mut slot, value, runs),
            (Body::Part(_), None) => unreachable!("a part is changed without an editor"),
        });
        if let Err(error) = result {
            took.into_iter()
                .flatten()
                .for_each(|one| self.engine.room.give_back(one));
            self.drop_runs(runs);
            return Err(error);
        }
        // A slot that was used before has a greater LSN than its new object's stripe may know of.
        let stripes = &self.engine.stripes;
        if is_object_new {
            let (before, _) = self.engine.memory.slot(number);
            if before.lsn > stripes.version(taken.stripe) {
                stripes.raise(taken.stripe, before.lsn);
            }
        }
        slot.lsn = stripes.next_version(taken.stripe);
        Ok(New {
            number,
            slot,
            has_key: is_object_new,
        })
    }

    /// Stages a value in the runs from `from` on.
    fn fill(&mut self, slot: &mut Slot, value: &[u8], from: usize) -> Result<(), Error> {
        let DstoreSession {
            engine,
            staged,
            runs,
            cell,
            ..
        } = self;
        cell.clear();
        if slot.form == 0 {
            cell.extend_from_slice(value);
            slot.sum = engine.values.cell_sum(cell);
            return Ok(());
        }
        let numbers = runs[from..]
            .iter()
            .flat_map(|&(first, count)| first..first + u64::from(count));
        let begun = steps::begin();
        let new = engine.values.stage(staged, value, numbers, cell)?;
        begun.end(Step::Stage);
        assert!(new.form == slot.form, "a value is staged in another form");
        if slot.form == 1 {
            let BlockAt { number, sum } = new.block;
            (slot.body, slot.sum) = (number, sum);
        } else {
            slot.sum = engine.values.cell_sum(cell);
        }
        Ok(())
    }

    /// Stages the changed blocks of a value in the runs from `from` on, and gives back what is left of these.
    fn fill_part(
        &mut self,
        slot: &mut Slot,
        editor: &mut Editor<'_>,
        from: usize,
    ) -> Result<(), Error> {
        let DstoreSession {
            engine,
            staged,
            runs,
            cell,
            freed,
            ..
        } = self;
        let all = runs[from..].iter().copied();
        let numbers: Vec<u64> = all
            .flat_map(|(first, count)| first..first + u64::from(count))
            .collect();
        let mut left = numbers.iter().copied();
        cell.clear();
        editor.build(staged, &mut left, cell)?;
        slot.sum = engine.values.cell_sum(cell);
        // A map that cannot be read hides blocks: they are free again after the next start.
        let mut blocks = Vec::new();
        let _hidden_until_restart = editor.freed(&mut blocks);
        freed.append(&mut blocks);
        let used = numbers.len() - left.len();
        runs.truncate(from);
        runs.extend(numbers[..used].iter().map(|number| (*number, 1)));
        for number in left {
            engine.room.give_back(Freed::Blocks {
                first: number,
                count: 1,
            });
        }
        Ok(())
    }

    /// Notes the blocks of an object's old state.
    fn note_freed_blocks(&mut self, old: &Slot) {
        let DstoreSession { engine, freed, .. } = self;
        if old.form <= 1 {
            let (first, count) = (old.body, 1);
            freed.extend((old.form == 1).then_some(Freed::Blocks { first, count }));
            return;
        }
        let (mut cell, mut blocks) = (Vec::new(), Vec::new());
        engine.cell_of(old, &mut cell);
        let walked = engine.values.walk(old, &cell, &mut |block, _| {
            edit::push(&mut blocks, block.number);
            Ok(())
        });
        // As in `fill_part`.
        let _hidden_until_restart = walked;
        freed.append(&mut blocks);
    }

    /// Notes what an object's old state has and its new one has not, except for blocks.
    fn note_freed(&mut self, number: u64, old: &Slot, new: &Slot) {
        let engine = &self.engine;
        let freed = &mut self.freed;
        let cell_bytes = engine.geometry.cell_bytes(old.form, old.length);
        if cell_bytes > 0 && (new.is_dead || new.body != old.body || new.form == 1) {
            freed.push(Freed::Cell {
                first: old.body,
                grains: grains(cell_bytes),
            });
        }
        if new.is_dead {
            freed.push(Freed::Cell {
                first: old.key_cell,
                grains: grains(old.key_bytes as usize),
            });
            freed.push(Freed::Slot(number));
        }
    }

    /// Gives back the blocks of runs that no record names.
    pub(super) fn drop_runs(&mut self, from: usize) {
        for (first, count) in self.runs.drain(from..) {
            self.engine.room.give_back(Freed::Blocks { first, count });
        }
    }

    /// Gives back what was taken for prepared writes that will not happen.
    pub(super) fn abandon(&mut self, prepared: &[Pending]) {
        self.staged.forget();
        prepared.iter().for_each(|one| self.undo(one));
        self.drop_runs(0);
        self.freed.clear();
        self.operations.clear();
    }

    /// Gives back slot and cells of a prepared write.
    fn undo(&mut self, one: &Pending) {
        let (room, slot) = (&self.engine.room, &one.slot);
        if one.old.is_none() {
            room.give_back(Freed::Cell {
                first: slot.key_cell,
                grains: grains(slot.key_bytes as usize),
            });
            room.give_back(Freed::Slot(one.number));
        }
        let bytes = match slot.is_dead {
            true => 0,
            false => self.engine.geometry.cell_bytes(slot.form, slot.length),
        };
        let is_own = one
            .old
            .is_none_or(|old| old.body != slot.body || old.form == 1);
        if bytes > 0 && is_own {
            room.give_back(Freed::Cell {
                first: slot.body,
                grains: grains(bytes),
            });
        }
    }
}
