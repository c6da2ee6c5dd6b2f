//! Shelves that are crashed, refused, filled and failed.

use super::{Shelf, ShelfFile};
use crate::error::Error;
use crate::io::faults::Faults;
use crate::medium::{Medium, MediumChoice};
use crate::pool::probe::file_system;
use crate::pool::{Pool, PoolOptions};
use rustix::fs::{CWD, FileType, Mode};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

fn heap() -> Arc<Pool> {
    Pool::heap(1 << 20, 0, [0; 8])
}

fn open(path: &Path) -> Shelf {
    Shelf::open(&heap(), path, true).unwrap()
}

fn contents(file: &ShelfFile) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn files_are_there_after_a_restart() {
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("a/shelf");
    let shelf = open(&path);
    for (name, bytes) in [("1.log", "first"), ("2.log", "second"), ("list.new", "1 2")] {
        let file = shelf.create(name).unwrap();
        file.write_at(0, bytes.as_bytes()).unwrap();
        file.data_sync().unwrap();
    }
    assert!(matches!(shelf.create("1.log"), Err(Error::Io { .. })));
    shelf.create("list").unwrap().write_at(0, b"older").unwrap();
    shelf.rename("list.new", "list").unwrap();
    shelf.unlink("1.log").unwrap();
    shelf.sync().unwrap();
    drop(shelf);
    let shelf = open(&path);
    assert_eq!(shelf.names().unwrap(), ["2.log", "list"]);
    assert_eq!(contents(&shelf.open_to_read("list").unwrap()), b"1 2");
    let file = shelf.open_file("2.log").unwrap();
    file.write_at(6, b" and more").unwrap();
    assert_eq!(contents(&file), b"second and more");
    assert!(matches!(shelf.open_file("1.log"), Err(Error::Io { .. })));
}

fn on_files(path: &Path) -> Arc<Pool> {
    Pool::open(
        path,
        &PoolOptions {
            medium: MediumChoice::Only(Medium::File),
            max_bytes: 16 << 20,
            log_bytes: 8 << 20,
            ..PoolOptions::default()
        },
    )
    .unwrap()
}

/// What a crash leaves of the files, by name. `run` is what happened since the last sync.
fn after_a_crash(seed: u64, run: impl FnOnce(&Shelf)) -> BTreeMap<String, Vec<u8>> {
    let top = tempfile::tempdir().unwrap();
    let faults = Faults::install(top.path());
    let shelf = open(top.path());
    faults.lossy();
    for (name, byte) in [("list", 1), ("log", 2)] {
        let file = shelf.create(name).unwrap();
        file.write_at(0, &[byte; 600]).unwrap();
        file.data_sync().unwrap();
    }
    shelf.sync().unwrap();
    run(&shelf);
    drop(shelf);
    faults.crash(seed).unwrap();
    let shelf = open(top.path());
    let names = shelf.names().unwrap();
    let read = |name: String| {
        let bytes = contents(&shelf.open_to_read(&name).unwrap());
        (name, bytes)
    };
    names.into_iter().map(read).collect()
}

/// The different results of many crashes.
fn crashes<T: Ord>(run: impl Fn(&Shelf), look: impl Fn(BTreeMap<String, Vec<u8>>) -> T) -> Vec<T> {
    let seen: BTreeSet<T> = (0..64)
        .map(|seed| look(after_a_crash(seed, &run)))
        .collect();
    seen.into_iter().collect()
}

#[test]
fn bytes_that_are_not_synced_can_be_lost_and_others_cannot() {
    let append = |sync: bool| {
        move |shelf: &Shelf| {
            let file = shelf.open_file("log").unwrap();
            file.write_at(600, &[3; 600]).unwrap();
            if sync {
                file.data_sync().unwrap();
            }
        }
    };
    let new = [vec![2; 600], vec![3; 600]].concat();
    let synced = crashes(append(true), |files| files["log"].clone());
    assert_eq!(synced, std::slice::from_ref(&new));
    let unsynced = crashes(append(false), |files| files["log"].clone());
    assert!(unsynced.contains(&vec![2; 600]) && unsynced.contains(&new));
    let is_torn = |log: &Vec<u8>| log.len() == 1200 && log[600..].contains(&0);
    assert!(unsynced.iter().any(is_torn));
    assert!(unsynced.iter().all(|log| log.starts_with(&[2; 600])));
    // What was cut comes back.
    let cut = |shelf: &Shelf| shelf.open_file("log").unwrap().set_len(500).unwrap();
    let lengths = crashes(cut, |files| files["log"].len());
    assert_eq!(lengths, [500, 600]);
    let synced = |shelf: &Shelf| {
        cut(shelf);
        shelf.open_file("log").unwrap().sync().unwrap();
    };
    assert_eq!(crashes(synced, |files| files["log"].len()), [500]);
}

