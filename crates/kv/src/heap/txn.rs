//! Failure-atomic transactions by redo logging (Bullet, section 3): several words of a pool, all changed or
//! none.
//!
//! ```text
//! area of one Txn    +---------------------+     +-------+--------+-------+-----------------+- - -
//!                    | retired: the number |     | check | number | count | place | operand | ...
//!                    +---------------------+     +-------+--------+-------+-----------------+- - -
//!                    a line                      whole lines; the record of the transaction
//! retired            0..48 the number | 48..64 check
//! ```
//!
//! A commit runs in four steps, with a fence behind each: what was written for it elsewhere (new objects) is
//! durable; its record is written, and from here on recovery does what it says; its words are changed where
//! they are; the record is retired. Recovery applies a record that verifies and is not retired once more,
//! which changes nothing if it was applied. It ends any other one by its check, which is never 0: otherwise
//! the next one, torn, too, could be just what it lacks.
//!
//! Whoever commits holds locks on the words it sets until the commit is over, so no other transaction has
//! changed a word that a record still in force sets. Bits are raised and lowered under no lock: two
//! transactions in flight never name the same bit, and a bit has its own history. The area is used again only
//! after the record in it was retired (B12).

use crate::engine::persist_on_read::ReadFlusher;
use crate::error::{Error, corrupt};
use everdram_pm::{Flushed, LINE, Lane, Pool, ROOT_AT, Secret};
use parking_lot::Mutex;
use std::sync::Arc;

/// Bytes in front of the edits of a record.
const HEAD: usize = 24;
/// Bytes of an edit.
const EDIT: usize = 16;

// What is done with the operand, in the low bits of the place, which is a multiple of 8.
const SET: u64 = 0;
const RAISE: u64 = 1;
const LOWER: u64 = 2;

/// Numbers are less than this.
const NUMBER_END: u64 = 1 << 48;
const SALT: u64 = 0x74;

const _: () = {
    // check, number, count; place, operand
    assert!(HEAD == 3 * 8 && EDIT == 2 * 8);
    // What is done is said in the low bits of a place, which is a multiple of 8.
    assert!(SET < 8 && RAISE < 8 && LOWER < 8 && SET != RAISE && RAISE != LOWER && SET != LOWER);
    assert!(
        NUMBER_END == 1 << 48,
        "a retired word has 16 bits of a check"
    );
};

/// The word that says up to which number an area's transactions are retired. It is checked, since a record
/// that is in force again undoes what others did since.
fn retired_word(secret: &Secret, area: u64, number: u64) -> u64 {
    number | secret.sum_words([area, number, SALT]) >> 48 << 48
}

/// The areas in which transactions are recorded.
pub(crate) struct Redo {
    pool: Arc<Pool>,
    at: u64,
    area_bytes: u64,
    count: u32,
    /// Areas that no [`Txn`] has.
    free: Mutex<Vec<u32>>,
}

impl Redo {
    /// `areas` areas of `area_bytes` bytes each, from `at` on; everything a multiple of 64. New ones are
    /// zero, and to be formatted.
    pub(crate) fn new(pool: Arc<Pool>, at: u64, areas: u32, area_bytes: u64) -> Redo {
        assert!((at | area_bytes).is_multiple_of(LINE) && area_bytes >= 4 * LINE);
        Redo {
            pool,
            at,
            area_bytes,
            count: areas,
            free: Mutex::new((0..areas).rev().collect()),
        }
    }

    /// Edits that a transaction can have whose area has so many bytes.
    pub(crate) fn edits(area_bytes: u64) -> usize {
        most_edits(area_bytes)
    }

    fn area(&self, number: u32) -> u64 {
        self.at + u64::from(number) * self.area_bytes
    }

    /// Whether no transaction was ever committed here, and the areas may not even be formatted. While nobody
    /// has one.
    pub(crate) fn is_blank(&self) -> bool {
        let secret = self.pool.secret();
        self.areas().all(|area| {
            let word = self.pool.region().load_word(area);
            word == 0 || word == retired_word(secret, area, 0)
        })
    }

    /// Whether a transaction was ever committed here.
    pub(crate) fn has_run(&self) -> bool {
        self.areas().any(|area| self.retired(area) != Some(0))
    }

    /// Makes areas of what is zero; durable on return.
    pub(crate) fn format(&self, lane: &mut Lane) {
        for area in self.areas() {
            retire(lane, area, 0);
        }
    }

    fn areas(&self) -> impl Iterator<Item = u64> {
        (0..self.count).map(|number| self.area(number))
    }

