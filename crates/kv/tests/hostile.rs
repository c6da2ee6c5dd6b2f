//! Damaged, cut, forged and foreign pools: each gives a typed error or right values, never a wrong value, a
//! lost key without an error, a panic or an endless loop.

#[path = "hostile/bullet.rs"]
mod bullet;
#[path = "hostile/forged.rs"]
mod forged;
mod support;

use everdram::options::Create;
use everdram::{EngineKind, Error, Session, Store, test_each_engine};
use everdram_pm::Error as PoolError;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::contents::{Contents, assert_holds};
use support::frozen::{DATA_AT, Frozen, changed_words, word};
use support::{Bed, seed};

test_each_engine!(
    an_image_of_random_bytes_is_refused,
    a_truncated_image_is_refused,
    a_directory_without_a_pool_is_not_found,
    a_pool_keeps_its_engine,
    a_pool_is_opened_once_in_a_process,
    a_pool_is_opened_by_one_process,
);

const BLOCK: usize = 24_576;

fn open(bed: &Bed) -> Result<Store, Error> {
    let mut options = bed.options();
    options.create = Create::Never;
    options.reclaim_background = false;
    options.recovery_threads = 2;
    options.sessions_max = 8;
    options.log_bytes = 4 << 20;
    Store::open(bed.path(), &options)
}

/// A closed pool with blocks of every kind, old copies that are marked dead, and deleted keys.
fn filled(bed: &Bed) -> (Frozen, Contents) {
    let store = bed.open_with(|options| {
        options.initial_bytes = 600 << 10;
        options.chunk_bytes = 1;
        options.reclaim_background = false;
        options.log_bytes = 4 << 20;
    });
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    for round in 0..2u32 {
        for number in 0..120u32 {
            let length =
                [8, 60, 300, 1_500, 7_000, 40_000][(number % 20).saturating_sub(14) as usize];
            let (key, value) = (
                format!("key-{number}").into_bytes(),
                vec![(number + round) as u8; length],
            );
            if round == 0 || number % 3 == 0 {
                session.put(&key, &value).unwrap();
                model.insert(key, value);
            } else if number % 7 == 0 {
                session.delete(&key).unwrap();
                model.remove(&key);
            }
        }
    }
    drop(session);
    assert_holds(&store, &model, "before any damage");
    store.close().unwrap();
    (Frozen::take(&bed.path()), model)
}

/// Opens a damaged pool. Returns the fault of the outcome.
fn outcome(bed: &Bed, model: &Contents) -> Result<&'static str, String> {
    let store = match open(bed) {
        Ok(store) => store,
        Err(error) if is_damage(&error) => return Ok("refused"),
        Err(error) => return Err(format!("an error that names no damage: {error}")),
    };
    let mut session = store.session().map_err(|error| error.to_string())?;
    let mut detected = read_all(&mut session, model)?;
    if store.engine().name() == EngineKind::Bullet.name() {
        write_some(&store, &mut session, model)?;
        detected = detected.max(read_all(&mut session, model)?);
    }
    for key in session.keys() {
        match key {
            Ok(key) if !model.contains_key(&key) => {
                return Err(format!("{} came back", String::from_utf8_lossy(&key)));
            }
            Ok(_) | Err(Error::Corrupt { .. }) => {}
            Err(error) => return Err(format!("iterating: {error}")),
        }
    }
    Ok(detected)
}

/// Reads every key.
fn read_all(session: &mut Session, model: &Contents) -> Result<&'static str, String> {
    let mut detected = "harmless";
    for (key, value) in model {
        match session.get(key) {
            Ok(Some(found)) if found == *value => {}
            Err(Error::Corrupt { offset, .. }) if offset > 0 => detected = "met by a reader",
            other => {
                let other = other.map(|value| value.map(|value| value.len()));
                return Err(format!("{:?}: {other:?}", String::from_utf8_lossy(key)));
            }
        }
    }
    Ok(detected)
}

/// Writes some keys again unchanged, and gleans everything: this overwrites whatever was freed by mistake.
fn write_some(store: &Store, session: &mut Session, model: &Contents) -> Result<(), String> {
    for (key, value) in model.iter().step_by(9) {
        match session.put(key, value) {
            Ok(_) | Err(Error::Corrupt { .. }) => {}
            Err(error) => return Err(format!("writing: {error}")),
        }
    }
    match store.engine().reclaim() {
        Ok(_) | Err(Error::Corrupt { .. }) => Ok(()),
        Err(error) => Err(format!("gleaning: {error}")),
    }
}

fn is_damage(error: &Error) -> bool {
    match error {
        Error::Corrupt { what, remedy, .. } => !what.is_empty() && !remedy.is_empty(),
        Error::Pool(PoolError::Corrupt { what, remedy, .. }) => {
            !what.is_empty() && !remedy.is_empty()
        }
        Error::Pool(PoolError::NotAPool { .. } | PoolError::Version { .. }) => true,
        _ => false,
    }
}

