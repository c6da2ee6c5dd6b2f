//! Parts of values: reads and writes at offsets, lengths, and what is left of a value across restarts.

mod support;

use everdram::engine::{EngineSession, OBJECT_BYTES_MAX, VALUE_BYTES_MAX};
use everdram::{EngineKind, Error, Options, Session, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use support::frozen::Frozen;
use support::{Bed, each_bed, seed};

everdram::test_each_engine!(
    parts_are_those_of_the_whole,
    a_part_keeps_the_expiry_of_its_key,
    lengths_beyond_the_limit_are_refused,
);

/// Lengths around every edge of blocks and maps, where the blocks have 512 bytes: a cell, one block, a root
/// of 8, maps of 32.
const EDGES: [u64; 9] = [0, 16, 512, 1024, 4096, 8 * 32 * 512, 140_000, 16_384, 600];

/// Small blocks, so that short values have maps of several levels.
fn small(options: &mut Options) {
    options.dstore.block_bytes = 512;
    options.dstore.inline_bytes = 16;
}

fn length(random: &mut StdRng) -> u64 {
    let edge = EDGES[random.random_range(0..EDGES.len())];
    edge.saturating_add_signed(random.random_range(-3..=3))
}

/// One random change of a key's value, of the store's and of the model's.
fn change(
    session: &mut dyn EngineSession,
    value: &mut Option<Vec<u8>>,
    key: &[u8],
    random: &mut StdRng,
) {
    let old = value.as_ref().map_or(0, |value| value.len() as u64);
    match random.random_range(0..8) {
        0 => {
            let new = length(random);
            assert_eq!(
                session.set_len(key, new).unwrap(),
                value.as_ref().map(|_| old)
            );
            if let Some(value) = value {
                value.resize(new as usize, 0);
            }
        }
        1 => {
            let whole: Vec<u8> = vec![random.random(); length(random) as usize];
            session.put(key, &whole, 0).unwrap();
            *value = Some(whole);
        }
        2 => {
            let was_there = session.delete(key).unwrap();
            assert_eq!(was_there, value.take().is_some());
        }
        3 => {
            let suffix = vec![random.random(); random.random_range(0..1500)];
            let after = session.append(key, &suffix).unwrap();
            let value = value.get_or_insert_default();
            value.extend_from_slice(&suffix);
            assert_eq!(after, value.len());
        }
        4 => {
            let at = random.random_range(0..=old / 8 + 1) as usize * 8;
            let before = session.increment(key, at, 7);
            match value {
                Some(value) if at + 8 <= value.len() => {
                    let word = value[at..].first_chunk_mut::<8>().unwrap();
                    *word = u64::from_le_bytes(*word).wrapping_add(7).to_le_bytes();
                    assert_eq!(before.unwrap(), Some(u64::from_le_bytes(*word)));
                }
                Some(_) => assert!(matches!(before, Err(Error::WordOutside { .. }))),
                None => assert_eq!(before.unwrap(), None),
            }
        }
        _ => {
            let at = match random.random_range(0..3) {
                0 => length(random),
                _ => random.random_range(0..=old),
            };
            let bytes = vec![random.random(); random.random_range(0..3000)];
            let after = session.write_range(key, at, &bytes).unwrap();
            if !bytes.is_empty() {
                let value = value.get_or_insert_default();
                let end = at as usize + bytes.len();
                value.resize(value.len().max(end), 0);
                value[at as usize..end].copy_from_slice(&bytes);
            }
            assert_eq!(after, value.as_ref().map_or(0, |value| value.len() as u64));
        }
    }
}

/// All values, and random parts of them, are those of the model.
fn compare(
    session: &mut dyn EngineSession,
    model: &BTreeMap<u8, Option<Vec<u8>>>,
    random: &mut StdRng,
) {
    for (key, value) in model {
        let mut found = Vec::new();
        let state = session.get(&[*key], &mut found).unwrap();
        assert_eq!(state.map(|_| &found), value.as_ref(), "key {key}");
        let Some(value) = value else {
            let absent = session.read_range(&[*key], 0, 10, &mut found).unwrap();
            assert_eq!(absent, None);
            continue;
        };
        for _ in 0..4 {
            let at = random.random_range(0..=value.len() + 600);
            let count = random.random_range(0..5000);
            let mut part = b"before".to_vec();
            let (_, whole) = session
                .read_range(&[*key], at as u64, count as u64, &mut part)
                .unwrap()
                .unwrap();
            assert_eq!(whole, value.len() as u64);
            let [from, to] = [at, at + count].map(|at| at.min(value.len()));
            assert!(
                part[6..] == value[from..to],
                "key {key}, {count} bytes at {at}"
            );
        }
    }
}

fn parts_are_those_of_the_whole(engine: EngineKind) {
    each_bed(engine, |bed| {
        let mut random = StdRng::seed_from_u64(seed());
        let mut model = BTreeMap::<u8, Option<Vec<u8>>>::new();
        for round in 0..bed.scaled(9).max(2) {
            let store = bed.open_with(small);
            let mut session = store.session().unwrap();
            compare(session.engine(), &model, &mut random);
            for _ in 0..bed.scaled(60) {
                let key = random.random_range(0..5);
                let value = model.entry(key).or_default();
                change(session.engine(), value, &[key], &mut random);
            }
            let ticket = session.commit().unwrap();
            session.wait(ticket).unwrap();
            compare(session.engine(), &model, &mut random);
            bed.verify(&store);
            let frozen =
                (round % 2 == 1 && !bed.is_on_device()).then(|| Frozen::take_idle(&bed.path()));
            drop((session, store));
            if let Some(frozen) = frozen {
                frozen.lay(&bed.path());
            }
        }
        let store = bed.open_with(small);
        let mut session = store.session().unwrap();
        for key in model.keys() {
            session.delete(&[*key]).unwrap();
        }
        assert_nothing_left(&store, session);
    });
}

/// Blocks of edits are given back: none is left when the values are gone.
fn assert_nothing_left(store: &Store, session: Session) {
    drop(session);
    store.engine().reclaim().unwrap();
    if store.engine().name() == "dstore" {
        // The two headers are blocks, too.
        let used = store.stats().own("data_used_bytes").unwrap();
        assert!(used <= 8192, "{used} bytes of blocks in use by nothing");
    }
}

fn a_part_keeps_the_expiry_of_its_key(engine: EngineKind) {
    let bed = Bed::emulated().of(engine);
    let store = bed.open_with(small);
    let mut session = store.session().unwrap();
    let session = session.engine();
    let at = bed.clock.load(std::sync::atomic::Ordering::Relaxed) + 1000;
    for bytes in [10, 3000] {
        session.put(b"key", &vec![1; bytes], at).unwrap();
        session.write_range(b"key", 5, b"five").unwrap();
        session.set_len(b"key", 2000).unwrap();
        let (found, length) = session.probe(b"key").unwrap().unwrap();
        assert_eq!((found.expires_at_ms, length), (at, 2000));
    }
    bed.clock
        .fetch_add(2000, std::sync::atomic::Ordering::Relaxed);
    // The old value is gone, also as what a new one would be a part of.
    assert_eq!(session.set_len(b"key", 5).unwrap(), None);
    assert_eq!(session.write_range(b"key", 3, b"new").unwrap(), 6);
    let mut value = Vec::new();
    let found = session.get(b"key", &mut value).unwrap().unwrap();
    assert_eq!((found.expires_at_ms, &value[..]), (0, &b"\0\0\0new"[..]));
}

fn lengths_beyond_the_limit_are_refused(engine: EngineKind) {
    let bed = Bed::emulated().of(engine);
    let store = bed.open();
    let mut session = store.session().unwrap();
    let session = session.engine();
    session.put(b"key", b"value", 0).unwrap();
    let most = match engine {
        EngineKind::Dstore => OBJECT_BYTES_MAX,
        _ => VALUE_BYTES_MAX as u64,
    };
    for at in [most, u64::MAX - 1, u64::MAX] {
        let refused = session.write_range(b"key", at, b"x").unwrap_err();
        assert!(matches!(refused, Error::ValueLength(_)), "{refused}");
    }
    let refused = session.set_len(b"key", most + 1).unwrap_err();
    assert!(matches!(refused, Error::ValueLength(_)), "{refused}");
    let mut value = Vec::new();
    session.get(b"key", &mut value).unwrap();
    assert_eq!(value, b"value");
}

/// Values in cells may be longer than a block; they move to blocks when they grow.
#[test]
fn a_cell_may_be_longer_than_a_block() {
    let bed = Bed::emulated().of(EngineKind::Dstore);
    let store = bed.open_with(|options| {
        options.dstore.block_bytes = 512;
        options.dstore.inline_bytes = 4096;
    });
    let mut session = store.session().unwrap();
    session.put(b"key", &[7; 3000]).unwrap();
    session
        .engine()
        .write_range(b"key", 9990, b"far behind")
        .unwrap();
    let value = session.get(b"key").unwrap().unwrap();
    let expected = [&[7; 3000][..], &[0; 6990], b"far behind"].concat();
    assert!(value == expected);
    drop(session);
    bed.verify(&store);
}

/// An edit that meets a damaged block has staged blocks by then, and gives them back: what it staged must not
/// be written over what others put there.
#[test]
fn an_edit_that_fails_writes_nothing_later() {
    let bed = Bed::emulated().of(EngineKind::Dstore);
    let store = bed.open();
    let mut session = store.session().unwrap();
    let long = 2 << 20;
    session.put(b"long", &vec![0x77; long]).unwrap();
    // Its last block.
    let path = bed.path().join("data");
    let bytes = std::fs::read(&path).unwrap();
    let last = bytes.iter().rposition(|byte| *byte == 0x77).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"damage", last as u64 - 100).unwrap();
    let engine = session.engine();
    engine.put(b"pending", &vec![1; 100_000], 0).unwrap();
    let refused = engine.write_range(b"long", 300_000, &vec![2; long - 300_000 - 7]);
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    let mut other = store.session().unwrap();
    other.put(b"other", &vec![3; long]).unwrap();
    let ticket = engine.commit().unwrap();
    engine.wait(ticket).unwrap();
    session.put(b"another", &vec![4; long]).unwrap();
    for (key, byte, length) in [
        (&b"pending"[..], 1, 100_000),
        (b"other", 3, long),
        (b"another", 4, long),
    ] {
        let value = session.get(key).unwrap().unwrap();
        assert!(value == vec![byte; length], "{key:?}");
    }
}

