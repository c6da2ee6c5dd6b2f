//! The calls whose instructions `cargo xtask instructions` counts, on one thread, under callgrind.
//!
//! callgrind counts only inside [`measured`] and writes its counts at the end of each. This program prints a
//! line for each, in the same order: what was called, and how often.

use everdram::{Medium, MediumChoice, Options, Session, Store};
use std::path::Path;

const KEY: usize = 16;
const VALUE: usize = 200;
const RECORDS: usize = 100_000;

type Key = [u8; KEY];
type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, dir] = arguments.as_slice() else {
        return Err("usage: calls DIR (on tmpfs)".into());
    };
    for (pages, fixed) in [
        ("variable", None),
        ("fixed", Some((KEY as u32, VALUE as u32))),
    ] {
        let path = Path::new(dir).join(pages);
        let done = calls(&path, fixed, pages);
        if path.exists() {
            std::fs::remove_dir_all(&path)?;
        }
        done?;
    }
    Ok(())
}

fn calls(path: &Path, fixed: Option<(u32, u32)>, pages: &str) -> Result<(), Error> {
    let mut options = Options::default();
    options.medium = MediumChoice::Only(Medium::Emulated);
    options.fixed = fixed;
    options.initial_bytes = 128 << 20;
    // callgrind has no room for the usual address space.
    options.max_bytes = 1 << 30;
    let store = Store::open(path, &options)?;
    let mut session = store.session()?;
    let (keys, absent) = (keys(0), keys(RECORDS as u64));
    let value = [7; VALUE];
    let mut buffer = Vec::with_capacity(VALUE);
    let mut pass = |operation: &str, keys: &[Key], call: &mut Call<'_>| {
        let right = measured(&mut session, keys, call);
        assert_eq!(right, keys.len(), "{operation}: answers as expected");
        println!("{operation}, {pages}\t{right}");
    };

    pass("put", &keys, &mut |session, key| {
        session.put(key, &value).unwrap()
    });
    pass("overwrite", &keys, &mut |session, key| {
        !session.put(key, &value).unwrap()
    });
    pass("get", &keys, &mut |session, key| {
        buffer.clear();
        session.get_into(key, &mut buffer).unwrap().is_some()
    });
    pass("get-absent", &absent, &mut |session, key| {
        session.get_into(key, &mut buffer).unwrap().is_none()
    });
    if fixed.is_some() {
        pass("update-word", &keys, &mut |session, key| {
            let add = &mut |word: u64| word.wrapping_add(1);
            session.update_word(key, 0, add).unwrap().is_some()
        });
    }
    pass("delete", &keys, &mut |session, key| {
        session.delete(key).unwrap()
    });
    Ok(())
}

/// A call, and whether its answer was the expected one.
type Call<'a> = dyn FnMut(&mut Session, &Key) -> bool + 'a;

/// Calls once with each key, and counts the expected answers.
#[inline(never)]
fn measured(session: &mut Session, keys: &[Key], call: &mut Call<'_>) -> usize {
    keys.iter().filter(|key| call(session, key)).count()
}

/// So many different keys, in no order; those of another `first` differ from them.
fn keys(first: u64) -> Vec<Key> {
    let numbers = first..first + RECORDS as u64;
    let key = |number: u64| {
        let mut key = [b'k'; KEY];
        key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        key
    };
    numbers.map(key).collect()
}
