//! everdram over memory in which every store, flush and fence is counted: what an operation costs the medium.
//!
//! The substrate keeps no such counters, which would cost its hot path. The crash lab's tap hears of every
//! event exactly; it is too slow to be timed under, so counting is a pass of its own. There is no background
//! thread: what compaction and growth write is what the operations themselves made necessary.

use crate::subject::{Client, Durability, Error, Opener, Subject, Traffic};
use everdram::engine::{Engine, EngineSession};
use everdram::{EngineKind, Options};
use everdram_pm::lab::{Actor, Event, Perform, Seed, Source, StoreKind, Tap};
use everdram_pm::{LINE, Region};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Opens everdram in memory that counts.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Its engine.
    pub engine: EngineKind,
    /// Lengths of key and value that get fixed-size pages.
    pub fixed: Option<(u32, u32)>,
}

impl Opener for Counted {
    fn name(&self) -> &'static str {
        "everdram"
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").into()
    }

    fn durability(&self) -> Durability {
        Durability::Never
    }

    fn open(
        &self,
        _dir: &Path,
        records: u64,
        record_bytes: usize,
    ) -> Result<Box<dyn Subject>, Error> {
        let mut options = Options::default();
        options.engine = Some(self.engine);
        options.fixed = self.fixed;
        let capacity = (64 << 20) + records * (record_bytes as u64 + 64) * 4;
        let capacity = capacity.next_multiple_of(4096);
        options.max_bytes = capacity;
        let (engine, geometry) = everdram::lab::identity(&options)?;
        let image = everdram_pm::lab::create(Seed(1), engine, geometry)?;
        let counts = Arc::new(Counts::default());
        let tap = Arc::clone(&counts) as Arc<dyn Tap>;
        let pool = everdram_pm::lab::open(&image, capacity, Some(tap))?;
        let opened = everdram::lab::open(pool, &options)?;
        Ok(Box::new(Open {
            engine: opened.engine(),
            counts,
        }))
    }
}

/// What the tap heard.
#[derive(Default)]
struct Counts {
    actors: AtomicU32,
    fences: AtomicU64,
    lines: AtomicU64,
    bytes: AtomicU64,
}

impl Tap for Counts {
    fn actor(&self) -> Actor {
        self.actors.fetch_add(1, Relaxed)
    }

    fn event(
        &self,
        _region: &Region,
        _source: Source,
        event: Event<'_>,
        perform: Perform<'_>,
    ) -> bool {
        match event {
            Event::Store { bytes, kind, .. } => {
                if !perform() {
                    return false;
                }
                self.bytes.fetch_add(bytes.len() as u64, Relaxed);
                if kind == StoreKind::Stream {
                    self.lines.fetch_add(bytes.len() as u64 / LINE, Relaxed);
                }
                return true;
            }
            Event::Flush { at, bytes, .. } => {
                let lines = (at + bytes).div_ceil(LINE) - at / LINE;
                self.lines.fetch_add(lines, Relaxed);
            }
            Event::Fence => {
                self.fences.fetch_add(1, Relaxed);
            }
        }
        perform()
    }

    fn load(&self, _region: &Region, _at: u64, _bytes: u64) {}
}

struct Open {
    engine: Arc<dyn Engine>,
    counts: Arc<Counts>,
}

impl Subject for Open {
    fn client(&self) -> Result<Box<dyn Client + '_>, Error> {
        Ok(Box::new(Way(Arc::clone(&self.engine).session()?)))
    }

    fn traffic(&self) -> Option<Traffic> {
        Some(Traffic {
            fences: self.counts.fences.load(Relaxed),
            lines: self.counts.lines.load(Relaxed),
            bytes: self.counts.bytes.load(Relaxed),
        })
    }
}

/// Submit, commit and wait, as a session of the library does.
struct Way(Box<dyn EngineSession>);

impl Way {
    fn finish(&mut self) -> Result<(), Error> {
        let ticket = self.0.commit()?;
        Ok(self.0.wait(ticket)?)
    }
}

impl Client for Way {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.0.put(key, value, 0)?;
        self.finish()
    }

    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        Ok(self.0.get(key, into)?.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let was = self.0.delete(key)?;
        self.finish()?;
        Ok(was)
    }

    fn update_word(&mut self, key: &[u8]) -> Result<bool, Error> {
        let before = self
            .0
            .update_word(key, 0, &mut |word| word.wrapping_add(1))?;
        self.finish()?;
        Ok(before.is_some())
    }

    fn put_many(&mut self, records: &[(&[u8], &[u8])]) -> Result<(), Error> {
        for (key, value) in records {
            self.0.put(key, value, 0)?;
        }
        self.finish()
    }

    /// Reads write nothing: the keys alone will do.
    fn scan(&mut self, _key: &[u8], count: usize, into: &mut Vec<u8>) -> Result<usize, Error> {
        let mut visited = 0;
        self.0.scan(0, count, &mut |key, _, _| {
            into.extend_from_slice(key);
            visited += 1;
        })?;
        Ok(visited)
    }
}
