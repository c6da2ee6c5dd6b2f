//! Write collapsing: during a pass, a session writes a key whose older record the pass has still to meet.
//! Whatever is skipped then, a crash at any later fence keeps the newer state.

use crate::memory::Moment;
use crate::place::{Contents, Outcome, Place, User, options};
use everdram::Options;
use std::sync::{Arc, Mutex};

/// The record of `key` lies after those of these other keys, whose transactions are committed first.
const OTHERS: std::ops::Range<u8> = 40..56;

/// Room for all records in one log, and a row of the back for nearly every key.
fn roomy() -> Options {
    let mut options = options();
    options.max_bytes = 1 << 20;
    options.bullet.log_bytes = 64 << 10;
    options.bullet.depth = 7;
    options
}

/// Writes `key` at the first fence of a pass, and judges the images of crashes at each later one.
fn during_a_pass(
    write: fn(&mut User, &[u8]),
    after: fn(&mut User, &[u8]),
    value: Option<[u8; 8]>,
) -> Outcome {
    for others in OTHERS {
        let options = roomy();
        let place = Place::new(&options);
        let (mut first, mut second) = (place.session(), place.session());
        let mut wanted = Contents::new();
        for number in 0..others {
            first.put(&[number], b"value");
            wanted.insert(vec![number], b"value".to_vec());
        }
        first.put(b"key", &[0; 8]);
        wanted.extend(value.map(|value| (b"key".to_vec(), value.to_vec())));
        let harm = Arc::new(Mutex::new(Ok(())));
        let (memory, found) = (place.memory.clone(), harm.clone());
        let mut has_written = false;
        place.memory.watch(Moment::Fence, move || {
            let mut found = found.lock().unwrap();
            if !std::mem::replace(&mut has_written, true) {
                write(&mut second, b"key");
                after(&mut second, b"key");
            } else if found.is_ok() {
                let place = Place::recover(&options, memory.durable());
                *found = place
                    .map_err(|error| format!("recovery: {error}"))
                    .and_then(|place| place.holds(&wanted));
            }
        });
        place.reclaim();
        place.memory.unwatch();
        harm.lock().unwrap().clone()?;
    }
    Ok(())
}

fn nothing(_: &mut User, _: &[u8]) {}

fn increment(user: &mut User, key: &[u8]) {
    user.0.increment(key, 0, 7).unwrap();
    user.finish();
}

#[test]
fn what_is_put_meanwhile_is_kept() -> Outcome {
    let put = |user: &mut User, key: &[u8]| user.put(key, &[1; 8]);
    during_a_pass(put, nothing, Some([1; 8]))
}

#[test]
fn what_is_removed_meanwhile_stays_so() -> Outcome {
    let delete = |user: &mut User, key: &[u8]| user.delete(key);
    during_a_pass(delete, nothing, None)
}

/// Otherwise the older record would be reclaimed, and the increment have nothing to build on.
#[test]
fn what_an_increment_builds_on_is_applied() -> Outcome {
    during_a_pass(increment, nothing, Some(7u64.to_le_bytes()))
}

#[test]
fn an_increment_of_what_was_put_meanwhile_is_kept() -> Outcome {
    let put = |user: &mut User, key: &[u8]| user.put(key, &[0; 8]);
    during_a_pass(put, increment, Some(7u64.to_le_bytes()))
}
