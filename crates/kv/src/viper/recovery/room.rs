//! Room for the batches that recovery finishes.
//!
//! A batch reserves blocks before it writes its journal, so that it can be finished. Recovery has the same
//! blocks, but some look used. They are pieces of values that a free list knew to be free, and pieces that
//! the batch itself had written. Usually such pieces are unreachable, and recovery frees them last (step 5).
//! In a full pool it frees them first.
//!
//! Losers may lead to such pieces, so recovery marks them dead before that. It also marks the journals of
//! finished batches whose marks the crash lost. Without this, recovery could put a removed key again: the
//! dead record that proves the removal may have its own key in such pieces.

use super::scan::Found;
use super::{
    at_old, bury, free_unreached, journal_payload, mark_losers, mark_removed_dead, parsed,
    reached_pieces, removal,
};
use crate::error::Error;
use crate::viper::Viper;
use crate::viper::batch::JournalOp;
use crate::viper::compaction::backpressure::blocks_at_most;
use crate::viper::record::{RecordKind, Stamp};
use crate::viper::session::ViperSession;
use crate::viper::space::Space;
use std::collections::HashMap;

/// Whether the puts of the journals fit; the pool grows for them if it can.
///
/// # Errors
/// Damage, or an error of growth other than a lack of room.
pub(in crate::viper) fn is_enough(space: &Space, found: &Found) -> Result<bool, Error> {
    let mut puts = Vec::new();
    for &at in &found.journals {
        for op in parsed(at, &journal_payload(space, at)?)? {
            if let JournalOp::Put { key, value, .. } = op {
                puts.push((key.len(), value.len()));
            }
        }
    }
    if puts.is_empty() {
        return Ok(true);
    }
    let blocks = blocks_at_most(&space.geometry, puts.into_iter(), 0);
    let mut claimed = Vec::new();
    match space.blocks.claim(blocks, true, &mut claimed) {
        Ok(()) => {
            for block in claimed {
                space.blocks.give_back(block);
            }
            Ok(true)
        }
        Err(Error::NoSpace(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Frees the unreachable pieces. All blocks must have been read. Returns the removals to repeat after the
/// journals are applied: their keys lie in pieces, which may be reused by then.
///
/// # Errors
/// Damage.
pub(in crate::viper) fn free_first(
    viper: &Viper,
    session: &mut ViperSession,
    found: &mut Found,
) -> Result<Vec<(Vec<u8>, Stamp)>, Error> {
    mark_losers(&viper.space, session, found)?;
    let mut buried = long_keys(&viper.space, found)?;
    buried.extend(mark_finished(viper, session, found)?);
    let mut reached = reached_pieces(viper, session, found)?;
    for &at in &found.journals {
        if let Some(chain) = at_old(&viper.space, at)?.chain {
            reached.extend(viper.reader().chain_blocks(&chain)?);
        }
    }
    free_unreached(viper, found, &reached);
    if !viper.unreadable.is_any() {
        found.overflow.retain(|(block, _)| reached.contains(block));
    }
    Ok(buried)
}

/// Marks the journals of finished batches dead, durably, and forgets them. In a finished batch, each put has
/// a record, alive or dead, that is as new. Returns the removals of these batches.
fn mark_finished(
    viper: &Viper,
    session: &mut ViperSession,
    found: &mut Found,
) -> Result<Vec<(Vec<u8>, Stamp)>, Error> {
    let dead = newest_dead(&viper.space, found)?;
    let mut removed = Vec::new();
    let mut finished = Vec::new();
    for at in std::mem::take(&mut found.journals) {
        let payload = journal_payload(&viper.space, at)?;
        let ops = parsed(at, &payload)?;
        let mut is_finished = true;
        for op in &ops {
            if let JournalOp::Put { key, version, .. } = op {
                let current = session.find(viper.hash(key), key)?;
                let newest = current.map(|(old, _)| old.stamp.version);
                let newest = newest.max(dead.get(*key).copied());
                is_finished &= newest.is_some_and(|newest| newest >= *version);
            }
        }
        if !is_finished {
            found.journals.push(at);
            continue;
        }
        for op in ops {
            match op {
                JournalOp::Put { version, .. } => {
                    found.version_max = found.version_max.max(version);
                }
                JournalOp::Delete { key, version } => {
                    found.version_max = found.version_max.max(version);
                    mark_removed_dead(viper, session, key, removal(version), found)?;
                    removed.push((key.to_vec(), removal(version)));
                }
                JournalOp::Clear { .. } => {}
            }
        }
        finished.push(at);
    }
    mark_losers(&viper.space, session, found)?;
    if viper.below.is_some() {
        for (key, stamp) in &removed {
            bury(viper, session, key, stamp.version, found)?;
        }
        // Before the journals that asked for it.
        let _ordered = session.settle_and_fence();
    }
    for at in finished {
        let old = at_old(&viper.space, at)?;
        session.mark(&old)?;
        session.count_garbage(&old);
    }
    let _ordered = session.settle_and_fence();
    Ok(removed)
}

/// The newest version of each key among dead records.
fn newest_dead(space: &Space, found: &Found) -> Result<HashMap<Vec<u8>, u64>, Error> {
    let (mut newest, mut scratch) = (HashMap::new(), Vec::new());
    for &at in &found.dead {
        let reader = space.reader();
        let record = reader.load(&mut reader.spot(at)?, &mut scratch)?;
        let mut buffer = Vec::new();
        if let Ok(key) = reader.key(&record, &scratch, &mut buffer) {
            let version = newest.entry(key.to_vec()).or_default();
            *version = record.stamp.version.max(*version);
        }
    }
    Ok(newest)
}

/// The keys in pieces of dead records, as far as they can be read.
fn long_keys(space: &Space, found: &Found) -> Result<Vec<(Vec<u8>, Stamp)>, Error> {
    let (mut keys, mut scratch) = (Vec::new(), Vec::new());
    for &at in &found.dead {
        let reader = space.reader();
        let record = reader.load(&mut reader.spot(at)?, &mut scratch)?;
        let mut buffer = Vec::new();
        if record.kind == RecordKind::BigKey
            && let Ok(key) = reader.key(&record, &scratch, &mut buffer)
        {
            keys.push((key.to_vec(), record.stamp));
        }
    }
    Ok(keys)
}
