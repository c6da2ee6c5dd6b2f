//! The shape of both hash tables: the volatile front and the persistent back (sections 2.1 and 2.2).
//!
//! A table is an array of buckets, and a bucket is a chain of lines:
//!
//! ```text
//! line       +------+------+------+------+------+------+------+------+
//!            | slot | slot | slot | slot | slot | slot | slot | link |
//!            +------+------+------+------+------+------+------+------+
//! slot       0..42 where the object is, in units of 64 bytes | 42..64 tag: low bits of the hash;   0 = vacant
//! link       6..48 where the chain goes on, a multiple of 64;   0 = it ends; the other bits are a check in a pool ([`sealed`])
//! ```
//!
//! The bucket of a hash is given by its top bits, so the order of buckets is the order of hashes, however
//! large the array is. It grows by doubling, a bucket at a time: bucket `b` becomes `2b` and `2b + 1`, in
//! order, and those below `done` have moved.
//!
//! The table reads DRAM or a pool through [`Memory`] and changes it through an [`Editor`]: DRAM at once, a
//! pool in a transaction.
//!
//! Invariants:
//! - A thread that changes or moves a bucket holds the lock of its row. A row is a number of whole buckets.
//! - A change is one word: a slot, a link, `done`. So readers take no lock: under a pin, an object that they
//!   find stays what it is.
//! - Once a bucket has moved, its old lines do not change any more.

use crate::concurrency::seam::publishes;
use everdram_pm::Secret;
use std::sync::atomic::{AtomicU64, Ordering};

/// Slots of a line.
pub(crate) const SLOTS: usize = 7;
/// Where the link is in a line, in bytes.
pub(crate) const LINK_AT: u64 = SLOTS as u64 * 8;
/// The bits of the last word that are the link.
const LINK_MASK: u64 = (1 << 48) - LINE;
const SALT_LINE: u64 = 0x62;
/// Bytes of a line.
pub(crate) const LINE: u64 = 64;
const TAG_SHIFT: u32 = 42;
const DEPTH_SHIFT: u32 = 56;
/// The array has 2 to the power of this many buckets at most.
pub(crate) const DEPTH_MAX: u32 = 40;

const _: () = {
    assert!(LINK_AT + 8 == LINE && SLOTS == 7 && LINE == everdram_pm::LINE);
    // A link is a multiple of a line and below the 16 bits of its check.
    assert!(LINK_MASK & (LINE - 1) == 0 && LINK_MASK >> 48 == 0);
    // A slot: 42 bits of a place in units of 64 bytes reach 2^48, 22 bits of a tag.
    assert!(TAG_SHIFT == 42 && (1 << TAG_SHIFT) * LINE == 1 << 48);
    assert!(DEPTH_SHIFT < 64 && DEPTH_MAX < 1 << (64 - DEPTH_SHIFT));
};

/// Memory that a table lies in.
pub(crate) trait Memory {
    /// The error of a damaged line. A pool can hold any bytes.
    type Damage;
    /// The words of a line, each at least as new as when the call began; the last word is only the link.
    fn line(&self, at: u64) -> Result<[u64; 8], Self::Damage>;
    /// Whether a link may be followed.
    fn follow(&self, link: u64) -> Result<(), Self::Damage>;
    /// The error of a chain that comes back to a line.
    fn circle(&self, at: u64) -> Self::Damage;
    /// Starts fetching a line.
    fn prefetch(&self, at: u64);
}

/// Takes the changes of a bucket.
pub(crate) trait Editor {
    type Error;
    /// Changes a slot or a link that readers can see.
    fn set(&mut self, at: u64, word: u64);
    /// A new line with these words, which no reader can see yet.
    fn line(&mut self, words: [u64; 8]) -> Result<u64, Self::Error>;
    /// Takes back a line that no reader will see.
    fn drop_line(&mut self, at: u64);
    /// Fills a line of the array that no reader can see yet.
    fn fill(&mut self, at: u64, words: [u64; 8]);
}

/// An array: its offset, a multiple of 64, with its depth in the low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Array(pub(crate) u64);

impl Array {
    pub(crate) const NONE: Array = Array(0);

    /// 2 to the power of `depth` buckets from `at` on.
    pub(crate) fn new(at: u64, depth: u32) -> Array {
        assert!(at.is_multiple_of(LINE) && (1..=DEPTH_MAX).contains(&depth));
        Array(at | u64::from(depth))
    }

