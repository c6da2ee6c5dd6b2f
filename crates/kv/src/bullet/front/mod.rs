//! The front: the volatile hash table, and the nodes in it (section 2.2).
//!
//! ```text
//! node   +------+---------+--------+---------+--------+------+--------+------+-----+-------+
//!        | hash | version | expiry | lengths | record | hint | object | hint | key | value |
//!        +------+---------+--------+---------+--------+------+--------+------+-----+-------+
//! version   0..48 | 48 tombstone | 49 the value is in the pool, in `object` | 50 touched | 51 kept (`eviction.rs`) | 52 an edit
//! lengths   0..32 of the key | 32..64 of the value
//! record    where the log record of this state is (`lentry`); 0 = it came from the back
//! hint      whether the back has this state, or a newer one, and where the back has the key (`back_hint.rs`)
//! ```
//!
//! Key and value are padded to whole words. A node is written before any reader can find it. Afterwards only
//! its hint and two marks change: a put makes a new node, and the old one's memory is reused once no reader
//! can access it.
//!
//! Invariants:
//! - A node that is not applied stays in the table: without it, a reader would find an older state in the
//!   back (B7). So a key without a node has no unapplied record in the logs. With a budget, other nodes may
//!   leave (`eviction.rs`).
//! - A node is published after the fence that covers its log record (B6).

pub(super) mod budget;
pub(super) mod eviction;
pub(super) mod words;

use super::back_hint::{APPLIED, BackHint};
use super::layout::OBJECT_HEAD;
use super::layout::{ObjectHead, padded};
use super::table::{Array, Editor, LINE, Memory, Place, Table, slot_word};
use crate::concurrency::seam::publishes;
use crate::engine::ghosts::Ghosts;
use crate::error::Error;
use crate::heap::{CHUNK_LINES, Claim, Lines};
use budget::Budget;
use everdram_pm::Dram;
use everdram_pm::lock::lock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use words::Words;

/// Bytes in front of the key.
pub(super) const NODE_HEAD: u64 = 64;
const VERSION_MASK: u64 = (1 << 48) - 1;
const TOMBSTONE: u64 = 1 << 48;
const BEHIND: u64 = 1 << 49;
/// The node was used since it came, or since the hand last passed it.
pub(super) const TOUCHED: u64 = 1 << 50;
/// The node was used more than once: it is not on trial any more.
pub(super) const KEPT: u64 = 1 << 51;
const EDIT: u64 = 1 << 52;

/// How many buckets ahead of the moving one nodes are prefetched: each says into which half it goes.
const AHEAD: u64 = 8;

/// Lines of a node that are prefetched before it is written; the processor prefetches the rest of a longer
/// one by itself.
const FETCHED_LINES: u64 = 8;

/// Where the word of the marks is.
const MARKS_AT: u64 = 8;

/// Where the words of the hint are.
const TRACE_AT: [u64; 2] = [40, 56];

/// A node without its key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) at: u64,
    pub(super) hash: u64,
    pub(super) version: u64,
    pub(super) expires_at_ms: u64,
    pub(super) key_bytes: u32,
    pub(super) value_bytes: u32,
    /// Where the log record of this state is; 0: it came from the back.
    pub(super) record: u64,
    /// The key was removed.
    pub(super) is_tombstone: bool,
    /// The record holds only an edit: the state builds on older records, or on the back.
    pub(super) is_edit: bool,
    /// Offset of the object that holds the value in the pool; 0: the node holds it.
    pub(super) object: u64,
    /// The hint that [`Front::write`] stores; a node that was read has `None` here.
    pub(super) hint: Option<BackHint>,
    /// [`TOUCHED`], [`KEPT`].
    pub(super) marks: u64,
}

impl Node {
    /// Bytes of the node.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        let value = if self.object == 0 {
            padded(self.value_bytes)
        } else {
            0
        };
        NODE_HEAD + padded(self.key_bytes) + value
    }

    /// Bytes of the object that it becomes in the back.
    #[inline]
    pub(super) fn object_bytes(&self) -> u64 {
        OBJECT_HEAD + padded(self.key_bytes) + padded(self.value_bytes)
    }

    fn words(&self) -> [u64; 8] {
        let tombstone = if self.is_tombstone { TOMBSTONE } else { 0 };
        let behind = if self.object == 0 { 0 } else { BEHIND };
        let edit = if self.is_edit { EDIT } else { 0 };
        let applied = if self.record == 0 { APPLIED } else { 0 };
        let [place, hinted] = self.hint.map_or([0, 0], BackHint::to_words);
        [
            self.hash,
            self.version | tombstone | behind | edit | self.marks,
            self.expires_at_ms,
            u64::from(self.key_bytes) | u64::from(self.value_bytes) << 32,
            self.record,
            place | applied,
            self.object,
            hinted,
        ]
    }
}

