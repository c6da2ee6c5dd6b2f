//! The back: the persistent hash table, whose objects are in the heap (section 2.2).
//!
//! It has the shape of the front ([`Table`]). As in the paper, places are offsets, and every change is part
//! of a transaction. An object never changes: a newer state of a key is a new object in the same slot.
//!
//! Readers take no lock. Gleaners lock rows of buckets, and those locks are in DRAM (B10).

pub(super) mod root;

use super::back_hint::BackHint;
use super::layout::padded;
use super::layout::{Geometry, HEAP_OWNER, OBJECT_HEAD, ObjectHead};
use super::table::{
    Array, Editor, LINE, LINK_AT, Memory, Place, Table, sealed, slot_word, unsealed,
};
use crate::concurrency::seam::publishes;
use crate::concurrency::stripes::Backoff;
use crate::engine::damage::Damage;
use crate::engine::damage::tolerate;
use crate::engine::halt::Halt;
use crate::engine::persist_on_read::ReadFlusher;
use crate::error::{Error, corrupt};
use crate::heap::{Claim, Heap, Redo, Txn};
use everdram_pm::{Flushed, Lane, Pool};
use root::{ROOT_WORDS, Root};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Bytes of an object that are read at once, before its length is known.
const GLANCE: u64 = 256;

impl Memory for Back {
    type Damage = Error;

    #[inline]
    fn line(&self, at: u64) -> Result<[u64; 8], Error> {
        unsealed(self.pool.secret(), at, self.words(at))
            .ok_or_else(|| corrupt(at, "a bucket of the back table is damaged"))
    }

    fn follow(&self, link: u64) -> Result<(), Error> {
        if self.heap.is_published(link, LINE) {
            return Ok(());
        }
        let what = "a bucket of the back table links to a line that the heap says is free";
        self.doubt_books(corrupt(link, what))
    }

    fn circle(&self, at: u64) -> Error {
        corrupt(at, "the lines of a bucket of the back table form a cycle")
    }

    fn prefetch(&self, at: u64) {
        self.pool.region().prefetch::<1>(at);
    }
}

/// See the module text.
pub(super) struct Back {
    pub(super) pool: Arc<Pool>,
    pub(super) heap: Heap,
    pub(super) table: Table,
    /// Locks, each for a range of buckets.
    rows: Box<[AtomicBool]>,
    /// Approximate number of objects in the table.
    pub(super) objects: AtomicI64,
    /// The heap knows which objects the table has; in `hikv-ht` it does not.
    pub(super) has_books: bool,
    /// Why the engine takes no more writes, if it has halted; rows may stay locked for ever then.
    pub(super) halted: Halt,
    /// The table is new and empty.
    pub(super) is_new: bool,
    /// The damage found, if the pool is being salvaged.
    pub(super) damage: Option<Arc<Damage>>,
    /// The pool is being salvaged and its root is damaged: this table is empty.
    pub(super) has_lost_table: bool,
    /// All damage has been noted.
    pub(super) is_known: AtomicBool,
}

impl Back {
    /// Opens the heap and the table; makes the table of a new pool. Transactions have been recovered before.
    pub(super) fn open(
        pool: &Arc<Pool>,
        geometry: &Geometry,
        sizes: [u64; 2],
        found: &mut ReadFlusher,
        redo: &Redo,
        txn: &mut Txn,
        damage: Option<&Arc<Damage>>,
    ) -> Result<Back, Error> {
        let heap = Heap::open(
            Arc::clone(pool),
            found,
            HEAP_OWNER,
            geometry.chunk_lines,
            sizes,
            |error| tolerate(damage, error),
        )?;
        let mut back = Back {
            pool: Arc::clone(pool),
            heap,
            table: Table::new(Array::NONE, Array::NONE, 0),
            rows: (0..1_usize << geometry.depth.min(13))
                .map(|_| AtomicBool::new(false))
                .collect(),
            objects: AtomicI64::new(0),
            has_books: true,
            halted: Halt::default(),
            is_new: false,
            damage: damage.cloned(),
            has_lost_table: false,
            is_known: AtomicBool::new(false),
        };
        let words = ROOT_WORDS.map(|at| pool.region().load_word(at));
        if words == [0; 4] && !redo.has_run() {
            back.is_new = true;
            back.make_table(geometry.depth, &mut found.lane, txn)?;
            return Ok(back);
        }
        match back.find_table(geometry, words) {
            Ok(table) => back.table = table,
            Err(error) => {
                tolerate(damage, error)?;
                // Salvage finds the objects in the heap.
                back.has_lost_table = true;
                back.make_table(1, &mut found.lane, txn)?;
            }
        }
        Ok(back)
    }

