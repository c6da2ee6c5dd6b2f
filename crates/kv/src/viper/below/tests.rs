//! Stores larger than their pool: what leaves, what comes back, what a restart finds.

use crate::engine::kind::EngineKind;
use crate::engine::open;
use crate::engine::{BatchOp, Engine, EngineSession};
use crate::error::Error;
use crate::options::{Loading, Options, Policy, Promote};
use crate::store::Store;
use crate::viper::Viper;
use crate::viper::below::evict::Victim;
use crate::viper::below::load;
use crate::viper::lookup::look_up;
use crate::viper::session::ViperSession;
use everdram_pm::faults::Faults;
use everdram_pm::{Medium, MediumChoice};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

fn options() -> Options {
    let mut options = Options {
        engine: Some(EngineKind::Tiered),
        medium: MediumChoice::Only(Medium::Emulated),
        initial_bytes: 1 << 20,
        chunk_bytes: 1 << 20,
        max_bytes: 2 << 20,
        ..Options::default()
    };
    options.tiered.segment_bytes = 1 << 20;
    options
}

fn open(directory: &Path) -> Store {
    Store::open(directory.join("pool"), &options()).unwrap()
}

fn compare(store: &Store, model: &HashMap<Vec<u8>, Vec<u8>>) {
    let mut session = store.session().unwrap();
    for (key, value) in model {
        assert_eq!(session.get(key).unwrap().as_ref(), Some(value), "{key:?}");
    }
    assert_eq!(store.len(), model.len() as u64);
    let mut met = 0;
    for key in session.keys() {
        assert!(model.contains_key(&key.unwrap()));
        met += 1;
    }
    assert_eq!(met, model.len());
}

/// A key that is overwritten in the pool is in use like one that is read there; one that was written once
/// leaves with its block.
#[test]
fn what_is_overwritten_stays_and_what_is_written_once_leaves() {
    const FEW: u32 = 50;
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let store = open(directory.path());
    let mut session = store.session().unwrap();
    let mut put = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            session.put(&number.to_le_bytes(), &[7; 200]).unwrap();
        }
    };
    put(0..20_000);
    let [twice, once] = [30_000, 40_000].map(|from| from..from + FEW);
    put(twice.clone());
    put(twice.clone());
    put(once.clone());
    // These pass through the pool.
    put(50_000..60_000);
    let mut below = |numbers: std::ops::Range<u32>| {
        let reads = |store: &Store| store.stats().own("tier2_reads").unwrap();
        let before = reads(&store);
        for number in numbers {
            assert!(session.get(&number.to_le_bytes()).unwrap().is_some());
        }
        reads(&store) - before
    };
    let (twice, once) = (below(twice), below(once));
    println!("{twice} of {FEW} that were overwritten left, {once} of {FEW} that were not");
    assert!(twice < 5 && once > 45);
}

#[test]
fn a_store_larger_than_its_pool_keeps_everything() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let mut random = StdRng::seed_from_u64(7);
    let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    for round in 0..4u32 {
        let store = open(directory.path());
        compare(&store, &model);
        let mut session = store.session().unwrap();
        for turn in 0..10_000u32 {
            let key = random.random_range(0..20_000u32).to_le_bytes().to_vec();
            match random.random_range(0..10) {
                0..6 => {
                    let value = vec![(round + turn) as u8; random.random_range(0..900)];
                    session.put(&key, &value).unwrap();
                    model.insert(key, value);
                }
                6..8 => {
                    assert_eq!(session.delete(&key).unwrap(), model.remove(&key).is_some());
                }
                _ => assert_eq!(session.get(&key).unwrap().as_ref(), model.get(&key)),
            }
        }
        drop(session);
        compare(&store, &model);
        let stats = store.stats();
        println!("{round}: {:?}", stats.own);
        assert!(stats.own("evicted_records").unwrap() > 1000);
        store.close().unwrap();
    }
}

