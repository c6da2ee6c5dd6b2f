//! Arrivals: a slot that verifies becomes an ordinary write of the engine. (RDMP-KV section III-C; the order
//! of these steps is in the text of [`super`].)

use super::Landing;
use super::calls::Mark;
use super::slot::{Arrival, parse};
use super::table::{BUCKETS, Live, bucket_of};
use crate::engine::{BatchOp, EngineSession};
use crate::error::Error;
use everdram_pm::lock::lock;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The keys of a call.
#[derive(Clone, Copy)]
pub(super) enum Keys<'k> {
    One(&'k [u8]),
    These(&'k [&'k [u8]]),
    Of(&'k [BatchOp<'k>]),
    All,
}

/// The keyed sums of the keys of a call, sorted; `None`: all keys.
pub(super) struct Sums(Option<Vec<u64>>);

impl Sums {
    fn of(landing: &Landing, keys: Keys<'_>) -> Sums {
        let sum = |key: &[u8]| landing.pool.secret().sum(key);
        let mut sums: Vec<u64> = match keys {
            Keys::One(key) => vec![sum(key)],
            Keys::These(keys) => keys.iter().map(|key| sum(key)).collect(),
            Keys::Of(ops) => ops.iter().map(|op| sum(op.key())).collect(),
            Keys::All => return Sums(None),
        };
        sums.sort_unstable();
        sums.dedup();
        Sums(Some(sums))
    }

    fn has(&self, live: &Live) -> bool {
        let sums = self.0.as_ref();
        sums.is_none_or(|sums| sums.binary_search(&live.line.key_sum).is_ok())
    }

    /// The buckets with grants, in ascending order.
    fn buckets(&self, landing: &Landing) -> Vec<usize> {
        let mut buckets: Vec<usize> = match &self.0 {
            Some(sums) => sums.iter().map(|&sum| bucket_of(sum)).collect(),
            None => (0..BUCKETS).collect(),
        };
        buckets.retain(|&bucket| !landing.table.is_bucket_quiet(bucket));
        buckets.sort_unstable();
        buckets.dedup();
        buckets
    }
}

impl Landing {
    /// Applies what has arrived for these keys, with a session that is in no call. Its submitted writes are
    /// committed first.
    ///
    /// # Errors
    /// As [`EngineSession::put_now`] and [`EngineSession::commit`].
    #[cold]
    pub(super) fn complete(
        &self,
        keys: Keys<'_>,
        session: &mut dyn EngineSession,
    ) -> Result<(), Error> {
        let sums = Sums::of(self, keys);
        for bucket in sums.buckets(self) {
            // Where nothing is there, and nobody is about to show it, a reader need not wait for anybody.
            if !self
                .table
                .live(bucket, |live| sums.has(live))
                .iter()
                .any(|live| self.may_be(live))
            {
                continue;
            }
            let _ticket = session.commit()?;
            let held = self.table.hold(bucket);
            self.apply(bucket, &held, &|live| sums.has(live), session)?;
        }
        Ok(())
    }

    /// As [`Landing::complete`], and marks the session before anything else can arrive for these keys, or
    /// rather, be applied.
    ///
    /// # Errors
    /// As [`Landing::complete`]; the session is not marked then.
    #[cold]
    pub(super) fn complete_and_mark(
        &self,
        keys: Keys<'_>,
        session: &mut dyn EngineSession,
        mark: &Mark,
    ) -> Result<(), Error> {
        let sums = Sums::of(self, keys);
        loop {
            let buckets = sums.buckets(self);
            if !buckets.is_empty() {
                let _ticket = session.commit()?;
            }
            // In ascending order, so that no two sessions wait for each other.
            let held: Vec<_> = buckets
                .iter()
                .map(|&bucket| self.table.hold(bucket))
                .collect();
            for (&bucket, held) in buckets.iter().zip(&held) {
                self.apply(bucket, held, &|live| sums.has(live), session)?;
            }
            mark.begin(self.barrier);
            // The mark is set before the locks go, and before the look at the buckets that are not locked.
            let now = sums.buckets(self);
            if now
                .iter()
                .all(|bucket| buckets.binary_search(bucket).is_ok())
            {
                return Ok(());
            }
            mark.end();
        }
    }

    /// Applies what has arrived for one grant, and ends the grant if `is_released`. See [`Landing::arrived`].
    ///
    /// # Errors
    /// As [`Landing::complete`].
    pub(super) fn complete_one(
        &self,
        number: u32,
        is_released: bool,
        own: &mut dyn EngineSession,
    ) -> Result<bool, Error> {
        let Some(live) = self.table.given(number) else {
            return Ok(false);
        };
        let bucket = bucket_of(live.line.key_sum);
        let held = self.table.hold(bucket);
        if !live.is_applied() {
            // One that has not arrived waits for nobody: not for others of its key that cannot be applied.
            live.orphan.fetch_or(is_released, Ordering::AcqRel);
            let mut copy = self.copy_of(&live);
            if let Some(arrival) = self.parse(&mut copy, &live) {
                let is_before = |other: &Live| {
                    other.line.key_sum == live.line.key_sum
                        && other.line.generation < live.line.generation
                };
                let has_waited = self.apply(bucket, &held, &is_before, own)?;
                self.put(&live, &arrival, has_waited, own)?;
            } else if is_released {
                self.clear_word(live.page)?;
                self.table.leave(&live, false);
            }
        } else if is_released && self.table.take_over(&live) {
            self.table.free(live.page, live.line.pages);
        }
        Ok(live.is_applied())
    }

