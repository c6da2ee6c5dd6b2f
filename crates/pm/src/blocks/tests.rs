//! Data files and pools that are crashed, exchanged, restored and lost.

use super::{Blocks, BlocksOptions};
use crate::error::Error;
use crate::io::faults::Faults;
use crate::medium::{Medium, MediumChoice};
use crate::pool::superblock::ROOT_AT;
use crate::pool::{Pool, PoolOptions};
use std::path::Path;
use std::sync::Arc;

const BLOCK: usize = 512;

fn options() -> BlocksOptions {
    BlocksOptions {
        path: None,
        block_bytes: BLOCK as u32,
        bytes_max: 1 << 20,
        tokens_at: ROOT_AT,
        path_at: ROOT_AT + 1024,
        delay: None,
        reads_directly: false,
    }
}

fn try_open(path: &Path) -> Result<(Arc<Pool>, Blocks), Error> {
    let pool = Pool::open(
        path,
        &PoolOptions {
            medium: MediumChoice::Only(Medium::File),
            max_bytes: 16 << 20,
            log_bytes: 8 << 20,
            ..PoolOptions::default()
        },
    )?;
    let blocks = pool.open_blocks(&options())?;
    Ok((pool, blocks))
}

fn open(path: &Path) -> (Arc<Pool>, Blocks) {
    try_open(path).unwrap()
}

/// The message with which a pair is refused.
fn refused(path: &Path) -> String {
    match try_open(path) {
        Err(Error::Unpaired { what, .. }) => what,
        other => panic!("not refused: {:?}", other.map(|(_, blocks)| blocks)),
    }
}

fn copy(from: &Path, to: &Path, name: &str) {
    std::fs::copy(from.join(name), to.join(name)).unwrap();
}

#[test]
fn blocks_are_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (pool, blocks) = open(directory.path());
    assert_eq!((blocks.first(), blocks.end()), (16, 16));
    blocks.grow(24).unwrap();
    let mark = blocks.write(17, &[7; 2 * BLOCK]).unwrap();
    blocks.sync(mark).unwrap();
    let full = blocks.grow(1 << 20).unwrap_err();
    assert!(matches!(full, Error::NoSpace { .. }), "{full}");
    drop(blocks);
    pool.close().unwrap();
    drop(pool);
    let (_pool, blocks) = open(directory.path());
    let mut found = [0; 3 * BLOCK];
    blocks.read(17, &mut found).unwrap();
    assert_eq!(blocks.end(), 24);
    assert!(found[..2 * BLOCK] == [7; 2 * BLOCK] && found[2 * BLOCK..] == [0; BLOCK]);
}

/// A crash between any two calls of an open, of a new pool and of an old one, leaves a pair that fits.
#[test]
fn a_pair_fits_after_a_crash_at_any_step() {
    let (mut calls, mut ended) = (0, 0);
    while ended < 3 {
        for seed in 0..3 {
            let directory = tempfile::tempdir().unwrap();
            let faults = Faults::install(directory.path());
            if calls % 2 == 1 {
                drop(open(directory.path()));
            }
            faults.lossy();
            faults.off_after(calls / 2);
            let opened = try_open(directory.path());
            ended += u64::from(opened.is_ok());
            drop(opened);
            faults.crash(seed).unwrap();
            faults.on();
            if let Err(error) = try_open(directory.path()) {
                panic!("after {calls} calls, seed {seed}: {error}");
            }
        }
        calls += 1;
    }
    assert!(calls > 20, "{calls}");
}

#[test]
fn an_older_half_is_refused() {
    let [pool, old] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let (pool, old) = (pool.path(), old.path());
    let use_once = || {
        let (opened, blocks) = open(pool);
        drop(blocks);
        opened.close().unwrap();
    };
    use_once();
    copy(pool, old, "data");
    copy(pool, old, "image");
    use_once();
    use_once();
    let [new, kept] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let (new, _kept) = (new.path(), kept.path());
    copy(pool, new, "data");
    copy(pool, new, "image");
    copy(old, pool, "data");
    let said = refused(pool);
    assert!(said.contains("the data file is an older copy"), "{said}");
    copy(new, pool, "data");
    drop(open(pool));
    copy(pool, new, "data");
    copy(old, pool, "image");
    std::fs::read_dir(pool)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("log-")
        })
        .for_each(|path| std::fs::remove_file(path).unwrap());
    let said = refused(pool);
    assert!(said.contains("the pool is an older copy"), "{said}");
    // Nothing was changed by that.
    copy(old, pool, "data");
    drop(open(pool));
}

/// Direct reads see what was written just now; where the file system has none, reads are as before.
#[test]
fn direct_reads_see_every_write() {
    for directory in [tempfile::tempdir(), tempfile::tempdir_in("/dev/shm")] {
        let directory = directory.unwrap();
        let (pool, _) = open(directory.path());
        drop(pool);
        let pool = Pool::open(directory.path(), &PoolOptions::default()).unwrap();
        let options = BlocksOptions {
            reads_directly: true,
            ..options()
        };
        let blocks = pool.open_blocks(&options).unwrap();
        blocks.grow(64).unwrap();
        for round in 0..20_u8 {
            let bytes: Vec<u8> = (0..9 * BLOCK).map(|at| at as u8 ^ round).collect();
            let mark = blocks.write(20, &bytes).unwrap();
            if round % 2 == 0 {
                blocks.sync(mark).unwrap();
            }
            // The whole, which is aligned for no disk, and one block.
            for (first, count) in [(20, 9), (24, 1), (24, 0)] {
                let mut found = vec![0; count * BLOCK];
                blocks.read(first, &mut found).unwrap();
                let from = (first as usize - 20) * BLOCK;
                assert_eq!(found, bytes[from..from + count * BLOCK], "round {round}");
            }
        }
    }
}

