//! scc's concurrent hash map in DRAM: what a store could do if nothing had to last. The map is sized for the
//! records, and its hash is xxh3, as a program that cares for speed would have it.

use crate::shared::{increment, locked_version};
use everdram_bench::{Client, Durability, Error, Opener, Subject};
use scc::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64_with_seed;

type Map = HashMap<Box<[u8]>, Box<[u8]>, Hash>;

pub(crate) struct Scc;

impl Opener for Scc {
    fn name(&self) -> &'static str {
        "scc"
    }

    fn version(&self) -> String {
        locked_version("scc")
    }

    fn medium(&self, _dir: &Path) -> String {
        "dram".into()
    }

    fn durability(&self) -> Durability {
        Durability::Never
    }

    fn open(
        &self,
        _dir: &Path,
        records: u64,
        _record_bytes: usize,
    ) -> Result<Box<dyn Subject>, Error> {
        let map = Map::with_capacity_and_hasher(usize::try_from(records)?, Hash);
        Ok(Box::new(Volatile { map }))
    }
}

#[derive(Clone, Copy)]
struct Hash;

impl BuildHasher for Hash {
    type Hasher = Xxh3;

    fn build_hasher(&self) -> Xxh3 {
        Xxh3(0)
    }
}

/// Each part is hashed at once, with what came before as its seed: short keys need no more.
struct Xxh3(u64);

impl Hasher for Xxh3 {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_usize(&mut self, length: usize) {
        self.0 ^= length as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

struct Volatile {
    map: Map,
}

impl Subject for Volatile {
    fn client(&self) -> Result<Box<dyn Client + '_>, Error> {
        Ok(Box::new(VolatileClient { map: &self.map }))
    }
}

struct VolatileClient<'a> {
    map: &'a Map,
}

impl Client for VolatileClient<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.map.upsert_sync(key.into(), value.into());
        Ok(())
    }

    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        let found = self
            .map
            .read_sync(key, |_, value| into.extend_from_slice(value));
        Ok(found.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.map.remove_sync(key).is_some())
    }

    fn update_word(&mut self, key: &[u8]) -> Result<bool, Error> {
        let stepped = self.map.update_sync(key, |_, value| increment(value));
        Ok(stepped.transpose()?.is_some())
    }

    fn scan(&mut self, key: &[u8], count: usize, into: &mut Vec<u8>) -> Result<usize, Error> {
        let mut entry = self.map.get_sync(key).or_else(|| self.map.begin_sync());
        let mut visited = 0;
        while visited < count {
            let Some(here) = entry else { break };
            into.extend_from_slice(here.get());
            visited += 1;
            entry = here.next_sync();
        }
        Ok(visited)
    }
}
