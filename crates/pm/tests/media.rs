//! Which medium a pool is on, when it may change, and what the pool says about it.

#![allow(missing_docs)]
#![cfg(not(miri))]

use everdram_pm::{Durability, Error, Medium, MediumChoice, Pool, PoolOptions, ROOT_AT};
use std::path::Path;
use std::sync::Arc;

fn options(medium: Medium) -> PoolOptions {
    PoolOptions {
        medium: MediumChoice::Only(medium),
        max_bytes: 1 << 30,
        log_bytes: 8 << 20,
        engine: 7,
        geometry: [1, 2, 3, 4, 5, 6, 7, 8],
        ..PoolOptions::default()
    }
}

fn open(path: &Path, medium: Medium) -> Arc<Pool> {
    Pool::open(path, &options(medium)).unwrap()
}

/// One durable word.
fn put(pool: &Arc<Pool>, at: u64, word: u64) {
    let mut lane = pool.lane();
    let dirty = lane.store_word(at, word);
    let flushed = lane.flush(dirty);
    let ordered = lane.fence(flushed);
    pool.wait(ordered.lsn()).unwrap();
}

#[test]
fn a_medium_is_left_only_after_a_clean_close() {
    let directory = tempfile::tempdir().unwrap();
    let pool = open(directory.path(), Medium::Emulated);
    put(&pool, ROOT_AT, 5);
    drop(pool);
    let auto = PoolOptions {
        medium: MediumChoice::Auto,
        ..options(Medium::File)
    };
    assert!(
        matches!(
            Pool::open(directory.path(), &auto),
            Err(Error::Options { .. })
        ),
        "never by `auto`"
    );
    assert!(matches!(
        Pool::open(directory.path(), &options(Medium::File)),
        Err(Error::Options { .. })
    ));
    open(directory.path(), Medium::Emulated).close().unwrap();
    assert!(
        matches!(
            Pool::open(directory.path(), &auto),
            Err(Error::Options { .. })
        ),
        "never by `auto`"
    );

    let pool = open(directory.path(), Medium::File);
    assert_eq!(pool.region().load_word(ROOT_AT), 5);
    put(&pool, ROOT_AT, 6);
    drop(pool);
    assert!(matches!(
        Pool::open(directory.path(), &options(Medium::Emulated)),
        Err(Error::Options { .. })
    ));
    let pool = Pool::open(directory.path(), &auto).unwrap();
    assert_eq!(
        (pool.medium(), pool.region().load_word(ROOT_AT)),
        (Medium::File, 6)
    );
    pool.close().unwrap();
    drop(pool);
    assert_eq!(
        open(directory.path(), Medium::Emulated)
            .region()
            .load_word(ROOT_AT),
        6
    );
}

#[test]
fn persistent_memory_is_refused_where_there_is_none() {
    let directory = tempfile::tempdir().unwrap();
    if everdram_pm::probe(directory.path()).unwrap().medium == Medium::Pmem {
        eprintln!("skipped: this machine has persistent memory");
        return;
    }
    let path = directory.path().join("pool");
    let refused = Pool::open(&path, &options(Medium::Pmem));
    assert!(
        matches!(&refused, Err(Error::Options { what, .. }) if what.contains("MAP_SYNC")),
        "{refused:?}"
    );
    let auto = PoolOptions {
        medium: MediumChoice::Auto,
        ..options(Medium::File)
    };
    assert_eq!(Pool::open(&path, &auto).unwrap().medium(), Medium::File);
}

#[test]
fn reports_say_what_an_acknowledgement_means() {
    let directory = tempfile::tempdir().unwrap();
    let emulated = PoolOptions {
        delay: Some("optane".into()),
        ..options(Medium::Emulated)
    };
    let pool = Pool::open(&directory.path().join("e"), &emulated).unwrap();
    let report = pool.report();
    assert_eq!(report.medium, Medium::Emulated);
    assert!(report.delay.is_some_and(|delay| delay.contains("optane")));
    assert!(
        report.acknowledgement.contains("nothing more"),
        "{}",
        report.acknowledgement
    );
    assert!(report.latency.as_nanos() >= 100, "{:?}", report.latency);

    for durability in [Durability::Always, Durability::EverySec, Durability::None] {
        let file = PoolOptions {
            durability,
            ..options(Medium::File)
        };
        let pool = Pool::open(&directory.path().join(durability.to_string()), &file).unwrap();
        let report = pool.report();
        assert_eq!(report.durability, durability);
        let strong = report.acknowledgement.contains("survives a");
        assert_eq!(
            strong,
            durability == Durability::Always,
            "{}",
            report.acknowledgement
        );
        assert!(
            report.latency.as_nanos() > 0 && report.why.contains("MAP_SYNC"),
            "{report:?}"
        );
    }
    let floppy = PoolOptions {
        delay: Some("floppy".into()),
        ..options(Medium::Emulated)
    };
    assert!(matches!(
        Pool::open(directory.path(), &floppy),
        Err(Error::Options { .. })
    ));
    let delayed_file = PoolOptions {
        delay: Some("optane".into()),
        ..options(Medium::File)
    };
    assert!(matches!(
        Pool::open(directory.path(), &delayed_file),
        Err(Error::Options { .. })
    ));
}
