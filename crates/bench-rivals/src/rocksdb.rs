//! RocksDB, the system's library: the write-ahead log is synced for each write, and several threads share a
//! sync.
//!
//! The settings are those that its wiki advises for a start ("Setup Options and Basic Tuning"), with a block
//! cache that fits the data, no compression, since the values of a benchmark do not compress, and log files
//! that are used again, which saves a sync the change of the file's size.
//!
//! A second opener has the log on emulated persistent memory and the tables on the disk: it stands in for
//! PMEM-RocksDB. In its favour, the log's tmpfs has no delays; against it, each write to the log is a system
//! call, where PMEM-RocksDB maps its log.
//!
//! Figure 1 of DStore's paper compares memtables of two sizes. Both stores are filled with the usual ones, so
//! that they begin alike, and the size changes after that.

use crate::shared::{cache_bytes, folder_bytes, increment};
use anyhow::{Context, ensure};
use everdram_bench::{Client, Durability, Error, Opener, Otherwise, Subject};
use rocksdb::properties::{CFSTATS_NO_FILE_HISTOGRAM, COMPACTION_PENDING, NUM_RUNNING_COMPACTIONS};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Direction, IteratorMode, Options, WriteBatch,
    WriteOptions,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Sleep between two looks at whether compactions have ended.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) struct RocksDb {
    name: &'static str,
    stands_in_for: Option<&'static str>,
}

impl RocksDb {
    /// All of it in one place.
    pub(crate) const USUAL: RocksDb = RocksDb {
        name: "rocksdb",
        stands_in_for: None,
    };
    /// Its log elsewhere.
    pub(crate) const STAND_IN: RocksDb = RocksDb {
        name: "rocksdb-pm",
        stands_in_for: Some("PMEM-RocksDB"),
    };
}

impl Opener for RocksDb {
    fn name(&self) -> &'static str {
        self.name
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
        self.open_otherwise(dir, records, record_bytes, &Otherwise::default())
    }

    fn stands_in_for(&self) -> Option<&'static str> {
        self.stands_in_for
    }

    fn has_memtables(&self) -> bool {
        true
    }

    fn open_otherwise(
        &self,
        dir: &Path,
        records: u64,
        record_bytes: usize,
        otherwise: &Otherwise,
    ) -> Result<Box<dyn Subject>, Error> {
        // Without a log elsewhere, it would stand in for nothing.
        ensure!(
            self.stands_in_for.is_some() == otherwise.log_dir.is_some(),
            "{}: a log elsewhere is what the stand-in has, and nothing else has",
            self.name
        );
        let cache = Cache::new_lru_cache(usize::try_from(cache_bytes(records, record_bytes))?)?;
        let mut options = options(&cache);
        if let Some(log_dir) = &otherwise.log_dir {
            options.set_wal_dir(log_dir);
        }
        let database = DB::open(&options, dir)
            .with_context(|| format!("RocksDB does not open {}", dir.display()))?;
        Ok(Box::new(Database {
            database,
            cache,
            dir: dir.to_owned(),
            memtable_bytes: otherwise.memtable_bytes,
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
    /// Of the memtables that follow the first checkpoint; none = as always.
    memtable_bytes: Option<u64>,
}

impl Database {
    /// Flushes and compactions that have ended: the only number of them that the C interface knows is in a
    /// table for people.
    fn checkpoints(&self) -> Option<u64> {
        let told = self.database.property_value(CFSTATS_NO_FILE_HISTOGRAM);
        ended_in(&told.ok()??)
    }

    fn is_compacting(&self) -> Result<bool, Error> {
        let number = |name| Ok::<_, Error>(self.database.property_int_value(name)?.unwrap_or(0));
        Ok(number(COMPACTION_PENDING)? + number(NUM_RUNNING_COMPACTIONS)? > 0)
    }
}

/// `Comp(cnt)` of the line of sums.
fn ended_in(told: &str) -> Option<u64> {
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let mut lines = told.lines().map(words);
    let is_first = |line: &Vec<String>, word: &str| line.first().is_some_and(|first| first == word);
    let heads = lines.find(|line| is_first(line, "Level"))?;
    let at = heads.iter().position(|head| head == "Comp(cnt)")?;
    let sums = lines.find(|line| is_first(line, "Sum"))?;
    // The size has a unit, which is a word of its own.
    sums.get(at + 1)?.parse().ok()
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

    fn own(&self, name: &str) -> Option<u64> {
        match name {
            "checkpoints" => self.checkpoints(),
            _ => None,
        }
    }

    /// Nothing, unless memtables of another size follow: rivals are measured as they are after filling.
    fn checkpoint(&self) -> Result<(), Error> {
        let Some(bytes) = self.memtable_bytes else {
            return Ok(());
        };
        self.database.flush()?;
        // Compactions that filling left to do are no checkpoints of what follows.
        while self.is_compacting()? {
            std::thread::sleep(LOOK);
        }
        let bytes = bytes.to_string();
        self.database
            .set_options(&[("write_buffer_size", &bytes)])?;
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_are_read_from_the_line_of_sums() {
        let told = "** Compaction Stats [default] **\n\
                    Level    Files   Size     Score Read(GB) Comp(cnt) Avg(sec)\n\
                    -----------------------------------------------------------\n  \
                    L0      1/0    1.24 KB   0.2      0.0         3    0.003\n \
                    Sum      1/0    1.24 KB   0.0      0.0         7    0.003\n";
        assert_eq!(ended_in(told), Some(7));
        assert_eq!(ended_in("Level Comp(cnt)\n"), None);
        assert_eq!(ended_in(""), None);
    }

    /// Small memtables are flushed meanwhile, and large ones are not. RocksDB aborts with less than its arena
    /// takes at once, which is 1 MiB.
    #[test]
    fn checkpoints_follow_the_size_of_memtables() {
        for (memtable_bytes, is_flushed) in [(4 << 20, true), (1 << 30, false)] {
            let (dir, log) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let otherwise = Otherwise {
                log_dir: Some(log.path().to_owned()),
                memtable_bytes: Some(memtable_bytes),
            };
            let opener = RocksDb::STAND_IN;
            let store = opener.open_otherwise(dir.path(), 1000, 4096, &otherwise);
            let store = store.unwrap();
            store.checkpoint().unwrap();
            let before = store.own("checkpoints").unwrap();
            let mut client = store.client().unwrap();
            for number in 0..3000u32 {
                client.put(&number.to_le_bytes(), &[7; 4096]).unwrap();
            }
            while is_flushed && store.own("checkpoints").unwrap() == before {
                std::thread::yield_now();
            }
            assert_eq!(store.own("checkpoints").unwrap() > before, is_flushed);
            let is_log = |name: &std::ffi::OsStr| name.as_encoded_bytes().ends_with(b".log");
            let mut logs = fs::read_dir(log.path()).unwrap();
            assert!(logs.any(|entry| is_log(&entry.unwrap().file_name())));
            let mut others = fs::read_dir(dir.path()).unwrap();
            assert!(others.all(|entry| !is_log(&entry.unwrap().file_name())));
        }
    }

    #[test]
    fn a_log_elsewhere_is_what_the_stand_in_has() {
        let dir = tempfile::tempdir().unwrap();
        assert!(RocksDb::STAND_IN.open(dir.path(), 10, 10).is_err());
        let otherwise = Otherwise {
            log_dir: Some(dir.path().to_owned()),
            memtable_bytes: None,
        };
        let usual = RocksDb::USUAL.open_otherwise(dir.path(), 10, 10, &otherwise);
        assert!(usual.is_err());
    }
}
