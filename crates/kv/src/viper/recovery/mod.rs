//! Recovery (section 4.7): from the pool's bytes to a running store. The only way a store starts.
//!
//! 0. A checkpoint of the index, if there is one, fills the index first. Then *the blocks* below are only
//!    those that have changed since (`checkpoint/load.rs`). Verification reads the others while the store is
//!    in use (`checkpoint/verify.rs`).
//! 1. Threads share the blocks. Every record that verifies and is not marked dead goes into the index. Of two
//!    records of one key the higher stamp stays; the other is a *loser* (V1).
//! 2. Live journals are applied (in a full pool after step 6, see `room.rs`). This finishes a batch that
//!    crashed after its journal's fence.
//! 3. Dead records are tombstones: a record in the index that is not newer than one is a loser, too.
//! 4. Losers are marked dead, fence, journals are marked dead, open pages are sealed at the end of their last
//!    good record, fence. Only then does the store answer (I7).
//! 5. With a tier below, the end of its log is read (`below/load.rs`), and the rest while the store is in
//!    use.
//! 6. Overflow blocks that no live record reaches are freed, unless some value cannot be read
//!    (`unreadable.rs`).
//!
//! Every step reads only what a crash before it left, and a repetition writes the same again. So a crash
//! during recovery needs nothing but another recovery.

pub(super) mod block_walk;
pub(super) mod index_builder;
pub(super) mod room;
pub(super) mod salvage;
pub(super) mod scan;
pub(super) mod unreadable;

use super::batch::{JournalOp, parse_journal};
use super::below::{self, Below};
use super::checkpoint::load::{self, Roles};
use super::checkpoint::{self, Kept};
use super::layout::{parse_floor_word, tail_word};
use super::lookup::{location, look_up, rehash_all};
use super::read::{UNIT, chain_of};
use super::record::{Order, Record, RecordKind, Stamp};
use super::session::{Old, ViperSession};
use super::{Viper, index_error};
use crate::error::Error;
use crate::error::corrupt;
use crate::index::{KeyHash, Location};
use crate::options::Options;
use crate::stats::Stats;
use crate::viper::space::Space;
use everdram_pm::{Ordered, ROOT_AT};
use scan::{Found, VERSION_SOUND, scan_all, threads};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The results of recovery, for statistics.
#[derive(Default)]
pub(super) struct Summary {
    micros: u64,
    records: u64,
    losers: u64,
}

impl Summary {
    pub(super) fn fill(&self, stats: &mut Stats) {
        stats.recovery_us = self.micros;
        stats.recovered_records = self.records;
        stats.recovered_losers = self.losers;
    }
}

