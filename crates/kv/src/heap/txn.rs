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
//! A commit takes four steps, with a fence after each:
//!
//! 1. everything written for it elsewhere (new objects) is durable;
//! 2. its record is written; from here on recovery applies it;
//! 3. its words are changed in place;
//! 4. the record is retired.
//!
//! Recovery applies a record again that verifies and is not retired; applying it twice changes nothing. It
//! invalidates any other record by its check, which is never 0. Otherwise the next torn record could supply
//! the very bytes that this one lacks.
//!
//! The committing thread holds locks on the words it sets until the commit is over, so no other transaction
//! has changed a word that a record still in force sets. Bits are raised and lowered without a lock: two
//! transactions in flight never name the same bit, and each bit has its own history. An area is reused only
//! after its record was retired (B12).

use crate::engine::persist_on_read::ReadFlusher;
use crate::error::{Error, corrupt};
use everdram_pm::{Flushed, LINE, Lane, Pool, ROOT_AT, Secret};
use parking_lot::Mutex;
use std::sync::Arc;

/// Bytes before the edits of a record.
const HEAD: usize = 24;
/// Bytes of an edit.
const EDIT: usize = 16;

// What to do with the operand: the low bits of the place, which is a multiple of 8.
const SET: u64 = 0;
const RAISE: u64 = 1;
const LOWER: u64 = 2;

/// Upper bound of numbers.
const NUMBER_END: u64 = 1 << 48;
const SALT: u64 = 0x74;

const _: () = {
    // check, number, count; place, operand
    assert!(HEAD == 3 * 8 && EDIT == 2 * 8);
    // The operation is in the low bits of a place, which is a multiple of 8.
    assert!(SET < 8 && RAISE < 8 && LOWER < 8 && SET != RAISE && RAISE != LOWER && SET != LOWER);
    assert!(
        NUMBER_END == 1 << 48,
        "a retired word has 16 bits of a check"
    );
};

/// The word with the number up to which an area's transactions are retired. It has a check: without it,
/// damage could put a record in force again, which undoes later changes.
fn retired_word(secret: &Secret, area: u64, number: u64) -> u64 {
    number | secret.sum_words([area, number, SALT]) >> 48 << 48
}

/// The areas that record transactions.
pub(crate) struct Redo {
    pool: Arc<Pool>,
    at: u64,
    area_bytes: u64,
    count: u32,
    /// Areas without a [`Txn`].
    free: Mutex<Vec<u32>>,
}

impl Redo {
    /// `areas` areas of `area_bytes` bytes each, from `at` on; all multiples of 64. New areas are zero and
    /// must be formatted.
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

    /// Most edits of a transaction in an area of `area_bytes` bytes.
    pub(crate) fn edits(area_bytes: u64) -> usize {
        most_edits(area_bytes)
    }

    fn area(&self, number: u32) -> u64 {
        self.at + u64::from(number) * self.area_bytes
    }

    /// Whether no transaction was ever committed here; the areas may not even be formatted. Call it while no
    /// `Txn` exists.
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

    /// Formats zeroed areas; durable on return.
    pub(crate) fn format(&self, lane: &mut Lane) {
        for area in self.areas() {
            retire(lane, area, 0);
        }
    }

    fn areas(&self) -> impl Iterator<Item = u64> {
        (0..self.count).map(|number| self.area(number))
    }

    /// The number up to which an area's transactions are retired; `None` if the word is damaged.
    fn retired(&self, area: u64) -> Option<u64> {
        let word = self.pool.region().load_word(area);
        let number = word % NUMBER_END;
        (retired_word(self.pool.secret(), area, number) == word).then_some(number)
    }

    /// Completes committed transactions; the caller settles `found` afterwards. Runs before anything else
    /// reads the pool, and can be repeated at any point.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path: a record names impossible places. If `tolerate` accepts that,
    /// the area becomes as new, and its transaction stays half applied.
    pub(crate) fn recover(
        &self,
        found: &mut ReadFlusher,
        tolerate: impl Fn(Error) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // A killed process may have left a retirement in the caches only. If that were lost after other
        // transactions had changed the same words, the record would be in force again.
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
        // A transaction begins only after the one before it was retired.
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
                "a transaction's record names places outside the pool",
            ));
        }
        // A killed process may have left the record in the caches only. Without this flush, a power loss
        // could keep a part of its changes and lose the record.
        let bytes = LINE + (HEAD + edits.len() * EDIT) as u64;
        found.keep(area, bytes.next_multiple_of(LINE));
        found.settle();
        apply(&mut found.lane, &edits);
        retire(&mut found.lane, area, number);
        Ok(())
    }

    /// The record in force in an area whose transactions up to `retired` are retired: its number and its
    /// edits.
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

    /// A transaction area for one thread. `None`: all areas are taken.
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

/// A transaction under construction.
pub(crate) struct Txn {
    redo: Arc<Redo>,
    area: u32,
    /// Number of the last committed transaction.
    number: u64,
    edits: Vec<Edit>,
    record: Vec<u8>,
}

impl Txn {
    /// Whether it has no edits since the last commit or [`Txn::forget`].
    pub(crate) fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// How many more words it can name.
    pub(crate) fn room(&self) -> usize {
        most_edits(self.redo.area_bytes) - self.edits.len()
    }

    /// Sets a word; the caller holds a lock on it until the commit is over.
    #[inline]
    pub(crate) fn set(&mut self, at: u64, word: u64) {
        self.edit(at | SET, word);
    }

    /// Sets bits that no other transaction changes.
    #[inline]
    pub(crate) fn raise(&mut self, at: u64, bits: u64) {
        self.edit(at | RAISE, bits);
    }

    /// Clears bits that no other transaction changes.
    #[inline]
    pub(crate) fn lower(&mut self, at: u64, bits: u64) {
        self.edit(at | LOWER, bits);
    }

    #[inline]
    fn edit(&mut self, place: u64, operand: u64) {
        // Recovery would refuse such a place.
        debug_assert!(
            place & !7 >= ROOT_AT && self.redo.pool.region().contains(place & !7, 8),
            "a transaction names a place outside the pool"
        );
        let raises = |edit: &Edit| edit.place == place && edit.operand & operand != 0;
        debug_assert!(
            place % 8 != RAISE || !self.edits.iter().any(raises),
            "a transaction publishes lines twice"
        );
        // Objects made one after another are neighbours, and so are their bits.
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
        assert!(self.room() > 0, "a transaction has too many edits");
        self.edits.push(Edit { place, operand });
    }

    /// Drops the edits.
    pub(crate) fn forget(&mut self) {
        self.edits.clear();
    }

    /// Applies the edits atomically, together with the writes behind `flushed`. On return they are applied.
    /// Where fences make writes durable, they are durable from the fence after the record on; on files they
    /// are ordered like everything else.
    pub(crate) fn commit(&mut self, lane: &mut Lane, flushed: Option<Flushed>) {
        if let Some(flushed) = flushed {
            // The record vouches for objects that it does not contain, so they come first.
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
            "a transaction's record exceeds its area"
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
            "a transaction is dropped with edits"
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
        // Edits of one line (a slot and its line's check, the words of the root) share a flush.
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
