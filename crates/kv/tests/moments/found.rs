//! Bugs that Bullet had once. Each test opens with what went wrong.

use crate::memory::{Memory, Moment};
use crate::place::{Contents, Outcome, Place, apart, durable, one, options};
use everdram::lab::{identity, open};
use everdram::options::BulletSystem;
use everdram::{Error, Options};
use everdram_pm::lab;
use std::sync::mpsc;
use std::time::Duration;

/// Longer than any test that ends.
const NEVER: Duration = Duration::from_secs(20);

/// Room for many entries, and a row of the back for nearly every key.
fn roomy() -> Options {
    let mut options = options();
    options.max_bytes = 16 << 20;
    options.bullet.log_bytes = 1 << 20;
    options.bullet.depth = 10;
    options
}

/// An entry carried the epoch in which its group began. So a newer record could be reclaimed with that epoch,
/// while an older one of the same key, in another log and of a later epoch, stayed: a crash brought it back.
#[test]
fn records_of_a_key_are_reclaimed_in_order() -> Outcome {
    let place = Place::new(&options());
    let (mut first, mut second) = (place.session(), place.session());
    let [held, key] = apart(&mut first);
    place.reclaim();
    first.0.put(&held, b"begins the group", 0).unwrap();
    second.put(&key, b"older");
    // Begins the next epoch; the group keeps its own from ending.
    place.reclaim();
    second.put(&key, b"old");
    first.0.put(&key, b"new", 0).unwrap();
    first.finish();
    let mut wanted = one(&key, b"new");
    wanted.insert(held.to_vec(), b"begins the group".to_vec());
    let reclaim = || place.reclaim();
    place.at_each_fence(reclaim, durable, move |place| place.holds(&wanted))
}

/// A gleaner found a key's node and then waited for a row, or committed before it could wait. Meanwhile the
/// key was removed, and another gleaner dropped it from both tables. The first one put the old node into the
/// back: the key was there again.
#[test]
fn a_gleaner_looks_again_when_it_has_the_row() -> Outcome {
    looks_again(&roomy())
}

/// With each record applied, the states before the node's own were put into the back without a second check:
/// the key was there again, with an older value.
#[test]
fn a_gleaner_of_each_record_looks_again_when_it_has_the_row() -> Outcome {
    let mut options = roomy();
    options.bullet.system = BulletSystem::Dyn;
    looks_again(&options)
}

fn looks_again(options: &Options) -> Outcome {
    // After this many keys, the transaction of the earlier ones is committed between the look at the last
    // one's node and its row.
    for others in 20..50u8 {
        let place = Place::new(options);
        let (mut first, mut second) = (place.session(), place.session());
        second.put(b"key", b"value");
        let mut wanted = Contents::new();
        for number in 0..others {
            first.put(&[number], b"value");
            wanted.insert(vec![number], b"value".to_vec());
        }
        first.put(b"key", b"newer");
        let engine = place.engine.clone();
        let beside = place.beside_once(Moment::Fence, move || {
            second.delete(b"key");
            // Another gleaner takes the second log.
            engine.reclaim().unwrap();
        });
        place.reclaim();
        beside.join();
        place.keeps(&wanted)?;
    }
    Ok(())
}

/// A crash between the last bucket's move and the end of the growth left a pool that was refused as damaged.
#[test]
fn a_growth_may_stop_before_its_last_step() -> Outcome {
    let place = Place::new(&options());
    let mut user = place.session();
    let mut wanted = Contents::new();
    for number in 0..24u8 {
        user.put(&[number], b"value");
        wanted.insert(vec![number], b"value".to_vec());
    }
    let reclaim = || place.reclaim();
    place.at_each_fence(reclaim, durable, move |place| {
        place.holds(&wanted)?;
        place.engine.reclaim().map_err(|error| error.to_string())?;
        place.holds(&wanted)
    })
}

/// A crash cut off the move of a bucket after its halves were written. Then its keys were removed, and it was
/// moved again: an empty half was not written, and kept the keys of the first time.
#[test]
fn a_bucket_that_is_moved_again_has_only_what_it_has_then() -> Outcome {
    let place = Place::new(&options());
    let mut user = place.session();
    for number in 0..24u8 {
        user.put(&[number], b"value");
    }
    let stored = |memory: &Memory| vec![memory.stored()];
    let reclaim = || place.reclaim();
    place.at_each_fence(reclaim, stored, |place| {
        let mut user = place.session();
        for number in 0..24u8 {
            user.delete(&[number]);
        }
        place.reclaim();
        place.holds(&Contents::new())?;
        place.keeps(&Contents::new())
    })
}

/// A look-up found a key only in the back, and was about to fill the front. Meanwhile the key was removed,
/// and its removal applied to the back. The look-up continued: the key was in front again.
#[test]
fn a_look_up_does_not_bring_back_what_was_removed() -> Outcome {
    // The second load of the pool is the object.
    for load in 0..2 {
        let place = Place::new(&options());
        place.session().put(b"key", b"value");
        place.reclaim();
        let place = place.crash()?;
        let (mut reader, mut writer) = (place.session(), place.session());
        let (engine, mut loads) = (place.engine.clone(), 0);
        place.memory.watch(Moment::Load, move || {
            if loads == load {
                writer.delete(b"key");
                engine.reclaim().unwrap();
            }
            loads += 1;
        });
        // The key may have existed when the look-up began.
        let _ = reader.get(b"key")?;
        place.memory.unwatch();
        place.holds(&Contents::new())?;
        place.keeps(&Contents::new())?;
    }
    Ok(())
}

