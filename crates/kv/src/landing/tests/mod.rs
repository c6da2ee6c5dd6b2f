//! What arrives, as sessions see it; all engines.

mod history;

use super::table::BUCKETS;
use super::{Grant, Landing, slot};
use crate::engine::{BatchOp, Change, EngineSession, Ensure, Scope, Ticket};
use crate::{EngineKind, test_each_engine};
use crate::{Error, Medium, MediumChoice, Options, Session, Store};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tempfile::TempDir;

fn place() -> TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => TempDir::new_in("/dev/shm"),
        false => TempDir::new(),
    }
    .unwrap()
}

fn options(engine: EngineKind) -> Options {
    let mut options = Options {
        engine: Some(engine),
        medium: MediumChoice::Only(Medium::Emulated),
        initial_bytes: 1 << 20,
        chunk_bytes: 1 << 20,
        max_bytes: 256 << 20,
        landing_bytes: 256 << 10,
        ..Options::default()
    };
    options.bullet.logs = 4;
    options.bullet.log_bytes = 256 << 10;
    options.dstore.logs = 4;
    options.dstore.log_bytes = 256 << 10;
    options
}

/// A store with a landing area, and a granter.
struct Bed {
    store: Store,
    landing: Arc<Landing>,
    path: PathBuf,
    _place: TempDir,
}

impl Bed {
    fn of(options: &Options) -> Bed {
        let place = place();
        let path = place.path().join("pool");
        let store = Store::open(&path, options).unwrap();
        let landing = store.landing().unwrap();
        Bed {
            store,
            landing,
            path,
            _place: place,
        }
    }

    fn new(engine: EngineKind) -> Bed {
        Bed::of(&options(engine))
    }

    fn session(&self) -> Session {
        self.store.session().unwrap()
    }

    fn grant(&self, key: &[u8], value: &[u8]) -> Grant {
        let mut granter = self.landing.granter();
        granter.prepare(key, value.len() as u64, 0).unwrap();
        granter.commit().unwrap()[0]
    }

