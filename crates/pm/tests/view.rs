//! A read-only pool shows what a normal open would recover, and does not change on the medium.

#![allow(missing_docs)]
#![cfg(not(miri))]

mod common;

use common::{open, options, put};
use everdram_pm::{Error, Lsn, Medium, MediumChoice, Pool, PoolOptions, ROOT_AT};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::SystemTime;

const MEDIA: [Medium; 2] = [Medium::File, Medium::Emulated];
const BLOCK: usize = 4096;
const WORDS: u64 = 300;

/// Everything that could create, convert or repair is on: `read_only` alone must prevent it.
fn view_options() -> PoolOptions {
    PoolOptions {
        read_only: true,
        medium: MediumChoice::Auto,
        ..options(Medium::File)
    }
}

/// A pool with an extent and some words, dropped; many of the words are in the log only. Returns the extent.
fn prepare(path: &Path, medium: Medium) -> u64 {
    let pool = open(path, medium);
    let extent = pool.allocate(1, 1 << 20, 4096).unwrap();
    for word in 0..WORDS {
        put(&pool, extent.at + word * 8, word + 1);
        if word == WORDS / 3 {
            pool.checkpoint().unwrap();
        }
    }
    extent.at
}

/// Name, contents, time of change and length of every file, and when a name was last added or removed.
type Files = (SystemTime, BTreeMap<String, (SystemTime, Vec<u8>)>);

fn files(path: &Path) -> Files {
    let changed = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let entries = fs::read_dir(path).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let at = entry.path();
        (name, (changed(&at), fs::read(&at).unwrap()))
    });
    (changed(path), entries.collect())
}

/// Tries every operation on an open pool.
fn abuse(pool: &Arc<Pool>) {
    let last = pool.region().len() - 64;
    let mut lane = pool.lane();
    for at in [0, 4096, ROOT_AT, last / 2 / 64 * 64, last] {
        let streamed = lane.stream(at, &[0xab; 64]);
        let stored = lane.store(at, &[0xcd; 16]);
        let stored = lane.flush(stored);
        let ordered = lane.fence(streamed.and(stored));
        let published = lane.publish(at + 24, 0xef, &ordered);
        let published = lane.flush(published);
        let ordered = lane.fence(published);
        let swapped = lane
            .exchange_word(at + 32, 0xabab_abab_abab_abab, 1)
            .unwrap();
        let swapped = lane.flush(swapped);
        pool.request(ordered.lsn());
        pool.wait(ordered.lsn()).unwrap();
        pool.wait(Lsn(u64::MAX)).unwrap();
        let again = lane.flush_range(at, 64);
        let _unwaited = lane.fence(swapped.and(again));
        let words = [0, 24, 32].map(|by| pool.region().load_word(at + by));
        assert_eq!(words, [0xcdcd_cdcd_cdcd_cdcd, 0xef, 1], "stores are seen");
    }
    let refused = pool.allocate(2, 4096, 4096);
    assert!(
        matches!(&refused, Err(Error::Options { what, .. }) if what.contains("read-only")),
        "{refused:?}"
    );
    assert_eq!(pool.durable(), Lsn(u64::MAX));
    assert_eq!(pool.log_usage(), (0, 0));
    pool.subscribe(Arc::new(|| panic!("nothing becomes durable here")));
    pool.prefault(ROOT_AT, 4096);
    pool.sync().unwrap();
    pool.checkpoint().unwrap();
    pool.close().unwrap();
    pool.close().unwrap();
    pool.healthy().unwrap();
}

/// The bytes after the superblock.
fn contents(pool: &Pool) -> Vec<u8> {
    let mut bytes = vec![0; (pool.region().len() - ROOT_AT) as usize];
    pool.region().load(ROOT_AT, &mut bytes);
    bytes
}