/// Every byte that is not a record: superblocks, root word, the headers of all pages, free blocks' words.
fn metadata(image: &[u8]) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..8_192).step_by(7).collect();
    positions.extend(8_192..8_200);
    for block in (DATA_AT.next_multiple_of(BLOCK)..image.len()).step_by(BLOCK) {
        match word(image, block) & 0xff {
            0 | 1 => positions.extend(block..block + 8),
            5 => positions.extend(block..block + 320),
            6 => positions.extend(block..block + 64),
            _ => positions
                .extend((0..6).flat_map(|page| block + page * 4096..block + page * 4096 + 64)),
        }
    }
    positions
}

/// Flips a bit of each byte, one pool at a time, on two threads. Returns the bytes whose flip caused a fault,
/// and how many flips were detected.
fn flip_each(
    bed: fn() -> Bed,
    good: &Frozen,
    model: &Contents,
    positions: &[usize],
) -> (Vec<(usize, String)>, usize) {
    let next = AtomicUsize::new(0);
    let work = || {
        let bed = bed();
        let mut wrong = Vec::new();
        let mut counts = std::collections::BTreeMap::new();
        while let Some(&at) = positions.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut bad = good.clone();
            // This pool may be shorter than the one of the positions.
            let Some(byte) = bad.image_mut().get_mut(at) else {
                continue;
            };
            *byte ^= 1 << (at % 8);
            bad.lay(&bed.path());
            match outcome(&bed, model) {
                Ok(kind) => *counts.entry(kind).or_insert(0) += 1,
                Err(what) => wrong.push((at, what)),
            }
        }
        (wrong, counts)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let (mut wrong, counts) = work();
        let (more, other_counts) = other.join().unwrap();
        wrong.extend(more);
        println!("{} flips: {counts:?} and {other_counts:?}", positions.len());
        let all = counts.into_iter().chain(other_counts);
        let noticed = all.filter(|(kind, _)| *kind != "harmless");
        (wrong, noticed.map(|(_, count)| count).sum())
    })
}

