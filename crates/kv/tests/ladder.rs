//! The systems that papers compare: each rung of a ladder keeps what it acknowledged, and the bounds answer
//! right.

mod support;

use everdram::engine::BatchOp;
use everdram::options::{BulletSystem, Create, DstoreSystem};
use everdram::{EngineKind, Error, Options, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use support::contents::{Contents, assert_holds, contents};
use support::frozen::Frozen;
use support::{Bed, Counted, seed};

/// A system of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum System {
    Bullet(BulletSystem),
    Dstore(DstoreSystem),
}

use System::{Bullet, Dstore};

/// Those whose pools are ordinary, engine by engine.
const LADDERS: [&[System]; 2] = [
    &[
        Bullet(BulletSystem::Static),
        Bullet(BulletSystem::Lfr),
        Bullet(BulletSystem::Opt),
        Bullet(BulletSystem::Dyn),
        Bullet(BulletSystem::Wrc),
    ],
    &[
        Dstore(DstoreSystem::Physical),
        Dstore(DstoreSystem::Logical),
        Dstore(DstoreSystem::Dipper),
        Dstore(DstoreSystem::Oe),
        Dstore(DstoreSystem::Cow),
    ],
];
const BOUNDS: [System; 5] = [
    Bullet(BulletSystem::Volatile),
    Bullet(BulletSystem::Phash),
    Bullet(BulletSystem::HikvHt),
    Dstore(DstoreSystem::Volatile),
    Dstore(DstoreSystem::Inline),
];

impl System {
    fn bed(self) -> Bed {
        Bed::emulated().of(match self {
            Bullet(_) => EngineKind::Bullet,
            Dstore(_) => EngineKind::Dstore,
        })
    }

    fn set(self, options: &mut Options) {
        match self {
            Bullet(system) => options.bullet.system = system,
            Dstore(system) => options.dstore.system = system,
        }
        options.bullet.log_bytes = 16 << 10;
        options.dstore.log_bytes = 16 << 10;
        // Files are copied while the store is open: no background work may run.
        options.reclaim_background = false;
    }

    fn open(self, bed: &Bed) -> Store {
        bed.open_with(|options| self.set(options))
    }

    /// The one that pools that keep their data have if nothing is said.
    fn whole(self) -> System {
        match self {
            Bullet(_) => Bullet(BulletSystem::default()),
            Dstore(_) => Dstore(DstoreSystem::default()),
        }
    }
}

/// Puts, overwrites and removes keys that begin with `name`; between two requests it takes its turn, like a
/// worker.
fn work(store: &Store, name: u8, rounds: u32, random: &mut StdRng) -> Contents {
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    for round in 0..rounds {
        while session.turn().unwrap() {}
        let key = vec![name, random.random_range(0..60)];
        match random.random_range(0..6) {
            0 => {
                let was_there = session.delete(&key).unwrap();
                assert_eq!(was_there, model.remove(&key).is_some());
            }
            1 => assert_eq!(session.get(&key).unwrap().as_ref(), model.get(&key)),
            2 if model.contains_key(&key) => {
                session.append(&key, b"more").unwrap();
                model.entry(key).or_default().extend_from_slice(b"more");
            }
            _ => {
                let value = vec![round as u8; random.random_range(0..400)];
                session.put(&key, &value).unwrap();
                model.insert(key, value);
            }
        }
    }
    model
}

/// Two workers; returns their joint contents.
fn work_together(store: &Store, rounds: u32, random: &mut StdRng) -> Contents {
    let mut seeds = [random.random(), random.random()].map(StdRng::seed_from_u64);
    let done = AtomicU64::new(0);
    let (done, mut model) = (&done, Contents::new());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0u8..)
            .zip(&mut seeds)
            .map(|(name, random)| {
                scope.spawn(move || {
                    let _done = Counted(done);
                    work(store, name, rounds, random)
                })
            })
            .collect();
        for worker in workers {
            model.append(&mut worker.join().unwrap());
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 2);
    model
}