pub(super) fn recover(
    viper: &Arc<Viper>,
    options: &Options,
    checkpoint: Option<load::Found>,
) -> Result<(), Error> {
    let start = Instant::now();
    let hollow = viper.space.blocks.hollow.recover(&viper.pool);
    hollow.or_else(|error| viper.tolerate(error))?;
    let word = viper.pool.region().load_word(ROOT_AT);
    let floor = match parse_floor_word(viper.pool.secret(), ROOT_AT, word) {
        Some(floor) => floor,
        // The crash came before the first word of a new pool.
        None if word == 0 && viper.space.blocks.total() == 0 => 0,
        None => salvage::floor(viper, corrupt(ROOT_AT, "the root word does not verify"))?,
    };
    if floor > VERSION_SOUND {
        return Err(corrupt(ROOT_AT, "a version that no store ever reaches"));
    }
    if word == 0 {
        raise_floor(viper, 0)?;
    }
    viper.floor.store(floor, Ordering::Release);
    let (mut found, mut roles) = find_records(viper, options, checkpoint)?;
    if viper.damage.is_some() {
        unreadable::journals(viper, &mut found.journals, |at| {
            parsed(at, &journal_payload(&viper.space, at)?).map(drop)
        })?;
    }
    if let Some(floor) = higher_floor(&viper.space, &found, floor)? {
        // A batch that clears the store crashed after its journal: raise the floor, and start over.
        raise_floor(viper, floor)?;
        forget_records(viper)?;
        (found, roles) = find_records(viper, options, None)?;
    }
    free_found(&viper.space, &mut found);
    let mut session = ViperSession::new(Arc::clone(viper))?;
    session.compaction = true;
    let mut buried = Vec::new();
    if !room::is_enough(&viper.space, &found)? {
        if roles.is_some() {
            // Only a scan of all records shows which pieces are unreachable.
            viper.space.blocks.forget_free();
            forget_records(viper)?;
            (found, roles) = find_records(viper, options, None)?;
            free_found(&viper.space, &mut found);
        }
        buried = room::free_first(viper, &mut session, &mut found)?;
    }
    let applied = apply_journals(viper, &mut session, &mut found);
    applied.or_else(|error| unreadable::unfinished(viper, error))?;
    // The journals come first, because they name versions too: later writes must be newer than any of them.
    let clock = viper.below.as_ref().map_or(0, Below::clock);
    let version = found
        .version_max
        .max(viper.floor.load(Ordering::Acquire))
        .max(clock);
    viper
        .stripes
        .all()
        .for_each(|stripe| viper.stripes.raise(stripe, version));
    let _graves = session.settle_and_fence();
    for (key, stamp) in buried {
        mark_removed_dead(viper, &session, &key, stamp, &mut found)?;
    }
    mark_outdone_dead(viper, &session, &mut found)?;
    clean_up(viper, &mut session, &mut found)?;
    let mut from_log = 0;
    if let Some(below) = &viper.below {
        from_log = below::load::load_recent(viper, below, &mut found)?;
        mark_losers(&viper.space, &mut session, &mut found)?;
        // Records that a checkpoint does not know, and of which the log has a later state, get their marks by
        // verification: until then, another start may need the end of the log.
        if !viper.read_only && roles.is_none() {
            below.settle_freed(&mut session.lane);
        }
    }
    assert!(
        found.losers.is_empty() && found.free.is_empty(),
        "recovery ends with unmarked losers or unlisted free blocks"
    );
    let reached = reached_pieces(viper, &session, &found)?;
    let stable = roles.map_or(Vec::new(), |roles| roles.stable());
    viper
        .checkpoint
        .lock()
        .covers(&viper.space.blocks, stable.len());
    match stable.is_empty() {
        true => free_unreached(viper, &found, &reached),
        // Records in the skipped blocks may lead to the other pieces.
        false => viper.verification.begin(stable, found.overflow, reached),
    }
    session.count_key(found.inserted as i64);
    let summary = Summary {
        micros: start.elapsed().as_micros() as u64,
        records: found
            .inserted
            .checked_add_signed(from_log)
            .expect("the log takes no keys away that nobody has"),
        losers: found.marked,
    };
    *viper.recovery.lock() = summary;
    Ok(())
}

fn free_found(space: &Space, found: &mut Found) {
    found.free.sort_unstable();
    assert!(
        found.free.is_sorted_by(|one, next| one.0 < next.0),
        "a block was found to be free twice"
    );
    let free = std::mem::take(&mut found.free);
    space.blocks.add_free(free.into_iter());
}

/// Fills the index: from the checkpoint and the changed blocks, or from all blocks.
fn find_records(
    viper: &Arc<Viper>,
    options: &Options,
    checkpoint: Option<load::Found>,
) -> Result<(Found, Option<Roles>), Error> {
    if let Some(checkpoint) = checkpoint
        && let Some((roles, entries)) = load::load(viper, &checkpoint, threads(options))
    {
        let mut found = scan_all(viper, options, Some(&roles))?;
        found.inserted += entries;
        found.version_max = found.version_max.max(checkpoint.summary.version);
        if !found.big_keys.settle(&mut found.losers) {
            return Ok((found, Some(roles)));
        }
        // The record that proves such a record a loser may be in a block that was not read.
        forget_records(viper)?;
    }
    let _ordered = checkpoint::forget(viper);
    *viper.checkpoint.lock() = Kept::default();
    let mut found = scan_all(viper, options, None)?;
    if found.big_keys.settle(&mut found.losers) {
        found.big_keys.refuse(viper)?;
    }
    Ok((found, None))
}

