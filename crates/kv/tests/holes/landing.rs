//! The holes of RDMP-KV's server-bypass puts, over every engine. R4, R5, R7 and R8 are those of the door and
//! of the engines.

use crate::support::Bed;
use crate::support::frozen::{Frozen, word};
use everdram::landing::{Grant, Landing, PAGE_BYTES, slot};
use everdram::{EngineKind, Error, MediumChoice, Options, Store, test_each_engine};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::path::Path;
use std::sync::Arc;

test_each_engine!(
    hole_r1_a_client_that_dies_after_prepare_changes_nothing,
    hole_r2_an_arrival_is_there_after_any_number_of_restarts,
    hole_r3_no_torn_arrival_counts,
    hole_r6_a_write_that_arrives_late_changes_nothing,
    hole_r9_a_grant_is_there_when_it_is_told,
    hole_r10_nothing_leaks,
    an_arrival_counts_once,
    a_damaged_line_is_no_free_one,
    a_pool_without_room_keeps_what_has_arrived,
    arrivals_expire,
);

fn landing(options: &mut Options) {
    options.landing_bytes = 128 << 10;
}

const PAGES: u64 = 32;

fn bed(engine: EngineKind) -> (Bed, Store, Arc<Landing>) {
    let bed = Bed::emulated().of(engine);
    let store = bed.open_with(landing);
    let area = store.landing().unwrap();
    (bed, store, area)
}

/// The pool after a kill, opened. It keeps its area without being asked to.
fn opened(engine: EngineKind, frozen: &Frozen) -> (Bed, Result<Store, Error>) {
    let elsewhere = Bed::emulated().of(engine);
    frozen.lay(&elsewhere.path());
    let store = Store::open(elsewhere.path(), &elsewhere.options());
    (elsewhere, store)
}

fn grant(area: &Arc<Landing>, key: &[u8], value: &[u8]) -> Grant {
    let mut granter = area.granter();
    granter.prepare(key, value.len() as u64, 0).unwrap();
    granter.commit().unwrap()[0]
}

fn encoded(grant: &Grant, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    slot::encode(&mut bytes, grant, key, value, 0);
    bytes
}

fn put(area: &Arc<Landing>, key: &[u8], value: &[u8]) -> Grant {
    let grant = grant(area, key, value);
    area.deliver(grant.offset, &encoded(&grant, key, value))
        .unwrap();
    area.persist(grant.offset, grant.bytes).unwrap();
    grant
}

fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    store.session().unwrap().get(key).unwrap()
}

/// Offset of the line of a grant in the image.
fn line_of(area: &Landing, grant: &Grant) -> usize {
    let front = (64 + PAGES * 64).next_multiple_of(PAGE_BYTES);
    (area.slots().start - front + 64 + u64::from(grant.number) * 64) as usize
}

/// The first phase changed index and log. The client died, and the old value, which had been acknowledged,
/// was gone, at once or after a crash.
fn hole_r1_a_client_that_dies_after_prepare_changes_nothing(engine: EngineKind) {
    let (bed, store, area) = bed(engine);
    store.session().unwrap().put(b"key", b"old").unwrap();
    let grants = [&b"key"[..], b"other"].map(|key| grant(&area, key, b"new"));
    let bytes = encoded(&grants[0], b"key", b"new");
    area.deliver(grants[0].offset, &bytes[..bytes.len() - 1])
        .unwrap();
    assert_eq!(
        (get(&store, b"key").unwrap(), store.len()),
        (b"old".to_vec(), 1)
    );
    let (_elsewhere, again) = opened(engine, &Frozen::take_idle(&bed.path()));
    let again = again.unwrap();
    assert_eq!(
        (get(&again, b"key").unwrap(), again.len()),
        (b"old".to_vec(), 1)
    );
    assert_eq!(again.landing().unwrap().stats().pages_free, PAGES);
    bed.verify(&again);
}

