//! fjall: each write is followed by `PersistMode::SyncData`, which is `fdatasync` of its preallocated
//! journal; a batch asks for the same. The cache fits the data and blocks are not compressed, since the
//! values of a benchmark do not compress.

use crate::shared::{cache_bytes, folder_bytes, increment, locked_version};
use anyhow::Context;
use everdram_bench::{Client, Durability, Error, Opener, Subject};
use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::{Path, PathBuf};

pub(crate) struct Fjall;

impl Opener for Fjall {
    fn name(&self) -> &'static str {
        "fjall"
    }

    fn version(&self) -> String {
        locked_version("fjall")
    }

    fn durability(&self) -> Durability {
        Durability::EachWrite
    }

    fn open(
        &self,
        dir: &Path,
        records: u64,
        record_bytes: usize,
    ) -> Result<Box<dyn Subject>, Error> {
        let database = Database::builder(dir)
            .cache_size(cache_bytes(records, record_bytes))
            .open()
            .with_context(|| format!("fjall does not open {}", dir.display()))?;
        let records = database.keyspace("records", || {
            KeyspaceCreateOptions::default()
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        })?;
        Ok(Box::new(Tree {
            database,
            records,
            dir: dir.to_owned(),
        }))
    }
}

struct Tree {
    database: Database,
    records: Keyspace,
    dir: PathBuf,
}

impl Subject for Tree {
    fn client(&self) -> Result<Box<dyn Client + '_>, Error> {
        Ok(Box::new(TreeClient { tree: self }))
    }

    fn dram_bytes(&self) -> Option<u64> {
        Some(self.database.cache_size() + self.database.write_buffer_size())
    }

    fn medium_bytes(&self) -> Option<u64> {
        Some(folder_bytes(&self.dir))
    }
}

struct TreeClient<'a> {
    tree: &'a Tree,
}

impl Client for TreeClient<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.tree.records.insert(key, value)?;
        Ok(self.tree.database.persist(PersistMode::SyncData)?)
    }

    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        let value = self.tree.records.get(key)?;
        if let Some(value) = &value {
            into.extend_from_slice(value);
        }
        Ok(value.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        if !self.tree.records.contains_key(key)? {
            return Ok(false);
        }
        self.tree.records.remove(key)?;
        self.tree.database.persist(PersistMode::SyncData)?;
        Ok(true)
    }

    fn update_word(&mut self, key: &[u8]) -> Result<bool, Error> {
        let Some(mut value) = self.tree.records.get(key)?.map(|value| value.to_vec()) else {
            return Ok(false);
        };
        increment(&mut value)?;
        self.put(key, &value)?;
        Ok(true)
    }

    fn put_many(&mut self, records: &[(&[u8], &[u8])]) -> Result<(), Error> {
        let mut batch = self
            .tree
            .database
            .batch()
            .durability(Some(PersistMode::SyncData));
        for (key, value) in records {
            batch.insert(&self.tree.records, *key, *value);
        }
        Ok(batch.commit()?)
    }

    fn scan(&mut self, key: &[u8], count: usize, into: &mut Vec<u8>) -> Result<usize, Error> {
        let mut visited = 0;
        for record in self.tree.records.range(key..).take(count) {
            into.extend_from_slice(&record.value()?);
            visited += 1;
        }
        Ok(visited)
    }
}
