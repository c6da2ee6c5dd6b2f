//! Each hole that can be opened on purpose does harm: a short story in which the sound engine keeps its word, and
//! the engine with the hole does not. Whether the crash lab finds that by itself is tested in the lab.

mod memory;

use everdram::lab::{identity, open};
use everdram::{Engine, EngineSession, Error, Hole, Options};
use everdram_pm::lab;
use memory::{Memory, Moment};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const CAPACITY: usize = 256 << 10;
/// Fills blocks of two small pages quickly.
const FILLING: [u8; 180] = [7; 180];

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;
/// What went wrong, if anything did.
type Outcome = Result<(), String>;

fn options(hole: Option<Hole>) -> Options {
    let mut options = Options::default();
    options.page_bytes = 512;
    options.dimms = 2;
    options.initial_bytes = 16 << 10;
    options.chunk_bytes = 16 << 10;
    options.max_bytes = CAPACITY as u64;
    options.sessions_max = 4;
    options.reclaim_background = false;
    options.recovery_threads = 1;
    options.broken = hole;
    options
}

/// A running engine and its memory.
struct Place {
    hole: Option<Hole>,
    memory: Arc<Memory>,
    engine: Arc<dyn Engine>,
}

impl Place {
    fn new(hole: Option<Hole>) -> Place {
        let (engine, geometry) = identity(&options(hole)).unwrap();
        let image = lab::create(lab::Seed(7), engine, geometry).unwrap();
        Place::recover(hole, image).unwrap()
    }

    fn recover(hole: Option<Hole>, image: Vec<u8>) -> Result<Place, Error> {
        let memory = Arc::new(Memory::new(image.clone(), CAPACITY));
        let pool = lab::open(&image, CAPACITY as u64, Some(memory.clone()))?;
        let engine = open(pool, &options(hole))?.engine();
        Ok(Place {
            hole,
            memory,
            engine,
        })
    }

    /// What a crash leaves that keeps no line it need not keep.
    fn crash(&self) -> Result<Place, String> {
        self.crash_to(self.memory.durable())
    }

    fn crash_to(&self, image: Vec<u8>) -> Result<Place, String> {
        Place::recover(self.hole, image).map_err(|error| format!("recovery: {error}"))
    }

    fn session(&self) -> User {
        User(self.engine.clone().session().unwrap())
    }

    /// Everything a crash now keeps is `wanted`.
    fn keeps(&self, wanted: &Contents) -> Outcome {
        let found = self.crash()?.session().contents()?;
        agree("after a crash", &found, wanted)
    }
}

/// A session whose writes are acknowledged when they return.
struct User(Box<dyn EngineSession>);

impl User {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.0.put(key, value, 0).unwrap();
        self.finish();
    }

    fn delete(&mut self, key: &[u8]) {
        self.0.delete(key).unwrap();
        self.finish();
    }

    fn finish(&mut self) {
        let ticket = self.0.commit().unwrap();
        self.0.wait(ticket).unwrap();
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let mut value = Vec::new();
        match self.0.get(key, &mut value) {
            Ok(found) => Ok(found.map(|_| value)),
            Err(error) => Err(format!("reading: {error}")),
        }
    }

    fn contents(&mut self) -> Result<Contents, String> {
        let mut keys = Vec::new();
        let mut cursor = 0;
        loop {
            let mut visit = |key: &[u8], _, _| keys.push(key.to_vec());
            let next = self.0.scan(cursor, 64, &mut visit);
            cursor = next.map_err(|error| format!("iterating: {error}"))?;
            if cursor == 0 {
                break;
            }
        }
        let mut contents = Contents::new();
        for key in keys {
            if let Some(value) = self.get(&key)? {
                contents.insert(key, value);
            }
        }
        Ok(contents)
    }
}

fn agree<T: PartialEq + std::fmt::Debug>(when: &str, found: &T, wanted: &T) -> Outcome {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("{when}: found {found:?}, wanted {wanted:?}")),
    }
}

/// The story ends well on a sound engine, and not on one with the hole.
fn harms(hole: Hole, story: impl Fn(Option<Hole>) -> Outcome) {
    assert_eq!(story(None), Ok(()), "a sound engine");
    let harm = story(Some(hole)).expect_err("the hole does no harm");
    println!("{hole}: {}", &harm[..harm.len().min(150)]);
}

#[test]
fn v1_a_loser_comes_back() {
    harms(Hole::V1, |hole| {
        let place = Place::new(hole);
        let mut user = place.session();
        user.put(b"key", b"old");
        user.put(b"key", b"new");
        // The mark of the old record was not fenced yet.
        let second = place.crash()?;
        let mut user = second.session();
        agree("the newer wins", &user.get(b"key")?, &Some(b"new".to_vec()))?;
        user.delete(b"key");
        second.keeps(&Contents::new())
    });
}

/// Overwrites a key until the block with whatever was there before is full of garbage.
fn bury(user: &mut User) {
    for _ in 0..12 {
        user.put(b"filling", &FILLING);
    }
}