/// The valid flag was not persistent: after a restart nobody could read what had been acknowledged.
fn hole_r2_an_arrival_is_there_after_any_number_of_restarts(engine: EngineKind) {
    let (bed, store, area) = bed(engine);
    let long = vec![7; 30_000];
    put(&area, b"long", &long);
    put(&area, b"empty", b"");
    put(&area, &[b'k'; 500], b"long key");
    let mut image = Frozen::take_idle(&bed.path());
    for restart in 0..4 {
        let (elsewhere, again) = opened(engine, &image);
        let again = again.unwrap();
        assert_eq!(again.len(), 3, "restart {restart}");
        assert_eq!(get(&again, b"long").unwrap(), long);
        assert_eq!(get(&again, b"empty").unwrap(), b"");
        assert_eq!(get(&again, &[b'k'; 500]).unwrap(), b"long key");
        let landing = again.landing().unwrap();
        assert_eq!(landing.stats().applied, if restart == 0 { 3 } else { 0 });
        elsewhere.verify(&again);
        if restart == 2 {
            again.close().unwrap();
        }
        image = Frozen::take_idle(&elsewhere.path());
    }
    drop((store, area));
    // Closed: what had arrived is in the engine.
    let mut looked = bed.options();
    looked.read_only = true;
    let looked = Store::open(bed.path(), &looked).unwrap();
    assert_eq!(get(&looked, b"long").unwrap(), long);
}

/// Value and flags in one write: lines came, and survived, in any order, so that flags were set over half a
/// value.
fn hole_r3_no_torn_arrival_counts(engine: EngineKind) {
    let (bed, store, area) = bed(engine);
    let mut random = rand::rngs::StdRng::seed_from_u64(crate::support::seed());
    let mut session = store.session().unwrap();
    for round in 0..40_u8 {
        session.put(b"key", b"old").unwrap();
        let value = vec![round + 1; random.random_range(1..9000)];
        let grant = grant(&area, b"key", &value);
        let bytes = encoded(&grant, b"key", &value);
        let mut words: Vec<usize> = (0..bytes.len()).step_by(8).collect();
        words.shuffle(&mut random);
        // One that the pages do not have already, as they have zeros and the key.
        let is_new = |at: &usize| [8, 16, 48].contains(at) || *at >= 72;
        let last = words.iter().position(is_new).unwrap();
        let last = words.swap_remove(last);
        let piece = |at: usize| &bytes[at..bytes.len().min(at + 8)];
        for &at in &words {
            area.deliver(grant.offset + at as u64, piece(at)).unwrap();
            if random.random_range(0..200) == 0 {
                assert_eq!(session.get(b"key").unwrap().unwrap(), b"old");
            }
        }
        assert!(!area.arrived(grant.number).unwrap());
        if round % 20 == 0 {
            let (_elsewhere, again) = opened(engine, &Frozen::take_idle(&bed.path()));
            assert_eq!(get(&again.unwrap(), b"key").unwrap(), b"old");
        }
        area.deliver(grant.offset + last as u64, piece(last))
            .unwrap();
        assert_eq!(session.get(b"key").unwrap().unwrap(), value);
        assert!(area.release(grant.number).unwrap());
    }
}

/// A write of a client that had given up landed in memory that had become another's.
fn hole_r6_a_write_that_arrives_late_changes_nothing(engine: EngineKind) {
    let (bed, store, area) = bed(engine);
    let first = grant(&area, b"key", b"late");
    let late = encoded(&first, b"key", b"late");
    assert!(!area.release(first.number).unwrap());
    let second = grant(&area, b"key", b"here");
    assert_eq!(second.offset, first.offset, "the pages are given again");
    area.deliver(first.offset, &late).unwrap();
    assert_eq!(get(&store, b"key"), None);
    let spoiled = Frozen::take_idle(&bed.path());
    let (_elsewhere, again) = opened(engine, &spoiled);
    assert_eq!(get(&again.unwrap(), b"key"), None);
    // Nor after it was applied, and the key removed.
    area.deliver(second.offset, &encoded(&second, b"key", b"here"))
        .unwrap();
    assert_eq!(get(&store, b"key").unwrap(), b"here");
    store.session().unwrap().delete(b"key").unwrap();
    area.deliver(second.offset, &encoded(&second, b"key", b"here"))
        .unwrap();
    area.deliver(first.offset, &late).unwrap();
    assert_eq!(get(&store, b"key"), None);
    let (_elsewhere, again) = opened(engine, &Frozen::take_idle(&bed.path()));
    assert_eq!(get(&again.unwrap(), b"key"), None);
}

