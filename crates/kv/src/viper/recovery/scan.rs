//! Step 1 of recovery: threads share the blocks, and every record that counts goes into the index.

use super::block_walk::{BlockWalk, Visited, copy_block};
use super::index_builder::{IndexBuilder, records_in};
use super::salvage;
use super::unreadable::BigKeys;
use crate::concurrency::stripes::VERSION_MAX;
use crate::engine::persist_on_read::ReadFlusher;
use crate::error::Error;
use crate::error::corrupt;
use crate::index::Parts;
use crate::options::{Options, Progress};
use crate::viper::Viper;
use crate::viper::block_table::{Info, State};
use crate::viper::checkpoint::load::Roles;
use crate::viper::claim::page_order;
use crate::viper::layout::{Kind, begun_epoch, parse_page_word, parse_tail_word};
use crate::viper::record::RecordKind;
use everdram_pm::ROOT_AT;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// No pool reaches this version in a thousand years; a greater one was forged.
pub(in crate::viper) const VERSION_SOUND: u64 = VERSION_MAX / 2;

/// The greatest (version, moves) up to which tier 1 says that the log of a lower tier says nothing of a key.
pub(in crate::viper) type Covers = HashMap<Box<[u8]>, (u64, u16)>;

/// The results of the threads.
#[derive(Default)]
pub(in crate::viper) struct Found {
    /// Unmarked records that do not count: offsets.
    pub(in crate::viper) losers: Vec<u64>,
    /// How many losers were marked dead.
    pub(in crate::viper) marked: u64,
    /// Records marked dead: offsets.
    pub(in crate::viper) dead: Vec<u64>,
    /// Live journals: offsets.
    pub(in crate::viper) journals: Vec<u64>,
    /// Live records whose value is chained: offsets.
    pub(in crate::viper) chained: Vec<u64>,
    /// The first open page of each block, where its log of records ends: (offset, end, epoch).
    pub(in crate::viper) last_pages: Vec<(u64, u32, u32)>,
    /// Open pages after those, where no record counts.
    pub(in crate::viper) later_pages: Vec<(u64, u32, u32)>,
    pub(in crate::viper) free: Vec<(u32, u32)>,
    pub(in crate::viper) overflow: Vec<(u32, u32)>,
    pub(in crate::viper) big_keys: BigKeys,
    /// What dead records say of the log.
    pub(in crate::viper) covers: Covers,
    pub(in crate::viper) inserted: u64,
    pub(in crate::viper) version_max: u64,
}

/// Notes that the log says nothing of a key up to this order.
pub(in crate::viper) fn cover(covers: &mut Covers, key: &[u8], order: (u64, u16)) {
    let highest = covers.entry(key.into()).or_insert(order);
    *highest = order.max(*highest);
}

impl Found {
    /// Notes what a dead record says of the log.
    pub(in crate::viper) fn cover(&mut self, key: &[u8], order: (u64, u16)) {
        cover(&mut self.covers, key, order);
    }

    fn merge(&mut self, other: Found) {
        self.losers.extend(other.losers);
        self.dead.extend(other.dead);
        self.journals.extend(other.journals);
        self.chained.extend(other.chained);
        self.last_pages.extend(other.last_pages);
        self.later_pages.extend(other.later_pages);
        self.free.extend(other.free);
        self.overflow.extend(other.overflow);
        self.big_keys.merge(other.big_keys);
        self.inserted += other.inserted;
        self.version_max = self.version_max.max(other.version_max);
    }
}

/// Threads that recover a store.
pub(in crate::viper) fn threads(options: &Options) -> usize {
    options.recoverers().min(options.sessions_max)
}