/// A new manifest takes the place of the old one, and a file goes that the old one named.
fn replace(shelf: &Shelf) {
    let new = shelf.create("list.new").unwrap();
    new.write_at(0, &[4; 700]).unwrap();
    new.data_sync().unwrap();
    shelf.rename("list.new", "list").unwrap();
}

#[test]
fn names_that_are_not_synced_are_the_old_or_the_new_ones() {
    let renamed = crashes(replace, |files| files);
    let lists = renamed.iter().map(|files| files["list"].clone());
    let lists: BTreeSet<_> = lists.collect();
    assert_eq!(lists, BTreeSet::from([vec![1; 600], vec![4; 700]]));
    for files in renamed {
        let (is_new, waits) = (files["list"].len() == 700, files.get("list.new"));
        assert!(waits.is_none_or(|bytes| !is_new && bytes.len() == 700));
        assert!(files["log"] == [2; 600]);
    }
    let synced = |shelf: &Shelf| {
        replace(shelf);
        shelf.sync().unwrap();
    };
    let names = |files: BTreeMap<String, Vec<u8>>| {
        let of = |(name, bytes): (String, Vec<u8>)| (name, bytes.len());
        files.into_iter().map(of).collect::<Vec<_>>()
    };
    let all = |files: &[(&str, usize)]| {
        let owned = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), *bytes));
        owned.collect::<Vec<_>>()
    };
    assert_eq!(
        crashes(synced, names),
        [all(&[("list", 700), ("log", 600)])]
    );
    // Names that no rename connects are lost each by itself: a removal may survive the rename before it.
    let removed = |shelf: &Shelf| {
        replace(shelf);
        shelf.unlink("log").unwrap();
    };
    let left = crashes(removed, names);
    for files in [
        all(&[("list", 600)]),
        all(&[("list", 600), ("log", 600)]),
        all(&[("list", 700)]),
        all(&[("list", 700), ("log", 600)]),
    ] {
        assert!(left.contains(&files), "{left:?}");
    }
}

/// The contents of a file and its name are durable each by itself.
#[test]
fn a_name_does_not_make_contents_durable() {
    let run = |shelf: &Shelf| {
        shelf.create("new").unwrap().write_at(0, &[5; 512]).unwrap();
        shelf.rename("new", "list").unwrap();
        shelf.sync().unwrap();
    };
    let lists = crashes(run, |files| files["list"].clone());
    assert!(lists.contains(&Vec::new()) && lists.contains(&vec![5; 512]));
    assert!(lists.iter().all(|list| !list.contains(&1)), "{lists:?}");
}

fn is_final(shelf: &Shelf, file: &ShelfFile, path: &Path) {
    let poisoned = |result: Result<(), Error>| match result {
        Err(Error::Poisoned { path: first, .. }) => assert_eq!(first, path),
        other => panic!("{other:?}"),
    };
    poisoned(shelf.healthy());
    poisoned(file.write_at(0, b"more"));
    poisoned(file.data_sync());
    poisoned(file.sync());
    poisoned(file.set_len(0));
    poisoned(file.reserve(4096));
    poisoned(shelf.sync());
    poisoned(shelf.create("more").map(drop));
    poisoned(shelf.open_file("log").map(drop));
    poisoned(shelf.rename("log", "more"));
    poisoned(shelf.unlink("log"));
    assert_eq!(shelf.names().unwrap(), ["log", "other"]);
    assert_eq!(contents(file), b"bytes");
    assert_eq!(contents(&shelf.open_to_read("log").unwrap()), b"bytes");
}

#[test]
fn a_failed_sync_is_the_last() {
    for which in 0..3 {
        let top = tempfile::tempdir().unwrap();
        let faults = Faults::install(top.path());
        let shelf = open(top.path());
        let [log, other] = ["log", "other"].map(|name| shelf.create(name).unwrap());
        log.write_at(0, b"bytes").unwrap();
        other.data_sync().unwrap();
        let failed = match which {
            0 => {
                faults.fail_directory_syncs(true);
                shelf.sync()
            }
            1 => {
                faults.fail_sync_after(0);
                other.data_sync()
            }
            _ => {
                faults.fail_sync_after(0);
                other.sync()
            }
        };
        assert!(matches!(failed, Err(Error::Poisoned { .. })), "{failed:?}");
        faults.fail_directory_syncs(false);
        faults.fail_sync_after(u64::MAX);
        let first = if which == 0 {
            shelf.path()
        } else {
            other.path()
        };
        is_final(&shelf, &log, first);
    }
}

