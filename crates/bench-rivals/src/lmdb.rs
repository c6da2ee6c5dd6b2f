//! LMDB: a transaction for each call, synced when it commits (neither `MDB_NOSYNC` nor `MDB_NOMETASYNC`), one
//! writer at a time.
//!
//! Its cache is the page cache. The map only reserves addresses, so it is made large enough for half-filled
//! pages and for values that take pages of their own.

use crate::shared::{folder_bytes, increment};
use anyhow::Context;
use everdram_bench::{Client, Durability, Error, Opener, Subject};
use lmdb::{Cursor, Database, Environment, RwTransaction, Transaction, WriteFlags};
use std::path::{Path, PathBuf};

/// More than the threads of any run; LMDB reserves a slot for each reader.
const READERS: u32 = 1024;

pub(crate) struct Lmdb;

impl Opener for Lmdb {
    fn name(&self) -> &'static str {
        "lmdb"
    }

    fn version(&self) -> String {
        format!(
            "{}.{}.{}",
            lmdb_sys::MDB_VERSION_MAJOR,
            lmdb_sys::MDB_VERSION_MINOR,
            lmdb_sys::MDB_VERSION_PATCH
        )
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
        let record_bytes_at_most = 4 * record_bytes as u64 + 4096;
        let map_bytes = records
            .saturating_mul(record_bytes_at_most)
            .saturating_add(1 << 30);
        let environment = Environment::new()
            .set_map_size(usize::try_from(map_bytes)?)
            .set_max_readers(READERS)
            .open(dir)
            .with_context(|| format!("LMDB does not open {}", dir.display()))?;
        let table = environment.open_db(None)?;
        Ok(Box::new(Map {
            environment,
            table,
            dir: dir.to_owned(),
        }))
    }
}

struct Map {
    environment: Environment,
    table: Database,
    dir: PathBuf,
}

impl Subject for Map {
    fn client(&self) -> Result<Box<dyn Client + '_>, Error> {
        Ok(Box::new(MapClient { map: self }))
    }

    fn medium_bytes(&self) -> Option<u64> {
        Some(folder_bytes(&self.dir))
    }
}

struct MapClient<'a> {
    map: &'a Map,
}

impl MapClient<'_> {
    /// One transaction, durable when this returns.
    fn write<T>(
        &self,
        work: impl FnOnce(&mut RwTransaction<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut transaction = self.map.environment.begin_rw_txn()?;
        let outcome = work(&mut transaction)?;
        transaction.commit()?;
        Ok(outcome)
    }
}

/// `None` where LMDB says that there is no such key.
fn present<T>(outcome: Result<T, lmdb::Error>) -> Result<Option<T>, Error> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(lmdb::Error::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Client for MapClient<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let table = self.map.table;
        self.write(|transaction| Ok(transaction.put(table, &key, &value, WriteFlags::empty())?))
    }

    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        Ok(self.get_many(&[key], into)? == 1)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let table = self.map.table;
        self.write(|transaction| Ok(present(transaction.del(table, &key, None))?.is_some()))
    }

    fn update_word(&mut self, key: &[u8]) -> Result<bool, Error> {
        let table = self.map.table;
        self.write(|transaction| {
            let Some(mut value) = present(transaction.get(table, &key))?.map(<[u8]>::to_vec) else {
                return Ok(false);
            };
            increment(&mut value)?;
            transaction.put(table, &key, &value, WriteFlags::empty())?;
            Ok(true)
        })
    }

    fn put_many(&mut self, records: &[(&[u8], &[u8])]) -> Result<(), Error> {
        let table = self.map.table;
        self.write(|transaction| {
            for (key, value) in records {
                transaction.put(table, key, value, WriteFlags::empty())?;
            }
            Ok(())
        })
    }

    fn get_many(&mut self, keys: &[&[u8]], into: &mut Vec<u8>) -> Result<usize, Error> {
        let transaction = self.map.environment.begin_ro_txn()?;
        let mut found = 0;
        for key in keys {
            if let Some(value) = present(transaction.get(self.map.table, key))? {
                into.extend_from_slice(value);
                found += 1;
            }
        }
        Ok(found)
    }

    fn scan(&mut self, key: &[u8], count: usize, into: &mut Vec<u8>) -> Result<usize, Error> {
        let transaction = self.map.environment.begin_ro_txn()?;
        let mut cursor = transaction.open_ro_cursor(self.map.table)?;
        let mut visited = 0;
        for record in cursor.iter_from(key).take(count) {
            into.extend_from_slice(record?.1);
            visited += 1;
        }
        Ok(visited)
    }
}
