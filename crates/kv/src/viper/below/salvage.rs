//! Salvage of the tier below: what verifies of the log is entered, and a key whose state there may be damaged
//! is an error.
//!
//! Where an entry lies says which of two counts: a state is appended while it is its key's, and a removal
//! after all that it removes. So a damaged entry is of no interest if a later one of its key verifies, or if
//! tier 1 has the key. Otherwise reads of the key fail ([`Damage::doubt`]), whatever older state was found.
//! Neither needs the version in the damaged head. That is why one thread reads the log from its beginning.

use super::Below;
use super::line::LINES_AT;
use super::loader::{Loader, Outcome};
use crate::aof::{Known, Log, Part, is_below};
use crate::concurrency::stripes::VERSION_MAX;
use crate::engine::damage::{Damage, Doubt};
use crate::error::Error;
use crate::stats::Finding;
use crate::viper::Viper;
use crate::viper::lookup::look_up;
use crate::viper::recovery::scan::VERSION_SOUND;
use everdram_pm::{Secret, Shelf};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of keys of damaged entries that are kept until all of the log is read.
const KEYS_MAX: usize = if cfg!(test) { 1 << 10 } else { 64 << 20 };
/// Bytes of memory that such a key takes beside its own.
const KEY_OVERHEAD: usize = 256;

/// The error of a directory that could not be opened: of a missing one, it says what a salvage can do.
pub(super) fn shelf_error(error: everdram_pm::Error, damage: Option<&Damage>) -> Error {
    match (error, damage) {
        (everdram_pm::Error::Unpaired { path, what }, Some(_)) => Error::Options(format!(
            "{}: {what}. If the log is lost, make an empty directory there: then what the pool itself has is saved",
            path.display()
        )),
        (error, _) => Error::of_pool(error),
    }
}

/// The log as far as it is there.
///
/// # Errors
/// As [`Log::salvage`].
pub(super) fn open(
    shelf: Shelf,
    secret: &Secret,
    incarnation: u64,
    segment_bytes: u64,
    known: Option<Known>,
    damage: &Damage,
) -> Result<Log, Error> {
    if known.is_none() {
        damage.note(Finding {
            stale: true,
            ..Finding::new(
                LINES_AT[0],
                "the pool does not say how far its log counts: its last states may be of keys that were changed later",
            )
        });
    }
    let note = &mut |finding| damage.note(finding);
    Log::salvage(shelf, secret, incarnation, segment_bytes, known, note)
}

/// Enters the states of parts of a log that may be damaged, in order.
///
/// # Errors
/// [`Error::NoSpace`]: the index found no memory. [`Error::Pool`].
pub(super) fn read(
    viper: &Arc<Viper>,
    below: &Below,
    damage: &Damage,
    parts: &[Part],
) -> Result<Outcome, Error> {
    // The pool may not know it.
    let mut loader = Loader::new(viper, below, VERSION_SOUND)?;
    let claims = std::cell::RefCell::new(Claims {
        damage,
        of: HashMap::new(),
        bytes: 0,
    });
    for part in parts {
        below.log.salvage_part(
            part,
            &mut |read| {
                claims.borrow_mut().outdo(read.key());
                loader.enter(&read).or_else(|error| viper.tolerate(error))
            },
            &mut |finding| claims.borrow_mut().add(finding),
        )?;
    }
    for (key, finding) in claims.into_inner().of {
        let hash = viper.hash(&key);
        let session = &mut loader.session;
        let found = look_up(viper, &session.slot, hash, &key, &mut session.scratch);
        match found {
            // Of a key of tier 1 nothing in the log counts.
            Ok(Some((location, ..))) if !is_below(location) => damage.note(void(finding)),
            _ => {
                let doubt = Doubt {
                    version: VERSION_MAX,
                    offset: finding.offset,
                };
                damage.doubt(key.into(), doubt);
                damage.note(finding);
            }
        }
    }
    Ok(loader.finish())
}

/// The finding of an entry after which its key changed.
fn void(finding: Finding) -> Finding {
    Finding {
        missing: 0,
        what: "an entry of the log does not verify; the key that is read in it, which may be wrong, has a later state, \
               so nothing is missing for it"
            .into(),
        ..finding
    }
}

/// Damaged entries whose keys seem to have no later state so far.
struct Claims<'a> {
    damage: &'a Damage,
    of: HashMap<Box<[u8]>, Finding>,
    /// Bytes that these take.
    bytes: usize,
}

impl Claims<'_> {
    fn add(&mut self, finding: Finding) {
        let Some(key) = &finding.key else {
            self.damage.note(finding);
            return;
        };
        let key: Box<[u8]> = key.as_slice().into();
        self.outdo(&key);
        let bytes = 2 * key.len() + KEY_OVERHEAD;
        if self.bytes + bytes > KEYS_MAX {
            self.damage.note(Finding {
                stale: true,
                what: format!(
                    "{}; of so many damaged entries not each key is an error: this one may show an earlier value, or be absent",
                    finding.what
                ),
                ..finding
            });
            return;
        }
        self.bytes += bytes;
        self.of.insert(key, finding);
    }

    /// A later entry of the key was met.
    fn outdo(&mut self, key: &[u8]) {
        if self.of.is_empty() {
            return;
        }
        if let Some(finding) = self.of.remove(key) {
            self.bytes -= 2 * key.len() + KEY_OVERHEAD;
            self.damage.note(void(finding));
        }
    }
}
