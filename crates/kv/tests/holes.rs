//! The holes that the published design leaves open, one test each, by the numbers of `docs/engines.md`. Each
//! opens with the story of how acknowledged data was lost or came back.
//!
//! "Killed" means: the image is copied while the store is open, and the copy is opened elsewhere.

mod support;

use everdram::{BatchOp, Error, Session, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::contents::{Contents, assert_holds, assert_sound, contents};
use support::frozen::{DATA_AT, Frozen, changed_words, word};
use support::history::{Part, part};
use support::{Bed, each_bed, seed};

const BLOCK: usize = 24_576;

/// A store without compaction in the background.
fn quiet(bed: &Bed) -> Store {
    bed.open_with(|options| options.reclaim_background = false)
}

/// What a kill at this moment leaves, opened in a place of its own.
fn after_kill(bed: &Bed) -> (Bed, Store) {
    opened(&Frozen::take(&bed.path()))
}

fn opened(frozen: &Frozen) -> (Bed, Store) {
    let elsewhere = Bed::emulated();
    frozen.lay(&elsewhere.path());
    let store = quiet(&elsewhere);
    (elsewhere, store)
}

fn map(pairs: &[(&[u8], &[u8])]) -> Contents {
    pairs
        .iter()
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

/// Takes the marks of dead records back to what they were in `before`: as if no fence had covered them.
fn without_marks(frozen: &Frozen, before: &Frozen) -> Frozen {
    let mut image = frozen.image().to_vec();
    let mut lost = 0;
    for at in changed_words(before.image(), frozen.image()) {
        if part(BLOCK, at, frozen.image()) == Part::Mark {
            image[at..at + 8].copy_from_slice(&before.image()[at..at + 8]);
            lost += 1;
        }
    }
    assert!(lost > 0, "no mark was set");
    let mut frozen = frozen.clone();
    *frozen.image_mut() = image;
    frozen
}

/// Calls `work` on each of `threads` threads, and compacts until they are done.
fn while_compacting(store: &Store, threads: u64, work: impl Fn(u64, &mut Session) + Sync) {
    let running = AtomicU64::new(threads);
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (work, running) = (&work, &running);
            scope.spawn(move || {
                // Counted down by its drop, also when the work panics: the compactor below has to end.
                struct Done<'a>(&'a AtomicU64);
                impl Drop for Done<'_> {
                    fn drop(&mut self) {
                        self.0.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                let _done = Done(running);
                work(number, &mut store.session().unwrap());
            });
        }
        while running.load(Ordering::Relaxed) > 0 {
            store.engine().reclaim().unwrap();
        }
    });
}

/// A crash after the new copy was durable and before the old one was marked dead leaves two. Recovery picked one
/// and left the other alone; a later delete removed only the first, and the next crash brought the other back.
#[test]
fn hole_v1_losers_do_not_resurrect() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    session.put(b"key", b"old").unwrap();
    let before = Frozen::take(&bed.path());
    session.put(b"key", b"new").unwrap();
    let crashed = without_marks(&Frozen::take(&bed.path()), &before);
    let (place, store) = opened(&crashed);
    assert_eq!(store.stats().recovered_losers, 1);
    assert_holds(&store, &map(&[(b"key", b"new")]), "the newer copy wins");
    // The loser is dead for good before anybody gets an answer, so a crash now changes nothing.
    let (_again, twice) = after_kill(&place);
    assert_eq!(twice.stats().recovered_losers, 0);
    assert!(store.session().unwrap().delete(b"key").unwrap());
    let (_last, deleted) = after_kill(&place);
    assert_holds(&deleted, &Contents::new(), "deleted and killed");
    assert_eq!(deleted.stats().recovered_losers, 0);
}

/// Compaction put a key's old value back into the index although a put had just replaced it.
#[test]
fn hole_v2_compaction_never_undoes_a_put() {
    let bed = Bed::emulated();
    let store = bed.open_with(|options| {
        options.reclaim_threshold = 0.05;
        options.reclaim_background = false;
    });
    while_compacting(&store, 2, |thread, session| {
        for round in 0..300u64 {
            for number in 0..20u64 {
                let key = [thread.to_le_bytes(), number.to_le_bytes()].concat();
                session
                    .put(
                        &key,
                        &[round.to_le_bytes(), key.len().to_le_bytes()]
                            .concat()
                            .repeat(20),
                    )
                    .unwrap();
                let value = session.get(&key).unwrap().unwrap();
                assert_eq!(word(&value, 0), round, "an acknowledged put was undone");
            }
        }
    });
    assert!(store.stats().bytes_moved > 0, "nothing was ever moved");
    let (_place, killed) = after_kill(&bed);
    let mut session = killed.session().unwrap();
    for (key, value) in contents(&mut session).unwrap() {
        assert_eq!(word(&value, 0), 299, "{key:?}");
    }
    assert_eq!(killed.len(), 40);
}

