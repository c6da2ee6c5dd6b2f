//! Filling the index with recovered records, while recovery has it to itself.
//!
//! Threads read blocks in parallel, and the records of a block belong anywhere in the index. So each thread
//! collects records in *rows*, by the first bits of their keys' hashes, and enters a whole row at once. One
//! lock covers the row's part of the index, instead of one for every key and segment. The part's lines lie
//! close together and are fetched side by side. Rows do not keep keys: a thread reads a key again only if the
//! index has a record of the same tag.

use super::block_walk::{BlockWalk, copy_block};
use crate::concurrency::epoch::Slot;
use crate::error::Error;
use crate::index::{KeyHash, Location, Parts};
use crate::viper::layout::{Kind, parse_page_word};
use crate::viper::lookup::{location, look_up, rehash_all};
use crate::viper::read::UNIT;
use crate::viper::record::{Record, Stamp};
use crate::viper::{Viper, index_error};
use everdram_pm::Ordered;
use std::sync::atomic::Ordering;

/// Records of a row. 64 rows are 256 KiB, which fits a processor's nearer caches.
const ROW: usize = 128;
/// A live record.
struct Waiting {
    hash: KeyHash,
    /// Offset in the pool.
    at: u64,
    stamp: Stamp,
}

/// One thread's rows.
pub(in crate::viper) struct IndexBuilder<'a> {
    viper: &'a Viper,
    parts: &'a Parts,
    slot: Slot,
    rows: Vec<Vec<Waiting>>,
    scratch: Vec<u8>,
    inserted: u64,
    losers: Vec<u64>,
}

impl<'a> IndexBuilder<'a> {
    pub(in crate::viper) fn new(viper: &'a Viper, parts: &'a Parts) -> Result<Self, Error> {
        let slot = viper
            .epochs
            .register()
            .ok_or_else(|| viper.sessions.reached())?;
        Ok(IndexBuilder {
            viper,
            parts,
            slot,
            rows: (0..parts.count()).map(|_| Vec::new()).collect(),
            scratch: Vec::new(),
            inserted: 0,
            losers: Vec::new(),
        })
    }

    /// Takes a live record. Its block is in the block table already, as one with records.
    #[inline]
    pub(in crate::viper) fn add(
        &mut self,
        hash: KeyHash,
        at: u64,
        stamp: Stamp,
    ) -> Result<(), Error> {
        let part = self.parts.part(hash);
        let Some(row) = self.rows.get_mut(part) else {
            return Ok(());
        };
        row.push(Waiting { hash, at, stamp });
        match row.len() < ROW {
            true => Ok(()),
            false => self.enter(part),
        }
    }

    /// Enters the remaining records. Returns the number of keys that came into the index, and the offsets of
    /// the losers.
    pub(in crate::viper) fn finish(mut self) -> Result<(u64, Vec<u64>), Error> {
        for part in 0..self.rows.len() {
            self.enter(part)?;
        }
        Ok((self.inserted, self.losers))
    }

    fn enter(&mut self, part: usize) -> Result<(), Error> {
        let (viper, parts) = (self.viper, self.parts);
        let Some(mut row) = self.rows.get_mut(part).map(std::mem::take) else {
            return Ok(());
        };
        let _held = parts.own(part);
        // In one loop: a load that misses the page tables blocks the others for long, but loads close
        // together miss together.
        row.iter().for_each(|one| viper.index.prefetch(one.hash));
        for one in row.drain(..) {
            self.settle(&one)?;
        }
        if let Some(empty) = self.rows.get_mut(part) {
            *empty = row;
        }
        Ok(())
    }

    /// Enters a record unless a newer one of its key is there. The caller holds the part's lock.
    #[inline]
    fn settle(&mut self, one: &Waiting) -> Result<(), Error> {
        let viper = self.viper;
        let is_known = {
            let pin = self.slot.pin();
            viper.index.candidates(one.hash, &pin).next().is_some()
        };
        if is_known && self.compete(one)? {
            return Ok(());
        }
        let mut again = |locations: &[Location], hashes: &mut Vec<KeyHash>| {
            rehash_all(viper, locations, &mut self.scratch, hashes)
        };
        viper
            .index
            .insert_alone(one.hash, location(one.at)?, &mut again)
            .map_err(index_error)?;
        self.inserted += 1;
        Ok(())
    }

    /// Replaces an older record of the key, or drops this one if a newer is there. `false` if the index does
    /// not have the key.
    #[cold]
    fn compete(&mut self, one: &Waiting) -> Result<bool, Error> {
        let (viper, new) = (self.viper, location(one.at)?);
        let reader = viper.reader();
        let record = reader.load(&mut reader.spot(one.at)?, &mut self.scratch)?;
        let mut buffer = Vec::new();
        let key = reader.key(&record, &self.scratch, &mut buffer)?.to_vec();
        // The lock of the part excludes other threads, so the key's stripe need not be taken.
        let found = look_up(viper, &self.slot, one.hash, &key, &mut self.scratch)?;
        let Some((old, _, record)) = found else {
            return Ok(false);
        };
        if one.stamp.order() > record.stamp.order() {
            viper
                .index
                .replace(one.hash, old, new, &Ordered::when_found());
            self.losers.push(old.get() * UNIT);
        } else {
            self.losers.push(one.at);
        }
        Ok(true)
    }
}