/// Keys that are read all the time stay in the pool while others pass through it, unless the policy does not
/// look at reads.
#[test]
fn what_is_read_stays_as_the_policy_says() {
    const HOT: u32 = 50;
    for policy in [Policy::S3Fifo, Policy::Clock, Policy::Fifo, Policy::Lru] {
        let directory = TempDir::new_in("/dev/shm").unwrap();
        let mut options = options();
        options.tiered.policy = policy;
        options.tiered.promote = Promote::Update;
        let store = Store::open(directory.path().join("pool"), &options).unwrap();
        let mut session = store.session().unwrap();
        let mut model = HashMap::new();
        for number in 0..40_000u32 {
            let key = number.to_le_bytes().to_vec();
            session.put(&key, &[number as u8; 200]).unwrap();
            model.insert(key, vec![number as u8; 200]);
            if number >= HOT {
                let hot = (number % HOT).to_le_bytes();
                assert_eq!(
                    session.get(&hot).unwrap(),
                    Some(vec![(number % HOT) as u8; 200])
                );
            }
        }
        let before = store.stats().own("tier2_reads").unwrap();
        for number in 0..HOT {
            session.get(&number.to_le_bytes()).unwrap();
        }
        let below = store.stats().own("tier2_reads").unwrap() - before;
        println!("{policy:?}: {below} of {HOT} below");
        let is_right = match policy {
            Policy::Fifo => below == u64::from(HOT),
            _ => below < 5,
        };
        assert!(is_right, "{policy:?}: {below} of {HOT} keys left the pool");
        compare(&store, &model);
        drop(session);
        store.close().unwrap();
        compare(&open(directory.path()), &model);
    }
}

/// Keys are read, and written again for that, while they are on their way to the log: no restart takes one of
/// the two for the removal of the other.
#[test]
fn reads_that_write_lose_nothing() {
    const KEYS: u32 = 60_000;
    for policy in [Policy::Lru, Policy::S3Fifo] {
        let directory = TempDir::new_in("/dev/shm").unwrap();
        let mut options = options();
        options.tiered.policy = policy;
        let store = Store::open(directory.path().join("pool"), &options).unwrap();
        let written = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for reader in 0..2 {
                let (store, written) = (&store, &written);
                scope.spawn(move || {
                    let mut session = store.session().unwrap();
                    let mut random = StdRng::seed_from_u64(reader);
                    loop {
                        let count = written.load(Ordering::Relaxed);
                        if count == KEYS {
                            break;
                        }
                        // Some of those that are about to leave.
                        let number = count.saturating_sub(random.random_range(1..8000));
                        let found = session.get(&number.to_le_bytes()).unwrap();
                        assert!(number >= count || found.is_some(), "key {number}");
                    }
                });
            }
            let mut session = store.session().unwrap();
            for number in 0..KEYS {
                session.put(&number.to_le_bytes(), &[7; 200]).unwrap();
                written.store(number + 1, Ordering::Relaxed);
            }
        });
        println!("{policy:?}: {:?}", store.stats().own);
        assert_eq!(store.len(), u64::from(KEYS));
        store.close().unwrap();
        let store = open(directory.path());
        assert_eq!(store.len(), u64::from(KEYS), "{policy:?}");
        assert!(store.check().unwrap().findings.is_empty());
    }
}

/// The last step of growth is as long as there is room for: a pool whose limit is no multiple of a step uses
/// what it may have.
#[test]
fn a_pool_grows_up_to_its_limit() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let options = Options {
        initial_bytes: 6 << 20,
        chunk_bytes: 64 << 20,
        max_bytes: 12 << 20,
        ..options()
    };
    let store = Store::open(directory.path().join("pool"), &options).unwrap();
    let mut session = store.session().unwrap();
    for number in 0..60_000u32 {
        session.put(&number.to_le_bytes(), &[7; 400]).unwrap();
    }
    let stats = store.stats();
    assert!(stats.own("evicted_records").unwrap() > 0);
    assert!(stats.pool_bytes > 11 << 20, "{}", stats.pool_bytes);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// A crash came when the log counted and the blocks were not freed yet: a key was in both tiers, and a later
