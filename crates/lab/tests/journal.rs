//! A journal (`everdram::crl`) under the lab: every image that a crash can leave of a map that only logs make
//! persistent holds what was acknowledged, and each fence is needed for that.

use everdram::crl::{Journal, Volatile, identity};
use everdram::{EngineKind, Error, Options};
use everdram_lab::call::{Call, Outcome, Values};
use everdram_lab::explore::{Effort, explore};
use everdram_lab::lines::{Lines, Mute, Muted, key};
use everdram_lab::recorder::Recorder;
use everdram_lab::trace::{Step, Trace};
use everdram_lab::unit::Unit;
use everdram_pm::lab::{self, Seed};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

const CAPACITY: u64 = 1 << 20;
/// So many that what they have nearly fills what writers may use of the logs.
const KEYS: u32 = 16;
const EFFORT: Effort = Effort {
    exhaustive: 64,
    singles: true,
    random: 4,
    pairs: 8,
};

type State = BTreeMap<Vec<u8>, Vec<u8>>;
/// A change that a caller asked for: the key, and its new value.
type Ask = (Vec<u8>, Option<Vec<u8>>);

/// Each key with its LSN and its value.
type Table = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

#[derive(Default)]
struct Map(Mutex<Table>);

impl Volatile for Map {
    fn show(&self, key: &[u8], version: u64, value: Option<&[u8]>) {
        let mut map = self.0.lock().unwrap();
        match value {
            Some(value) => map.insert(key.to_vec(), (version, value.to_vec())),
            None => map.remove(key),
        };
    }

    fn version(&self, key: &[u8]) -> Option<u64> {
        self.0.lock().unwrap().get(key).map(|(version, _)| *version)
    }
}

impl Map {
    fn state(&self) -> State {
        let map = self.0.lock().unwrap();
        let plain = |(key, (_, value)): (&Vec<u8>, &(u64, Vec<u8>))| (key.clone(), value.clone());
        map.iter().map(plain).collect()
    }
}

fn created(seed: u64) -> Vec<u8> {
    let mut options = Options::default();
    (
        options.engine,
        options.bullet.logs,
        options.bullet.log_bytes,
    ) = (Some(EngineKind::Bullet), 2, 8 << 10);
    let (number, geometry) = identity(&options).unwrap();
    lab::create(Seed(seed), number, geometry).unwrap()
}

/// What an image holds.
fn recovered(image: &[u8]) -> Result<State, Error> {
    let pool = lab::open(image, CAPACITY, None)?;
    Ok(Journal::over(pool, Map::default())?.map().state())
}

/// A life of the store: opened from an image, changed, killed.
struct Life {
    image: Vec<u8>,
    before: State,
    asked: Vec<Ask>,
    trace: Trace,
}

impl Life {
    /// Makes these changes. None is refused: what the keys have fits.
    fn of(image: Vec<u8>, asked: Vec<Ask>) -> Life {
        let recorder = Arc::new(Recorder::new(Values::default(), false, None));
        let pool = lab::open(&image, CAPACITY, Some(recorder.clone())).unwrap();
        let journal = Journal::over(pool, Map::default()).unwrap();
        let before = journal.map().state();
        let mut writers = [journal.writer(), journal.writer()];
        for (number, (key, value)) in asked.iter().enumerate() {
            let call = recorder.invoke(0, &Call::Get(0));
            let writer = &mut writers[number % 2];
            match value {
                Some(value) => writer.put(key, value).unwrap(),
                None => drop(writer.remove(key).unwrap()),
            }
            recorder.ret(call, Outcome::Was(true));
        }
        assert_eq!(journal.map().state(), after(&before, &asked));
        let trace = recorder.take().trace;
        Life {
            image,
            before,
            asked,
            trace,
        }
    }

    /// What a crash leaves that comes just before the first ledger is written: copies, and all that they are
    /// copies of.
    fn before_ledger(&self, random: &mut StdRng) -> Vec<u8> {
        let mut lines = Lines::new(&self.image, CAPACITY, None);
        let mut has_begun = false;
        for (id, step) in (0..).zip(&self.trace) {
            has_begun |= matches!(step, Step::Invoke(_));
            if let Step::Store { site, .. } = step
                && has_begun
                && site.file().ends_with("crl/ledger.rs")
            {
                let units = lines.units(random);
                let newest: Vec<usize> = units.iter().map(Unit::newest).collect();
                return image_of(&lines, &units, &newest);
            }
            lines.step(id, step);
        }
        panic!("no ledger was written");
    }