/// Puts the records of every block into the index, in parallel; with `roles`, only of the blocks to be read.
pub(in crate::viper) fn scan_all(
    viper: &Arc<Viper>,
    options: &Options,
    roles: Option<&Roles>,
) -> Result<Found, Error> {
    let is_read = |block: &u32| roles.is_none_or(|roles| roles.is_read(*block));
    let blocks: Vec<u32> = viper.space.blocks.all().filter(is_read).collect();
    let threads = threads(options).min(blocks.len() / 64 + 1);
    if roles.is_none() {
        // Without this room the index grows as records come, and reports then if memory is short.
        let below = viper.below.as_ref().map_or(0, |below| below.log.estimate());
        let _ = viper.index.make_room(records_in(viper, &blocks) + below);
    }
    let next = AtomicUsize::new(0);
    let done = AtomicU64::new(0);
    let all = Mutex::new(Found::default());
    let failure = Mutex::new(None);
    let progress = options.progress.as_ref();
    let parts = Parts::of(&viper.index);
    let scan = || {
        let builder = IndexBuilder::new(viper, &parts)?;
        let scan = Scan {
            viper,
            builder,
            found: Found::default(),
            roles,
            // After a clean shutdown everything is durable.
            certain: viper.is_uncertain().then(|| certain(viper)),
        };
        scan_share(scan, &blocks, &next, &done, progress)
    };
    let work = || match scan() {
        Ok(found) => all.lock().merge(found),
        Err(error) => {
            // The first error is kept; the other threads stop at their next share.
            next.store(blocks.len(), Ordering::Relaxed);
            failure.lock().get_or_insert(error);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(all.into_inner()),
    }
}

fn scan_share(
    mut scan: Scan<'_>,
    blocks: &[u32],
    next: &AtomicUsize,
    done: &AtomicU64,
    progress: Option<&Progress>,
) -> Result<Found, Error> {
    const SHARE: usize = 32;
    let mut image = Vec::new();
    loop {
        let from = next.fetch_add(SHARE, Ordering::Relaxed);
        let Some(share) = blocks.get(from..(from + SHARE).min(blocks.len())) else {
            break;
        };
        for &block in share {
            scan.block(block, &mut image)?;
        }
        let seen = done.fetch_add(share.len() as u64, Ordering::Relaxed) + share.len() as u64;
        if let Some(progress) = progress {
            progress(seen, blocks.len() as u64);
        }
        if share.is_empty() {
            break;
        }
    }
    if let Some(mut certain) = scan.certain {
        certain.settle();
    }
    let (inserted, losers) = scan.builder.finish()?;
    scan.found.inserted += inserted;
    scan.found.losers.extend(losers);
    Ok(scan.found)
}

/// Makes the bytes that recovery reads durable, because a killed process leaves stores in caches. Without
/// this, a power loss could take back a record that was shown, or a mark for which compaction dropped a newer
/// record.
fn certain(viper: &Viper) -> ReadFlusher {
    let mut certain = ReadFlusher::new(viper.pool.lane());
    certain.keep(ROOT_AT, 8);
    certain
}

/// One thread's part of the scan.
struct Scan<'a> {
    viper: &'a Viper,
    builder: IndexBuilder<'a>,
    found: Found,
    /// The roles of blocks, if the index began with a checkpoint.
    roles: Option<&'a Roles>,
    certain: Option<ReadFlusher>,
}

/// How far the life in the tail word of a reclaimed hollow block may lie below the bound of hollow blocks.
const HOLLOW_LIVES: u32 = 0xfffe;