/// Empties the index, before it is filled anew.
fn forget_records(viper: &Viper) -> Result<(), Error> {
    viper
        .index
        .clear(&Ordered::when_found())
        .map_err(index_error)?;
    for session in &viper.counters {
        session.keys.store(0, Ordering::Relaxed);
    }
    Ok(())
}

// ---- step 2: journals ---------------------------------------------------------------------------------

/// The payload of the journal at `at`.
pub(super) fn journal_payload(space: &Space, at: u64) -> Result<Vec<u8>, Error> {
    let reader = space.reader();
    let mut scratch = Vec::new();
    let record = reader.load(&mut reader.spot(at)?, &mut scratch)?;
    let mut payload = Vec::new();
    reader.value(&record, &scratch, &mut payload)?;
    Ok(payload)
}

pub(super) fn parsed(at: u64, payload: &[u8]) -> Result<Vec<JournalOp<'_>>, Error> {
    parse_journal(payload).ok_or_else(|| corrupt(at, "a journal does not parse"))
}

/// The floor of a live journal, if it is above the one in force.
fn higher_floor(space: &Space, found: &Found, floor: u64) -> Result<Option<u64>, Error> {
    let mut highest = floor;
    for &at in &found.journals {
        for op in parsed(at, &journal_payload(space, at)?)? {
            if let JournalOp::Clear { floor } = op {
                highest = highest.max(floor);
            }
        }
    }
    Ok((highest > floor).then_some(highest))
}

fn raise_floor(viper: &Viper, floor: u64) -> Result<(), Error> {
    assert!(
        floor >= viper.floor.load(Ordering::Acquire),
        "a new floor is below the old one: removed records would count again"
    );
    let mut lane = viper.pool.lane();
    let word = super::layout::floor_word(viper.pool.secret(), ROOT_AT, floor);
    let dirty = lane.store_word(ROOT_AT, word);
    let flushed = lane.flush(dirty);
    let _ = lane.fence(flushed);
    // In every durability class: extents are durable at once, and a pool with blocks must have a root word.
    viper.pool.sync()?;
    viper.floor.store(floor, Ordering::Release);
    Ok(())
}

/// Applies all live journals. Several may name one key, in any order. So all puts come first, of which the
/// highest version stays. Then all removals take the older records. The reverse order would be wrong: a
/// removal leaves no record behind that could stop an older put.
fn apply_journals(
    viper: &Viper,
    session: &mut ViperSession,
    found: &mut Found,
) -> Result<(), Error> {
    let floor = viper.floor.load(Ordering::Acquire);
    let mut payloads = Vec::with_capacity(found.journals.len());
    for &at in &found.journals {
        payloads.push((at, journal_payload(&viper.space, at)?));
    }
    for (at, payload) in &payloads {
        for op in parsed(*at, payload)? {
            if let JournalOp::Put {
                key,
                value,
                expires_at_ms,
                version,
            } = op
                && version > floor
            {
                found.version_max = found.version_max.max(version);
                put_again(viper, session, (key, value), expires_at_ms, version, found)?;
            }
        }
    }
    for (at, payload) in &payloads {
        for op in parsed(*at, payload)? {
            if let JournalOp::Delete { key, version } = op
                && version > floor
            {
                found.version_max = found.version_max.max(version);
                mark_removed_dead(viper, session, key, removal(version), found)?;
                bury(viper, session, key, version, found)?;
            }
        }
    }
    Ok(())
}

/// Says for a removed key that the log, which was not read yet, says nothing of it any more.
pub(super) fn bury(
    viper: &Viper,
    session: &mut ViperSession,
    key: &[u8],
    version: u64,
    found: &mut Found,
) -> Result<(), Error> {
    if viper.below.is_some() {
        session.write_grave(key, version)?;
        found.cover(key, (version, 0));
    }
    Ok(())
}