/// An object may be longer than a value that is read at once; what was never written takes no room.
#[test]
fn an_object_is_as_long_as_a_terabyte() {
    let bed = Bed::emulated().of(EngineKind::Dstore);
    let store = bed.open();
    let mut session = store.session().unwrap();
    let end = OBJECT_BYTES_MAX - 4;
    session.engine().write_range(b"key", end, b"last").unwrap();
    session
        .engine()
        .write_range(b"key", 1 << 33, b"middle")
        .unwrap();
    let refused = session.get(b"key").unwrap_err();
    assert!(matches!(refused, Error::ValueLength(_)), "{refused}");
    let used = store.stats().own("data_used_bytes").unwrap();
    assert!(used < 1 << 20, "{used} bytes for some bytes of an object");
    drop(session);
    bed.verify(&store);
    store.close().unwrap();
    let store = bed.open();
    let mut session = store.session().unwrap();
    for (at, bytes) in [(end, &b"last"[..]), ((1 << 33) - 2, b"\0\0middle\0\0")] {
        let mut part = Vec::new();
        let count = bytes.len() as u64;
        let (_, whole) = session
            .engine()
            .read_range(b"key", at, count, &mut part)
            .unwrap()
            .unwrap();
        assert_eq!((whole, &part[..]), (OBJECT_BYTES_MAX, bytes));
    }
    assert_eq!(
        session.engine().set_len(b"key", 100).unwrap(),
        Some(OBJECT_BYTES_MAX)
    );
    assert_eq!(session.get(b"key").unwrap(), Some(vec![0; 100]));
    session.delete(b"key").unwrap();
    assert_nothing_left(&store, session);
}