/// A write that fails for another reason than room leaves nobody knows what.
#[test]
fn a_failed_write_is_the_last() {
    let top = tempfile::tempdir().unwrap();
    let faults = Faults::install(top.path());
    let shelf = open(top.path());
    let [log, other] = ["log", "other"].map(|name| shelf.create(name).unwrap());
    log.write_at(0, b"bytes").unwrap();
    faults.off_after(0);
    // The first call of a machine that goes off still reaches the file.
    assert!(other.write_at(0, b"1").is_err());
    faults.on();
    is_final(&shelf, &log, other.path());
}

#[test]
fn a_full_disk_is_told_and_is_not_final() {
    let top = tempfile::tempdir().unwrap();
    let faults = Faults::install(top.path());
    let shelf = open(top.path());
    let file = shelf.create("log").unwrap();
    faults.room(Some(10_000));
    file.reserve(8000).unwrap();
    assert_eq!(file.len().unwrap(), 0);
    let full = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::NoSpace { .. })), "{result:?}")
    };
    full(shelf.create("other").unwrap().write_at(0, &[1; 2001]));
    // What was reserved is there.
    file.write_at(0, &[1; 8000]).unwrap();
    full(file.write_at(8000, &[1; 2001]));
    full(file.reserve(10_001));
    shelf.healthy().unwrap();
    file.data_sync().unwrap();
    faults.room(None);
    file.write_at(8000, &[2; 2001]).unwrap();
    assert_eq!(file.len().unwrap(), 10_001);
}

#[test]
fn reads_end_with_the_file() {
    let top = tempfile::tempdir().unwrap();
    let shelf = open(top.path());
    let file = shelf.create("log").unwrap();
    file.write_at(0, b"0123456789").unwrap();
    let mut into = [0; 8];
    file.read_at(2, &mut into).unwrap();
    assert_eq!(&into, b"23456789");
    match file.read_at(3, &mut into) {
        Err(Error::EndOfFile { end: 11, path }) => assert_eq!(path, file.path()),
        other => panic!("{other:?}"),
    }
    assert_eq!(file.read_some_at(7, &mut into).unwrap(), 3);
    assert_eq!(&into[..3], b"789");
    assert_eq!(file.read_some_at(10, &mut into).unwrap(), 0);
    assert!(!file.is_empty().unwrap());
    file.advise_random();
    file.advise_sequential();
    file.will_need(0, 10);
    // A handle outlives the name, and the lock the shelf.
    shelf.unlink("log").unwrap();
    file.write_at(10, b"a").unwrap();
    drop(shelf);
    assert_eq!(contents(&file), b"0123456789a");
    let again = Shelf::open(&heap(), top.path(), true);
    assert!(matches!(again, Err(Error::Locked { .. })));
    drop(file);
    open(top.path());
}

