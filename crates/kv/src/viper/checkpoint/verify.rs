//! After a restart with an index checkpoint: what recovery has not read is read while the store is in use.
//!
//! A block at a time. Its records are verified, as recovery would have verified them, and compared with the
//! index, each under its key's lock where the two differ:
//!
//! * a record that is marked dead, and that the index still points to, was removed after the checkpoint: its
//!   entry goes;
//! * a record that is not marked, and that the index does not point to, has lost to a newer one, and is
//!   marked dead: what compaction has copied, say, out of a block that it did not come to free.
//!
//! Then, when no reader is left from before, the block is [`State::Sealed`] like any other. Until all are,
//! nothing is compacted, since a dead record may be all that keeps such a loser from coming back; and no
//! checkpoint is written, so that after a crash the same one is still good. At the end, pieces of values that
//! no record leads to are freed.
//!
//! Damage that recovery would have refused to open the store with halts the engine: reads go on.
//!
//! # Until then
//! A read that comes to an unverified block asks whether the record is marked dead ([`Viper::has_died`]).
//! Whoever holds the key's lock takes the entry of such a record out of the index; a read without the lock
//! makes sure that nobody is in the middle of replacing it.

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
use std::sync::atomic::{AtomicU64, Ordering};

/// How far verification has come.
#[derive(Default)]
pub(in crate::viper) struct Verification {
    /// Blocks there were to read.
    total: AtomicU64,
    /// Blocks that are left, and 1 for what comes after them.
    left: AtomicU64,
    work: Mutex<Work>,
}

#[derive(Default)]
struct Work {
    blocks: Vec<u32>,
    /// Blocks that were overflow blocks when the store was opened, and their lives.
    overflow: Vec<(u32, u32)>,
    /// Blocks that a current record leads to.
    reached: HashSet<u32>,
}

impl Verification {
    /// Sets what there is to do; `reached` are the overflow blocks that recovery has found records for.
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
        self.total.store(count, Ordering::Relaxed);
        self.left.store(count + 1, Ordering::Release);
    }

    pub(in crate::viper) fn is_running(&self) -> bool {
        self.left.load(Ordering::Acquire) != 0
    }

    /// Blocks read, of how many; `None` if there is nothing left to do.
    pub(in crate::viper) fn progress(&self) -> Option<(u64, u64)> {
        let (left, total) = (
            self.left.load(Ordering::Acquire),
            self.total.load(Ordering::Relaxed),
        );
        (left != 0).then(|| ((total + 1).saturating_sub(left).min(total), total))
    }
}

/// Verifies everything that is left. The caller holds no stripe.
pub(in crate::viper) fn verify_all(viper: &Arc<Viper>) -> Result<(), Error> {
    while verify_some(viper, usize::MAX)? {}
    Ok(())
}

/// Blocks that are verified before their readers are waited for.
const SHARE: usize = 64;

/// Verifies up to `count` times a few blocks; `false` once nothing is left to do. The caller holds no stripe.
///
/// # Errors
/// [`Error::Corrupt`]: there is damage, and the engine has halted. [`Error::Halted`]: it had.
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
        // They stay in the list until they are verified: whoever goes on behind a thread that panicked meets
        // them again.
        let share = work.blocks.get(rest..).unwrap_or_default().to_vec();
        if share.is_empty() {
            free_unreached(viper, &mut work)?;
            viper.verification.left.store(0, Ordering::Release);
            return Ok(false);
        }
        let done = verifier.share(&share, &mut work.reached);
        done.map_err(|error| viper.halt(error))?;
        work.blocks.truncate(rest);
        let verified = share.len() as u64;
        viper
            .verification
            .left
            .fetch_sub(verified, Ordering::AcqRel);
    }
    Ok(true)
}

/// A record of the block that is being verified.
struct Met {
    hash: KeyHash,
    place: Location,
    is_dead: bool,
    is_chained: bool,
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
        // Somebody may have come from the index to a removed record before its entry went, and looks at the
        // block next: as long as he may, he has to ask for the mark.
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
        // What is counted meanwhile is marked dead before it is counted, so the walk counts it, too.
        let counted = entry.garbage();
        let walked = self.walk(block, info)?;
        let (met, keys) = (
            std::mem::take(&mut self.met),
            std::mem::take(&mut self.keys),
        );
        // Close together, so that the loads wait for memory together.
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

