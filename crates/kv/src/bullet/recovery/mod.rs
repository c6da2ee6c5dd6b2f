//! From bytes to a running engine.
//!
//! Recovery completes the back's last transactions and replays the logs into the front. Gleaners apply them
//! to the back later, with their other work (section 5). So recovery takes as long as the logs are full,
//! however large the store is.
//!
//! Several threads read a log each and put its states into the front, many at once, so that cache misses
//! overlap. Of a key's records the highest version counts, in whichever log (B2). No remaining record is
//! older than a reclaimed one ([`crate::crl`], B1). Edits are collected, and a second pass applies them to
//! what they build on: a log record, or the back's object, whose version says which edits it includes (B4).

pub(super) mod salvage;

use super::Bullet;
use super::back::Back;
use super::back::root::open_ledger;
use super::counters::{LedgerCounters, Sum};
use super::front::Node;
use super::front::node_of;
use super::layout::INLINE_MAX;
use super::layout::{Geometry, Named, Opcode, Operation, RecordAt, are_sound, operations, word_at};
use super::overflow_record::read_overflow_record;
use crate::crl::{Entry, Ledger, Replay, Shape};
use crate::engine::damage::Damage;
use crate::engine::damage::tolerate;
use crate::engine::persist_on_read::ReadFlusher;
use crate::error::{Error, corrupt};
use crate::heap::{Claim, Redo};
use crate::options::Options;
use everdram_pm::Pool;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// States that are put into the front at once.
const LOT: usize = 32;

/// A record that holds only an edit.
struct Edit {
    version: u64,
    opcode: Opcode,
    expires_at_ms: u64,
    payload: Vec<u8>,
    record: RecordAt,
}

/// The most nodes for which the front grows before replay: an estimate does not justify a longer array (64
/// MiB).
const EXPECTED_MOST: u64 = 5 << 20;

/// The size and duration of a recovery.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summary {
    pub(super) records: u64,
    pub(super) microseconds: u64,
}

/// The shared state of recovering threads.
#[derive(Default)]
struct Shared {
    /// Read-locked to use the front, write-locked to grow it.
    growth: RwLock<()>,
    /// Held while a thread adopts objects that log records name: whole chunks change hands.
    adopting: Mutex<()>,
}

/// The state of one recovering thread.
pub(super) struct Recovery<'a> {
    pub(super) engine: &'a Bullet,
    shared: &'a Shared,
    /// The owner of the stripes it locks.
    number: u16,
    found: ReadFlusher,
    claim: Option<Claim>,
    lot: Lot,
    edits: HashMap<Vec<u8>, Vec<Edit>>,
    sum: Sum,
    records: u64,
    /// Part of a log is damaged, and the pool is being salvaged.
    pub(super) has_lost: bool,
    /// Bytes of the objects that edits become.
    owed: u64,
}

/// States of keys on their way into the front.
#[derive(Default)]
struct Lot {
    nodes: Vec<Node>,
    /// Their keys and values.
    bytes: Vec<u8>,
}

/// Opens the ledger with its counters, and the back, and completes the last transactions. On return,
/// everything that was read is durable.
///
/// # Errors
/// [`Error::Corrupt`] and errors of the medium, without the path.
pub(super) fn open_parts(
    pool: &Arc<Pool>,
    (geometry, logs): (&Geometry, &Shape),
    options: &Options,
    redo: &Arc<Redo>,
    found: &mut ReadFlusher,
    damage: Option<&Arc<Damage>>,
) -> Result<(Ledger, LedgerCounters, Back), Error> {
    let (ledger, books) = match open_ledger(pool, redo, found, logs) {
        Err(error) => (
            salvage::without_ledger(damage, error)?,
            LedgerCounters::default(),
        ),
        Ok(opened) => opened,
    };
    redo.recover(found, |error| tolerate(damage, error))?;
    let Some(mut txn) = redo.txn() else {
        panic!("a redo log without areas");
    };
    let bytes_max = options.max_bytes.max(pool.region().len());
    let sizes = [options.chunk_bytes, bytes_max];
    let back = Back::open(pool, geometry, sizes, found, redo, &mut txn, damage)?;
    found.settle();
    Ok((ledger, books, back))
}