/// The message with which a shelf is refused.
fn refused(pool: &Pool, path: &Path, create: bool) -> String {
    match Shelf::open(pool, path, create) {
        Err(Error::Options { what, .. } | Error::Unpaired { what, .. }) => what,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn what_is_no_directory_of_its_own_is_refused() {
    let top = tempfile::tempdir().unwrap();
    let at = |name: &str| top.path().join(name);
    let pool = heap();
    assert!(refused(&pool, &at("none"), false).contains("missing"));
    assert!(!at("none").exists());
    open(&at("shelf"));
    let mode = std::fs::metadata(at("shelf")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700);
    symlink(at("shelf"), at("link")).unwrap();
    assert!(refused(&pool, &at("link"), true).contains("symbolic link"));
    // A slash would lead through it.
    assert!(refused(&pool, &at("link/"), true).contains("symbolic link"));
    std::fs::write(at("file"), b"").unwrap();
    assert!(refused(&pool, &at("file"), true).contains("this is none"));
    drop(on_files(&at("pool")));
    assert!(refused(&pool, &at("pool"), true).contains("a pool in this directory"));
    std::fs::set_permissions(at("shelf"), Permissions::from_mode(0o703)).unwrap();
    assert!(refused(&pool, &at("shelf"), true).contains("chmod o-w"));
    std::fs::set_permissions(at("shelf"), Permissions::from_mode(0o700)).unwrap();
    // Nor are files of it links, directories or pipes.
    let shelf = open(&at("shelf"));
    std::fs::write(at("outside"), b"outside").unwrap();
    symlink(at("outside"), at("shelf/link")).unwrap();
    std::fs::create_dir(at("shelf/folder")).unwrap();
    let pipe = at("shelf/pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for name in ["link", "folder", "pipe"] {
        assert!(shelf.open_file(name).is_err(), "{name}");
        assert!(shelf.open_to_read(name).is_err(), "{name}");
        assert!(shelf.create(name).is_err(), "{name}");
    }
    for name in ["", ".", "..", "../outside", "folder/file"] {
        let asked = std::panic::AssertUnwindSafe(|| shelf.create(name));
        assert!(std::panic::catch_unwind(asked).is_err(), "{name}");
    }
}

#[test]
fn the_directory_stays_that_which_was_opened() {
    let top = tempfile::tempdir().unwrap();
    let (path, moved) = (top.path().join("shelf"), top.path().join("moved"));
    let shelf = open(&path);
    std::fs::rename(&path, &moved).unwrap();
    std::fs::create_dir(&path).unwrap();
    shelf.create("log").unwrap();
    shelf.rename("log", "other").unwrap();
    shelf.sync().unwrap();
    assert!(moved.join("other").exists() && !path.join("other").exists());
    assert_eq!(shelf.names().unwrap(), ["other"]);
}

#[test]
fn a_log_in_memory_is_no_part_of_a_pool_on_a_disk() {
    let [disk, memory] = [tempfile::tempdir(), tempfile::tempdir_in("/dev/shm")];
    let (Ok(disk), Ok(memory)) = (disk, memory) else {
        eprintln!("skipped: no /dev/shm");
        return;
    };
    if file_system(disk.path()).unwrap().1 || !file_system(memory.path()).unwrap().1 {
        eprintln!("skipped: temporary files are in memory, or /dev/shm is not");
        return;
    }
    let pool = on_files(&disk.path().join("pool"));
    let said = refused(&pool, &memory.path().join("shelf"), true);
    assert!(said.contains("would not survive a power loss"), "{said}");
    assert_eq!(memory.path().read_dir().unwrap().count(), 0);
    Shelf::open(&pool, &disk.path().join("shelf"), true).unwrap();
    // Both survive the same, or the pool promises nothing.
    let volatile = on_files(&memory.path().join("pool"));
    for pool in [volatile, heap()] {
        Shelf::open(&pool, &memory.path().join("shelf"), true).unwrap();
        Shelf::open(&pool, &disk.path().join("shelf"), true).unwrap();
    }
}

#[test]
fn one_process_writes_or_several_look() {
    let top = tempfile::tempdir().unwrap();
    let (path, place) = (top.path().join("shelf"), top.path().join("pool"));
    let pool = on_files(&place);
    let shelf = Shelf::open(&pool, &path, true).unwrap();
    shelf.create("log").unwrap().write_at(0, b"bytes").unwrap();
    pool.close().unwrap();
    drop(pool);
    let look = || {
        let pool = Pool::open(
            &place,
            &PoolOptions {
                read_only: true,
                ..PoolOptions::default()
            },
        );
        pool.unwrap()
    };
    let (one, two) = (look(), look());
    let is_locked = |opened: Result<Shelf, Error>| matches!(opened, Err(Error::Locked { .. }));
    assert!(is_locked(Shelf::open(&heap(), &path, true)));
    assert!(is_locked(Shelf::open(&one, &path, false)));
    drop(shelf);
    let faults = Faults::install(&path);
    let shelves = [&one, &two].map(|pool| Shelf::open(pool, &path, true).unwrap());
    assert!(is_locked(Shelf::open(&heap(), &path, true)));
    let shelf = &shelves[0];
    assert!(shelf.is_read_only());
    let file = shelf.open_to_read("log").unwrap();
    assert_eq!(contents(&file), b"bytes");
    for refused in [
        shelf.create("more").map(drop),
        shelf.open_file("log").map(drop),
        shelf.rename("log", "more"),
        shelf.unlink("log"),
        shelf.sync(),
    ] {
        assert!(matches!(refused, Err(Error::Options { .. })), "{refused:?}");
    }
    assert_eq!((faults.calls(), faults.directory_syncs()), (0, 0));
    let missing = refused(&one, &top.path().join("none"), true);
    assert!(missing.contains("missing") && !top.path().join("none").exists());
    drop((shelves, file));
    open(&path);
    assert_eq!(
        faults.directory_syncs(),
        1,
        "names that are found are made durable"
    );
}

#[test]
#[should_panic(expected = "opened to read")]
fn a_file_that_was_opened_to_read_is_not_written() {
    let top = tempfile::tempdir().unwrap();
    let shelf = open(top.path());
    shelf.create("log").unwrap();
    let _never = shelf.open_to_read("log").unwrap().write_at(0, b"a");
}

/// The name of a directory that was made is durable before anything is in it.
#[test]
fn a_new_directory_is_durable() {
    let top = tempfile::tempdir().unwrap();
    let faults = Faults::install(top.path());
    faults.fail_directory_syncs(true);
    let made = Shelf::open(&heap(), &top.path().join("shelf"), true);
    assert!(matches!(made, Err(Error::Io { .. })), "{made:?}");
    faults.fail_directory_syncs(false);
    open(&top.path().join("shelf"));
    assert_eq!(faults.directory_syncs(), 2);
}
