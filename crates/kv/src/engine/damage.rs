//! The known losses of a salvaged store: places whose bytes do not verify, and keys to which they may belong.
//!
//! A salvage ([`crate::Options::salvage`]) continues after any damage, and notes it here. The notes have two
//! uses. They list what is missing ([`Finding`]). And they turn a read of a key to which damaged bytes may
//! belong into an error ([`Damage::judge`]). Without this, the read could answer "absent", or show an older
//! value that the damaged one had replaced. The key of a damaged record is read from its bytes, so it can be
//! wrong. Then a key that never existed gets an error, and the finding says that the record's key is not
//! certain.

pub(super) mod salvaged;

use crate::error::{Error, corrupt};
use crate::options::Options;
use crate::stats::{Finding, SalvageStats};
use everdram_pm::Pool;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Findings that are listed; further ones are only counted.
const FINDINGS_MAX: usize = 100_000;

/// Why a key's state is uncertain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt {
    /// A state of the key with a newer version than this is certain.
    pub(crate) version: u64,
    /// Offset of the damage.
    pub(crate) offset: u64,
}

/// See the module text.
#[derive(Default)]
pub(crate) struct Damage {
    found: Mutex<Found>,
    doubtful: RwLock<Doubtful>,
}

#[derive(Default)]
struct Found {
    findings: Vec<Finding>,
    stats: SalvageStats,
}

#[derive(Default)]
struct Doubtful {
    keys: HashMap<Vec<u8>, Doubt>,
    /// Versions before which a state of the key is wrong, and offsets of the damage.
    older: HashMap<Vec<u8>, Doubt>,
    /// Keys of which only the beginning and the length in bytes are known.
    beginnings: Vec<(Vec<u8>, u64, Doubt)>,
}

impl Damage {
    /// Adds a finding to the list.
    pub(crate) fn note(&self, finding: Finding) {
        let mut found = self.found.lock();
        found.stats.findings += 1;
        found.stats.missing_records += finding.missing;
        found.stats.skipped_bytes += finding.bytes;
        if found.findings.len() < FINDINGS_MAX {
            found.findings.push(finding);
        }
    }

    /// Adds an error to the list if it is damage.
    ///
    /// # Errors
    /// Any other one.
    pub(crate) fn note_error(&self, error: Error) -> Result<(), Error> {
        match error {
            Error::Corrupt { offset, what, .. } => {
                self.note(Finding::new(offset, what));
                Ok(())
            }
            other => Err(other),
        }
    }

    /// From here on, reads of `key` that find nothing newer fail.
    pub(crate) fn doubt(&self, key: Vec<u8>, doubt: Doubt) {
        enter(&mut self.doubtful.write().keys, key, doubt);
    }

    /// From here on, reads of `key` that find a state before this version fail: damaged bytes seem to say
    /// that it was replaced or removed.
    pub(crate) fn doubt_older(&self, key: Vec<u8>, doubt: Doubt) {
        enter(&mut self.doubtful.write().older, key, doubt);
    }

    /// As [`Damage::doubt`], for a key of `key_bytes` bytes of which only the beginning is known.
    pub(crate) fn doubt_beginning(&self, beginning: Vec<u8>, key_bytes: u64, doubt: Doubt) {
        let mut doubtful = self.doubtful.write();
        doubtful.beginnings.push((beginning, key_bytes, doubt));
    }

    /// Whether the state found for a key (a version, or nothing) is certain.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(crate) fn judge(&self, key: &[u8], found: Option<u64>) -> Result<(), Error> {
        let doubtful = self.doubtful.read();
        let known = doubtful.keys.get(key);
        let begun = doubtful.beginnings.iter();
        let begun = begun.filter(|(beginning, key_bytes, _)| {
            *key_bytes == key.len() as u64 && key.starts_with(beginning)
        });
        let mut all = known.into_iter().chain(begun.map(|(.., doubt)| doubt));
        let uncertain = all.find(|doubt| found.is_none_or(|version| version <= doubt.version));
        let older = doubtful.older.get(key);
        let older = older.filter(|doubt| found.is_some_and(|version| version < doubt.version));
        match uncertain.or(older) {
            None => Ok(()),
            Some(doubt) => Err(corrupt(
                doubt.offset,
                "the record of this key, or one that was newer than what is left of it, is damaged",
            )),
        }
    }

    /// All findings, in the order of places.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = self.found.lock().findings.clone();
        findings.sort_by(|one, other| {
            let place = |finding: &Finding| (finding.file.clone(), finding.offset);
            place(one).cmp(&place(other))
        });
        findings
    }

    pub(crate) fn stats(&self) -> SalvageStats {
        let doubtful = self.doubtful.read();
        SalvageStats {
            doubtful_keys: (doubtful.keys.len() + doubtful.beginnings.len()) as u64,
            ..self.found.lock().stats
        }
    }
}

/// Enters a doubt, of which the one with the greater version stays.
fn enter(keys: &mut HashMap<Vec<u8>, Doubt>, key: Vec<u8>, doubt: Doubt) {
    match keys.entry(key) {
        Entry::Occupied(mut old) if old.get().version < doubt.version => {
            old.insert(doubt);
        }
        Entry::Occupied(_) => {}
        Entry::Vacant(place) => {
            place.insert(doubt);
        }
    }
}

/// The damage list of a pool that is being salvaged, with what its medium has noted already.
pub(crate) fn damage_of(pool: &Pool, options: &Options) -> Option<Arc<Damage>> {
    options.salvage.then(|| {
        let damage = Damage::default();
        for found in pool.damage() {
            damage.note(Finding {
                file: Some(found.file.clone()),
                bytes: found.bytes,
                missing: u64::from(found.is_loss),
                stale: found.is_loss,
                ..Finding::new(found.offset, found.what.clone())
            });
        }
        Arc::new(damage)
    })
}

/// Notes damage and continues if the pool is being salvaged.
///
/// # Errors
/// The given one otherwise.
pub(crate) fn tolerate(damage: Option<&Arc<Damage>>, error: Error) -> Result<(), Error> {
    match damage {
        Some(damage) => damage.note_error(error),
        None => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_newer_than_the_damage_is_certain() {
        let damage = Damage::default();
        let doubt = |version| Doubt { version, offset: 9 };
        damage.doubt(b"key".to_vec(), doubt(5));
        damage.doubt(b"key".to_vec(), doubt(3));
        damage.doubt_beginning(b"lon".to_vec(), 4, doubt(7));
        damage.doubt_older(b"replaced".to_vec(), doubt(5));
        for (key, found, certain) in [
            (&b"key"[..], None, false),
            (b"key", Some(5), false),
            (b"key", Some(6), true),
            (b"kez", None, true),
            (b"long", Some(7), false),
            (b"long", Some(8), true),
            (b"longer", None, true),
            (b"replaced", None, true),
            (b"replaced", Some(4), false),
            (b"replaced", Some(5), true),
        ] {
            let judged = damage.judge(key, found);
            assert_eq!(judged.is_ok(), certain, "{key:?} {found:?}: {judged:?}");
        }
        assert_eq!(damage.stats().doubtful_keys, 2);
    }
}
