//! Salvaged pools: what verifies is readable, the rest is an error and is listed, no value is wrong, and
//! nothing of the pool changes.

mod log;
#[path = "../support/mod.rs"]
mod support;

use everdram::options::Create;
use everdram::stats::Finding;
use everdram::{EngineKind, Error, Session, Store, test_each_engine};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::ops::Range;
use support::contents::Contents;
use support::frozen::{DATA_AT, Frozen};
use support::{Bed, seed};

test_each_engine!(
    one_byte_of_a_closed_pool,
    one_byte_of_a_killed_store,
    a_key_that_spells_another,
    a_sector_of_zeros,
    many_bytes,
    one_byte_of_the_redo_log,
    a_pool_that_is_sound,
    a_pool_without_superblocks,
);

/// The first byte that an engine reads.
const ROOT_PAGE: Range<usize> = 8192..12_288;

/// A pool, and its contents.
struct Taken {
    frozen: Frozen,
    model: Contents,
    /// Removed keys.
    gone: BTreeSet<Vec<u8>>,
}

fn open(bed: &Bed, salvage: bool) -> Result<Store, Error> {
    let mut options = bed.options();
    options.create = Create::Never;
    options.salvage = salvage;
    options.reclaim_background = false;
    options.recovery_threads = 2;
    options.sessions_max = 8;
    options.log_bytes = 4 << 20;
    Store::open(bed.path(), &options)
}

fn filled(bed: &Bed, is_closed: bool) -> Taken {
    let store = bed.open_with(|options| {
        options.initial_bytes = 600 << 10;
        options.chunk_bytes = 64 << 10;
        options.reclaim_background = false;
        options.log_bytes = 4 << 20;
    });
    let mut session = store.session().unwrap();
    let (mut model, mut gone) = (Contents::new(), BTreeSet::new());
    for round in 0..2_u32 {
        for number in 0..150_u32 {
            let length =
                [8, 60, 300, 1_500, 7_000, 40_000][(number % 20).saturating_sub(14) as usize];
            let mut key = format!("{number:08}").into_bytes();
            if number % 50 == 49 {
                key.resize(30_000, b'k');
            }
            let value = match number % 4 {
                // Records that may have the fixed size.
                0 => u128::from(number + round).to_le_bytes().to_vec(),
                _ => vec![(number + 100 * round) as u8; length],
            };
            if round == 0 || number % 3 == 0 {
                session.put(&key, &value).unwrap();
                model.insert(key, value);
            } else if number % 7 == 0 {
                session.delete(&key).unwrap();
                model.remove(&key);
                gone.insert(key);
            }
        }
    }
    drop(session);
    let frozen = match is_closed {
        true => {
            store.close().unwrap();
            Frozen::take(&bed.path())
        }
        false => Frozen::take(&bed.path()),
    };
    Taken {
        frozen,
        model,
        gone,
    }
}

/// The reads of a salvaged store.
#[derive(Debug, Default)]
struct Outcome {
    refused: Vec<String>,
    absent: Vec<String>,
    wrong: Vec<String>,
    back: Vec<String>,
}

fn name(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[..key.len().min(12)]).into_owned()
}

fn read_all(session: &mut Session, taken: &Taken) -> Outcome {
    let mut outcome = Outcome::default();
    for (key, value) in &taken.model {
        match session.get(key) {
            Ok(Some(found)) if found == *value => {}
            Ok(Some(_)) => outcome.wrong.push(name(key)),
            Ok(None) => outcome.absent.push(name(key)),
            Err(Error::Corrupt { .. }) => outcome.refused.push(name(key)),
            Err(error) => panic!("{}: {error}", name(key)),
        }
    }
    for key in &taken.gone {
        match session.get(key) {
            Ok(None) | Err(Error::Corrupt { .. }) => {}
            Ok(Some(_)) => outcome.back.push(name(key)),
            Err(error) => panic!("{}: {error}", name(key)),
        }
    }
    outcome
}

