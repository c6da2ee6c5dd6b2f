//! The tier below: a log on a disk for records that the pool has no room for (NDHedis, SAC 2019, section 3).
//!
//! With a tier below, the pool is tier 1. Each write goes there and is durable there, as ever. When its room
//! becomes short, the compactor moves records of the blocks that were written longest ago to the log:
//! eviction is compaction with another destination ([`evict`]). One index leads to both tiers; a write of
//! a key of the log brings it back.
//!
//! # Which state of a key counts
//! A state has an *order*, (version, moves), in both tiers: a write has a greater version, and each move from
//! place to place one move more. The state with the greatest order counts, wherever it lies. Three kinds of
//! state say that something else is void: a DEL of the log, a *grave* (a record without a value), and a
//! record with the flag *covers*. A write puts that flag into its record if the index leads to the log at
//! that time, so the write and what it says of the log are one record: a crash keeps both or none.
//!
//! - A record that covers, or a grave, is dropped only after the log has a DEL of its order, or something
//!   newer of the key.
//! - A record that does not cover was written while the key had no state in the log, so nothing there is
//!   older.
//! - A block is freed only after every live record of it has been appended to the log, synced, *swung* (the
//!   index leads to the entry) and *settled* (the pool knows that the log counts so far), or was moved.
//! - If a key changed between append and swing, a DEL of the appended order follows, and the log is settled
//!   only behind that. So of each key, the last entry before the settled end is a DEL, or was once swung.
//!
//! `docs/engines.md` says where and why this differs from the paper.

mod ages;
mod check;
mod clean;
mod evict;
mod line;
pub(super) mod load;
mod loader;
mod promote;
mod salvage;
#[cfg(all(test, not(miri)))]
mod tests;

pub(super) use ages::Ages;
pub(super) use clean::give_way;
pub(super) use evict::{Batch, Victim};

use super::record::Record;
use super::session::ViperSession;
use super::space::Space;
use crate::aof::{Entry, Known, Log, Position, Writer, is_below};
use crate::engine::damage::Damage;
use crate::engine::ghosts::Ghosts;
use crate::engine::kind::EngineKind;
use crate::error::{Error, corrupt};
use crate::index::Location;
use crate::options::{Options, Promote};
use everdram_pm::{HINT_BYTES, Hint, Ordered, Pool, ROOT_AT, ROOT_BYTES, Shelf};
use line::TierLine;
use parking_lot::{Mutex, MutexGuard};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where the pool remembers the directory of its log, if it was named.
const PLACE_AT: u64 = ROOT_AT + 1024;
const _: () = assert!(PLACE_AT + HINT_BYTES as u64 <= ROOT_AT + ROOT_BYTES);

/// Share of the pool that may be garbage, beside what is free, before blocks are compacted.
const GARBAGE_MAX: f64 = 0.02;
/// Share of the pool, beside what is free, from which on its garbage alone makes room.
const ROOMY: f64 = 0.5;

/// The tier below.
pub(super) struct Below {
    pub(super) log: Log,
    tail: Mutex<Tail>,
    /// Held by the thread that cleans.
    cleaning: Mutex<()>,
    /// Held while a cleaned segment gives its room back to the disk. Taken by who holds the end of the log.
    freeing: Mutex<()>,
    pub(super) loading: load::Load,
    /// Whether the index may lead to the log. Until records leave, writes and reads cost what they cost
    /// without a tier below.
    is_used: AtomicBool,
    /// How long ago blocks were written, and which records were read since.
    pub(super) ages: Ages,
    /// Keys that were evicted recently.
    ghosts: Ghosts,
    /// Share of the pool that is kept free.
    pub(super) free: f64,
    /// Share of the log's bytes that may be stale.
    garbage: f64,
    /// Whether keys that are read again come back.
    promotes: bool,
    pub(super) counters: Counters,
}

/// For what something is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// To make room in the pool.
    Evict,
    /// To make room on the disk of the log. A segment that begins for it takes room for entries of so many
    /// bytes, or for a whole segment.
    Clean { kept: Option<u64> },
}

/// The end of the log, and what the pool knows of it.
struct Tail {
    /// `None`: no segment is left of a log that is being salvaged.
    writer: Option<Writer>,
    line: TierLine,
    /// As the next line says; see [`TierLine::freed`].
    freed: Position,
    /// What was appended last was taken back: behind the settled end are segments without entries, or none.
    is_taken_back: bool,
}

