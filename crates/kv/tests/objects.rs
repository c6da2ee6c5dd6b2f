//! Objects: the calls of table 2 of DStore's paper, over every engine.

mod support;

use everdram::object::OpenHow;
use everdram::{EngineKind, Error};
use std::time::{Duration, Instant};
use support::{Bed, each_bed};

everdram::test_each_engine!(
    objects_are_opened_read_and_written,
    an_object_is_a_name,
    an_object_is_a_key,
);

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

fn writable() -> OpenHow {
    OpenHow::new().write(true)
}

fn objects_are_opened_read_and_written(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = bed.open();
        let mut bucket = store.bucket().unwrap();
        let missing = bucket.open(b"one", &OpenHow::new());
        assert!(matches!(missing, Err(Error::NoObject)), "{missing:?}");
        let missing = bucket.open(b"one", &writable().bytes(10));
        assert!(matches!(missing, Err(Error::NoObject)), "{missing:?}");
        let refused = bucket.open(b"one", &OpenHow::new().create(true));
        assert!(matches!(refused, Err(Error::Options(_))), "{refused:?}");
        let one = bucket
            .open(b"one", &writable().create(true).bytes(6000))
            .unwrap();
        assert_eq!((bucket.len(&one).unwrap(), one.name()), (6000, &b"one"[..]));
        bucket.write_at(&one, 4090, b"across the edge").unwrap();
        let mut found = [1; 20];
        assert_eq!(bucket.read_at(&one, 4088, &mut found).unwrap(), 20);
        assert_eq!(&found, b"\0\0across the edge\0\0\0");
        assert_eq!(bucket.read_at(&one, 5990, &mut found).unwrap(), 10);
        assert_eq!(bucket.read_at(&one, 6000, &mut found).unwrap(), 0);
        assert_eq!(bucket.append(&one, b"end").unwrap(), 6003);
        let reader = bucket.open(b"one", &OpenHow::new()).unwrap();
        let refused = bucket.write_at(&reader, 0, b"x");
        assert!(matches!(refused, Err(Error::ObjectReadOnly)), "{refused:?}");
        // It is there already, and long enough.
        let again = bucket
            .open(b"one", &writable().create(true).bytes(5))
            .unwrap();
        assert_eq!(bucket.len(&again).unwrap(), 6003);
        let exists = bucket.open(b"one", &writable().create_new(true).truncate(true));
        assert!(matches!(exists, Err(Error::ObjectExists)), "{exists:?}");
        assert_eq!(bucket.len(&again).unwrap(), 6003);
        bucket.set_len(&again, 4092).unwrap();
        drop(bucket);
        drop(store);
        let store = bed.open();
        let mut bucket = store.bucket().unwrap();
        let one = bucket.open(b"one", &OpenHow::new()).unwrap();
        assert_eq!(bucket.read_at(&one, 4086, &mut found).unwrap(), 6);
        assert_eq!(&found[..6], b"\0\0\0\0ac");
        let empty = bucket.open(b"one", &writable().truncate(true)).unwrap();
        assert!(bucket.is_empty(&empty).unwrap());
    });
}

fn an_object_is_a_name(engine: EngineKind) {
    let bed = Bed::emulated().of(engine);
    let store = bed.open();
    let mut bucket = store.bucket().unwrap();
    let object = bucket.open(b"one", &writable().create(true)).unwrap();
    bucket.write_at(&object, 0, b"old").unwrap();
    assert!(bucket.delete(b"one").unwrap());
    assert!(!bucket.delete(b"one").unwrap());
    let gone = bucket.read_at(&object, 0, &mut [0; 3]);
    assert!(matches!(gone, Err(Error::NoObject)), "{gone:?}");
    assert!(matches!(bucket.set_len(&object, 3), Err(Error::NoObject)));
    bucket.write_at(&object, 1, b"new").unwrap();
    let mut found = [1; 9];
    assert_eq!(bucket.read_at(&object, 0, &mut found).unwrap(), 4);
    assert_eq!(&found[..4], b"\0new");
}

fn an_object_is_a_key(engine: EngineKind) {
    let bed = Bed::emulated().of(engine);
    let store = bed.open();
    let mut bucket = store.bucket().unwrap();
    assert!(bucket.put(b"key", b"value").unwrap());
    let object = bucket.open(b"key", &writable()).unwrap();
    bucket.write_at(&object, 1, b"AL").unwrap();
    assert_eq!(bucket.get(b"key").unwrap().as_deref(), Some(&b"vALue"[..]));
    let mut session = store.session().unwrap();
    assert_eq!(session.get(b"key").unwrap().as_deref(), Some(&b"vALue"[..]));
}

/// Opening reads no value: an object may be longer than what is read at once.
#[test]
fn an_object_beyond_the_longest_value_is_opened() {
    let bed = Bed::emulated().of(EngineKind::Dstore);
    let store = bed.open();
    let mut bucket = store.bucket().unwrap();
    let long = 3 << 30;
    let object = bucket
        .open(b"long", &writable().create(true).bytes(long))
        .unwrap();
    bucket.write_at(&object, 5, b"five").unwrap();
    for how in [
        writable().create(true),
        writable().bytes(10),
        writable().bytes(long + 1),
    ] {
        bucket.open(b"long", &how).unwrap();
    }
    assert_eq!(bucket.len(&object).unwrap(), long + 1);
    let exists = bucket.open(b"long", &writable().create_new(true));
    assert!(matches!(exists, Err(Error::ObjectExists)), "{exists:?}");
    bucket
        .open(b"long", &writable().truncate(true).bytes(8))
        .unwrap();
    assert_eq!(bucket.get(b"long").unwrap(), Some(vec![0; 8]));
    let refused = bucket.open(b"long", &writable().bytes(1 << 41));
    assert!(matches!(refused, Err(Error::ValueLength(_))), "{refused:?}");
}