/// removal saw one of them.
#[test]
fn hole_n10_two_copies_after_a_crash_become_one() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let (path, killed) = (
        directory.path().join("pool"),
        directory.path().join("killed"),
    );
    let options = Options {
        reclaim_background: false,
        ..options()
    };
    let pool = open::pool(&path, &options).unwrap();
    let viper = Viper::over(pool, &path, &options).unwrap();
    let mut session = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    // While somebody reads, no block is freed.
    let reader = ViperSession::new(Arc::clone(&viper)).unwrap();
    let pin = reader.slot.pin();
    let key = |number: u32| number.to_le_bytes().to_vec();
    let mut count = 0;
    // It ends when the pool is full.
    while session.put(&key(count), &[count as u8; 400], 0).is_ok() {
        let _ticket = session.commit().unwrap();
        count += 1;
    }
    assert!(Engine::stats(&*viper).own("evicted_records") > Some(0));
    copy(&path, &killed);
    drop(pin);
    drop((reader, session, viper));
    for _ in 0..2 {
        // The second time, recovery has met both copies before.
        let store = Store::open(&killed, &options).unwrap();
        assert_eq!(store.len(), u64::from(count));
        assert!(store.check().unwrap().findings.is_empty());
    }
    let store = Store::open(&killed, &options).unwrap();
    let mut session = store.session().unwrap();
    assert!(store.stats().own("tier2_bytes").unwrap() > 0);
    for number in 0..count {
        assert!(session.delete(&key(number)).unwrap(), "key {number}");
    }
    let again = directory.path().join("again");
    copy(&killed, &again);
    let store = Store::open(&again, &options).unwrap();
    assert_eq!(store.len(), 0, "removed keys came back");
}

/// A closed store of 20,000 keys, most of them below, with every hundredth written again at the end. Returns
/// its directory, and the keys that were written again, of which the last ones are in the pool.
fn store_with_hot_keys(directory: &Path) -> (std::path::PathBuf, Vec<u32>) {
    let store = open(directory);
    let mut session = store.session().unwrap();
    for number in 0..20_000u32 {
        session.put(&number.to_le_bytes(), &[1; 400]).unwrap();
    }
    let hot: Vec<u32> = (0..20_000).step_by(100).collect();
    for number in &hot {
        session.put(&number.to_le_bytes(), &[2; 400]).unwrap();
    }
    drop(session);
    store.close().unwrap();
    (directory.join("pool"), hot)
}

/// The engine over a pool, without threads: the log is read when the test says so.
fn over(path: &Path, loading: Loading) -> Arc<Viper> {
    let mut options = options();
    options.tiered.loading = loading;
    let pool = open::pool(path, &options).unwrap();
    Viper::over(pool, path, &options).unwrap()
}

/// While the log is read, keys of tier 1 are served and changed, and what the log has of them stays void. All
/// other keys are unknown.
#[test]
fn hole_n14_loading_undoes_nothing() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let (path, hot) = store_with_hot_keys(directory.path());
    let viper = over(&path, Loading::Refuse);
    assert!(viper.is_loading(), "the log was read at once");
    let mut session = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    let key = |number: u32| number.to_le_bytes();
    let mut value = Vec::new();
    let [deleted, expired, again, replaced, batched, kept] = hot[190..196] else {
        unreachable!("six keys")
    };
    let found = session.get(&key(kept), &mut value).unwrap();
    assert!(found.is_some() && value == [2; 400], "tier 1 is served");
    assert!(session.delete(&key(deleted)).unwrap());
    session.put(&key(expired), b"old", 1).unwrap();
    assert!(session.delete(&key(again)).unwrap());
    session.put(&key(again), b"new", 0).unwrap();
    session.put(&key(replaced), b"new", 0).unwrap();
    let batch = [
        BatchOp::Delete { key: &key(batched) },
        BatchOp::Put {
            key: &key(kept),
            value: b"new",
            expires_at_ms: 0,
        },
    ];
    let _ticket = session.batch(&batch).unwrap();
    let _ticket = session.commit().unwrap();
    // Keys of the log alone.
    let unknown = key(777);
    let is_loading = |error| matches!(error, Error::Loading);
    assert!(is_loading(session.get(&unknown, &mut value).unwrap_err()));
    assert!(is_loading(session.put(&unknown, b"new", 0).unwrap_err()));
    assert!(is_loading(session.delete(&unknown).unwrap_err()));
    assert!(is_loading(session.clear().unwrap_err()));
    assert!(is_loading(
        session.scan(0, 9, &mut |_, _, _| ()).unwrap_err()
    ));
    let both: [&[u8]; 2] = [&key(kept), &unknown];
    let many = session.get_many(&both, &mut value, &mut Vec::new());
    assert!(is_loading(many.unwrap_err()));
    // Nothing leaves meanwhile.
    assert!(viper.make_dense().is_ok() && viper.is_loading());

    load::load_all(&viper).unwrap();
    let judge = |viper: &Arc<Viper>| {
        let mut session = ViperSession::of_user(Arc::clone(viper)).unwrap();
        for number in 0..20_000 {
            let mut value = Vec::new();
            let found = session.get(&key(number), &mut value).unwrap().is_some();
            let is_gone = [deleted, expired, batched].contains(&number);
            assert_eq!(found, !is_gone, "key {number}");
            if [again, replaced, kept].contains(&number) {
                assert_eq!(value, b"new");
            }
        }
        assert!(Engine::check(&**viper).unwrap().findings.is_empty());
    };
    assert!(!viper.is_loading());
    judge(&viper);
    let killed = directory.path().join("killed");
    copy(&path, &killed);
    judge(&over(&killed, Loading::Wait));
}

