//! A hash map of the crate `scc`, made persistent by cross-referencing logs. Kill it at any time, and run it
//! again: `cargo run --release -p everdram --example persistent_map -- PATH`

use everdram::Options;
use everdram::crl::{Journal, Volatile};
use scc::HashMap;
use std::time::Instant;

/// A plain map in DRAM; each value has the journal's number for it.
#[derive(Default)]
struct Map(HashMap<Vec<u8>, (u64, Vec<u8>)>);

impl Volatile for Map {
    fn show(&self, key: &[u8], version: u64, value: Option<&[u8]>) {
        match value {
            Some(value) => drop(self.0.upsert_sync(key.to_vec(), (version, value.to_vec()))),
            None => drop(self.0.remove_sync(key)),
        }
    }

    fn version(&self, key: &[u8]) -> Option<u64> {
        self.0.read_sync(key, |_, (version, _)| *version)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("where is the map?")?;
    let journal = &Journal::open(path, &Options::default(), Map::default())?;
    std::thread::scope(|scope| {
        for name in ["ann", "bob"] {
            scope.spawn(move || count(journal, name).expect("a medium that works"));
        }
    });
    let (used, most) = journal.used_bytes();
    println!("{used} bytes of logs are in use; they are cleaned before there are {most}");
    Ok(())
}

/// Counts for ten seconds, from the result of the last run.
fn count(journal: &Journal<Map>, name: &str) -> Result<(), everdram::Error> {
    let key = name.as_bytes();
    let Map(map) = journal.map();
    let found = map.read_sync(key, |_, (_, value)| value.clone());
    let text = String::from_utf8(found.unwrap_or_default()).unwrap_or_default();
    let mut number: u64 = text.parse().unwrap_or(0);
    println!("{name} goes on from {number}");
    let (mut writer, begun, mut seconds) = (journal.writer(), Instant::now(), 0);
    while seconds < 10 {
        number += 1;
        writer.put(key, number.to_string().as_bytes())?; // durable when it returns
        if begun.elapsed().as_secs() > seconds {
            seconds += 1;
            println!("{name} has counted to {number}");
        }
    }
    Ok(())
}
