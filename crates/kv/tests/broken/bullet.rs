//! The holes of Bullet. The first session writes the first log, the second the other one.

use crate::memory::{Memory, Moment};
use crate::place::{Contents, Place, User, agree, base, harms};
use everdram::engine::BatchOp;
use everdram::{EngineKind, Hole, Options};
use std::sync::{Arc, Mutex};

/// Two logs of a few dozen entries, and tables of four buckets.
pub(crate) fn options(hole: Option<Hole>) -> Options {
    let mut options = base(EngineKind::Bullet, hole);
    options.bullet.logs = 2;
    options.bullet.log_bytes = 4 << 10;
    options.bullet.transaction_bytes = 1 << 10;
    options.bullet.chunk_bytes = 4 << 10;
    options.bullet.depth = 2;
    options
}

fn place(hole: Option<Hole>) -> Place {
    Place::new(&options(hole))
}

pub(crate) fn durable(memory: &Memory) -> Vec<Vec<u8>> {
    vec![memory.durable()]
}

pub(crate) fn one(key: &[u8], value: &[u8]) -> Contents {
    Contents::from([(key.to_vec(), value.to_vec())])
}

/// Keys that do not depend on each other: each in a stripe of its own.
pub(crate) fn apart<const COUNT: usize>(user: &mut User) -> [[u8; 1]; COUNT] {
    let mut chosen: Vec<[u8; 1]> = Vec::new();
    for key in (0..=255).map(|byte| [byte]) {
        let clocks = |user: &mut User, keys: &[[u8; 1]]| -> Vec<u64> {
            keys.iter().map(|key| user.0.watch(key)).collect()
        };
        let before = clocks(user, &chosen);
        user.put(&key, b"");
        user.delete(&key);
        if clocks(user, &chosen) == before {
            chosen.push(key);
        }
        if chosen.len() == COUNT {
            break;
        }
    }
    chosen.try_into().unwrap()
}

#[test]
fn b1_heads_do_not_move_together() {
    harms(Hole::B1, |hole| {
        let place = place(hole);
        let (mut first, mut second) = (place.session(), place.session());
        second.put(b"key", b"old");
        first.put(b"key", b"new");
        let wanted = one(b"key", b"new");
        let reclaim = || place.reclaim();
        place.at_each_fence(reclaim, durable, move |place| place.holds(&wanted))
    });
}

#[test]
fn b2_an_older_record_is_replayed_later() {
    harms(Hole::B2, |hole| {
        let place = place(hole);
        let (mut first, mut second) = (place.session(), place.session());
        second.put(b"key", b"old");
        first.put(b"key", b"new");
        place.keeps(&one(b"key", b"new"))
    });
}

#[test]
fn b3_a_record_is_passed_over() {
    harms(Hole::B3, |hole| {
        let place = place(hole);
        let (mut first, mut second) = (place.session(), place.session());
        let mut wanted = Contents::new();
        for number in 0..8u8 {
            first.put(&[number], b"in the first log");
            wanted.insert(vec![number], b"in the first log".to_vec());
            second.put(&[100 + number], b"in the second log");
            wanted.insert(vec![100 + number], b"in the second log".to_vec());
        }
        let engine = place.engine.clone();
        // The first fence of a gleaner is that of a transaction, for which it has locked rows.
        let beside = place.beside_once(Moment::Fence, move || {
            engine.reclaim().unwrap();
        });
        place.engine.reclaim().unwrap();
        beside.join();
        place.keeps(&wanted)
    });
}

#[test]
fn b4_an_increment_is_applied_twice() {
    harms(Hole::B4, |hole| {
        let place = place(hole);
        let mut user = place.session();
        user.put(b"key", &[0; 8]);
        place.engine.reclaim().unwrap();
        user.0.increment(b"key", 0, 1).unwrap();
        user.finish();
        let wanted = one(b"key", &1u64.to_le_bytes());
        let reclaim = || place.reclaim();
        place.at_each_fence(reclaim, durable, move |place| place.holds(&wanted))
    });
}

#[test]
fn b5_a_removal_is_forgotten_before_what_it_removed() {
    harms(Hole::B5, |hole| {
        let place = place(hole);
        let (mut first, mut second) = (place.session(), place.session());
        second.put(b"key", b"value");
        first.delete(b"key");
        place.keeps(&Contents::new())
    });
}

#[test]
fn b6_what_was_read_is_lost() {
    harms(Hole::B6, |hole| {
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
fn b7_a_removal_leaves_the_front_too_early() {
    harms(Hole::B7, |hole| {
        let place = place(hole);
        place.session().put(b"key", b"value");
        place.engine.reclaim().unwrap();
        // Only the back has it now.
        let second = place.crash()?;
        let mut user = second.session();
        user.delete(b"key");
        agree("removed", &user.get(b"key")?, &None)
    });
}

#[test]
fn b7_what_is_not_applied_is_evicted() {
    harms(Hole::B7, |hole| {
        let mut options = options(hole);
        options.bullet.front_bytes = Some(1);
        let place = Place::new(&options);
        place.session().put(b"key", b"old");
        place.engine.reclaim().unwrap();
        // Only the back has it now. Who writes helps to evict.
        let second = place.crash()?;
        let mut user = second.session();
        user.put(b"key", b"new");
        agree("overwritten", &user.get(b"key")?, &Some(b"new".to_vec()))
    });
}

#[test]
fn b8_a_former_lap_counts() {
    harms(Hole::B8, |hole| {
        let place = place(hole);
        let (mut first, mut second) = (place.session(), place.session());
        for number in 0..24u8 {
            first.put(&[number], b"value");
        }
        place.engine.reclaim().unwrap();
        for number in 0..24u8 {
            second.delete(&[number]);
        }
        place.engine.reclaim().unwrap();
        // Entries of one size: the last one ends where one of the lap before begins.
        for _ in 0..16 {
            first.put(b"0", b"value");
        }
        place.engine.reclaim().unwrap();
        place.keeps(&one(b"0", b"value"))
    });
}

#[test]
fn b12_half_of_a_transaction_is_left() {
    harms(Hole::B12, |hole| {
        let place = place(hole);
        let mut user = place.session();
        let mut wanted = Contents::new();
        for number in 0..24u8 {
            user.put(&[number], b"value");
            wanted.insert(vec![number], b"value".to_vec());
        }
        // Gleans, and then doubles the array.
        let reclaim = || place.reclaim();
        place.at_each_fence(reclaim, Memory::evicted, move |place| place.holds(&wanted))
    });
}

#[test]
fn b13_half_of_a_batch_is_left() {
    harms(Hole::B13, |hole| {
        let place = place(hole);
        let mut user = place.session();
        let put = |key| BatchOp::Put {
            key,
            value: &b"value"[..],
            expires_at_ms: 0,
        };
        let batch = || {
            let ticket = user.0.batch(&[put(b"one"), put(b"two")]).unwrap();
            user.0.wait(ticket).unwrap();
        };
        place.at_each_fence(batch, durable, |place| {
            let found = place.session().contents()?.len();
            agree("all or none", &(found % 2), &0)
        })
    });
}
