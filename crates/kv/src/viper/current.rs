//! The record that a write replaces: looked up under the key's lock, with the place of its mark.

use super::Viper;
use super::block_table::State;
use super::layout::Kind;
use super::lookup::{Aim, Hit, locate, look_up};
use super::read::{NOWHERE, Spot, UNIT, chain_of};
use super::record::Record;
use super::session::{Old, ViperSession};
use crate::concurrency::epoch::Slot;
use crate::concurrency::seam::looks;
use crate::error::Error;
use crate::index::{KeyHash, Location};

impl ViperSession {
    /// The current record of `key`, whose stripe the caller holds. Its bytes are left in `scratch`.
    pub(super) fn find(
        &mut self,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<(Old, Record)>, Error> {
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        let Some(hit) = look_up(engine, slot, hash, key, scratch)? else {
            return Ok(None);
        };
        Ok(Some((replaceable(engine, hash, &hit, scratch)?, hit.2)))
    }

    /// As [`ViperSession::find`], for a write that does not need the old value. Leaves nothing useful in
    /// `scratch`.
    #[inline(always)]
    pub(super) fn locate_old(&mut self, hash: KeyHash, key: &[u8]) -> Result<Option<Old>, Error> {
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        match locate_fast(engine, slot, hash, key, scratch) {
            Some(old) => Ok(old),
            None => locate_slow(engine, slot, hash, key, scratch),
        }
    }

    /// As [`ViperSession::locate_old`], after that met damage. Returns a record of the key whose mark word
    /// does not verify, or `None` if no record of the key can be read. An entry of the key in the index then
    /// stays, and look-ups pass over it.
    #[cold]
    pub(super) fn locate_damaged(&mut self, hash: KeyHash, key: &[u8]) -> Option<Old> {
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        let (location, spot, record) = look_up(engine, slot, hash, key, scratch).ok()??;
        Some(Old {
            location,
            bytes: record.bytes,
            chain: None,
            expired: engine.is_expired(record.expires_at_ms),
            stamp: record.stamp,
            version: record.stamp.version,
            mark: (!spot.is_below()).then(|| engine.reader().mark_of(&spot)),
            unmarkable: true,
        })
    }
}

/// As [`ViperSession::locate_old`], for a key whose place [`Ahead`](super::read::Ahead) has found under the
/// same pin.
#[inline(always)]
pub(super) fn locate_at(
    engine: &Viper,
    slot: &Slot,
    place: u64,
    hash: KeyHash,
    key: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<Option<Old>, Error> {
    if place == NOWHERE {
        return Ok(None);
    }
    match ordinary(engine, place, hash, key, scratch) {
        Some(old) => Ok(Some(old)),
        None => locate_slow(engine, slot, hash, key, scratch),
    }
}

/// The record that a write of `key` replaces, in the usual case: the index's first candidate is an ordinary
/// record of the key, or there is no candidate. `None` decides nothing: the caller takes the slow path.
#[inline(always)]
fn locate_fast(
    engine: &Viper,
    slot: &Slot,
    hash: KeyHash,
    key: &[u8],
    scratch: &mut Vec<u8>,
) -> Option<Option<Old>> {
    let pin = slot.pin();
    let Some(location) = engine.index.candidates(hash, &pin).next() else {
        return Some(None);
    };
    looks!();
    ordinary(engine, location.get() * UNIT, hash, key, scratch).map(Some)
}

/// The [`Old`] of the record at `at`, which the index offers for `key` under the present pin, if it is an
/// ordinary one of `key`. `None` decides nothing. This is [`locate`] and [`replaceable`] in a straight line:
/// passing results and errors from function to function would cost as much as the search.
#[inline(always)]
fn ordinary(
    engine: &Viper,
    at: u64,
    hash: KeyHash,
    key: &[u8],
    scratch: &mut Vec<u8>,
) -> Option<Old> {
    let reader = engine.reader();
    let spot = reader.try_spot(at)?;
    // Whether a record of an unverified block is alive takes a separate look.
    if spot.info.state == State::Unverified {
        return None;
    }
    looks!();
    let place = reader.mark_of(&spot);
    reader.prefetch_mark(&place);
    let record = reader.header(&spot, key, scratch)?;
    Some(Old {
        location: Location::new(at / UNIT)?,
        bytes: record.bytes,
        chain: None,
        expired: engine.is_expired(record.expires_at_ms),
        stamp: record.stamp,
        version: shown_version(engine, hash, &spot, &record),
        mark: Some(reader.verified_mark(place)?),
        unmarkable: false,
    })
}

#[cold]
#[inline(never)]
fn locate_slow(
    engine: &Viper,
    slot: &Slot,
    hash: KeyHash,
    key: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<Option<Old>, Error> {
    let hit = locate(engine, slot, hash, key, scratch, Aim::Mark)?;
    hit.map(|hit| replaceable(engine, hash, &hit, scratch))
        .transpose()
}

/// The version to show of a record. Edits in place leave the record's own as it is, so these show the key's
/// clock.
#[inline(always)]
fn shown_version(engine: &Viper, hash: KeyHash, spot: &Spot, record: &Record) -> u64 {
    match spot.info.kind == Kind::FixedEdited {
        true => engine.stripes.version(engine.stripe(hash)),
        false => record.stamp.version,
    }
}

/// The [`Old`] of a found record.
fn replaceable(
    engine: &Viper,
    hash: KeyHash,
    (location, spot, record): &Hit,
    scratch: &[u8],
) -> Result<Old, Error> {
    let reader = engine.reader();
    // The writer will have to mark the record dead. Damage of the mark shows here, before anything changes.
    let mark = match spot.is_below() {
        true => None,
        false => Some(reader.verified_mark_of(spot)?),
    };
    let chained = record.kind.is_chained();
    Ok(Old {
        location: *location,
        bytes: record.bytes,
        chain: chained.then(|| chain_of(record, scratch).ok()).flatten(),
        expired: engine.is_expired(record.expires_at_ms),
        stamp: record.stamp,
        version: shown_version(engine, hash, spot, record),
        mark,
        unmarkable: false,
    })
}
