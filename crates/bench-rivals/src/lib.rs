//! The stores that people use today, behind the traits of `everdram-bench`, so that every figure comes out of
//! the same loop on the same medium with the same meaning of an answered write.
//!
//! # Nothing is built that was not asked for
//!
//! Each store is a feature, `all` is all of them, and without a feature the crate is an empty list that
//! builds everywhere: it can stay in the workspace, under the same lints and formatting, and nobody who works
//! on everdram needs RocksDB. `cargo build -p everdram-cli --features rivals` turns everything on.
//!
//! | store | comes from | an answered write | settings |
//! | --- | --- | --- | --- |
//! | `rocksdb` | the system's library: Debian's `librocksdb-dev`, with `libclang-dev` for the bindings | write-ahead log synced for each write | those of the "basic tuning" page of its wiki; cache that fits the data |
//! | `lmdb` | its C source, 0.9.24 as in Debian, compiled with the bindings | a transaction for each write, synced | defaults; a map larger than the data |
//! | `redb` | Rust | a transaction for each write, `Durability::Immediate` | cache that fits the data |
//! | `fjall` | Rust | `PersistMode::SyncData` after each write | cache that fits the data |
//! | `sled` | Rust | `flush` after each write, which is less than durable: see `sled.rs` | cache that fits the data |
//! | `sled-unsynced` | Rust | what sled does by itself: a flush every half second | the same |
//! | `scc` | Rust | a hash map in DRAM: nothing is ever durable | xxh3 as its hash, sized for the data |
//!
//! `rocksdb-pm` is no rival: it is `rocksdb` with its log on emulated persistent memory, and stands in for
//! PMEM-RocksDB in the figures of DStore's paper ([`stand_ins`]).
//!
//! The crate `rocksdb` 0.20 was made for RocksDB 7.9 and fits the C interface of Debian's 7.8; later ones ask
//! for functions that it lacks. Another place for library and headers is said with `ROCKSDB_LIB_DIR` and
//! `ROCKSDB_INCLUDE_DIR`. LMDB is reached through `lmdb-rkv`, since opening an environment with `heed` is
//! `unsafe`.
//!
//! # What the interfaces do not have
//!
//! RocksDB and fjall do not say whether a deleted key was there, so `delete` looks first. They have no atomic
//! change of a value either (RocksDB's merge does not say whether there was one): `update_word` reads,
//! changes and puts, as the trait allows, and two threads that update one key can lose a step. The others do
//! it atomically.
#![forbid(unsafe_code)]
// Without a single store, what they share is unused.
#![cfg_attr(
    not(any(
        feature = "rocksdb",
        feature = "lmdb",
        feature = "redb",
        feature = "fjall",
        feature = "sled",
        feature = "scc"
    )),
    allow(dead_code)
)]

#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "scc")]
mod scc;
mod shared;
#[cfg(feature = "sled")]
mod sled;

use everdram_bench::Opener;

/// Stores that stand in for others that are not to be had: they need a directory on persistent memory for
/// their logs, and only figures have use for them.
#[must_use]
pub fn stand_ins() -> Vec<Box<dyn Opener>> {
    vec![
        #[cfg(feature = "rocksdb")]
        Box::new(self::rocksdb::RocksDb::STAND_IN),
    ]
}

/// Every store that this build has, in the order of the table above.
#[must_use]
pub fn all() -> Vec<Box<dyn Opener>> {
    vec![
        #[cfg(feature = "rocksdb")]
        Box::new(self::rocksdb::RocksDb::USUAL),
        #[cfg(feature = "lmdb")]
        Box::new(self::lmdb::Lmdb),
        #[cfg(feature = "redb")]
        Box::new(self::redb::Redb),
        #[cfg(feature = "fjall")]
        Box::new(self::fjall::Fjall),
        #[cfg(feature = "sled")]
        Box::new(self::sled::Sled::FLUSHED),
        #[cfg(feature = "sled")]
        Box::new(self::sled::Sled::UNSYNCED),
        #[cfg(feature = "scc")]
        Box::new(self::scc::Scc),
    ]
}