    /// Plays a client and its NIC, for a value that never expires.
    fn land(&self, grant: &Grant, key: &[u8], value: &[u8]) {
        let mut bytes = Vec::new();
        slot::encode(&mut bytes, grant, key, value, 0);
        assert_eq!(bytes.len() as u64, grant.bytes);
        self.landing.deliver(grant.offset, &bytes).unwrap();
        self.landing.persist(grant.offset, grant.bytes).unwrap();
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Grant {
        let grant = self.grant(key, value);
        self.land(&grant, key, value);
        grant
    }

    /// The files as a kill would leave them now, in another place.
    fn killed(&self) -> TempDir {
        let place = place();
        copy(&self.path, &place.path().join("pool"));
        place
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

fn word(value: u64) -> [u8; 8] {
    value.to_le_bytes()
}

test_each_engine!(
    every_call_sees_what_has_arrived,
    a_grant_alone_changes_nothing,
    arrivals_of_a_key_count_in_the_order_of_grants,
    a_write_that_began_before_the_grant_comes_before_the_arrival,
    many_keys_are_one_moment,
);

type Call = (&'static str, fn(&mut dyn EngineSession) -> Vec<u8>);

/// Each call begins with what has arrived for its key: a value of 16 bytes, the first word of which is 7.
fn every_call_sees_what_has_arrived(engine: EngineKind) {
    const KEY: &[u8] = b"key";
    fn read(session: &mut dyn EngineSession) -> Vec<u8> {
        let mut value = Vec::new();
        match session.get(KEY, &mut value).unwrap() {
            Some(_) => value,
            None => b"absent".to_vec(),
        }
    }
    let arrived = [word(7), word(1)].concat();
    let changed = |first: u64| [word(first), word(1)].concat();
    let calls: Vec<(Call, Vec<u8>)> = vec![
        (("get", |session| read(session)), arrived.clone()),
        (
            ("probe", |session| {
                let (_, bytes) = session.probe(KEY).unwrap().unwrap();
                assert_eq!(bytes, 16);
                read(session)
            }),
            arrived.clone(),
        ),
        (
            ("get_many", |session| {
                let (mut into, mut found) = (Vec::new(), Vec::new());
                session
                    .get_many(&[b"other", KEY], &mut into, &mut found)
                    .unwrap();
                assert!(found[0].0.is_none() && found[1].0.is_some());
                into
            }),
            arrived.clone(),
        ),
        (
            ("put", |session| {
                session.put(KEY, b"later", 0).unwrap();
                let _ticket = session.commit().unwrap();
                read(session)
            }),
            b"later".to_vec(),
        ),
        (
            ("put_now", |session| {
                let (is_new, _) = session.put_now(KEY, b"later", 0).unwrap();
                assert!(!is_new);
                read(session)
            }),
            b"later".to_vec(),
        ),
        (
            ("delete", |session| {
                assert!(session.delete(KEY).unwrap());
                let _ticket = session.commit().unwrap();
                read(session)
            }),
            b"absent".to_vec(),
        ),
        (
            ("modify", |session| {
                let modified = session.modify(KEY, &mut |current, new| {
                    new.extend_from_slice(current.unwrap().value);
                    new[0] += 1;
                    Change::Put { expires_at_ms: 0 }
                });
                modified.unwrap();
                let _ticket = session.commit().unwrap();
                read(session)
            }),
            changed(8),
        ),
        (
            ("update_word", |session| {
                let before = session.update_word(KEY, 0, &mut |word| word + 2).unwrap();
                assert_eq!(before, Some(7));
                let _ticket = session.commit().unwrap();
                read(session)
            }),
            changed(9),
        ),
        (
            ("increment", |session| {
                assert_eq!(session.increment(KEY, 0, 3).unwrap(), Some(10));
                let _ticket = session.commit().unwrap();
                read(session)
            }),
            changed(10),
        ),
        (
            ("append", |session| {
                assert_eq!(session.append(KEY, b"!").unwrap(), 17);
                let _ticket = session.commit().unwrap();
                read(session)
            }),
            [&arrived[..], b"!"].concat(),
        ),
        (
            ("read_range", |session| {
                let mut part = Vec::new();
                session.read_range(KEY, 0, 8, &mut part).unwrap().unwrap();
                part
            }),
            word(7).to_vec(),
        ),
        (
            ("write_range", |session| {
                assert_eq!(session.write_range(KEY, 0, &word(5)).unwrap(), 16);
                let _ticket = session.commit().unwrap();
                read(session)
            }),
            changed(5),
        ),
        (
            ("set_len", |session| {
                assert_eq!(session.set_len(KEY, 8).unwrap(), Some(16));
                let _ticket = session.commit().unwrap();
                read(session)
            }),
            word(7).to_vec(),
        ),
        (
            ("ensure", |session| {
                let how = Ensure {
                    creates_new: true,
                    ..Ensure::default()
                };
                assert!(matches!(
                    session.ensure(KEY, &how),
                    Err(Error::ObjectExists)
                ));
                read(session)
            }),
            arrived.clone(),
        ),
        (
            ("batch", |session| {
                let value = b"batch";
                let put = BatchOp::Put {
                    key: KEY,
                    value,
                    expires_at_ms: 0,
                };
                let _ticket = session
                    .batch(&[put, BatchOp::Delete { key: b"other" }])
                    .unwrap();
                read(session)
            }),
            b"batch".to_vec(),
        ),
        (
            ("transaction", |session| {
                let mut seen = Vec::new();
                let _ticket = session
                    .transaction(Scope::Keys(&[KEY]), &mut |both| {
                        both.get(KEY, &mut seen)?;
                        both.put(KEY, b"after", 0)
                    })
                    .unwrap();
                assert_eq!(read(session), b"after");
                seen
            }),
            arrived.clone(),
        ),
        (
            ("transaction of all", |session| {
                let mut len = 0;
                let _ticket = session
                    .transaction(Scope::All, &mut |all| {
                        len = all.len();
                        Ok(())
                    })
                    .unwrap();
                assert_eq!(len, 1);
                read(session)
            }),
            arrived.clone(),
        ),
        (
            ("clear", |session| {
                let _ticket = session.clear().unwrap();
                read(session)
            }),
            b"absent".to_vec(),
        ),
        (
            ("scan", |session| {
                let mut met = Vec::new();
                session
                    .scan(0, 100, &mut |key, bytes, _| met.push((key.to_vec(), bytes)))
                    .unwrap();
                assert_eq!(met, [(KEY.to_vec(), 16)]);
                read(session)
            }),
            arrived.clone(),
        ),
        (
            ("random_key", |session| {
                let mut key = Vec::new();
                assert!(session.random_key(&mut key).unwrap());
                key
            }),
            KEY.to_vec(),
        ),
    ];
    let bed = Bed::new(engine);
    let mut session = bed.session();
    for ((name, call), wanted) in calls {
        println!("-- {name}");
        assert_eq!((bed.store.len(), bed.store.stats().keys), (0, 0));
        let watched = session.engine().watch(KEY);
        let grant = bed.put(KEY, &arrived);
        assert_eq!(
            (bed.store.len(), bed.store.stats().keys),
            (1, 1),
            "counted, not applied"
        );
        assert_eq!(bed.landing.stats().grants, 1);
        assert_eq!(call(session.engine()), wanted, "{name}");
        assert_eq!(bed.landing.stats().grants, 0, "{name} applies");
        assert_ne!(
            session.engine().watch(KEY),
            watched,
            "{name} changes the number"
        );
        session.delete(KEY).unwrap();
        // What was applied once is applied never again, also by recovery.
        let killed = bed.killed();
        let again = Store::open(killed.path().join("pool"), &options(engine)).unwrap();
        assert_eq!(again.session().unwrap().get(KEY).unwrap(), None, "{name}");
        assert!(bed.landing.arrived(grant.number).unwrap());
        assert!(bed.landing.release(grant.number).unwrap());
        assert_eq!(session.get(KEY).unwrap(), None, "{name}");
    }
    let stats = bed.landing.stats();
    assert_eq!((stats.pages, stats.pages_free, stats.applied), (64, 64, 20));
}

/// R1: in the paper the first phase changes log and index; a client that dies then takes the old value along.
fn a_grant_alone_changes_nothing(engine: EngineKind) {
    let bed = Bed::new(engine);
    let mut session = bed.session();
    session.put(b"key", b"old").unwrap();
    let grant = bed.grant(b"key", b"new");
    assert_eq!(session.get(b"key").unwrap().unwrap(), b"old");
    session.append(b"key", b"er").unwrap();
    // A part of the value, and then the client dies.
    let mut bytes = Vec::new();
    slot::encode(&mut bytes, &grant, b"key", b"new", 0);
    bed.landing
        .deliver(grant.offset, &bytes[..bytes.len() - 1])
        .unwrap();
    assert_eq!(session.get(b"key").unwrap().unwrap(), b"older");
    assert_eq!(bed.store.len(), 1);
    assert!(!bed.landing.arrived(grant.number).unwrap());
    assert!(!bed.landing.release(grant.number).unwrap());
    assert!(!bed.landing.release(grant.number).unwrap(), "it is gone");
    // The rest comes all the same.
    bed.landing.deliver(grant.offset, &bytes).unwrap();
    assert_eq!(session.get(b"key").unwrap().unwrap(), b"older");
    assert_eq!(bed.landing.stats().pages_free, 64);
    // Prepared and not committed: forgotten.
    let mut granter = bed.landing.granter();
    granter.prepare(b"key", 100_000, 0).unwrap();
    assert!(matches!(
        granter.prepare(b"key", 200_000, 0),
        Err(Error::NoSpace(_))
    ));
    assert!(matches!(
        granter.prepare(b"", 1, 0),
        Err(Error::KeyLength(0))
    ));
    drop(granter);
    assert_eq!(
        (bed.landing.stats().pages_free, bed.landing.stats().grants),
        (64, 0)
    );
}

fn arrivals_of_a_key_count_in_the_order_of_grants(engine: EngineKind) {
    let bed = Bed::new(engine);
    let mut session = bed.session();
    let [first, second, third] = [b"1", b"2", b"3"].map(|value| bed.grant(b"key", value));
    bed.land(&second, b"key", b"2");
    bed.land(&first, b"key", b"1");
    let killed = bed.killed();
    assert_eq!(session.get(b"key").unwrap().unwrap(), b"2");
    // This one was under way all the time, and lands now.
    bed.land(&third, b"key", b"3");
    assert!(bed.landing.arrived(third.number).unwrap());
    assert_eq!(session.get(b"key").unwrap().unwrap(), b"3");
    let again = Store::open(killed.path().join("pool"), &options(engine)).unwrap();
    assert_eq!(again.session().unwrap().get(b"key").unwrap().unwrap(), b"2");
    let landing = again.landing().unwrap();
    assert_eq!(
        (landing.stats().pages_free, landing.stats().applied),
        (64, 2)
    );
    // Its own pages, again and again; a door gives them to the same client only.
    let mut granter = bed.landing.granter();
    for round in 0..10_u8 {
        assert!(granter.prepare_again(third.number, b"key", 1, 0).unwrap());
        let grant = granter.commit().unwrap()[0];
        assert!(
            !granter.prepare_again(third.number, b"key", 1, 0).unwrap(),
            "not applied"
        );
        assert_eq!(
            session.get(b"key").unwrap().unwrap().len(),
            1,
            "old bytes do not verify"
        );
        bed.land(&grant, b"key", &[round]);
        assert_eq!(session.get(b"key").unwrap().unwrap(), [round]);
    }
    assert_eq!(bed.landing.stats().pages_free, 61);
}

/// A DELETE looked at the table before the grant, and came to its key's lock after the arrival had been put.
/// A crash then brought back what it had removed: recovery found the word of the grant.
fn a_write_that_began_before_the_grant_comes_before_the_arrival(engine: EngineKind) {
    let mut options = options(engine);
    // All keys share a lock, so that a write can be held up.
    options.stripes = 1;
    let bed = Bed::of(&options);
    for round in 0..100_u64 {
        let mut holder = bed.session();
        holder.put(b"key", b"old").unwrap();
        holder.submit_put(b"elsewhere", b"held").unwrap();
        let begun = AtomicU64::new(0);
        // Or it saw the grant, and that nothing had arrived yet.
        let early = (round % 3 == 0).then(|| bed.grant(b"key", b"new"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut session = bed.session();
                begun.fetch_add(1, Ordering::Relaxed);
                session.delete(b"key").unwrap();
            });
            while begun.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            // By now it waits for the lock; if not, it sees the grant.
            std::thread::sleep(std::time::Duration::from_micros(300));
            let grant = early.unwrap_or_else(|| bed.grant(b"key", b"new"));
            bed.land(&grant, b"key", b"new");
            let reader = scope.spawn(|| {
                begun.fetch_add(1, Ordering::Relaxed);
                bed.session().get(b"key").unwrap()
            });
            while begun.load(Ordering::Relaxed) == 1 {
                std::thread::yield_now();
            }
            if round % 2 == 0 {
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
            let _ticket = holder.commit().unwrap();
            assert_eq!(reader.join().unwrap().unwrap(), b"new", "round {round}");
            bed.landing.release(grant.number).unwrap();
        });
        assert_eq!(
            holder.get(b"key").unwrap().unwrap(),
            b"new",
            "round {round}"
        );
    }
}

/// A remote client writes one key, and when that has landed a local one writes another: nobody may see the
/// second without the first. Other grants are looked at in between, so that there is time for both.
fn many_keys_are_one_moment(engine: EngineKind) {
    let bed = Bed::new(engine);
    let others: Vec<[u8; 2]> = (0..50).map(|number| [b'o', number]).collect();
    for key in &others {
        let _never_used = bed.grant(key, b"nothing");
    }
    // The earlier the bucket of the first key is, the more time there is.
    for pair in 0..4_u8 {
        let (first, second) = ([b'1', pair], [b'2', pair]);
        let keys: Vec<&[u8]> = [&first[..]]
            .into_iter()
            .chain(others.iter().map(|key| &key[..]))
            .chain([&second[..]])
            .collect();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut local = bed.session();
                for round in 1..=1000_u64 {
                    let grant = bed.put(&first, &word(round));
                    local.put(&second, &word(round)).unwrap();
                    bed.landing.release(grant.number).unwrap();
                }
                ended.store(true, Ordering::Relaxed);
            });
            let mut session = bed.session();
            let mut last = 0;
            while !ended.load(Ordering::Relaxed) {
                for way in 0..2 {
                    let seen = match way {
                        0 => at_once(&mut session, &keys),
                        _ => in_a_transaction(&mut session, &keys),
                    };
                    let [first, second] = seen;
                    assert!(
                        first == second || first == second + 1,
                        "{seen:?}, way {way}"
                    );
                    assert!(first >= last);
                    last = first;
                }
            }
        });
    }
}