    fn make_table(&mut self, depth: u32, lane: &mut Lane, txn: &mut Txn) -> Result<(), Error> {
        let array = self.array(depth, lane)?;
        let mut lines = Vec::with_capacity(64 * LINE as usize);
        let mut flushed = None;
        for bucket in (array.at()..array.at() + array.bytes()).step_by(LINE as usize) {
            lines.extend_from_slice(&self.sealed_bytes(bucket, [0; 8]));
            if lines.len() == lines.capacity() || bucket + LINE == array.at() + array.bytes() {
                flushed = Some(lane.stream(bucket + LINE - lines.len() as u64, &lines));
                lines.clear();
            }
        }
        self.heap.publish(txn, array.at(), array.bytes());
        self.set_root(txn, array, Array::NONE, 0);
        txn.commit(lane, flushed);
        self.table = Table::new(array, Array::NONE, 0);
        Ok(())
    }

    /// A new array, which nothing refers to yet. Readers access only buckets that have been filled.
    fn array(&self, depth: u32, lane: &mut Lane) -> Result<Array, Error> {
        let mut claim = None;
        let at = self.heap.take(lane, &mut claim, LINE << depth);
        self.heap.let_go(&mut claim);
        Ok(Array::new(at?, depth))
    }

    fn set_root(&self, txn: &mut Txn, current: Array, old: Array, done: u64) {
        let words = Root { current, old, done }.to_words(self.pool.secret());
        for (at, word) in ROOT_WORDS.into_iter().zip(words) {
            txn.set(at, word);
        }
    }

    /// Begins to double the array.
    pub(super) fn start_growth(&self, lane: &mut Lane, txn: &mut Txn) -> Result<(), Error> {
        let old = self.table.current();
        let array = self.array(old.depth() + 1, lane)?;
        self.heap.publish(txn, array.at(), array.bytes());
        self.set_root(txn, array, old, 0);
        txn.commit(lane, None);
        self.table.start(array);
        Ok(())
    }

    /// Removes the old array, once all buckets have moved. The caller gives it back when no reader can access
    /// it.
    pub(super) fn finish_growth(&self, lane: &mut Lane, txn: &mut Txn, old: Array) {
        self.heap.retract(txn, old.at(), old.bytes());
        self.set_root(txn, self.table.current(), Array::NONE, 0);
        txn.commit(lane, None);
        self.table.finish();
    }

    /// Moves the next bucket in a transaction of its own; the caller holds the row. Lines of the chain go to
    /// `dropped`.
    pub(super) fn move_bucket(
        &self,
        edits: &mut Edits<'_>,
        number: u64,
        dropped: &mut Vec<u64>,
    ) -> Result<(), Error> {
        let from = dropped.len();
        if self.table.lines(self, number)? * 2 + 8 > edits.txn.room() {
            return Err(Error::NoSpace(
                "a bucket of the back table is longer than a transaction".into(),
            ));
        }
        let Some((old, _)) = self.table.moving() else {
            panic!("a bucket is moved, and the table is not growing");
        };
        let hash_of = |at| {
            let head = self.read_head(at, &mut Vec::new())?;
            match head.hash >> (64 - old.depth()) == number {
                true => Ok(head.hash),
                false => Err(corrupt(
                    at,
                    "an object of the back table is in the wrong bucket",
                )),
            }
        };
        let split = self.table.split(self, edits, number, hash_of, dropped);
        if let Err(error) = split {
            // Nothing of the move is visible. The next attempt fills the new buckets again.
            edits.fence();
            edits.txn.forget();
            return Err(error);
        }
        for line in &dropped[from..] {
            self.heap.retract(edits.txn, *line, LINE);
        }
        self.set_root(edits.txn, self.table.current(), old, number + 1);
        edits.commit();
        self.table.moved();
        Ok(())
    }

