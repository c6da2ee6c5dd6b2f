//! The holes of Bullet. Stores have four small logs; a background thread gleans at any time, in addition to
//! the tests.

use crate::map;
use crate::support::contents::{Contents, assert_holds, assert_sound};
use crate::support::frozen::{Frozen, changed_words};
use crate::support::{Bed, Counted, seed};
use everdram::engine::BatchOp;
use everdram::{EngineKind, Options, Session, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering};

fn bed() -> Bed {
    Bed::emulated().of(EngineKind::Bullet)
}

/// Tables of so few buckets that keys share rows and chains, and tables grow.
fn crowded(options: &mut Options) {
    options.bullet.depth = 2;
}

/// The image after a kill at this moment. Two equal images prove that nothing changed meanwhile.
fn frozen(bed: &Bed) -> Frozen {
    loop {
        let image = Frozen::take(&bed.path());
        if image == Frozen::take(&bed.path()) {
            return image;
        }
    }
}

fn opened(image: &Frozen) -> (Bed, Store) {
    let elsewhere = bed();
    image.lay(&elsewhere.path());
    let store = elsewhere.open();
    (elsewhere, store)
}

/// A kill at this moment keeps `wanted`; so does another after the recovery.
fn assert_kept(bed: &Bed, wanted: &Contents, when: &str) {
    let (place, store) = opened(&frozen(bed));
    assert_holds(&store, wanted, when);
    let (_again, twice) = opened(&frozen(&place));
    assert_holds(&twice, wanted, when);
}

fn reclaim(store: &Store) {
    store.engine().reclaim().unwrap();
}

/// A newer record of a key was applied and reclaimed; an older one in another log was not. After a crash the
/// older one was in front of the back, which had the newer.
#[test]
fn hole_b1_no_older_record_is_left_behind() {
    let bed = bed();
    let store = bed.open_with(crowded);
    let mut sessions: Vec<Session> = (0..4).map(|_| store.session().unwrap()).collect();
    let mut model = Contents::new();
    for round in 0..40u8 {
        for number in 0..30u8 {
            let session = &mut sessions[usize::from((number + round) % 4)];
            session.put(&[number], &[round; 40]).unwrap();
            model.insert(vec![number], vec![round; 40]);
            if round % 3 == 0 && number == round % 30 {
                reclaim(&store);
            }
        }
        if round % 5 == 4 {
            assert_kept(&bed, &model, &format!("round {round}"));
        }
    }
}

/// After a crash the newest of a key's records was unknown: logs were replayed one after another.
#[test]
fn hole_b2_the_newest_record_counts_in_whichever_log() {
    let bed = bed();
    let store = bed.open();
    let mut sessions: Vec<Session> = (0..4).map(|_| store.session().unwrap()).collect();
    let mut model = Contents::new();
    for order in 0..24u8 {
        // Every order of four sessions.
        let mut left: Vec<usize> = (0..4).collect();
        let mut code = usize::from(order);
        for turn in 0..4u8 {
            let writer = left.remove(code % left.len());
            code /= left.len() + 1;
            sessions[writer].put(&[order], &[order, turn]).unwrap();
        }
        model.insert(vec![order], vec![order, 3]);
    }
    assert_kept(&bed, &model, "killed");
}

/// A gleaner skipped a record because another one held its key, and the log's head passed it, too: no gleaner
/// applied it.
#[test]
fn hole_b3_no_gleaner_passes_over_a_record() {
    let bed = bed();
    let store = bed.open_with(crowded);
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let (store, ended) = (&store, &ended);
            scope.spawn(move || {
                let _ended = Counted(ended);
                let mut session = store.session().unwrap();
                for round in 0..1500u16 {
                    let value = [&round.to_le_bytes()[..], &[thread; 30]].concat();
                    session.put(&[thread, round as u8 % 40], &value).unwrap();
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while ended.load(Ordering::Relaxed) < 2 {
                    reclaim(&store);
                }
            });
        }
    });
    reclaim(&store);
    let mut model = Contents::new();
    for thread in 0..2u8 {
        for round in 0..1500u16 {
            let value = [&round.to_le_bytes()[..], &[thread; 30]].concat();
            model.insert(vec![thread, round as u8 % 40], value);
        }
    }
    assert_holds(&store, &model, "open");
    assert_kept(&bed, &model, "killed");
}