#[test]
fn v2_compaction_undoes_a_put() {
    harms(Hole::V2, |hole| {
        let place = Place::new(hole);
        let (mut user, mut other) = (place.session(), place.session());
        user.put(b"key", b"old");
        bury(&mut user);
        let mut put = move || other.put(b"key", b"new");
        match hole {
            // The first store of a compaction is of the copy, and the sound one holds the key's lock then.
            Some(_) => place.memory.watch_once(Moment::Store, put),
            None => put(),
        }
        place.engine.reclaim().unwrap();
        place.memory.unwatch();
        assert!(place.engine.stats().blocks_reclaimed > 0);
        agree("now", &user.get(b"key")?, &Some(b"new".to_vec()))
    });
}

#[test]
fn v3_a_delete_takes_out_what_it_did_not_look_at() {
    harms(Hole::V3, |hole| {
        let place = Place::new(hole);
        let (mut user, mut other) = (place.session(), place.session());
        user.put(b"key", b"old");
        let mut put = move || other.put(b"key", b"new");
        match hole {
            // The sound one holds the key's lock when it looks.
            Some(_) => place.memory.watch_once(Moment::Load, put),
            None => put(),
        }
        user.delete(b"key");
        place.memory.unwatch();
        let seen = user.get(b"key")?;
        agree(
            "seen before the crash",
            &place.crash()?.session().get(b"key")?,
            &seen,
        )
    });
}

#[test]
fn v3_an_update_changes_what_is_there_no_more() {
    harms(Hole::V3, |hole| {
        let place = Place::new(hole);
        let (mut user, mut other) = (place.session(), place.session());
        let add = |user: &mut User| {
            user.0.update_word(b"key", 0, &mut |word| word + 1).unwrap();
            user.finish();
        };
        user.put(b"key", &[0; 8]);
        match hole {
            Some(_) => place
                .memory
                .watch_once(Moment::Load, move || add(&mut other)),
            None => add(&mut other),
        }
        add(&mut user);
        place.memory.unwatch();
        agree(
            "two additions",
            &user.get(b"key")?,
            &Some(2u64.to_le_bytes().to_vec()),
        )
    });
}

#[test]
fn v4_a_block_is_not_scanned() {
    harms(Hole::V4, |hole| {
        let place = Place::new(hole);
        let mut user = place.session();
        let (mut wanted, before) = (Contents::new(), place.engine.stats().pool_bytes);
        // The first blocks of new room are used while a few of the old room are kept in reserve.
        for number in 0..100u8 {
            user.put(&[number], &FILLING);
            wanted.insert(vec![number], FILLING.to_vec());
            if place.engine.stats().pool_bytes > before {
                break;
            }
        }
        assert!(place.engine.stats().pool_bytes > before);
        place.keeps(&wanted)
    });
}

#[test]
fn v5_a_lock_outlives_its_holder() {
    harms(Hole::V5, |hole| {
        let place = Place::new(hole);
        place.session().put(b"key", b"value");
        place.keeps(&Contents::from([(b"key".to_vec(), b"value".to_vec())]))
    });
}

#[test]
fn v7_the_last_line_is_missed() {
    harms(Hole::V7, |hole| {
        let place = Place::new(hole);
        let mut user = place.session();
        for length in 0..200 {
            let value = vec![length as u8; length];
            user.put(b"key", &value);
            place.keeps(&Contents::from([(b"key".to_vec(), value)]))?;
        }
        Ok(())
    });
}

#[test]
fn v10_an_earlier_life_counts() {
    harms(Hole::V10, |hole| {
        let place = Place::new(hole);
        let mut user = place.session();
        for number in 0..16u8 {
            user.put(&[number], &FILLING);
        }
        for number in 0..16u8 {
            user.delete(&[number]);
        }
        place.engine.reclaim().unwrap();
        assert!(place.engine.stats().blocks_reclaimed > 0);
        let mut wanted = Contents::new();
        for number in 100..110u8 {
            user.put(&[number], &FILLING);
            wanted.insert(vec![number], FILLING.to_vec());
            place.keeps(&wanted)?;
        }
        Ok(())
    });
}

#[test]
fn v12_what_was_read_is_lost() {
    harms(Hole::V12, |hole| {
        let place = Place::new(hole);
        let (mut user, mut reader) = (place.session(), place.session());
        user.put(b"key", b"old");
        let seen = Arc::new(Mutex::new(None));
        let (memory, seeing) = (place.memory.clone(), seen.clone());
        place.memory.watch_once(Moment::Fence, move || {
            *seeing.lock().unwrap() = Some((reader.get(b"key"), memory.durable()));
        });
        user.put(b"key", b"new");
        place.memory.unwatch();
        let (read, image) = seen.lock().unwrap().take().unwrap();
        let found = place.crash_to(image)?.session().get(b"key")?;
        agree("what was read before the crash", &found, &read?)
    });
}

#[test]
fn v14_a_block_in_use_begins_another_life() {
    harms(Hole::V14, |hole| {
        let place = Place::new(hole);
        let mut user = place.session();
        let harm = Arc::new(Mutex::new(Ok(())));
        let (memory, first) = (place.memory.clone(), harm.clone());
        place.memory.watch(Moment::Fence, move || {
            let recovered = Place::recover(hole, memory.stored());
            let mut first = first.lock().unwrap();
            if let (Ok(()), Err(error)) = (&*first, recovered) {
                *first = Err(format!("recovery: {error}"));
            }
        });
        for _ in 0..4 {
            bury(&mut user);
            place.engine.reclaim().unwrap();
        }
        place.memory.unwatch();
        assert!(place.engine.stats().blocks_reclaimed > 0);
        harm.lock().unwrap().clone()
    });
}