/// Replays the logs into the front; returns the number of records, and the change of the ledger's count of
/// keys.
///
/// # Errors
/// [`Error::Corrupt`], without the path; [`Error::NoSpace`]: DRAM.
pub(super) fn replay_logs(
    engine: &Bullet,
    books: &LedgerCounters,
    threads: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<(u64, i64), Error> {
    let shared = Shared::default();
    let threads = threads.clamp(1, engine.logs.count());
    let each = (0..threads).map(|number| Recovery::new(engine, &shared, number as u16));
    let mut each: Vec<Recovery<'_>> = each.collect();
    engine.logs.recover(&mut each, progress)?;
    let mut all = Recovery::new(engine, &shared, 0);
    for one in each {
        all.take_over(one);
    }
    all.lay_edits()?;
    salvage::look_through(&mut all)?;
    let version_max = all
        .sum
        .version_max
        .max(books.version_max)
        .max(engine.floor());
    engine.raise_clocks(version_max);
    engine
        .gleaning
        .passed_version
        .store(version_max, Ordering::Relaxed);
    engine.owes(all.owed);
    engine.front.let_go(&mut all.claim);
    debug_assert!(
        engine.front.count() == engine.nodes(),
        "recovery's count of nodes differs from the front's"
    );
    Ok((all.records, all.sum.keys))
}

impl<'a> Recovery<'a> {
    fn new(engine: &'a Bullet, shared: &'a Shared, number: u16) -> Recovery<'a> {
        Recovery {
            engine,
            shared,
            number,
            found: ReadFlusher::new(engine.pool.lane()),
            claim: None,
            lot: Lot::default(),
            edits: HashMap::new(),
            sum: Sum::default(),
            records: 0,
            has_lost: false,
            owed: 0,
        }
    }

    /// Adds what another thread recovered.
    fn take_over(&mut self, mut other: Recovery<'_>) {
        self.engine.front.let_go(&mut other.claim);
        for (key, edits) in other.edits {
            self.edits.entry(key).or_default().extend(edits);
        }
        self.sum.keys = self.sum.keys.wrapping_add(other.sum.keys);
        self.sum.version_max = self.sum.version_max.max(other.sum.version_max);
        self.records += other.records;
        self.has_lost |= other.has_lost;
        self.owed += other.owed;
    }

    /// Whether the heap objects that an entry names verify. The fence of the entry covered them, so a torn
    /// entry may name torn objects.
    fn are_there(&self, bytes: &[u8], count: u32) -> bool {
        let (pool, back) = (&self.engine.pool, &self.engine.back);
        operations(bytes, count).all(|operation| {
            let named = Named::read(operation.payload);
            match operation.opcode {
                Opcode::Link => back
                    .value_at(named.at, &mut Vec::new(), &mut Vec::new())
                    .is_ok_and(|head| head.bytes() == named.bytes && head.check == named.check),
                Opcode::Parcel => read_overflow_record(pool, named)
                    .is_ok_and(|parcel| self.are_there(&parcel, u32::MAX)),
                _ => true,
            }
        })
    }

    fn replay_all(&mut self, bytes: &[u8], count: u32, record: RecordAt) -> Result<(), Error> {
        for operation in operations(bytes, count) {
            self.sum.add(&operation);
            if let Err(error) = self.replay_one(&operation, record) {
                self.lose(&operation, error)?;
            }
        }
        Ok(())
    }

    fn replay_one(&mut self, operation: &Operation<'_>, record: RecordAt) -> Result<(), Error> {
        let engine = self.engine;
        let named = Named::read(operation.payload);
        let (at, length) = (named.at, named.bytes);
        self.records += 1;
        match operation.opcode {
            Opcode::Clear => {
                engine.clear_up_to(operation.version);
                Ok(())
            }
            Opcode::Parcel => {
                let adopting = self.shared.adopting.lock();
                self.adopt(at, length)?;
                engine.reserve.linked.lock().insert(at, length);
                drop(adopting);
                let parcel = read_overflow_record(&engine.pool, named)?;
                self.replay_all(&parcel, u32::MAX, record)
            }
            Opcode::Link => {
                engine.names(length);
                let adopting = self.shared.adopting.lock();
                if !engine.back.heap.is_published(at, length) {
                    self.adopt(at, length)?;
                    engine.reserve.linked.lock().insert(at, length);
                }
                drop(adopting);
                let mut key = Vec::new();
                let head = engine.back.head(at, &mut key)?;
                if head.version != operation.version {
                    return Err(corrupt(
                        at,
                        "a log record names an object of another version",
                    ));
                }
                let node = Node {
                    object: at,
                    record: record.0,
                    ..node_of(&head)
                };
                self.put(node, &key, &[])
            }
            Opcode::Put | Opcode::Remove => {
                let node = Node {
                    hash: engine.hash(operation.key),
                    version: operation.version,
                    expires_at_ms: operation.expires_at_ms,
                    key_bytes: operation.key.len() as u32,
                    value_bytes: operation.payload.len() as u32,
                    record: record.0,
                    is_tombstone: operation.opcode == Opcode::Remove,
                    ..Node::default()
                };
                self.put(node, operation.key, operation.payload)
            }
            Opcode::Append | Opcode::Increment | Opcode::SetField => {
                let edits = self.edits.entry(operation.key.to_vec()).or_default();
                edits.push(Edit {
                    version: operation.version,
                    opcode: operation.opcode,
                    expires_at_ms: operation.expires_at_ms,
                    payload: operation.payload.to_vec(),
                    record,
                });
                Ok(())
            }
        }
    }

    fn adopt(&mut self, at: u64, bytes: u64) -> Result<(), Error> {
        self.found.keep(at, bytes);
        match self.engine.back.heap.adopt(at, bytes) {
            true => Ok(()),
            // The heap's own records may be damaged.
            false if self.engine.damage.is_some() => Ok(()),
            false => Err(corrupt(
                at,
                "a log record names memory that belongs to something else",
            )),
        }
    }

    /// Collects a state, and puts it into the front once the lot is full; see [`Recovery::show`].
    #[inline]
    pub(super) fn put(&mut self, node: Node, key: &[u8], value: &[u8]) -> Result<(), Error> {
        // No sweep would remove a state below the floor.
        if node.version <= self.engine.floor() {
            return Ok(());
        }
        self.engine.front.prefetch(node.hash);
        self.lot.nodes.push(node);
        self.lot.bytes.extend_from_slice(key);
        let value = if node.object == 0 { value } else { &[] };
        self.lot.bytes.extend_from_slice(value);
        match self.lot.nodes.len() < LOT {
            true => Ok(()),
            false => self.show_lot(),
        }
    }

    pub(super) fn show_lot(&mut self) -> Result<(), Error> {
        let engine = self.engine;
        let mut lot = std::mem::take(&mut self.lot);
        let growth = self.shared.growth.read();
        for node in &lot.nodes {
            engine.front.prefetch_nodes(node.hash);
        }
        let (mut bytes, mut more, mut shown) = (&lot.bytes[..], 0, Ok(()));
        for node in lot.nodes.drain(..) {
            let (key, rest) = bytes.split_at(node.key_bytes as usize);
            let here = if node.object == 0 {
                node.value_bytes
            } else {
                0
            };
            let (value, rest) = rest.split_at(here as usize);
            bytes = rest;
            shown = self
                .show(node, key, value)
                .map(|is_new| more += i64::from(is_new));
            if shown.is_err() {
                break;
            }
        }
        let nodes = more + engine.front.nodes.fetch_add(more, Ordering::Relaxed);
        drop(growth);
        shown?;
        lot.bytes.clear();
        self.lot = lot;
        if engine.front.is_short_of_buckets(nodes) {
            let _alone = self.shared.growth.write();
            engine.grow_front_now(engine.nodes(), &mut self.claim)?;
        }
        Ok(())
    }

    /// Puts a state into the front, unless it has a newer one of the key; returns whether the key is new
    /// there. The front does not grow meanwhile.
    fn show(&mut self, node: Node, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let stripe = self.engine.stripe(node.hash);
        self.engine.stripes.lock(stripe, self.number);
        let shown = self.show_locked(node, key, value);
        self.engine.stripes.unlock(stripe);
        shown
    }

    fn show_locked(&mut self, mut node: Node, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let engine = self.engine;
        let (place, old) = engine.front.locate(node.hash, key);
        if old.is_some_and(|old| old.version >= node.version) {
            return Ok(false);
        }
        if node.expires_at_ms != 0 {
            engine.expiries.store(true, Ordering::Relaxed);
        }
        node.at = engine.front.take(&mut self.claim, node.bytes())?;
        engine.front.write(&node, key, value);
        engine
            .front
            .publish(&place, &node, &mut Vec::new(), &mut self.claim)?;
        // Recovering threads access nodes only with their row held.
        if let Some(old) = old {
            engine.front.give_back(old.at, old.bytes());
        }
        Ok(old.is_none())
    }

    /// The second pass: applies edits to what they build on, in the order of versions.
    fn lay_edits(&mut self) -> Result<(), Error> {
        for (key, edits) in std::mem::take(&mut self.edits) {
            if let Err(error) = self.lay_edits_of(&key, edits) {
                self.lose_key(&key, error)?;
            }
            // A lost edit may lie between two others.
            self.doubt_edits(&key);
        }
        self.show_lot()
    }

    fn lay_edits_of(&mut self, key: &[u8], mut edits: Vec<Edit>) -> Result<(), Error> {
        let engine = self.engine;
        edits.sort_unstable_by_key(|edit| edit.version);
        let hash = engine.hash(key);
        let mut value = Vec::new();
        let mut scratch = Vec::new();
        let shown = engine.front.find(hash, key);
        let behind = engine.back.find(hash, key, &mut scratch)?;
        let shown_version = shown.map_or(0, |node| node.version);
        let base = match behind {
            Some((at, head)) if head.version >= shown_version => {
                engine.back.value(at, &head, &mut scratch, &mut value)?;
                head.version
            }
            _ => {
                if let Some(node) = &shown {
                    engine.value_of(node, &mut scratch, &mut value)?;
                }
                shown_version
            }
        };
        let left: Vec<&Edit> = edits
            .iter()
            .filter(|edit| edit.version > base.max(engine.floor()))
            .collect();
        let Some(newest) = left.last() else {
            // The back has all edits, but the front may show a state on which they built.
            if let (Some(_), Some((at, head))) = (shown, behind)
                && head.version > shown_version
            {
                let object = if value.len() > INLINE_MAX { at } else { 0 };
                let node = Node {
                    object,
                    ..node_of(&head)
                };
                self.put(node, key, &value)?;
            }
            return Ok(());
        };
        if base <= engine.floor() {
            return Err(corrupt(0, "a log record changes a value that is not there"));
        }
        for edit in &left {
            lay(edit, &mut value)?;
        }
        // Writers log edits only of values that the front holds.
        if value.len() > INLINE_MAX {
            return Err(corrupt(
                0,
                "log records make a value longer than the front can hold",
            ));
        }
        let node = Node {
            hash,
            version: newest.version,
            expires_at_ms: newest.expires_at_ms,
            key_bytes: key.len() as u32,
            value_bytes: value.len() as u32,
            record: newest.record.0,
            is_edit: true,
            ..Node::default()
        };
        self.owed += node.object_bytes();
        self.put(node, key, &value)
    }
}