fn number(value: &[u8]) -> u64 {
    value
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word))
}

/// The first and the last of some keys.
fn at_once(session: &mut Session, keys: &[&[u8]]) -> [u64; 2] {
    let (mut into, mut found) = (Vec::new(), Vec::new());
    let read = session.engine().get_many(keys, &mut into, &mut found);
    read.unwrap();
    let (_, end) = found[0];
    [number(&into[..end]), number(&into[end..])]
}

/// The same.
fn in_a_transaction(session: &mut Session, keys: &[&[u8]]) -> [u64; 2] {
    let mut seen = [0; 2];
    let read = session.transaction(Scope::Keys(keys), &mut |all| {
        for (seen, key) in seen.iter_mut().zip([keys[0], keys[keys.len() - 1]]) {
            let mut into = Vec::new();
            all.get(key, &mut into)?;
            *seen = number(&into);
        }
        Ok(())
    });
    read.unwrap();
    seen
}

/// All grants of as many keys as there are buckets: counts go up and down together.
#[test]
fn what_was_raised_is_lowered() {
    let mut options = options(EngineKind::Viper);
    options.landing_bytes = (BUCKETS as u64) << 12;
    let bed = Bed::of(&options);
    let mut granter = bed.landing.granter();
    for number in 0..BUCKETS as u64 {
        granter.prepare(&word(number), 8, 0).unwrap();
    }
    assert!(matches!(
        granter.prepare(b"more", 8, 0),
        Err(Error::NoSpace(_))
    ));
    let grants = granter.commit().unwrap();
    for (number, grant) in grants
        .iter()
        .enumerate()
        .filter(|(number, _)| number % 2 == 0)
    {
        bed.land(grant, &word(number as u64), &word(number as u64));
    }
    assert_eq!(bed.store.len(), BUCKETS as u64 / 2);
    let mut session = bed.session();
    let mut count = 0;
    session
        .scan(0, usize::MAX, &mut |_, _, _| count += 1)
        .unwrap();
    assert_eq!(count, BUCKETS / 2);
    assert_eq!(bed.landing.stats().grants, BUCKETS as u64 / 2);
    for grant in grants {
        bed.landing.release(grant.number).unwrap();
    }
    let stats = bed.landing.stats();
    assert_eq!((stats.grants, stats.pages_free), (0, BUCKETS as u64));
    assert!((0..BUCKETS).all(|bucket| bed.landing.table.is_bucket_quiet(bucket)));
}

