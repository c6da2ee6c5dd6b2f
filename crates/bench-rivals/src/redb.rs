//! redb: a transaction for each call, committed with `Durability::Immediate`, one writer at a time; the cache
//! fits the data.

use crate::shared::{cache_bytes, folder_bytes, increment, locked_version};
use anyhow::Context;
use everdram_bench::{Client, Durability, Error, Opener, Subject};
use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition};
use std::path::{Path, PathBuf};

const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

pub(crate) struct Redb;

impl Opener for Redb {
    fn name(&self) -> &'static str {
        "redb"
    }

    fn version(&self) -> String {
        locked_version("redb")
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
        let database = Database::builder()
            .set_cache_size(usize::try_from(cache_bytes(records, record_bytes))?)
            .create(dir.join("redb"))
            .with_context(|| format!("redb does not open {}", dir.display()))?;
        let tree = Tree {
            database,
            dir: dir.to_owned(),
        };
        tree.write(|_| Ok(()))?;
        Ok(Box::new(tree))
    }
}

struct Tree {
    database: Database,
    dir: PathBuf,
}

impl Tree {
    /// One transaction, durable when this returns; the first makes the table.
    fn write<T>(
        &self,
        work: impl FnOnce(&mut Table<'_, &'static [u8], &'static [u8]>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(redb::Durability::Immediate)?;
        let outcome = work(&mut transaction.open_table(RECORDS)?)?;
        transaction.commit()?;
        Ok(outcome)
    }
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

impl Client for TreeClient<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.put_many(&[(key, value)])
    }

    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        Ok(self.get_many(&[key], into)? == 1)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.tree.write(|table| Ok(table.remove(key)?.is_some()))
    }

    fn update_word(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.tree.write(|table| {
            let Some(mut value) = table.get(key)?.map(|guard| guard.value().to_vec()) else {
                return Ok(false);
            };
            increment(&mut value)?;
            table.insert(key, value.as_slice())?;
            Ok(true)
        })
    }

    fn put_many(&mut self, records: &[(&[u8], &[u8])]) -> Result<(), Error> {
        self.tree.write(|table| {
            for (key, value) in records {
                table.insert(key, value)?;
            }
            Ok(())
        })
    }

    fn get_many(&mut self, keys: &[&[u8]], into: &mut Vec<u8>) -> Result<usize, Error> {
        let table = self.tree.database.begin_read()?.open_table(RECORDS)?;
        let mut found = 0;
        for key in keys {
            if let Some(guard) = table.get(key)? {
                into.extend_from_slice(guard.value());
                found += 1;
            }
        }
        Ok(found)
    }

    fn scan(&mut self, key: &[u8], count: usize, into: &mut Vec<u8>) -> Result<usize, Error> {
        let table = self.tree.database.begin_read()?.open_table(RECORDS)?;
        let mut visited = 0;
        for record in table.range(key..)?.take(count) {
            into.extend_from_slice(record?.1.value());
            visited += 1;
        }
        Ok(visited)
    }
}