/// Salvages a damaged pool; nothing of it changes.
fn salvaged(bed: &Bed, damaged: &Frozen, taken: &Taken) -> (Outcome, Vec<Finding>) {
    damaged.lay(&bed.path());
    let store = open(bed, true).unwrap_or_else(|error| panic!("salvage: {error}"));
    let mut session = store.session().unwrap();
    let outcome = read_all(&mut session, taken);
    // Iteration and reads must agree.
    for key in session.keys() {
        let key = key.unwrap();
        let is_known = taken.model.contains_key(&key) || taken.gone.contains(&key);
        assert!(is_known, "{} was never there", name(&key));
    }
    assert!(matches!(
        session.put(b"key", b"value"),
        Err(Error::ReadOnly)
    ));
    assert!(matches!(session.delete(b"00000001"), Err(Error::ReadOnly)));
    let findings = store.damage();
    let stats = store.stats().salvage.unwrap();
    assert_eq!(stats.findings, findings.len() as u64);
    let checked = store.check().unwrap();
    assert!(checked.findings.len() >= findings.len());
    drop(session);
    store.close().unwrap();
    assert!(
        Frozen::take(&bed.path()) == *damaged,
        "the pool has changed"
    );
    (outcome, findings)
}

/// Judges a pool with one damaged byte.
fn judge(bed: &Bed, damaged: &Frozen, taken: &Taken, place: &str) -> bool {
    let (outcome, findings) = salvaged(bed, damaged, taken);
    let place = format!("{place}: {outcome:?}, {findings:?}");
    let lost = outcome.refused.len() + outcome.absent.len() + outcome.wrong.len();
    let says = |what: &str| findings.iter().any(|one| one.what.contains(what));
    // The damaged byte of a key may spell another key: then a read of that one is refused as well.
    let mut lost_otherwise = outcome.absent.iter().chain(&outcome.wrong);
    let one_more = match (lost_otherwise.next(), outcome.refused.as_slice()) {
        (Some(damaged), [spelled]) if says("may be wrong") => {
            let differ = damaged.bytes().zip(spelled.bytes());
            differ.filter(|(one, other)| one != other).count() == 1
        }
        _ => false,
    };
    assert!(lost <= 1 + usize::from(one_more), "{place}");
    // If a record does not verify, its key may be the damaged part.
    let is_unsure = says("may be wrong") || says("do not say") || says("how it may begin");
    assert!(outcome.absent.is_empty() || is_unsure, "{place}");
    assert!(outcome.wrong.is_empty() || is_unsure, "{place}");
    assert!(
        outcome.back.is_empty() || says("may be there again"),
        "{place}"
    );
    assert!(lost == 0 || !findings.is_empty(), "{place}");
    // No read of a key that is known to be damaged says "absent".
    let keys = findings
        .iter()
        .filter(|one| !one.what.contains("how it may begin"));
    let keys: Vec<String> = keys
        .filter_map(|one| one.key.as_deref().map(name))
        .collect();
    let mut told = outcome.absent.iter().chain(&outcome.wrong);
    assert!(told.all(|key| !keys.contains(key)), "{place}");
    // A normal open refuses, or has the same contents, with an error for one key at most.
    match open(bed, false) {
        Err(error) => {
            assert!(error.is_damage(), "{place}: {error}");
            assert!(!findings.is_empty(), "{place}: {error}");
            assert!(error.to_string().contains("--salvage"), "{error}");
        }
        Ok(store) => {
            let mut session = store.session().unwrap();
            let outcome = read_all(&mut session, taken);
            // A bucket of the engine `bullet` has several keys.
            assert!(outcome.refused.len() <= 16, "{place}: {outcome:?}");
            assert!(outcome.wrong.is_empty(), "{place}: {outcome:?}");
            assert!(outcome.absent.is_empty(), "{place}: {outcome:?}");
        }
    }
    !findings.is_empty()
}

