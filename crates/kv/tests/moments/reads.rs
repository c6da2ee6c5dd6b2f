//! What a get avoids: reading persistent memory for keys of the front, and waiting.

use crate::memory::Moment;
use crate::place::{Outcome, Place, User, agree, options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// The result of a get, and how often it read the pool.
fn get(place: &Place, reader: &mut User, key: &[u8]) -> (Result<Option<Vec<u8>>, String>, u64) {
    let loads = Arc::new(AtomicU64::new(0));
    let counted = loads.clone();
    place.memory.watch(Moment::Load, move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let found = reader.get(key);
    place.memory.unwatch();
    (found, loads.load(Ordering::Relaxed))
}

/// Neither for a value that only a log has, nor for one that the back has, too.
#[test]
fn a_get_of_what_is_in_front_reads_nothing_of_the_pool() -> Outcome {
    let place = Place::new(&options());
    let (mut user, mut reader) = (place.session(), place.session());
    let value = Ok(Some(b"value".to_vec()));
    for is_applied in [false, true] {
        user.put(b"key", b"value");
        if is_applied {
            place.reclaim();
        }
        agree(
            "in front",
            &get(&place, &mut reader, b"key"),
            &(value.clone(), 0),
        )?;
    }
    // A key of the back alone is read there, once.
    let place = place.crash()?;
    let mut reader = place.session();
    let (found, loads) = get(&place, &mut reader, b"key");
    assert!(found == value && loads > 0, "{found:?}, {loads} loads");
    agree(
        "in front again",
        &get(&place, &mut reader, b"key"),
        &(value, 0),
    )
}

/// A put of the key is stopped while it holds the key's lock, a log and an epoch; so is a gleaner that has
/// locked the row.
#[test]
fn a_get_waits_for_nobody() {
    let place = Place::new(&options());
    let (mut user, mut reader) = (place.session(), Some(place.session()));
    user.put(b"key", b"old");
    let mut during = |act: &mut dyn FnMut()| {
        let (told, tells) = mpsc::channel();
        let mut session = reader.take().unwrap();
        place.memory.watch_once(Moment::Fence, move || {
            let (done, wait) = mpsc::channel();
            let thread = std::thread::spawn(move || {
                let found = session.get(b"key");
                let _ = done.send((found, session));
            });
            let found = wait.recv_timeout(Duration::from_secs(20));
            // A waiting thread is left waiting.
            if found.is_ok() {
                thread.join().unwrap();
            }
            let _ = told.send(found);
        });
        act();
        place.memory.unwatch();
        let (found, session) = tells.recv().unwrap().expect("a get that waits");
        reader = Some(session);
        assert_eq!(found, Ok(Some(b"old".to_vec())));
    };
    during(&mut || user.put(b"another", b"value"));
    during(&mut || place.reclaim());
    during(&mut || user.put(b"key", b"new"));
}
