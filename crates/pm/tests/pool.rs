//! The promises of a pool on the media that every machine has: `file`, `emulated`, heap.

#![allow(missing_docs)]
#![cfg(not(miri))]

mod common;

use common::{open, options, put};
use everdram_pm::{DATA_AT, Error, Extent, Medium, Pool, PoolOptions, ROOT_AT, ROOT_BYTES};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const MEDIA: [Medium; 2] = [Medium::File, Medium::Emulated];

#[test]
fn a_new_pool_is_empty_and_comes_back() {
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let pool = open(&path, medium);
        assert!(pool.was_created() && !pool.was_clean());
        assert_eq!(
            (pool.engine(), pool.geometry()),
            (7, [1, 2, 3, 4, 5, 6, 7, 8])
        );
        assert_eq!(pool.region().len(), DATA_AT);
        assert!((0..ROOT_BYTES / 8).all(|word| pool.region().load_word(ROOT_AT + word * 8) == 0));
        let sum = pool.secret().sum(b"key");
        put(&pool, ROOT_AT, 4711);
        pool.close().unwrap();
        drop(pool);

        let other = PoolOptions {
            engine: 9,
            geometry: [0; 8],
            ..options(medium)
        };
        let pool = Pool::open(&path, &other).unwrap();
        assert!(!pool.was_created() && pool.was_clean());
        assert_eq!(
            (pool.engine(), pool.geometry()),
            (7, [1, 2, 3, 4, 5, 6, 7, 8]),
            "the pool knows better"
        );
        assert_eq!(pool.secret().sum(b"key"), sum);
        assert_eq!(pool.region().load_word(ROOT_AT), 4711, "{medium}");
    }
}

/// A refused pool keeps its incarnation, and is as cleanly closed as before.
#[test]
fn a_pool_of_another_engine_is_refused_untouched() {
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let asking = |engines: &[u32]| PoolOptions {
            engines: engines.to_vec(),
            ..options(medium)
        };
        open(&path, medium).close().unwrap();
        let before = fs::read(path.join("image")).unwrap();
        for read_only in [false, true] {
            let asked = PoolOptions {
                read_only,
                ..asking(&[1, 9])
            };
            let refused = Pool::open(&path, &asked).map(|_| ()).unwrap_err();
            assert!(
                matches!(refused, Error::Engine { engine: 7, .. }),
                "{medium}: {refused}"
            );
            assert!(before == fs::read(path.join("image")).unwrap());
        }
        assert!(Pool::open(&path, &asking(&[1, 7])).unwrap().was_clean());
    }
}

#[test]
fn a_dropped_pool_is_a_crash_that_loses_nothing_durable() {
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let pool = open(directory.path(), medium);
        let extent = pool.allocate(1, 1 << 20, 4096).unwrap();
        for word in 0..1000 {
            put(&pool, extent.at + word * 8, word ^ 0x5555);
        }
        drop(pool);
        let pool = open(directory.path(), medium);
        assert!(!pool.was_clean());
        for word in 0..1000 {
            assert_eq!(
                pool.region().load_word(extent.at + word * 8),
                word ^ 0x5555,
                "{medium}, word {word}"
            );
        }
    }
}

#[test]
fn files_are_private_and_the_directory_is_ours() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a/b");
    drop(open(&path, Medium::File));
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o700
    );
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o707)).unwrap();
    assert!(matches!(
        Pool::open(&path, &options(Medium::File)),
        Err(Error::Options { .. })
    ));
}

#[test]
fn links_are_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (real, fake) = (directory.path().join("real"), directory.path().join("fake"));
    open(&real, Medium::Emulated).close().unwrap();
    fs::create_dir(&fake).unwrap();
    std::os::unix::fs::symlink(real.join("image"), fake.join("image")).unwrap();
    let opened = Pool::open(&fake, &options(Medium::Emulated));
    assert!(matches!(opened, Err(Error::NotAPool { .. })), "{opened:?}");
    assert!(Pool::inspect(&fake).is_err());
}

