//! Recovery of the tier below: the log is read from its oldest segment to its settled end, after all of
//! tier 1 was read, and each key's state there is entered into the index unless something of a greater
//! order is in tier 1. (The paper reads the log first and overwrites it with tier 1; the outcome is the
//! same.)
//!
//! Nothing is appended to the log, and the only thing written to the pool are marks of records of which
//! the log has a later state: a crash came between settling and freeing their block. A repetition writes
//! the same.

use super::Below;
use crate::aof::{Read, is_below};
use crate::error::{Error, corrupt};
use crate::index::{KeyHash, Location};
use crate::viper::lookup::{look_up, rehash_all};
use crate::viper::read::UNIT;
use crate::viper::recovery::scan::{Found, VERSION_SOUND};
use crate::viper::session::ViperSession;
use crate::viper::{Viper, index_error};
use everdram_pm::Ordered;

/// Enters the states of the log into the index.
///
/// # Errors
/// [`Error::Corrupt`] names file and offset; [`Error::NoSpace`]: the index found no memory.
pub(in crate::viper) fn load(
    viper: &Viper,
    below: &Below,
    session: &mut ViperSession,
    found: &mut Found,
) -> Result<(), Error> {
    // A salvage may not know it.
    let clock = match viper.damage {
        None => below.clock(),
        Some(_) => VERSION_SOUND,
    };
    for number in below.log.numbers() {
        let outcome = below.log.replay(number, &mut |read| {
            if read.entry.order.0 > clock {
                return Err(corrupt(
                    0,
                    "the log has a version that its pool does not know",
                ));
            }
            enter(viper, below, session, found, &read).or_else(|error| viper.tolerate(error))
        });
        outcome.or_else(|error| viper.tolerate(error))?;
    }
    Ok(())
}

fn enter(
    viper: &Viper,
    below: &Below,
    session: &mut ViperSession,
    found: &mut Found,
    read: &Read<'_>,
) -> Result<(), Error> {
    let (key, order) = (read.key(), read.entry.order);
    let hash = viper.hash(key);
    let stale = |location: Option<Location>, bytes: u64| {
        if let Some(location) = location {
            below.log.add_stale(location, bytes);
        }
    };
    if order.0 <= viper.floor() {
        stale(read.location, read.entry.bytes);
        return Ok(());
    }
    let current = look_up(viper, &session.slot, hash, key, &mut session.scratch)?;
    let current = current.map(|(location, _, record)| (location, record));
    let is_outdone = current
        .as_ref()
        .is_some_and(|(_, record)| record.stamp.order() > order);
    let Some(location) = read.location.filter(|_| read.value().is_some()) else {
        // A removal. What tier 1 has of the key is newer, or has the same order and was moved from here.
        if let Some((old, record)) = current
            && is_below(old)
            && !is_outdone
        {
            let removed = viper.index.remove(hash, old, &Ordered::when_found());
            assert!(removed, "the index changed under recovery");
            found.inserted -= 1;
            stale(Some(old), u64::from(record.bytes));
        }
        return Ok(());
    };
    let is_covered = found
        .covers
        .get(key)
        .is_some_and(|covered| *covered >= order);
    if is_outdone || is_covered {
        stale(Some(location), read.entry.bytes);
        return Ok(());
    }
    if read.entry.expires_at_ms != 0 {
        viper
            .expiries
            .store(true, std::sync::atomic::Ordering::Relaxed);
    }
    match current {
        Some((old, record)) => {
            let replaced = viper
                .index
                .replace(hash, old, location, &Ordered::when_found());
            assert!(replaced, "the index changed under recovery");
            match is_below(old) {
                true => stale(Some(old), u64::from(record.bytes)),
                false => found.losers.push(old.get() * UNIT),
            }
            Ok(())
        }
        None => insert(viper, session, hash, location, found),
    }
}

fn insert(
    viper: &Viper,
    session: &mut ViperSession,
    hash: KeyHash,
    location: Location,
    found: &mut Found,
) -> Result<(), Error> {
    let scratch = &mut session.scratch;
    let mut again = |locations: &[Location], hashes: &mut Vec<KeyHash>| {
        rehash_all(viper, locations, scratch, hashes)
    };
    viper
        .index
        .insert(hash, location, &mut again, &Ordered::when_found())
        .map_err(index_error)?;
    found.inserted += 1;
    Ok(())
}