/// The checks of small words have 16 to 24 bits, keyed anew for each pool: a flip may pass one pool's check
/// by chance. A second pool with the same contents separates chance from bugs. It may have grown at other
/// moments, so its bytes differ a little.
fn no_flip_goes_unnoticed(
    bed: fn() -> Bed,
    fill: fn(&Bed) -> (Frozen, Contents),
    choose: impl Fn(&Frozen) -> Vec<usize>,
) {
    let (good, model) = fill(&bed());
    let (wrong, noticed) = flip_each(bed, &good, &model, &choose(&good));
    assert!(noticed > 0, "no damage was noticed");
    if wrong.is_empty() {
        return;
    }
    println!("once more, with another key: {wrong:?}");
    let (good, model) = fill(&bed());
    let positions: Vec<usize> = wrong.iter().map(|(at, _)| *at).collect();
    let (wrong, _) = flip_each(bed, &good, &model, &positions);
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn every_flipped_byte_of_metadata_is_noticed() {
    no_flip_goes_unnoticed(Bed::emulated, filled, |good| metadata(good.image()));
}

#[test]
fn every_flipped_byte_of_metadata_is_noticed_on_files() {
    no_flip_goes_unnoticed(Bed::file_in_memory, filled, |good| {
        metadata(good.image()).into_iter().step_by(5).collect()
    });
}

#[test]
fn flipped_bytes_of_records_are_noticed() {
    let seed = seed();
    no_flip_goes_unnoticed(Bed::emulated, filled, |good| {
        let image = good.image();
        let mut random = StdRng::seed_from_u64(seed);
        let used = (DATA_AT.next_multiple_of(BLOCK)..image.len()).step_by(BLOCK);
        let used: Vec<usize> = used
            .filter(|&block| word(image, block) & 0xff > 1)
            .collect();
        (0..1_500)
            .map(|_| used[random.random_range(0..used.len())] + random.random_range(0..BLOCK))
            .collect()
    });
}

#[test]
fn whole_ranges_of_noise_are_noticed() {
    let bed = Bed::emulated();
    let (good, model) = filled(&bed);
    noise_is_noticed(&bed, &good, &model, &|range, is_zero| {
        // Zeros at the start of a block look like a block that was never used.
        is_zero && range.start.div_ceil(BLOCK) * BLOCK < range.end
    });
}

/// Overwrites ranges with noise, except where `spared` forbids it: called with the range, and whether it
/// becomes zeros.
fn noise_is_noticed(
    bed: &Bed,
    good: &Frozen,
    model: &Contents,
    spared: &dyn Fn(&Range<usize>, bool) -> bool,
) {
    let mut random = StdRng::seed_from_u64(seed());
    for round in 0..300 {
        let mut bad = good.clone();
        let image = bad.image_mut();
        let length = [8, 64, 4096, BLOCK][round % 4].min(image.len());
        let at = random.random_range(0..(image.len() - length) / 8) * 8;
        let noise = match round % 3 {
            0 => vec![0; length],
            1 => vec![0xff; length],
            _ => (0..length).map(|_| random.random()).collect(),
        };
        if spared(&(at..at + length), round % 3 == 0) {
            continue;
        }
        image[at..at + length].copy_from_slice(&noise);
        bad.lay(&bed.path());
        let outcome = outcome(bed, model);
        assert!(
            outcome.is_ok(),
            "round {round}, {length} bytes at {at}: {outcome:?}"
        );
    }
}

fn an_image_of_random_bytes_is_refused(engine: EngineKind) {
    let mut random = StdRng::seed_from_u64(seed());
    let bed = Bed::emulated().of(engine);
    let (good, _) = filled(&bed);
    for round in 0..100 {
        let mut bad = good.clone();
        let length = [0, 1, 4095, 8_192, 65_536, 100_000, 700_000][round % 7];
        *bad.image_mut() = (0..length).map(|_| random.random()).collect();
        bad.lay(&bed.path());
        let refused = open(&bed).map(|_| ()).unwrap_err();
        assert!(is_damage(&refused), "{length} bytes: {refused}");
    }
}

fn a_truncated_image_is_refused(engine: EngineKind) {
    for bed in [Bed::emulated().of(engine), Bed::file_in_memory().of(engine)] {
        let (good, model) = filled(&bed);
        let length = good.image().len();
        let cuts =
            (0..64)
                .map(|i| length * i / 64)
                .chain([1, 511, 4_096, 8_191, 8_192, length - 1]);
        for cut in cuts {
            let mut bad = good.clone();
            bad.image_mut().truncate(cut);
            bad.lay(&bed.path());
            let refused = open(&bed).map(|_| ()).unwrap_err();
            assert!(is_damage(&refused), "{cut} of {length} bytes: {refused}");
        }
        good.lay(&bed.path());
        assert_eq!(outcome(&bed, &model), Ok("harmless"), "the pool itself");
    }
}

fn a_directory_without_a_pool_is_not_found(engine: EngineKind) {
    let bed = Bed::emulated().of(engine);
    assert!(matches!(
        open(&bed),
        Err(Error::Pool(PoolError::NotFound { .. }))
    ));
    std::fs::create_dir_all(bed.path()).unwrap();
    std::fs::write(bed.path().join("something"), b"else").unwrap();
    assert!(matches!(
        open(&bed),
        Err(Error::Pool(PoolError::NotFound { .. }))
    ));
    assert!(matches!(
        Store::open(bed.path().join("something"), &bed.options()),
        Err(Error::Pool(PoolError::NotAPool { .. }))
    ));
}

/// A pool without records, from no known writer.
fn forge(bed: &Bed, engine: u32, geometry: [u64; 8]) {
    let options = everdram_pm::PoolOptions {
        medium: everdram_pm::MediumChoice::Only(everdram_pm::Medium::Emulated),
        max_bytes: 1 << 30,
        engine,
        geometry,
        ..everdram_pm::PoolOptions::default()
    };
    let pool = everdram_pm::Pool::open(&bed.path(), &options).unwrap();
    pool.allocate(1, BLOCK as u64 * 8, 4096).unwrap();
    pool.close().unwrap();
}

#[test]
fn a_geometry_that_viper_cannot_have_is_refused() {
    for geometry in [
        [0; 8],
        [u64::MAX; 8],
        [4096, 65, 0, 0, 0, 0, 0, 0],
        [4096, 6, 70_000, 8, 0, 0, 0, 0],
    ] {
        let bed = Bed::emulated();
        forge(&bed, EngineKind::Viper.number(), geometry);
        let refused = open(&bed).map(|_| ()).unwrap_err();
        assert!(
            matches!(refused, Error::Corrupt { .. }),
            "{geometry:?}: {refused}"
        );
    }
}

#[test]
fn a_pool_of_an_engine_that_is_not_asked_for_is_refused_untouched() {
    let bed = Bed::emulated();
    forge(&bed, 77, [4096, 6, 0, 0, 0, 0, 0, 0]);
    let before = Frozen::take(&bed.path());
    for engine in [None, Some(EngineKind::Viper)] {
        let mut options = bed.options();
        options.engine = engine;
        let refused = Store::open(bed.path(), &options).map(|_| ()).unwrap_err();
        assert!(
            matches!(refused, Error::Engine { number: 77, asked, .. } if asked == engine),
            "{refused}"
        );
        assert!(before == Frozen::take(&bed.path()));
    }
}

/// A pool records its engine, and opens for a caller that asks for that one.
fn a_pool_keeps_its_engine(engine: EngineKind) {
    let bed = Bed::emulated();
    for asked in [Some(engine), None, Some(engine)] {
        let store = bed.open_with(|options| options.engine = asked);
        assert_eq!(store.engine().name(), engine.name());
    }
    for &other in EngineKind::ALL.iter().filter(|&&other| other != engine) {
        let mut options = bed.options();
        options.engine = Some(other);
        let refused = Store::open(bed.path(), &options).map(|_| ()).unwrap_err();
        let said = refused.to_string();
        assert!(
            said.contains(engine.name()) && said.contains(other.name()),
            "{said}"
        );
    }
}

/// The superblock's checksum covers the extent table, so extents outside the image, overlapping ones or too
/// many cannot be forged from outside; `pm` tests forged tables. An extent of a broken block can: its
/// remainder is not used.
#[test]
fn an_extent_smaller_than_a_block_holds_nothing() {
    let bed = Bed::emulated();
    let options = everdram_pm::PoolOptions {
        medium: everdram_pm::MediumChoice::Only(everdram_pm::Medium::Emulated),
        max_bytes: 1 << 30,
        engine: 1,
        geometry: [4096, 6, 0, 0, 0, 0, 0, 0],
        ..everdram_pm::PoolOptions::default()
    };
    let pool = everdram_pm::Pool::open(&bed.path(), &options).unwrap();
    for _ in 0..3 {
        pool.allocate(1, 4096, 4096).unwrap();
        pool.allocate(2, 4096, 4096).unwrap();
    }
    pool.close().unwrap();
    drop(pool);
    let store = open(&bed).unwrap();
    let mut session = store.session().unwrap();
    session.put(b"key", b"value").unwrap();
    drop(session);
    assert_holds(
        &store,
        &[(b"key".to_vec(), b"value".to_vec())].into(),
        "in small extents",
    );
}

fn a_pool_is_opened_once_in_a_process(engine: EngineKind) {
    for bed in [Bed::emulated().of(engine), Bed::file_in_memory().of(engine)] {
        let store = bed.open();
        assert!(matches!(
            open(&bed),
            Err(Error::Pool(PoolError::Locked { .. }))
        ));
        let session = store.session().unwrap();
        drop(store);
        assert!(
            matches!(open(&bed), Err(Error::Pool(PoolError::Locked { .. }))),
            "a session holds it"
        );
        drop(session);
        drop(open(&bed).unwrap());
    }
}

const CHILD: &str = "EVERDRAM_TEST_LOCKED_POOL";

/// The other process of the next test: this test binary again; its environment names the pool to open.
#[test]
fn child_process_meets_the_lock() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let bed = Bed::emulated();
    let opened = Store::open(std::path::Path::new(&path), &bed.options());
    assert!(matches!(opened, Err(Error::Pool(PoolError::Locked { .. }))));
    println!("met the lock");
}