#[test]
fn the_pool_remembers_where_its_file_is() {
    let [pool, elsewhere] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let open_at = |path: Option<&Path>| {
        let options = BlocksOptions {
            path: path.map(Path::to_path_buf),
            ..options()
        };
        let pool = Pool::open(
            pool.path(),
            &PoolOptions {
                medium: MediumChoice::Only(Medium::File),
                max_bytes: 16 << 20,
                log_bytes: 8 << 20,
                ..PoolOptions::default()
            },
        )?;
        pool.open_blocks(&options)
            .map(|blocks| blocks.path().to_path_buf())
    };
    let [first, second] = ["first", "second"].map(|name| elsewhere.path().join(name));
    assert_eq!(open_at(Some(&first)).unwrap(), first);
    assert_eq!(open_at(None).unwrap(), first);
    // It is moved; from then on the new place is known.
    std::fs::rename(&first, &second).unwrap();
    assert!(matches!(open_at(None), Err(Error::Unpaired { .. })));
    assert_eq!(open_at(Some(&second)).unwrap(), second);
    assert_eq!(open_at(None).unwrap(), second);
    assert!(!pool.path().join("data").exists());
    // A copy of the pool does not take the file of the original.
    let copied = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(pool.path()).unwrap() {
        let name = entry.unwrap().file_name();
        copy(pool.path(), copied.path(), name.to_str().unwrap());
    }
    assert!(refused(copied.path()).contains("missing"));
    assert_eq!(open_at(None).unwrap(), second);
}

#[test]
fn another_pools_file_and_a_missing_one_are_refused() {
    let [one, other] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let (one, other) = (one.path(), other.path());
    for path in [one, other] {
        drop(open(path));
    }
    let own = std::fs::read(one.join("data")).unwrap();
    copy(other, one, "data");
    assert!(refused(one).contains("another pool"), "{}", refused(one));
    std::fs::write(one.join("data"), vec![3; own.len()]).unwrap();
    assert!(refused(one).contains("no data file"), "{}", refused(one));
    std::fs::write(one.join("data"), &own[..100]).unwrap();
    assert!(refused(one).contains("no data file"), "{}", refused(one));
    std::fs::remove_file(one.join("data")).unwrap();
    assert!(refused(one).contains("missing"), "{}", refused(one));
    // One copy of the header is enough.
    let mut torn = own.clone();
    torn[..BLOCK].fill(9);
    std::fs::write(one.join("data"), &torn).unwrap();
    drop(open(one));
    // A new pool takes over no file that somebody has used.
    let new = tempfile::tempdir().unwrap();
    std::fs::write(new.path().join("data"), vec![3; 8192]).unwrap();
    assert!(refused(new.path()).contains("not empty"));
    // A file system has its mark behind what a header would take.
    let mut bytes = vec![0; 1 << 20];
    bytes[0x1_0040] = b'_';
    std::fs::write(new.path().join("data"), &bytes).unwrap();
    assert!(refused(new.path()).contains("not empty"));
    bytes.fill(0);
    std::fs::write(new.path().join("data"), &bytes).unwrap();
    drop(open(new.path()));
}

/// On files, the redo log makes blocks durable before a record that may name them.
#[test]
fn a_durable_record_finds_its_block() {
    for seed in 0..8 {
        let directory = tempfile::tempdir().unwrap();
        let faults = Faults::install(directory.path());
        let (pool, blocks) = open(directory.path());
        blocks.grow(32).unwrap();
        faults.lossy();
        let mut lane = pool.lane();
        let _mark = blocks.write(20, &[seed as u8 + 1; BLOCK]).unwrap();
        let named = lane.store_word(ROOT_AT + 64, 20);
        let named = lane.flush(named);
        let ordered = lane.fence(named);
        let _durable = pool.wait(ordered.lsn()).unwrap();
        drop((lane, blocks, pool));
        faults.crash(seed).unwrap();
        let (pool, blocks) = open(directory.path());
        assert_eq!(pool.region().load_word(ROOT_AT + 64), 20);
        let mut found = [0; BLOCK];
        blocks.read(20, &mut found).unwrap();
        assert_eq!(found, [seed as u8 + 1; BLOCK], "seed {seed}");
    }
}

#[test]
fn a_failed_sync_is_the_last() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::install(directory.path());
    let (pool, blocks) = open(directory.path());
    blocks.grow(32).unwrap();
    let first = blocks.write(20, &[1; BLOCK]).unwrap();
    let second = blocks.write(21, &[1; BLOCK]).unwrap();
    blocks.sync(second).unwrap();
    let synced = || {
        blocks
            .data
            .synced
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!(synced(), 2, "one sync covers both");
    blocks.sync(first).unwrap();
    assert_eq!(synced(), 2);
    let third = blocks.write(22, &[1; BLOCK]).unwrap();
    faults.fail_sync_after(0);
    // Whoever waited beside the one that failed fails, too: the next sync would find nothing to write.
    let fourth = blocks.write(23, &[1; BLOCK]).unwrap();
    assert!(blocks.data.sync_all().is_err());
    faults.fail_sync_after(u64::MAX);
    assert!(blocks.data.sync_all().is_err(), "the failure is kept");
    for mark in [third, fourth, third] {
        let failed = blocks.sync(mark).unwrap_err();
        assert!(matches!(failed, Error::Poisoned { .. }), "{failed}");
    }
    assert!(!pool.is_healthy() && blocks.write(23, &[1; BLOCK]).is_err());
    blocks.read(20, &mut [0; BLOCK]).unwrap();
}