/// A caller that may wait reads the log itself.
#[test]
fn a_call_that_needs_the_log_reads_it() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let (path, hot) = store_with_hot_keys(directory.path());
    let viper = over(&path, Loading::Wait);
    let mut session = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    let mut value = Vec::new();
    let key = hot[190].to_le_bytes();
    assert!(session.get(&key, &mut value).unwrap().is_some());
    assert!(viper.is_loading(), "a key of tier 1 was waited for");
    // Its lock must not be held while the log is read.
    session.put(&key, b"new", 0).unwrap();
    value.clear();
    assert!(
        session
            .get(&777u32.to_le_bytes(), &mut value)
            .unwrap()
            .is_some()
    );
    assert_eq!(value, [1; 400]);
    assert!(!viper.is_loading());
    assert_eq!(Engine::len(&*viper), 20_000);
}

/// Damage that an open would have refused stops writes when it is found later; reads of tier 1 go on.
#[test]
fn damage_of_the_log_that_is_found_later_halts_the_engine() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let (path, hot) = store_with_hot_keys(directory.path());
    let segment = path.join("tier2/everdram.aof.1.incr.aof");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[5000] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let viper = over(&path, Loading::Wait);
    let mut session = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    let (mut value, key) = (Vec::new(), hot[190].to_le_bytes());
    let failed = session.get(&777u32.to_le_bytes(), &mut value);
    assert!(matches!(failed, Err(Error::Corrupt { .. })), "{failed:?}");
    assert!(session.get(&key, &mut value).unwrap().is_some());
    let refused = session.put(&key, b"new", 0).and_then(|()| session.commit());
    assert!(matches!(refused, Err(Error::Halted(_))), "{refused:?}");
    let unknown = session.get(&777u32.to_le_bytes(), &mut value);
    assert!(matches!(unknown, Err(Error::Halted(_))), "{unknown:?}");
    drop((session, viper));
    let mut options = options();
    options.tiered.loading = Loading::AtOpen;
    let failed = Store::open(&path, &options).map(drop);
    assert!(matches!(failed, Err(Error::Corrupt { .. })), "{failed:?}");
}

/// A start with a checkpoint of the index: keys of tier 1 are served before its blocks are read, and what
/// these say of the log holds when the log is read.
#[test]
fn hole_n14_a_checkpoint_forgets_no_removal() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let (path, hot) = store_with_hot_keys(directory.path());
    let key = |number: u32| number.to_le_bytes();
    let removed: Vec<u32> = (0..20_000).filter(|number| number % 70 == 33).collect();
    let is_removed = |number: &u32| number % 70 == 33;
    let viper = over(&path, Loading::Wait);
    let mut session = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    // Of the log, of the pool, and such that are in the pool again.
    for number in &removed {
        if number % 2 == 0 {
            session.put(&key(*number), b"again", 0).unwrap();
        }
        assert!(session.delete(&key(*number)).unwrap(), "key {number}");
    }
    let _ticket = session.commit().unwrap();
    Engine::checkpoint(&*viper).unwrap();
    // A removal of what the checkpoint knows.
    let late = hot[199];
    assert!(session.delete(&key(late)).unwrap());
    let _ticket = session.commit().unwrap();
    let killed = directory.path().join("killed");
    copy(&path, &killed);
    drop((session, viper));

    let viper = over(&killed, Loading::Refuse);
    assert!(
        viper.verification.is_running(),
        "it began with no checkpoint"
    );
    assert!(viper.is_loading());
    let mut session = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    let mut value = Vec::new();
    let served = hot
        .iter()
        .rev()
        .find(|number| !is_removed(number) && **number != late);
    assert!(
        session
            .get(&key(*served.unwrap()), &mut value)
            .unwrap()
            .is_some()
    );
    let unknown = session.get(&key(removed[0]), &mut value);
    assert!(matches!(unknown, Err(Error::Loading)), "{unknown:?}");
    // Verification comes first, then the log.
    while load::load_some(&viper).unwrap() {
        assert!(viper.is_loading());
    }
    assert!(!viper.verification.is_running());
    for number in 0..20_000 {
        let found = session.get(&key(number), &mut value).unwrap().is_some();
        let is_gone = is_removed(&number) || number == late;
        assert_eq!(found, !is_gone, "key {number}");
    }
    assert_eq!(Engine::len(&*viper), 20_000 - removed.len() as u64 - 1);
    assert!(Engine::check(&*viper).unwrap().findings.is_empty());
}