/// A gleaner committed, and marked the nodes that it had staged as applied. Meanwhile they had been replaced,
/// and their memory belonged to other keys' nodes, which were then never applied.
#[test]
fn a_node_that_was_used_again_is_not_taken_for_applied() -> Outcome {
    let place = Place::new(&roomy());
    let mut writer = place.session();
    let mut wanted = Contents::new();
    for number in 0..40u8 {
        writer.put(&[number], b"old");
        wanted.insert(vec![number], b"new".to_vec());
    }
    for number in 0..1500u16 {
        let key = [&b"later"[..], &number.to_le_bytes()].concat();
        wanted.insert(key, b"value".to_vec());
    }
    let puts = wanted.clone();
    place.memory.watch_once(Moment::Fence, move || {
        let mut puts: Vec<_> = puts.into_iter().collect();
        puts.sort_unstable_by_key(|(key, _)| key.len());
        // Until the memory of the first replaced node is reused.
        for (key, value) in puts {
            writer.put(&key, b"");
            writer.put(&key, &value);
        }
    });
    place.reclaim();
    place.memory.unwatch();
    place.reclaim();
    place.keeps(&wanted)
}

/// Runs something that may wait forever on another thread, with a time limit.
fn within<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || drop(done.send(act())));
    let ended = wait.recv_timeout(NEVER);
    ended.unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// A gleaner that applies each record of a key found, with the row locked for the next one, that the key had
/// been removed meanwhile. It left the row locked, and all threads waited for it, itself first.
#[test]
fn a_gleaner_that_comes_too_late_gives_the_row_back() -> Outcome {
    let mut options = roomy();
    options.bullet.system = BulletSystem::Dyn;
    let place = Place::new(&options);
    let (mut first, mut second) = (place.session(), place.session());
    for value in [b"one", b"two", b"six"] {
        first.put(b"key", value);
    }
    // The first fence is that of the oldest record's transaction.
    place
        .memory
        .watch_once(Moment::Fence, move || second.delete(b"key"));
    let engine = place.engine.clone();
    within("gleaning", move || engine.reclaim().map(drop)).unwrap();
    place.memory.unwatch();
    place.holds(&Contents::new())?;
    place.keeps(&Contents::new())
}

/// A gleaner died in the middle of a transaction, with rows locked. Other gleaners of these rows waited
/// forever, instead of learning that the engine takes no more writes.
#[test]
fn nobody_waits_for_a_gleaner_that_died() -> Outcome {
    let place = Place::new(&options());
    let (mut first, mut second) = (place.session(), place.session());
    // Two gleaners want the same rows, of which there are four.
    let mut wanted = Contents::new();
    for number in 0..8u8 {
        first.put(&[number], b"value");
        second.put(&[number + 8], b"value");
        wanted.extend([number, number + 8].map(|key| (vec![key], b"value".to_vec())));
    }
    let (done, wait) = mpsc::channel();
    let engine = place.engine.clone();
    place.memory.watch_once(Moment::Fence, move || {
        std::thread::spawn(move || drop(done.send(engine.reclaim())));
        // Wait until it waits for the row. If it is late, it gets the error before it begins.
        std::thread::sleep(Duration::from_millis(100));
        panic!("on purpose");
    });
    let engine = place.engine.clone();
    let died = std::thread::spawn(move || engine.reclaim()).join();
    place.memory.unwatch();
    assert!(died.is_err(), "{died:?}");
    let told = wait.recv_timeout(NEVER);
    let told = told.expect("who waits for the row is told");
    assert!(matches!(told, Err(Error::Halted(_))), "{told:?}");
    // It still answers reads, and the next run has everything.
    assert_eq!(place.session().contents()?, wanted);
    let refused = first.0.put(b"another", b"value", 0);
    assert!(matches!(refused, Err(Error::Halted(_))), "{refused:?}");
    place.keeps(&wanted)
}

/// A long value has chunks of its own before anything names it. A power failure in between lost these chunks
/// forever.
#[test]
fn chunks_that_nobody_names_are_free_after_a_crash() -> Outcome {
    let place = Place::new(&options());
    let mut user = place.session();
    let used = place.crash()?.engine.stats().used_bytes;
    let put = || user.put(b"long", &[7; 9_000]);
    let stored = |memory: &Memory| vec![memory.durable(), memory.stored()];
    place.at_each_fence(put, stored, move |place| {
        let found = place.engine.stats();
        match found.keys == 1 || found.used_bytes == used {
            true => Ok(()),
            false => Err(format!("{} bytes of {used} are in use", found.used_bytes)),
        }
    })
}

/// A gleaning worker began to double the back's array, and grew the pool for that, while its clients waited.
#[test]
fn workers_leave_it_to_the_background_to_grow_the_pool() {
    let options = options();
    let (engine, geometry) = identity(&options).unwrap();
    let image = lab::create(lab::Seed(7), engine, geometry).unwrap();
    let pool = lab::open(&image, options.max_bytes, None).unwrap();
    let mut opened = open(pool, &options).unwrap();
    let engine = opened.engine();
    let mut worker = engine.clone().session().unwrap();
    let mut turns = 0;
    for number in 0..200u8 {
        worker.put(&[number], b"value", 0).unwrap();
        let _ticket = worker.commit().unwrap();
        // Roles are decided after some time, and after some turns.
        std::thread::sleep(Duration::from_millis(2));
        let before = engine.stats().pool_bytes;
        for _ in 0..32 {
            turns += u32::from(worker.turn().unwrap());
        }
        assert_eq!(engine.stats().pool_bytes, before, "key {number}");
    }
    assert!(turns > 0, "nothing was gleaned between two requests");
    let before = engine.stats().pool_bytes;
    opened.tend().unwrap();
    assert!(engine.stats().pool_bytes > before, "{before}");
}