/// An address was told before it was durable that old bytes there count no more; what was written to it was
/// lost, or what had been there came back. (That the line is fenced, the crash lab's tap shows: see the test
/// `a_grant_is_fenced_before_it_is_told`.)
fn hole_r9_a_grant_is_there_when_it_is_told(engine: EngineKind) {
    let (bed, store, area) = bed(engine);
    let first = put(&area, b"key", b"first");
    let before = Frozen::take_idle(&bed.path());
    assert!(area.release(first.number).unwrap());
    store.session().unwrap().delete(b"key").unwrap();
    let removed = Frozen::take_idle(&bed.path());
    // The word of the second grant without the rest of its line: what a crash could leave, if both were
    // stored at once. The rest is that of the first, which verified, and so would its slot.
    let second = grant(&area, b"key", b"again");
    let told = Frozen::take_idle(&bed.path());
    let line = line_of(&area, &second);
    assert_eq!(second.number, first.number);
    let (old, new) = (word(before.image(), line), word(told.image(), line));
    assert_eq!(old, new, "a word alone says nothing of its line");
    assert_ne!(
        word(told.image(), line + 8),
        word(removed.image(), line + 8)
    );
    let (_elsewhere, again) = opened(engine, &told);
    assert_eq!(get(&again.unwrap(), b"key"), None);
    // The rest without the word: it was never told.
    let mut untold = told.clone();
    untold.image_mut()[line..line + 8].fill(0);
    let (_elsewhere, again) = opened(engine, &untold);
    let again = again.unwrap();
    assert_eq!(get(&again, b"key"), None);
    assert_eq!(again.landing().unwrap().stats().pages_free, PAGES);
}

/// Objects of aborted puts were never free again.
fn hole_r10_nothing_leaks(engine: EngineKind) {
    let (bed, store, area) = bed(engine);
    let mut random = rand::rngs::StdRng::seed_from_u64(crate::support::seed());
    let mut given: Vec<Grant> = Vec::new();
    for round in 0..400_u32 {
        let key = [b'k', random.random_range(0..5)];
        let mut granter = area.granter();
        match granter.prepare(&key, random.random_range(0..20_000), 0) {
            Ok(()) if round % 7 == 0 => drop(granter),
            Ok(()) => given.push(granter.commit().unwrap()[0]),
            Err(Error::NoSpace(_)) => {
                let nth = random.random_range(0..given.len());
                area.release(given.swap_remove(nth).number).unwrap();
            }
            Err(other) => panic!("{other}"),
        }
    }
    let free = area.stats().pages_free;
    assert!(free < PAGES && !given.is_empty());
    let (_elsewhere, again) = opened(engine, &Frozen::take_idle(&bed.path()));
    let stats = again.unwrap().landing().unwrap().stats();
    assert_eq!((stats.pages_free, stats.grants), (PAGES, 0), "after a kill");
    given
        .iter()
        .for_each(|grant| assert!(!area.release(grant.number).unwrap()));
    assert_eq!((area.stats().pages_free, area.stats().grants), (PAGES, 0));
    assert!(store.is_empty());
}

/// A crash between the put of an arrival and the clearing of its word: it is applied again. Once the word is
/// clear, never more.
fn an_arrival_counts_once(engine: EngineKind) {
    let (bed, store, area) = bed(engine);
    let mut session = store.session().unwrap();
    session.put(b"key", b"old").unwrap();
    let grant = put(&area, b"key", b"new");
    assert_eq!(session.get(b"key").unwrap().unwrap(), b"new");
    let mut between = Frozen::take_idle(&bed.path());
    let line = line_of(&area, &grant);
    assert_eq!(word(between.image(), line), 0);
    session.delete(b"key").unwrap();
    let after = Frozen::take_idle(&bed.path());
    let (_elsewhere, again) = opened(engine, &after);
    assert_eq!(get(&again.unwrap(), b"key"), None);
    between.image_mut()[line] = 1;
    between.image_mut()[line + 1] = 1;
    let (elsewhere, again) = opened(engine, &between);
    let again = again.unwrap();
    assert_eq!(again.landing().unwrap().stats().applied, 1);
    assert_eq!(
        (get(&again, b"key").unwrap(), again.len()),
        (b"new".to_vec(), 1)
    );
    again.session().unwrap().delete(b"key").unwrap();
    elsewhere.verify(&again);
    let (_elsewhere, last) = opened(engine, &Frozen::take_idle(&elsewhere.path()));
    assert_eq!(get(&last.unwrap(), b"key"), None);
}

