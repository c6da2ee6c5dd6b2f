//! Holes between sessions, and between sessions and compaction.

use crate::support::contents::{Contents, assert_holds, assert_sound, contents};
use crate::support::frozen::{Frozen, word};
use crate::support::{Bed, Counted, each_bed, seed};
use crate::{after_kill, quiet};
use everdram::engine::BatchOp;
use everdram::{EngineKind, Session, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls `work` on each of `threads` threads, and compacts until they are done.
fn while_compacting(store: &Store, threads: u64, work: impl Fn(u64, &mut Session) + Sync) {
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (work, ended) = (&work, &ended);
            scope.spawn(move || {
                let _ended = Counted(ended);
                work(number, &mut store.session().unwrap());
            });
        }
        while ended.load(Ordering::Relaxed) < threads {
            store.engine().reclaim().unwrap();
        }
        store.engine().reclaim().unwrap();
    });
}

/// Compaction put a key's old value back into the index after a put had replaced it.
#[test]
fn hole_v2_compaction_never_undoes_a_put() {
    let bed = Bed::emulated();
    let store = bed.open_with(|options| {
        options.reclaim_threshold = 0.05;
        options.reclaim_background = false;
    });
    let latest: Vec<AtomicU64> = (0..40).map(|_| AtomicU64::new(0)).collect();
    while_compacting(&store, 2, |thread, session| {
        for round in 0..100_000u64 {
            // Some keys are written all the time, some seldom: compaction finds the latter alive.
            for number in (0..20u64).filter(|number| round % (1 + number * number) == 0) {
                let index = thread * 20 + number;
                session
                    .put(&index.to_le_bytes(), &round.to_le_bytes().repeat(40))
                    .unwrap();
                latest[index as usize].store(round, Ordering::Relaxed);
            }
            for number in 0..20u64 {
                let index = thread * 20 + number;
                let value = session.get(&index.to_le_bytes()).unwrap().unwrap();
                let round = latest[index as usize].load(Ordering::Relaxed);
                assert_eq!(word(&value, 0), round, "an acknowledged put was undone");
            }
            if round >= 2_000 && store.stats().bytes_moved > 0 {
                break;
            }
        }
    });
    assert!(store.stats().bytes_moved > 0, "nothing was ever moved");
    let (_place, killed) = after_kill(&bed);
    let mut session = killed.session().unwrap();
    for (key, value) in contents(&mut session).unwrap() {
        let round = latest[word(&key, 0) as usize].load(Ordering::Relaxed);
        assert_eq!(word(&value, 0), round, "{key:?}");
    }
    assert_eq!(killed.len(), 40);
}

/// A delete looked up its record, waited for a lock, and then removed whatever the index had by then; an
/// in-place update changed a record that had moved.
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

/// Page versions of a few bits wrapped and were reset: a reader took bytes of another record for its own.
#[test]
fn hole_v6_a_reader_never_takes_reused_bytes_for_its_record() {
    let bed = Bed::emulated();
    let store = bed.open_with(|options| {
        options.reclaim_threshold = 0.05;
        options.reclaim_background = false;
    });
    let ended = AtomicU64::new(0);
    let value = |key: u8, round: u8| [key, round].repeat(200 + usize::from(round));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut session = store.session().unwrap();
            while ended.load(Ordering::Relaxed) == 0 {
                for key in 0..8u8 {
                    let Some(found) = session.get(&[key]).unwrap() else {
                        continue;
                    };
                    assert_eq!(found, value(key, found[1]), "a torn or foreign value");
                }
            }
        });
        while_compacting(&store, 1, |_, session| {
            let _ended = Counted(&ended);
            for round in (0..=255u8).cycle().take(100_000) {
                for key in 0..8u8 {
                    session.put(&[key], &value(key, round)).unwrap();
                }
                if round == 255 && store.stats().blocks_reclaimed > 10 {
                    break;
                }
            }
        });
        reader.join().unwrap();
    });
    assert!(
        store.stats().blocks_reclaimed > 10,
        "blocks were not reused"
    );
}

/// A freed block could get two owners, and was reused while readers and recovery still knew its old contents.
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
    each_bed(EngineKind::Viper, |bed| {
        let store = quiet(bed);
        while_compacting(&store, 4, |thread, session| {
            for round in 0..bed.scaled(200) as u32 {
                // Every other thread takes the same keys in reverse order.
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
