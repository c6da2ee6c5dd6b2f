//! Verification after a restart with a checkpoint of the index: while the store is in use, it reads the
//! blocks that recovery skipped.
//!
//! It verifies the records of one block at a time, as recovery would have, and compares them with the index.
//! Where the two differ, it takes the key's lock:
//!
//! * A record that is marked dead, but still in the index, was removed after the checkpoint: verification
//!   removes its entry.
//! * A record that is not marked, and not in the index, has lost to a newer one: verification marks it dead.
//!   For example, compaction had copied it out of a block that it did not come to free.
//!
//! When no reader from before is left, the block becomes [`State::Sealed`] like any other. Until all blocks
//! are sealed, none is compacted, because a dead record may be all that keeps such a loser from coming back.
//! Nor is a checkpoint written, so that the same one is good after a crash. At the end, pieces of values that
//! no record leads to are freed.
//!
//! Damage with which recovery would have refused to open the store halts the engine: reads go on.
//!
//! # Until then
//!
//! A reader of a record in an unverified block checks its mark ([`Viper::has_died`]). If the
//! record is dead, a holder of the key's lock removes its entry. A reader without the lock makes sure that no
//! writer is in the middle of replacing it.

use crate::concurrency::catching_up::CatchingUp;
use crate::concurrency::epoch::Slot;
use crate::concurrency::seam::few;
use crate::engine::counters::bump_signed;
use crate::error::Error;
use crate::error::corrupt;
use crate::index::{KeyHash, Location};
use crate::viper::Viper;
use crate::viper::block_table::{Info, State};
use crate::viper::compaction::retired::Retired;
use crate::viper::layout::Kind;
use crate::viper::lookup::{location, look_up};
use crate::viper::read::{Spot, UNIT, chain_of};
use crate::viper::record::Record;
use crate::viper::recovery::block_walk::{BlockWalk, Visited, Walked, copy_block};
use crate::viper::recovery::scan::VERSION_SOUND;
use crate::viper::session::ViperSession;
use everdram_pm::Ordered;
use everdram_pm::lock::lock;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The progress of verification.
#[derive(Default)]
pub(in crate::viper) struct Verification {
    /// In blocks; the last step frees the unreached pieces.
    blocks: CatchingUp,
    work: Mutex<Work>,
}

#[derive(Default)]
struct Work {
    blocks: Vec<u32>,
    /// Overflow blocks at the open of the store, and their lives.
    overflow: Vec<(u32, u32)>,
    /// Overflow blocks to which a current record leads.
    reached: HashSet<u32>,
}

impl Verification {
    /// Sets the work; `reached` are the overflow blocks for which recovery has found records.
    pub(in crate::viper) fn begin(
        &self,
        blocks: Vec<u32>,
        overflow: Vec<(u32, u32)>,
        reached: HashSet<u32>,
    ) {
        let count = blocks.len() as u64;
        *self.work.lock() = Work {
            blocks,
            overflow,
            reached,
        };
        self.blocks.begin(count);
    }

    pub(in crate::viper) fn is_running(&self) -> bool {
        self.blocks.is_running()
    }

    /// Blocks read, and blocks to read; `None` once verification is done.
    pub(in crate::viper) fn progress(&self) -> Option<(u64, u64)> {
        self.blocks.progress()
    }
}

/// Verifies all remaining blocks. The caller holds no stripe.
pub(in crate::viper) fn verify_all(viper: &Arc<Viper>) -> Result<(), Error> {
    while verify_some(viper, usize::MAX)? {}
    Ok(())
}

/// Blocks that are verified before one wait for readers.
const SHARE: usize = 64;

/// Verifies up to `count` shares of blocks; `false` once nothing is left. The caller holds no stripe.
///
/// # Errors
/// [`Error::Corrupt`]: a block is damaged, and the engine has halted. [`Error::Halted`]: it had halted
/// before.
pub(in crate::viper) fn verify_some(viper: &Arc<Viper>, count: usize) -> Result<bool, Error> {
    if !viper.verification.is_running() {
        return Ok(false);
    }
    let mut work = lock(&viper.verification.work);
    if !viper.verification.is_running() {
        return Ok(false);
    }
    viper.healthy()?;
    let mut verifier = Verifier {
        session: ViperSession::new(Arc::clone(viper))?,
        viper: Arc::clone(viper),
        image: Vec::new(),
        met: Vec::new(),
        keys: Vec::new(),
    };
    for _ in 0..count {
        let rest = work.blocks.len().saturating_sub(few!(SHARE));
        // They stay in the list until they are verified. If this thread panics, the next one meets them
        // again.
        let share = work.blocks.get(rest..).unwrap_or_default().to_vec();
        if share.is_empty() {
            free_unreached(viper, &mut work)?;
            viper.verification.blocks.end();
            return Ok(false);
        }
        let done = verifier.share(&share, &mut work.reached);
        done.map_err(|error| viper.halt(error))?;
        work.blocks.truncate(rest);
        viper.verification.blocks.advance(share.len() as u64);
    }
    Ok(true)
}

