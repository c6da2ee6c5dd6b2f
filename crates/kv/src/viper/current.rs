//! The record that a write replaces: looked up under the key's lock, with what marking it dead takes.

use super::Viper;
use super::layout::Kind;
use super::lookup::{Aim, Hit, locate, look_up, peek_at};
use super::read::{NOWHERE, chain_of};
use super::record::Record;
use super::session::{Old, ViperSession};
use crate::concurrency::epoch::Slot;
use crate::error::Error;
use crate::index::KeyHash;

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

    /// As [`ViperSession::find`], for a write that does not ask what the value was: `scratch` holds nothing
    /// of use afterwards.
    #[inline(always)]
    pub(super) fn locate(&mut self, hash: KeyHash, key: &[u8]) -> Result<Option<Old>, Error> {
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        match locate(engine, slot, hash, key, scratch, Aim::Mark)? {
            None => Ok(None),
            Some(hit) => replaceable(engine, hash, &hit, scratch).map(Some),
        }
    }

    /// As [`ViperSession::locate`], where that met damage: a record of the key whose mark word does not
    /// verify; or none, if no record of the key can be read. Its entry, if it has one, stays then, and is
    /// passed over.
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
            mark: engine.reader().mark_of(&spot),
            unmarkable: true,
        })
    }
}

/// As [`ViperSession::locate`], of a key whose place [`Ahead`](super::read::Ahead) has found under the same
/// pin.
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
    let hit = match peek_at(engine, place, key, scratch) {
        Some(hit) => Some(hit),
        None => locate(engine, slot, hash, key, scratch, Aim::Mark)?,
    };
    hit.map(|hit| replaceable(engine, hash, &hit, scratch))
        .transpose()
}

/// What replacing a found record takes.
#[inline(always)]
fn replaceable(
    engine: &Viper,
    hash: KeyHash,
    (location, spot, record): &Hit,
    scratch: &[u8],
) -> Result<Old, Error> {
    engine.refuse_locked_page(spot)?;
    let reader = engine.reader();
    // Whoever replaces it will have to mark it dead: damage shows here, before anything of it changes.
    let mark = reader.verified_mark_of(spot)?;
    let chained = record.kind.is_chained();
    Ok(Old {
        location: *location,
        bytes: record.bytes,
        chain: chained.then(|| chain_of(record, scratch).ok()).flatten(),
        expired: engine.is_expired(record.expires_at_ms),
        stamp: record.stamp,
        version: match spot.info.kind == Kind::FixedEdited {
            true => engine.stripes.version(engine.stripe(hash)),
            false => record.stamp.version,
        },
        mark,
        unmarkable: false,
    })
}
