//! What leaves the pool, what stays there, what comes back.

use super::*;
use crate::aof::Worth;
use crate::viper::below::clean::give_way;
use crate::viper::compaction::Step;
use crate::viper::compaction::picker::Goal;
use crate::viper::read::UNIT;

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

/// Garbage of overwrites is no reason to leave while the pool has room for what is in it.
#[test]
fn nothing_leaves_a_pool_with_room_for_everything() {
    const KEYS: u32 = 2_500;
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let store = open(directory.path());
    let mut session = store.session().unwrap();
    let mut random = StdRng::seed_from_u64(9);
    for turn in 0..20 * KEYS {
        let number = match turn {
            0..KEYS => turn,
            _ => random.random_range(0..KEYS),
        };
        session.put(&number.to_le_bytes(), &[7; 200]).unwrap();
    }
    let stats = store.stats();
    println!("{:?}", stats.own);
    assert_eq!(stats.own("evicted_records"), Some(0));
    assert!(stats.blocks_reclaimed > 100);
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
        let mut batch = below.batch(&viper.halted, true);
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

/// The disk is full in the middle of a block: what has left it so far is dead there. Otherwise it would count
/// again after a crash, when the removal that came later is in the log, before the place from which a start
/// reads it at once.
#[test]
fn what_has_left_a_block_that_stays_is_dead_there() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let viper = over(&directory.path().join("pool"), Loading::AtOpen);
    let mut user = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
    user.put(b"leaves", &[5; 100], 0).unwrap();
    user.put(b"stays", &[6; 100], 0).unwrap();
    let _ticket = user.commit().unwrap();
    let find = |key: &[u8], user: &mut ViperSession| {
        let hash = viper.hash(key);
        let found = look_up(&viper, &user.slot, hash, key, &mut user.scratch);
        let (location, _, record) = found.unwrap().unwrap();
        (location, record.stamp.order())
    };
    let is_dead = |at: u64| {
        let place = viper.reader().mark_place(at).unwrap();
        viper.reader().marks(place.at, place.epoch).unwrap() & place.bit != 0
    };
    let (from, order) = find(b"leaves", &mut user);
    let [left, stayed] =
        [b"leaves".as_slice(), b"stays"].map(|key| find(key, &mut user).0.get() * UNIT);
    let mut batch = viper.below.as_ref().unwrap().batch(&viper.halted, true);
    batch.make_room(&mut session).unwrap();
    let victim = Victim {
        hash: viper.hash(b"leaves"),
        key: b"leaves",
        value: &[5; 100],
        expires_at_ms: 0,
        order,
        from,
        chain: None,
    };
    batch.append(&victim).unwrap();
    assert!(!is_dead(left) && !is_dead(stayed));
    // Without its block.
    batch.finish(&viper, &mut session).unwrap();
    assert!(is_dead(left) && !is_dead(stayed));
    assert!(crate::aof::is_below(find(b"leaves", &mut user).0));
}

/// A thread panics after it has appended a record, and before anything leads there. The next batch, or the
/// cleaning of the log, would let the log count up to its own end, with that record in it.
#[test]
fn what_a_panic_leaves_in_the_log_does_not_count_later() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let path = directory.path().join("pool");
    let viper = over(&path, Loading::AtOpen);
    let below = viper.below.as_ref().unwrap();
    let mut user = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
    for number in 0..6_000_u32 {
        user.put(&number.to_le_bytes(), &[7; 200], 0).unwrap();
    }
    let _ticket = user.commit().unwrap();
    let settled = below.tail().line.known.settled;
    let segments = below.log.numbers().len();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut batch = below.batch(&viper.halted, true);
        batch.make_room(&mut session).unwrap();
        let victim = Victim {
            hash: viper.hash(b"key"),
            key: b"key",
            value: b"never put",
            expires_at_ms: 0,
            order: (1 << 40, 0),
            from: crate::viper::lookup::location(4096).unwrap(),
            chain: None,
        };
        batch.append(&victim).unwrap();
        panic!("in the middle of a batch, for a test");
    }));
    assert!(panicked.is_err());
    assert!(matches!(viper.healthy(), Err(Error::Halted(_))));
    assert!(below.tail().writer().end() > settled, "nothing is left");
    // Nobody lets it count: not who cleans, nor who had waited for the end of the log.
    assert!(below.rewrite(&viper, &mut session).is_err());
    let batch = below.batch(&viper.halted, true);
    assert!(batch.finish(&viper, &mut session).is_err());
    assert_eq!(below.tail().line.known.settled, settled);
    assert_eq!(below.log.numbers().len(), segments);
    drop((user, session));
    drop(viper);
    let viper = over(&path, Loading::Wait);
    let mut user = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    assert_eq!(user.get(b"key", &mut Vec::new()).unwrap(), None);
    let kept = (0..6_000_u32).all(|number| {
        let mut value = Vec::new();
        user.get(&number.to_le_bytes(), &mut value)
            .unwrap()
            .is_some()
            && value == [7; 200]
    });
    assert!(kept, "a key is lost");
}

