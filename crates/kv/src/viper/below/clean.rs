//! Cleaning: a segment whose entries are mostly stale is read once, what still counts is appended again,
//! and the file is removed. This takes the place of Redis' rewrite, without a fork.
//!
//! A DEL goes along, unless no older segment is left for it to speak of, or its key has a newer state in the
//! log. So a removal outlives what it removes.

use super::evict::Victim;
use super::{Below, Tail};
use crate::aof::{Dirty, Order, Worth, has_room, is_below, removal_bytes};
use crate::concurrency::seam::few;
use crate::concurrency::stripes::Backoff;
use crate::engine::backend::Backend;
use crate::error::Error;
use crate::index::{KeyHash, Location};
use crate::viper::Viper;
use crate::viper::session::ViperSession;

/// Share of stale bytes that a rewrite leaves.
const REWRITTEN: f64 = 0.05;
/// Share of a segment's bytes for which it is cleaned when the disk is full: each pass makes so much room.
const SHORT: f64 = 1.0 / 256.0;
/// Bytes of keys and values that are appended again before a sync.
const BATCH_BYTES: usize = 1 << 20;

/// Segments that are read before cleaning gives up on a full disk.
const TRIES: usize = 4;
/// Entries that are read between two looks at whether others make room.
const READ: usize = 64;
/// Rests of the cleaning of a segment while others make room, at most: half a second.
const PATIENCE: usize = 1000;
/// So much more of the log is garbage than may be, and cleaning does not wait for others any more.
const BEHIND: f64 = 1.25;

/// An entry that may still count.
struct Kept {
    hash: KeyHash,
    key: Vec<u8>,
    /// `None`: a removal.
    value: Option<Vec<u8>>,
    expires_at_ms: u64,
    order: Order,
    at: Option<Location>,
    /// Bytes that it takes again, at most.
    bytes: u64,
}

impl Below {
    /// Cleans the segment that is most worth it at `now` (Unix milliseconds); `false`: there is none. The
    /// caller holds no lock of a key and no pin.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: the segment stays. [`Error::Corrupt`], [`Error::Pool`].
    pub(in crate::viper) fn clean(
        &self,
        viper: &Viper,
        session: &mut ViperSession,
        worth: Worth,
        now: u64,
    ) -> Result<bool, Error> {
        // One thread cleans; it may be reading the very segment.
        let Some(_alone) = self.cleaning.try_lock() else {
            return Ok(false);
        };
        let mut patience = match worth {
            Worth::All(most) if !self.is_behind(most) => few!(PATIENCE),
            _ => 0,
        };
        let mut but = Vec::new();
        let (number, kept, is_short) = loop {
            let Some(dirty) = self.choose(viper, session, (worth, &but), now)? else {
                return Ok(false);
            };
            let kept = self.kept_of(viper, session, dirty.number, &mut patience)?;
            let is_short = self.log.is_short();
            let bytes = kept.iter().map(|one| one.bytes).sum();
            if !is_short || self.makes_room(viper, session, dirty.bytes, bytes)? {
                break (dirty.number, kept, is_short);
            }
            // More is kept than it seemed. Another one may make room.
            but.push(dirty.number);
            if but.len() >= TRIES {
                return Ok(false);
            }
        };
        // Between two batches others may append: writers wait for room.
        let (mut rest, most) = (kept.as_slice(), few!(BATCH_BYTES));
        while !rest.is_empty() {
            let mut bytes = 0;
            let is_beyond = |one: &Kept| {
                bytes += one.value.as_ref().map_or(0, Vec::len) + one.key.len();
                bytes > most
            };
            let count = rest.iter().position(is_beyond).unwrap_or(rest.len());
            let (batch, later) = rest.split_at(count.max(1));
            give_way(viper, &mut patience);
            let bytes = rest.iter().map(|one| one.bytes).sum();
            self.append_again(viper, session, batch, is_short.then_some(bytes))?;
            rest = later;
        }
        // What the index leads to now must be durable before the file goes, and so must the marks of older
        // records of a key that has expired.
        viper.fence_marks(session);
        let epoch = viper.epochs.advance();
        viper.wait_for_readers(epoch);
        let mut tail = self.tail();
        let removed = self.change_manifest(&mut tail, session, |_| self.log.remove(number))?;
        if self.log.is_short() {
            // The room is for the next spare, before anybody else takes it.
            drop(removed);
            self.keep_spare_if_any()?;
            return Ok(true);
        }
        // Writers may wait for the log's end: not for the disk, too, unless it is full.
        let _freeing = everdram_pm::lock::lock(&self.freeing);
        drop(tail);
        drop(removed);
        Ok(true)
    }

