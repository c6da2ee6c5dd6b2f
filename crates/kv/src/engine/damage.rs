//! What a salvaged store is known to lack: places whose bytes do not verify, and keys that they may belong
//! to.
//!
//! A salvage ([`crate::Options::salvage`]) goes on behind every damage, and notes it here. What is noted has
//! two uses. People are told what is missing ([`Finding`]). And a read of a key that damaged bytes may belong
//! to is answered with an error ([`Damage::judge`]): never with "absent", and never with an older value that
//! the damaged one had replaced. The key of a damaged record is what its bytes say, so it can be wrong; then
//! an error answers for a key that was never there, and the listing says of the record that its key is not
//! certain.

use crate::error::{Error, corrupt};
use crate::options::Options;
use crate::stats::{Finding, SalvageStats};
use everdram_pm::Pool;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Findings that are kept word by word; of more there are only counts.
const FINDINGS_MAX: usize = 100_000;

/// Why a key's state is not certain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt {
    /// A newer state of the key than this one is certain.
    pub(crate) version: u64,
    /// Where the damage is.
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
    /// Keys of which only the beginning and the length in bytes are known.
    beginnings: Vec<(Vec<u8>, u64, Doubt)>,
}

impl Damage {
    /// Takes a finding into the list.
    pub(crate) fn note(&self, finding: Finding) {
        let mut found = self.found.lock();
        found.stats.findings += 1;
        found.stats.missing_records += finding.missing;
        found.stats.skipped_bytes += finding.bytes;
        if found.findings.len() < FINDINGS_MAX {
            found.findings.push(finding);
        }
    }

    /// Takes an error for a finding if it tells of damage.
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

    /// Reads of `key` that find nothing newer fail from here on.
    pub(crate) fn doubt(&self, key: Vec<u8>, doubt: Doubt) {
        match self.doubtful.write().keys.entry(key) {
            Entry::Occupied(mut old) if old.get().version < doubt.version => {
                old.insert(doubt);
            }
            Entry::Occupied(_) => {}
            Entry::Vacant(place) => {
                place.insert(doubt);
            }
        }
    }

    /// As [`Damage::doubt`], of a key of so many bytes that begins like this.
    pub(crate) fn doubt_beginning(&self, beginning: Vec<u8>, key_bytes: u64, doubt: Doubt) {
        let mut doubtful = self.doubtful.write();
        doubtful.beginnings.push((beginning, key_bytes, doubt));
    }

    /// Whether what was found of a key, a version or nothing, is certain.
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
        match all.find(|doubt| found.is_none_or(|version| version <= doubt.version)) {
            None => Ok(()),
            Some(doubt) => Err(corrupt(
                doubt.offset,
                "the record of this key, or one that was newer than what is left of it, is damaged",
            )),
        }
    }

    /// What was noted, in the order of places.
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

/// What is to be noted of a pool's damage by who salvages it, and what its medium has noted already.
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

/// Goes on behind damage if the pool is being salvaged.
///
/// # Errors
/// The one given otherwise.
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
        for (key, found, certain) in [
            (&b"key"[..], None, false),
            (b"key", Some(5), false),
            (b"key", Some(6), true),
            (b"kez", None, true),
            (b"long", Some(7), false),
            (b"long", Some(8), true),
            (b"longer", None, true),
        ] {
            let judged = damage.judge(key, found);
            assert_eq!(judged.is_ok(), certain, "{key:?} {found:?}: {judged:?}");
        }
        assert_eq!(damage.stats().doubtful_keys, 2);
    }
}