/// A record of the block that is being verified.
struct Met {
    hash: KeyHash,
    place: Location,
    is_dead: bool,
    is_chained: bool,
    /// The order up to which the record says that the log is void, while the log is still to be read.
    covers: Option<(u64, u16)>,
    /// Where its key ends in [`Verifier::keys`]; it begins where the one before it ends.
    key_end: usize,
}

struct Verifier {
    viper: Arc<Viper>,
    session: ViperSession,
    image: Vec<u8>,
    met: Vec<Met>,
    keys: Vec<u8>,
}

impl Verifier {
    fn share(&mut self, blocks: &[u32], reached: &mut HashSet<u32>) -> Result<(), Error> {
        for &block in blocks {
            self.block(block, reached)?;
        }
        let _ordered = self.session.settle_and_fence();
        // A reader may have followed an entry to a removed record before the entry went. As long as it may
        // still look at the block, it must check the mark.
        self.viper.wait_for_readers(self.viper.epochs.advance());
        for entry in blocks
            .iter()
            .filter_map(|&block| self.viper.space.blocks.get(block))
        {
            let info = entry.info();
            if info.state == State::Unverified {
                entry.advance(info, State::Sealed);
            }
        }
        Ok(())
    }

    fn block(&mut self, block: u32, reached: &mut HashSet<u32>) -> Result<(), Error> {
        let viper = Arc::clone(&self.viper);
        let Some(entry) = viper.space.blocks.get(block) else {
            return Ok(());
        };
        let info = entry.info();
        if info.state != State::Unverified {
            return Ok(());
        }
        // Writers mark a record before they count it, so the walk also counts what they count meanwhile.
        let counted = entry.garbage();
        let walked = self.walk(block, info)?;
        let (met, keys) = (
            std::mem::take(&mut self.met),
            std::mem::take(&mut self.keys),
        );
        // In one loop, so that the loads wait for memory together.
        met.iter().for_each(|one| viper.index.prefetch(one.hash));
        let mut from = 0;
        for one in &met {
            let key = keys.get(from..one.key_end).unwrap_or(&[]);
            self.compare(one, key, reached)?;
            from = one.key_end;
        }
        (self.met, self.keys) = (met, keys);
        entry.set_filled(walked.filled as u32);
        entry.add_garbage((walked.dead as u32).saturating_sub(counted));
        entry.set_slack(walked.slack as u32);
        Ok(())
    }

    /// Makes the block's bytes durable if they may not be, verifies the block and collects its records.
    fn walk(&mut self, block: u32, info: Info) -> Result<Walked, Error> {
        let Verifier {
            viper,
            session,
            image,
            met,
            keys,
        } = self;
        let (at, bytes) = (
            viper.space.blocks.at(block),
            viper.space.geometry.block_bytes,
        );
        if viper.is_uncertain() {
            let flushed = session.lane.flush_found(at, bytes);
            session.unfenced.add(flushed);
            let _ordered = session.settle_and_fence();
        }
        met.clear();
        keys.clear();
        copy_block(viper.pool.region(), at, bytes, image);
        let walk = BlockWalk {
            secret: viper.pool.secret(),
            geometry: &viper.space.geometry,
            block,
            at,
            kind: info.kind,
            epoch: info.epoch,
        };
        let walked = walk.run(image, &mut |visited| meet(viper, &visited, met, keys))?;
        match walked.open_pages.first() {
            None => Ok(walked),
            Some((page_at, _)) => Err(corrupt(*page_at, "a sealed block has an open page")),
        }
    }

