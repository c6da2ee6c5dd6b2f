//! Which medium a pool is on, when it may change, and what the pool reports.

#![allow(missing_docs)]
#![cfg(not(miri))]

mod common;

use common::{open, options, put};
use everdram_pm::{DATA_AT, Durability, Error, Medium, MediumChoice, Pool, PoolOptions, ROOT_AT};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// A place for a pool on persistent memory. A device has room for one pool, so tests take turns.
struct Ground {
    path: PathBuf,
    is_device: bool,
    _directory: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());

/// The place in EVERDRAM_TEST_PMEM: a directory on a DAX file system, or a devdax device, which is erased.
fn persistent_memory() -> Option<Ground> {
    let Some(place) = std::env::var_os("EVERDRAM_TEST_PMEM").map(PathBuf::from) else {
        eprintln!("skipped: EVERDRAM_TEST_PMEM names no persistent memory");
        return None;
    };
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_device = !place.is_dir();
    let directory = if is_device {
        everdram_pm::erase(&place).unwrap();
        tempfile::tempdir().unwrap()
    } else {
        tempfile::tempdir_in(&place).unwrap()
    };
    Some(Ground {
        path: if is_device {
            place
        } else {
            directory.path().join("pool")
        },
        is_device,
        _directory: directory,
        _turn: turn,
    })
}

fn automatic() -> PoolOptions {
    PoolOptions {
        medium: MediumChoice::Auto,
        ..options(Medium::Pmem)
    }
}

#[test]
fn persistent_memory_is_taken_by_itself_and_says_what_it_promises() {
    let Some(ground) = persistent_memory() else {
        return;
    };
    let pool = Pool::open(&ground.path, &automatic()).unwrap();
    let report = pool.report();
    println!("{report:?}");
    assert_eq!((report.medium, pool.medium()), (Medium::Pmem, Medium::Pmem));
    assert_eq!(report.durability, Durability::Always);
    assert!(report.acknowledgement.contains("survives a power loss"));
    let why = if ground.is_device {
        "devdax"
    } else {
        "MAP_SYNC granted"
    };
    assert!(report.why.contains(why), "{}", report.why);
    assert!(report.persist.contains("fence"), "{}", report.persist);
    assert!(report.latency.as_nanos() > 0);
}

#[test]
fn persistent_memory_keeps_what_was_fenced_without_a_close() {
    let Some(ground) = persistent_memory() else {
        return;
    };
    let mut extents = Vec::new();
    for round in 1..=4u64 {
        let pool = Pool::open(&ground.path, &automatic()).unwrap();
        assert_eq!(pool.medium(), Medium::Pmem);
        assert_eq!(pool.was_created(), round == 1);
        for (at, word) in &extents {
            assert_eq!(pool.region().load_word(*at), *word, "round {round}");
        }
        let extent = pool.allocate(3, 1 << 20, 1 << 20).unwrap();
        pool.prefault(extent.at, extent.bytes);
        let all = (extent.at..extent.at + extent.bytes).step_by(8);
        assert!(
            all.clone().all(|at| pool.region().load_word(at) == 0),
            "round {round}"
        );
        for at in [extent.at, extent.at + extent.bytes - 8] {
            put(&pool, at, round);
            extents.push((at, round));
        }
        drop(pool);
        // A view changes nothing, and shows the same.
        let view = Pool::open(
            &ground.path,
            &PoolOptions {
                read_only: true,
                ..automatic()
            },
        )
        .unwrap();
        for (at, word) in &extents {
            assert_eq!(
                view.region().load_word(*at),
                *word,
                "a view in round {round}"
            );
        }
    }
}

/// A pool on a devdax device released its lock as soon as it was open, so that a second server could open,
/// and ruin, the same pool: the mapping stayed, but nothing kept the open device.
#[test]
fn persistent_memory_has_one_owner() {
    let Some(ground) = persistent_memory() else {
        return;
    };
    let pool = Pool::open(&ground.path, &automatic()).unwrap();
    let locked = |options| {
        matches!(
            Pool::open(&ground.path, &options),
            Err(Error::Locked { .. })
        )
    };
    assert!(locked(automatic()));
    assert!(locked(PoolOptions {
        read_only: true,
        ..automatic()
    }));
    if ground.is_device {
        assert!(matches!(
            everdram_pm::erase(&ground.path),
            Err(Error::Locked { .. })
        ));
    }
    pool.close().unwrap();
    drop(pool);
    assert!(Pool::open(&ground.path, &automatic()).unwrap().was_clean());
}