/// A session with submitted writes completes arrivals of a key whose lock it holds.
#[test]
fn nobody_waits_for_itself() {
    let bed = Bed::new(EngineKind::Viper);
    let mut session = bed.session();
    let grant = bed.grant(b"key", b"remote");
    session.submit_put(b"key", b"local").unwrap();
    bed.land(&grant, b"key", b"remote");
    assert_eq!((bed.store.len(), bed.store.stats().keys), (1, 1));
    assert_eq!(session.get(b"key").unwrap().unwrap(), b"remote");
    assert_eq!(session.commit().unwrap(), Ticket::NONE);
    assert_eq!(session.get(b"key").unwrap().unwrap(), b"remote");
}

#[test]
fn clients_write_in_slots_only() {
    let bed = Bed::new(EngineKind::Viper);
    let slots = bed.landing.slots();
    assert_eq!(slots.end - slots.start, 256 << 10);
    for (at, bytes) in [
        (slots.start - 1, 1),
        (slots.end, 1),
        (slots.end - 1, 2),
        (0, 8),
        (u64::MAX, 2),
    ] {
        assert!(bed.landing.deliver(at, &vec![1; bytes]).is_err(), "{at}");
        assert!(bed.landing.persist(at, bytes as u64).is_err(), "{at}");
    }
    bed.landing.deliver(slots.end - 1, &[1]).unwrap();
    let landing = Arc::clone(&bed.landing);
    bed.store.close().unwrap();
    assert!(matches!(landing.arrived(0), Err(Error::Halted(_))));
}