/// A line in use that does not verify may stand for an acknowledged value: it is an error, and not free.
fn a_damaged_line_is_no_free_one(engine: EngineKind) {
    let (bed, store, area) = bed(engine);
    store.session().unwrap().put(b"other", b"sound").unwrap();
    let grant = put(&area, b"key", b"value");
    let image = Frozen::take_idle(&bed.path());
    let line = line_of(&area, &grant);
    let head = (area.slots().start - (64 + PAGES * 64).next_multiple_of(PAGE_BYTES)) as usize;
    for at in (line..line + 64).chain(head..head + 64).step_by(3) {
        let mut damaged = image.clone();
        damaged.image_mut()[at] ^= 0x10;
        let (elsewhere, refused) = opened(engine, &damaged);
        let refused = refused.err().unwrap_or_else(|| panic!("byte {at}"));
        assert!(refused.is_damage(), "byte {at}: {refused}");
        let changed =
            Frozen::take(&elsewhere.path()).image()[65_536..] != damaged.image()[65_536..];
        assert!(!changed, "a refused pool is left alone");
        let (_, report) = everdram::inspect::check(&elsewhere.path(), None).unwrap();
        assert_eq!(report.findings.len(), 1, "byte {at}: {:?}", report.findings);
        let mut salvage = elsewhere.options();
        salvage.salvage = true;
        let salvaged = Store::open(elsewhere.path(), &salvage).unwrap();
        assert_eq!(get(&salvaged, b"other").unwrap(), b"sound");
        assert_eq!(salvaged.damage().len(), 1);
    }
    // A salvage of a sound pool says what it cannot show.
    let (elsewhere, again) = (Bed::emulated().of(engine), image);
    again.lay(&elsewhere.path());
    let mut salvage = elsewhere.options();
    salvage.salvage = true;
    let salvaged = Store::open(elsewhere.path(), &salvage).unwrap();
    assert!(
        salvaged
            .session()
            .unwrap()
            .get(b"key")
            .unwrap_err()
            .is_damage()
    );
    assert_eq!(get(&salvaged, b"other").unwrap(), b"sound");
    drop(salvaged);
    // Whoever only looks is told.
    let mut looked = elsewhere.options();
    looked.read_only = true;
    let refused = Store::open(elsewhere.path(), &looked).err().unwrap();
    assert!(
        refused.to_string().contains("1 values have arrived"),
        "{refused}"
    );
    let (_, report) = everdram::inspect::check(&elsewhere.path(), None).unwrap();
    assert_eq!(report.findings, []);
    let fields = everdram::inspect::inspect(&elsewhere.path())
        .unwrap()
        .fields;
    let of = |name: &str| {
        fields
            .iter()
            .find(|(field, _)| field == name)
            .unwrap()
            .1
            .clone()
    };
    assert_eq!(of("format version"), "3");
    assert!(
        of("landing area").starts_with("32 pages of 4096 bytes, 31 free; 1 grants, of which 1")
    );
}