    fn compare(&mut self, one: &Met, key: &[u8], reached: &mut HashSet<u32>) -> Result<(), Error> {
        let viper = Arc::clone(&self.viper);
        let is_current = viper.points_to(&self.session.slot, one.hash, one.place);
        if let (Some(order), Some(below)) = (one.covers, &viper.below)
            && (one.is_dead || !is_current)
        {
            below.loading.note_cover(key, order);
        }
        if is_current == one.is_dead {
            let stripe = viper.stripe(one.hash);
            viper.stripes.lock(stripe, self.session.id);
            let result = self.reconcile(one, key);
            viper.stripes.unlock(stripe);
            result?;
        }
        // The record is current at this look; a later writer that replaces it retires its pieces.
        if one.is_chained && viper.points_to(&self.session.slot, one.hash, one.place) {
            self.reach(one.place, reached)?;
        }
        Ok(())
    }

    /// Makes index and mark agree. The caller holds the key's stripe.
    fn reconcile(&mut self, one: &Met, key: &[u8]) -> Result<(), Error> {
        let Verifier { viper, session, .. } = self;
        // Removes the entry if it leads to a dead record.
        look_up(viper, &session.slot, one.hash, key, &mut session.scratch)?;
        let spot = viper.reader().spot(one.place.get() * UNIT)?;
        if viper.is_marked(&spot)? || viper.points_to(&session.slot, one.hash, one.place) {
            return Ok(());
        }
        // Each record that was current at the checkpoint got its entry from it, so this one has lost. The
        // record that replaced it may be removed by now, so only a mark keeps this one dead.
        let old = crate::viper::recovery::at_old(&viper.space, spot.at)?;
        session.mark(&old)?;
        session.count_garbage(&old);
        Ok(())
    }

