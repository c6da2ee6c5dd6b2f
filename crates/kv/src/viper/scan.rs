//! Walking the keys by the index: iterations, random draws, and the sweep of expired keys.

use super::Viper;
use super::block_table::State;
use super::lookup::look_again;
use super::read::{Spot, UNIT};
use super::record::Record;
use super::session::ViperSession;
use crate::aof::is_below;
use crate::concurrency::seam::looks;
use crate::engine::Ticket;
use crate::engine::backend::Met;
use crate::error::Error;
use crate::index::Location;

/// The record to which the index leads, in whichever tier, verified; its bytes are left in `scratch`.
fn read_at(
    engine: &Viper,
    location: Location,
    scratch: &mut Vec<u8>,
) -> Result<(Spot, Record), Error> {
    if let Some(below) = &engine.below
        && is_below(location)
    {
        return Ok((Spot::below(), below.record(location, scratch)?));
    }
    let reader = engine.reader();
    let mut spot = reader.spot(location.get() * UNIT)?;
    let record = reader.load(&mut spot, scratch)?;
    Ok((spot, record))
}

impl ViperSession {
    /// Meets the keys of at least `count` entries from `cursor` on, or of all that are left. Returns the
    /// cursor to continue from.
    pub(super) fn walk_index(
        &mut self,
        cursor: u64,
        count: usize,
        met: &mut Met,
    ) -> Result<u64, Error> {
        let failed;
        let mut dying = Vec::new();
        let next = {
            let ViperSession {
                engine,
                slot,
                scratch,
                ..
            } = self;
            let pin = slot.pin();
            let mut one = |location: Location| -> Result<(), Error> {
                looks!();
                let reader = engine.reader();
                let (spot, mut record) = read_at(engine, location, scratch)?;
                let mut buffer = Vec::new();
                if spot.info.state == State::Unverified && engine.has_died(&spot, &record)? {
                    let key = reader.key(&record, scratch, &mut buffer)?.to_vec();
                    dying.push(engine.stripe(engine.hash(&key)));
                    match look_again(engine, &pin, &key, scratch)? {
                        Some((.., found)) => record = found,
                        None => return Ok(()),
                    }
                }
                if engine.is_expired(record.expires_at_ms) {
                    return Ok(());
                }
                let bytes = reader.value_bytes(&record, scratch)?;
                let key = reader.key(&record, scratch, &mut buffer)?;
                met.push(key, bytes, record.expires_at_ms);
                Ok(())
            };
            let mut locations = Vec::new();
            let next = engine.index.scan(cursor, count, &pin, &mut |location| {
                locations.push(location);
            });
            if let Some(below) = &engine.below {
                below.foresee(locations.iter().copied());
            }
            failed = locations.into_iter().try_for_each(&mut one);
            next
        };
        // Writers may have stored these marks just now; they fence them before they release the stripe.
        for stripe in dying {
            self.pass_writer(stripe)?;
        }
        failed.map(|()| next)
    }

    /// Draws a live key at random from the index; `false` if a few draws met none.
    pub(super) fn draw_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        for _ in 0..64 {
            into.clear();
            let ViperSession {
                engine,
                slot,
                scratch,
                ..
            } = self;
            let pin = slot.pin();
            let Some(location) = engine.index.random(rand::random(), &pin) else {
                break;
            };
            looks!();
            let reader = engine.reader();
            let (spot, record) =
                read_at(engine, location, scratch).map_err(|e| engine.at_path(e))?;
            if engine.is_expired(record.expires_at_ms)
                || spot.info.state == State::Unverified && engine.has_died(&spot, &record)?
            {
                continue;
            }
            let mut buffer = Vec::new();
            into.extend_from_slice(reader.key(&record, scratch, &mut buffer)?);
            let stamp = engine.stripes.stamp(engine.stripe(engine.hash(into)));
            drop(pin);
            self.engine.pass_publications()?;
            self.core.last_read = Ticket(stamp);
            return Ok(true);
        }
        into.clear();
        Ok(false)
    }

    /// Collects expired keys among the next `count`; returns the cursor to continue from (0 = from the
    /// start). Skips damaged records, which `check` reports.
    pub(super) fn expired_keys(
        &mut self,
        cursor: u64,
        count: usize,
        expired: &mut Vec<Vec<u8>>,
    ) -> u64 {
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        let pin = slot.pin();
        engine.index.scan(cursor, count, &pin, &mut |location| {
            // In the log they go with their segment.
            if is_below(location) {
                return;
            }
            let reader = engine.reader();
            let mut buffer = Vec::new();
            let mut key_of = || -> Result<Option<Vec<u8>>, Error> {
                let spot = reader.spot(location.get() * UNIT)?;
                let record = reader.copy(&spot, scratch)?;
                if !engine.is_expired(record.expires_at_ms) {
                    return Ok(None);
                }
                let key = reader.key(&record, scratch, &mut buffer)?;
                Ok(Some(key.to_vec()))
            };
            expired.extend(key_of().ok().flatten());
        })
    }
}