fn beds(engine: EngineKind) -> Vec<Bed> {
    let mut beds = vec![Bed::emulated().of(engine)];
    if engine == EngineKind::Viper {
        beds.push(Bed::shaped(4, Some((8, 16))));
    }
    beds
}

/// Offsets in nonzero parts of an image.
fn places(image: &[u8], random: &mut StdRng, count: usize) -> Vec<usize> {
    places_in(image, DATA_AT..image.len(), random, count)
}

fn places_in(image: &[u8], range: Range<usize>, random: &mut StdRng, count: usize) -> Vec<usize> {
    let mut places = Vec::new();
    while places.len() < count {
        let at = random.random_range(range.clone());
        let line = at / 64 * 64;
        if image[line..line + 64].iter().any(|&byte| byte != 0) {
            places.push(at);
        }
    }
    places
}

fn one_byte_of_a_closed_pool(engine: EngineKind) {
    let mut random = StdRng::seed_from_u64(seed());
    for bed in beds(engine) {
        let taken = filled(&bed, true);
        let mut listed = 0;
        let image = taken.frozen.image();
        let of_root = places_in(image, ROOT_PAGE, &mut random, 40);
        for at in places(image, &mut random, 150).into_iter().chain(of_root) {
            let mut damaged = taken.frozen.clone();
            damaged.image_mut()[at] ^= random.random_range(1..=255_u8);
            listed += usize::from(judge(&bed, &damaged, &taken, &format!("byte {at}")));
        }
        assert!(listed > 50, "{listed} of 190 listed");
    }
}

fn a_key_that_spells_another(engine: EngineKind) {
    for bed in beds(engine) {
        let taken = filled(&bed, true);
        let key = b"00000126";
        let found = taken.frozen.image().windows(key.len());
        let found: Vec<usize> = found
            .enumerate()
            .filter_map(|(at, bytes)| (bytes == key).then_some(at))
            .collect();
        let mut listed = 0;
        // Some engines have older copies as well, which nothing reads.
        for at in found {
            let mut damaged = taken.frozen.clone();
            damaged.image_mut()[at..at + key.len()].copy_from_slice(b"00000146");
            listed += usize::from(judge(&bed, &damaged, &taken, &format!("key at {at}")));
        }
        assert!(listed > 0);
    }
}

fn one_byte_of_a_killed_store(engine: EngineKind) {
    let mut random = StdRng::seed_from_u64(seed());
    for bed in beds(engine) {
        let taken = filled(&bed, false);
        let mut listed = 0;
        for at in places(taken.frozen.image(), &mut random, 100) {
            let mut damaged = taken.frozen.clone();
            damaged.image_mut()[at] ^= random.random_range(1..=255_u8);
            let (outcome, findings) = salvaged(&bed, &damaged, &taken);
            listed += usize::from(!findings.is_empty());
            let lost = outcome.absent.len() + outcome.wrong.len();
            let place = format!("byte {at}: {outcome:?}, {findings:?}");
            // The last writes before a kill cannot be told from torn ones.
            assert!(lost <= 1, "{place}");
        }
        assert!(listed > 20, "{listed} of 100 listed");
    }
}

/// An unreadable part of the medium, for example.
fn a_sector_of_zeros(engine: EngineKind) {
    let mut random = StdRng::seed_from_u64(seed());
    for bed in beds(engine) {
        let taken = filled(&bed, true);
        for at in places(taken.frozen.image(), &mut random, 60) {
            let mut damaged = taken.frozen.clone();
            let sector = at / 512 * 512;
            damaged.image_mut()[sector..sector + 512].fill(0);
            let (outcome, findings) = salvaged(&bed, &damaged, &taken);
            let place = format!("sector at {sector}: {outcome:?}, {findings:?}");
            let lost = outcome.absent.len() + outcome.refused.len();
            assert!(outcome.wrong.is_empty(), "{place}");
            assert!(lost == 0 || !findings.is_empty(), "{place}");
            // Short records lie close together, and a sector of `dstore` may say where 32 pages of metadata
            // are.
            let most = match engine {
                EngineKind::Dstore => 32 * 64,
                _ => 512 / 40 + 2,
            };
            assert!(lost <= most, "{place}");
        }
    }
}

