//! Pools to start from: small ones of every shape, which the engine itself writes in memory, the same at each
//! start.

use everdram::engine::{BatchOp, Engine, EngineSession};
use everdram::fuzzing::{Forger, Survey};
use everdram::lab;
use everdram::{EngineKind, Error, Options};
use everdram_pm::fuzzing::{forge_sums, secret};
use everdram_pm::lab::{self as pm, Disk, Seed};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes that the image of a pool may grow to.
pub const CAPACITY: u64 = 384 << 10;
/// Bytes that a data file may grow to.
const DATA_BYTES: u64 = 128 << 10;
/// The fixed time of the clock.
pub const NOW_MS: u64 = 1_000_000;
/// Keys so long that they are stored with the value.
const LONG_KEY_BYTES: usize = 5000;

/// Files beside a pool, by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// A pool, and everything ever written to it.
pub struct Base {
    /// Its bytes.
    pub image: Vec<u8>,
    /// Its data file, if it has one.
    pub files: Files,
    /// Geometry words.
    pub geometry: [u64; 8],
    /// All values of each key, including the overwritten and removed ones.
    pub written: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    /// The bytes of the pool that verify.
    pub survey: Survey,
}

/// Pools of the engine `bullet`: killed with full logs, killed with half of the data in the back, and closed.
#[must_use]
pub fn of_bullet() -> Vec<Base> {
    let mut options = options();
    options.engine = Some(EngineKind::Bullet);
    let ends = [End::Killed, End::Reclaimed, End::Closed];
    let bases = ends.into_iter().zip(10..);
    bases
        .map(|(end, seed)| made(Seed(seed), &options, end))
        .collect()
}

/// Pools of the engine `dstore` with their data files, left in the same ways; with sums that hold, or with
/// those that hold for any bytes.
#[must_use]
pub fn of_dstore(has_forged_sums: bool) -> Vec<Base> {
    forge_sums(has_forged_sums);
    let mut options = options();
    options.engine = Some(EngineKind::Dstore);
    let ends = [End::Killed, End::Reclaimed, End::Closed];
    let bases = ends.into_iter().zip(20..);
    let bases = bases.map(|(end, seed)| made(Seed(seed), &options, end));
    let bases = bases.collect();
    forge_sums(false);
    bases
}

/// Pools of the engine `tiered` with their logs, left in the same ways; with sums that hold, or with those
/// that hold for any bytes.
#[must_use]
pub fn of_tiered(has_forged_sums: bool) -> Vec<Base> {
    forge_sums(has_forged_sums);
    let mut options = options();
    options.engine = Some(EngineKind::Tiered);
    (options.page_bytes, options.dimms) = (512, 2);
    options.reclaim_background = true;
    options.max_bytes = options.initial_bytes;
    let ends = [End::Killed, End::Reclaimed, End::Closed];
    let bases = ends.into_iter().zip(30..);
    let bases: Vec<Base> = bases
        .map(|(end, seed)| made(Seed(seed), &options, end))
        .collect();
    forge_sums(false);
    for base in &bases {
        let sizes: Vec<usize> = base.files.values().map(Vec::len).collect();
        assert!(
            sizes.iter().sum::<usize>() > 4096,
            "{sizes:?} bytes have left a pool"
        );
    }
    bases
}

/// One of each kind, of the engine `viper`.
#[must_use]
pub fn all() -> Vec<Base> {
    let shapes = [(1, None), (1, Some((8, 16))), (3, None)];
    let mut bases = Vec::new();
    for (number, (dimms, fixed)) in shapes.into_iter().enumerate() {
        for closed in [false, true] {
            let mut options = options();
            options.dimms = dimms;
            options.fixed = fixed;
            let end = if closed { End::Closed } else { End::Killed };
            let base = made(Seed(number as u64), &options, end);
            let forger =
                Forger::new(secret(&base.image), base.geometry).expect("the engine's own words");
            bases.push(Base {
                survey: forger.survey(&base.image),
                ..base
            });
        }
    }
    bases
}

