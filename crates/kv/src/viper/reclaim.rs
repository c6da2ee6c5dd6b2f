//! Space reclamation (section 4.6): blocks with enough garbage are compacted and freed; nobody stops.
//!
//! For each block: take it (`Sealed` -> `Compacting`), copy what is live into the compactor's own blocks
//! under the keys' locks (V2), swing the index, wait until no reader can hold a location in it, make every
//! mark durable that keeps an older copy dead, store the free page word and fence it. Only then may the
//! block be claimed again (V14).
//!
//! Dead records are tombstones of whatever is older than they are. Dropping them is safe: at most one copy
//! of a key is unmarked, and [`Viper::fence_marks`] makes the marks of all others durable first.
//!
//! A block with a journal that is still live belongs to a batch being applied; it waits for the next round.

use super::blocks::{Info, State};
use super::layout::{Kind, page_word};
use super::lookup::location;
use super::record::{Record, RecordKind};
use super::scan_page::{BlockWalk, copy_block};
use super::session::{Old, Pending, Replaced, ViperSession};
use super::{LooseBlock, Viper, bump_shared};
use crate::broken::Hole;
use crate::error::Error;
use crate::index::{KeyHash, Location};
use crate::stripe::{StripeId, Stripes};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks compacted under one grace period.
const ROUND: usize = 64;

/// Compacts until no block is worth it. Returns the bytes freed.
pub(super) fn reclaim_all(viper: &Viper) -> Result<u64, Error> {
    if let Some(viper) = viper.myself() {
        // Blocks that were not verified since a restart cannot be compacted.
        super::verify::verify_all(&viper)?;
    }
    let _one = viper.compaction.lock();
    let mut freed = free_loose(viper)?;
    loop {
        let before = viper.blocks.free_count();
        let round = compact_round(viper)?;
        freed += round;
        // A round that used as much room as it made found nothing worth doing.
        if round == 0 || viper.blocks.free_count() <= before {
            return Ok(freed);
        }
    }
}

/// Frees everything that was let go of, waiting for whoever still reads it. The caller holds no pin.
pub(super) fn free_all_loose(viper: &Viper) -> Result<(), Error> {
    let _one = viper.compaction.lock();
    viper.wait_for_readers(viper.epochs.advance());
    free_loose(viper).map(drop)
}

/// One round if no other is running; for the background thread.
pub(super) fn reclaim_some(viper: &Viper) -> Result<u64, Error> {
    if viper.verification.is_running() {
        return Ok(0);
    }
    let Some(_one) = viper.compaction.try_lock() else {
        return Ok(0);
    };
    Ok(free_loose(viper)? + compact_round(viper)?)
}

/// Sealed blocks over the threshold, the most garbage first.
fn candidates(viper: &Viper) -> Vec<u32> {
    let mut list: Vec<(u32, u32)> = Vec::new();
    for block in viper.blocks.all() {
        let Some(entry) = viper.blocks.get(block) else {
            continue;
        };
        let info = entry.info();
        if info.state != State::Sealed || viper.has_locked_page(block) {
            continue;
        }
        let pages = viper.geometry.pages_of(info.kind);
        let room = (pages.room() * pages.count) as f64;
        if f64::from(entry.garbage()) >= room * viper.reclaim_threshold {
            list.push((entry.garbage(), block));
        }
    }
    list.sort_unstable_by(|a, b| b.cmp(a));
    list.into_iter()
        .take(ROUND)
        .map(|(_, block)| block)
        .collect()
}

