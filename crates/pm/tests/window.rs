//! Windows for devices: on which media there are any, and what they keep.

#![allow(missing_docs)]
#![cfg(not(miri))]

mod common;

use common::{open, options, put};
use everdram_pm::{Error, Medium, Pool, PoolOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Plays the device: stores a word where a window says.
fn store(address: *mut u8, word: u64) {
    // SAFETY: callers pass an aligned word of a window that lives; Rust accesses it by atomics only.
    unsafe { AtomicU64::from_ptr(address.cast()) }.store(word, Ordering::Relaxed);
}

#[test]
fn what_a_device_wrote_is_there_after_the_next_open() {
    let directory = tempfile::tempdir().unwrap();
    let pool = open(directory.path(), Medium::Emulated);
    let at = pool.allocate(100, 1 << 20, 4096).unwrap().at;
    let window = pool.window(at, 1 << 20).unwrap();
    drop(pool);
    let locked = Pool::open(directory.path(), &options(Medium::Emulated));
    assert!(matches!(locked, Err(Error::Locked { .. })), "{locked:?}");
    store(window.address(), 11);
    store(window.address().wrapping_add((1 << 20) - 8), 12);
    drop(window);
    let pool = open(directory.path(), Medium::Emulated);
    let words = [at, at + (1 << 20) - 8].map(|at| pool.region().load_word(at));
    assert_eq!(words, [11, 12]);
}

#[test]
fn a_window_stays_where_it_is_while_the_pool_grows() {
    let directory = tempfile::tempdir().unwrap();
    let pool = open(directory.path(), Medium::Emulated);
    let at = pool.allocate(100, 1 << 16, 4096).unwrap().at;
    let window = pool.window(at, 1 << 16).unwrap();
    let before = window.address();
    for owner in 1..9 {
        pool.allocate(owner, 8 << 20, 4096).unwrap();
    }
    assert_eq!(window.address(), before);
    put(&pool, at, 4);
    store(before.wrapping_add(8), 5);
    let words = [at, at + 8].map(|at| pool.region().load_word(at));
    assert_eq!(words, [4, 5]);
}

#[test]
fn files_and_views_have_no_window_and_say_why() {
    let directory = tempfile::tempdir().unwrap();
    let pool = open(directory.path(), Medium::File);
    let at = pool.allocate(1, 4096, 4096).unwrap().at;
    let refused = pool.window(at, 4096).unwrap_err();
    assert!(matches!(refused, Error::NoWindow { .. }), "{refused}");
    assert!(refused.to_string().contains("private"), "{refused}");
    pool.close().unwrap();
    drop(pool);
    for medium in [Medium::File, Medium::Emulated] {
        let viewed = PoolOptions {
            read_only: true,
            ..options(medium)
        };
        let view = Pool::open(directory.path(), &viewed).unwrap();
        let refused = view.window(at, 4096).unwrap_err();
        assert!(matches!(refused, Error::NoWindow { .. }), "{refused}");
    }
}

#[test]
fn room_is_given_back_beside_a_window_and_never_under_it() {
    let directory = tempfile::tempdir().unwrap();
    let pool = open(directory.path(), Medium::Emulated);
    let at = pool.allocate(100, 1 << 20, 4096).unwrap().at;
    let window = pool.window(at + 8192, 4096).unwrap();
    store(window.address(), 3);
    pool.give_back(at, 8192).unwrap();
    pool.give_back(at + 12_288, 4096).unwrap();
    for (from, bytes) in [(at + 8192, 4096), (at, 1 << 20)] {
        let given = catch_unwind(AssertUnwindSafe(|| pool.give_back(from, bytes)));
        assert!(given.is_err(), "{bytes} bytes at {from}");
    }
    assert_eq!(pool.region().load_word(at + 8192), 3);
    drop(window);
    if pool.give_back(at, 1 << 20).unwrap() {
        assert_eq!(pool.region().load_word(at + 8192), 0);
        let backed = pool.backed_bytes();
        // A window over holes has room at once: a device cannot be told that the medium is full.
        let _window = pool.window(at, 1 << 20).unwrap();
        assert!(pool.backed_bytes() >= backed + (1 << 20));
    }
}