    /// The number up to which an area's transactions are retired, if that can be told.
    fn retired(&self, area: u64) -> Option<u64> {
        let word = self.pool.region().load_word(area);
        let number = word % NUMBER_END;
        (retired_word(self.pool.secret(), area, number) == word).then_some(number)
    }

    /// Does what committed transactions left to do; what it finds is to be settled. Before anything else
    /// reads the pool; can be repeated at any point.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path: a record that names places it cannot have. Not if `tolerate` takes it: then the area is as new,
    /// and a transaction that was in the middle stays there.
    pub(crate) fn recover(
        &self,
        found: &mut ReadFlusher,
        tolerate: impl Fn(Error) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // A process that was killed may have left in the caches that a record is retired. If that were lost
        // after others had changed the same words, the record would be in force again.
        for area in self.areas() {
            found.keep(area, LINE);
        }
        for area in self.areas() {
            if let Err(error) = self.recover_area(found, area) {
                tolerate(error)?;
                retire(&mut found.lane, area, 0);
            }
        }
        Ok(())
    }

    fn recover_area(&self, found: &mut ReadFlusher, area: u64) -> Result<(), Error> {
        let damaged = || corrupt(area, "the number of an area's transactions is damaged");
        let retired = self.retired(area).ok_or_else(damaged)?;
        let Some((number, edits)) = self.committed(area, retired) else {
            if self.pool.region().load_word(area + LINE) != 0 {
                let dirty = found.lane.store_word(area + LINE, 0);
                found.keep_stored(dirty);
            }
            return Ok(());
        };
        // The next one is not begun before this one is retired.
        if number != retired + 1 || number == NUMBER_END {
            return Err(damaged());
        }
        let contains = |edit: &Edit| {
            let at = edit.place & !7;
            edit.place % 8 <= LOWER && at >= ROOT_AT && self.pool.region().contains(at, 8)
        };
        if !edits.iter().all(contains) {
            return Err(corrupt(
                area,
                "a transaction's record names places outside of the pool",
            ));
        }
        // A process that was killed may have left the record in the caches; part of what it says must not
        // outlive it.
        let bytes = LINE + (HEAD + edits.len() * EDIT) as u64;
        found.keep(area, bytes.next_multiple_of(LINE));
        found.settle();
        apply(&mut found.lane, &edits);
        retire(&mut found.lane, area, number);
        Ok(())
    }

    /// The record that is in force in an area, where those up to a number are retired: its number and what it
    /// does.
    fn committed(&self, area: u64, retired: u64) -> Option<(u64, Vec<Edit>)> {
        let region = self.pool.region();
        let record = area + LINE;
        let [number, count] = [8, 16].map(|at| region.load_word(record + at));
        if number <= retired || count > most_edits(self.area_bytes) as u64 {
            return None;
        }
        let mut bytes = vec![0; HEAD + count as usize * EDIT];
        region.load(record, &mut bytes);
        let check = self.check(area, bytes.get(8..)?);
        if bytes.first_chunk::<8>() != Some(&check.to_le_bytes()) {
            return None;
        }
        let word = |bytes: &[u8]| {
            bytes
                .first_chunk()
                .map_or(0, |word| u64::from_le_bytes(*word))
        };
        let edits = bytes[HEAD..].chunks_exact(EDIT).map(|edit| Edit {
            place: word(edit),
            operand: word(&edit[8..]),
        });
        Some((number, edits.collect()))
    }

    fn check(&self, area: u64, body: &[u8]) -> u64 {
        let secret = self.pool.secret();
        secret.sum_words([secret.sum(body), area, SALT]).max(1)
    }

    /// Room to commit transactions in, for one thread. `None`: all areas are taken.
    pub(crate) fn txn(self: &Arc<Self>) -> Option<Txn> {
        let number = self.free.lock().pop()?;
        let area = self.area(number);
        Some(Txn {
            number: self.retired(area)?,
            redo: Arc::clone(self),
            area: number,
            edits: Vec::new(),
            record: Vec::new(),
        })
    }
}