fn compact_round(viper: &Viper) -> Result<u64, Error> {
    let candidates = candidates(viper);
    if candidates.is_empty() || viper.healthy().is_err() {
        return Ok(0);
    }
    let Some(engine) = viper.myself() else {
        return Ok(0);
    };
    let mut session = ViperSession::new(engine)?;
    session.compaction = true;
    let mut emptied = Vec::new();
    let mut outcome = Ok(());
    for block in candidates {
        match empty_block(viper, &mut session, block) {
            Ok(Some(info)) => emptied.push((block, info)),
            Ok(None) => {}
            Err(error @ Error::NoSpace(_)) => {
                outcome = Err(error);
                break;
            }
            // One damaged block does not keep the others from being compacted.
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    let freed = free_blocks(viper, &mut session, &emptied)?;
    match outcome {
        // No room for copies now; what was freed may be enough for the next round.
        Err(Error::NoSpace(_)) => Ok(freed),
        Err(error) => Err(error),
        Ok(()) => Ok(freed),
    }
}

/// Moves what is live out of a block. `None`: the block is not ours to compact now.
fn empty_block(
    viper: &Viper,
    session: &mut ViperSession,
    block: u32,
) -> Result<Option<Info>, Error> {
    let Some(entry) = viper.blocks.get(block) else {
        return Ok(None);
    };
    let info = entry.info();
    if info.state != State::Sealed || !entry.advance(info, State::Compacting) {
        return Ok(None);
    }
    let taken = Info {
        state: State::Compacting,
        ..info
    };
    match move_records(viper, session, block, taken) {
        Ok(true) => Ok(Some(taken)),
        Ok(false) => {
            entry.set(info);
            Ok(None)
        }
        Err(error) => {
            entry.set(info);
            Err(error)
        }
    }
}

/// Copies what is live; on failure the originals of what was copied are marked dead, because the block
/// stays and a key has at most one unmarked record.
fn move_records(
    viper: &Viper,
    session: &mut ViperSession,
    block: u32,
    info: Info,
) -> Result<bool, Error> {
    let mut moved = Vec::new();
    let result = try_move_records(viper, session, block, info, &mut moved);
    session.commit_pending()?;
    if result.is_err() {
        for old in &moved {
            session.mark(old)?;
        }
        session.settle_and_fence();
    }
    result
}

fn try_move_records(
    viper: &Viper,
    session: &mut ViperSession,
    block: u32,
    info: Info,
    moved: &mut Vec<Old>,
) -> Result<bool, Error> {
    let at = viper.blocks.at(block);
    let mut image = Vec::new();
    copy_block(
        viper.pool.region(),
        at,
        viper.geometry.block_bytes,
        &mut image,
    );
    let walk = BlockWalk {
        secret: viper.pool.secret(),
        geometry: &viper.geometry,
        block,
        at,
        kind: info.kind,
        epoch: info.epoch,
    };
    let floor = viper.floor.load(Ordering::Acquire);
    let mut found = Vec::new();
    let mut pinned = false;
    walk.run(&mut image, &mut |visited| {
        if visited.record.kind.is_journal() {
            pinned |= !visited.dead;
        } else if visited.record.stamp.version > floor {
            found.push((visited.at, visited.dead));
        }
        Ok(())
    })?;
    if pinned {
        return Ok(false);
    }
    let mut key = Vec::new();
    for (record_at, dead) in found {
        moved.extend(move_record(viper, session, record_at, dead, &mut key)?);
    }
    Ok(true)
}

/// Copies the record at `at` if the index points to it. Dead ones are looked at too: the writer that killed
/// one may be about to take it out of the index, and must be done before the block goes. `key` is room for its key.
fn move_record(
    viper: &Viper,
    session: &mut ViperSession,
    at: u64,
    dead: bool,
    key: &mut Vec<u8>,
) -> Result<Option<Old>, Error> {
    let place = location(at)?;
    let reader = viper.reader();
    let spot = reader.spot(at)?;
    let record = reader.load(&spot, &mut session.scratch)?;
    let mut buffer = Vec::new();
    match reader.key(&record, &session.scratch, &mut buffer) {
        Ok(found) => {
            key.clear();
            key.extend_from_slice(found);
        }
        // The rest of a long key went with the value's pieces, which its writer let go as its last step.
        Err(_) if dead && record.kind == RecordKind::BigKey => return Ok(None),
        Err(error) => return Err(error),
    }
    let hash = viper.hash(key);
    let stripe = Stripes::of(hash.0);
    if viper.is_broken(Hole::V2) {
        return move_without_lock(viper, session, (hash, stripe), key, place);
    }
    session.acquire(stripe)?;
    let current = points_to(viper, session, hash, place);
    let result = match current {
        false => Ok(None),
        // Under the lock: an in-place update may have changed the value since the first look.
        true => session.find(hash, key),
    };
    let (old, record) = match result {
        Ok(Some(found)) => found,
        other => {
            session.give_back(stripe);
            return other.map(|_| None);
        }
    };
    if old.expired {
        viper.stripes.next_version(stripe);
        session.submit(Pending {
            hash,
            stripe,
            new: None,
            old: Replaced::Known(Some(old)),
            moved: false,
        })?;
        return Ok(None);
    }
    match copy_record(viper, session, key, old, &record) {
        Ok(new) => {
            bump_shared(&viper.bytes_moved, u64::from(old.bytes));
            session.submit(Pending {
                hash,
                stripe,
                new: Some(new),
                old: Replaced::Known(Some(old)),
                moved: true,
            })?;
            Ok(Some(old))
        }
        Err(error) => {
            session.give_back(stripe);
            Err(error)
        }
    }
}

/// Hole V2: the key's lock is taken only to put the copy over whatever the index has by then.
fn move_without_lock(
    viper: &Viper,
    session: &mut ViperSession,
    (hash, stripe): (KeyHash, StripeId),
    key: &[u8],
    place: Location,
) -> Result<Option<Old>, Error> {
    if !points_to(viper, session, hash, place) {
        return Ok(None);
    }
    let Some((old, record)) = session.find(hash, key)? else {
        return Ok(None);
    };
    let new = copy_record(viper, session, key, old, &record)?;
    session.acquire(stripe)?;
    session.submit(Pending {
        hash,
        stripe,
        new: Some(new),
        old: Replaced::Known(Some(old)),
        moved: true,
    })?;
    bump_shared(&viper.bytes_moved, u64::from(old.bytes));
    Ok(Some(old))
}

fn points_to(viper: &Viper, session: &ViperSession, hash: KeyHash, place: Location) -> bool {
    let pin = session.slot.pin();
    viper
        .index
        .lookup(hash, &pin, |location| location == place)
        .is_some()
}

/// Writes the same version again; a chained value keeps its pieces.
fn copy_record(
    viper: &Viper,
    session: &mut ViperSession,
    key: &[u8],
    old: Old,
    record: &Record,
) -> Result<Location, Error> {
    let (version, moves) = match old.stamp.moves.checked_add(1) {
        // Where values were changed in place, the clock spoke for the version; now the record does again.
        Some(moves) if !viper.is_edited(old.location) => (old.stamp.version, moves),
        _ => (
            viper.stripes.next_version(Stripes::of(viper.hash(key).0)),
            0,
        ),
    };
    // Taken out meanwhile, because the session writes from it.
    let scratch = std::mem::take(&mut session.scratch);
    let held = scratch.get(record.key()).unwrap_or(&[]);
    let payload = scratch.get(record.value()).unwrap_or(&[]);
    let expires_at_ms = record.expires_at_ms;
    let result = session.write(record.kind, held, payload, expires_at_ms, version, moves);
    session.scratch = scratch;
    result
}

/// Waits out the readers of emptied blocks, then frees them.
fn free_blocks(
    viper: &Viper,
    session: &mut ViperSession,
    emptied: &[(u32, Info)],
) -> Result<u64, Error> {
    if emptied.is_empty() {
        return Ok(0);
    }
    if viper.is_broken(Hole::V14) {
        return Ok(free_at_once(viper, emptied));
    }
    viper.wait_for_readers(viper.epochs.advance());
    viper.fence_marks(session);
    for &(block, info) in emptied {
        let at = viper.blocks.at(block);
        let word = page_word(viper.pool.secret(), at, Kind::Free, info.epoch);
        let dirty = session.lane.store_word(at, word);
        let flushed = session.lane.flush(dirty);
        session.unfenced.add(flushed);
    }
    session.settle_and_fence();
    for &(block, info) in emptied {
        viper.blocks.release(block, viper.last_life(info.epoch));
    }
    bump_shared(&viper.blocks_reclaimed, emptied.len() as u64);
    Ok(emptied.len() as u64 * viper.geometry.block_bytes)
}

/// Hole V14: nobody is waited for, and the pool does not know that the blocks are free.
fn free_at_once(viper: &Viper, emptied: &[(u32, Info)]) -> u64 {
    for &(block, info) in emptied {
        viper.blocks.release(block, info.epoch);
    }
    bump_shared(&viper.blocks_reclaimed, emptied.len() as u64);
    emptied.len() as u64 * viper.geometry.block_bytes
}

/// Frees the pieces of values that were replaced or removed. Recovery never looks into an overflow block
/// that no live record leads to, so they need no page word of their own; but the marks of the records that
/// led to them are fenced first.
fn free_loose(viper: &Viper) -> Result<u64, Error> {
    let mut ready: Vec<LooseBlock> = Vec::new();
    for retired in take_passed(&viper.retired, |r| viper.epochs.passed(r.grace)) {
        // Damaged pieces stay lost until the pool is opened again; `check` names them.
        let Ok(blocks) = viper.reader().chain_blocks(&retired.chain) else {
            continue;
        };
        ready.extend(blocks.into_iter().filter_map(|block| {
            let epoch = viper.blocks.get(block)?.info().epoch;
            Some(LooseBlock {
                block,
                epoch,
                grace: retired.grace,
            })
        }));
    }
    ready.extend(take_passed(&viper.loose, |l| viper.epochs.passed(l.grace)));
    if ready.is_empty() {
        return Ok(0);
    }
    let Some(engine) = viper.myself() else {
        return Ok(0);
    };
    let mut session = ViperSession::new(engine)?;
    viper.fence_marks(&mut session);
    let mut freed = 0;
    for LooseBlock { block, epoch, .. } in ready {
        let Some(entry) = viper.blocks.get(block) else {
            continue;
        };
        let info = entry.info();
        if info.state == State::Overflow && info.epoch == epoch {
            viper.blocks.release(block, epoch);
            freed += viper.geometry.block_bytes;
        }
    }
    Ok(freed)
}

fn take_passed<T>(queue: &Mutex<Vec<T>>, passed: impl Fn(&T) -> bool) -> Vec<T> {
    let mut queue = queue.lock();
    let (ready, waiting) = std::mem::take(&mut *queue)
        .into_iter()
        .partition(|item| passed(item));
    *queue = waiting;
    ready
}

impl Viper {
    /// Makes durable, of the marks that sessions left in the cache, those that keep elders dead of what is about to be
    /// dropped.
    ///
    /// The caller has held the lock of each key whose dead record it is about to drop, after that record
    /// died; so the session that marked the key's older copy had listed the mark by then.
    pub(super) fn fence_marks(&self, session: &mut ViperSession) {
        self.flush_listed_marks(session);
        // Whatever was replaced has a newer record that keeps its elders dead; only what was removed has none.
        if self.late_marks.take_removals() {
            self.flush_late_marks(session);
        }
        session.settle_and_fence();
    }

    /// Makes all marks durable that sessions left in the cache.
    pub(super) fn fence_all_marks(&self, session: &mut ViperSession) {
        self.flush_listed_marks(session);
        self.flush_late_marks(session);
        session.settle_and_fence();
    }

    /// As [`Viper::fence_all_marks`], so that the next open finds less to do.
    pub(super) fn fence_marks_at_close(self: &Arc<Self>) -> Result<(), Error> {
        if self.healthy().is_ok() {
            self.fence_all_marks(&mut ViperSession::new(Arc::clone(self))?);
        }
        Ok(())
    }

    fn flush_listed_marks(&self, session: &mut ViperSession) {
        for slot in &self.slots {
            let len = slot.marks_len.load(Ordering::Acquire);
            for mark in slot.marks.iter().take(len) {
                let at = mark.load(Ordering::Acquire);
                if at != 0 && self.pool.region().contains(at, 8) {
                    let flushed = session.lane.flush_range(at, 8);
                    session.unfenced.add(flushed);
                }
            }
        }
    }

    /// Flushes the marks of all noted pages; see `late.rs`.
    fn flush_late_marks(&self, session: &mut ViperSession) {
        self.late_marks.take(|page_at| {
            let block = self.blocks.number(page_at);
            let info = self.blocks.get(block).map(|entry| entry.info());
            // A free block has no records left that a mark would keep dead.
            if let Some(info) = info.filter(|info| info.state != State::Free) {
                let marks = 8 * self.geometry.pages_of(info.kind).mark_words;
                let flushed = session.lane.flush_range(page_at + 16, marks);
                session.unfenced.add(flushed);
            }
        });
    }

    /// Blocks until no reader can hold a location from before `epoch`.
    pub(super) fn wait_for_readers(&self, epoch: u64) {
        let mut patience = crate::stripe::Patience::new();
        while !self.epochs.passed(epoch) {
            patience.wait();
        }
    }

    pub(super) fn myself(&self) -> Option<Arc<Viper>> {
        self.weak.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ENGINE;
    use super::super::layout::Geometry;
    use super::*;
    use crate::engine::EngineSession;
    use crate::options::Options;
    use everdram_pm::Pool;
    use std::path::Path;
    use std::time::{Duration, Instant};

    fn viper() -> Arc<Viper> {
        let options = Options {
            initial_bytes: 1 << 20,
            chunk_bytes: 1 << 20,
            max_bytes: 8 << 20,
            reclaim_background: false,
            ..Options::default()
        };
        let geometry = Geometry::new(4096, 6, None).unwrap();
        let pool = Pool::heap(8 << 20, ENGINE, geometry.to_words());
        Viper::over(pool, Path::new("heap"), &options).unwrap()
    }

    fn overwrite_a_few_blocks(viper: &Arc<Viper>) {
        let mut session = ViperSession::new(Arc::clone(viper)).unwrap();
        for round in 0..3u8 {
            for number in 0..200u32 {
                session
                    .put(&number.to_le_bytes(), &[round; 400], 0)
                    .unwrap();
            }
        }
        session.commit_pending().unwrap();
    }

    /// A reader that found a location before compaction moved its record may still be reading there: the
    /// block stays as it is until the reader has gone.
    #[test]
    fn a_block_is_not_freed_under_a_reader() {
        let viper = viper();
        overwrite_a_few_blocks(&viper);
        let reader = viper.epochs.register().unwrap();
        let pin = reader.pin();
        let before = viper.epochs.current();
        std::thread::scope(|scope| {
            let compaction = scope.spawn(|| reclaim_all(&viper).unwrap());
            // Compaction gets as far as it can: everything is moved, and the epoch has begun in which the old
            // copies cannot be found any more.
            while viper.epochs.current() == before && !compaction.is_finished() {
                std::thread::yield_now();
            }
            assert!(viper.bytes_moved.load(Ordering::Relaxed) > 0);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(100) {
                assert_eq!(viper.blocks_reclaimed.load(Ordering::Relaxed), 0);
                std::thread::yield_now();
            }
            drop(pin);
            assert!(compaction.join().unwrap() > 0);
        });
        assert!(viper.blocks_reclaimed.load(Ordering::Relaxed) > 0);
    }
}
