//! Salvage of what has left the pool: damaged, cut and missing files of the log of `tiered`.

use crate::support::frozen::Frozen;
use crate::support::{Bed, seed};
use crate::{Outcome, Taken, name, read_all};
use everdram::options::{Create, Loading};
use everdram::stats::Finding;
use everdram::{EngineKind, Error, Options, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

const MANIFEST: &str = "tier2/everdram.aof.manifest";
/// Most of them are in the log.
const KEYS: u32 = 7000;

fn bed() -> Bed {
    Bed::emulated().of(EngineKind::Tiered)
}

fn small(options: &mut Options) {
    options.max_bytes = 2 << 20;
    options.tiered.segment_bytes = 64 << 10;
    options.reclaim_background = false;
}

fn key(number: u32) -> Vec<u8> {
    format!("{number:08}").into_bytes()
}

/// A pool whose log has states that were replaced, also such that came back and left again, and removals.
fn filled(bed: &Bed, is_closed: bool) -> Taken {
    let store = bed.open_with(small);
    let mut session = store.session().unwrap();
    let (mut model, mut gone) = (BTreeMap::new(), BTreeSet::new());
    for round in 0..3_u32 {
        for number in 0..KEYS {
            let key = key(number);
            let is_put = round == 0 || number % 5 == round;
            let length = [40, 300, 300, 2000][number as usize % 4] + round as usize;
            if is_put {
                let mut value = vec![(number + 100 * round) as u8; length];
                value[..4].copy_from_slice(&number.to_le_bytes());
                let expires_at_ms = u64::from(number % 3 == 0) << 40;
                session.engine().put(&key, &value, expires_at_ms).unwrap();
                let _ticket = session.engine().commit().unwrap();
                gone.remove(&key);
                model.insert(key, value);
            } else if number % 11 == round {
                session.delete(&key).unwrap();
                model.remove(&key);
                gone.insert(key);
            }
        }
    }
    assert!(store.stats().own("evicted_records").unwrap() > u64::from(KEYS));
    assert!(store.stats().own("tier2_removals").unwrap() > 100);
    drop(session);
    if is_closed {
        store.close().unwrap();
    }
    Taken {
        frozen: Frozen::take(&bed.path()),
        model: model.into_iter().collect(),
        gone,
    }
}

fn segments(frozen: &Frozen) -> Vec<String> {
    let number = |name: &String| -> u32 {
        let digits = name.trim_start_matches("tier2/everdram.aof.");
        digits.split('.').next().unwrap().parse().unwrap()
    };
    let names = frozen.names().filter(|name| name.ends_with(".incr.aof"));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort_by_key(number);
    assert!(names.len() > 10, "{names:?}");
    names
}

fn open(bed: &Bed, change: impl FnOnce(&mut Options)) -> Result<Store, Error> {
    let mut options = bed.options();
    small(&mut options);
    options.create = Create::Never;
    change(&mut options);
    Store::open(bed.path(), &options)
}

/// Salvages a pool whose log is damaged; nothing of it changes.
fn salvaged(bed: &Bed, damaged: &Frozen, taken: &Taken) -> (Outcome, Vec<Finding>) {
    damaged.lay(&bed.path());
    let store = open(bed, |options| options.salvage = true);
    let store = store.unwrap_or_else(|error| panic!("salvage: {error}"));
    let mut session = store.session().unwrap();
    let outcome = read_all(&mut session, taken);
    for key in session.keys() {
        let key = key.unwrap();
        let is_known = taken.model.contains_key(&key) || taken.gone.contains(&key);
        assert!(is_known, "{} was never there", name(&key));
    }
    let findings = store.damage();
    // Each is told once.
    assert_eq!(store.check().unwrap().findings, findings);
    drop(session);
    store.close().unwrap();
    assert!(
        Frozen::take(&bed.path()) == *damaged,
        "the pool has changed"
    );
    (outcome, findings)
}

fn says(findings: &[Finding], what: &str) -> bool {
    findings.iter().any(|one| one.what.contains(what))
}

/// An open that reads everything refuses the pool and says what to do, or it has the same contents.
fn refused_or_sound(bed: &Bed, taken: &Taken, findings: &[Finding], place: &str) {
    match open(bed, |options| options.tiered.loading = Loading::AtOpen) {
        Err(error) => {
            assert!(!findings.is_empty(), "{place}: {error}");
            assert!(error.to_string().contains("--salvage"), "{place}: {error}");
        }
        Ok(store) => {
            let outcome = read_all(&mut store.session().unwrap(), taken);
            assert!(outcome.is_whole(), "{place}: {outcome:?}");
        }
    }
}

impl Outcome {
    fn is_whole(&self) -> bool {
        self.lost() + self.back.len() == 0 && self.refused.is_empty()
    }

    /// Keys that are answered as if nothing were wrong, and wrongly.
    fn lost(&self) -> usize {
        self.absent.len() + self.wrong.len()
    }
}

#[test]
fn one_byte() {
    let mut random = StdRng::seed_from_u64(seed());
    for is_closed in [true, false] {
        let bed = bed();
        let taken = filled(&bed, is_closed);
        let segments = segments(&taken.frozen);
        let (mut listed, mut refused) = (0, 0);
        for _ in 0..90 {
            let mut damaged = taken.frozen.clone();
            let segment = &segments[random.random_range(0..segments.len())];
            let bytes = damaged.file_mut(segment);
            let at = random.random_range(0..bytes.len());
            bytes[at] ^= random.random_range(1..=255_u8);
            let (outcome, findings) = salvaged(&bed, &damaged, &taken);
            let place = format!("byte {at} of {segment}: {outcome:?}, {findings:?}");
            listed += usize::from(!findings.is_empty());
            refused += outcome.refused.len();
            // The entries behind it are all there.
            assert!(findings.len() <= 2, "{place}");
            let is_unsure = says(&findings, "may be wrong") || says(&findings, "do not say");
            let lost = outcome.lost() + outcome.back.len();
            assert!(lost <= 1 && (lost == 0 || is_unsure), "{place}");
            assert!(outcome.refused.len() <= 1, "{place}");
            // A key that is told of is not answered.
            let of = findings.iter().filter(|one| one.missing > 0);
            for key in of.filter_map(|one| one.key.as_deref()).map(name) {
                let is_answered = outcome.absent.contains(&key) || outcome.wrong.contains(&key);
                assert!(!is_answered && !outcome.back.contains(&key), "{place}");
            }
            refused_or_sound(&bed, &taken, &findings, &place);
        }
        assert!(
            listed > 60 && refused > 10,
            "{listed} listed, {refused} refused"
        );
    }
}

/// Where the log has these bytes.
fn place_of(frozen: &Frozen, bytes: &[u8]) -> Option<(String, usize)> {
    segments(frozen).into_iter().find_map(|name| {
        let mut windows = frozen.file(&name).windows(bytes.len());
        windows
            .position(|window| window == bytes)
            .map(|at| (name, at))
    })
}

/// Of a key that was written again, the later state counts: the earlier one is not shown in its place, and is
/// not missed.
#[test]
fn an_early_and_a_late_state() {
    let mut random = StdRng::seed_from_u64(seed());
    let bed = bed();
    let taken = filled(&bed, true);
    let (mut early, mut late) = (0, 0);
    for _ in 0..60 {
        // Written in the first two rounds.
        let number = random.random_range(0..KEYS / 5) * 5 + 1;
        let Some(value) = taken.model.get(&key(number)) else {
            continue;
        };
        // Each state has one byte more than the one before.
        let old: Vec<u8> = std::iter::once(value[..4].to_vec())
            .chain([vec![number as u8; value.len() - 5]])
            .flatten()
            .collect();
        for (state, count) in [(&old, &mut early), (value, &mut late)] {
            let Some((segment, at)) = place_of(&taken.frozen, state) else {
                continue;
            };
            let mut damaged = taken.frozen.clone();
            damaged.file_mut(&segment)[at + 20] ^= 4;
            let (outcome, findings) = salvaged(&bed, &damaged, &taken);
            assert_eq!(findings.len(), 1, "{findings:?}");
            let finding = &findings[0];
            assert_eq!(finding.key.as_ref(), Some(&key(number)));
            assert!(finding.file.as_ref().unwrap().ends_with(&segment[6..]));
            if state == &old {
                assert!(outcome.is_whole() && finding.missing == 0, "{outcome:?}");
            } else {
                let is_refused = outcome.refused == [name(&key(number))];
                assert!(is_refused && outcome.lost() == 0, "{outcome:?}");
                assert_eq!(finding.missing, 1);
            }
            *count += 1;
        }
    }
    assert!(
        early > 20 && late > 20,
        "{early} and {late} of 60 were in the log"
    );
}

#[test]
fn a_sector_of_zeros() {
    let mut random = StdRng::seed_from_u64(seed());
    let bed = bed();
    let taken = filled(&bed, true);
    for _ in 0..60 {
        let mut damaged = taken.frozen.clone();
        let segments = segments(&taken.frozen);
        let segment = &segments[random.random_range(0..segments.len())];
        let bytes = damaged.file_mut(segment);
        let at = random.random_range(0..bytes.len()) / 512 * 512;
        let end = bytes.len().min(at + 512);
        bytes[at..end].fill(0);
        let (outcome, findings) = salvaged(&bed, &damaged, &taken);
        let place = format!("sector at {at} of {segment}: {outcome:?}, {findings:?}");
        let lost = outcome.lost() + outcome.refused.len() + outcome.back.len();
        assert!(!findings.is_empty(), "{place}");
        // The shortest ones have 80 bytes, and one before and one behind may be concerned.
        assert!(lost <= 512 / 80 + 2, "{place}");
        let is_told = says(&findings, "may be there again");
        assert!(
            outcome.lost() + outcome.back.len() == 0 || is_told,
            "{place}"
        );
        refused_or_sound(&bed, &taken, &findings, &place);
    }
}

/// Whatever is damaged, a salvage ends, and each value that it returns existed once.
#[test]
fn many_bytes() {
    let mut random = StdRng::seed_from_u64(seed());
    for is_closed in [true, false] {
        let bed = bed();
        let taken = filled(&bed, is_closed);
        for flips in [10, 100, 1_000, 10_000, 100_000] {
            let mut damaged = taken.frozen.clone();
            let segments = segments(&taken.frozen);
            for _ in 0..flips {
                let segment = &segments[random.random_range(0..segments.len())];
                let bytes = damaged.file_mut(segment);
                let at = random.random_range(0..bytes.len());
                bytes[at] ^= random.random_range(1..=255_u8);
            }
            let (outcome, findings) = salvaged(&bed, &damaged, &taken);
            assert!(!findings.is_empty(), "{flips}: {outcome:?}");
            // Those of damaged entries whose keys cannot be read.
            let unknown = findings.iter().filter(|one| one.stale).count();
            let lost = outcome.lost() + outcome.back.len();
            assert!(
                lost <= unknown + flips / 10 + 5,
                "{flips}: {lost} of {unknown}"
            );
        }
    }
}

/// Nothing is missing where only the frame of a segment is damaged.
#[test]
fn a_head_and_a_seal() {
    let bed = bed();
    let taken = filled(&bed, true);
    let segments = segments(&taken.frozen);
    let length = taken.frozen.file(&segments[3]).len();
    for at in [5, 40, 79, length - 16, length - 7] {
        let mut damaged = taken.frozen.clone();
        damaged.file_mut(&segments[3])[at] ^= 1;
        let (outcome, findings) = salvaged(&bed, &damaged, &taken);
        assert!(outcome.is_whole(), "byte {at}: {outcome:?}");
        assert_eq!(findings.len(), 1, "byte {at}: {findings:?}");
        assert!(findings[0].missing == 0 && !findings[0].stale);
        refused_or_sound(&bed, &taken, &findings, "a frame");
    }
}

/// A segment that is missing, and such that have lost their ends.
#[test]
fn missing_and_torn_segments() {
    let bed = bed();
    let taken = filled(&bed, true);
    let segments = segments(&taken.frozen);
    let last = segments.len() - 1;
    for nth in [0, 3, last / 2, last] {
        let name = &segments[nth];
        let bytes = taken.frozen.file(name);
        let entry = bytes.windows(4).rposition(|four| four == b"\n#e ").unwrap();
        let ends = [0, 40, 80, bytes.len() / 2, entry + 1, bytes.len() - 16];
        for end in ends.map(Some).into_iter().chain([None]) {
            let mut damaged = taken.frozen.clone();
            match end {
                Some(end) => damaged.file_mut(name).truncate(end),
                None => damaged.remove(name),
            }
            let (outcome, findings) = salvaged(&bed, &damaged, &taken);
            let place = format!("{name} at {end:?}: {findings:?}");
            assert!(says(&findings, "may be there again"), "{place}");
            let most = bytes.len() / 80;
            let lost = outcome.lost() + outcome.back.len() + outcome.refused.len();
            assert!(lost <= most, "{place}: {lost}");
            let refused = open(&bed, |options| options.tiered.loading = Loading::AtOpen);
            let error = refused.map(drop).unwrap_err();
            assert!(error.is_damage(), "{place}: {error}");
            assert!(error.to_string().contains("--salvage"), "{place}: {error}");
        }
    }
}

/// The names of the files say which segments there are.
#[test]
fn a_log_without_its_manifest() {
    let bed = bed();
    for is_closed in [true, false] {
        let taken = filled(&bed, is_closed);
        let mut flipped = taken.frozen.clone();
        flipped.file_mut(MANIFEST)[20] ^= 1;
        let mut without = taken.frozen.clone();
        without.remove(MANIFEST);
        let mut longer = taken.frozen.clone();
        longer.file_mut(MANIFEST).resize(17 << 20, b'x');
        for damaged in [flipped, without, longer] {
            let (outcome, findings) = salvaged(&bed, &damaged, &taken);
            assert!(outcome.is_whole(), "{outcome:?}");
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].stale && findings[0].what.contains("manifest"));
            let error = open(&bed, |_| ()).map(drop).unwrap_err();
            assert!(error.to_string().contains("log"), "{error}");
        }
        std::fs::remove_dir_all(bed.path()).unwrap();
    }
}