/// Options of every store here.
#[must_use]
pub fn options() -> Options {
    let mut options = Options::default();
    options.initial_bytes = 96 << 10;
    options.chunk_bytes = 32 << 10;
    options.max_bytes = CAPACITY;
    options.bullet.logs = 2;
    options.bullet.log_bytes = 24 << 10;
    options.bullet.transaction_bytes = 1 << 10;
    options.bullet.chunk_bytes = 8 << 10;
    options.bullet.depth = 2;
    options.dstore.logs = 2;
    options.dstore.log_bytes = 16 << 10;
    options.dstore.page_bytes = 512;
    options.dstore.block_bytes = 512;
    options.dstore.inline_bytes = 16;
    options.dstore.data_bytes_max = DATA_BYTES;
    // Nearly every record leaves the pool as soon as its block is full.
    options.tiered.free = 0.9;
    options.tiered.garbage = 0.3;
    options.tiered.segment_bytes = 4 << 10;
    options.sessions_max = 4;
    options.recovery_threads = 1;
    options.reclaim_background = false;
    options.clock = Some(Arc::new(|| NOW_MS));
    options
}

/// How a pool was left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Killed,
    /// Killed after reclamation and some further writes.
    Reclaimed,
    Closed,
}

fn made(seed: Seed, options: &Options, end: End) -> Base {
    let (number, geometry) = lab::identity(options).expect("these options are sound");
    let empty = pm::create(seed, number, geometry).expect("memory does not fail");
    let disk = Arc::new(Disk::new(Files::new(), None));
    let pool = pm::open_beside(&empty, CAPACITY, None, &disk).expect("a new pool opens");
    let mut opened = lab::open(Arc::clone(&pool), options).expect("a new pool recovers");
    let engine = opened.engine();
    let mut written = BTreeMap::new();
    let is_tiered = options.engine == Some(EngineKind::Tiered);
    // Records leave the pool meanwhile.
    let mut rest = || {
        if is_tiered {
            opened.tend().expect("memory does not fail");
        }
    };
    fill(&engine, &mut written, &mut rest).expect("a new pool has room");
    match end {
        End::Killed => {}
        End::Reclaimed => {
            engine.reclaim().expect("memory does not fail");
            fill(&engine, &mut written, &mut rest).expect("a pool with little in it has room");
        }
        End::Closed => engine.close().expect("memory does not fail"),
    }
    Base {
        image: image_of(&pool),
        files: disk.files(),
        geometry,
        written,
        survey: Survey::default(),
    }
}

/// The bytes of a pool after a crash while nothing is under way.
#[must_use]
pub fn image_of(pool: &everdram_pm::Pool) -> Vec<u8> {
    let mut image = vec![0; pool.region().len() as usize];
    pool.region().load(0, &mut image);
    image
}

/// The `number`th key. Some have the length that fixed-size pages accept.
#[must_use]
pub fn key(number: usize) -> Vec<u8> {
    match number {
        0..12 => format!("key-{number:04}").into_bytes(),
        12..20 => format!("k{number}").into_bytes(),
        _ => vec![number as u8; LONG_KEY_BYTES],
    }
}

/// Number of keys.
pub const KEYS: usize = 21;

fn value(number: usize, round: usize) -> Vec<u8> {
    let lengths = [16, 16, 0, 16, 40, 300, 16, 1000, 16, 6000];
    vec![(number * 16 + round) as u8; lengths[(number + 3 * round) % lengths.len()]]
}

/// Puts, overwrites, removals, words changed in place, an atomic batch, expiries; records of every kind stay.
fn fill(
    engine: &Arc<dyn Engine>,
    written: &mut BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    rest: &mut dyn FnMut(),
) -> Result<(), Error> {
    let mut session = Arc::clone(engine).session()?;
    for round in 0..2 {
        for number in 0..KEYS {
            if round == 1 && number % 3 == 0 {
                continue;
            }
            let (key, value) = (key(number), value(number, round));
            let expires_at_ms = if number % 5 == 4 { NOW_MS + 5 } else { 0 };
            session.put(&key, &value, expires_at_ms)?;
            let _ = session.commit()?;
            written.entry(key).or_default().insert(value);
            rest();
        }
    }
    session.delete(&key(3))?;
    session.delete(&key(20))?;
    let _ = session.commit()?;
    let (kept, before) = (key(6), value(6, 0));
    session.update_word(&kept, 8, &mut |word| word ^ 0xff)?;
    let _ = session.commit()?;
    let mut edited = before;
    edited[8] ^= 0xff;
    written.entry(kept).or_default().insert(edited);
    batch(&mut *session, written)
}

fn batch(
    session: &mut dyn EngineSession,
    written: &mut BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
) -> Result<(), Error> {
    let (put, gone) = (key(1), key(13));
    let operations = [
        BatchOp::Put {
            key: &put,
            value: b"in the batch",
            expires_at_ms: 0,
        },
        BatchOp::Delete { key: &gone },
    ];
    let _ = session.batch(&operations)?;
    let values = written.entry(put).or_default();
    values.insert(b"in the batch".to_vec());
    Ok(())
}
