//! RocksDB, the system's library: the write-ahead log is synced for each write, and several threads share a
//! sync.
//!
//! The settings are those that its wiki advises for a start ("Setup Options and Basic Tuning"), with a block
//! cache that fits the data, no compression, since the values of a benchmark do not compress, and log files
//! that are used again, which saves a sync the change of the file's size.

use crate::shared::{cache_bytes, folder_bytes, increment};
use anyhow::Context;
use everdram_bench::{Client, Durability, Error, Opener, Subject};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Direction, IteratorMode, Options, WriteBatch,
    WriteOptions,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub(crate) struct RocksDb;

impl Opener for RocksDb {
    fn name(&self) -> &'static str {
        "rocksdb"
    }

    fn version(&self) -> String {
        static VERSION: OnceLock<String> = OnceLock::new();
        VERSION
            .get_or_init(|| library_version().unwrap_or_else(|_| "unknown".to_owned()))
            .clone()
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
        let cache = Cache::new_lru_cache(usize::try_from(cache_bytes(records, record_bytes))?)?;
        let database = DB::open(&options(&cache), dir)
            .with_context(|| format!("RocksDB does not open {}", dir.display()))?;
        Ok(Box::new(Database {
            database,
            cache,
            dir: dir.to_owned(),
        }))
    }
}

/// The C interface does not tell the library's version, but the library writes it into each database's
/// options.
fn library_version() -> Result<String, Error> {
    let dir = tempfile::tempdir()?;
    drop(DB::open_default(dir.path())?);
    for entry in fs::read_dir(dir.path())? {
        let path = entry?.path();
        let is_options = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"OPTIONS-");
        if path.file_name().is_some_and(is_options) {
            let text = fs::read_to_string(path)?;
            let mut lines = text.lines();
            if let Some(version) =
                lines.find_map(|line| line.trim().strip_prefix("rocksdb_version="))
            {
                return Ok(version.to_owned());
            }
        }
    }
    Err(Error::msg("a fresh database says no version"))
}

fn options(cache: &Cache) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_block_size(16 << 10);
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(5);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_max_background_jobs(6);
    options.set_bytes_per_sync(1 << 20);
    options.set_compression_type(DBCompressionType::None);
    options.set_recycle_log_file_num(4);
    options
}

fn synced() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(true);
    options
}

struct Database {
    database: DB,
    cache: Cache,
    dir: PathBuf,
}

impl Subject for Database {
    fn client(&self) -> Result<Box<dyn Client + '_>, Error> {
        Ok(Box::new(DatabaseClient {
            database: &self.database,
            synced: synced(),
        }))
    }

    fn dram_bytes(&self) -> Option<u64> {
        let property = |name| self.database.property_int_value(name).ok().flatten();
        let tables = property("rocksdb.cur-size-all-mem-tables")?;
        let readers = property("rocksdb.estimate-table-readers-mem")?;
        Some(self.cache.get_usage() as u64 + tables + readers)
    }

    fn medium_bytes(&self) -> Option<u64> {
        Some(folder_bytes(&self.dir))
    }
}

struct DatabaseClient<'a> {
    database: &'a DB,
    synced: WriteOptions,
}

impl Client for DatabaseClient<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        Ok(self.database.put_opt(key, value, &self.synced)?)
    }

    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        let value = self.database.get_pinned(key)?;
        if let Some(value) = &value {
            into.extend_from_slice(value);
        }
        Ok(value.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        if self.database.get_pinned(key)?.is_none() {
            return Ok(false);
        }
        self.database.delete_opt(key, &self.synced)?;
        Ok(true)
    }

    fn update_word(&mut self, key: &[u8]) -> Result<bool, Error> {
        let Some(mut value) = self.database.get(key)? else {
            return Ok(false);
        };
        increment(&mut value)?;
        self.put(key, &value)?;
        Ok(true)
    }

    fn put_many(&mut self, records: &[(&[u8], &[u8])]) -> Result<(), Error> {
        let mut batch = WriteBatch::default();
        for (key, value) in records {
            batch.put(key, value);
        }
        Ok(self.database.write_opt(batch, &self.synced)?)
    }

    fn get_many(&mut self, keys: &[&[u8]], into: &mut Vec<u8>) -> Result<usize, Error> {
        let mut found = 0;
        for value in self.database.multi_get(keys) {
            if let Some(value) = value? {
                into.extend_from_slice(&value);
                found += 1;
            }
        }
        Ok(found)
    }

    fn scan(&mut self, key: &[u8], count: usize, into: &mut Vec<u8>) -> Result<usize, Error> {
        let from = IteratorMode::From(key, Direction::Forward);
        let mut visited = 0;
        for record in self.database.iterator(from).take(count) {
            into.extend_from_slice(&record?.1);
            visited += 1;
        }
        Ok(visited)
    }
}