impl Replay for Recovery<'_> {
    /// Grows the front for half as many nodes as there are operations: a key may have several records, and
    /// one more doubling is only half of the work.
    fn expect(&mut self, operations: u64) {
        let engine = self.engine;
        // Nodes can be evicted; an array cannot.
        if !engine.front.budget.is_set() {
            let nodes = (operations / 2).min(EXPECTED_MOST) as i64;
            // If memory is short, the front grows when it must. To move empty buckets takes no other memory.
            let _begins_smaller = engine.grow_front_now(nodes, &mut self.claim);
        }
    }

    fn is_sound(&self, entry: &Entry<'_>) -> bool {
        are_sound(entry.bytes, Some(entry.operations))
    }

    fn is_there(&self, entry: &Entry<'_>) -> bool {
        self.are_there(entry.bytes, entry.operations)
    }

    fn replay(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        self.replay_all(entry.bytes, entry.operations, entry.at)
    }

    fn tolerate(&mut self, error: Error, lost: &Entry<'_>) -> Result<(), Error> {
        self.lose_entry(error, lost)
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.show_lot()
    }

    fn found(&mut self) -> &mut ReadFlusher {
        &mut self.found
    }
}

/// Applies an edit to a value.
fn lay(edit: &Edit, value: &mut Vec<u8>) -> Result<(), Error> {
    if edit.opcode == Opcode::Append {
        value.extend_from_slice(&edit.payload);
        return Ok(());
    }
    let (at, operand) = (word_at(&edit.payload, 0), word_at(&edit.payload, 8));
    let place = usize::try_from(at)
        .ok()
        .and_then(|at| value.get_mut(at..)?.first_chunk_mut::<8>());
    let Some(place) = place else {
        return Err(corrupt(0, "a log record changes a word outside its value"));
    };
    let word = match edit.opcode {
        Opcode::Increment => u64::from_le_bytes(*place).wrapping_add(operand),
        _ => operand,
    };
    *place = word.to_le_bytes();
    Ok(())
}