fn put_again(
    viper: &Viper,
    session: &mut ViperSession,
    (key, value): (&[u8], &[u8]),
    expires_at_ms: u64,
    version: u64,
    found: &mut Found,
) -> Result<(), Error> {
    let hash = viper.hash(key);
    let current = session.find(hash, key)?;
    if current
        .as_ref()
        .is_some_and(|(old, _)| old.stamp.version >= version)
    {
        return Ok(());
    }
    // The log was not read yet, so it may have the key.
    let order = Order::new(version, viper.below.is_some());
    let new = session.write(RecordKind::Value, key, value, expires_at_ms, order)?;
    // Readers of the index read the region, so the open line must be streamed first.
    let ordered = session.settle_and_fence();
    match current {
        Some((old, _)) => {
            let replaced = viper.index.replace(hash, old.location, new, &ordered);
            assert!(replaced, "the index changed under recovery");
            found.losers.push(old.location.get() * UNIT);
        }
        None => {
            let mut scratch = Vec::new();
            let mut again = |locations: &[Location], hashes: &mut Vec<KeyHash>| {
                rehash_all(viper, locations, &mut scratch, hashes)
            };
            viper
                .index
                .insert(hash, new, &mut again, &ordered)
                .map_err(index_error)?;
            found.inserted += 1;
        }
    }
    found.chained.push(new.get() * UNIT);
    Ok(())
}

/// The stamp of a removal with this version: at least that of any record it removes.
pub(super) fn removal(version: u64) -> Stamp {
    Stamp {
        version,
        moves: u16::MAX,
        first: false,
    }
}

// ---- step 3: the dead ---------------------------------------------------------------------------------

fn mark_outdone_dead(
    viper: &Viper,
    session: &ViperSession,
    found: &mut Found,
) -> Result<(), Error> {
    let mut scratch = Vec::new();
    for at in std::mem::take(&mut found.dead) {
        let reader = viper.reader();
        let record = reader.load(&mut reader.spot(at)?, &mut scratch)?;
        let mut buffer = Vec::new();
        // A long key lay in pieces that are gone with the value. No older record of it is left, because
        // pieces are freed only after the marks of older copies were fenced.
        let Ok(key) = reader.key(&record, &scratch, &mut buffer) else {
            continue;
        };
        let key = key.to_vec();
        if record.covers {
            found.cover(&key, record.stamp.order());
        }
        mark_removed_dead(viper, session, &key, record.stamp, found)?;
    }
    Ok(())
}

/// Removes `key` from the index if its record is not newer than `stamp`.
pub(super) fn mark_removed_dead(
    viper: &Viper,
    session: &ViperSession,
    key: &[u8],
    stamp: Stamp,
    found: &mut Found,
) -> Result<(), Error> {
    let hash = viper.hash(key);
    let mut scratch = Vec::new();
    if let Some((old, _, record)) = look_up(viper, &session.slot, hash, key, &mut scratch)?
        && record.stamp.order() <= stamp.order()
    {
        let removed = viper.index.remove(hash, old, &Ordered::when_found());
        assert!(removed, "the index changed under recovery");
        assert_ne!(found.inserted, 0, "a key is removed, and none was counted");
        found.inserted -= 1;
        found.losers.push(old.get() * UNIT);
    }
    Ok(())
}

// ---- steps 4 and 6: clean up --------------------------------------------------------------------------

/// An [`Old`] that serves only for marking.
pub(super) fn at_old(space: &Space, at: u64) -> Result<Old, Error> {
    read_old(space, at, &mut Vec::new()).map(|(old, _)| old)
}

/// As [`at_old`], with the record, whose bytes are left in `scratch`.
fn read_old(space: &Space, at: u64, scratch: &mut Vec<u8>) -> Result<(Old, Record), Error> {
    let reader = space.reader();
    let record: Record = reader.copy(&reader.spot(at)?, scratch)?;
    let chained = record.kind.is_chained();
    let old = Old {
        location: location(at)?,
        bytes: record.bytes,
        chain: chained.then(|| chain_of(&record, scratch).ok()).flatten(),
        expired: false,
        stamp: record.stamp,
        version: record.stamp.version,
        mark: Some(reader.mark_place(at)?),
        unmarkable: false,
    };
    Ok((old, record))
}