impl Scan<'_> {
    fn block(&mut self, block: u32, image: &mut Vec<u8>) -> Result<(), Error> {
        let viper = self.viper;
        let Some(entry) = viper.space.blocks.get(block) else {
            return Ok(());
        };
        let at = viper.space.blocks.at(block);
        let (secret, region) = (viper.pool.secret(), viper.pool.region());
        let word = region.load_word(at);
        let tail = region.load_word(at + 8);
        let lives = viper.space.blocks.hollow.lives();
        let before = lives.saturating_sub(HOLLOW_LIVES);
        let (kind, epoch) = match word {
            // Never claimed, or hollow. Or it was claimed afterwards, and the crash kept the header but not
            // the page word.
            0 if tail == 0 || begun_epoch(secret, at, before, tail) != before => {
                salvage::doubt_unused(viper, block);
                (Kind::Free, lives)
            }
            word => match parse_page_word(secret, at, word) {
                Some(parsed) => parsed,
                None => {
                    let error = corrupt(at, "the page word of a block does not verify");
                    match salvage::life(viper, block, error)? {
                        Some(life) => life,
                        None => return Ok(()),
                    }
                }
            },
        };
        if let Some(certain) = &mut self.certain {
            // A free block has only the words of its first line.
            let bytes = match kind {
                Kind::Free => 16,
                _ => viper.space.geometry.block_bytes,
            };
            certain.keep(at, bytes);
        }
        match kind {
            Kind::Free => {
                if let Err(error) = self.really_free(block, at, epoch) {
                    return match salvage::life(viper, block, error)? {
                        Some((kind, life)) if !matches!(kind, Kind::Free | Kind::Overflow) => {
                            self.records(block, at, kind, life, image)
                        }
                        _ => Ok(()),
                    };
                }
                self.found
                    .free
                    .push((block, begun_epoch(secret, at, epoch, tail)));
            }
            Kind::Overflow => {
                // An unreachable block may have begun another life already. The pieces themselves say in
                // which life they were written.
                let begun = begun_epoch(secret, at, epoch, tail);
                entry.set(Info {
                    state: State::Overflow,
                    kind,
                    epoch: begun,
                });
                self.found.overflow.push((block, begun));
            }
            _ => self.records(block, at, kind, epoch, image)?,
        }
        Ok(())
    }

    /// Detects a block that looks free because it lost its page word (to a zeroed sector, say). A finished
    /// page of a later life proves that the page word was durable once. The check reads the page that such a
    /// life fills first, or the second one if the first is the damaged one.
    fn really_free(&self, block: u32, at: u64, epoch: u32) -> Result<(), Error> {
        let viper = self.viper;
        let (secret, region) = (viper.pool.secret(), viper.pool.region());
        let pages = viper.space.geometry.pages_of(Kind::Variable);
        let first = page_order(pages, block, epoch.wrapping_add(1), 0);
        let page_at = at + if first == 0 { 1 % pages.count } else { first } * pages.bytes;
        if page_at == at {
            return Ok(());
        }
        let Some((kind, life)) = parse_page_word(secret, page_at, region.load_word(page_at)) else {
            return Ok(());
        };
        let tail = parse_tail_word(secret, page_at, life, region.load_word(page_at + 8));
        let used = tail.is_some_and(|tail| u64::from(tail) > pages.header);
        if life == epoch.wrapping_add(1) && used && matches!(kind, Kind::Variable | Kind::Fixed) {
            return Err(corrupt(
                at,
                "the page word of a block that was in use is gone",
            ));
        }
        Ok(())
    }

    fn records(
        &mut self,
        block: u32,
        at: u64,
        kind: Kind,
        epoch: u32,
        image: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let viper = self.viper;
        let Some(entry) = viper.space.blocks.get(block) else {
            return Ok(());
        };
        // Set before its records enter the index, because other threads resolve locations through it.
        entry.set(Info {
            state: State::Sealed,
            kind,
            epoch,
        });
        copy_block(
            viper.pool.region(),
            at,
            viper.space.geometry.block_bytes,
            image,
        );
        entry.set_garbage(0);
        let (secret, geometry) = (viper.pool.secret(), &viper.space.geometry);
        let walk = BlockWalk {
            secret,
            geometry,
            block,
            at,
            kind,
            epoch,
        };
        let covered = self.roles.map_or(0, |roles| roles.covered(block));
        let walked = match &viper.damage {
            None => walk.run(image, &mut |visited| self.record(&visited, covered))?,
            Some(damage) => salvage::walk(viper, damage, &walk, image, &mut |visited| {
                self.record(&visited, covered)
                    .or_else(|error| viper.tolerate(error))
            })?,
        };
        entry.set_filled(walked.filled as u32);
        entry.add_garbage(walked.dead as u32);
        entry.set_slack(walked.slack as u32);
        let mut open = walked
            .open_pages
            .into_iter()
            .map(|(page_at, end)| (page_at, end, epoch));
        self.found.last_pages.extend(open.next());
        self.found.later_pages.extend(open);
        Ok(())
    }

    /// Takes a record of a block whose first `covered` bytes the checkpoint covers.
    fn record(&mut self, visited: &Visited<'_>, covered: u64) -> Result<(), Error> {
        let version = visited.record.stamp.version;
        if version > VERSION_SOUND {
            return Err(corrupt(visited.at, "a version that no store ever reaches"));
        }
        self.found.version_max = self.found.version_max.max(version);
        if visited.record.kind.is_journal() {
            // After a clean shutdown all are dead, even those whose marks had to be mended.
            let is_over = self.viper.damage.is_some() && self.viper.pool.was_clean();
            if !visited.dead && !is_over {
                self.found.journals.push(visited.at);
            }
        } else if version <= self.viper.floor.load(Ordering::Acquire) {
            // A clear removed it.
            if let Some(entry) = self
                .viper
                .space
                .blocks
                .get(self.viper.space.blocks.number(visited.at))
                && !visited.dead
            {
                entry.add_garbage(visited.record.bytes);
            }
        } else if visited.dead {
            self.found.big_keys.meet(visited);
            self.found.dead.push(visited.at);
        } else if visited.position < covered && !self.counts(visited.at) {
            // The record that replaced it may be in a block that recovery skips.
            self.found.losers.push(visited.at);
        } else {
            self.found.big_keys.meet(visited);
            self.live(visited)?;
        }
        Ok(())
    }

    /// Whether a covered record counts.
    fn counts(&self, at: u64) -> bool {
        self.roles.is_some_and(|roles| roles.counts(at))
    }

    fn live(&mut self, visited: &Visited<'_>) -> Result<(), Error> {
        let viper = self.viper;
        if visited.record.expires_at_ms != 0 {
            viper.expiries.store(true, Ordering::Relaxed);
        }
        if visited.record.kind.is_chained() {
            self.found.chained.push(visited.at);
        }
        if visited.record.kind == RecordKind::BigKey
            && let Some(entry) = viper
                .space
                .blocks
                .get(viper.space.blocks.number(visited.at))
        {
            entry.set_long_keys(true);
        }
        let mut buffer = Vec::new();
        let key = viper
            .reader()
            .key(&visited.record, visited.bytes, &mut buffer);
        let key = match key {
            Ok(key) => key,
            Err(error) => return self.found.big_keys.put_aside(visited, error),
        };
        let hash = viper.hash(key);
        self.builder.add(hash, visited.at, visited.record.stamp)
    }
}