/// `Pool::inspect` refused every devdax device, because none supports `read`. So did `everdram inspect`,
/// which promises to accept one. A device can be mapped, even while it is open elsewhere.
#[test]
fn persistent_memory_can_be_inspected() {
    let Some(ground) = persistent_memory() else {
        return;
    };
    let nothing = Pool::inspect(&ground.path);
    assert!(
        matches!(
            nothing,
            Err(Error::NotAPool { .. } | Error::NotFound { .. })
        ),
        "{nothing:?}"
    );
    let pool = Pool::open(&ground.path, &automatic()).unwrap();
    pool.allocate(3, 1 << 20, 4096).unwrap();
    let info = Pool::inspect(&ground.path).unwrap();
    assert_eq!(
        (info.medium, info.open, info.clean),
        (Medium::Pmem, true, false)
    );
    assert_eq!(info.extents.len(), 1);
    pool.close().unwrap();
    drop(pool);
    let info = Pool::inspect(&ground.path).unwrap();
    assert_eq!((info.open, info.clean), (false, true));
}

#[test]
fn a_device_is_full_at_its_end_and_blank_after_it_was_erased() {
    let Some(ground) = persistent_memory().filter(|ground| ground.is_device) else {
        return;
    };
    let pool = Pool::open(&ground.path, &automatic()).unwrap();
    let mut last = DATA_AT;
    let full = loop {
        match pool.allocate(1, 16 << 20, 4096) {
            Ok(extent) => last = extent.at + extent.bytes,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::NoSpace { .. }), "{full}");
    put(&pool, last - 8, 7);
    put(&pool, DATA_AT, 7);
    drop(pool);
    assert!(matches!(
        Pool::open(
            &ground.path,
            &PoolOptions {
                open: false,
                ..automatic()
            }
        ),
        Err(Error::Exists { .. })
    ));

    everdram_pm::erase(&ground.path).unwrap();
    let never = PoolOptions {
        create: false,
        ..automatic()
    };
    assert!(matches!(
        Pool::open(&ground.path, &never),
        Err(Error::NotAPool { .. })
    ));
    let pool = Pool::open(&ground.path, &automatic()).unwrap();
    assert!(pool.was_created());
    let extent = pool.allocate(1, 16 << 20, 4096).unwrap();
    assert_eq!(extent.at, DATA_AT);
    assert_eq!(
        pool.region().load_word(DATA_AT),
        0,
        "what was there before is not shown"
    );
}

#[test]
fn a_device_is_never_another_medium() {
    let Some(ground) = persistent_memory().filter(|ground| ground.is_device) else {
        return;
    };
    Pool::open(&ground.path, &automatic())
        .unwrap()
        .close()
        .unwrap();
    for medium in [Medium::File, Medium::Emulated] {
        let refused = Pool::open(&ground.path, &options(medium));
        assert!(
            matches!(refused, Err(Error::Options { .. })),
            "{medium}: {refused:?}"
        );
    }
    assert_eq!(
        Pool::open(&ground.path, &automatic()).unwrap().medium(),
        Medium::Pmem
    );
}

#[test]
fn a_dax_file_changes_its_medium_after_a_clean_close() {
    let Some(ground) = persistent_memory().filter(|ground| !ground.is_device) else {
        return;
    };
    let media = [
        Medium::Pmem,
        Medium::File,
        Medium::Pmem,
        Medium::Emulated,
        Medium::Pmem,
    ];
    for (round, medium) in media.into_iter().enumerate() {
        let pool = open(&ground.path, medium);
        assert_eq!(pool.region().load_word(ROOT_AT), round as u64, "{medium}");
        put(&pool, ROOT_AT, round as u64 + 1);
        pool.close().unwrap();
    }
}