/// Marks the losers dead, and empties their list.
pub(super) fn mark_losers(
    space: &Space,
    session: &mut ViperSession,
    found: &mut Found,
) -> Result<(), Error> {
    let mut losers = std::mem::take(&mut found.losers);
    losers.sort_unstable();
    losers.dedup();
    found.marked += losers.len() as u64;
    let mut scratch = Vec::new();
    for at in losers {
        let (old, record) = read_old(space, at, &mut scratch)?;
        if record.covers
            && let Some(key) = scratch.get(record.key())
        {
            found.cover(key, record.stamp.order());
        }
        session.mark(&old)?;
        session.count_garbage(&old);
    }
    let _ordered = session.settle_and_fence();
    Ok(())
}

fn clean_up(viper: &Viper, session: &mut ViperSession, found: &mut Found) -> Result<(), Error> {
    mark_losers(&viper.space, session, found)?;
    for &at in &found.journals {
        let old = at_old(&viper.space, at)?;
        session.mark(&old)?;
        session.count_garbage(&old);
    }
    // Later pages come first: a record in one does not count, because an earlier page is open. Without this
    // order, a crash between the seals could make it count.
    seal_pages(viper, session, &found.later_pages);
    let _ordered = session.settle_and_fence();
    // The end of recovery's session fences these. A crash that loses them leaves the pages as they were.
    seal_pages(viper, session, &found.last_pages);
    Ok(())
}

fn seal_pages(viper: &Viper, session: &mut ViperSession, pages: &[(u64, u32, u32)]) {
    for &(page_at, end, epoch) in pages {
        let word = tail_word(viper.pool.secret(), page_at, epoch, end);
        let dirty = session.lane.store_word(page_at + 8, word);
        let flushed = session.lane.flush(dirty);
        session.unfenced.add(flushed);
    }
}

/// Overflow blocks to which a current record leads, among the records that were read.
pub(super) fn reached_pieces(
    viper: &Viper,
    session: &ViperSession,
    found: &Found,
) -> Result<HashSet<u32>, Error> {
    let mut reached = HashSet::new();
    let (mut scratch, mut blocks) = (Vec::new(), Vec::new());
    for &at in &found.chained {
        let reader = viper.reader();
        let record = reader.load(&mut reader.spot(at)?, &mut scratch)?;
        if !record.kind.is_chained() || !is_current(viper, session, at, &record, &scratch)? {
            continue;
        }
        blocks.clear();
        let of = (&record, &scratch[..]);
        let chain = unreadable::blocks_of(viper, session, at, of, &mut blocks)?;
        for &block in &blocks {
            if let Some(chain) = &chain
                && let Some(entry) = viper.space.blocks.get(block)
            {
                entry.set_filled((chain.bytes / u64::from(chain.pieces.max(1))) as u32);
            }
            // If one of the two were overwritten, the other would lose its value, or its key.
            if !reached.insert(block) {
                viper.tolerate(corrupt(at, "two values share a piece"))?;
            }
        }
    }
    Ok(reached)
}

pub(super) fn free_unreached(viper: &Viper, found: &Found, reached: &HashSet<u32>) {
    if viper.unreadable.is_any() {
        return;
    }
    for &(block, epoch) in &found.overflow {
        if !reached.contains(&block) {
            viper
                .space
                .blocks
                .release(block, epoch, &Ordered::when_found());
        }
    }
}

fn is_current(
    viper: &Viper,
    session: &ViperSession,
    at: u64,
    record: &Record,
    scratch: &[u8],
) -> Result<bool, Error> {
    let mut buffer = Vec::new();
    // A loser's pieces may be gone, and with them the end of a long key. Then the record is not current.
    let Ok(key) = viper.reader().key(record, scratch, &mut buffer) else {
        return Ok(false);
    };
    let place = location(at)?;
    Ok(viper.points_to(&session.slot, viper.hash(key), place))
}
