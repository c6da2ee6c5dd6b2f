//! The holes of NDHedis. The pool has at most 2 MiB, and nearly every record leaves it as soon as its
//! block is full. Holes that need a crash at an exact moment are the lab's (`everdram crashtest --engine
//! tiered`).

use crate::map;
use crate::support::contents::{Contents, assert_holds, assert_sound};
use crate::support::frozen::Frozen;
use crate::support::{Bed, seed};
use everdram::options::Loading;
use everdram::{EngineKind, Error, Options, Store};
use everdram_pm::faults::Faults;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const MANIFEST: &str = "tier2/everdram.aof.manifest";

fn bed() -> Bed {
    Bed::emulated().of(EngineKind::Tiered)
}

/// Records leave when the test asks for it.
fn small(options: &mut Options) {
    options.max_bytes = 2 << 20;
    options.tiered.segment_bytes = 64 << 10;
    options.reclaim_background = false;
}

/// The open reads the whole log.
fn at_open(options: &mut Options) {
    small(options);
    options.tiered.loading = Loading::AtOpen;
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Puts keys until most of them have left the pool. Returns what the store holds.
fn fill(store: &Store, keys: std::ops::Range<u32>) -> Contents {
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    for number in keys {
        let value = vec![number as u8; 400];
        session.put(&key(number), &value).unwrap();
        model.insert(key(number), value);
    }
    model
}

fn evicted(store: &Store) -> u64 {
    store.stats().own("evicted_records").unwrap()
}

fn refused(at: &Path, options: &Options) -> Error {
    Store::open(at, options).err().expect("the pool is refused")
}

fn reopened(bed: &Bed, frozen: &Frozen) -> (Bed, Store) {
    let elsewhere = self::bed();
    frozen.lay(&elsewhere.path());
    let _ = bed;
    let store = elsewhere.open_with(small);
    (elsewhere, store)
}

/// Keys that were removed, had expired, were renamed or flushed came back with a restart: the log still had
/// them.
#[test]
fn hole_n1_what_was_removed_does_not_come_back_from_the_log() {
    let bed = bed();
    let store = bed.open_with(small);
    let mut model = fill(&store, 0..20_000);
    assert!(evicted(&store) > 10_000, "{:?}", store.stats().own);
    let mut session = store.session().unwrap();
    for number in (0..20_000).step_by(3) {
        assert!(session.delete(&key(number)).unwrap());
        model.remove(&key(number));
    }
    // Some keys come back and leave again, and some of these are removed for good: what stands for the state
    // in the log is then a dead record.
    for number in (1..20_000).step_by(3) {
        session.put(&key(number), b"again").unwrap();
        model.insert(key(number), b"again".to_vec());
        if number % 2 == 0 {
            assert!(session.delete(&key(number)).unwrap());
            model.remove(&key(number));
        }
    }
    let (_place, killed) = reopened(&bed, &Frozen::take(&bed.path()));
    assert_holds(
        &killed,
        &model,
        "after a kill, with the removals in the pool",
    );
    drop(killed);
    // The removals leave the pool, too.
    model.extend(fill(&store, 30_000..50_000));
    assert_holds(&store, &model, "before the kill");
    let (place, killed) = reopened(&bed, &Frozen::take(&bed.path()));
    assert_holds(&killed, &model, "after a kill");
    assert_sound(&killed, "after a kill");
    let _ticket = killed.session().unwrap().engine().clear().unwrap();
    drop(fill(&killed, 60_000..60_010));
    let model: Contents = (60_000..60_010)
        .map(|number| (key(number), vec![number as u8; 400]))
        .collect();
    let (_again, flushed) = reopened(&place, &Frozen::take(&place.path()));
    assert_holds(&flushed, &model, "after everything was removed");
}

/// A sync of the log failed, the next one succeeded, and what the first had lost was taken for durable.
#[test]
fn hole_n3_a_failed_sync_is_the_last_one() {
    let bed = bed();
    drop(bed.open_with(small));
    let faults = Faults::install(&bed.path().join("tier2"));
    let store = bed.open_with(small);
    let mut model = fill(&store, 0..2000);
    faults.fail_sync_after(1);
    let mut session = store.session().unwrap();
    let mut failed = None;
    for number in 2000..60_000 {
        let value = vec![7; 400];
        match session.put(&key(number), &value) {
            Ok(_) => drop(model.insert(key(number), value)),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    assert!(failed.is_some(), "every write went on after a failed sync");
    assert!(session.put(b"another", b"value").is_err());
    // Reads go on.
    assert_eq!(
        session.get(&key(1)).unwrap().as_deref(),
        Some(&[1; 400][..])
    );
    drop(session);
    let frozen = Frozen::take(&bed.path());
    drop(store);
    let (_place, store) = reopened(&bed, &frozen);
    for (key, value) in &model {
        let found = store.session().unwrap().get(key).unwrap();
        assert_eq!(found.as_ref(), Some(value), "{key:?}");
    }
}

/// A torn or damaged file of the log was cut in silence, with everything behind the damage.
/// Its length is somebody's word: nobody takes that much memory for it.
#[test]
fn a_manifest_as_long_as_a_disk_is_refused() {
    let bed = bed();
    drop(bed.open_with(small));
    let manifest = bed.path().join("tier2/everdram.aof.manifest");
    let file = std::fs::OpenOptions::new().write(true).open(manifest);
    file.unwrap().set_len(1 << 40).unwrap();
    let mut options = bed.options();
    small(&mut options);
    let error = refused(&bed.path(), &options).to_string();
    assert!(error.contains("is no file of a log"), "{error}");
}

#[test]
fn hole_n6_a_tail_is_cut_and_damage_is_an_error() {
    let bed = bed();
    let store = bed.open_with(small);
    let model = fill(&store, 0..8000);
    drop(store);
    let frozen = Frozen::take(&bed.path());
    let segments: Vec<String> = frozen
        .names()
        .filter(|name| name.ends_with(".incr.aof"))
        .map(str::to_owned)
        .collect();
    // Behind the end there may be anything that a crash can leave.
    let mut longer = frozen.clone();
    longer
        .file_mut(segments.iter().max_by_key(|name| name.len()).unwrap())
        .extend_from_slice(&[0; 700]);
    let (_place, store) = reopened(&bed, &longer);
    assert_holds(&store, &model, "with a torn tail");
    for name in &segments {
        let length = frozen.file(name).len();
        for at in [100, length / 2] {
            let mut damaged = frozen.clone();
            damaged.file_mut(name)[at] ^= 1;
            let elsewhere = self::bed();
            damaged.lay(&elsewhere.path());
            let mut options = elsewhere.options();
            at_open(&mut options);
            // Padding says nothing, and no sum covers it.
            match Store::open(elsewhere.path(), &options) {
                Err(error) => assert!(error.to_string().contains(".incr.aof"), "{error}"),
                Ok(store) => assert_holds(&store, &model, name),
            }
        }
        // Also where one entry ends and the next one began, and by an open that reads the rest later.
        let entry = frozen
            .file(name)
            .windows(4)
            .rposition(|four| four == b"\n#e ");
        for end in [length / 2, entry.unwrap() + 1, length - 16] {
            let mut cut = frozen.clone();
            cut.file_mut(name).truncate(end);
            let elsewhere = self::bed();
            cut.lay(&elsewhere.path());
            let mut options = elsewhere.options();
            small(&mut options);
            let error = refused(&elsewhere.path(), &options).to_string();
            assert!(error.contains("aof"), "{error}");
        }
    }
}

/// Expired keys were taken out of the index before the log had their removals. The disk was full, the
/// removals were dropped, and the next cleaning dropped the entries: what they had replaced came back.
#[test]
fn an_expired_key_does_not_come_back_as_what_it_was_before() {
    const KEYS: u32 = 40_000;
    // So few of them that the segments with what they replace are not worth cleaning.
    let expiring = || (0..KEYS).step_by(25);
    let bed = bed();
    drop(bed.open_with(small));
    let faults = Faults::install(&bed.path().join("tier2"));
    let store = bed.open_with(small);
    drop(fill(&store, 0..KEYS));
    let mut session = store.session().unwrap();
    let at = bed.clock.load(Ordering::Relaxed) + 1000;
    for number in expiring() {
        let session = session.engine();
        session.put(&key(number), b"new", at).unwrap();
    }
    let _ticket = session.engine().commit().unwrap();
    // They leave.
    drop(fill(&store, KEYS..KEYS + 8000));
    bed.clock.fetch_add(2000, Ordering::Relaxed);
    let removals = || store.stats().own("tier2_removals").unwrap();
    let before = removals();
    // Room for a segment: what is cleaned into it ends in the middle of a batch.
    faults.room(Some(80 << 10));
    store.engine().reclaim().unwrap();
    assert!(removals() > before, "nothing was tried with little room");
    faults.room(None);
    store.engine().reclaim().unwrap();
    let (place, killed) = reopened(&bed, &Frozen::take(&bed.path()));
    place.clock.fetch_add(2000, Ordering::Relaxed);
    let mut session = killed.session().unwrap();
    for number in expiring() {
        assert_eq!(session.get(&key(number)).unwrap(), None, "key {number}");
    }
}

/// The pool was full and the log had no room: records were dropped to make some.
#[test]
fn hole_n7_a_full_tier_1_refuses_and_drops_nothing() {
    let bed = bed();
    drop(bed.open_with(small));
    let faults = Faults::install(&bed.path().join("tier2"));
    faults.room(Some(1 << 20));
    let store = bed.open_with(small);
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    let mut refused = None;
    for number in 0..60_000 {
        let value = vec![number as u8; 400];
        match session.put(&key(number), &value) {
            Ok(_) => drop(model.insert(key(number), value)),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    assert!(matches!(refused, Some(Error::NoSpace(_))), "{refused:?}");
    assert_holds(&store, &model, "full");
    for number in 0..200 {
        assert!(session.delete(&key(number)).unwrap());
        model.remove(&key(number));
    }
    faults.room(None);
    for number in 0..200 {
        session.put(&key(number), b"room again").unwrap();
        model.insert(key(number), b"room again".to_vec());
    }
    drop(session);
    let (_place, killed) = reopened(&bed, &Frozen::take(&bed.path()));
    assert_holds(&killed, &model, "after a kill");
}

/// Does it again while there is no room, as clients do. How many times there was none.
fn until_there_is_room(what: &str, mut call: impl FnMut() -> Result<(), Error>) -> u32 {
    let begun = Instant::now();
    for refusals in 0.. {
        match call() {
            Ok(()) => return refusals,
            Err(Error::NoSpace(_)) if begun.elapsed() < Duration::from_secs(60) => {
                std::thread::yield_now();
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
    unreachable!()
}

/// The disk of the log was full. Users removed keys, and no room came back: cleaning writes what it keeps
/// before a segment goes, and the disk had no room for that, nor for a manifest.
#[test]
fn a_full_disk_gets_its_room_back() {
    const EACH: u32 = 4;
    const ROUNDS: u32 = 8;
    let room = |options: &mut Options| {
        small(options);
        options.reclaim_background = true;
    };
    let bed = bed();
    drop(bed.open_with(room));
    let faults = Faults::install(&bed.path().join("tier2"));
    faults.disk(Some(3 << 20));
    let store = bed.open_with(room);
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    let mut last = 0;
    for number in 0.. {
        let value = vec![number as u8; 400];
        match session.put(&key(number), &value) {
            Ok(_) => drop(model.insert(key(number), value)),
            Err(Error::NoSpace(_)) => break,
            Err(error) => panic!("{error}"),
        }
        last = number;
    }
    println!("full with {last} keys, {:?}", store.stats().own);
    assert!(evicted(&store) > 4000 && faults.used().unwrap() > 2 << 20);
    let mut random = StdRng::seed_from_u64(seed());
    let mut refusals = 0;
    for round in 0..ROUNDS {
        // What they take is in all segments.
        let mut keys: Vec<Vec<u8>> = model.keys().cloned().collect();
        keys.retain(|_| random.random_ratio(1, EACH));
        for key in &keys {
            refusals += until_there_is_room("removing", || session.delete(key).map(drop));
            model.remove(key);
        }
        // A part of what they took: a removal takes room, too.
        for _ in 0..keys.len() * 2 / 3 {
            last += 1;
            let value = vec![last as u8; 400];
            let write = || session.put(&key(last), &value).map(drop);
            refusals += until_there_is_room("writing", write);
            model.insert(key(last), value);
        }
        println!(
            "{round}: {refusals} refusals, {} keys, {:?}",
            model.len(),
            store.stats().own
        );
    }
    assert!(faults.used().unwrap() <= 3 << 20);
    assert_holds(&store, &model, "with room again");
    // Batches that were refused have left segments without entries. They go, but for the last one.
    until_there_is_room("segments without entries", || {
        // Files go meanwhile.
        let files = std::fs::read_dir(bed.path().join("tier2")).unwrap();
        let files = files.flatten().filter(|file| {
            let name = file.file_name();
            name.to_string_lossy().ends_with(".incr.aof")
        });
        let lengths: Vec<u64> = files
            .filter_map(|file| Some(file.metadata().ok()?.len()))
            .collect();
        assert!(lengths.len() > 1, "no segments");
        let empty = lengths.iter().filter(|&&length| length <= 96).count();
        match empty <= 1 {
            true => Ok(()),
            false => Err(Error::NoSpace(format!("{empty} are there"))),
        }
    });
    let (_place, killed) = reopened(&bed, &Frozen::take_idle(&bed.path()));
    assert_holds(&killed, &model, "after a kill");
    assert_sound(&killed, "after a kill");
}

/// The log had INCR and expiries as "in so many seconds": replayed twice, or later, they gave something else.
#[test]
fn hole_n9_the_log_has_states_and_absolute_times() {
    let bed = bed();
    let store = bed.open_with(small);
    let mut session = store.session().unwrap();
    session.put(b"counter", &5u64.to_le_bytes()).unwrap();
    session.increment(b"counter", 0, 3).unwrap();
    session.append(b"text", b"one").unwrap();
    session.append(b"text", b"two").unwrap();
    let _ticket = session
        .engine()
        .put_now(b"passing", b"value", 2_000_000)
        .unwrap();
    // The next session goes on with its block.
    drop(session);
    drop(fill(&store, 0..20_000));
    assert!(evicted(&store) > 10_000);
    let frozen = Frozen::take(&bed.path());
    let all: Vec<u8> = frozen
        .names()
        .filter(|name| name.ends_with(".incr.aof"))
        .flat_map(|name| frozen.file(name).to_vec())
        .collect();
    let has = |text: &[u8]| all.windows(text.len()).any(|window| window == text);
    for text in [
        b"PXAT\r\n$7\r\n2000000\r\n".as_slice(),
        b"onetwo",
        b"passing",
        b"counter",
    ] {
        assert!(has(text), "{}", String::from_utf8_lossy(text));
    }
    for verb in [b"INCR".as_slice(), b"APPEND", b"EXPIRE", b"MULTI"] {
        assert!(!has(verb), "{verb:?}");
    }
    let (_place, killed) = reopened(&bed, &frozen);
    let mut session = killed.session().unwrap();
    assert_eq!(
        session.get(b"counter").unwrap().as_deref(),
        Some(&8u64.to_le_bytes()[..])
    );
    assert_eq!(
        session.get(b"text").unwrap().as_deref(),
        Some(&b"onetwo"[..])
    );
}

/// Only the log had the greatest versions, and the clocks began below them: a new write looked older than
/// what it replaced.
#[test]
fn hole_n11_versions_go_on_above_the_log() {
    let bed = bed();
    let store = bed.open_with(small);
    let mut session = store.session().unwrap();
    // One key has many versions, and leaves.
    for turn in 0..3000u32 {
        session.put(b"often", &turn.to_le_bytes()).unwrap();
    }
    drop(fill(&store, 0..20_000));
    drop((session, store));
    let store = bed.open_with(small);
    store.session().unwrap().put(b"often", b"last").unwrap();
    let (_place, killed) = reopened(&bed, &Frozen::take(&bed.path()));
    assert_eq!(
        killed.session().unwrap().get(b"often").unwrap().as_deref(),
        Some(&b"last"[..])
    );
}

/// A pool was opened with the log of another, with an older copy of its own, or after another program had
/// appended to it.
#[test]
fn hole_n12_tiers_that_do_not_belong_together_are_refused() {
    let bed = bed();
    let store = bed.open_with(small);
    drop(fill(&store, 0..8000));
    drop(store);
    let early = Frozen::take(&bed.path());
    let store = bed.open_with(small);
    drop(fill(&store, 8000..30_000));
    drop(store);
    let late = Frozen::take(&bed.path());
    let other = self::bed();
    drop(other.open_with(small));
    let other = Frozen::take(&other.path());
    let log_of = |pool: &Frozen, log: &Frozen| {
        let mut mixed = pool.clone();
        let own: Vec<String> = pool
            .names()
            .filter(|name| name.starts_with("tier2/"))
            .map(str::to_owned)
            .collect();
        own.iter().for_each(|name| mixed.remove(name));
        for name in log.names().filter(|name| name.starts_with("tier2/")) {
            mixed.add(name, log.file(name));
        }
        mixed
    };
    let mut appended = late.clone();
    let last = appended
        .names()
        .filter(|name| name.ends_with(".incr.aof"))
        .max_by_key(|name| {
            name.trim_start_matches("tier2/everdram.aof.")
                .split('.')
                .next()
                .unwrap()
                .parse::<u32>()
                .unwrap()
        })
        .unwrap()
        .to_owned();
    appended
        .file_mut(&last)
        .extend_from_slice(b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n");
    let mut lost = late.clone();
    lost.remove(&last);
    let mut without = late.clone();
    without.remove(MANIFEST);
    for (what, frozen) in [
        ("the log of another pool", log_of(&late, &other)),
        ("an older copy of the log", log_of(&late, &early)),
        ("an older copy of the pool", log_of(&early, &late)),
        ("what another program appended", appended),
        ("a lost segment", lost),
        ("a lost manifest", without),
    ] {
        let elsewhere = self::bed();
        frozen.lay(&elsewhere.path());
        let mut options = elsewhere.options();
        small(&mut options);
        let error = refused(&elsewhere.path(), &options);
        println!("{what}: {error}");
        // Nothing was changed.
        let after = Frozen::take(&elsewhere.path());
        assert!(
            frozen
                .names()
                .filter(|name| name.starts_with("tier2/"))
                .all(|name| after.file(name) == frozen.file(name)),
            "{what}"
        );
    }
    let (_place, store) = reopened(&bed, &late);
    assert!(map(&[]).is_empty() && store.len() == 30_000);
}