/// A delete looked its record up, waited for a lock, and then removed whatever the index had by then; an
/// in-place update changed a record that had moved on.
#[test]
fn hole_v3_delete_and_update_look_again() {
    let bed = Bed::shaped(6, Some((8, 16)));
    let store = bed.open_with(|options| {
        options.reclaim_threshold = 0.05;
        options.reclaim_background = false;
    });
    let seed = seed();
    let counters: Vec<[u8; 8]> = (1_000..1_008u64).map(u64::to_le_bytes).collect();
    let mut session = store.session().unwrap();
    for key in &counters {
        session.put(key, &[0; 16]).unwrap();
    }
    while_compacting(&store, 3, |thread, session| {
        let mut random = StdRng::seed_from_u64(seed ^ thread);
        for _ in 0..1_500 {
            let key = random.random_range(0..12u64).to_le_bytes();
            match random.random_range(0..3) {
                0 => _ = session.put(&key, &[random.random(); 16]).unwrap(),
                1 => _ = session.delete(&key).unwrap(),
                _ => {
                    let counter = &counters[random.random_range(0..counters.len())];
                    assert!(
                        session
                            .update_word(counter, 8, &mut |word| word + 1)
                            .unwrap()
                            .is_some()
                    );
                    session
                        .update_word(&counters[0], 0, &mut |word| word + 1)
                        .unwrap();
                }
            }
        }
    });
    let found = contents(&mut session).unwrap();
    let all: u64 = counters
        .iter()
        .map(|key| word(&found[key.as_slice()], 8))
        .sum();
    assert_eq!(
        all,
        word(&found[counters[0].as_slice()], 0),
        "an update went elsewhere"
    );
    assert_sound(&store, "at the end");
    let elsewhere = Bed::shaped(6, Some((8, 16)));
    Frozen::take(&bed.path()).lay(&elsewhere.path());
    assert_holds(
        &quiet(&elsewhere),
        &found,
        "what readers saw is what recovery finds",
    );
}

/// The number of used blocks was made durable as a count, after a block was handed out: a record acknowledged in
/// a later block was never scanned when an earlier block's owner was slower.
#[test]
fn hole_v4_a_block_is_scanned_whoever_was_first() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut sessions: Vec<Session> = (0..12).map(|_| store.session().unwrap()).collect();
    let mut model = Contents::new();
    for (number, session) in sessions.iter_mut().enumerate().rev() {
        let key = vec![number as u8];
        if number % 2 == 0 {
            session.put(&key, b"acknowledged").unwrap();
            model.insert(key, b"acknowledged".to_vec());
        } else {
            session.submit_put(&key, b"never committed").unwrap();
        }
    }
    let (_place, killed) = after_kill(&bed);
    let found = contents(&mut killed.session().unwrap()).unwrap();
    assert!(
        model
            .iter()
            .all(|(key, value)| found.get(key) == Some(value)),
        "{found:?}"
    );
    assert_sound(&killed, "killed");
}

/// Lock bytes and owner bits lay in persistent memory: after a crash they said that somebody who was gone held
/// a page, readers waited for ever and the block was never reclaimed.
#[test]
fn hole_v5_no_lock_survives_a_crash() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    for number in 0..200u32 {
        session.put(&number.to_le_bytes(), &[1; 500]).unwrap();
    }
    session
        .submit_put(&7u32.to_le_bytes(), b"in flight")
        .unwrap();
    session.submit_delete(&8u32.to_le_bytes()).unwrap();
    let (_place, killed) = after_kill(&bed);
    let mut other = killed.session().unwrap();
    for number in 0..200u32 {
        assert!(other.contains(&number.to_le_bytes()).unwrap());
        assert!(other.delete(&number.to_le_bytes()).unwrap());
    }
    drop(other);
    killed.engine().reclaim().unwrap();
    assert!(killed.stats().blocks_reclaimed >= 4, "{:?}", killed.stats());
}