    /// The array that a word encodes, if it is one.
    pub(crate) fn parse(word: u64) -> Option<Array> {
        let depth = (word % LINE) as u32;
        (word == 0 || (1..=DEPTH_MAX).contains(&depth)).then_some(Array(word))
    }

    #[inline]
    pub(crate) fn at(self) -> u64 {
        self.0 & !(LINE - 1)
    }

    #[inline]
    pub(crate) fn depth(self) -> u32 {
        (self.0 % LINE) as u32
    }

    /// Bytes of all its buckets.
    pub(crate) fn bytes(self) -> u64 {
        Array::bytes_of(self.depth())
    }

    /// Bytes of 2 to the power of `depth` buckets.
    pub(crate) fn bytes_of(depth: u32) -> u64 {
        LINE << depth
    }

    #[inline]
    fn number(self, hash: u64) -> u64 {
        hash >> (64 - self.depth())
    }

    #[inline]
    fn bucket(self, number: u64) -> u64 {
        self.at() + number * LINE
    }
}

/// A slot's word.
#[inline]
pub(crate) fn slot_word(hash: u64, object: u64) -> u64 {
    debug_assert!(
        object.is_multiple_of(LINE) && object / LINE < 1 << TAG_SHIFT,
        "a slot has no room to say where its object is"
    );
    (object / LINE) | (hash << TAG_SHIFT)
}

/// The object of a slot that is not vacant.
#[inline]
pub(crate) fn object_of(slot: u64) -> u64 {
    (slot & ((1 << TAG_SHIFT) - 1)) * LINE
}

/// A line of a pool with the check in its last word, of which only the link is read. The check covers the
/// whole line, so it also detects a slot that was zeroed or has its old word again.
pub(crate) fn sealed(secret: &Secret, at: u64, mut words: [u64; 8]) -> [u64; 8] {
    words[SLOTS] &= LINK_MASK;
    let mut bytes = [0; LINE as usize + 8];
    let all = words.into_iter().chain([at ^ SALT_LINE]);
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(all) {
        *bytes = word.to_le_bytes();
    }
    words[SLOTS] |= secret.sum(&bytes) & !LINK_MASK;
    words
}

/// The words of a sealed line, as [`Memory::line`] has them; `None`: it is another line, or damaged.
#[inline]
pub(crate) fn unsealed(secret: &Secret, at: u64, words: [u64; 8]) -> Option<[u64; 8]> {
    let mut line = words;
    line[SLOTS] &= LINK_MASK;
    (sealed(secret, at, words) == words).then_some(line)
}

/// A walk through the lines of a bucket.
struct Chain {
    at: u64,
    lines: u64,
    /// Brent's cycle detection: the line visited at the last step whose number is a power of two. Meeting it
    /// again proves a loop.
    mark: u64,
}

impl Chain {
    fn new(at: u64) -> Chain {
        Chain {
            at,
            lines: 0,
            mark: 0,
        }
    }

    /// The next line: where it is, and its words.
    #[inline]
    fn next<M: Memory>(&mut self, memory: &M) -> Result<Option<(u64, [u64; 8])>, M::Damage> {
        let at = self.at;
        if at == 0 {
            return Ok(None);
        }
        if self.lines > 0 {
            if at == self.mark {
                return Err(memory.circle(at));
            }
            memory.follow(at)?;
        }
        let line = memory.line(at)?;
        self.lines += 1;
        if self.lines.is_power_of_two() {
            self.mark = at;
        }
        self.at = line[SLOTS];
        Ok(Some((at, line)))
    }
}

/// What a walk through a key's bucket found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// The key's slot, and the object in it. 0: it has none.
    pub(crate) slot: u64,
    pub(crate) object: u64,
    /// A vacant slot; 0: none.
    vacant: u64,
    /// The link of the last line.
    link: u64,
}

/// The arrays of a table. See the module text.
pub(crate) struct Table {
    current: AtomicU64,
    /// The array that buckets move from; 0: none.
    old: AtomicU64,
    /// How many buckets have moved, under the depth of the array they moved to.
    done: AtomicU64,
}

impl Table {
    /// A table of these arrays, `done` buckets of the old one moved.
    pub(crate) fn new(current: Array, old: Array, done: u64) -> Table {
        assert!(
            old == Array::NONE || old.depth() + 1 == current.depth() && done <= 1 << old.depth(),
            "a table of two arrays that do not belong together"
        );
        Table {
            current: AtomicU64::new(current.0),
            old: AtomicU64::new(old.0),
            done: AtomicU64::new(done | u64::from(current.depth()) << DEPTH_SHIFT),
        }
    }