/// A record was noted as applied only after its transaction: after a crash an increment or an append was
/// applied twice.
#[test]
fn hole_b4_changes_are_applied_once() {
    let bed = bed();
    let store = bed.open();
    let mut session = store.session().unwrap();
    session.put(b"word", &[0; 8]).unwrap();
    session.put(b"text", b"").unwrap();
    let mut text = Vec::new();
    for round in 1..=60u64 {
        let engine = session.engine();
        engine.increment(b"word", 0, 1).unwrap();
        engine.append(b"text", &[round as u8]).unwrap();
        let ticket = engine.commit().unwrap();
        session.wait(ticket).unwrap();
        text.push(round as u8);
        if round % 7 == 0 {
            reclaim(&store);
        }
        let model = map(&[(b"word", &round.to_le_bytes()), (b"text", &text)]);
        if round % 4 == 0 {
            assert_kept(&bed, &model, &format!("round {round}"));
        }
    }
}

/// A removal took the key's version with it; an older put in another log brought the key back.
#[test]
fn hole_b5_a_removal_outlives_what_it_removed() {
    let bed = bed();
    let store = bed.open_with(crowded);
    let (mut one, mut other) = (store.session().unwrap(), store.session().unwrap());
    for round in 0..20u8 {
        for number in 0..20u8 {
            one.put(&[number], &[round; 20]).unwrap();
        }
        if round % 2 == 0 {
            reclaim(&store);
        }
        for number in 0..20u8 {
            assert!(other.delete(&[number]).unwrap());
        }
        assert_kept(&bed, &Contents::new(), "removed and killed");
        reclaim(&store);
        assert_kept(&bed, &Contents::new(), "removed, gleaned and killed");
    }
}

/// The front showed a write before its record was durable: a reader saw it, then it was lost.
#[test]
fn hole_b6_nobody_sees_what_is_not_committed() {
    let bed = bed();
    let store = bed.open();
    let (mut writer, mut reader) = (store.session().unwrap(), store.session().unwrap());
    writer.put(b"key", b"old").unwrap();
    writer.submit_put(b"key", b"new").unwrap();
    assert_eq!(reader.get(b"key").unwrap().as_deref(), Some(&b"old"[..]));
    writer.submit_put(b"another", b"new").unwrap();
    let ticket = writer.commit().unwrap();
    writer.wait(ticket).unwrap();
    let model = map(&[(b"key", b"new"), (b"another", b"new")]);
    assert_holds(&store, &model, "committed");
    assert_kept(&bed, &model, "committed and killed");
}

/// A key left the front before it was applied: a look-up in the back found its old state.
#[test]
fn hole_b7_the_back_is_asked_only_for_what_the_front_has_not() {
    let bed = bed();
    let store = bed.open_with(crowded);
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    for number in 0..60u8 {
        session.put(&[number], b"old").unwrap();
        model.insert(vec![number], b"old".to_vec());
    }
    drop(session);
    store.close().unwrap();
    // Now the back has everything, and the front nothing.
    let store = bed.open_with(crowded);
    let mut session = store.session().unwrap();
    for number in 0..60u8 {
        if number % 3 == 0 {
            assert!(session.delete(&[number]).unwrap());
            model.remove(&[number][..]);
        } else if number % 3 == 1 {
            session.put(&[number], b"new").unwrap();
            model.insert(vec![number], b"new".to_vec());
        }
        assert_eq!(
            session.get(&[number]).unwrap().as_ref(),
            model.get(&[number][..])
        );
    }
    assert_holds(&store, &model, "changed in front");
    assert_kept(&bed, &model, "killed");
    reclaim(&store);
    assert_holds(&store, &model, "gleaned");
}

