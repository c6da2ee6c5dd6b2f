//! The holes of NDHedis that a power loss at the disk of the log shows, or what lies in both tiers. Keys
//! leave the pool, and segments are cleaned, when a test asks for it.

use crate::support::contents::{Contents, assert_holds, contents, difference};
use crate::support::frozen::{Frozen, changed_words};
use crate::support::{Bed, seed};
use crate::without_marks;
use everdram::engine::Scope;
use everdram::{Durability, EngineKind, Options, Session, Store};
use everdram_pm::faults::Faults;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;

/// Keys of a test, half of which the pool has room for.
const KEYS: u32 = 8000;

fn small(options: &mut Options) {
    options.max_bytes = 2 << 20;
    options.tiered.segment_bytes = 64 << 10;
    options.reclaim_background = false;
}

fn bed() -> Bed {
    Bed::emulated().of(EngineKind::Tiered)
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn value(number: u32, round: u32) -> Vec<u8> {
    [number, round].map(u32::to_le_bytes).concat().repeat(50)
}

fn own(store: &Store, name: &str) -> u64 {
    store.stats().own(name).unwrap()
}

/// The pool as it is, in another place: a kill.
fn killed(frozen: &Frozen) -> (Bed, Store) {
    let elsewhere = bed();
    frozen.lay(&elsewhere.path());
    let store = elsewhere.open_with(small);
    (elsewhere, store)
}

fn put(session: &mut Session, model: &mut Contents, number: u32, round: u32) {
    session.put(&key(number), &value(number, round)).unwrap();
    model.insert(key(number), value(number, round));
}

/// A store over a disk that will lose what is not synced there.
fn lossy(bed: &Bed) -> (Arc<Faults>, Store) {
    drop(bed.open_with(small));
    let faults = Faults::install(&bed.path().join("tier2"));
    faults.lossy();
    (faults, bed.open_with(small))
}

/// Runs `work` until the disk of the log goes off, after some of the calls that it makes there, and plays the
/// power loss; the pool loses nothing. `work` returns keys of which it does not know what they hold.
fn outages(work: impl Fn(&Store, &mut Contents, &mut StdRng) -> Vec<u32>) {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let mut is_off = 0;
    for round in 0..12u64 {
        let bed = bed();
        let (faults, store) = lossy(&bed);
        faults.off_after(random.random_range(0..600));
        let mut model = Contents::new();
        let unknown = work(&store, &mut model, &mut random);
        is_off += u64::from(!unknown.is_empty());
        drop(store);
        faults.crash(seed ^ round).unwrap();
        let store = bed.open_with(small);
        let mut found = contents(&mut store.session().unwrap()).unwrap();
        for key in unknown.into_iter().map(key) {
            found.remove(&key);
            model.remove(&key);
        }
        assert!(
            found == model,
            "seed {seed}, round {round}:\n{}",
            difference(&found, &model)
        );
    }
    assert!(is_off > 3, "the disk went off {is_off} times");
}

/// Victims left the pool when their write to the log returned, and a power loss took that write.
#[test]
fn hole_n2_nothing_leaves_tier_1_before_its_sync() {
    outages(|store, model, random| {
        let mut session = store.session().unwrap();
        for turn in 0..30_000 {
            let number = random.random_range(0..KEYS);
            let is_put = random.random_bool(0.8);
            let done = match is_put {
                true => session.put(&key(number), &value(number, turn)).map(drop),
                false => session.delete(&key(number)).map(drop),
            };
            match done {
                Err(_) => return vec![number],
                Ok(()) if is_put => drop(model.insert(key(number), value(number, turn))),
                Ok(()) => drop(model.remove(&key(number))),
            }
        }
        Vec::new()
    });
}

/// A key was written while an older state of it was on its way to the log, and the older one was the last
/// that a restart met.
#[test]
fn hole_n4_the_higher_version_counts_wherever_it_lies() {
    let bed = bed();
    let store = bed.open_with(small);
    let models: Vec<Contents> = std::thread::scope(|scope| {
        let writer = |of: u32| {
            let store = &store;
            scope.spawn(move || {
                let (mut session, mut model) = (store.session().unwrap(), Contents::new());
                for round in 0..12 {
                    for number in (of..KEYS).step_by(2) {
                        // Half of the keys are written all the time, between those that only pass.
                        let number = if number % 4 < 2 { number % 64 } else { number };
                        put(&mut session, &mut model, number, round * KEYS + number);
                    }
                }
                model
            })
        };
        let writers = [writer(0), writer(1)];
        writers.map(|writer| writer.join().unwrap()).into()
    });
    let model = models.into_iter().flatten().collect();
    assert!(own(&store, "evicted_records") > 10_000);
    assert_holds(&store, &model, "before the kill");
    let (_place, store) = killed(&Frozen::take(&bed.path()));
    assert_holds(&store, &model, "after a kill");
}

/// The log was rewritten, and what only its old form had was gone, or it was half-way when power failed.
#[test]
fn hole_n5_cleaning_drops_nothing_that_only_it_has() {
    outages(|store, model, random| {
        let mut session = store.session().unwrap();
        for round in 0..6 {
            for _ in 0..KEYS {
                let number = random.random_range(0..KEYS);
                let turn = round * KEYS + number;
                if session.put(&key(number), &value(number, turn)).is_err() {
                    return vec![number];
                }
                model.insert(key(number), value(number, turn));
            }
            // The disk may go off in here, and the store then takes no more writes.
            if store.engine().reclaim().is_err() {
                return vec![KEYS];
            }
            assert!(own(store, "cleaned_bytes") > 0 || round == 0);
        }
        Vec::new()
    });
}

/// Of a transaction one key was in the pool and others in the log, and a crash kept half of it.
#[test]
fn hole_n8_a_transaction_over_both_tiers_is_whole() {
    let (bed, store, mut session, mut before) = half_below();
    let group = (0..20).find_map(|nth| {
        let group = [3 + nth, 1003 + nth, 2003 + nth, KEYS - nth];
        let names = group.map(key);
        let names = names.each_ref().map(Vec::as_slice);
        session
            .transaction(Scope::Keys(&names), &mut |inside| {
                let put = |key: &&[u8]| inside.put(key, b"new", 0);
                names[..3].iter().try_for_each(put)?;
                inside.delete(names[3]).map(drop)
            })
            .unwrap();
        // Marks are set behind the fence that makes the rest durable; so is what lies in the next page.
        let after = Frozen::take(&bed.path());
        let unmarked = without_marks(&after, &before);
        let mut pages = changed_words(before.image(), unmarked.image());
        pages.iter_mut().for_each(|at| *at /= 4096);
        pages.dedup();
        let before = std::mem::replace(&mut before, after);
        (pages.len() == 1).then_some((group, before, unmarked))
    });
    drop((session, store));
    let (group, before, after) = group.expect("one of them fits the page that it begins in");
    let olds = group.map(|number| Some(value(number, 0)));
    let new = Some(b"new".to_vec());
    let news = [new.clone(), new.clone(), new, None];
    // The journal is durable before the records behind it.
    torn(2, &before, &after, |store, lost| {
        let mut session = store.session().unwrap();
        let found = group.map(|number| session.get(&key(number)).unwrap());
        assert!(
            found == olds || found == news,
            "without {lost:?}: {found:?}"
        );
        found == news
    });
}

/// Cleaning took the removal of a key for stale, while an older segment still had the key.
#[test]
fn hole_n13_a_removal_outlives_what_it_removes() {
    let bed = bed();
    let store = bed.open_with(small);
    let (mut session, mut model) = (store.session().unwrap(), Contents::new());
    for number in 0..KEYS {
        put(&mut session, &mut model, number, 0);
    }
    // Too few for their segments to be cleaned.
    for number in (0..KEYS / 2).step_by(100) {
        assert!(session.delete(&key(number)).unwrap());
        model.remove(&key(number));
    }
    let before = own(&store, "cleaned_bytes");
    for round in 0..4 {
        // The removals leave between keys that are written again and again.
        for number in KEYS..2 * KEYS {
            put(&mut session, &mut model, number, round);
        }
        store.engine().reclaim().unwrap();
    }
    assert!(own(&store, "cleaned_bytes") > before);
    assert!(own(&store, "tier2_removals") >= 20);
    assert_holds(&store, &model, "before the kill");
    let (_place, store) = killed(&Frozen::take(&bed.path()));
    assert_holds(&store, &model, "after a kill");
}

/// What said that the state in the log is void became durable before the new state did.
#[test]
fn hole_n15_a_write_and_what_it_says_of_the_log_are_one() {
    let (bed, store, mut session, before) = half_below();
    session.put(&key(3), b"new").unwrap();
    let after = Frozen::take(&bed.path());
    drop((session, store));
    torn(1, &before, &after, |store, lost| {
        let found = store.session().unwrap().get(&key(3)).unwrap();
        let is_old = found == Some(value(3, 0));
        let is_new = found.as_deref() == Some(b"new");
        assert!(is_old || is_new, "without {lost:?}: {found:?}");
        is_new
    });
}

/// A store whose first keys are in the log and whose last one is in the pool, and its image.
fn half_below() -> (Bed, Store, Session, Frozen) {
    let bed = bed();
    let store = bed.open_with(small);
    let mut session = store.session().unwrap();
    for number in 0..=KEYS {
        session.put(&key(number), &value(number, 0)).unwrap();
    }
    let frozen = Frozen::take(&bed.path());
    (bed, store, session, frozen)
}

/// Judges images that lack some of the words by which `after` differs from `before`: of one fence any of
/// them, otherwise the last ones. `is_new` says whether the image has the state of after.
fn torn(
    fences: u32,
    before: &Frozen,
    after: &Frozen,
    mut is_new: impl FnMut(&Store, &[usize]) -> bool,
) {
    let changed = changed_words(before.image(), after.image());
    assert!((2..128).contains(&changed.len()), "{changed:?}");
    let mut news = 0;
    let mut judge = |lost: &[usize]| {
        let mut torn = after.clone();
        for &at in lost {
            torn.image_mut()[at..at + 8].copy_from_slice(&before.image()[at..at + 8]);
        }
        let (_place, store) = killed(&torn);
        news += u32::from(is_new(&store, lost));
    };
    judge(&[]);
    judge(&changed);
    for word in 0..changed.len() {
        judge(&changed[word..]);
        if fences == 1 {
            judge(&changed[..=word]);
            judge(&changed[word..=word]);
        }
    }
    assert!(
        (1..3 * changed.len()).contains(&(news as usize)),
        "{news} new states"
    );
}

/// A segment was removed, and power failed before the pool knew durably where its keys had gone.
#[test]
fn hole_n16_a_segment_goes_after_tier_1_knows() {
    let seed = seed();
    for round in 0..3 {
        let bed = Bed::file_in_memory().of(EngineKind::Tiered);
        let open = |bed: &Bed| {
            bed.open_with(|options| {
                small(options);
                options.durability = Durability::EverySec;
            })
        };
        drop(open(&bed));
        let pool = Faults::install(&bed.path());
        let log = Faults::install(&bed.path().join("tier2"));
        pool.lossy();
        log.lossy();
        let store = open(&bed);
        let (mut session, mut model) = (store.session().unwrap(), Contents::new());
        for turn in 0..3 {
            for number in 0..KEYS {
                put(&mut session, &mut model, number, turn);
            }
        }
        store.sync().unwrap();
        store.engine().reclaim().unwrap();
        pool.off_after(0);
        log.off_after(0);
        assert!(own(&store, "cleaned_bytes") > 0);
        drop((session, store));
        pool.crash(seed ^ round).unwrap();
        log.crash(seed ^ round).unwrap();
        let store = open(&bed);
        assert_holds(&store, &model, &format!("seed {seed}, round {round}"));
    }
}