/// Page versions of a few bits wrapped and were reset: a reader took bytes of another record for its own.
#[test]
fn hole_v6_a_reader_never_takes_reused_bytes_for_its_record() {
    let bed = Bed::emulated();
    let store = bed.open_with(|options| {
        options.reclaim_threshold = 0.05;
        options.reclaim_background = false;
    });
    let stop = AtomicBool::new(false);
    let value = |key: u8, round: u8| [key, round].repeat(200 + usize::from(round));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut session = store.session().unwrap();
            while !stop.load(Ordering::Relaxed) {
                for key in 0..8u8 {
                    let Some(found) = session.get(&[key]).unwrap() else {
                        continue;
                    };
                    assert_eq!(found, value(key, found[1]), "a torn or foreign value");
                }
            }
        });
        while_compacting(&store, 1, |_, session| {
            for round in 0..=255u8 {
                for key in 0..8u8 {
                    session.put(&[key], &value(key, round)).unwrap();
                }
            }
        });
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert!(
        store.stats().blocks_reclaimed > 10,
        "blocks were not reused"
    );
}

/// Flushing stepped 64 bytes at a time from an unaligned start and missed the last line. On files a line that
/// was not flushed is not in the log, so this medium shows it.
#[test]
fn hole_v7_the_last_line_of_every_record_is_flushed() {
    let bed = Bed::file_in_memory();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    for length in 0..300usize {
        let (key, value) = (format!("{length}").into_bytes(), vec![length as u8; length]);
        session.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    let killed = Frozen::take(&bed.path());
    let elsewhere = Bed::file_in_memory();
    killed.lay(&elsewhere.path());
    assert_holds(&quiet(&elsewhere), &model, "killed");
}

/// What a single put changes, word by word: the image before it, after it, and where they differ.
fn one_put() -> (Frozen, Frozen, Vec<usize>, Contents) {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    session.put(b"before", &[1; 77]).unwrap();
    let before = Frozen::take(&bed.path());
    session.put(b"key", &[2; 216]).unwrap();
    let after = Frozen::take(&bed.path());
    let changed = changed_words(before.image(), after.image());
    assert!(changed.len() > 27, "{}", changed.len());
    (before, after, changed, map(&[(b"before", &[1; 77])]))
}

/// Asserts that a record of which only some words arrived is not there.
fn assert_no_torn_record(keep: impl Fn(usize, usize) -> bool) {
    let (before, after, changed, model) = one_put();
    for round in 0..changed.len() {
        let mut torn = before.clone();
        for (index, &at) in changed.iter().enumerate() {
            if keep(round, index) {
                torn.image_mut()[at..at + 8].copy_from_slice(&after.image()[at..at + 8]);
            }
        }
        let (_place, store) = opened(&torn);
        assert_holds(
            &store,
            &model,
            &format!("word {round} of {}", changed.len()),
        );
    }
}

/// A record's lengths could straddle two words, so a crash left garbage lengths that recovery followed.
#[test]
fn hole_v8_torn_lengths_are_not_followed() {
    assert_no_torn_record(|round, index| index != round);
}

/// The valid bit went out with the data, not after it: a crash kept the bit and lost the data.
#[test]
fn hole_v9_a_record_without_its_data_is_none() {
    assert_no_torn_record(|round, index| index < round);
}

/// A reused page kept valid records of its earlier life behind the new tail.
#[test]
fn hole_v10_bytes_of_an_earlier_life_stay_dead() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    for life in 0..4u32 {
        for number in 0..400u32 {
            session
                .put(
                    &[life.to_le_bytes(), number.to_le_bytes()].concat(),
                    &[life as u8; 100],
                )
                .unwrap();
        }
        for number in 0..400u32 {
            session
                .delete(&[life.to_le_bytes(), number.to_le_bytes()].concat())
                .unwrap();
        }
        store.engine().reclaim().unwrap();
    }
    // A few records at the start of blocks whose rest is full of the past.
    let mut model = Contents::new();
    for number in 0..3u8 {
        store
            .session()
            .unwrap()
            .put(&[number], b"the only ones")
            .unwrap();
        model.insert(vec![number], b"the only ones".to_vec());
    }
    assert!(store.stats().blocks_reclaimed > 4);
    let (_place, killed) = after_kill(&bed);
    assert_holds(&killed, &model, "killed");
}