    fn words(&self, at: u64) -> [u64; 8] {
        let mut bytes = [0; LINE as usize];
        if at.is_multiple_of(LINE) && self.pool.region().contains(at, LINE) {
            self.pool.region().load(at, &mut bytes);
        }
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }

    fn sealed_bytes(&self, at: u64, words: [u64; 8]) -> [u8; LINE as usize] {
        let mut bytes = [0; LINE as usize];
        let words = sealed(self.pool.secret(), at, words);
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        bytes
    }

    /// Stages the change of a slot or a link. The caller holds the row and has read the line, and the
    /// transaction has changed nothing else in it.
    pub(super) fn change(&self, txn: &mut Txn, at: u64, word: u64) {
        let (check_at, check) = self.check_with(at, word);
        if at != check_at {
            txn.set(at, word);
        }
        txn.set(check_at, check);
    }

    /// As [`Back::change`], at once and not atomically; durable with the next fence.
    pub(super) fn change_in_place(&self, lane: &mut Lane, at: u64, word: u64) -> Flushed {
        let (check_at, check) = self.check_with(at, word);
        let changed = lane.store_word(at, word);
        let checked = lane.store_word(check_at, check);
        let flushed = lane.flush(changed);
        flushed.and(lane.flush(checked))
    }

    /// The last word of a line, and where it is, after a word of the line has become `word`.
    fn check_with(&self, at: u64, word: u64) -> (u64, u64) {
        let line_at = at & !(LINE - 1);
        let mut words = self.seen_words(line_at);
        words[((at - line_at) / 8) as usize] = word;
        let words = sealed(self.pool.secret(), line_at, words);
        (line_at + LINK_AT, words[(LINK_AT / 8) as usize])
    }

    /// Whether the slot of a hint still has the hint's object, in a line that verifies. The caller holds the
    /// row, and the line should be in the caches ([`Back::fetch`]).
    #[inline]
    pub(super) fn has(&self, hash: u64, hint: &BackHint) -> bool {
        let line_at = hint.slot & !(LINE - 1);
        let words = self.seen_words(line_at);
        let slot = words[((hint.slot - line_at) / 8) as usize];
        slot == slot_word(hash, hint.object)
            && unsealed(self.pool.secret(), line_at, words).is_some()
    }

    /// Fetches the lines of these slots, which are going to be changed.
    pub(super) fn fetch(&self, slots: &[u64]) {
        self.pool.region().fetch_each_to_write(slots);
    }

    /// The words of a line that has been read, and is in the caches.
    #[inline]
    fn seen_words(&self, line_at: u64) -> [u64; 8] {
        std::array::from_fn(|nth| self.pool.region().load_word(line_at + nth as u64 * 8))
    }

    /// Runs `look` without a lock; if it reports damage, repeats it with the row locked. An unlocked read can
    /// see a bucket that is half updated.
    #[inline]
    fn at_rest<T>(
        &self,
        hash: u64,
        mut look: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match look() {
            Err(Error::Corrupt { .. }) => self.locked(hash, look),
            seen => seen,
        }
    }

    #[cold]
    fn locked<T>(&self, hash: u64, mut look: impl FnMut() -> T) -> T {
        let row = self.row(hash);
        let mut backoff = Backoff::new();
        while !self.try_lock(row) {
            if self.halted.is_set() {
                return look();
            }
            backoff.wait();
        }
        let seen = look();
        self.unlock(row);
        seen
    }

    /// The row of a hash.
    pub(super) fn row(&self, hash: u64) -> usize {
        (hash >> (64 - self.rows.len().ilog2())) as usize
    }

    pub(super) fn try_lock(&self, row: usize) -> bool {
        let row = &self.rows[row];
        !row.load(Ordering::Relaxed) && !row.swap(true, Ordering::Acquire)
    }

    pub(super) fn is_locked(&self, row: usize) -> bool {
        self.rows[row].load(Ordering::Relaxed)
    }

    pub(super) fn unlock(&self, row: usize) {
        publishes!();
        assert!(
            self.is_locked(row),
            "a row of the back is unlocked that was not locked"
        );
        self.rows[row].store(false, Ordering::Release);
    }