/// An estimate, from a sample, of the records in these blocks that count; 0 for few blocks. The scan reports
/// any damage.
pub(in crate::viper) fn records_in(viper: &Viper, blocks: &[u32]) -> u64 {
    /// Blocks in the sample.
    const SAMPLE: usize = 256;
    /// Blocks of the sample that must have records, so that it says something about the others.
    const TELLING: usize = 16;
    if blocks.len() < 16 * SAMPLE {
        return 0;
    }
    let floor = viper.floor.load(Ordering::Acquire);
    let (mut records, mut telling) = (0, 0);
    let mut image = Vec::new();
    for turn in 0..SAMPLE {
        // From the middle of each part: the first blocks of a pool are filled before others.
        let middle = (2 * turn + 1) * blocks.len() / (2 * SAMPLE);
        let Some(&block) = blocks.get(middle) else {
            continue;
        };
        let at = viper.space.blocks.at(block);
        let secret = viper.pool.secret();
        let word = parse_page_word(secret, at, viper.pool.region().load_word(at));
        let Some((kind, epoch)) = word else {
            continue;
        };
        if matches!(kind, Kind::Free | Kind::Overflow) {
            continue;
        }
        telling += 1;
        let (region, geometry) = (viper.pool.region(), &viper.space.geometry);
        copy_block(region, at, geometry.block_bytes, &mut image);
        let walk = BlockWalk {
            secret,
            geometry,
            block,
            at,
            kind,
            epoch,
        };
        let _ = walk.run(&mut image, &mut |visited| {
            let Record { kind, stamp, .. } = visited.record;
            let counts = !visited.dead && !kind.is_journal() && stamp.version > floor;
            records += u64::from(counts);
            Ok(())
        });
    }
    match telling < TELLING {
        true => 0,
        false => records * blocks.len() as u64 / SAMPLE as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineSession;
    use crate::engine::backend::Backend;
    use crate::engine::kind::EngineKind;
    use crate::options::Options;
    use crate::viper::layout::Geometry;
    use crate::viper::session::ViperSession;
    use everdram_pm::Pool;
    use std::path::Path;
    use std::sync::Arc;

    const KEYS: u32 = 20_000;

    /// An engine of small blocks in which every key was put `puts` times.
    fn filled(puts: u32) -> Arc<Viper> {
        let options = Options {
            initial_bytes: 1 << 20,
            chunk_bytes: 1 << 20,
            max_bytes: 16 << 20,
            checkpoint_bytes: 0,
            ..Options::default()
        };
        let geometry = Geometry::new(512, 2, None).unwrap();
        let pool = Pool::heap(16 << 20, EngineKind::Viper.number(), geometry.to_words());
        let viper = Viper::over(pool, Path::new("heap"), &options).unwrap();
        let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
        for turn in 0..puts {
            for key in 0..KEYS {
                session
                    .put(&key.to_le_bytes(), &[turn as u8; 60], 0)
                    .unwrap();
            }
        }
        session.commit_pending().unwrap();
        drop(session);
        viper
    }

    /// All records, dead or not: hash, offset, stamp.
    fn records(viper: &Viper) -> Vec<(KeyHash, u64, Stamp)> {
        let mut records = Vec::new();
        let mut image = Vec::new();
        for block in viper.space.blocks.all() {
            let info = viper.space.blocks.get(block).unwrap().info();
            let at = viper.space.blocks.at(block);
            if viper.pool.region().load_word(at) == 0 || info.kind == Kind::Free {
                continue;
            }
            let geometry = &viper.space.geometry;
            copy_block(viper.pool.region(), at, geometry.block_bytes, &mut image);
            let walk = BlockWalk {
                secret: viper.pool.secret(),
                geometry,
                block,
                at,
                kind: info.kind,
                epoch: info.epoch,
            };
            let mut key = Vec::new();
            walk.run(&mut image, &mut |visited| {
                let record = &visited.record;
                let hash = viper.hash(viper.reader().key(record, visited.bytes, &mut key)?);
                records.push((hash, visited.at, record.stamp));
                Ok(())
            })
            .unwrap();
        }
        records
    }

    #[test]
    #[cfg_attr(miri, ignore = "many records")]
    fn of_two_records_the_newer_one_wins_whoever_enters_it() {
        let viper = filled(2);
        let all = records(&viper);
        assert_eq!(all.len() as u32, 2 * KEYS);
        viper.index.clear(&Ordered::when_found()).unwrap();
        let parts = Parts::of(&viper.index);
        // One thread gets the newer records of the even keys and the older ones of the odd, so rows of both
        // meet.
        let enter = |which: usize| {
            let mut builder = IndexBuilder::new(&viper, &parts).unwrap();
            for &(hash, at, stamp) in all.iter().skip(which).step_by(2) {
                builder.add(hash, at, stamp).unwrap();
            }
            builder.finish().unwrap()
        };
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| enter(1));
            (enter(0), other.join().unwrap())
        });
        assert_eq!(one.0 + other.0, u64::from(KEYS));
        let losers: std::collections::HashSet<u64> = one.1.into_iter().chain(other.1).collect();
        assert_eq!(losers.len() as u32, KEYS);
        let slot = viper.epochs.register().unwrap();
        let newest = |hash| all.iter().rev().find(|one| one.0 == hash).unwrap();
        for &(hash, at, stamp) in &all {
            let is_current = viper.points_to(&slot, hash, location(at).unwrap());
            assert_eq!(is_current, !losers.contains(&at), "{at}");
            assert!(is_current || stamp.order() < newest(hash).2.order() || newest(hash).1 != at);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "many records")]
    fn a_sample_tells_how_many_records_will_come() {
        let viper = filled(2);
        let blocks: Vec<u32> = viper.space.blocks.all().collect();
        let told = records_in(&viper, &blocks);
        let off = told.abs_diff(u64::from(KEYS));
        assert!(off < u64::from(KEYS) / 4, "{told} records");
        let few = blocks.get(..1000).unwrap();
        assert_eq!(records_in(&viper, few), 0, "too few blocks to tell");
        let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
        let _ticket = session.clear().unwrap();
        assert_eq!(records_in(&viper, &blocks), 0, "removed with everything");
    }
}