/// The view changes nothing, and shows what a normal open then finds. Returns the contents.
fn check(what: &str, path: &Path, medium: Medium) -> Vec<u8> {
    let before = files(path);
    let view = Pool::open(path, &view_options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(view.is_read_only() && !view.was_created(), "{what}");
    let report = view.report();
    assert_eq!(report.medium, medium, "{what}");
    assert!(
        report.why.contains("read-only") && report.acknowledgement.contains("read-only"),
        "{what}: {report:?}"
    );
    let seen = (contents(&view), view.extents(1), view.was_clean());
    abuse(&view);
    assert!(files(path) == before, "{what}: changed while open");
    drop(view);
    assert!(files(path) == before, "{what}: changed when dropped");

    let pool = open(path, medium);
    assert!(!pool.is_read_only());
    let recovered = (contents(&pool), pool.extents(1), pool.was_clean());
    assert!(seen == recovered, "{what}: the view showed something else");
    assert!(
        files(path) != before,
        "{what}: a normal open does change it"
    );
    seen.0
}

fn word(contents: &[u8], at: u64) -> u64 {
    let at = (at - ROOT_AT) as usize;
    u64::from_le_bytes(*contents[at..].first_chunk().unwrap())
}

fn assert_words(contents: &[u8], extent: u64, count: u64) {
    for index in 0..WORDS {
        let expected = if index < count { index + 1 } else { 0 };
        assert_eq!(word(contents, extent + index * 8), expected, "word {index}");
    }
}

#[test]
fn nothing_changes_after_a_clean_close() {
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let extent = prepare(directory.path(), medium);
        let pool = open(directory.path(), medium);
        pool.close().unwrap();
        drop(pool);
        let seen = check("closed", directory.path(), medium);
        assert_words(&seen, extent, WORDS);
    }
}

#[test]
fn nothing_changes_after_a_crash() {
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let extent = prepare(directory.path(), medium);
        let seen = check("crashed", directory.path(), medium);
        assert_words(&seen, extent, WORDS);
    }
}

/// Segment and offset of the last block that was written to the log.
fn last_block(path: &Path) -> (std::path::PathBuf, u64) {
    let zeros = [0; BLOCK];
    let entries = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let logs = entries.filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("log-")
    });
    let blocks = logs.filter_map(|log| {
        let bytes = fs::read(&log).unwrap();
        let used = bytes.chunks(BLOCK).rposition(|block| block != zeros)?;
        Some((log, (used * BLOCK) as u64))
    });
    blocks.max().unwrap()
}

#[test]
fn a_torn_tail_is_left_out_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let extent = prepare(directory.path(), Medium::File);
    let (log, at) = last_block(directory.path());
    let file = OpenOptions::new().write(true).open(log).unwrap();
    file.write_all_at(&[0x77; 8], at + 72).unwrap();
    let seen = check("torn", directory.path(), Medium::File);
    assert_words(&seen, extent, WORDS - 1);
}

#[test]
fn what_a_normal_open_would_tidy_up_is_left_alone() {
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let extent = prepare(directory.path(), medium);
        let path = directory.path();
        let image = OpenOptions::new()
            .write(true)
            .open(path.join("image"))
            .unwrap();
        // An interrupted update of the superblock, an interrupted growth, an interrupted creation, a segment
        // that was cut off.
        image.write_all_at(&[0x55; 100], 200).unwrap();
        let end = image.metadata().unwrap().len();
        image.write_all_at(&[0xee; 8192], end).unwrap();
        fs::write(path.join("image.new"), b"half").unwrap();
        if medium == Medium::File {
            let (log, at) = last_block(path);
            let log = OpenOptions::new().write(true).open(log).unwrap();
            log.set_len(at + BLOCK as u64).unwrap();
        }
        let seen = check("untidy", path, medium);
        assert_words(&seen, extent, WORDS);
    }
}

/// A damaged pool is refused as by a normal open, word for word.
fn check_refused(what: &str, path: &Path, medium: Medium) -> Error {
    let before = files(path);
    let view = Pool::open(path, &view_options());
    let error = view.map(|_| ()).expect_err(what);
    assert!(files(path) == before, "{what}: changed");
    let normal = Pool::open(path, &options(medium));
    let normal = normal.map(|_| ()).expect_err(what);
    assert_eq!(format!("{error:?}"), format!("{normal:?}"), "{what}");
    error
}