/// See the module text.
pub(super) struct Front {
    words: Words,
    books: Lines,
    pub(super) table: Table,
    pub(super) budget: Budget,
    pub(super) ghosts: Ghosts,
    /// The number of chunks; locked while memory is added.
    growth: parking_lot::Mutex<u32>,
    /// Nodes added less nodes removed by other threads than sessions, which count their own.
    pub(super) nodes: AtomicI64,
}

impl Front {
    /// An empty table of 2 to the power of `depth` buckets, with a budget in bytes.
    pub(super) fn new(depth: u32, budget: Option<u64>) -> Result<Front, Error> {
        let front = Front {
            words: Words(Dram::reserve(None).map_err(refused)?),
            books: Lines::new(CHUNK_LINES, 0),
            table: Table::new(Array::NONE, Array::NONE, 0),
            budget: Budget::new(budget),
            ghosts: Ghosts::new(budget),
            growth: parking_lot::Mutex::new(0),
            nodes: AtomicI64::new(0),
        };
        // Offset 0 stands for nothing.
        let (mut claim, line) = (None, LINE);
        assert_eq!(front.take(&mut claim, line)?, 0);
        front.let_go(&mut claim);
        let array = front.array(depth)?;
        Ok(Front {
            table: Table::new(array, Array::NONE, 0),
            ..front
        })
    }

    /// A new array, all zeros.
    pub(super) fn array(&self, depth: u32) -> Result<Array, Error> {
        let bytes = LINE << depth;
        let at = self.take_run(bytes)?;
        // The memory may hold the bytes of an earlier use.
        for word in self.words.0.words(at, bytes) {
            word.store(0, Ordering::Relaxed);
        }
        Ok(Array::new(at, depth))
    }

    /// Gives back an array that no reader can access.
    pub(super) fn give_back_array(&self, array: Array) {
        let line = array.at() / LINE;
        self.books
            .give_back_run((line / u64::from(CHUNK_LINES)) as u32);
    }

    fn take_run(&self, bytes: u64) -> Result<u64, Error> {
        let chunk_bytes = u64::from(CHUNK_LINES) * LINE;
        let chunks = bytes.div_ceil(chunk_bytes) as u32;
        loop {
            match self.books.take_run(chunks) {
                Some(number) => return Ok(u64::from(number) * chunk_bytes),
                None => self.grow(chunks)?,
            }
        }
    }

    /// Room for a node of `bytes` bytes.
    #[inline]
    pub(super) fn take(&self, claim: &mut Option<Claim>, bytes: u64) -> Result<u64, Error> {
        let lines = bytes.div_ceil(LINE) as u32;
        match self.books.take_claimed(claim, lines) {
            Some(line) => Ok(line * LINE),
            None => self.take_elsewhere(claim, lines),
        }
    }

    #[cold]
    fn take_elsewhere(&self, claim: &mut Option<Claim>, lines: u32) -> Result<u64, Error> {
        let line = loop {
            match self.books.take(claim, lines) {
                Some(line) => break line,
                None => self.grow(1)?,
            }
        };
        if self.budget.claimed() {
            self.weigh();
        }
        Ok(line * LINE)
    }

    /// Tells the budget how much is in use.
    pub(super) fn weigh(&self) {
        self.budget.weighed(self.bytes().1);
    }

    /// Gives back a node that no reader can access.
    #[inline]
    pub(super) fn give_back(&self, at: u64, bytes: u64) {
        self.books.give_back(at / LINE, bytes.div_ceil(LINE) as u32);
    }

    pub(super) fn let_go(&self, claim: &mut Option<Claim>) {
        if let Some(claim) = claim.take() {
            self.books.let_go(claim);
        }
    }

