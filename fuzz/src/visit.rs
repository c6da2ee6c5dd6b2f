//! One life of a damaged pool: opened, read, used. No call panics, for any bytes.

use crate::pools::{self, Base, CAPACITY, Files, KEYS, image_of, key};
use everdram::engine::{BatchOp, EngineSession};
use everdram::{EngineKind, Error, Ticket, lab};
use everdram_pm::Pool;
use everdram_pm::lab::{self as pm, Disk};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a read of a key returns: its value, nothing, or damage.
pub type Contents = BTreeMap<Vec<u8>, Result<Option<Vec<u8>>, ()>>;

/// A pool as a process finds it.
#[derive(Clone)]
pub struct Left {
    /// Its bytes.
    pub image: Vec<u8>,
    /// Its data file, if it has one.
    pub files: Files,
}

impl Left {
    /// The pool of a base.
    #[must_use]
    pub fn of(base: &Base) -> Left {
        Left {
            image: base.image.clone(),
            files: base.files.clone(),
        }
    }
}

/// Opens a pool, reads everything, and writes if asked. Returns what it read last, and the pool after a
/// crash. With `base`, a read may only return what was written there.
///
/// # Errors
/// The pool was refused.
pub fn visit(left: Left, base: Option<&Base>) -> Result<(Contents, Left), Error> {
    let (mut opened, pool, disk) = open(left)?;
    let engine = opened.engine();
    let mut session = Arc::clone(&engine).session().expect("there are sessions");
    let _ = engine.check();
    let contents = read_all(&mut *session);
    if let Some(base) = base {
        only_what_was_written(base, &contents);
    }
    exercise(&mut *session);
    let _ = opened.tend();
    let _ = engine.reclaim();
    exercise(&mut *session);
    let contents = read_all(&mut *session);
    let _ = engine.stats();
    let left = Left {
        image: image_of(&pool),
        files: disk.files(),
    };
    Ok((contents, left))
}

/// Opens the pool after the crash, and reads each of the earlier keys again.
///
/// # Errors
/// The pool was refused.
pub fn visit_again(left: Left, before: &Contents) -> Result<Contents, Error> {
    let (opened, ..) = open(left)?;
    let engine = opened.engine();
    let mut session = Arc::clone(&engine).session().expect("there are sessions");
    let _ = engine.check();
    let read = |key: &Vec<u8>| (key.clone(), read(&mut *session, key));
    let contents = before.keys().map(read).collect();
    let _ = engine.stats();
    Ok(contents)
}

fn open(left: Left) -> Result<(lab::Opened, Arc<Pool>, Arc<Disk>), Error> {
    let disk = Arc::new(Disk::new(left.files, None));
    let pool = pm::open_beside(&left.image, CAPACITY, None, &disk)?;
    let mut options = pools::options();
    // Records leave a pool in background work alone.
    options.reclaim_background = pool.engine() == EngineKind::Tiered.number();
    let opened = lab::open(Arc::clone(&pool), &options)?;
    Ok((opened, pool, disk))
}

/// Reads every key of the bases, and the keys that iteration finds before it meets damage.
fn read_all(session: &mut dyn EngineSession) -> Contents {
    let mut keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let mut cursor = 0;
    loop {
        let visited = session.scan(cursor, 64, &mut |key, _, _| keys.push(key.to_vec()));
        match visited {
            Ok(next) if next != 0 => cursor = next,
            _ => break,
        }
    }
    keys.into_iter()
        .map(|key| (key.clone(), read(session, &key)))
        .collect()
}

fn read(session: &mut dyn EngineSession, key: &[u8]) -> Result<Option<Vec<u8>>, ()> {
    let mut value = Vec::new();
    let probed = session.probe(key).map_err(|_| ());
    match session.get(key, &mut value) {
        Ok(None) => Ok(None),
        Ok(Some(found)) => {
            if let Ok(Some((state, bytes))) = probed {
                assert_eq!((state.version, bytes), (found.version, value.len() as u64));
            }
            Ok(Some(value))
        }
        Err(_) => {
            assert!(value.is_empty(), "an error left part of a value");
            Err(())
        }
    }
}

fn only_what_was_written(base: &Base, contents: &Contents) {
    for (key, value) in contents {
        if let Ok(Some(value)) = value {
            let written = base.written.get(key);
            let written = written.is_some_and(|values| values.contains(value));
            assert!(
                written,
                "{key:?} reads as {value:?}, which was never written"
            );
        }
    }
}

/// Runs some of every operation. A value stored without an error must be there.
fn exercise(session: &mut dyn EngineSession) {
    for (number, length) in [(0, 16), (1, 500), (12, 6000), (30, 8)] {
        let (key, value) = (key(number), vec![0x55; length]);
        let stored = session.put(&key, &value, 0).and_then(|_| session.commit());
        if stored.is_ok() {
            assert_eq!(
                read(session, &key),
                Ok(Some(value)),
                "{key:?} was stored just now"
            );
        }
    }
    let gone = key(4);
    if session.delete(&gone).and_then(|_| session.commit()).is_ok() {
        assert_ne!(read(session, &gone).map(|value| value.is_some()), Ok(true));
    }
    let (one, two) = (key(5), key(14));
    let operations = [
        BatchOp::Put {
            key: &one,
            value: b"batch",
            expires_at_ms: 0,
        },
        BatchOp::Delete { key: &two },
    ];
    if session.batch(&operations).is_ok() {
        assert_eq!(read(session, &one), Ok(Some(b"batch".to_vec())));
    }
    let _: Result<Ticket, Error> = session.commit();
}

/// A key must read as before. The exception is damage, which either read may meet.
///
/// # Panics
/// If it is not.
pub fn same(before: &Contents, after: &Contents) {
    for (key, before) in before {
        if let (Ok(before), Ok(found)) = (before, &after[key]) {
            let (start, length) = (&key[..key.len().min(12)], key.len());
            assert!(
                before == found,
                "the key {start:?} of {length} bytes was {before:?} and is {found:?}"
            );
        }
    }
}