fn a_pool_is_opened_by_one_process(engine: EngineKind) {
    let bed = Bed::emulated().of(engine);
    let store = bed.open();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process_meets_the_lock", "--nocapture"])
        .env(CHILD, bed.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("met the lock"),
        "{said}"
    );
    drop(store);
}

/// Recovery ended a log by writing zeros over the line of an entry that did not verify. An entry that lacked
/// only a zero word of its own padding got it when those zeros were torn: the next recovery then showed a
/// write that the one before had not. Recovery may write only one word there, which is atomic and makes the
/// entry less complete.
#[test]
fn a_log_is_ended_by_one_word() {
    let bed = Bed::emulated().of(EngineKind::Bullet);
    let store = bed.open_with(|options| options.reclaim_background = false);
    let mut session = store.session().unwrap();
    session.put(b"before", b"value").unwrap();
    session.put(b"k", &[0xa7; 104]).unwrap();
    let mut frozen = Frozen::take(&bed.path());
    drop(session);
    drop(store);
    let image = frozen.image_mut();
    // 32 bytes of the entry, 32 of its operation, 8 of the key, and the value: the last 16 of three lines are
    // padding.
    let value = image
        .windows(104)
        .position(|bytes| bytes == [0xa7; 104])
        .unwrap();
    let entry = value - 72;
    assert!(entry.is_multiple_of(64));
    image[entry + 184..entry + 192].fill(0x5e);
    let torn = image[entry..entry + 192].to_vec();
    frozen.lay(&bed.path());
    let store = open(&bed).unwrap();
    let mut session = store.session().unwrap();
    assert!(session.get(b"before").unwrap().is_some());
    assert_eq!(session.get(b"k").unwrap(), None);
    let after = Frozen::take(&bed.path());
    let ended = &after.image()[entry..entry + 192];
    assert_eq!(changed_words(&torn, ended), [0]);
    assert_eq!(word(ended, 0), 0);
}