/// A start reads that part of the log at once of which the pool may still have live records. It does not get
/// shorter while a reader holds blocks that records have left.
#[test]
fn blocks_that_wait_for_a_reader_do_not_count_as_free() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let viper = over(&directory.path().join("pool"), Loading::AtOpen);
    let mut user = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    for number in 0..6_000_u32 {
        user.put(&number.to_le_bytes(), &[7; 200], 0).unwrap();
    }
    let _ticket = user.commit().unwrap();
    let below = viper.below.as_ref().unwrap();
    let mut compactor = viper.compactor();
    compactor.free_passed(&viper).unwrap();
    let ends = || (below.freed(), below.tail().line.known.settled);
    let pin = user.slot.pin();
    assert_eq!(
        compactor.step(&viper, Goal::Evict, 1).unwrap(),
        Step::Worked
    );
    let first = ends();
    assert_eq!(
        compactor.step(&viper, Goal::Evict, 1).unwrap(),
        Step::Worked
    );
    let second = ends();
    assert!(first.0 < first.1 && first.1 < second.1, "two batches left");
    assert_eq!(first.0, second.0, "both blocks wait for the reader");
    drop(pin);
    compactor.free_passed(&viper).unwrap();
    assert_eq!(
        compactor.step(&viper, Goal::Evict, 1).unwrap(),
        Step::Worked
    );
    assert_eq!(ends().0, second.1, "both are free");
}

/// Records of sessions, of a cache and of accounts lie side by side. When most of a segment has expired, its
/// room comes back, though nobody reads, and though some of it expires in years.
#[test]
fn what_has_expired_gives_its_room_back_without_reads() {
    const KEYS: u32 = 12_000;
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let options = Options {
        clock: Some({
            let clock = Arc::clone(&clock);
            Arc::new(move || clock.load(Ordering::Relaxed))
        }),
        ..options()
    };
    let path = directory.path().join("pool");
    let pool = open::pool(&path, &options).unwrap();
    let viper = Viper::over(pool, &path, &options).unwrap();
    let mut user = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    let expires_at_ms = |number: u32| match number % 20 {
        0..13 => 1_100_000 + u64::from(number),
        13 => 1 << 45,
        _ => 0,
    };
    for number in 0..KEYS {
        let key = number.to_le_bytes();
        user.put(&key, &[7; 400], expires_at_ms(number)).unwrap();
        let _ticket = user.commit().unwrap();
    }
    let below = viper.below.as_ref().unwrap();
    let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
    let mut clean = || {
        let now = viper.now_ms();
        while below
            .clean(&viper, &mut session, below.worth(), now)
            .unwrap()
        {}
        below.log.use_of().0
    };
    let before = clean();
    clock.store(1_100_000 + u64::from(KEYS), Ordering::Relaxed);
    let after = clean();
    println!("{before} bytes of entries, then {after}");
    // What stays is a third, and a removal of each key that expired.
    assert!(after * 10 < before * 7, "{after} of {before}");
    for number in 0..KEYS {
        let found = user.get(&number.to_le_bytes(), &mut Vec::new()).unwrap();
        assert_eq!(found.is_none(), number % 20 < 13, "key {number}");
    }
}

/// Nobody ends what makes room here, so cleaning has to go on in the end.
#[test]
fn cleaning_waits_while_others_make_room_but_not_for_ever() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let viper = over(&directory.path().join("pool"), Loading::AtOpen);
    let below = viper.below.as_ref().unwrap();
    let mut user = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    let left = |patience: usize| {
        let mut patience = patience;
        give_way(&viper, &mut patience);
        patience
    };
    let compactor = viper.compactor();
    assert_eq!(left(3), 3, "no room is wanted");
    drop(compactor);
    let mut number = 0_u32;
    while below.log.use_of().0 < 4 << 20 || !viper.wants_room() {
        number += 1;
        let key = (number % 9_000).to_le_bytes();
        user.put(&key, &[7; 400], 0).unwrap();
        let _ticket = user.commit().unwrap();
    }
    assert_eq!(left(3), 3, "nobody makes room");
    let compactor = viper.compactor();
    assert_eq!(left(3), 0, "it did not wait");
    let (bytes, stale, _) = below.log.use_of();
    let share = stale as f64 / bytes as f64;
    assert!(below.is_behind(share / 1.3) && !below.is_behind(share / 1.2));
    let (mut session, now) = (
        ViperSession::new(Arc::clone(&viper)).unwrap(),
        viper.now_ms(),
    );
    let worth = Worth::All(share * 0.9);
    assert!(below.clean(&viper, &mut session, worth, now).unwrap());
    drop(compactor);
}