#[test]
fn create_and_open_are_kept_apart() {
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let never = PoolOptions {
            create: false,
            ..options(medium)
        };
        assert!(matches!(
            Pool::open(&path, &never),
            Err(Error::NotFound { .. })
        ));
        assert!(!path.exists());
        open(&path, medium).close().unwrap();
        let new = PoolOptions {
            open: false,
            ..options(medium)
        };
        assert!(matches!(Pool::open(&path, &new), Err(Error::Exists { .. })));
        assert!(Pool::open(&path, &never).is_ok());
    }
}

#[test]
fn a_second_open_is_refused_in_the_same_process() {
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let first = open(directory.path(), medium);
        let second = Pool::open(directory.path(), &options(medium));
        assert!(matches!(second, Err(Error::Locked { .. })), "{second:?}");
        let seen = Pool::inspect(directory.path()).unwrap();
        assert!(seen.open && !seen.clean);
        put(&first, ROOT_AT, 1);
        drop(first);
        open(directory.path(), medium);
    }
}

/// Runs in a child process: opens the pool named by the environment, reports it, and waits to be killed.
#[test]
#[ignore = "the other process of `a_pool_is_locked_by_another_process_until_that_dies`"]
fn hold_a_pool_open() {
    let Some(path) = std::env::var_os("EVERDRAM_TEST_HOLD") else {
        return;
    };
    let pool = open(Path::new(&path), Medium::File);
    put(&pool, ROOT_AT, 99);
    fs::write(Path::new(&path).join("held"), b"").unwrap();
    // The parent holds the other end and never writes: this returns when the parent has died.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_pool_is_locked_by_another_process_until_that_dies() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["hold_a_pool_open", "--exact", "--ignored", "--nocapture"])
        .env("EVERDRAM_TEST_HOLD", directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !directory.path().join("held").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the child ended early");
        std::thread::yield_now();
    }
    let second = Pool::open(directory.path(), &options(Medium::File));
    assert!(matches!(second, Err(Error::Locked { .. })), "{second:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    let pool = open(directory.path(), Medium::File);
    assert_eq!(
        pool.region().load_word(ROOT_AT),
        99,
        "acknowledged before the kill"
    );
}

#[test]
fn growth_is_there_after_a_crash() {
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let pool = open(directory.path(), medium);
        let first = pool.allocate(1, 24 * 4096, 24 * 4096).unwrap();
        let second = pool.allocate(1, 24 * 4096, 24 * 4096).unwrap();
        let third = pool.allocate(2, 4096, 1).unwrap();
        assert!(first.at.is_multiple_of(24 * 4096) && first.at >= DATA_AT);
        assert_eq!(second.at, first.at + first.bytes);
        let merged = vec![Extent {
            owner: 1,
            at: first.at,
            bytes: 48 * 4096,
        }];
        assert_eq!(
            (pool.extents(1), pool.extents(2)),
            (merged.clone(), vec![third])
        );
        for at in [first.at, second.at, third.at] {
            assert!((0..512).all(|word| pool.region().load_word(at + word * 8) == 0));
            pool.prefault(at, 4096);
            put(&pool, at, at);
        }
        let end = pool.region().len();
        drop(pool);
        // A crash in the next growth would leave this: a file that is too long.
        let image = directory.path().join("image");
        fs::OpenOptions::new()
            .append(true)
            .open(&image)
            .and_then(|mut file| {
                use std::io::Write;
                file.write_all(&[0xee; 8192])
            })
            .unwrap();
        let pool = open(directory.path(), medium);
        assert_eq!(pool.region().len(), end);
        assert_eq!((pool.extents(1), pool.extents(2)), (merged, vec![third]));
        assert!(
            [first.at, second.at, third.at]
                .iter()
                .all(|at| pool.region().load_word(*at) == *at)
        );
        let fourth = pool.allocate(3, 8192, 4096).unwrap();
        assert_eq!(fourth.at, end);
        assert!(
            (0..1024).all(|word| pool.region().load_word(fourth.at + word * 8) == 0),
            "{medium}"
        );
    }
}