/// What the pool itself has is saved, and a log of another pool is not read.
#[test]
fn no_log_and_a_wrong_one() {
    let bed = bed();
    let taken = filled(&bed, true);
    let mut without = taken.frozen.clone();
    let all: Vec<String> = without
        .names()
        .filter(|name| name.starts_with("tier2/"))
        .map(str::to_owned)
        .collect();
    all.iter().for_each(|name| without.remove(name));
    let (outcome, findings) = salvaged(&bed, &without, &taken);
    assert_eq!(findings.len(), 2, "{findings:?}");
    let lost = outcome.lost();
    assert!(lost > 100 && lost < taken.model.len() - 100, "{lost} lost");
    std::fs::remove_dir(bed.path().join("tier2")).unwrap();
    let error = open(&bed, |options| options.salvage = true).map(drop);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("empty directory"), "{error}");

    let other = self::bed();
    let other = filled(&other, true).frozen;
    let mut mixed = without.clone();
    for name in other.names().filter(|name| name.starts_with("tier2/")) {
        mixed.add(name, other.file(name));
    }
    mixed.lay(&bed.path());
    let error = open(&bed, |options| options.salvage = true).map(drop);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("another pool"), "{error}");
}

/// A dead record of the pool said that what the log has of its key is void. It was damaged, and what it had
/// replaced was there again.
#[test]
fn a_damaged_dead_record_brings_nothing_back() {
    let bed = bed();
    let store = bed.open_with(small);
    let mut session = store.session().unwrap();
    for number in 0..KEYS {
        session.put(&key(number), &[1; 300]).unwrap();
    }
    let mut taken = Taken {
        frozen: Frozen::take(&bed.path()),
        model: (0..KEYS)
            .map(|number| (key(number), vec![1; 300]))
            .collect(),
        gone: BTreeSet::new(),
    };
    let again = 7..40;
    for number in again.clone() {
        session.put(&key(number), &[b'd'; 90]).unwrap();
        assert!(session.delete(&key(number)).unwrap());
        taken.model.remove(&key(number));
        taken.gone.insert(key(number));
    }
    drop(session);
    store.close().unwrap();
    taken.frozen = Frozen::take(&bed.path());
    let mut damaged = taken.frozen.clone();
    let image = damaged.image_mut();
    let mut hit = 0;
    for at in 0..image.len() - 90 {
        if image[at..at + 90] == [b'd'; 90] {
            image[at + 45] ^= 1;
            hit += 1;
        }
    }
    assert_eq!(hit, again.len());
    let (outcome, findings) = salvaged(&bed, &damaged, &taken);
    assert_eq!(findings.len(), hit, "{findings:?}");
    assert!(
        outcome.back.is_empty() && outcome.lost() == 0,
        "{outcome:?}"
    );
}