    /// Reads the head of the object at `at`; leaves the bytes read in `bytes`.
    #[inline]
    fn read_head(&self, at: u64, bytes: &mut Vec<u8>) -> Result<ObjectHead, Error> {
        let region = self.pool.region();
        let readable = region.len().saturating_sub(at).min(GLANCE);
        bytes.clear();
        if at.is_multiple_of(LINE) && readable >= LINE {
            region.load_behind(at, readable, bytes);
        }
        match ObjectHead::read(self.pool.secret(), at, bytes) {
            Some(head) if region.contains(at, head.bytes()) => Ok(head),
            _ => Err(corrupt(at, "an object of the back table is damaged")),
        }
    }

    /// As [`Back::read_head`], if the object is of this key.
    #[inline]
    fn object_of(
        &self,
        at: u64,
        hash: u64,
        key: &[u8],
        bytes: &mut Vec<u8>,
    ) -> Result<Option<ObjectHead>, Error> {
        let head = self.read_head(at, bytes)?;
        if head.hash != hash {
            return Ok(None);
        }
        self.read_up_to(at, head.value_at(), bytes);
        let rest = bytes.get(OBJECT_HEAD as usize..).unwrap_or(&[]);
        let found = rest.get(..head.key_bytes as usize).unwrap_or(&[]);
        if found == key {
            return Ok(Some(head));
        }
        self.is_hash_of(&head, at, found).map(|()| None)
    }

    /// Verifies a key against the hash in its object's head.
    fn is_hash_of(&self, head: &ObjectHead, at: u64, key: &[u8]) -> Result<(), Error> {
        match self.pool.secret().sum(key) == head.hash {
            true => Ok(()),
            false => Err(corrupt(at, "the key of an object is damaged")),
        }
    }

    /// Reads on until `bytes` holds the first `wanted` bytes of the object.
    fn read_up_to(&self, at: u64, wanted: u64, bytes: &mut Vec<u8>) {
        let have = bytes.len() as u64;
        if have < wanted {
            self.pool
                .region()
                .load_behind(at + have, wanted - have, bytes);
        }
    }

    /// The key's object, for readers under a pin: where it is, and its head.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    #[inline]
    pub(super) fn find(
        &self,
        hash: u64,
        key: &[u8],
        bytes: &mut Vec<u8>,
    ) -> Result<Option<(u64, ObjectHead)>, Error> {
        self.at_rest(hash, || {
            self.table.find(self, hash, |at| {
                let head = self.object_of(at, hash, key, bytes)?;
                Ok(head.map(|head| (at, head)))
            })
        })
    }

    /// The key's object and its place in the table, for the holder of the row.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path. On success the heap has the object as used, and the caller may
    /// remove it.
    pub(super) fn locate(
        &self,
        hash: u64,
        key: &[u8],
        bytes: &mut Vec<u8>,
    ) -> Result<(Place, Option<ObjectHead>), Error> {
        let mut found = None;
        let place = self.table.locate(self, hash, |at| {
            found = self.object_of(at, hash, key, bytes)?;
            Ok(found.is_some())
        })?;
        if let Some(head) = &found
            && self.has_books
            && !self.heap.is_published(place.object, head.bytes())
        {
            let what = "the table has an object that the heap says is free";
            return Err(corrupt(place.object, what));
        }
        Ok((place, found))
    }

