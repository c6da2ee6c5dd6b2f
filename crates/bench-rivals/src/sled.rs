//! sled, twice: with a flush after each write, and as it comes, with a flush every half second, which is how
//! it is usually run. The cache fits the data.
//!
//! Neither is durable by what others here call so. On Linux a flush of sled 0.34 is `sync_file_range`, which
//! waits until the pages are with the disk, but tells the disk nothing: its cache is not flushed, and the
//! file's metadata is not written. A process that dies loses nothing flushed; a power loss may take it.

use crate::shared::{cache_bytes, folder_bytes, increment, locked_version};
use anyhow::Context;
use everdram_bench::{Client, Durability, Error, Opener, Subject};
use sled::{Batch, Db};
use std::path::{Path, PathBuf};

pub(crate) struct Sled {
    flush: bool,
}

impl Sled {
    pub(crate) const FLUSHED: Self = Self { flush: true };
    pub(crate) const UNSYNCED: Self = Self { flush: false };
}

impl Opener for Sled {
    fn name(&self) -> &'static str {
        if self.flush { "sled" } else { "sled-unsynced" }
    }

    fn version(&self) -> String {
        locked_version("sled")
    }

    fn durability(&self) -> Durability {
        Durability::Never
    }

    fn open(
        &self,
        dir: &Path,
        records: u64,
        record_bytes: usize,
    ) -> Result<Box<dyn Subject>, Error> {
        let database = sled::Config::new()
            .path(dir.join("sled"))
            .cache_capacity(cache_bytes(records, record_bytes))
            .open()
            .with_context(|| format!("sled does not open {}", dir.display()))?;
        Ok(Box::new(Tree {
            database,
            flush: self.flush,
            dir: dir.to_owned(),
        }))
    }
}

struct Tree {
    database: Db,
    flush: bool,
    dir: PathBuf,
}

impl Subject for Tree {
    fn client(&self) -> Result<Box<dyn Client + '_>, Error> {
        Ok(Box::new(TreeClient { tree: self }))
    }

    fn medium_bytes(&self) -> Option<u64> {
        Some(folder_bytes(&self.dir))
    }
}

struct TreeClient<'a> {
    tree: &'a Tree,
}

impl TreeClient<'_> {
    /// Flushes what was written, if this store is to.
    fn settle(&self) -> Result<(), Error> {
        if self.tree.flush {
            self.tree.database.flush()?;
        }
        Ok(())
    }
}

impl Client for TreeClient<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.tree.database.insert(key, value)?;
        self.settle()
    }

    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        let value = self.tree.database.get(key)?;
        if let Some(value) = &value {
            into.extend_from_slice(value);
        }
        Ok(value.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let was_there = self.tree.database.remove(key)?.is_some();
        self.settle()?;
        Ok(was_there)
    }

    fn update_word(&mut self, key: &[u8]) -> Result<bool, Error> {
        let mut failure = None;
        let old = self.tree.database.fetch_and_update(key, |value| {
            let mut value = value?.to_vec();
            failure = increment(&mut value).err();
            Some(value)
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        self.settle()?;
        Ok(old.is_some())
    }

    fn put_many(&mut self, records: &[(&[u8], &[u8])]) -> Result<(), Error> {
        let mut batch = Batch::default();
        for (key, value) in records {
            batch.insert(*key, *value);
        }
        self.tree.database.apply_batch(batch)?;
        self.settle()
    }

    fn scan(&mut self, key: &[u8], count: usize, into: &mut Vec<u8>) -> Result<usize, Error> {
        let mut visited = 0;
        for record in self.tree.database.range(key..).take(count) {
            into.extend_from_slice(&record?.1);
            visited += 1;
        }
        Ok(visited)
    }
}