    /// Takes room for a spare; `false`: others were faster. There is garbage still, or there will be.
    fn keep_spare_if_any(&self) -> Result<bool, Error> {
        match self.log.keep_spare() {
            Ok(()) => Ok(true),
            Err(Error::NoSpace(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Chooses the segment that is most worth cleaning, but none of these.
    fn choose(
        &self,
        viper: &Viper,
        session: &mut ViperSession,
        (worth, but): (Worth, &[u64]),
        now: u64,
    ) -> Result<Option<Dirty>, Error> {
        let mut tail = self.tail();
        // Behind the end of a batch that failed otherwise are entries that were never swung.
        viper.healthy()?;
        if tail.is_taken_back && tail.writer().end() != tail.line.known.settled {
            // A refused batch has left segments without entries. They count, too, and go.
            tail.writer().sync(&self.log)?;
            let _ordered = self.settle(&mut tail, session, 0);
            tail.is_taken_back = false;
        }
        // What comes later is not settled, may not be swung yet, and would look stale.
        let before = tail.line.known.settled.segment;
        let rest = match self.log.is_short() {
            true => self.rest(&mut tail)?,
            false => 0,
        };
        Ok(self.log.worth_cleaning(worth, now, before, rest, but))
    }

    /// Bytes of disk room that the end of a full disk's log has.
    fn rest(&self, tail: &mut Tail) -> Result<u64, Error> {
        let has_spare = self.keep_spare_if_any()?;
        Ok(tail.writer().rest(&self.log, has_spare))
    }

    /// Makes room for `kept` bytes of a segment of so many, on a full disk. `false`: there is none, or that
    /// would not make more.
    fn makes_room(
        &self,
        viper: &Viper,
        session: &mut ViperSession,
        bytes: u64,
        kept: u64,
    ) -> Result<bool, Error> {
        let mut tail = self.tail();
        viper.healthy()?;
        let rest = self.rest(&mut tail)?;
        if has_room(kept, rest) {
            return Ok(true);
        }
        // All of it goes to one segment, which takes no more room than that.
        Ok(self.log.makes_room(bytes, kept, rest)
            && self.begin_to_clean(&mut tail, session, Some(kept))?)
    }

    /// Cleans every segment with more than a few stale bytes, and with entries that have expired: Redis'
    /// rewrite. It ends where the disk has no room.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Pool`].
    pub(in crate::viper) fn rewrite(
        &self,
        viper: &Viper,
        session: &mut ViperSession,
    ) -> Result<(), Error> {
        let now = viper.now_ms();
        {
            let mut tail = self.tail();
            // Not with the spare: it is for segments that give it back.
            if !self.log.is_short() && tail.writer().is_worth_ending(REWRITTEN, now) {
                // If there is no room for it, the others may need none of their own.
                let _is_begun = self.begin_to_clean(&mut tail, session, None)?;
            }
        }
        // What is appended meanwhile is left for another time.
        for _ in self.log.numbers() {
            match self.clean(viper, session, Worth::Each(REWRITTEN), now) {
                Ok(true) => {}
                Ok(false) | Err(Error::NoSpace(_)) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// When segments are cleaned without a request.
    pub(in crate::viper) fn worth(&self) -> Worth {
        match self.log.is_short() {
            true => Worth::Room(SHORT),
            false => Worth::All(self.garbage),
        }
    }

    /// Whether much more of the log is garbage than `most`, a share of its bytes.
    pub(super) fn is_behind(&self, most: f64) -> bool {
        let (bytes, stale, _) = self.log.use_of();
        stale as f64 > bytes as f64 * most * BEHIND
    }

    /// The entries of a segment that may count: those to which the index leads, and removals.
    fn kept_of(
        &self,
        viper: &Viper,
        session: &ViperSession,
        number: u64,
        patience: &mut usize,
    ) -> Result<Vec<Kept>, Error> {
        let is_oldest = self.log.is_oldest(number);
        let floor = viper.floor();
        let (mut kept, mut entries) = (Vec::new(), 0_usize);
        self.log.replay(number, &mut |read| {
            if entries.is_multiple_of(few!(READ)) {
                give_way(viper, patience);
            }
            entries += 1;
            let hash = viper.hash(read.key());
            let counts = match (read.value(), read.location) {
                _ if read.entry.order.0 <= floor => false,
                (None, _) => !is_oldest,
                (Some(_), Some(location)) => viper.points_to(&session.slot, hash, location),
                (Some(_), None) => false,
            };
            if counts {
                kept.push(Kept {
                    hash,
                    key: read.key().to_vec(),
                    value: read.value().map(<[u8]>::to_vec),
                    expires_at_ms: read.entry.expires_at_ms,
                    order: read.entry.order,
                    at: read.location,
                    bytes: match viper.is_expired(read.entry.expires_at_ms) {
                        true => removal_bytes(read.key()).min(read.entry.bytes),
                        false => read.entry.bytes,
                    },
                });
            }
            Ok(())
        })?;
        Ok(kept)
    }

    fn append_again(
        &self,
        viper: &Viper,
        session: &mut ViperSession,
        kept: &[Kept],
        bytes: Option<u64>,
    ) -> Result<(), Error> {
        let mut batch = self.batch(&viper.halted, true).for_cleaning(bytes);
        let outcome = kept.iter().try_for_each(|one| {
            batch.make_room(session)?;
            let stripe = viper.stripe(one.hash);
            session.acquire(stripe)?;
            let appended = match (&one.value, one.at) {
                (Some(_), Some(from))
                    if viper.is_expired(one.expires_at_ms)
                        && viper.points_to(&session.slot, one.hash, from) =>
                {
                    batch.expire(one.hash, &one.key, one.order, from);
                    Ok(())
                }
                (Some(value), Some(from)) if viper.points_to(&session.slot, one.hash, from) => {
                    debug_assert!(
                        is_below(from),
                        "a record of the pool is cleaned from the log"
                    );
                    batch.append(&Victim {
                        hash: one.hash,
                        key: &one.key,
                        value,
                        expires_at_ms: one.expires_at_ms,
                        order: one.order,
                        from,
                        chain: None,
                    })
                }
                (None, _) => batch.bury(viper, session, one.hash, &one.key, one.order),
                _ => Ok(()),
            };
            session.give_back(stripe);
            appended
        });
        match outcome {
            Ok(()) => batch.finish(viper, session).map(drop),
            Err(error) => Err(batch.give_up(viper, session, error)),
        }
    }
}

/// Waits while somebody makes room. That is work for the same disk, and it has writers to wait for it: where
/// there are few processors, two threads that work for the log take one from a writer, for milliseconds.
pub(in crate::viper) fn give_way(viper: &Viper, patience: &mut usize) {
    while *patience > 0 && viper.is_making_room() && !viper.keeper.is_stopping() {
        *patience -= 1;
        Backoff::rest();
    }
}