#[test]
fn readers_and_writers_go_on_while_the_pool_grows() {
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let pool = open(directory.path(), medium);
        let extent = pool.allocate(1, 4096, 4096).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut lane = pool.lane();
                let mut count = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    count += 1;
                    let dirty = lane.store_word(extent.at, count);
                    let flushed = lane.flush(dirty);
                    let _ordered = lane.fence(flushed);
                    assert_eq!(pool.region().load_word(extent.at), count);
                }
            });
            let allocated: Vec<_> = (0..20)
                .map(|index| pool.allocate(index, 1 << 20, 4096).unwrap())
                .collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(
                allocated
                    .windows(2)
                    .all(|pair| pair[0].at + pair[0].bytes == pair[1].at)
            );
        });
    }
}

#[test]
fn a_pool_has_limits_and_names_them() {
    let directory = tempfile::tempdir().unwrap();
    let small = PoolOptions {
        max_bytes: 1 << 20,
        ..options(Medium::Emulated)
    };
    let pool = Pool::open(directory.path(), &small).unwrap();
    let before = pool.region().len();
    assert!(matches!(
        pool.allocate(1, 2 << 20, 4096),
        Err(Error::NoSpace { .. })
    ));
    assert!(matches!(
        pool.allocate(1, u64::MAX / 4096 * 4096, 4096),
        Err(Error::NoSpace { .. })
    ));
    for (bytes, align) in [(0, 4096), (100, 4096), (4096, 0), (4096, 5000)] {
        assert!(
            matches!(pool.allocate(1, bytes, align), Err(Error::Options { .. })),
            "{bytes} {align}"
        );
    }
    assert_eq!(pool.region().len(), before);
    assert!(pool.healthy().is_ok());
    assert!(pool.allocate(1, 4096, 4096).is_ok());
}

/// A tmpfs of a few megabytes, unmounted on drop.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(bytes: u64) -> Option<SmallDisk> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(directory.path())
            .stderr(Stdio::null())
            .status();
        mounted
            .is_ok_and(|status| status.success())
            .then_some(SmallDisk(directory))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_refuses_growth_and_changes_nothing() {
    let Some(disk) = SmallDisk::mount(24 << 20) else {
        eprintln!("skipped: mounting a small tmpfs needs root");
        return;
    };
    for medium in MEDIA {
        let path = disk.0.path().join(medium.to_string());
        let pool = Pool::open(
            &path,
            &PoolOptions {
                log_bytes: 8 << 20,
                ..options(medium)
            },
        )
        .unwrap();
        let extent = pool.allocate(1, 1 << 20, 4096).unwrap();
        put(&pool, extent.at, 1);
        let (len, file) = (
            pool.region().len(),
            fs::metadata(path.join("image")).unwrap().len(),
        );
        let refused = pool.allocate(1, 64 << 20, 4096);
        assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
        assert_eq!((pool.region().len(), pool.extents(1)), (len, vec![extent]));
        assert_eq!(fs::metadata(path.join("image")).unwrap().len(), file);
        put(&pool, extent.at, 2);
        assert!(pool.allocate(1, 4096, 4096).is_ok(), "what fits still fits");
        drop(pool);
        let pool = open(&path, medium);
        assert_eq!(pool.region().load_word(extent.at), 2);
        drop(pool);
        fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn inspection_tells_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(
        Pool::inspect(&directory.path().join("none")),
        Err(Error::NotFound { .. })
    ));
    let pool = open(directory.path(), Medium::File);
    let extent = pool.allocate(3, 8192, 4096).unwrap();
    pool.close().unwrap();
    drop(pool);
    let image = directory.path().join("image");
    let before = fs::read(&image).unwrap();
    let info = Pool::inspect(directory.path()).unwrap();
    assert!(
        info.clean && !info.open && info.notes.is_empty(),
        "{info:?}"
    );
    assert_eq!((info.engine, info.extents), (7, vec![extent]));
    assert!(
        info.fields
            .iter()
            .any(|(name, value)| *name == "geometry 7" && value == "8")
    );
    assert_eq!(fs::read(&image).unwrap(), before);
}