    #[cold]
    fn grow(&self, chunks: u32) -> Result<(), Error> {
        let mut next = lock(&self.growth);
        let bytes = u64::from(*next + chunks) * u64::from(CHUNK_LINES) * LINE;
        self.words.0.grow_to(bytes).map_err(refused)?;
        if !self.books.add(*next, chunks) {
            return Err(Error::NoSpace(
                "the front table has its maximum of chunks".into(),
            ));
        }
        *next += chunks;
        Ok(())
    }

    /// Whether the table should grow for `nodes` nodes.
    pub(super) fn is_short_of_buckets(&self, nodes: i64) -> bool {
        nodes > 5 << self.table.current().depth()
    }

    /// Bytes of all chunks.
    pub(super) fn held(&self) -> u64 {
        self.words.0.bytes()
    }

    /// Bytes of DRAM that the front has, and those in use.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let ghosts = self.ghosts.bytes();
        let taken = self.books.taken() * LINE;
        (self.held() + ghosts, taken + ghosts)
    }

    #[inline]
    fn word(&self, at: u64) -> u64 {
        self.words.0.words(at, 8)[0].load(Ordering::Acquire)
    }

    /// The words of a node's hint.
    #[inline]
    fn trace_words(&self, at: u64) -> [&AtomicU64; 2] {
        TRACE_AT.map(|word| &self.words.0.words(at + word, 8)[0])
    }

    /// Starts fetching the lines of a node that will be written.
    #[inline]
    pub(super) fn prefetch_to_write(&self, node: &Node) {
        let lines = node.bytes().div_ceil(LINE).min(FETCHED_LINES);
        self.words
            .0
            .prefetch_to_write((node.at / LINE) as usize, lines as usize);
    }

    /// Writes a node at `node.at`, before any reader can find it. A value in the pool is ignored.
    #[inline]
    pub(super) fn write(&self, node: &Node, key: &[u8], value: &[u8]) {
        assert!(node.at != 0, "a node is written that has no place");
        assert!(
            key.len() == node.key_bytes as usize
                && (node.object != 0 || value.len() == node.value_bytes as usize),
            "a node is written with a key or a value of another length"
        );
        let head = self.words.0.words(node.at, NODE_HEAD);
        for (place, word) in head.iter().zip(node.words()) {
            place.store(word, Ordering::Relaxed);
        }
        let key_at = node.at + NODE_HEAD;
        self.write_padded(key_at, key);
        if node.object == 0 {
            self.write_padded(key_at + padded(node.key_bytes), value);
        }
    }

    /// Stores bytes, and zeros up to a whole word.
    #[inline]
    fn write_padded(&self, at: u64, bytes: &[u8]) {
        let (whole, rest) = bytes.split_at(bytes.len() / 8 * 8);
        self.words.0.store(at, whole);
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.words.0.store(at + whole.len() as u64, &last);
        }
    }

    /// The node at `at`.
    #[inline]
    pub(super) fn node(&self, at: u64) -> Node {
        let head = self.words.words(at);
        Node {
            at,
            hash: head[0],
            version: head[1] & VERSION_MASK,
            expires_at_ms: head[2],
            key_bytes: head[3] as u32,
            value_bytes: (head[3] >> 32) as u32,
            record: head[4],
            is_tombstone: head[1] & TOMBSTONE != 0,
            is_edit: head[1] & EDIT != 0,
            object: head[6],
            hint: None,
            marks: head[1] & (TOUCHED | KEPT),
        }
    }

    /// The node, if it is of this key.
    #[inline]
    pub(super) fn node_of(&self, at: u64, hash: u64, key: &[u8]) -> Option<Node> {
        let node = self.node(at);
        (node.hash == hash && node.key_bytes as usize == key.len() && self.has_key(at, key))
            .then_some(node)
    }

    #[inline]
    fn has_key(&self, at: u64, key: &[u8]) -> bool {
        let words = self.words.0.words(at + NODE_HEAD, padded(key.len() as u32));
        let (whole, rest) = key.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let rest = (!rest.is_empty()).then_some(last);
        let wanted = whole.iter().copied().chain(rest).map(u64::from_le_bytes);
        words
            .iter()
            .zip(wanted)
            .all(|(word, wanted)| word.load(Ordering::Relaxed) == wanted)
    }

    /// Appends the node's key.
    pub(super) fn key(&self, node: &Node, into: &mut Vec<u8>) {
        self.append(node.at + NODE_HEAD, node.key_bytes, into);
    }

    /// Appends the value of a node that holds it.
    #[inline]
    pub(super) fn value(&self, node: &Node, into: &mut Vec<u8>) {
        self.append(
            node.at + NODE_HEAD + padded(node.key_bytes),
            node.value_bytes,
            into,
        );
    }

    #[inline]
    fn append(&self, at: u64, bytes: u32, into: &mut Vec<u8>) {
        let before = into.len();
        self.words.0.load_behind(at, padded(bytes), into);
        into.truncate(before + bytes as usize);
    }

    /// Notes that a node was read. Writes nothing if that is known already, or without a budget.
    #[inline]
    pub(super) fn touch(&self, node: &Node) {
        if self.budget.is_set() && node.marks & TOUCHED == 0 {
            self.mark(node.at, TOUCHED, 0);
        }
    }

    /// The marks of a new node whose key had none.
    #[inline]
    pub(super) fn marks_of(&self, hash: u64) -> u64 {
        match self.budget.is_set() && self.ghosts.has(hash) {
            true => KEPT,
            false => 0,
        }
    }

    /// Sets some marks and clears others.
    pub(super) fn mark(&self, at: u64, set: u64, clear: u64) {
        let word = &self.words.0.words(at + MARKS_AT, 8)[0];
        publishes!();
        word.fetch_or(set, Ordering::Relaxed);
        if clear != 0 {
            word.fetch_and(!clear, Ordering::Relaxed);
        }
    }

    /// Whether the back has the node's state, or a newer one.
    #[inline]
    pub(super) fn is_applied(&self, at: u64) -> bool {
        self.trace_words(at)[0].load(Ordering::Acquire) & APPLIED != 0
    }

    /// Notes that the back has the node's state, and where. The caller holds the row of the back.
    #[inline]
    pub(super) fn applied(&self, at: u64, hint: Option<BackHint>) {
        let [place, object] = self.trace_words(at);
        let [placed, hinted] = hint.map_or([0, 0], BackHint::to_words);
        object.store(hinted, Ordering::Relaxed);
        publishes!();
        place.store(placed | APPLIED, Ordering::Release);
    }

    /// A node's hint. The caller holds the row of the back; or the key's stripe, and the node is applied: its
    /// hint does not change again.
    #[inline]
    pub(super) fn hint(&self, at: u64) -> Option<BackHint> {
        let [place, object] = self.trace_words(at);
        let place = place.load(Ordering::Acquire);
        BackHint::of_words([place, object.load(Ordering::Relaxed)])
    }

    /// The key's node, for readers under a pin.
    #[inline]
    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<Node> {
        let Ok(found) = self
            .table
            .find(&self.words, hash, |at| Ok(self.node_of(at, hash, key)));
        found
    }

    /// The key's node, and its place in the table, for the holder of its row.
    #[inline]
    pub(super) fn locate(&self, hash: u64, key: &[u8]) -> (Place, Option<Node>) {
        let mut found = None;
        let Ok(place) = self.table.locate(&self.words, hash, |at| {
            found = self.node_of(at, hash, key);
            Ok(found.is_some())
        });
        (place, found)
    }

    /// Starts fetching the bucket of a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        self.table.prefetch(&self.words, hash);
    }

    /// Starts fetching the nodes that a hash may have; its bucket should be in the caches by now.
    #[inline]
    pub(super) fn prefetch_nodes(&self, hash: u64) {
        let words = &self.words;
        let Ok(None::<()>) = self.table.find(words, hash, |at| {
            (0..2).for_each(|line| words.prefetch(at + line * LINE));
            Ok(None)
        }) else {
            return;
        };
    }

    /// Calls `each` with every node of the bucket at `cursor`; see [`Table::visit`].
    pub(super) fn visit(&self, cursor: u64, mut each: impl FnMut(Node)) -> u64 {
        let Ok(next) = self
            .table
            .visit(&self.words, cursor, |at| each(self.node(at)));
        next
    }

    /// Counts the nodes, by a walk through the table.
    pub(super) fn count(&self) -> i64 {
        let (mut nodes, mut cursor) = (0, 0);
        loop {
            cursor = self.visit(cursor, |_| nodes += 1);
            if cursor == 0 {
                return nodes;
            }
        }
    }

    /// Appends the offsets of the nodes of the bucket at `cursor`, and starts fetching them; see
    /// [`Table::visit`].
    pub(super) fn gather(&self, cursor: u64, into: &mut Vec<u64>) -> u64 {
        let Ok(next) = self.table.visit(&self.words, cursor, |at| {
            self.words.prefetch(at);
            into.push(at);
        });
        next
    }

    /// A node's place in the table, for the holder of its row; `None`: the node has left.
    pub(super) fn place_of(&self, node: &Node) -> Option<Place> {
        let Ok(place) = self
            .table
            .locate(&self.words, node.hash, |at| Ok(at == node.at));
        (place.object == node.at).then_some(place)
    }

    /// Makes a node visible in the place that was found for its key; the caller still holds the row. Cannot
    /// fail if it needs no line, or has a spare one.
    #[inline]
    pub(super) fn publish(
        &self,
        place: &Place,
        node: &Node,
        spare: &mut Vec<u64>,
        claim: &mut Option<Claim>,
    ) -> Result<(), Error> {
        debug_assert!(
            self.is_as_seen(place, node.hash),
            "a bucket has changed while its row was held"
        );
        let mut editor = Direct {
            front: self,
            spare,
            claim,
        };
        place
            .put(&mut editor, slot_word(node.hash, node.at))
            .map(drop)
    }

    /// Whether the slot for a node of this hash has not changed since it was found.
    fn is_as_seen(&self, place: &Place, hash: u64) -> bool {
        let seen = match place.slot {
            0 => 0,
            _ => slot_word(hash, place.object),
        };
        place.vacancy().is_none_or(|slot| self.word(slot) == seen)
    }

    /// Takes a node out of the table; the caller holds the row.
    pub(super) fn remove(&self, place: &Place) {
        let mut editor = Direct {
            front: self,
            spare: &mut Vec::new(),
            claim: &mut None,
        };
        place.remove(&mut editor);
    }

    /// Moves the next bucket to the longer array; the caller holds its row. Lines that readers may still
    /// access go to `dropped`.
    pub(super) fn split(
        &self,
        number: u64,
        claim: &mut Option<Claim>,
        dropped: &mut Vec<u64>,
    ) -> Result<(), Error> {
        if let Some((old, _)) = self.table.moving()
            && let ahead = number + AHEAD
            && ahead < 1 << old.depth()
        {
            self.prefetch_nodes(ahead << (64 - old.depth()));
        }
        let mut editor = Direct {
            front: self,
            spare: &mut Vec::new(),
            claim,
        };
        self.table.split(
            &self.words,
            &mut editor,
            number,
            |at| Ok(self.word(at)),
            dropped,
        )?;
        self.table.moved();
        Ok(())
    }
}