/// To lengthen an object takes nothing away that another bucket writes meanwhile.
#[test]
fn opening_loses_no_write_of_others() {
    let bed = Bed::emulated().of(EngineKind::Dstore);
    let store = bed.open();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bucket = store.bucket().unwrap();
            for _ in 0..4000 {
                bucket
                    .open(b"log", &writable().create(true).bytes(4096))
                    .unwrap();
            }
        });
        let mut bucket = store.bucket().unwrap();
        for round in 1..2000_u64 {
            let log = bucket
                .open(b"log", &writable().create(true).truncate(true))
                .unwrap();
            bucket.write_at(&log, 5000 + round, b"end").unwrap();
            let length = bucket.len(&log).unwrap();
            assert_eq!(length, 5003 + round, "a write was cut off");
        }
    });
}

#[test]
fn d9_a_lock_that_nobody_gives_back_ends() {
    let bed = Bed::emulated().of(EngineKind::Dstore);
    let store = bed.open();
    let (mut one, mut other) = (store.bucket().unwrap(), store.bucket().unwrap());
    let begun = Instant::now();
    let lock = one.lock(b"name", LONG, SHORT).unwrap();
    let busy = other.lock(b"name", Duration::ZERO, LONG);
    assert!(matches!(busy, Err(Error::ObjectLocked)), "{busy:?}");
    // A write waits for the end of the lease, and no longer.
    other.put(b"name", b"other").unwrap();
    assert!(begun.elapsed() >= SHORT && begun.elapsed() < LONG);
    // Its holder learns that at its next write, and does not overwrite what came meanwhile.
    let late = one.put(b"name", b"one");
    assert!(matches!(late, Err(Error::LeaseEnded)), "{late:?}");
    assert_eq!(one.get(b"name").unwrap().as_deref(), Some(&b"other"[..]));
    one.put(b"name", b"one").unwrap();
    // A lock that has ended gives back nobody else's.
    let theirs = other.lock(b"name", LONG, LONG).unwrap();
    one.unlock(lock);
    assert!(matches!(
        one.lock(b"name", SHORT, LONG),
        Err(Error::ObjectLocked)
    ));
    other.unlock(theirs);
    let lock = one.lock(b"name", LONG, LONG).unwrap();
    // Other names are free, and so is the name for its holder.
    other.put(b"another name", b"").unwrap();
    one.put(b"name", b"").unwrap();
    one.unlock(lock);
    // A bucket that is dropped gives back what it has.
    let _kept = one.lock(b"name", LONG, LONG).unwrap();
    drop(one);
    other.put(b"name", b"free").unwrap();
}

#[test]
fn d9_a_lock_does_not_fill_the_log() {
    let bed = Bed::emulated().of(EngineKind::Dstore);
    let store = bed.open();
    let mut bucket = store.bucket().unwrap();
    let used = || store.stats().own("log_used_bytes").unwrap();
    let before = used();
    let _held = bucket.lock(b"held", LONG, LONG).unwrap();
    for _ in 0..1000 {
        let lock = bucket.lock(b"name", LONG, LONG).unwrap();
        bucket.unlock(lock);
    }
    assert_eq!(used(), before);
    // Nor does a lock that is held keep the log from being reclaimed.
    for number in 0..20_000_u32 {
        bucket.put(&number.to_le_bytes(), b"value").unwrap();
    }
    assert!(store.stats().own("checkpoints").unwrap() > 0);
}

#[test]
fn d9_a_lock_is_gone_after_a_crash() {
    let bed = Bed::emulated().of(EngineKind::Dstore);
    let store = bed.open();
    let mut bucket = store.bucket().unwrap();
    bucket.put(b"name", b"value").unwrap();
    let _held = bucket.lock(b"name", LONG, LONG).unwrap();
    let frozen = support::frozen::Frozen::take_idle(&bed.path());
    drop((bucket, store));
    frozen.lay(&bed.path());
    let store = bed.open();
    let mut bucket = store.bucket().unwrap();
    let begun = Instant::now();
    bucket.put(b"name", b"new").unwrap();
    assert!(begun.elapsed() < LONG);
}

/// A lock is granted only when writes that began before have ended, and no write begins while it is held.
#[test]
fn whoever_has_the_lock_is_alone() {
    let bed = Bed::emulated().of(EngineKind::Dstore);
    let store = bed.open();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut bucket = store.bucket().unwrap();
                for _ in 0..300 {
                    // Read, and write: no update is lost while the lock is held.
                    let lock = bucket.lock(b"sum", LONG, LONG).unwrap();
                    let value = bucket.get(b"sum").unwrap().unwrap_or_else(|| vec![0; 8]);
                    let sum = u64::from_le_bytes(value.try_into().unwrap());
                    bucket.put(b"sum", &(sum + 1).to_le_bytes()).unwrap();
                    bucket.unlock(lock);
                }
            });
        }
    });
    let mut bucket = store.bucket().unwrap();
    let sum = bucket.get(b"sum").unwrap().unwrap();
    assert_eq!(u64::from_le_bytes(sum.try_into().unwrap()), 900);
}