    /// Notes the pieces of a current record's value.
    fn reach(&mut self, place: Location, reached: &mut HashSet<u32>) -> Result<(), Error> {
        let Verifier { viper, session, .. } = self;
        // The pin covers the pieces: they are retired with their record, and reused when no reader is left.
        let pin = session.slot.pin();
        let reader = viper.reader();
        let record = reader.load(&mut reader.spot(place.get() * UNIT)?, &mut session.scratch)?;
        let blocks =
            chain_of(&record, &session.scratch).and_then(|chain| reader.chain_blocks(&chain));
        drop(pin);
        match blocks {
            Ok(blocks) => reached.extend(blocks),
            // The record was replaced meanwhile, and its pieces freed.
            Err(_) if viper.is_marked(&reader.spot(place.get() * UNIT)?)? => {}
            // The damage concerns one key; see `unreadable.rs`.
            Err(Error::Corrupt { .. }) => viper.unreadable.note(),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Collects a record that counts.
fn meet(
    viper: &Viper,
    visited: &Visited<'_>,
    met: &mut Vec<Met>,
    keys: &mut Vec<u8>,
) -> Result<(), Error> {
    let record = &visited.record;
    if record.stamp.version > VERSION_SOUND {
        return Err(corrupt(visited.at, "a version that no store ever reaches"));
    }
    if record.kind.is_journal() {
        return match visited.dead {
            true => Ok(()),
            false => Err(corrupt(
                visited.at,
                "a checkpoint covers an unfinished batch",
            )),
        };
    }
    if record.stamp.version <= viper.floor.load(Ordering::Acquire) {
        // A clear before the checkpoint removed it.
        if let Some(entry) = viper
            .space
            .blocks
            .get(viper.space.blocks.number(visited.at))
            && !visited.dead
        {
            entry.add_garbage(record.bytes);
        }
        return Ok(());
    }
    let mut buffer = Vec::new();
    let key = match viper.reader().key(record, visited.bytes, &mut buffer) {
        Ok(key) => key,
        // The rest of a long key went with the value's pieces. The index had no entry of it at the
        // checkpoint.
        Err(_) if visited.dead => return Ok(()),
        Err(error) => return Err(error),
    };
    let hash = viper.hash(key);
    keys.extend_from_slice(key);
    met.push(Met {
        hash,
        place: location(visited.at)?,
        is_dead: visited.dead,
        is_chained: record.kind.is_chained(),
        covers: (record.covers && viper.is_loading()).then(|| record.stamp.order()),
        key_end: keys.len(),
    });
    Ok(())
}

/// Frees the overflow blocks that no record leads to. Those retired meanwhile are freed or queued already.
fn free_unreached(viper: &Arc<Viper>, work: &mut Work) -> Result<(), Error> {
    if viper.unreadable.is_any() {
        work.overflow.clear();
    }
    let unreached = std::mem::take(&mut work.overflow)
        .into_iter()
        .filter(|(block, _)| !work.reached.contains(block))
        .map(|(block, life)| Retired::Piece(block, life));
    let unreached = unreached.collect();
    work.reached = HashSet::new();
    viper.compaction.retired.push(&viper.epochs, unreached);
    viper.compactor().free_passed(viper).map(drop)
}

impl Viper {
    /// Whether memory may show bytes that a crash would lose: a killed process leaves stores in caches.
    pub(in crate::viper) fn is_uncertain(&self) -> bool {
        !self.pool.was_clean() && self.durable_at_fence && !self.read_only
    }

    /// Whether the record at a spot is marked dead.
    pub(in crate::viper) fn is_marked(&self, spot: &Spot) -> Result<bool, Error> {
        let reader = self.reader();
        let mark = reader.mark_of(spot);
        Ok(reader.marks(mark.at, mark.epoch)? & mark.bit != 0)
    }

    /// Whether a record to which the index leads is marked dead; only one in an unverified block can be.
    /// Makes its answer durable: the mark, and words edited in place, may have been only in caches.
    #[cold]
    pub(in crate::viper) fn has_died(&self, spot: &Spot, record: &Record) -> Result<bool, Error> {
        let is_marked = self.is_marked(spot)?;
        let is_edited = spot.info.kind == Kind::FixedEdited;
        if self.is_uncertain() && (is_marked || is_edited) {
            let mut lane = self.pool.lane();
            let mark = self.reader().mark_of(spot);
            let mark = lane.flush_found(mark.at, 8);
            let value = lane.flush_found(spot.at, u64::from(record.bytes));
            let _ordered = lane.fence(mark.and(value));
        }
        Ok(is_marked)
    }

    /// Removes the entry of a dead record from the index. The caller holds the key's stripe.
    #[cold]
    pub(in crate::viper) fn mark_found_dead(&self, slot: &Slot, hash: KeyHash, place: Location) {
        // The caller found the mark, and fenced it where it might not have been durable.
        if self.index.remove(hash, place, &Ordered::when_found())
            && let Some(counters) = self.counters.get(slot.number())
        {
            bump_signed(&counters.keys, -1);
        }
    }

    /// Whether the index leads to a place.
    pub(in crate::viper) fn points_to(&self, slot: &Slot, hash: KeyHash, place: Location) -> bool {
        let pin = slot.pin();
        let found = self.index.lookup(hash, &pin, |location| location == place);
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::backend::Backend;
    use crate::engine::kind::EngineKind;
    use crate::engine::{Engine, EngineSession};
    use crate::options::Options;
    use crate::viper::layout::Geometry;
    use everdram_pm::Pool;
    use std::path::Path;
    use std::time::{Duration, Instant};

    /// An engine over the remains of a kill: keys 0 to 1999, a checkpoint of all of them, then the even ones
    /// removed.
    fn restarted() -> Arc<Viper> {
        over(&|session| {
            session.engine.checkpoint().unwrap();
            for number in (0..2000_u32).step_by(2) {
                assert!(session.delete(&number.to_le_bytes()).unwrap());
            }
            session.commit_pending().unwrap();
        })
    }

    /// An engine over the remains of a kill: keys 0 to 1999, then some more work.
    fn over(work: &dyn Fn(&mut ViperSession)) -> Arc<Viper> {
        let options = Options {
            initial_bytes: 1 << 20,
            chunk_bytes: 1 << 20,
            max_bytes: 8 << 20,
            checkpoint_bytes: 0,
            ..Options::default()
        };
        let geometry = Geometry::new(4096, 6, None).unwrap();
        let pool = Pool::heap(8 << 20, EngineKind::Viper.number(), geometry.to_words());
        let open = || Viper::over(Arc::clone(&pool), Path::new("heap"), &options).unwrap();
        let viper = open();
        let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
        for number in 0..2000_u32 {
            session.put(&number.to_le_bytes(), &[7; 200], 0).unwrap();
        }
        session.commit_pending().unwrap();
        work(&mut session);
        // Neither is closed.
        std::mem::forget((session, viper));
        open()
    }

    fn unverified(viper: &Viper) -> usize {
        let states = viper
            .space
            .blocks
            .all()
            .filter_map(|block| viper.space.blocks.get(block));
        states
            .filter(|entry| entry.info().state == State::Unverified)
            .count()
    }

    /// A reader that followed an entry to a removed record checks its mark, even if the entry goes meanwhile.
    #[test]
    fn a_block_stays_unverified_under_a_reader() {
        let viper = restarted();
        let blocks = unverified(&viper);
        assert!(blocks > 10, "{blocks} blocks");
        let reader = viper.epochs.register().unwrap();
        let pin = reader.pin();
        let before = viper.epochs.current();
        std::thread::scope(|scope| {
            let verification = scope.spawn(|| verify_all(&viper).unwrap());
            while viper.epochs.current() == before && !verification.is_finished() {
                std::thread::yield_now();
            }
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(100) {
                assert_eq!(unverified(&viper), blocks);
                std::thread::yield_now();
            }
            drop(pin);
            verification.join().unwrap();
        });
        assert_eq!((unverified(&viper), viper.len()), (0, 1000));
    }

    /// An iteration that skips a key tells its caller that the key has gone. The removal must be durable by
    /// then.
    #[test]
    fn an_iteration_waits_for_the_removal_that_it_has_seen() {
        let viper = restarted();
        let mut user = ViperSession::new(Arc::clone(&viper)).unwrap();
        let key = 1_u32.to_le_bytes();
        let hash = viper.hash(&key);
        let stripe = viper.stripe(hash);
        user.acquire(stripe).unwrap();
        let (old, _) = user.find(hash, &key).unwrap().unwrap();
        user.mark(&old).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reader = ViperSession::new(Arc::clone(&viper)).unwrap();
                let (mut cursor, mut keys) = (0, 0);
                loop {
                    cursor = reader.scan(cursor, 64, &mut |_, _, _| keys += 1).unwrap();
                    if cursor == 0 {
                        return keys;
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(100));
            assert!(!reader.is_finished(), "shown before it was fenced");
            let _ordered = user.settle_and_fence();
            user.give_back(stripe);
            assert_eq!(reader.join().unwrap(), 999);
        });
    }

    /// A checkpoint made during compaction may know a record's copy, which lies outside the stable blocks.
    /// The original is then found without an entry, and the record that replaced the copy may be gone.
    #[test]
    fn a_record_without_an_entry_has_lost() {
        let viper = restarted();
        let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
        let key = 1001_u32.to_le_bytes();
        let hash = viper.hash(&key);
        let (old, _) = session.find(hash, &key).unwrap().unwrap();
        assert!(
            viper
                .index
                .remove(hash, old.location, &Ordered::when_found())
        );
        session.count_key(-1);
        verify_all(&viper).unwrap();
        let mut value = Vec::new();
        assert!(session.get(&key, &mut value).unwrap().is_none());
        let spot = viper.reader().spot(old.location.get() * UNIT).unwrap();
        assert!(viper.is_marked(&spot).unwrap());
        assert_eq!(viper.len(), 999);
    }

    /// Records that a clear removed have no marks, and are garbage.
    #[test]
    fn what_the_floor_covers_is_garbage() {
        let viper = over(&|session| {
            let _ticket = session.clear().unwrap();
            for number in 3000..3100_u32 {
                session.put(&number.to_le_bytes(), &[7; 200], 0).unwrap();
            }
            session.commit_pending().unwrap();
            session.engine.checkpoint().unwrap();
        });
        assert!(unverified(&viper) > 10);
        verify_all(&viper).unwrap();
        assert_eq!(viper.len(), 100);
        viper.reclaim().unwrap();
        let stats = viper.stats();
        assert!(stats.blocks_sealed < 4, "{stats:?}");
    }

    #[test]
    fn damage_that_is_found_later_halts_the_engine() {
        let viper = restarted();
        let is_unverified = |block: &u32| {
            let entry = viper.space.blocks.get(*block);
            entry.is_some_and(|entry| entry.info().state == State::Unverified)
        };
        let block = viper.space.blocks.all().find(is_unverified).unwrap();
        let at = viper.space.blocks.at(block) + 64 + 32;
        let word = viper.pool.region().load_word(at);
        let _dirty = viper.pool.lane().store_word(at, word ^ 1);
        assert!(matches!(
            viper.verify(),
            Err(Error::Corrupt { offset, .. }) if viper.space.blocks.number(offset) == block
        ));
        let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
        let mut value = Vec::new();
        assert!(
            session
                .get(&1999_u32.to_le_bytes(), &mut value)
                .unwrap()
                .is_some()
        );
        assert!(matches!(
            session.put_now(b"key", b"value", 0),
            Err(Error::Halted(_))
        ));
    }
}