#[test]
fn every_rung_keeps_what_it_acknowledged() {
    let mut random = StdRng::seed_from_u64(seed());
    for ladder in LADDERS {
        for system in ladder {
            let bed = system.bed();
            let store = system.open(&bed);
            let model = work_together(&store, 6_000, &mut random);
            assert_holds(&store, &model, &format!("{system:?}"));
            bed.verify(&store);
            // As a kill leaves it, and opened as any other rung.
            let frozen = Frozen::take_idle(&bed.path());
            drop(store);
            frozen.lay(&bed.path());
            for next in ladder {
                let store = next.open(&bed);
                assert_holds(&store, &model, &format!("{system:?}, opened as {next:?}"));
                bed.verify(&store);
            }
        }
    }
}

/// Whatever moment of a run a kill comes at, what was answered by then is there: also in the middle of a
/// checkpoint, which copies pages while others are changed.
#[test]
fn every_rung_of_dstore_survives_kills_in_checkpoints() {
    let mut random = StdRng::seed_from_u64(seed());
    for system in LADDERS[1] {
        let bed = system.bed();
        let mut model = Contents::new();
        for round in 0..12 {
            let store = system.open(&bed);
            assert_holds(&store, &model, &format!("{system:?}, round {round}"));
            let mut session = store.session().unwrap();
            for _ in 0..random.random_range(0..400) {
                let key = vec![random.random_range(0..80u8)];
                let value = vec![random.random(); random.random_range(0..1200)];
                match random.random_range(0..4) {
                    0 => drop(session.delete(&key).unwrap().then(|| model.remove(&key))),
                    _ => {
                        session.put(&key, &value).unwrap();
                        model.insert(key, value);
                    }
                }
            }
            let frozen = Frozen::take_idle(&bed.path());
            drop((session, store));
            frozen.lay(&bed.path());
        }
    }
}

/// Checkpoints run beside the writer here, and copy pages while others are changed. There are many more keys
/// than the logs have records, so that most are in the shadow alone.
#[test]
fn every_rung_of_dstore_checkpoints_beside_its_writers() {
    let mut random = StdRng::seed_from_u64(seed());
    for system in LADDERS[1] {
        let bed = system.bed();
        let mut model = Contents::new();
        for round in 0..6 {
            let store = bed.open_with(|options| {
                system.set(options);
                options.reclaim_background = true;
            });
            assert_holds(&store, &model, &format!("{system:?}, round {round}"));
            bed.verify(&store);
            let mut session = store.session().unwrap();
            for _ in 0..6000 {
                let key = random.random_range(0..4000u16).to_le_bytes().to_vec();
                let value = vec![random.random(); random.random_range(0..100)];
                session.put(&key, &value).unwrap();
                model.insert(key, value);
            }
            // The one that is under way ends, and nothing is left to do.
            let count = || store.stats().own("checkpoints").unwrap();
            let mut before = 0;
            while std::mem::replace(&mut before, count()) != count() || before < 3 {
                std::thread::sleep(Duration::from_millis(100));
            }
            let frozen = Frozen::take_idle(&bed.path());
            drop((session, store));
            frozen.lay(&bed.path());
        }
    }
}

#[test]
fn the_bounds_answer_right() {
    let mut random = StdRng::seed_from_u64(seed());
    for system in BOUNDS {
        let bed = system.bed();
        let store = system.open(&bed);
        // An append reads, changes and writes here, like a put.
        let model = work_together(&store, 6_000, &mut random);
        let mut session = store.session().unwrap();
        assert_eq!(contents(&mut session).unwrap(), model, "{system:?}");
        assert_eq!(store.len(), model.len() as u64, "{system:?}");
    }
}

#[test]
fn a_bound_is_opened_once() {
    for system in BOUNDS {
        let bed = system.bed();
        drop(system.open(&bed));
        for next in [system, system.whole()] {
            let mut options = bed.options();
            options.create = Create::Never;
            next.set(&mut options);
            let refused = Store::open(bed.path(), &options).map(drop).unwrap_err();
            assert!(
                matches!(refused, Error::Options(_)),
                "{system:?}, opened as {next:?}: {refused}"
            );
        }
    }
    // A pool that keeps its data is never opened as one that does not.
    for ladder in LADDERS {
        let bed = ladder[0].bed();
        drop(bed.open());
        for system in BOUNDS {
            let mut options = bed.options();
            system.set(&mut options);
            let is_of_engine = system.whole() == ladder[0].whole();
            if is_of_engine {
                assert!(Store::open(bed.path(), &options).is_err(), "{system:?}");
            }
        }
    }
    // What does not fence cannot say on what its answers depend.
    let mut options = Bed::file().of(EngineKind::Dstore).options();
    let bed = Bed::file().of(EngineKind::Dstore);
    Dstore(DstoreSystem::Inline).set(&mut options);
    let refused = Store::open(bed.path(), &options).map(drop).unwrap_err();
    assert!(refused.to_string().contains("on memory"), "{refused}");
}