    /// The array that buckets are moved to, or are in.
    pub(crate) fn current(&self) -> Array {
        Array(self.current.load(Ordering::Acquire))
    }

    /// The array that buckets are being moved from, and the number of the next one.
    pub(crate) fn moving(&self) -> Option<(Array, u64)> {
        let old = Array(self.old.load(Ordering::Acquire));
        let done = self.done.load(Ordering::Acquire) & ((1 << DEPTH_SHIFT) - 1);
        (old != Array::NONE).then_some((old, done))
    }

    /// Begins a growth: from here on buckets move to `array`, which is twice as long. No growth is under way.
    pub(crate) fn start(&self, array: Array) {
        let old = self.current();
        assert_eq!(array.depth(), old.depth() + 1);
        assert!(
            self.moving().is_none(),
            "a table begins to grow while it is growing"
        );
        self.done
            .store(u64::from(array.depth()) << DEPTH_SHIFT, Ordering::Release);
        publishes!();
        self.old.store(old.0, Ordering::Release);
        self.current.store(array.0, Ordering::Release);
    }

    /// Counts one more moved bucket; the caller still holds its row.
    pub(crate) fn moved(&self) {
        debug_assert!(
            self.moving()
                .is_some_and(|(old, done)| done < 1 << old.depth()),
            "more buckets have moved than there are"
        );
        let done = self.done.load(Ordering::Relaxed);
        publishes!();
        self.done.store(done + 1, Ordering::Release);
    }

    /// All buckets have moved.
    pub(crate) fn finish(&self) {
        assert!(
            self.moving()
                .is_some_and(|(old, done)| done == 1 << old.depth()),
            "a growth ends before all buckets have moved"
        );
        publishes!();
        self.old.store(0, Ordering::Release);
    }

    /// The array and the bucket of a hash.
    #[inline]
    fn home(&self, hash: u64) -> (Array, u64) {
        loop {
            let current = Array(self.current.load(Ordering::Acquire));
            let old = Array(self.old.load(Ordering::Acquire));
            if old == Array::NONE || old == current {
                return (current, current.number(hash));
            }
            // The three words belong together if their depths match.
            let done = self.done.load(Ordering::Acquire);
            if done >> DEPTH_SHIFT != u64::from(current.depth())
                || old.depth() + 1 != current.depth()
            {
                std::hint::spin_loop();
                continue;
            }
            let number = old.number(hash);
            return match number < done & ((1 << DEPTH_SHIFT) - 1) {
                true => (current, current.number(hash)),
                false => (old, number),
            };
        }
    }

    /// Depth of the array that a hash is in; while its row is held, it stays there.
    #[inline]
    pub(crate) fn depth(&self, hash: u64) -> u32 {
        self.home(hash).0.depth()
    }

    /// Starts fetching the bucket of a hash.
    #[inline]
    pub(crate) fn prefetch(&self, memory: &impl Memory, hash: u64) {
        let (array, number) = self.home(hash);
        memory.prefetch(array.bucket(number));
    }