/// Changes DRAM at once.
struct Direct<'a> {
    front: &'a Front,
    spare: &'a mut Vec<u64>,
    claim: &'a mut Option<Claim>,
}

impl Editor for Direct<'_> {
    type Error = Error;

    #[inline]
    fn set(&mut self, at: u64, word: u64) {
        publishes!();
        self.front.words.0.words(at, 8)[0].store(word, Ordering::Release);
    }

    fn line(&mut self, words: [u64; 8]) -> Result<u64, Error> {
        let at = match self.spare.pop() {
            Some(at) => at,
            None => self.front.take(self.claim, LINE)?,
        };
        self.fill(at, words);
        Ok(at)
    }

    fn drop_line(&mut self, at: u64) {
        self.front.give_back(at, LINE);
    }

    fn fill(&mut self, at: u64, words: [u64; 8]) {
        for (place, word) in self.front.words.0.words(at, LINE).iter().zip(words) {
            place.store(word, Ordering::Release);
        }
    }
}

fn refused(error: impl std::fmt::Display) -> Error {
    Error::NoSpace(format!("the front table in DRAM: {error}"))
}

/// A node with the state of an object's head.
pub(super) fn node_of(head: &ObjectHead) -> Node {
    Node {
        hash: head.hash,
        version: head.version,
        expires_at_ms: head.expires_at_ms,
        key_bytes: head.key_bytes,
        value_bytes: head.value_bytes,
        is_tombstone: head.is_tombstone,
        ..Node::default()
    }
}

/// The head of the object that has a node's state.
pub(super) fn head_of(node: &Node) -> ObjectHead {
    ObjectHead {
        has_lentry: false,
        check: 0,
        hash: node.hash,
        version: node.version,
        is_tombstone: node.is_tombstone,
        expires_at_ms: node.expires_at_ms,
        key_bytes: node.key_bytes,
        value_bytes: node.value_bytes,
    }
}
