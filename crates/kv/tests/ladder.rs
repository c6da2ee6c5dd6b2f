//! The systems that Bullet is measured against: each rung of the ladder keeps what it acknowledged, and the
//! bounds answer right.

mod support;

use everdram::engine::BatchOp;
use everdram::options::{BulletSystem, Create};
use everdram::{EngineKind, Error, Options, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use support::contents::{Contents, assert_holds, contents};
use support::frozen::Frozen;
use support::{Bed, Counted, seed};

const KEPT: [BulletSystem; 5] = [
    BulletSystem::Static,
    BulletSystem::Lfr,
    BulletSystem::Opt,
    BulletSystem::Dyn,
    BulletSystem::Wrc,
];
const BOUNDS: [BulletSystem; 3] = [
    BulletSystem::Volatile,
    BulletSystem::Phash,
    BulletSystem::HikvHt,
];

fn bed() -> Bed {
    Bed::emulated().of(EngineKind::Bullet)
}

fn of(system: BulletSystem) -> impl Fn(&mut Options) {
    move |options| {
        options.bullet.system = system;
        options.bullet.log_bytes = 16 << 10;
        // Files are copied while the store is open: no background work may run.
        options.reclaim_background = false;
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
    for system in KEPT {
        let bed = bed();
        let store = bed.open_with(of(system));
        let model = work_together(&store, 6_000, &mut random);
        assert_holds(&store, &model, system.name());
        bed.verify(&store);
        // As a kill leaves it, and opened as any other rung.
        let frozen = Frozen::take(&bed.path());
        drop(store);
        frozen.lay(&bed.path());
        for next in KEPT {
            let store = bed.open_with(of(next));
            assert_holds(&store, &model, &format!("{system}, opened as {next}"));
            bed.verify(&store);
        }
    }
}

#[test]
fn the_bounds_answer_right() {
    let mut random = StdRng::seed_from_u64(seed());
    for system in BOUNDS {
        let bed = bed();
        let store = bed.open_with(of(system));
        // An append reads, changes and writes here, like a put.
        let model = work_together(&store, 6_000, &mut random);
        let mut session = store.session().unwrap();
        assert_eq!(contents(&mut session).unwrap(), model, "{system}");
        assert_eq!(store.len(), model.len() as u64, "{system}");
    }
}

#[test]
fn a_bound_is_opened_once() {
    for system in BOUNDS {
        let bed = bed();
        let store = bed.open_with(of(system));
        drop(store);
        for next in [system, BulletSystem::Wrc] {
            let mut options = bed.options();
            options.create = Create::Never;
            of(next)(&mut options);
            let refused = Store::open(bed.path(), &options).map(drop).unwrap_err();
            assert!(
                matches!(refused, Error::Options(_)),
                "{system}, opened as {next}: {refused}"
            );
        }
    }
    // A pool that keeps its data is never opened as one that does not.
    let bed = bed();
    drop(bed.open());
    for system in BOUNDS {
        let mut options = bed.options();
        of(system)(&mut options);
        assert!(Store::open(bed.path(), &options).is_err(), "{system}");
    }
}

/// A batch waited forever for a log, in systems without logs.
#[test]
fn the_system_that_logs_nothing_has_batches() {
    let bed = bed();
    let store = bed.open_with(of(BulletSystem::Volatile));
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        change_together(&store);
        done.send(()).unwrap();
    });
    wait.recv_timeout(Duration::from_secs(20)).unwrap();
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
    let room = store.stats().own("front_used_bytes").unwrap();
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
    let used = store.stats().own("front_used_bytes").unwrap();
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
        bed.open_with(of(system)).close().unwrap();
        let store = bed.open_with(of(system));
        let (mut writer, mut reader) = (store.session().unwrap(), store.session().unwrap());
        writer.submit_put(b"key", b"value").unwrap();
        let mut value = Vec::new();
        let found = reader.engine().get(b"key", &mut value).unwrap();
        let found = found.expect("it can be seen");
        assert_eq!(value, b"value");
        let written = writer.commit().unwrap();
        assert!(found.ticket >= written, "{system}: {found:?}, {written:?}");
        writer.wait(written).unwrap();
    }
}