    /// The head of an object that the table or a log record names; appends its key to `key`.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(super) fn head(&self, at: u64, key: &mut Vec<u8>) -> Result<ObjectHead, Error> {
        let head = self.read_head(at, &mut Vec::new())?;
        let before = key.len();
        let region = self.pool.region();
        region.load_behind(at + OBJECT_HEAD, padded(head.key_bytes), key);
        key.truncate(before + head.key_bytes as usize);
        self.is_hash_of(&head, at, &key[before..])?;
        Ok(head)
    }

    /// Appends the value of a found object to `into`, once it verifies. `bytes`: what [`Back::find`] left
    /// there.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path; `into` is as it was.
    #[inline]
    pub(super) fn value(
        &self,
        at: u64,
        head: &ObjectHead,
        bytes: &mut Vec<u8>,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.read_up_to(at, head.checked_bytes(), bytes);
        let object = bytes.get(..head.checked_bytes() as usize).unwrap_or(&[]);
        if ObjectHead::check_of(self.pool.secret(), at, object) != head.check {
            return Err(corrupt(at, "the checksum of an object does not match"));
        }
        let value = object.get(head.value_at() as usize..).unwrap_or(&[]);
        into.extend_from_slice(value.get(..head.value_bytes as usize).unwrap_or(&[]));
        Ok(())
    }

    /// As [`Back::value`], of an object of which only the offset is known.
    ///
    /// # Errors
    /// As [`Back::value`].
    pub(super) fn value_at(
        &self,
        at: u64,
        bytes: &mut Vec<u8>,
        into: &mut Vec<u8>,
    ) -> Result<ObjectHead, Error> {
        let mut key = Vec::new();
        let head = self.head(at, &mut key)?;
        bytes.clear();
        self.value(at, &head, bytes, into)?;
        Ok(head)
    }

    /// Writes an object that nothing refers to yet; returns where it is.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`].
    pub(super) fn write(
        &self,
        head: &ObjectHead,
        key: &[u8],
        value: &[u8],
        lane: &mut Lane,
        claim: &mut Option<Claim>,
        bytes: &mut Vec<u8>,
    ) -> Result<(u64, Flushed), Error> {
        let at = self.heap.take(lane, claim, head.bytes())?;
        head.write(self.pool.secret(), at, key, value, bytes);
        let flushed = lane.stream(at, bytes);
        Ok((at, flushed))
    }

    /// Calls `each` with the offset of every object of the bucket at `cursor`; see [`Table::visit`].
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(super) fn visit(&self, cursor: u64, each: impl FnMut(u64)) -> Result<u64, Error> {
        let mut objects = Vec::new();
        let next = self.at_rest(cursor, || {
            objects.clear();
            self.table.visit(self, cursor, |at| objects.push(at))
        })?;
        objects.into_iter().for_each(each);
        Ok(next)
    }

    /// Whether there are more objects than the array has room for without long chains.
    pub(super) fn is_crowded(&self) -> bool {
        let objects = self.objects.load(Ordering::Relaxed).max(0) as u64;
        objects > 5 << self.table.current().depth()
    }
}

/// Changes the back in a transaction.
pub(super) struct Edits<'a> {
    pub(super) back: &'a Back,
    pub(super) lane: &'a mut Lane,
    pub(super) txn: &'a mut Txn,
    pub(super) claim: &'a mut Option<Claim>,
    /// Flushed bytes that the transaction refers to, outside its record.
    pub(super) flushed: &'a mut Option<Flushed>,
}

impl Edits<'_> {
    /// Adds flushed bytes that the commit fences first.
    pub(super) fn wrote(&mut self, flushed: Flushed) {
        flushed.join(self.flushed);
    }

    /// Fences the flushed bytes, then commits the transaction.
    pub(super) fn commit(&mut self) {
        let flushed = self.flushed.take();
        self.txn.commit(self.lane, flushed);
    }

    /// Fences lines of an abandoned transaction, before they are given back. Without this, on files, this
    /// lane's next fence would log them, over what another lane has written there since.
    pub(super) fn fence(&mut self) {
        if let Some(flushed) = self.flushed.take() {
            let _ordered = self.lane.fence(flushed);
        }
    }
}

impl Editor for Edits<'_> {
    type Error = Error;

    fn set(&mut self, at: u64, word: u64) {
        self.back.change(self.txn, at, word);
    }

    fn line(&mut self, words: [u64; 8]) -> Result<u64, Error> {
        let at = self.back.heap.take(self.lane, self.claim, LINE)?;
        self.back.heap.publish(self.txn, at, LINE);
        self.fill(at, words);
        Ok(at)
    }

    fn drop_line(&mut self, at: u64) {
        self.fence();
        self.back.heap.give_back(self.lane, at, LINE);
    }

    fn fill(&mut self, at: u64, words: [u64; 8]) {
        let bytes = self.back.sealed_bytes(at, words);
        let flushed = self.lane.stream(at, &bytes);
        self.wrote(flushed);
    }
}
