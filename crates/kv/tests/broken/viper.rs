//! The holes of Viper.

use crate::memory::Moment;
use crate::place::{Contents, Place, User, agree, base, harms};
use everdram::{EngineKind, Hole, Options};
use std::sync::{Arc, Mutex};

/// Fills blocks of two small pages quickly.
const FILLING: [u8; 180] = [7; 180];

fn options(hole: Option<Hole>) -> Options {
    let mut options = base(EngineKind::Viper, hole);
    options.page_bytes = 512;
    options.dimms = 2;
    options.reclaim_background = false;
    options.recovery_threads = 1;
    options
}

fn place(hole: Option<Hole>) -> Place {
    Place::new(&options(hole))
}

#[test]
fn v1_a_loser_comes_back() {
    harms(Hole::V1, |hole| {
        let place = place(hole);
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
        let place = place(hole);
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
        let place = place(hole);
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
        let place = place(hole);
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
        let place = place(hole);
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
        let place = place(hole);
        place.session().put(b"key", b"value");
        place.keeps(&Contents::from([(b"key".to_vec(), b"value".to_vec())]))
    });
}

#[test]
fn v7_the_last_line_is_missed() {
    harms(Hole::V7, |hole| {
        let place = place(hole);
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
        let place = place(hole);
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
        let place = place(hole);
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
        let place = place(hole);
        let mut user = place.session();
        let harm = Arc::new(Mutex::new(Ok(())));
        let (memory, first) = (place.memory.clone(), harm.clone());
        place.memory.watch(Moment::Fence, move || {
            let recovered = Place::recover(&options(hole), memory.stored());
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