/// Length 0 meant "the value is on the next page": an empty value read garbage, and key and value pages were
/// deleted and compacted apart from each other.
#[test]
fn hole_v11_empty_and_many_page_values_are_whole() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    for round in 0..6usize {
        for number in 0..12usize {
            let length = [0, 40_000, 0, 4_000, 100_000, 24_000][(round + number) % 6];
            let (key, value) = (vec![number as u8], vec![round as u8; length]);
            session.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        store.engine().reclaim().unwrap();
        let (_place, killed) = after_kill(&bed);
        assert_holds(&killed, &model, &format!("round {round}, killed"));
    }
    assert_holds(&store, &model, "at the end");
}

/// Others read the new value before the old record was gone; after a crash the copy at the higher place won, and
/// that was the old one: read, then lost.
#[test]
fn hole_v12_what_was_read_stays_wherever_the_old_copy_lies() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let (mut low, mut high) = (store.session().unwrap(), store.session().unwrap());
    low.put(b"opens the lower block", b"").unwrap();
    high.put(b"opens the higher block", b"").unwrap();
    for (first, second) in [(&mut low, &mut high)] {
        for turn in 0..2u8 {
            let (old, new) = if turn == 0 {
                (&mut *first, &mut *second)
            } else {
                (&mut *second, &mut *first)
            };
            old.put(&[turn], b"old").unwrap();
            let before = Frozen::take(&bed.path());
            new.put(&[turn], b"new").unwrap();
            assert_eq!(old.get(&[turn]).unwrap().as_deref(), Some(&b"new"[..]));
            let crashed = without_marks(&Frozen::take(&bed.path()), &before);
            let (_place, killed) = opened(&crashed);
            assert_eq!(
                killed.session().unwrap().get(&[turn]).unwrap().as_deref(),
                Some(&b"new"[..])
            );
            assert!(killed.stats().recovered_losers >= 1);
        }
    }
}

/// In-place updates of up to 64 bytes were called atomic; power fails between words. And a record's checksum did
/// not hold any more after one.
#[test]
fn hole_v13_only_whole_words_change_in_place() {
    let bed = Bed::shaped(6, Some((8, 16)));
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    for number in 0..1_000u64 {
        session.put(&number.to_le_bytes(), &[1; 16]).unwrap();
    }
    let key = 3u64.to_le_bytes();
    for at in [1, 4, 9, 12, 16, usize::MAX] {
        let refused = session.update_word(&key, at, &mut |word| word + 1);
        assert!(
            matches!(refused, Err(Error::WordOutside { .. })),
            "{at}: {refused:?}"
        );
    }
    session.update_word(&key, 0, &mut |word| word).unwrap();
    let before = Frozen::take(&bed.path());
    session.update_word(&key, 8, &mut |_| 77).unwrap();
    let after = Frozen::take(&bed.path());
    assert_eq!(
        changed_words(before.image(), after.image()).len(),
        1,
        "one word is stored, nothing else"
    );
    let elsewhere = Bed::shaped(6, Some((8, 16)));
    after.lay(&elsewhere.path());
    let killed = quiet(&elsewhere);
    assert_eq!(
        word(&killed.session().unwrap().get(&key).unwrap().unwrap(), 8),
        77
    );
    assert_eq!(killed.len(), 1_000);
    assert_sound(&killed, "killed");
}

/// A freed block could be handed to two owners, and was reused while readers and recovery still knew its old
/// contents.
#[test]
fn hole_v14_a_block_has_one_owner() {
    let bed = Bed::emulated();
    let store = bed.open_with(|options| {
        options.reclaim_threshold = 0.05;
        options.reclaim_background = false;
    });
    while_compacting(&store, 4, |thread, session| {
        for round in 0..60u8 {
            for number in 0..30u8 {
                session
                    .put(&[thread as u8, number], &vec![round ^ number; 900])
                    .unwrap();
            }
            for number in (round % 3..30).step_by(3) {
                session.delete(&[thread as u8, number]).unwrap();
            }
        }
    });
    assert!(store.stats().blocks_reclaimed > 20, "{:?}", store.stats());
    let expected: Contents = (0..4u8)
        .flat_map(|thread| (0..30u8).map(move |number| (thread, number)))
        .filter(|(_, number)| number % 3 != 59 % 3)
        .map(|(thread, number)| (vec![thread, number], vec![59 ^ number; 900]))
        .collect();
    assert_holds(&store, &expected, "at run time");
    let (_place, killed) = after_kill(&bed);
    assert_holds(&killed, &expected, "killed");
}