/// Kills at any time, with checkpoints of the index between evictions, promotions and removals.
#[test]
fn a_restart_with_a_checkpoint_finds_everything() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let mut random = StdRng::seed_from_u64(11);
    let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    let mut path = directory.path().join("0");
    let mut with_checkpoint = 0;
    for round in 0..12u32 {
        let viper = over(&path, Loading::Wait);
        with_checkpoint += u32::from(viper.verification.is_running());
        let mut session = ViperSession::of_user(Arc::clone(&viper)).unwrap();
        let checkpoint_at = random.random_range(0..3000);
        for turn in 0..3000u32 {
            let key = random.random_range(0..8000u32).to_le_bytes().to_vec();
            match random.random_range(0..10) {
                0..6 => {
                    let value = vec![(round + turn) as u8; random.random_range(0..900)];
                    session.put(&key, &value, 0).unwrap();
                    model.insert(key, value);
                }
                6..8 => {
                    let was_there = session.delete(&key).unwrap();
                    assert_eq!(was_there, model.remove(&key).is_some());
                }
                _ => {
                    let mut value = Vec::new();
                    let found = session.get(&key, &mut value).unwrap();
                    assert_eq!(found.map(|_| &value), model.get(&key));
                }
            }
            if turn == checkpoint_at {
                let _ticket = session.commit().unwrap();
                Engine::checkpoint(&*viper).unwrap();
            }
        }
        let _ticket = session.commit().unwrap();
        path = directory.path().join((round + 1).to_string());
        copy(&directory.path().join(round.to_string()), &path);
    }
    assert!(
        with_checkpoint > 6,
        "{with_checkpoint} of 12 with a checkpoint"
    );
    compare(&Store::open(&path, &options()).unwrap(), &model);
}

/// A key was removed while it left, on a disk that was full by then: the log could not be told, and the
/// engine took no more writes.
#[test]
fn a_disk_that_fills_while_records_leave_halts_nothing() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    open(directory.path()).close().unwrap();
    let path = directory.path().join("pool");
    let faults = Faults::install(&path.join("tier2"));
    let viper = over(&path, Loading::Wait);
    let mut user = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
    let below = viper.below.as_ref().unwrap();
    let value = [5; 200];
    let mut leave = |user: &mut ViperSession, meanwhile: &mut dyn FnMut(&mut ViperSession)| {
        user.put(b"key", &value, 0).unwrap();
        let _ticket = user.commit().unwrap();
        let hash = viper.hash(b"key");
        let found = look_up(&viper, &user.slot, hash, b"key", &mut user.scratch).unwrap();
        let (from, _, record) = found.unwrap();
        let mut batch = below.batch(true);
        let victim = Victim {
            hash,
            key: b"key",
            value: &value,
            expires_at_ms: 0,
            order: record.stamp.order(),
            from,
            chain: None,
        };
        batch.append(&victim).unwrap();
        meanwhile(user);
        batch.finish(&viper, &mut session).map(drop)
    };
    let removed = |user: &mut ViperSession| {
        assert!(user.delete(b"key").unwrap());
        let _ticket = user.commit().unwrap();
    };
    let refused = leave(&mut user, &mut |user| {
        removed(user);
        // Of what is appended, and no more.
        faults.room(Some(300));
    });
    assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
    viper.healthy().unwrap();
    faults.room(None);
    leave(&mut user, &mut |user| removed(user)).unwrap();
    let killed = directory.path().join("killed");
    copy(&path, &killed);
    for viper in [&viper, &over(&killed, Loading::Wait)] {
        let mut session = ViperSession::of_user(Arc::clone(viper)).unwrap();
        assert_eq!(session.get(b"key", &mut Vec::new()).unwrap(), None);
    }
}