    /// The object of a key, for readers; `is` checks the objects under the hash's tag.
    #[inline]
    pub(crate) fn find<M: Memory, T>(
        &self,
        memory: &M,
        hash: u64,
        mut is: impl FnMut(u64) -> Result<Option<T>, M::Damage>,
    ) -> Result<Option<T>, M::Damage> {
        let (array, number) = self.home(hash);
        let mut chain = Chain::new(array.bucket(number));
        while let Some((_, line)) = chain.next(memory)? {
            for slot in &line[..SLOTS] {
                if slot >> TAG_SHIFT == hash << TAG_SHIFT >> TAG_SHIFT
                    && *slot != 0
                    && let Some(found) = is(object_of(*slot))?
                {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// As [`Table::find`], for a thread that holds the row to change the bucket.
    #[inline]
    pub(crate) fn locate<M: Memory>(
        &self,
        memory: &M,
        hash: u64,
        mut is: impl FnMut(u64) -> Result<bool, M::Damage>,
    ) -> Result<Place, M::Damage> {
        let (array, number) = self.home(hash);
        let mut chain = Chain::new(array.bucket(number));
        let mut place = Place::default();
        while let Some((at, line)) = chain.next(memory)? {
            for (nth, slot) in line[..SLOTS].iter().enumerate() {
                let slot_at = at + nth as u64 * 8;
                if *slot == 0 {
                    if place.vacant == 0 {
                        place.vacant = slot_at;
                    }
                } else if slot >> TAG_SHIFT == hash << TAG_SHIFT >> TAG_SHIFT
                    && is(object_of(*slot))?
                {
                    place.slot = slot_at;
                    place.object = object_of(*slot);
                    return Ok(place);
                }
            }
            place.link = at + LINK_AT;
        }
        Ok(place)
    }

    /// Calls `each` with every object of the bucket at `cursor`, a hash, and returns the hash at which the
    /// next bucket begins; 0 = there is none.
    pub(crate) fn visit<M: Memory>(
        &self,
        memory: &M,
        cursor: u64,
        mut each: impl FnMut(u64),
    ) -> Result<u64, M::Damage> {
        let (array, number) = self.home(cursor);
        let mut chain = Chain::new(array.bucket(number));
        while let Some((_, line)) = chain.next(memory)? {
            line[..SLOTS]
                .iter()
                .filter(|slot| **slot != 0)
                .for_each(|slot| each(object_of(*slot)));
        }
        Ok((number + 1).checked_shl(64 - array.depth()).unwrap_or(0))
    }

    /// Lines of bucket `number` of the array that is being moved from.
    pub(crate) fn lines<M: Memory>(&self, memory: &M, number: u64) -> Result<usize, M::Damage> {
        let old = Array(self.old.load(Ordering::Relaxed));
        let mut chain = Chain::new(old.bucket(number));
        while chain.next(memory)?.is_some() {}
        Ok(chain.lines as usize)
    }

    /// The hash at which the bucket after the one at `cursor` begins; 0 = there is none.
    pub(crate) fn next(&self, cursor: u64) -> u64 {
        let (array, number) = self.home(cursor);
        (number + 1) << (64 - array.depth())
    }

    /// Writes the two halves of bucket `number` of the old array into the new one. The caller holds the row,
    /// and then makes the move visible ([`Table::moved`]). Lines of the old chain, which readers may still
    /// access, go to `dropped`; on an error it is unchanged.
    pub(crate) fn split<M: Memory, E: Editor<Error: From<M::Damage>>>(
        &self,
        memory: &M,
        editor: &mut E,
        number: u64,
        mut hash_of: impl FnMut(u64) -> Result<u64, M::Damage>,
        dropped: &mut Vec<u64>,
    ) -> Result<(), E::Error> {
        let (old, new) = (Array(self.old.load(Ordering::Relaxed)), self.current());
        assert_eq!(
            self.moving(),
            Some((old, number)),
            "a bucket is moved that is not the next one"
        );
        let mut halves: [Vec<u64>; 2] = [const { Vec::new() }; 2];
        let mut chain = Chain::new(old.bucket(number));
        let mut lines = Vec::new();
        while let Some((at, line)) = chain.next(memory)? {
            for slot in line[..SLOTS].iter().filter(|slot| **slot != 0) {
                let bucket = new.number(hash_of(object_of(*slot))?);
                assert_eq!(bucket / 2, number, "an object is in the wrong bucket");
                let half = bucket % 2;
                halves[half as usize].push(*slot);
            }
            lines.push(at);
        }
        let mut taken = Vec::new();
        for (half, slots) in halves.iter().enumerate() {
            let bucket = new.bucket(2 * number + half as u64);
            if let Err(error) = lay_bucket(editor, bucket, slots, &mut taken) {
                taken.into_iter().for_each(|line| editor.drop_line(line));
                return Err(error);
            }
        }
        dropped.extend(lines.into_iter().skip(1));
        Ok(())
    }
}

/// Fills a bucket that no reader can see yet with these slots. Lines of its chain go to `taken`.
fn lay_bucket<E: Editor>(
    editor: &mut E,
    bucket: u64,
    slots: &[u64],
    taken: &mut Vec<u64>,
) -> Result<(), E::Error> {
    let mut link = 0;
    let mut pieces: Vec<&[u64]> = slots.chunks(SLOTS).collect();
    let first = if pieces.is_empty() {
        &[]
    } else {
        pieces.remove(0)
    };
    let line_of = |piece: &[u64], link| {
        let mut words = [0; 8];
        words[..piece.len()].copy_from_slice(piece);
        words[SLOTS] = link;
        words
    };
    for piece in pieces.into_iter().rev() {
        link = editor.line(line_of(piece, link))?;
        taken.push(link);
    }
    editor.fill(bucket, line_of(first, link));
    Ok(())
}

impl Place {
    /// Whether a put there needs a line.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.slot == 0 && self.vacant == 0
    }

    /// The place of a key whose slot is known.
    #[inline]
    pub(crate) fn known(slot: u64, object: u64) -> Place {
        Place {
            slot,
            object,
            ..Place::default()
        }
    }

    /// The key's slot, or a vacant one, if there is one.
    pub(crate) fn vacancy(&self) -> Option<u64> {
        let slot = if self.slot != 0 {
            self.slot
        } else {
            self.vacant
        };
        (slot != 0).then_some(slot)
    }

    /// Makes the key's slot, or a vacant one, say `word`; returns which one.
    #[inline]
    pub(crate) fn put<E: Editor>(&self, editor: &mut E, word: u64) -> Result<u64, E::Error> {
        if let Some(slot) = self.vacancy() {
            editor.set(slot, word);
            return Ok(slot);
        }
        assert!(
            self.link != 0,
            "a key is put into a place that was not located"
        );
        let line = editor.line([word, 0, 0, 0, 0, 0, 0, 0])?;
        editor.set(self.link, line);
        Ok(line)
    }

    /// Makes the key's slot vacant.
    pub(crate) fn remove<E: Editor>(&self, editor: &mut E) {
        if self.slot != 0 {
            editor.set(self.slot, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Lines by their offsets.
    struct Lines(BTreeMap<u64, [u64; 8]>);

    impl Memory for Lines {
        type Damage = &'static str;

        fn line(&self, at: u64) -> Result<[u64; 8], &'static str> {
            Ok(self.0[&at])
        }

        fn follow(&self, link: u64) -> Result<(), &'static str> {
            match self.0.contains_key(&link) {
                true => Ok(()),
                false => Err("astray"),
            }
        }

        fn circle(&self, _at: u64) -> &'static str {
            "circle"
        }

        fn prefetch(&self, _at: u64) {}
    }

    struct Changes {
        /// Lines that were taken, and where buckets were filled.
        taken: Vec<u64>,
        room: usize,
    }

    impl Editor for Changes {
        type Error = &'static str;

        fn set(&mut self, _at: u64, _word: u64) {}

        fn line(&mut self, _words: [u64; 8]) -> Result<u64, &'static str> {
            self.room = self.room.checked_sub(1).ok_or("full")?;
            let at = 1 << 20 | (self.room as u64) << 6;
            self.taken.push(at);
            Ok(at)
        }

        fn drop_line(&mut self, at: u64) {
            self.taken.retain(|taken| *taken != at);
        }

        fn fill(&mut self, _at: u64, _words: [u64; 8]) {}
    }

    /// A bucket that is a chain of `lines` full lines, the last of which goes on at `last`.
    fn table_of(lines: u64, last: u64) -> (Table, Lines) {
        let table = Table::new(Array::new(64 * 8, 2), Array::new(64 * 2, 1), 0);
        let at = |nth: u64| 64 * (2 + 100 * nth);
        let of = |nth: u64| {
            let mut words: [u64; 8] =
                std::array::from_fn(|slot| slot_word(0, 64 * (1 + slot as u64)));
            words[SLOTS] = if nth + 1 < lines { at(nth + 1) } else { last };
            (at(nth), words)
        };
        let lines = (0..lines).map(of).collect();
        (table, Lines(lines))
    }

    #[test]
    fn a_bucket_that_cannot_be_moved_leaves_nothing_behind() {
        let (table, memory) = table_of(4, 0);
        // All 28 objects come into one half: four lines, three of them to be taken.
        for room in 0..=3 {
            let (mut dropped, mut changes) = (
                vec![7],
                Changes {
                    taken: vec![],
                    room,
                },
            );
            let hash_of = |_| Ok(0);
            let moved = table.split(&memory, &mut changes, 0, hash_of, &mut dropped);
            let expected = if room < 3 {
                (Err("full"), 0, 1)
            } else {
                (Ok(()), 3, 4)
            };
            assert_eq!((moved, changes.taken.len(), dropped.len()), expected);
        }
    }

    #[test]
    fn a_chain_in_a_circle_is_noticed() {
        for lines in 1..20 {
            for back_to in 0..lines {
                let (table, memory) = table_of(lines, 64 * (2 + 100 * back_to));
                assert_eq!(table.lines(&memory, 0), Err("circle"));
                let found = table.find(&memory, 0, |_| Ok(None::<()>));
                assert_eq!(found, Err("circle"));
            }
            let (table, memory) = table_of(lines, 64);
            assert_eq!(table.lines(&memory, 0), Err("astray"));
            let (table, memory) = table_of(lines, 0);
            assert_eq!(table.lines(&memory, 0), Ok(lines as usize));
        }
    }
}