    /// Makes the block certain, verifies it and collects its records.
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
        if is_current == one.is_dead {
            let stripe = viper.stripe(one.hash);
            viper.stripes.lock(stripe, self.session.id);
            let result = self.reconcile(one, key);
            viper.stripes.unlock(stripe);
            result?;
        }
        // Current when it was looked at: whoever replaces it later lets go of its pieces.
        if one.is_chained && viper.points_to(&self.session.slot, one.hash, one.place) {
            self.reach(one.place, reached)?;
        }
        Ok(())
    }

    /// Makes index and record agree. The caller holds the key's stripe.
    fn reconcile(&mut self, one: &Met, key: &[u8]) -> Result<(), Error> {
        let Verifier { viper, session, .. } = self;
        // Takes the entry out if it leads to a record that is marked dead.
        look_up(viper, &session.slot, one.hash, key, &mut session.scratch)?;
        let spot = viper.reader().spot(one.place.get() * UNIT)?;
        if viper.is_marked(&spot)? || viper.points_to(&session.slot, one.hash, one.place) {
            return Ok(());
        }
        // Every record that was current when the checkpoint was made came into the index with it. Whatever
        // took this one's place may have been removed by now, so nothing but the mark says that it has lost.
        let old = crate::viper::recovery::at_old(&viper.space, spot.at)?;
        session.mark(&old)?;
        session.count_garbage(&old);
        Ok(())
    }

    /// Notes the pieces of a current record's value.
    fn reach(&mut self, place: Location, reached: &mut HashSet<u32>) -> Result<(), Error> {
        let Verifier { viper, session, .. } = self;
        // Pieces are let go with their record, and used again when no reader is left.
        let pin = session.slot.pin();
        let reader = viper.reader();
        let record = reader.load(&mut reader.spot(place.get() * UNIT)?, &mut session.scratch)?;
        let blocks =
            chain_of(&record, &session.scratch).and_then(|chain| reader.chain_blocks(&chain));
        drop(pin);
        match blocks {
            Ok(blocks) => reached.extend(blocks),
            // Replaced meanwhile, and its pieces gone.
            Err(_) if viper.is_marked(&reader.spot(place.get() * UNIT)?)? => {}
            // That concerns one key; see `unreadable.rs`.
            Err(Error::Corrupt { .. }) => viper.unreadable.note(),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Notes a record that counts.
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
        // Removed with everything else, before the checkpoint.
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
        // The rest of a long key went with the value's pieces; the index knew that before the checkpoint.
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
        key_end: keys.len(),
    });
    Ok(())
}

/// Frees the overflow blocks that no record leads to. What was let go of meanwhile has been freed already, or
/// is on its way.
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
    /// Whether memory may show what a crash would lose: a killed process leaves stores in caches.
    pub(in crate::viper) fn is_uncertain(&self) -> bool {
        !self.pool.was_clean() && self.durable_at_fence && !self.read_only
    }

    /// Whether the record at a spot is marked dead.
    pub(in crate::viper) fn is_marked(&self, spot: &Spot) -> Result<bool, Error> {
        let reader = self.reader();
        let mark = reader.mark_of(spot);
        Ok(reader.marks(mark.at, mark.epoch)? & mark.bit != 0)
    }

    /// Whether a record that the index leads to has been marked dead, which can be in an unverified block
    /// only. What is said of it here survives: a mark, and words that were changed in place, may have been in
    /// caches only.
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

    /// Takes the entry of a record that is marked dead out of the index. The caller holds the key's stripe.
    #[cold]
    pub(in crate::viper) fn mark_found_dead(&self, slot: &Slot, hash: KeyHash, place: Location) {
        // The mark was found, and fenced where that was not certain.
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

    /// An engine over what a kill has left: keys 0 to 1999, with a checkpoint of all; then the even ones were
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

    /// An engine over what a kill has left of keys 0 to 1999 after some more work.
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
        // Nothing of it ends in order.
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

    /// A reader that came from the index to a removed record asks for its mark, also if the entry goes
    /// meanwhile.
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

    /// Whoever is not shown a key that is just being removed is told that it has gone, which must be durable
    /// by then.
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

    /// A checkpoint that is made while compaction runs may know a record's copy, which lies outside of the
    /// stable blocks, and the original is found without an entry. What had replaced the copy may be gone.
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

    /// What was removed with everything else has no mark, and is garbage.
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