/// The pool is full: what has arrived stays in its slot, and its key answers that, until there is room.
fn a_pool_without_room_keeps_what_has_arrived(engine: EngineKind) {
    if engine != EngineKind::Viper {
        // The others have their own ways of being full; the layer sees the same error.
        return;
    }
    let bed = Bed::emulated().of(engine);
    let small = |options: &mut Options| {
        landing(options);
        options.max_bytes = 3 << 20;
        options.initial_bytes = 1 << 20;
    };
    let store = bed.open_with(small);
    let area = store.landing().unwrap();
    let mut session = store.session().unwrap();
    let value = vec![1; 60_000];
    let mut count = 0_u64;
    while session.put(&count.to_le_bytes(), &value).is_ok() {
        count += 1;
    }
    let grant = put(&area, b"key", &value);
    assert!(matches!(session.get(b"key"), Err(Error::NoSpace(_))));
    assert!(matches!(session.delete(b"key"), Err(Error::NoSpace(_))));
    assert!(matches!(area.release(grant.number), Err(Error::NoSpace(_))));
    assert_eq!(
        session.get(&0_u64.to_le_bytes()).unwrap().unwrap(),
        value,
        "other keys go on"
    );
    assert_eq!(store.len(), count + 1);
    let full = Frozen::take_idle(&bed.path());
    let elsewhere = Bed::emulated().of(engine);
    full.lay(&elsewhere.path());
    for (store, mut session) in [(store.clone(), session), {
        let again = elsewhere.open_with(small);
        let session = again.session().unwrap();
        (again, session)
    }] {
        assert!(matches!(session.get(b"key"), Err(Error::NoSpace(_))));
        for number in 0..count {
            session.delete(&number.to_le_bytes()).unwrap();
        }
        store.engine().reclaim().unwrap();
        assert_eq!(session.get(b"key").unwrap().unwrap(), value);
        let stats = store.landing().unwrap().stats();
        assert_eq!((stats.pages_free, stats.grants), (PAGES, 0));
    }
}

fn arrivals_expire(engine: EngineKind) {
    let (bed, store, area) = bed(engine);
    let mut session = store.session().unwrap();
    for (key, expires_at_ms) in [(b"gone", 1_000_001), (b"here", 1_000_005)] {
        session.put(key, b"old").unwrap();
        let mut granter = area.granter();
        granter.prepare(key, 3, expires_at_ms).unwrap();
        let grant = granter.commit().unwrap()[0];
        let mut bytes = Vec::new();
        slot::encode(&mut bytes, &grant, key, b"new", expires_at_ms);
        area.deliver(grant.offset, &bytes).unwrap();
    }
    bed.clock
        .store(1_000_002, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(session.get(b"gone").unwrap(), None);
    assert_eq!(session.get(b"here").unwrap().unwrap(), b"new");
}

/// A pool gets its area once. Without one it is as it always was; on files it cannot have one.
#[test]
fn an_area_is_made_once_and_where_it_can_be() {
    let bed = Bed::emulated();
    let version = |path: &Path| word(Frozen::take(path).image(), 8) as u32;
    let store = bed.open();
    assert!(store.landing().is_none());
    store.close().unwrap();
    assert_eq!(version(&bed.path()), 2);
    for bytes in [1, 128 << 10, 0] {
        let store = bed.open_with(|options| options.landing_bytes = bytes);
        assert_eq!(store.landing().unwrap().stats().pages, 1);
        store.close().unwrap();
        assert_eq!(version(&bed.path()), 3);
    }
    let mut options = bed.options();
    options.medium = MediumChoice::Only(everdram::Medium::File);
    let refused = Store::open(bed.path(), &options).err().unwrap();
    assert!(refused.to_string().contains("landing area"), "{refused}");
    let file = Bed::file();
    let mut options = file.options();
    options.landing_bytes = 4096;
    let refused = Store::open(file.path(), &options).err().unwrap();
    assert!(
        refused.to_string().contains("durable at the fence"),
        "{refused}"
    );
    assert!(!file.path().exists());
    options.medium = MediumChoice::Auto;
    let refused = Store::open(file.path(), &options).err();
    assert!(refused.is_none_or(|refused| refused.to_string().contains("durable at the fence")));
    // All of the head is missing, or all but some words behind the first: the process ended, or power failed,
    // while the area was made.
    let made = Frozen::take(&bed.path());
    let start = bed.open().landing().unwrap().slots().start as usize - 4096;
    for kept in [0..0, 16..24, 56..64, 8..64] {
        let mut unfinished = made.clone();
        let kept = start + kept.start..start + kept.end;
        let lost = (start..start + 64).filter(|at| !kept.contains(at));
        lost.for_each(|at| unfinished.image_mut()[at] = 0);
        unfinished.lay(&bed.path());
        assert_eq!(bed.open().landing().unwrap().stats().pages_free, 1);
    }
}
