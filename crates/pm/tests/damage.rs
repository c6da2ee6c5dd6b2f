//! Every byte of the superblock, flipped: a flip in one copy is repaired, a flip in both is an error, and
//! nothing else happens.

#![allow(missing_docs)]
#![cfg(not(miri))]

use everdram_pm::{Error, Medium, MediumChoice, Pool, PoolOptions, ROOT_AT};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const COPY: usize = 4096;

fn options(medium: Medium) -> PoolOptions {
    PoolOptions {
        medium: MediumChoice::Only(medium),
        max_bytes: 16 << 20,
        log_bytes: 8 << 20,
        engine: 7,
        geometry: [3; 8],
        ..PoolOptions::default()
    }
}

/// A closed pool with two extents, and the first 8192 bytes of its image.
fn prepare(path: &Path, medium: Medium) -> Vec<u8> {
    let pool = Pool::open(path, &options(medium)).unwrap();
    pool.allocate(1, 8192, 4096).unwrap();
    pool.allocate(2, 4096, 4096).unwrap();
    pool.close().unwrap();
    drop(pool);
    fs::read(path.join("image")).unwrap()[..2 * COPY].to_vec()
}

fn write(path: &Path, superblocks: &[u8]) {
    let image = OpenOptions::new()
        .write(true)
        .open(path.join("image"))
        .unwrap();
    image.write_all_at(superblocks, 0).unwrap();
}

/// The pool opens, and is the pool that `prepare` made.
fn assert_whole(path: &Path, medium: Medium, what: &str) {
    let pool = Pool::open(path, &options(medium)).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(pool.was_clean(), "{what}");
    assert_eq!((pool.engine(), pool.geometry()), (7, [3; 8]), "{what}");
    assert_eq!(
        (pool.extents(1).len(), pool.extents(2).len()),
        (1, 1),
        "{what}"
    );
    assert_eq!(pool.region().load_word(ROOT_AT), 0, "{what}");
}

#[test]
fn one_flipped_byte_in_one_copy_is_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let good = prepare(directory.path(), Medium::Emulated);
    for at in 0..2 * COPY {
        let mut bad = good.clone();
        bad[at] ^= 0x41;
        write(directory.path(), &bad);
        let info = Pool::inspect(directory.path()).unwrap();
        assert_eq!(info.notes.len(), 1, "byte {at}");
        assert_whole(directory.path(), Medium::Emulated, &format!("byte {at}"));
        let info = Pool::inspect(directory.path()).unwrap();
        assert_eq!(
            info.notes.len(),
            1,
            "byte {at}: only `not closed cleanly` is left: {:?}",
            info.notes
        );
        assert!(info.notes[0].contains("closed"), "byte {at}");
    }
}

#[test]
fn the_same_byte_flipped_in_both_copies_is_an_error_that_says_where() {
    for medium in [Medium::Emulated, Medium::File] {
        let directory = tempfile::tempdir().unwrap();
        let good = prepare(directory.path(), medium);
        for at in 0..COPY {
            let mut bad = good.clone();
            bad[at] ^= 0x41;
            bad[COPY + at] ^= 0x41;
            write(directory.path(), &bad);
            let opened = Pool::open(directory.path(), &options(medium));
            match opened.map(|_| ()) {
                Err(Error::NotAPool { .. }) if at < 8 => {}
                Err(Error::Corrupt { offset, .. }) if at >= 8 && offset < 2 * COPY as u64 => {}
                other => panic!("{medium}, byte {at}: {other:?}"),
            }
            assert!(Pool::inspect(directory.path()).is_err());
            let now = fs::read(directory.path().join("image")).unwrap();
            assert_eq!(now[..2 * COPY], bad, "left untouched");
        }
        write(directory.path(), &good);
        assert_whole(directory.path(), medium, "restored");
    }
}

#[test]
fn copies_in_each_other_s_place_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let good = prepare(directory.path(), Medium::File);
    let swapped = [&good[COPY..], &good[..COPY]].concat();
    write(directory.path(), &swapped);
    let opened = Pool::open(directory.path(), &options(Medium::File));
    assert!(matches!(opened, Err(Error::Corrupt { .. })), "{opened:?}");
}

/// An update writes copy A, then copy B. A crash in between leaves the new state in A and the old one in B; a
/// crash during the write of A leaves A torn and the old state in B.
#[test]
fn an_update_is_there_or_not_wherever_it_is_interrupted() {
    for medium in [Medium::Emulated, Medium::File] {
        let directory = tempfile::tempdir().unwrap();
        let before = prepare(directory.path(), medium);
        let pool = Pool::open(directory.path(), &options(medium)).unwrap();
        pool.allocate(3, 4096, 4096).unwrap();
        pool.close().unwrap();
        drop(pool);
        let after = fs::read(directory.path().join("image")).unwrap()[..2 * COPY].to_vec();
        for cut in (0..=2 * COPY).step_by(64) {
            let torn = [&after[..cut], &before[cut..]].concat();
            write(directory.path(), &torn);
            // The file may have grown before the crash: it is at times too long, never too short.
            let info = Pool::inspect(directory.path()).unwrap();
            let count = info.extents.len();
            assert!(
                count == 3 || (cut < COPY && count == 2),
                "{medium}, cut at {cut}: {count} extents"
            );
        }
        write(directory.path(), &after);
    }
}