#[test]
fn random_and_truncated_images_are_refused_or_whole() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        let pool = open(directory.path(), medium);
        let extent = pool.allocate(1, 64 << 10, 4096).unwrap();
        put(&pool, extent.at, 77);
        pool.close().unwrap();
        drop(pool);
        let whole = fs::read(&image).unwrap();
        for _ in 0..40 {
            let length = random.random_range(0..whole.len());
            fs::write(&image, &whole[..length]).unwrap();
            let opened = Pool::open(directory.path(), &options(medium));
            assert!(
                opened.is_err(),
                "{medium}: {length} of {} bytes",
                whole.len()
            );
            assert_eq!(
                fs::read(&image).unwrap(),
                &whole[..length],
                "left untouched"
            );
        }
        for _ in 0..40 {
            let mut noise = vec![0; random.random_range(0..100_000)];
            random.fill_bytes(&mut noise);
            fs::write(&image, &noise).unwrap();
            assert!(Pool::open(directory.path(), &options(medium)).is_err());
            assert!(Pool::inspect(directory.path()).is_err());
            assert_eq!(fs::read(&image).unwrap(), noise, "left untouched");
        }
        fs::write(&image, &whole).unwrap();
        assert_eq!(
            open(directory.path(), medium).region().load_word(extent.at),
            77
        );
    }
}

/// Room that was given back reads as zeros and occupies nothing, until it is taken back and stored to.
#[test]
fn room_goes_back_and_comes_again() {
    let dir = tempfile::TempDir::new_in("/dev/shm").unwrap();
    let pool = open(&dir.path().join("pool"), Medium::Emulated);
    assert!(pool.gives_back());
    let extent = pool.allocate(1, 1 << 20, 4096).unwrap();
    let (at, bytes) = (extent.at + 4096, 64 << 10);
    let mut lane = pool.lane();
    let dirty = lane.store(extent.at, &vec![7; 1 << 20]);
    let flushed = lane.flush(dirty);
    let _ = lane.fence(flushed);
    let full = pool.backed_bytes();
    assert!(pool.give_back(at, bytes).unwrap());
    assert_eq!(pool.backed_bytes(), full - bytes);
    pool.take_back(&[(at, bytes)]).unwrap();
    assert_eq!(pool.backed_bytes(), full, "only a store gave it room");
    let word = |at| pool.region().load_word(at);
    let seven = u64::from_le_bytes([7; 8]);
    assert_eq!(
        (word(at - 8), word(at), word(at + bytes)),
        (seven, 0, seven)
    );
}

/// Opening does not touch memory that a pool allocated and never wrote; missing parts are allocated again.
#[test]
fn opening_writes_to_no_memory_that_was_reserved() {
    use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek, statfs};
    if !statfs("/dev/shm").is_ok_and(|stat| stat.f_type as u64 == 0x0102_1994) {
        eprintln!("skipped: no tmpfs at /dev/shm");
        return;
    }
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("pool");
    let pool = open(&path, Medium::Emulated);
    let extent = pool.allocate(1, 16 << 20, 4096).unwrap();
    pool.close().unwrap();
    drop(pool);
    let image = fs::File::open(path.join("image")).unwrap();
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&image.metadata().unwrap());
    let reserved = blocks();
    assert!(reserved * 512 >= extent.at + extent.bytes);
    let reopen = || drop(open(&path, Medium::Emulated));
    reopen();
    let untouched = seek(&image, SeekFrom::Hole(extent.at)).unwrap();
    assert!(untouched < extent.at + extent.bytes, "{untouched}");
    // A copy of the pool may have left it out.
    let writable = fs::File::options()
        .write(true)
        .open(path.join("image"))
        .unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&writable, flags, extent.at + 4096, 1 << 20).unwrap();
    assert!(blocks() < reserved);
    reopen();
    assert_eq!(blocks(), reserved);
}