/// After the end of a log there was a record of an earlier lap, or half of one, and it counted.
#[test]
fn hole_b8_neither_former_laps_nor_halves_count() {
    let bed = bed();
    let store = bed.open();
    let mut session = store.session().unwrap();
    let mut random = StdRng::seed_from_u64(seed());
    let mut model = Contents::new();
    // Some twenty laps.
    for round in 0..4000 {
        let (key, length) = (random.random_range(0..50u8), random.random_range(0..900));
        if random.random_range(0..4) == 0 {
            session.delete(&[key]).unwrap();
            model.remove(&[key][..]);
        } else {
            session.put(&[key], &vec![key; length]).unwrap();
            model.insert(vec![key], vec![key; length]);
        }
        if round % 400 == 399 {
            assert_kept(&bed, &model, &format!("round {round}"));
        }
    }
    reclaim(&store);
    drop((session, store));
    assert_each_part_is_all_or_nothing(&bed, |session| {
        session.put(b"torn", &[7; 200]).unwrap();
    });
}

/// `write` makes some keys; an image with only a part of its stored words durable has all of the keys or
/// none.
fn assert_each_part_is_all_or_nothing(bed: &Bed, write: impl FnOnce(&mut Session)) {
    // No gleaner runs before the image is taken: no crash leaves a part of that.
    let writing = crate::quiet(bed);
    let mut session = writing.session().unwrap();
    let before = frozen(bed);
    write(&mut session);
    let after = frozen(bed);
    let (_place, store) = opened(&before);
    let (_place, written) = opened(&after);
    let counts = [store.len(), written.len()];
    assert!(counts[0] < counts[1]);
    let changed = changed_words(before.image(), after.image());
    let step = changed.len().div_ceil(40);
    for forwards in [false, true] {
        for some in (1..changed.len()).step_by(step) {
            let mut image = before.clone();
            for (nth, &at) in changed.iter().enumerate() {
                if (nth < some) == forwards {
                    image.image_mut()[at..at + 8].copy_from_slice(&after.image()[at..at + 8]);
                }
            }
            let (_place, store) = opened(&image);
            assert!(counts.contains(&store.len()), "{some} of {changed:?}");
            assert_sound(&store, "torn");
        }
    }
}

/// The pointer to a key's last record was persistent, and cleared before that was durable: the old one led
/// into reused space.
#[test]
fn hole_b9_nothing_is_read_where_a_former_record_was() {
    let bed = bed();
    let store = bed.open();
    let mut session = store.session().unwrap();
    session.put(b"key", b"0").unwrap();
    for round in 1..6u8 {
        reclaim(&store);
        let mut model = Contents::new();
        // The log goes round, over the record that the key's node still names.
        for filler in 0..1500u16 {
            session.put(&filler.to_le_bytes(), &[round; 30]).unwrap();
            model.insert(filler.to_le_bytes().to_vec(), vec![round; 30]);
        }
        session.put(b"key", &[round]).unwrap();
        model.insert(b"key".to_vec(), vec![round]);
        assert_kept(&bed, &model, &format!("round {round}"));
    }
}

/// Locks were persistent, and a crash left them locked.
#[test]
fn hole_b10_no_lock_survives_a_crash() {
    let bed = bed();
    let store = bed.open();
    let mut sessions: Vec<Session> = (0..4).map(|_| store.session().unwrap()).collect();
    for number in 0..100u8 {
        sessions[0].put(&[number], b"value").unwrap();
    }
    let keys = crate::support::keys::independent_keys::<4>(&store);
    for (session, key) in sessions.iter_mut().zip(&keys) {
        session.submit_put(key, b"in flight").unwrap();
    }
    let (place, killed) = opened(&frozen(&bed));
    let mut session = killed.session().unwrap();
    for key in (0..100u8).map(|number| vec![number]).chain(keys) {
        session.put(&key, b"new").unwrap();
        assert!(session.delete(&key).unwrap());
    }
    reclaim(&killed);
    assert_holds(&killed, &Contents::new(), "everything removed");
    assert_kept(&place, &Contents::new(), "and killed");
}