/// Whatever is damaged, a salvage ends, and each value that it returns existed once.
fn many_bytes(engine: EngineKind) {
    let mut random = StdRng::seed_from_u64(seed());
    for is_closed in [true, false] {
        for bed in beds(engine) {
            let taken = filled(&bed, is_closed);
            for flips in [10, 100, 1_000, 10_000] {
                let mut damaged = taken.frozen.clone();
                let image = damaged.image_mut();
                for at in places(image, &mut random, flips) {
                    image[at] ^= random.random_range(1..=255_u8);
                }
                let (outcome, findings) = salvaged(&bed, &damaged, &taken);
                // A few may all lie where nothing is any more.
                let lost = outcome.absent.len() + outcome.refused.len() + outcome.wrong.len();
                let may_be_silent = flips == 10 && lost == 0;
                assert!(
                    !findings.is_empty() || may_be_silent,
                    "{flips}: {outcome:?}"
                );
                // An older value, of a key whose own bytes are damaged in the newer record.
                let few = 5 + flips / 10;
                assert!(outcome.wrong.len() <= few, "{flips}: {outcome:?}");
            }
        }
    }
}

fn one_byte_of_the_redo_log(engine: EngineKind) {
    let mut random = StdRng::seed_from_u64(seed());
    let bed = Bed::file_in_memory().of(engine);
    let taken = filled(&bed, false);
    let mut listed = 0;
    for _ in 0..40 {
        let mut damaged = taken.frozen.clone();
        let at = damaged.damage_log(&mut random);
        let (outcome, findings) = salvaged(&bed, &damaged, &taken);
        let lost = outcome.absent.len() + outcome.wrong.len() + outcome.refused.len();
        let place = format!("{at}: {outcome:?}, {findings:?}");
        // Damage at the end of the log cannot be told from a torn end.
        assert!(lost <= 1 || !findings.is_empty(), "{place}");
        if let Some(of_log) = findings.iter().find(|one| one.file.is_some()) {
            listed += 1;
            assert!(of_log.what.contains("may be missing"), "{place}");
            let refused = open(&bed, false).map(drop);
            assert!(matches!(refused, Err(Error::Pool(_))), "{refused:?}");
        }
    }
    assert!(listed > 5, "{listed} of 40 listed");
}

fn a_pool_that_is_sound(engine: EngineKind) {
    for is_closed in [true, false] {
        for bed in beds(engine) {
            let taken = filled(&bed, is_closed);
            let (outcome, findings) = salvaged(&bed, &taken.frozen, &taken);
            assert_eq!(findings, []);
            let lost = outcome.refused.len() + outcome.absent.len() + outcome.wrong.len();
            assert_eq!(lost + outcome.back.len(), 0, "{outcome:?}");
        }
    }
}

fn a_pool_without_superblocks(engine: EngineKind) {
    let bed = Bed::emulated().of(engine);
    let mut taken = filled(&bed, true);
    for copy in [0, 4096] {
        taken.frozen.image_mut()[copy + 100] ^= 1;
    }
    taken.frozen.lay(&bed.path());
    let refused = open(&bed, true).map(drop).unwrap_err();
    assert!(refused.to_string().contains("salvage"), "{refused}");
    // One copy suffices.
    taken.frozen.image_mut()[100] ^= 1;
    let (outcome, findings) = salvaged(&bed, &taken.frozen, &taken);
    assert_eq!(outcome.refused.len() + outcome.absent.len(), 0);
    assert_eq!(findings.len(), 1, "{findings:?}");
}