/// A batch waited forever for a log, in systems without logs.
#[test]
fn the_system_that_logs_nothing_has_batches() {
    for system in [
        Bullet(BulletSystem::Volatile),
        Dstore(DstoreSystem::Volatile),
        Dstore(DstoreSystem::Inline),
        Dstore(DstoreSystem::Physical),
        Dstore(DstoreSystem::Cow),
    ] {
        let bed = system.bed();
        let store = system.open(&bed);
        let (done, wait) = mpsc::channel();
        std::thread::spawn(move || {
            change_together(&store);
            done.send(()).unwrap();
        });
        wait.recv_timeout(Duration::from_secs(20)).unwrap();
    }
}

/// Batches, removing everything, transactions.
fn change_together(store: &Store) {
    let mut session = store.session().unwrap();
    let put = |key| BatchOp::Put {
        key,
        value: &b"value"[..],
        expires_at_ms: 0,
    };
    // Too long for an entry of a log.
    let names: Vec<[u8; 2]> = (0..500u16).map(u16::to_be_bytes).collect();
    let ops: Vec<BatchOp<'_>> = names.iter().map(|name| put(&name[..])).collect();
    session.batch(&ops).unwrap();
    assert_eq!(store.len(), 500);
    // Removed keys make room for new ones.
    let used = || {
        let stats = store.stats();
        let front = stats.own("front_used_bytes");
        front.or(stats.own("metadata_dram_bytes")).unwrap()
    };
    let room = used();
    let removals: Vec<BatchOp<'_>> = names
        .iter()
        .map(|name| BatchOp::Delete { key: &name[..] })
        .collect();
    for _ in 0..20 {
        session.batch(&removals).unwrap();
        assert_eq!(contents(&mut session).unwrap(), Contents::new());
        session.batch(&ops).unwrap();
        assert_eq!(contents(&mut session).unwrap().len(), 500);
    }
    let used = used();
    assert!(used < 4 * room, "{used} bytes in use, and {room} before");
    let (first, second) = (&names[0][..], &names[1][..]);
    let ops = [BatchOp::Delete { key: first }, put(b"new"), put(second)];
    session.batch(&ops).unwrap();
    assert_eq!(session.get(first).unwrap(), None);
    assert_eq!(contents(&mut session).unwrap().len(), 500);
    let nothing = [BatchOp::Delete { key: first }];
    session.batch(&nothing).unwrap();
    assert_eq!(store.len(), 500);
    let cleared = session.engine().clear().unwrap();
    session.wait(cleared).unwrap();
    assert_eq!(contents(&mut session).unwrap(), Contents::new());
    session.batch(&[put(b"one"), put(b"two")]).unwrap();
    let found = contents(&mut session).unwrap();
    assert_eq!((found.len(), store.len()), (2, 2));
}

/// On files a reader found a new key of `static` or `+lfr` in the back, where it is before its write is
/// committed, but did not learn what that depends on: the answer came before it was durable.
#[test]
fn what_is_seen_behind_the_front_says_what_it_depends_on() {
    for system in [BulletSystem::Static, BulletSystem::Lfr] {
        let bed = Bed::file().of(EngineKind::Bullet);
        // In a new pool no read reaches the back.
        let system = Bullet(system);
        system.open(&bed).close().unwrap();
        let store = system.open(&bed);
        let (mut writer, mut reader) = (store.session().unwrap(), store.session().unwrap());
        writer.submit_put(b"key", b"value").unwrap();
        let mut value = Vec::new();
        let found = reader.engine().get(b"key", &mut value).unwrap();
        let found = found.expect("it can be seen");
        assert_eq!(value, b"value");
        let written = writer.commit().unwrap();
        assert!(
            found.ticket >= written,
            "{system:?}: {found:?}, {written:?}"
        );
        writer.wait(written).unwrap();
    }
}