#[test]
fn damage_is_the_same_error_as_for_a_normal_open() {
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        prepare(path, medium);
        let name = path.join("image");
        let whole = fs::read(&name).unwrap();
        for at in [0, 8, 16, 80, 100, 2000, 4095] {
            let mut bad = whole.clone();
            bad[at] ^= 0x41;
            bad[BLOCK + at] ^= 0x41;
            fs::write(&name, &bad).unwrap();
            check_refused(&format!("{medium}, byte {at}"), path, medium);
        }
        for bytes in [0, 100, 2 * BLOCK, whole.len() - BLOCK] {
            fs::write(&name, &whole[..bytes]).unwrap();
            check_refused(&format!("{medium}, {bytes} bytes"), path, medium);
        }
        fs::write(&name, &whole).unwrap();
        if medium == Medium::File {
            let (log, at) = last_block(path);
            let file = OpenOptions::new().write(true).open(&log).unwrap();
            // Not the last batch, but one confirmed long before.
            file.write_all_at(&[0x77; 8], at / 2 / BLOCK as u64 * BLOCK as u64 + 72)
                .unwrap();
            let error = check_refused("the log", path, medium);
            assert!(
                matches!(&error, Error::Corrupt { path, .. } if *path == log),
                "{error:?}"
            );
        }
    }
}

#[test]
fn nothing_is_created() {
    let directory = tempfile::tempdir().unwrap();
    let before = files(directory.path());
    for path in [directory.path().join("none"), directory.path().into()] {
        let opened = Pool::open(&path, &view_options());
        assert!(matches!(opened, Err(Error::NotFound { .. })), "{opened:?}");
    }
    assert!(files(directory.path()) == before);
}

#[test]
fn several_may_look_but_not_while_somebody_writes() {
    for medium in MEDIA {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let extent = prepare(path, medium);
        let pool = open(path, medium);
        let view = Pool::open(path, &view_options());
        assert!(matches!(view, Err(Error::Locked { .. })), "{view:?}");
        drop(pool);
        let one = Pool::open(path, &view_options()).unwrap();
        let two = Pool::open(path, &view_options()).unwrap();
        let pool = Pool::open(path, &options(medium));
        assert!(matches!(pool, Err(Error::Locked { .. })), "{pool:?}");
        put(&one, extent, 99);
        assert_eq!(two.region().load_word(extent), 1, "each has its own memory");
        drop(one);
        let pool = Pool::open(path, &options(medium));
        assert!(matches!(pool, Err(Error::Locked { .. })), "{pool:?}");
        drop(two);
        let pool = open(path, medium);
        assert_eq!(pool.region().load_word(extent), 1);
    }
}

#[test]
fn a_medium_that_was_asked_for_is_not_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    prepare(directory.path(), Medium::Emulated);
    let as_file = PoolOptions {
        medium: MediumChoice::Only(Medium::File),
        ..view_options()
    };
    let refused = Pool::open(directory.path(), &as_file);
    assert!(matches!(refused, Err(Error::Options { .. })), "not closed");
    let pool = open(directory.path(), Medium::Emulated);
    pool.close().unwrap();
    drop(pool);
    let before = files(directory.path());
    let view = Pool::open(directory.path(), &as_file).unwrap();
    assert_eq!(view.medium(), Medium::File);
    drop(view);
    assert!(files(directory.path()) == before);
    let recorded = Pool::inspect(directory.path()).unwrap().medium;
    assert_eq!(recorded, Medium::Emulated);
}

/// A tmpfs that can be made read-only; unmounted on drop.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount() -> Option<Disk> {
        let directory = tempfile::tempdir().unwrap();
        run(
            directory.path(),
            &["-t", "tmpfs", "-o", "size=64m", "tmpfs"],
        )
        .then_some(Disk(directory))
    }
}

fn run(path: &Path, mount: &[&str]) -> bool {
    let mounted = Command::new("mount")
        .args(mount)
        .arg(path)
        .stderr(Stdio::null())
        .status();
    mounted.is_ok_and(|status| status.success())
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_read_only_file_system_is_no_obstacle() {
    let Some(disk) = Disk::mount() else {
        eprintln!("skipped: mounting a tmpfs needs root");
        return;
    };
    let paths = MEDIA.map(|medium| (medium, disk.0.path().join(medium.to_string())));
    let pools = paths.map(|(medium, path)| (prepare(&path, medium), path, medium));
    assert!(run(disk.0.path(), &["-o", "remount,ro"]));
    for (extent, path, medium) in pools {
        assert!(Pool::open(&path, &options(medium)).is_err());
        let view = Pool::open(&path, &view_options()).unwrap();
        assert_words(&contents(&view), extent, WORDS);
        abuse(&view);
    }
}