/// Two puts, or a put and compaction, waited for each other's pages.
#[test]
fn hole_v15_nobody_waits_in_a_circle() {
    each_bed(|bed| {
        let store = quiet(bed);
        while_compacting(&store, 4, |thread, session| {
            for round in 0..bed.scaled(200) as u32 {
                // Every other thread goes through the same keys the other way round.
                for step in 0..6u32 {
                    let number = if thread % 2 == 0 { step } else { 5 - step };
                    session
                        .submit_put(&number.to_le_bytes(), &[round as u8; 300])
                        .unwrap();
                }
                if round % 5 == 0 {
                    let (a, b) = (0u32.to_le_bytes(), 5u32.to_le_bytes());
                    let op = BatchOp::Put {
                        key: &a,
                        value: b"batch",
                        expires_at_ms: 0,
                    };
                    session.batch(&[op, BatchOp::Delete { key: &b }]).unwrap();
                }
                let ticket = session.commit().unwrap();
                session.wait(ticket).unwrap();
            }
        });
        bed.verify(&store);
    });
}

/// Without checksums a media error or a stray write was returned as a value.
#[test]
fn hole_v16_a_damaged_value_is_an_error() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    session.put(b"key", b"needle in the image").unwrap();
    session.put(b"other", b"fine").unwrap();
    drop(session);
    store.close().unwrap();
    let mut frozen = Frozen::take(&bed.path());
    let image = frozen.image_mut();
    let at = (DATA_AT..)
        .find(|&at| image[at..].starts_with(b"needle"))
        .unwrap();
    image[at] ^= 1;
    frozen.lay(&bed.path());
    let refused = Store::open(bed.path(), &bed.options())
        .map(|_| ())
        .unwrap_err();
    assert!(
        matches!(refused, Error::Corrupt { offset, .. } if offset.abs_diff(at as u64) < 64),
        "{refused}"
    );
}

/// A file that had grown was not what its metadata said: bytes beyond the end of the image, or an image that ends
/// before the pool does.
#[test]
fn hole_v17_a_growth_cut_short_is_no_growth() {
    for bed in [Bed::emulated(), Bed::file_in_memory()] {
        let store = quiet(&bed);
        store.session().unwrap().put(b"key", b"value").unwrap();
        store.close().unwrap();
        let mut frozen = Frozen::take(&bed.path());
        let length = frozen.image().len();
        frozen.image_mut().extend_from_slice(&[0xee; 5_000]);
        frozen.lay(&bed.path());
        let store = quiet(&bed);
        let mut session = store.session().unwrap();
        let mut model = map(&[(b"key", b"value")]);
        for number in 0..400u32 {
            session.put(&number.to_le_bytes(), &[5; 4_000]).unwrap();
            model.insert(number.to_le_bytes().to_vec(), vec![5; 4_000]);
        }
        drop(session);
        assert_holds(&store, &model, "grown over what was left");
        drop(store);
        frozen.image_mut().truncate(length - 1);
        frozen.lay(&bed.path());
        assert!(matches!(
            Store::open(bed.path(), &bed.options()),
            Err(Error::Pool(everdram_pm::Error::Corrupt { .. }))
        ));
    }
}

/// Fingerprints without a key let a client choose keys that collide, and checksums without one let it forge
/// records inside its values.
#[test]
fn hole_v18_checks_are_keyed_for_each_pool() {
    let images = [0, 1].map(|_| {
        let bed = Bed::emulated();
        let store = quiet(&bed);
        store
            .session()
            .unwrap()
            .put(b"key", b"the same in both")
            .unwrap();
        Frozen::take(&bed.path())
    });
    let [one, two] = &images;
    let at = (DATA_AT..)
        .find(|&at| one.image()[at..].starts_with(b"the same"))
        .unwrap();
    let record = at - 3 - 24;
    assert_eq!(
        &one.image()[record..record + 16],
        &two.image()[record..record + 16]
    );
    assert_ne!(
        word(one.image(), record + 16),
        word(two.image(), record + 16),
        "the checks are the same"
    );
    // A record copied from the other pool, whole and to its own place, is none.
    let mut forged = one.clone();
    forged.image_mut()[record..record + 48].copy_from_slice(&two.image()[record..record + 48]);
    let (_place, store) = opened(&forged);
    assert_holds(&store, &Contents::new(), "a forged record");
}
