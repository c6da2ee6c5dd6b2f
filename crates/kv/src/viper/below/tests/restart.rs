//! What a restart finds, and when.

use super::*;

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

/// The keys of damaged entries are in memory until all of the log is read, and there may be as many as the
/// disk has room for.
#[test]
fn a_salvage_remembers_some_damaged_keys_and_lists_all() {
    const DAMAGED: usize = 20;
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let (path, _) = store_with_hot_keys(directory.path());
    let segment = path.join("tier2/everdram.aof.1.incr.aof");
    let mut bytes = fs::read(&segment).unwrap();
    let values = bytes.windows(400).enumerate();
    let values = values.filter(|(_, window)| *window == [1; 400]);
    let places: Vec<usize> = values.map(|(at, _)| at).step_by(7).take(DAMAGED).collect();
    places.iter().for_each(|at| bytes[*at] ^= 1);
    fs::write(&segment, bytes).unwrap();
    let options = Options {
        salvage: true,
        ..options()
    };
    let store = Store::open(&path, &options).unwrap();
    let findings = store.damage();
    assert_eq!(findings.len(), DAMAGED);
    let mut session = store.session().unwrap();
    let (mut refused, mut told) = (0, 0);
    for finding in &findings {
        match session.get(finding.key.as_ref().unwrap()) {
            Err(Error::Corrupt { .. }) => refused += 1,
            // The pool has a later state.
            Ok(Some(_)) if finding.missing == 0 => {}
            Ok(None) if finding.what.contains("of so many") && finding.stale => told += 1,
            other => panic!("{finding:?}: {other:?}"),
        }
    }
    println!("{refused} refused, {told} told");
    assert!(refused >= 2 && told >= 10);
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

/// Until its blocks are verified, the pool may have live records that the log has, too. Another start, which
/// may not have that checkpoint, needs to know where these begin in the log.
#[test]
fn a_start_with_a_checkpoint_does_not_say_what_was_freed() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let (path, _) = store_with_hot_keys(directory.path());
    let viper = over(&path, Loading::Wait);
    let mut session = ViperSession::of_user(Arc::clone(&viper)).unwrap();
    Engine::checkpoint(&*viper).unwrap();
    for number in 50_000..53_000_u32 {
        session.put(&number.to_le_bytes(), &[7; 200], 0).unwrap();
    }
    let _ticket = session.commit().unwrap();
    let killed = directory.path().join("killed");
    copy(&path, &killed);
    drop((session, viper));

    let viper = over(&killed, Loading::Refuse);
    assert!(
        viper.verification.is_running(),
        "it began with no checkpoint"
    );
    let below = viper.below.as_ref().unwrap();
    let ends = || (below.freed(), below.tail().line.known.settled);
    let (freed, settled) = ends();
    assert!(freed < settled, "nothing has left since blocks were freed");
    while load::load_some(&viper).unwrap() {}
    assert!(!viper.verification.is_running());
    assert_eq!(ends().1, settled);
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