fn most_edits(area_bytes: u64) -> usize {
    (area_bytes - LINE) as usize / EDIT - HEAD.div_ceil(EDIT)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edit {
    place: u64,
    operand: u64,
}

/// A transaction being put together.
pub(crate) struct Txn {
    redo: Arc<Redo>,
    area: u32,
    /// Of the transaction committed last.
    number: u64,
    edits: Vec<Edit>,
    record: Vec<u8>,
}

impl Txn {
    /// Whether nothing is put together that was neither committed nor forgotten.
    pub(crate) fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// How many words may still be named.
    pub(crate) fn room(&self) -> usize {
        most_edits(self.redo.area_bytes) - self.edits.len()
    }

    /// Sets a word, on which the caller holds a lock until the commit is over.
    #[inline]
    pub(crate) fn set(&mut self, at: u64, word: u64) {
        self.edit(at | SET, word);
    }

    /// Sets bits that nobody else changes.
    #[inline]
    pub(crate) fn raise(&mut self, at: u64, bits: u64) {
        self.edit(at | RAISE, bits);
    }

    /// Clears bits that nobody else changes.
    #[inline]
    pub(crate) fn lower(&mut self, at: u64, bits: u64) {
        self.edit(at | LOWER, bits);
    }

    #[inline]
    fn edit(&mut self, place: u64, operand: u64) {
        // Where recovery would refuse to go on.
        debug_assert!(
            place & !7 >= ROOT_AT && self.redo.pool.region().contains(place & !7, 8),
            "a transaction names a place outside of the pool"
        );
        let raises = |edit: &Edit| edit.place == place && edit.operand & operand != 0;
        debug_assert!(
            place % 8 != RAISE || !self.edits.iter().any(raises),
            "a transaction publishes lines twice"
        );
        // Objects made one after another lie side by side, and so do their bits.
        if let Some(last) = self
            .edits
            .iter_mut()
            .rev()
            .take(4)
            .find(|edit| edit.place == place)
            && place % 8 != SET
        {
            last.operand |= operand;
            return;
        }
        assert!(self.room() > 0, "a transaction has so many edits at most");
        self.edits.push(Edit { place, operand });
    }

    /// Drops the edits.
    pub(crate) fn forget(&mut self) {
        self.edits.clear();
    }

    /// All or nothing: the edits, and what `flushed` stands for, which was written elsewhere for them.
    /// Durable, where a fence makes it so, from the fence behind the record on; done on return. On files it
    /// is ordered like everything else.
    pub(crate) fn commit(&mut self, lane: &mut Lane, flushed: Option<Flushed>) {
        if let Some(flushed) = flushed {
            // The record vouches for objects that it does not contain.
            let _ordered = lane.fence(flushed);
        }
        if self.edits.is_empty() {
            return;
        }
        self.number += 1;
        let area = self.redo.area(self.area);
        self.record.clear();
        self.record.extend_from_slice(&[0; 8]);
        for word in [self.number, self.edits.len() as u64] {
            self.record.extend_from_slice(&word.to_le_bytes());
        }
        for edit in &self.edits {
            self.record.extend_from_slice(&edit.place.to_le_bytes());
            self.record.extend_from_slice(&edit.operand.to_le_bytes());
        }
        let check = self.redo.check(area, &self.record[8..]);
        self.record[..8].copy_from_slice(&check.to_le_bytes());
        let lines = self.record.len().next_multiple_of(LINE as usize);
        self.record.resize(lines, 0);
        assert!(
            LINE + lines as u64 <= self.redo.area_bytes,
            "a transaction's record runs out of its area"
        );
        let flushed = lane.stream(area + LINE, &self.record);
        let _committed = lane.fence(flushed);
        apply(lane, &self.edits);
        self.edits.clear();
        retire(lane, area, self.number);
    }
}

impl Drop for Txn {
    fn drop(&mut self) {
        debug_assert!(
            self.is_empty() || std::thread::panicking(),
            "a transaction is dropped that was neither committed nor forgotten"
        );
        self.redo.free.lock().push(self.area);
    }
}

fn apply(lane: &mut Lane, edits: &[Edit]) {
    let mut flushed = None;
    for (nth, edit) in edits.iter().enumerate() {
        let (at, kind) = (edit.place & !7, edit.place % 8);
        let dirty = match kind {
            SET => lane.store_word(at, edit.operand),
            _ => loop {
                let old = lane.pool().region().load_word(at);
                let new = match kind {
                    RAISE => old | edit.operand,
                    _ => old & !edit.operand,
                };
                if let Ok(dirty) = lane.exchange_word(at, old, new) {
                    break dirty;
                }
            },
        };
        // A slot and the check of its line, the words of the root: what lies in one line is flushed together.
        let next = edits.get(nth + 1);
        let goes_on =
            |next: &Edit| kind == SET && next.place % 8 == SET && next.place / LINE == at / LINE;
        if !next.is_some_and(goes_on) {
            flushed = Some(lane.flush(dirty));
        }
    }
    if let Some(flushed) = flushed {
        let _ordered = lane.fence(flushed);
    }
}

fn retire(lane: &mut Lane, area: u64, number: u64) {
    let word = retired_word(lane.pool().secret(), area, number);
    let dirty = lane.store_word(area, word);
    let flushed = lane.flush(dirty);
    let _ordered = lane.fence(flushed);
}