/// Writers waited for room in a log while holding a key lock that the gleaner needed, and a client's requests
/// changed their order when its thread became a gleaner.
#[test]
fn hole_b11_full_logs_stop_nobody_and_keep_the_order() {
    let bed = bed();
    let store = bed.open_with(|options| {
        options.bullet.logs = 2;
        options.bullet.log_bytes = 8 << 10;
        options.bullet.depth = 2;
    });
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let store = &store;
            scope.spawn(move || {
                let mut session = store.session().unwrap();
                for round in 0..200u16 {
                    // More than a log holds, between two commits, with the same keys for all threads.
                    for number in 0..20u8 {
                        let value = [&round.to_le_bytes()[..], &[thread; 400]].concat();
                        session.submit_put(&[number], &value).unwrap();
                        let own = [&[thread, number][..], b"own"].concat();
                        session.submit_put(&own, &round.to_le_bytes()).unwrap();
                    }
                    let ticket = session.commit().unwrap();
                    session.wait(ticket).unwrap();
                }
            });
        }
    });
    let (_place, killed) = opened(&frozen(&bed));
    for store in [&store, &killed] {
        let mut session = store.session().unwrap();
        for thread in 0..4u8 {
            for number in 0..20u8 {
                let own = [&[thread, number][..], b"own"].concat();
                let last = session.get(&own).unwrap();
                assert_eq!(last.as_deref(), Some(&199u16.to_le_bytes()[..]));
            }
        }
        assert_eq!(store.len(), 100);
        assert_sound(store, "after the rush");
    }
}

/// Allocation was not part of the transaction, and its record was truncated before its words were durable:
/// room leaked, or was allocated twice.
#[test]
fn hole_b12_no_room_is_lost_or_given_out_twice() {
    let bed = bed();
    let store = bed.open_with(crowded);
    let mut random = StdRng::seed_from_u64(seed());
    let mut session = store.session().unwrap();
    for round in 0..6 {
        let mut model = Contents::new();
        for _ in 0..300 {
            // Lines, many lines, and runs of chunks.
            let length = [20, 700, 40_000, 300_000][random.random_range(0..40usize) / 13];
            let key = random.random_range(0..200u8);
            session.put(&[key], &vec![key; length]).unwrap();
            model.insert(vec![key], vec![key; length]);
        }
        if round % 2 == 0 {
            reclaim(&store);
        }
        assert_kept(&bed, &model, &format!("round {round}"));
        for key in model.keys() {
            assert!(session.delete(key).unwrap());
        }
        reclaim(&store);
        reclaim(&store);
        let (_place, killed) = opened(&frozen(&bed));
        let used = killed.stats().used_bytes;
        assert!(used < 256 << 10, "round {round}: {used} bytes in use");
    }
}

/// The keys of a batch were records of several logs, of which a crash kept some.
#[test]
fn hole_b13_a_batch_is_there_whole_or_not_at_all() {
    let bed = bed();
    let store = bed.open();
    let mut session = store.session().unwrap();
    session.put(b"before", b"value").unwrap();
    reclaim(&store);
    drop((session, store));
    // In an entry of the log, and in the heap, for which a log has no room.
    for (first, length) in [(0, 40), (100, 1500)] {
        assert_each_part_is_all_or_nothing(&bed, |session| {
            let value = vec![9; length];
            let keys: Vec<[u8; 1]> = (first..first + 30).map(|number| [number]).collect();
            let put = |key| BatchOp::Put {
                key,
                value: &value,
                expires_at_ms: 0,
            };
            let ops: Vec<BatchOp<'_>> = keys.iter().map(|key| put(&key[..])).collect();
            session.batch(&ops).unwrap();
        });
    }
}
