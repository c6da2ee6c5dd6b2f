//! Damage to pools of the engine `bullet`: closed ones, whose logs are empty, and killed ones, with records
//! that were never gleaned.
//!
//! One kind of damage cannot be detected, by design: no later entry confirms what was written to a log after
//! its last fence but one, so damage to it looks like a power failure during the write. These tests leave out
//! exactly that ([`Map::last`]), and damage that is in it and elsewhere.

use super::support::bullet::{Looked, Map};
use super::*;
use everdram::Medium;

fn emulated() -> Bed {
    Bed::emulated().of(EngineKind::Bullet)
}

fn on_files() -> Bed {
    Bed::file_in_memory().of(EngineKind::Bullet)
}

/// Where everything is in a pool.
fn map_of(good: &Frozen, medium: Medium) -> Map {
    let bed = Bed::emulated();
    good.lay(&bed.path());
    Looked::at(&bed.path(), medium).map()
}

/// A killed pool of the engine `bullet`: with an array that is being moved or has chains, objects of all
/// sizes in the back, and every kind of log record, for new keys and for keys of the back.
pub(super) fn killed(bed: &Bed) -> (Frozen, Contents) {
    let store = bed.open_with(|options| {
        options.initial_bytes = 600 << 10;
        options.chunk_bytes = 1;
        options.reclaim_background = false;
        options.log_bytes = 4 << 20;
        options.bullet.depth = 4;
    });
    let mut model = Contents::new();
    // Each writes another log.
    let mut sessions: Vec<_> = (0..3).map(|_| store.session().unwrap()).collect();
    let mut put = |session: &mut Session, number: usize, length: usize| {
        let (key, value) = (
            format!("key-{number}"),
            vec![(number + length) as u8; length],
        );
        session.put(key.as_bytes(), &value).unwrap();
        model.insert(key.into_bytes(), value);
    };
    for number in 0..140 {
        let length = match number {
            131 => 300_000,
            132.. => 40_000,
            _ => [8, 60, 300, 1_500][number % 4],
        };
        put(&mut sessions[number % 3], number, length);
    }
    store.engine().reclaim().unwrap();
    for number in (0..40).chain([131, 136, 137]).chain(140..170) {
        let length = if number > 130 && number < 138 {
            20_000
        } else {
            50
        };
        put(&mut sessions[number % 3], number, length);
    }
    for number in (40..80).chain([135, 139]).chain(150..155) {
        let key = format!("key-{number}").into_bytes();
        assert!(sessions[number % 3].delete(&key).unwrap());
        model.remove(&key);
    }
    for number in 80..100 {
        let key = format!("key-{number}").into_bytes();
        let value = model.get_mut(&key).unwrap();
        let session = &mut sessions[number % 3];
        session.append(&key, &[number as u8; 16]).unwrap();
        value.extend([number as u8; 16]);
        session.append(&key, b"end").unwrap();
        value.extend(b"end");
    }
    // The last entry of each log.
    for (number, session) in sessions.iter_mut().enumerate() {
        session
            .put(format!("last-{number}").as_bytes(), b"value")
            .unwrap();
        model.insert(format!("last-{number}").into_bytes(), b"value".to_vec());
    }
    assert_holds(&store, &model, "before any damage");
    (Frozen::take(&bed.path()), model)
}

/// Every byte outside records: all of the rare kinds, and some of the frequent ones.
fn metadata(good: &Frozen, medium: Medium) -> Vec<usize> {
    let map = map_of(good, medium);
    println!(
        "books {}, areas {}, chunks {}, buckets {}, entries {}, objects {}, last {}",
        map.books.len(),
        map.areas.len(),
        map.chunks.len(),
        map.buckets.len(),
        map.entries.len(),
        map.objects.len(),
        map.last.len()
    );
    let heads = |ranges: &[Range<usize>], bytes| {
        let head =
            |range: &Range<usize>| range.start..range.end.min(range.start.saturating_add(bytes));
        ranges.iter().flat_map(head).collect::<Vec<usize>>()
    };
    let mut positions: Vec<usize> = (0..8_192).step_by(7).collect();
    for ranges in [&map.books, &map.areas, &map.chunks] {
        positions.extend(heads(ranges, usize::MAX).into_iter().step_by(2));
    }
    positions.extend(heads(&map.buckets, usize::MAX).into_iter().step_by(3));
    positions.extend(heads(&map.entries, 80).into_iter().step_by(7));
    positions.extend(heads(&map.objects, 48).into_iter().step_by(7));
    positions.retain(|at| !map.last.iter().any(|range| range.contains(at)));
    let from = StdRng::seed_from_u64(seed()).random_range(0..ONE_IN);
    positions.into_iter().skip(from).step_by(ONE_IN).collect()
}

/// The share of bytes to damage: without optimisation each is slow, and other runs choose others.
const ONE_IN: usize = if cfg!(debug_assertions) { 8 } else { 1 };

/// Bytes of records, in logs and in the back.
fn records(good: &Frozen, medium: Medium) -> Vec<usize> {
    let mut random = StdRng::seed_from_u64(seed());
    let map = map_of(good, medium);
    let ranges: Vec<_> = map.entries.iter().chain(&map.objects).cloned().collect();
    let any = |_| {
        let range = ranges[random.random_range(0..ranges.len())].clone();
        random.random_range(range)
    };
    let mut positions: Vec<usize> = (0..1_500 / ONE_IN).map(any).collect();
    positions.retain(|at| !map.last.iter().any(|range| range.contains(at)));
    positions
}

#[test]
fn every_flipped_byte_of_metadata_is_noticed() {
    for fill in [filled, killed] {
        no_flip_goes_unnoticed(emulated, fill, |good| metadata(good, Medium::Emulated));
    }
}

#[test]
fn every_flipped_byte_of_metadata_is_noticed_on_files() {
    for fill in [filled, killed] {
        no_flip_goes_unnoticed(on_files, fill, |good| {
            let all = metadata(good, Medium::File);
            all.into_iter().step_by(5).collect()
        });
    }
}

#[test]
fn flipped_bytes_of_records_are_noticed() {
    for fill in [filled, killed] {
        no_flip_goes_unnoticed(emulated, fill, |good| records(good, Medium::Emulated));
    }
}

#[test]
fn whole_ranges_of_noise_are_noticed() {
    for (bed, fill) in [
        (emulated(), filled as fn(&Bed) -> _),
        (emulated(), killed),
        (on_files(), filled),
    ] {
        let (good, model) = fill(&bed);
        let map = map_of(&good, bed.medium());
        noise_is_noticed(&bed, &good, &model, &|noise, _| {
            let last = |range: &Range<usize>| range.start < noise.end && noise.start < range.end;
            map.last.iter().any(last)
        });
    }
}