impl Tail {
    fn writer(&mut self) -> &mut Writer {
        let writer = self.writer.as_mut();
        writer.expect("a log that is written has a segment")
    }
}

/// What the tier below counts since it was opened.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) evicted: AtomicU64,
    pub(super) evicted_bytes: AtomicU64,
    /// Victims that changed before they were swung.
    pub(super) missed: AtomicU64,
    pub(super) removals: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) promoted: AtomicU64,
    pub(super) cleaned_bytes: AtomicU64,
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Below {
    /// The tier below of a pool; `None` if its engine has none.
    ///
    /// # Errors
    /// [`Error::Options`]: pool and log do not belong together. [`Error::Pool`], [`Error::Corrupt`].
    pub(super) fn open(
        pool: &Arc<Pool>,
        path: &Path,
        options: &Options,
        damage: Option<&Damage>,
        bytes_max: u64,
        block_bytes: u64,
    ) -> Result<Option<Below>, Error> {
        if pool.engine() != EngineKind::Tiered.number() {
            return Ok(None);
        }
        let hint = Hint { pool, at: PLACE_AT };
        let named = options.tiered.below.clone();
        let place = named.clone().or_else(|| hint.read());
        let place = place.unwrap_or_else(|| path.join("tier2"));
        let line = TierLine::read(pool.secret(), pool.region());
        let is_read_only = pool.is_read_only();
        let is_lost = line.is_none() && (is_read_only || !TierLine::is_new(pool.region()));
        if is_lost && damage.is_none() {
            let what = "the pool does not say how far its log counts";
            return Err(corrupt(ROOT_AT, what));
        }
        let is_new = line.is_none() && !is_lost;
        let shelf = Shelf::open(pool, &place, is_new);
        let shelf = shelf.map_err(|error| salvage::shelf_error(error, damage))?;
        let (secret, life) = (pool.secret(), pool.incarnation());
        let segment_bytes = options.tiered.segment_bytes;
        let (log, line) = match (line, damage) {
            (line, Some(damage)) => {
                let known = line.map(|line| line.known);
                let log = salvage::open(shelf, secret, life, segment_bytes, known, damage)?;
                (log, line.unwrap_or_default())
            }
            (Some(line), None) => {
                if !is_read_only {
                    line.adopt(&mut pool.lane());
                }
                let known = line.known;
                let log = Log::open(shelf, secret, life, segment_bytes, known, is_read_only)?;
                (log, line)
            }
            (None, None) => {
                let (log, known) = Log::create(shelf, secret, life, segment_bytes)?;
                let mut line = TierLine::default();
                let _ordered = line.advance(&mut pool.lane(), known, known.settled, 0);
                // In every durability class: the directory has a log from here on.
                pool.sync()?;
                (log, line)
            }
        };
        let writer = Writer::of(&log);
        let (entries, ..) = log.use_of();
        let below = Below {
            log,
            is_used: AtomicBool::new(entries > 0),
            tail: Mutex::new(Tail {
                writer,
                is_taken_back: false,
                freed: line.freed,
                line,
            }),
            cleaning: Mutex::default(),
            freeing: Mutex::default(),
            loading: load::Load::new(options),
            ages: Ages::new(
                options.tiered.policy,
                bytes_max / block_bytes + 8,
                block_bytes,
            ),
            ghosts: Ghosts::new(Some(bytes_max)),
            free: options.tiered.free,
            garbage: options.tiered.garbage,
            promotes: options.tiered.promote == Promote::SecondRead,
            counters: Counters::default(),
        };
        if !is_read_only {
            let (mut tail, mut lane) = (below.tail(), pool.lane());
            below.note_generation(&mut tail, &mut lane);
            if below.log.has_unsettled() {
                pool.sync()?;
            }
            below.log.tidy()?;
            below.note_generation(&mut tail, &mut lane);
            hint.write(&mut lane, named.as_deref());
        }
        Ok(Some(below))
    }

    /// Whether the index may lead to the log. Who holds the lock of a key learns of its own state in time.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// No version in the log is greater.
    pub(super) fn clock(&self) -> u64 {
        self.tail.lock().line.clock
    }

    /// The end of the log, for the one thread that appends. Under the lab's scheduler its holder may be
    /// suspended, so the wait must not block.
    fn tail(&self) -> MutexGuard<'_, Tail> {
        everdram_pm::lock::lock(&self.tail)
    }

    /// Whether a thread appends to the log now.
    pub(super) fn is_appending(&self) -> bool {
        self.tail.is_locked()
    }

    /// Notes a changed manifest in the pool.
    fn note_generation(&self, tail: &mut Tail, lane: &mut everdram_pm::Lane) {
        let known = Known {
            generation: self.log.generation(),
            ..tail.line.known
        };
        if known != tail.line.known {
            let _ordered = tail.line.advance(lane, known, tail.freed, 0);
        }
    }

    /// Waits until the log counts as far as the index leads now.
    pub(super) fn await_settled(&self) {
        // Whoever swings holds the end of the log until it is settled.
        drop(self.tail());
    }

    /// See [`TierLine::freed`].
    fn freed(&self) -> Position {
        self.tail().freed
    }

    /// Notes that the pool has no live record of what the log has so far. The caller knows that every block
    /// is free from which records have left, or that such records are marked dead, and lets no other thread
    /// have records leave meanwhile.
    pub(super) fn note_freed(&self) {
        let mut tail = self.tail();
        tail.freed = tail.line.known.settled;
    }

    /// As [`Below::note_freed`], and tells the pool.
    pub(super) fn settle_freed(&self, lane: &mut everdram_pm::Lane) {
        let mut tail = self.tail();
        tail.freed = tail.line.known.settled;
        let (known, freed) = (tail.line.known, tail.freed);
        if tail.line.freed < freed {
            let _ordered = tail.line.advance(lane, known, freed, 0);
        }
    }

    /// Writes what fills a buffer, and begins the next segment if the last one is full. No lock on a key is
    /// held: this takes a millisecond, or syncs.
    fn make_segment(
        &self,
        tail: &mut Tail,
        session: &mut ViperSession,
        purpose: Purpose,
    ) -> Result<(), Error> {
        if purpose == Purpose::Evict && self.log.is_short() && !self.log.has_spare() {
            // What room there is makes more, if it is left to cleaning.
            self.log.keep_spare()?;
        }
        tail.writer().write_if_full()?;
        match tail.writer().is_at_end(&self.log) {
            true => self.begin_segment(tail, session, purpose),
            false => Ok(()),
        }
    }

    fn begin_segment(
        &self,
        tail: &mut Tail,
        session: &mut ViperSession,
        purpose: Purpose,
    ) -> Result<(), Error> {
        // Another thread begins to only while it holds the end of the log, as this one does.
        let is_freeing = self.freeing.is_locked();
        match self.try_to_begin(tail, session, purpose) {
            Err(Error::NoSpace(_)) if is_freeing => {
                drop(everdram_pm::lock::lock(&self.freeing));
                self.try_to_begin(tail, session, purpose)
            }
            begun => begun,
        }
    }

    fn try_to_begin(
        &self,
        tail: &mut Tail,
        session: &mut ViperSession,
        purpose: Purpose,
    ) -> Result<(), Error> {
        let log = &self.log;
        if purpose == Purpose::Evict {
            log.keep_spare()?;
        }
        let begun = self.change_manifest(tail, session, |tail| match purpose {
            Purpose::Evict => tail.writer().next_segment(log, None),
            Purpose::Clean { kept } => log.with_spare(|| tail.writer().next_segment(log, kept)),
        });
        match (&begun, purpose) {
            // A segment for what is kept may be a short one.
            (Ok(()), Purpose::Clean { .. }) => {}
            _ => log.note_begun(&begun),
        }
        begun
    }

    /// Changes the manifest. The pool must know of one change, durably, before the next, so nobody else makes
    /// one from the sync on.
    fn change_manifest<T>(
        &self,
        tail: &mut Tail,
        session: &mut ViperSession,
        change: impl FnOnce(&mut Tail) -> Result<T, Error>,
    ) -> Result<T, Error> {
        session.engine.pool.sync()?;
        let changed = change(tail);
        // Also if what came behind the change has failed.
        self.note_generation(tail, &mut session.lane);
        changed
    }

    /// Begins a segment for what is cleaned. The log counts as far as there; `false`: the disk has no room.
    fn begin_to_clean(
        &self,
        tail: &mut Tail,
        session: &mut ViperSession,
        kept: Option<u64>,
    ) -> Result<bool, Error> {
        // Behind the end of a batch that failed otherwise are entries that were never swung.
        session.engine.healthy()?;
        let begun = self.begin_segment(tail, session, Purpose::Clean { kept });
        match begun.and_then(|()| tail.writer().sync(&self.log)) {
            Ok(_) => {
                let _ordered = self.settle(tail, session, 0);
                Ok(true)
            }
            Err(Error::NoSpace(_)) => self.go_back(tail).map(|()| false),
            Err(error) => Err(error),
        }
    }

    /// The log counts up to its end from here on.
    fn settle(&self, tail: &mut Tail, session: &mut ViperSession, clock: u64) -> Ordered {
        assert!(
            tail.writer().is_synced(),
            "the log is to count up to a place that is not durable"
        );
        let known = Known {
            settled: tail.writer().end(),
            generation: self.log.generation(),
        };
        let freed = tail.freed;
        tail.line.advance(&mut session.lane, known, freed, clock)
    }

    /// Takes back what was appended since the log was settled. Nothing leads there.
    fn go_back(&self, tail: &mut Tail) -> Result<(), Error> {
        let settled = tail.line.known.settled;
        tail.writer().go_back(&self.log, settled)?;
        tail.is_taken_back = true;
        Ok(())
    }

    /// The record that an entry stands for; its bytes are left in `scratch`. The caller is pinned since
    /// before the index led there.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Pool`].
    pub(super) fn record(
        &self,
        location: Location,
        scratch: &mut Vec<u8>,
    ) -> Result<Record, Error> {
        let entry = self.log.read(location, scratch)?;
        let state = entry.and_then(|entry| Some((entry.value.clone()?, entry)));
        // Segments are removed only after readers have gone.
        let Some((value, entry)) = state else {
            return Err(corrupt(
                0,
                "the index leads to a place of the log without a state",
            ));
        };
        let Entry {
            order,
            key,
            expires_at_ms,
            bytes,
            ..
        } = entry;
        Ok(Record::elsewhere(order, expires_at_ms, key, value, bytes))
    }

    /// Asks the disk for all of these that are in the log at once. They are read one after the other.
    pub(super) fn foresee(&self, locations: impl Iterator<Item = Location>) {
        locations
            .filter(|location| is_below(*location))
            .for_each(|location| self.log.will_need(location));
    }

    /// The record at a candidate of the index, if it is one of `key`.
    ///
    /// # Errors
    /// As [`Below::record`].
    pub(super) fn offered(
        &self,
        location: Location,
        key: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Record>, Error> {
        let record = self.record(location, scratch)?;
        let is_of_key = scratch.get(record.key()) == Some(key);
        Ok(is_of_key.then_some(record))
    }

    /// The share of the pool that may be free, or garbage of blocks that do not go soon, before compaction
    /// makes room instead of eviction. What is unused cannot be hit.
    pub(super) fn unused_max(&self, threshold: f64) -> f64 {
        threshold.min(self.free + GARBAGE_MAX)
    }

    /// The share of the pool that is free or garbage above which nothing leaves.
    pub(super) fn roomy(&self) -> f64 {
        self.free + ROOMY
    }

    /// Whether records have left, or may soon: the pool has half of the room that it can have. Until then it
    /// is as one of `viper`: reads are not noted, and blocks of any age are compacted.
    #[inline]
    pub(super) fn may_be_needed(&self, space: &Space) -> bool {
        self.is_used() || space.blocks.is_half_grown()
    }

    /// Notes that the record at byte `at` of the pool was read. Whether it is to be written again for that.
    #[inline]
    pub(super) fn touch(&self, space: &Space, at: u64) -> bool {
        if !self.may_be_needed(space) {
            return false;
        }
        let block = space.blocks.number(at);
        self.ages.touch(block, at - space.blocks.at(block));
        self.ages.is_old(space, block)
    }

    /// As INFO shows it; `reads` were answered by the log.
    pub(super) fn fill(&self, own: &mut Vec<(&'static str, Option<u64>)>, reads: u64) {
        let count = |counter: &AtomicU64| Some(counter.load(Ordering::Relaxed));
        let (bytes, stale, segments) = self.log.use_of();
        let Counters {
            evicted,
            evicted_bytes,
            missed,
            removals,
            syncs,
            promoted,
            cleaned_bytes,
        } = &self.counters;
        own.extend([
            ("tier2_bytes", Some(bytes)),
            ("tier2_stale_bytes", Some(stale)),
            ("tier2_segments", Some(segments)),
            ("tier2_syncs", count(syncs)),
            ("tier2_reads", Some(reads)),
            ("tier2_removals", count(removals)),
            ("evicted_records", count(evicted)),
            ("evicted_bytes", count(evicted_bytes)),
            ("evicted_unswung", count(missed)),
            ("promoted_by_read", count(promoted)),
            ("cleaned_bytes", count(cleaned_bytes)),
        ]);
    }
}
