//! What is measured: a store behind one trait, whatever it is.
//!
//! A [`Subject`] is an open store that threads share; a [`Client`] is one thread's way into it. Rivals
//! implement the same two traits as everdram, so that every figure comes out of the same loop.

use crate::workload::corpus::Corpus;
use anyhow::ensure;
use everdram::Store;
use std::path::{Path, PathBuf};

/// Errors of any store, with their text.
pub type Error = anyhow::Error;

/// What an answered write means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Each write is durable when it returns.
    EachWrite,
    /// Nothing is ever durable, or only sometimes.
    Never,
}

impl Durability {
    /// When a write is durable, as rows and tables say it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Durability::EachWrite => "each write",
            Durability::Never => "no",
        }
    }
}

/// An open store.
pub trait Subject: Send + Sync {
    /// A way in for one thread.
    ///
    /// # Errors
    /// What the store says.
    fn client(&self) -> Result<Box<dyn Client + '_>, Error>;

    /// DRAM that the store itself counts, in bytes, if it counts it. (The runner measures the process, too.)
    fn dram_bytes(&self) -> Option<u64> {
        None
    }

    /// Bytes on the medium.
    fn medium_bytes(&self) -> Option<u64> {
        None
    }

    /// everdram itself, for what only it has.
    fn store(&self) -> Option<&Store> {
        None
    }

    /// A number that only this store counts, by its name; `None`: it has none of that name.
    fn own(&self, _name: &str) -> Option<u64> {
        None
    }

    /// Writes a checkpoint, if the store has such a thing: the store is filled, and what follows is measured.
    ///
    /// # Errors
    /// What the store says.
    fn checkpoint(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Fences, flushed lines and written bytes so far, if the store counts them.
    fn traffic(&self) -> Option<Traffic> {
        None
    }
}

/// What went to the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Store fences, or syncs on files.
    pub fences: u64,
    /// Cache lines flushed or streamed.
    pub lines: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// One thread's way into a store. Writes are durable on return if the subject's durability says so.
pub trait Client: Send {
    /// Stores `value` under `key`.
    ///
    /// # Errors
    /// What the store says.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error>;
    /// Appends the value to `into` and says whether the key was there. The store reads the whole value.
    ///
    /// # Errors
    /// What the store says.
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error>;
    /// Removes `key`; says whether it was there.
    ///
    /// # Errors
    /// What the store says.
    fn delete(&mut self, key: &[u8]) -> Result<bool, Error>;
    /// Adds 1 to the first 8 bytes of the value, atomically; says whether the key was there.
    /// Stores without such an operation read, change and put.
    ///
    /// # Errors
    /// What the store says; a value shorter than 8 bytes is one.
    fn update_word(&mut self, key: &[u8]) -> Result<bool, Error>;
    /// Stores all records, durable on return, under as few fences or syncs as the store can.
    ///
    /// # Errors
    /// What the store says; some of the records may be stored then.
    fn put_many(&mut self, records: &[(&[u8], &[u8])]) -> Result<(), Error> {
        records
            .iter()
            .try_for_each(|(key, value)| self.put(key, value))
    }
    /// Reads several keys, appending the values; says how many were there.
    ///
    /// # Errors
    /// What the store says.
    fn get_many(&mut self, keys: &[&[u8]], into: &mut Vec<u8>) -> Result<usize, Error> {
        let mut found = 0;
        for key in keys {
            found += usize::from(self.get(key, into)?);
        }
        Ok(found)
    }
    /// Visits up to `count` records from anywhere (YCSB E); says how many.
    ///
    /// # Errors
    /// What the store says.
    fn scan(&mut self, key: &[u8], count: usize, into: &mut Vec<u8>) -> Result<usize, Error>;
    /// Takes a turn at the store's own work, where a worker has to; says whether there was any.
    ///
    /// # Errors
    /// What the store says.
    fn turn(&mut self) -> Result<bool, Error> {
        Ok(false)
    }
}

/// What a figure asks of another store beyond its usual settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Otherwise {
    /// Where its log is to be, if not with its other files.
    pub log_dir: Option<PathBuf>,
    /// Bytes that it gathers in memory before it writes a table, once it is filled.
    pub memtable_bytes: Option<u64>,
}

/// How to open a store.
pub trait Opener: Send + Sync {
    /// As it appears in tables: `everdram`, `rocksdb`, ...
    fn name(&self) -> &'static str;
    /// Version of the store, as it says itself.
    fn version(&self) -> String;
    /// How tables call it: everdram has several engines, and pages of two kinds.
    fn label(&self) -> String {
        self.name().into()
    }
    /// What a store in `dir` lies on.
    fn medium(&self, dir: &Path) -> String {
        crate::Machine::here(dir).filesystem
    }
    /// What an answered write means.
    fn durability(&self) -> Durability;
    /// Opens a store in the empty directory `dir` for about `records` records of about `record_bytes`, each
    /// write durable if the store can.
    ///
    /// # Errors
    /// What the store says.
    fn open(
        &self,
        dir: &Path,
        records: u64,
        record_bytes: usize,
    ) -> Result<Box<dyn Subject>, Error>;
    /// What it stands in for, which is not to be had: the same store with its log on persistent memory, in
    /// the directory of [`Otherwise::log_dir`]. `None`: it is what its name says.
    fn stands_in_for(&self) -> Option<&'static str> {
        None
    }
    /// Whether [`Otherwise::memtable_bytes`] can be said: writing a table is its way to checkpoint.
    fn has_memtables(&self) -> bool {
        false
    }
    /// As [`Opener::open`], with other settings.
    ///
    /// # Errors
    /// What the store says, or that it has no such settings.
    fn open_otherwise(
        &self,
        dir: &Path,
        records: u64,
        record_bytes: usize,
        otherwise: &Otherwise,
    ) -> Result<Box<dyn Subject>, Error> {
        ensure!(
            *otherwise == Otherwise::default(),
            "{} has no settings for {otherwise:?}",
            self.name()
        );
        self.open(dir, records, record_bytes)
    }
    /// Brings a store that holds its records into the state that a crash is to find.
    ///
    /// # Errors
    /// What the store says.
    fn before_crash(
        &self,
        _subject: &dyn Subject,
        _corpus: &Corpus,
        _records: u64,
    ) -> Result<(), Error> {
        Ok(())
    }
}