    /// Opens images that a crash can leave, at one crash point of so many; returns one of them, or what is
    /// wrong with one.
    fn crash(
        &self,
        mute: Option<Mute>,
        one_in: u32,
        random: &mut StdRng,
    ) -> Result<Vec<u8>, String> {
        let mut lines = Lines::new(&self.image, CAPACITY, mute);
        let mut chosen = self.image.clone();
        let mut returned = 0;
        for (id, step) in (0..).zip(&self.trace) {
            if matches!(step, Step::Fence { .. } | Step::Return(_))
                && random.random_ratio(1, one_in)
            {
                let allowed = [
                    after(&self.before, &self.asked[..returned]),
                    after(
                        &self.before,
                        &self.asked[..(returned + 1).min(self.asked.len())],
                    ),
                ];
                let units = lines.units(random);
                let mut defect = None;
                let _ = explore(&units, &EFFORT, random, &mut |pick| {
                    let image = image_of(&lines, &units, pick);
                    match recovered(&image) {
                        Ok(state) if allowed.contains(&state) => chosen = image,
                        Ok(_) => {
                            defect = Some(format!("step {id}, after {returned} changes: lost"))
                        }
                        Err(error) => defect = Some(format!("step {id}: {error}")),
                    }
                    match defect {
                        None => ControlFlow::Continue(()),
                        Some(_) => ControlFlow::Break(()),
                    }
                });
                if let Some(defect) = defect {
                    return Err(defect);
                }
            }
            returned += usize::from(matches!(step, Step::Return(_)));
            lines.step(id, step);
        }
        Ok(chosen)
    }
}

fn image_of(lines: &Lines, units: &[Unit], pick: &[usize]) -> Vec<u8> {
    let mut image = lines.base().to_vec();
    for (unit, &choice) in units.iter().zip(pick) {
        let at = (unit.place * everdram_pm::LINE) as usize;
        let bytes = &unit.choices[choice].bytes;
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }
    image
}

fn random_changes(count: usize, random: &mut StdRng) -> Vec<Ask> {
    let mut one = || {
        let key = format!("key {}", random.random_range(0..KEYS)).into_bytes();
        let value = random.random_bool(0.8).then(|| {
            let bytes = random.random_range(0..150);
            (0..bytes).map(|_| random.random()).collect()
        });
        (key, value)
    };
    (0..count).map(|_| one()).collect()
}

fn after(before: &State, asked: &[Ask]) -> State {
    let mut state = before.clone();
    for (key, value) in asked {
        match value {
            Some(value) => drop(state.insert(key.clone(), value.clone())),
            None => drop(state.remove(key)),
        }
    }
    state
}

#[test]
fn a_journal_holds_what_was_acknowledged_whatever_crashes_come() {
    for seed in 0..12 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut image = created(seed);
        for life in 0..5 {
            let count = random.random_range(1..90);
            let life_of = Life::of(image, random_changes(count, &mut random));
            image = match life_of.crash(None, 6, &mut random) {
                Ok(image) => image,
                Err(defect) => panic!("seed {seed}, life {life}: {defect}"),
            };
        }
    }
}

/// A pass that reclaims what is not durable elsewhere loses it, and so does an acknowledgement without a
/// fence: where one is left out, there is an image that shows it.
#[test]
fn no_fence_of_a_journal_can_be_left_out() {
    let lives = (0..6).map(|seed| {
        let mut random = StdRng::seed_from_u64(seed);
        Life::of(created(seed), random_changes(90, &mut random))
    });
    let lives: Vec<Life> = lives.collect();
    let mut sites = BTreeSet::new();
    for step in lives.iter().flat_map(|life| &life.trace) {
        if let Step::Fence { site, .. } = step
            && ["crl/writer.rs", "crl/ledger.rs"]
                .iter()
                .any(|file| site.file().ends_with(file))
        {
            sites.insert(key(site));
        }
    }
    // A put, what was cleaned, a ledger.
    assert_eq!(sites.len(), 3, "{sites:?}");
    let missed = sites.into_iter().filter(|&site| {
        let mute = Mute {
            what: Muted::Fence,
            site,
        };
        let mut random = StdRng::seed_from_u64(1);
        let is_caught = |life: &Life| life.crash(Some(mute), 1, &mut random).is_err();
        !lives.iter().any(is_caught)
    });
    let missed: Vec<_> = missed.collect();
    assert!(missed.is_empty(), "nobody misses {missed:?}");
}

/// Each crash comes when everything was copied and nothing reclaimed; the next pass must find room all the
/// same.
#[test]
fn crashes_in_passes_do_not_use_up_the_room_for_copies() {
    let mut random = StdRng::seed_from_u64(1);
    let mut image = created(1);
    for life in 0..10_u8 {
        let change = |put: u32| {
            (
                format!("key {}", put % KEYS).into_bytes(),
                Some(vec![life; 150]),
            )
        };
        let life = Life::of(image, (0..60).map(change).collect());
        image = life.before_ledger(&mut random);
        assert_eq!(recovered(&image).unwrap().len(), KEYS as usize);
    }
}