    /// Applies what has arrived for those grants of a held bucket that are `wanted`, in order. Returns
    /// whether it has waited for the calls that began before.
    ///
    /// # Errors
    /// Those of `session`. What comes later in the order of grants stays as well.
    fn apply(
        &self,
        bucket: usize,
        _held: &MutexGuard<'_, ()>,
        wanted: &dyn Fn(&Live) -> bool,
        session: &mut dyn EngineSession,
    ) -> Result<bool, Error> {
        let mut has_waited = false;
        for live in self.table.live(bucket, wanted) {
            let mut copy = self.copy_of(&live);
            if let Some(arrival) = self.parse(&mut copy, &live) {
                self.put(&live, &arrival, has_waited, session)?;
                has_waited = true;
            }
        }
        Ok(has_waited)
    }

    /// Applies an arrival, and ends its grant. The caller holds the bucket, and says whether it has waited
    /// for the calls that began before: those that begin later find the bucket raised, so one wait does for
    /// all.
    fn put(
        &self,
        live: &Arc<Live>,
        arrival: &Arrival<'_>,
        has_waited: bool,
        session: &mut dyn EngineSession,
    ) -> Result<(), Error> {
        if !has_waited {
            self.calls.wait_for_ends();
        }
        let _applying = self.table.apply();
        let expires_at_ms = live.line.expires_at_ms;
        let (_, ticket) = session.put_now(arrival.key, arrival.value, expires_at_ms)?;
        session.wait(ticket)?;
        self.clear_word(live.page)?;
        self.table.leave(live, true);
        Ok(())
    }

    /// What has arrived for a grant, in a copy of its slot.
    fn parse<'c>(&self, copy: &'c mut Option<Vec<u8>>, live: &Live) -> Option<Arrival<'c>> {
        parse(copy.as_mut()?, &live.line, self.pool.secret())
    }

    /// Whether something has arrived for these keys that was not applied.
    #[cold]
    pub(super) fn has_arrivals(&self, keys: Keys<'_>) -> bool {
        self.has_arrivals_of(&Sums::of(self, keys))
    }

    /// What names these keys in [`Landing::has_arrivals_of`].
    pub(super) fn sums(&self, keys: Keys<'_>) -> Sums {
        Sums::of(self, keys)
    }

    /// As [`Landing::has_arrivals`].
    #[cold]
    pub(super) fn has_arrivals_of(&self, sums: &Sums) -> bool {
        let mut buckets = sums.buckets(self).into_iter();
        buckets.any(|bucket| {
            let mut live = self.table.live(bucket, |live| sums.has(live)).into_iter();
            live.any(|live| self.key_of(&live).is_some())
        })
    }

    /// The keys for which something has arrived that was not applied.
    pub(super) fn keys_arrived(&self) -> Vec<Vec<u8>> {
        let buckets = Sums(None).buckets(self).into_iter();
        let live = buckets.flat_map(|bucket| self.table.live(bucket, |_| true));
        let mut keys: Vec<Vec<u8>> = live.filter_map(|live| self.key_of(&live)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn key_of(&self, live: &Live) -> Option<Vec<u8>> {
        let mut copy = self.copy_of(live);
        self.parse(&mut copy, live)
            .map(|arrival| arrival.key.to_vec())
    }

    /// Whether the beginning of a whole slot is there.
    fn may_be(&self, live: &Live) -> bool {
        super::recover::may_be_there(&self.pool, self.area, live.page, &live.line)
    }

    /// A private copy of a slot, if it begins as what its grant allows.
    fn copy_of(&self, live: &Live) -> Option<Vec<u8>> {
        super::recover::copy_of(&self.pool, self.area, live.page, &live.line)
    }

    /// Makes a grant's line free, durably: what lies in its slot counts no more.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub(super) fn clear_word(&self, page: u32) -> Result<(), Error> {
        let mut lane = lock(&self.lane);
        let dirty = lane.store_word(self.area.line_at(page), 0);
        let flushed = lane.flush(dirty);
        let ordered = lane.fence(flushed);
        let _durable = self.pool.wait(ordered.lsn())?;
        Ok(())
    }
}

/// Enters a grant that recovery found.
pub(super) fn enter_found(landing: &Landing, live: &Arc<Live>) {
    live.orphan.store(true, Ordering::Release);
    landing.table.raise(bucket_of(live.line.key_sum));
    landing.table.enter(live);
}
