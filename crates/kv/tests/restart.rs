//! Restarts that begin with an index checkpoint are never wrong, whatever happened since the checkpoint, and
//! whatever is read before the rest is verified.
//!
//! A pool is killed by copying its files while nothing runs, and opened without background threads, so that
//! blocks stay unverified until a call needs them.

mod support;

use everdram::engine::{BatchOp, Engine, EngineSession};
use everdram::lab::{self, Opened};
use everdram::{Error, Medium, MediumChoice, Options};
use everdram_pm::{Pool, PoolOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use support::frozen::Frozen;
use support::{clock_of, seed};
use tempfile::TempDir;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct Bed {
    directory: TempDir,
    options: Options,
    clock: Arc<AtomicU64>,
}

/// An engine without background threads over an open pool.
struct Run {
    opened: Opened,
    session: Box<dyn EngineSession>,
}

impl Bed {
    fn new(medium: Medium, fixed: bool) -> Bed {
        let memory = Path::new("/dev/shm");
        let directory = match medium {
            Medium::Emulated if memory.is_dir() => TempDir::new_in(memory),
            _ => TempDir::new(),
        };
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let mut options = Options::default();
        options.medium = MediumChoice::Only(medium);
        options.initial_bytes = 1 << 20;
        options.chunk_bytes = 1 << 20;
        options.max_bytes = 16 << 20;
        // So large that nothing is copied to the image while the files are taken.
        options.log_bytes = 64 << 20;
        options.dimms = 2;
        options.fixed = fixed.then_some((8, 64));
        options.clock = Some(clock_of(&clock));
        // Only on request.
        options.checkpoint_bytes = 0;
        Bed {
            directory: directory.unwrap(),
            options,
            clock,
        }
    }

    fn open(&self) -> Run {
        let (engine, geometry) = lab::identity(&self.options).unwrap();
        let options = PoolOptions {
            medium: self.options.medium,
            max_bytes: self.options.max_bytes,
            log_bytes: self.options.log_bytes,
            engine,
            geometry,
            ..PoolOptions::default()
        };
        let pool = Pool::open(self.directory.path(), &options).unwrap();
        let opened = lab::open(pool, &self.options).unwrap();
        let session = opened.engine().session().unwrap();
        Run { opened, session }
    }

    /// The pool after a kill of this run, opened again.
    fn kill(&self, mut run: Run) -> Run {
        let ticket = run.session.commit().unwrap();
        run.session.wait(ticket).unwrap();
        let frozen = Frozen::take(self.directory.path());
        drop(run);
        frozen.lay(self.directory.path());
        self.open()
    }
}

impl Run {
    fn engine(&self) -> Arc<dyn Engine> {
        self.opened.engine()
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        let found = self.session.get(key, &mut value).unwrap();
        found.map(|_| value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.session.put_now(key, value, 0).map(drop).unwrap();
    }

    fn delete(&mut self, key: &[u8]) {
        self.session.delete(key).unwrap();
        let _ticket = self.session.commit().unwrap();
    }

    fn is_unverified(&self) -> bool {
        self.engine().stats().verification.is_some()
    }

    fn holds(&mut self, model: &Model, keys: u64, when: &str) {
        for number in 0..keys {
            let key = key_of(number);
            let found = self.get(&key);
            assert!(
                found.as_ref() == model.get(&key),
                "{when}: key {number}: {:?} bytes, wanted {:?}",
                found.map(|value| value.len()),
                model.get(&key).map(Vec::len)
            );
        }
        let mut scanned = Vec::new();
        let mut cursor = 0;
        loop {
            let visit = &mut |key: &[u8], _, _| scanned.push(key.to_vec());
            cursor = self.session.scan(cursor, 64, visit).unwrap();
            if cursor == 0 {
                break;
            }
        }
        scanned.sort();
        scanned.dedup();
        assert!(scanned.iter().eq(model.keys()), "{when}: scan");
        let mut key = Vec::new();
        let is_some = self.session.random_key(&mut key).unwrap();
        assert_eq!(is_some, !model.is_empty(), "{when}");
        assert!(!is_some || model.contains_key(&key), "{when}: a random key");
    }

    fn is_sound(&self, model: &Model, when: &str) {
        let engine = self.engine();
        engine.verify().unwrap();
        assert_eq!(engine.len(), model.len() as u64, "{when}: keys");
        let report = engine.check().unwrap();
        assert!(report.findings.is_empty(), "{when}: {:?}", report.findings);
        let stats = engine.stats();
        assert!(stats.verification.is_none(), "{when}");
    }
}

fn key_of(number: u64) -> Vec<u8> {
    match number % 400 {
        // Longer than a block: such a key lies with its value.
        399 => [&number.to_le_bytes()[..], &[7; 9000]].concat(),
        _ => number.to_le_bytes().to_vec(),
    }
}

fn value_of(random: &mut StdRng) -> Vec<u8> {
    let length = match random.random_range(0..20) {
        0 => 0,
        1..10 => 64,
        10..19 => random.random_range(0..399),
        _ => random.random_range(5000..30_000),
    };
    vec![random.random(); length]
}

/// A few random calls, in the store and in the model.
fn work(run: &mut Run, model: &mut Model, random: &mut StdRng, keys: u64, calls: u32) {
    for _ in 0..calls {
        let key = key_of(random.random_range(0..keys));
        match random.random_range(0..100) {
            0..60 => {
                let value = value_of(random);
                run.put(&key, &value);
                model.insert(key, value);
            }
            60..80 => {
                run.delete(&key);
                model.remove(&key);
            }
            80..85 => {
                let result = run
                    .session
                    .update_word(&key, 0, &mut |word| word.wrapping_add(1));
                match result {
                    Ok(Some(_)) => {
                        let value = model.get_mut(&key).unwrap();
                        let word = u64::from_le_bytes(value[..8].try_into().unwrap());
                        value[..8].copy_from_slice(&word.wrapping_add(1).to_le_bytes());
                    }
                    Ok(None) => assert!(!model.contains_key(&key)),
                    Err(Error::WordOutside { .. }) => assert!(model[&key].len() < 8),
                    Err(error) => panic!("{error}"),
                }
                let _ticket = run.session.commit().unwrap();
            }
            85..95 => {
                let other = key_of(random.random_range(0..keys));
                let value = value_of(random);
                let ops = [
                    BatchOp::Put {
                        key: &key,
                        value: &value,
                        expires_at_ms: 0,
                    },
                    BatchOp::Delete { key: &other },
                ];
                let _ticket = run.session.batch(&ops).unwrap();
                model.insert(key.clone(), value.clone());
                model.remove(&other);
            }
            95..99 => assert!(run.get(&key).as_ref() == model.get(&key)),
            _ => run.engine().reclaim().map(drop).unwrap(),
        }
    }
}

/// Kill after kill, with occasional checkpoints; verification stops at any point.
#[test]
fn a_restart_is_never_wrong() {
    let seed = seed();
    let rounds = if cfg!(miri) { 1 } else { 30 };
    for (number, (medium, fixed)) in [
        (Medium::Emulated, false),
        (Medium::Emulated, true),
        (Medium::File, false),
    ]
    .into_iter()
    .enumerate()
    {
        let mut random = StdRng::seed_from_u64(seed ^ number as u64);
        let bed = Bed::new(medium, fixed);
        let mut model = Model::new();
        let mut run = bed.open();
        let keys = 1200;
        work(&mut run, &mut model, &mut random, keys, 2500);
        let mut restarts = 0;
        for round in 0..rounds {
            let when = format!("{medium:?}, fixed {fixed}, round {round}");
            if random.random_range(0..3) > 0 {
                run.engine().checkpoint().unwrap();
            }
            if random.random_range(0..12) == 0 {
                let _ticket = run.session.clear().unwrap();
                model.clear();
            }
            let calls = random.random_range(0..300);
            work(&mut run, &mut model, &mut random, keys, calls);
            run = bed.kill(run);
            restarts += u32::from(run.is_unverified());
            match random.random_range(0..4) {
                0 => run.holds(&model, keys, &when),
                1 => run.is_sound(&model, &when),
                2 => {
                    work(&mut run, &mut model, &mut random, keys, 100);
                    run.holds(&model, keys, &when);
                    run.is_sound(&model, &when);
                }
                _ => {}
            }
            work(&mut run, &mut model, &mut random, keys, 30);
        }
        run.holds(&model, keys, "at the end");
        run.is_sound(&model, "at the end");
        assert!(
            restarts > rounds / 4,
            "{restarts} restarts with a checkpoint"
        );
    }
}

/// A key removed after the checkpoint is marked dead, but still in the copy of the index.
#[test]
fn what_was_removed_since_stays_removed() {
    let bed = Bed::new(Medium::Emulated, false);
    let mut run = bed.open();
    let mut model = Model::new();
    for number in 0..399 {
        run.put(&key_of(number), b"value");
        model.insert(key_of(number), b"value".to_vec());
    }
    run = bed.kill(run);
    run.engine().checkpoint().unwrap();
    for number in (0..399).step_by(3) {
        run.delete(&key_of(number));
        model.remove(&key_of(number));
    }
    run = bed.kill(run);
    assert!(run.is_unverified());
    run.holds(&model, 399, "unverified");
    // Put again, and removed again, before verification.
    for number in (0..399).step_by(6) {
        run.put(&key_of(number), b"again");
        model.insert(key_of(number), b"again".to_vec());
    }
    for number in (0..399).step_by(12) {
        run.delete(&key_of(number));
        model.remove(&key_of(number));
    }
    run.holds(&model, 399, "made again");
    assert!(run.is_unverified());
    let run = bed.kill(run);
    run.is_sound(&model, "after another kill");
}

/// A checkpoint that does not verify does not count: everything is read instead.
#[test]
fn a_damaged_checkpoint_is_left_alone() {
    let bed = Bed::new(Medium::Emulated, false);
    let mut run = bed.open();
    let mut model = Model::new();
    for number in 0..399 {
        run.put(&key_of(number), b"value");
        model.insert(key_of(number), b"value".to_vec());
    }
    run = bed.kill(run);
    let before = Frozen::take(bed.directory.path());
    run.engine().checkpoint().unwrap();
    let frozen = Frozen::take(bed.directory.path());
    drop(run);
    let mut written = support::frozen::changed_words(before.image(), frozen.image());
    // The first words of a block tell its kind; without them nothing is sound.
    written.retain(|at| at % 8192 >= 16);
    assert!(
        written.len() > 399,
        "the checkpoint has a word for each key"
    );
    let mut random = StdRng::seed_from_u64(seed());
    for _ in 0..20 {
        let at = written[random.random_range(0..written.len())];
        let mut damaged = frozen.clone();
        damaged.image_mut()[at + random.random_range(0..8)] ^= 1 << random.random_range(0..8);
        damaged.lay(bed.directory.path());
        let mut run = bed.open();
        run.holds(&model, 399, &format!("word {at} damaged"));
        run.is_sound(&model, &format!("word {at} damaged"));
        drop(run);
    }
    frozen.lay(bed.directory.path());
    assert!(bed.open().is_unverified(), "undamaged, it is used");
}

/// Records that have expired count as gone after a restart, too, and are swept.
#[test]
fn expired_records_stay_expired() {
    let bed = Bed::new(Medium::Emulated, false);
    let mut run = bed.open();
    for number in 0..399 {
        let (_, _ticket) = run
            .session
            .put_now(&key_of(number), b"value", 1_000_000 + number)
            .unwrap();
    }
    run = bed.kill(run);
    run.engine().checkpoint().unwrap();
    let mut run = bed.kill(run);
    assert!(run.is_unverified());
    bed.clock.store(1_000_250, Ordering::Relaxed);
    let there = (0..399).filter(|&number| run.get(&key_of(number)).is_some());
    assert_eq!(there.collect::<Vec<_>>(), (251..399).collect::<Vec<_>>());
    while run.engine().stats().expired < 251 {
        run.opened.tend().unwrap();
    }
    assert_eq!(run.engine().len(), 148);
}
