//! everdram itself as a subject: the library, called as a program calls it.

use crate::subject::{Client, Durability, Error, Opener, Subject};
use crate::workload::corpus::{Corpus, Maker};
use anyhow::{Context, ensure};
use everdram::engine::EngineSession;
use everdram::options::{DstoreOptions, TieredOptions};
use everdram::{EngineKind, Found, Medium, MediumChoice, Options, Session, Store, Ticket};
use std::path::Path;

/// Bytes that a record needs in a pool beside its key and value, and the room that open blocks leave:
/// generous.
const BESIDE_BYTES: u64 = 40;
/// What `dstore` needs in its pool for a record whose value is on the data file, and for checkpoints.
const DSTORE_RECORD_BYTES: u64 = 128;
const DSTORE_BESIDE_BYTES: u64 = 64 << 20;
/// Sessions that write, one after another, to fill logs alike.
const FILLERS: usize = 16;
/// Records of a commit when logs are filled.
const FILL_BATCH: usize = 32;

/// Opens everdram on a medium.
#[derive(Clone, Debug)]
pub struct Everdram {
    /// Its engine.
    pub engine: EngineKind,
    /// Where the pool lives.
    pub medium: Medium,
    /// Lengths of key and value that get fixed-size pages.
    pub fixed: Option<(u32, u32)>,
    /// Whether the pool is made as large as its records need at once, and its pages present, so that a run
    /// measures neither growth nor first touches.
    pub prefault: bool,
    /// Whether checkpoints of the index are written, with which a restart begins.
    pub checkpoint: bool,
    /// Delay model of the memory, by name.
    pub delay: Option<String>,
    /// Limit of the pool in bytes, if it is to have one.
    pub max_bytes: Option<u64>,
    /// Settings of the engine `tiered`.
    pub tiered: TieredOptions,
    /// Settings of the engine `dstore`.
    pub dstore: DstoreOptions,
    /// `dstore`: whether a crash is to find so many bytes in the logs. Half of the logs is more, so that no
    /// checkpoint begins.
    pub logged_bytes: Option<u64>,
}

impl Everdram {
    /// The default engine on `medium`, variable-size pages, prefaulted.
    #[must_use]
    pub fn on(medium: Medium) -> Everdram {
        Everdram {
            engine: EngineKind::default(),
            medium,
            fixed: None,
            prefault: true,
            checkpoint: true,
            delay: None,
            max_bytes: None,
            tiered: TieredOptions::default(),
            dstore: DstoreOptions::default(),
            logged_bytes: None,
        }
    }

    fn options(&self, records: u64, record_bytes: usize) -> Options {
        let mut options = Options::default();
        options.engine = Some(self.engine);
        options.medium = MediumChoice::Only(self.medium);
        options.fixed = self.fixed;
        options.prefault = self.prefault;
        options.delay.clone_from(&self.delay);
        options.dstore.clone_from(&self.dstore);
        options.tiered.clone_from(&self.tiered);
        if !self.checkpoint {
            options.checkpoint_bytes = 0;
        }
        if self.prefault && self.engine == EngineKind::Dstore {
            let metadata = records * DSTORE_RECORD_BYTES + DSTORE_BESIDE_BYTES;
            let logs = u64::from(self.dstore.logs) * self.dstore.log_bytes;
            options.initial_bytes = (metadata + logs).next_multiple_of(1 << 20);
        } else if self.prefault {
            let wanted = records * (record_bytes as u64 + BESIDE_BYTES) * 5 / 4;
            options.initial_bytes = options.initial_bytes.max(wanted.next_multiple_of(1 << 20));
        }
        if let Some(bytes) = self.max_bytes {
            options.max_bytes = bytes;
            // The pool's own lines must have room, too: it grows up to the limit by itself.
            options.initial_bytes = options.initial_bytes.min(bytes / 2);
            // In steps that are small beside the limit: one that is larger than what is left is not taken.
            options.chunk_bytes = options.chunk_bytes.min(bytes / 64);
        }
        options
    }

    fn store(&self, dir: &Path, records: u64, record_bytes: usize) -> Result<Store, Error> {
        let path = dir.join("pool");
        Store::open(&path, &self.options(records, record_bytes))
            .with_context(|| format!("opening {}", path.display()))
    }
}

impl Opener for Everdram {
    fn name(&self) -> &'static str {
        "everdram"
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").into()
    }

    fn label(&self) -> String {
        let pages = if self.fixed.is_some() { ", fixed" } else { "" };
        format!("everdram {}{pages}", self.engine)
    }

    fn medium(&self, _dir: &Path) -> String {
        self.medium.to_string()
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
        let store = self.store(dir, records, record_bytes)?;
        Ok(Box::new(Open {
            store,
            is_prefaulted: self.prefault,
        }))
    }

    fn before_crash(
        &self,
        subject: &dyn Subject,
        corpus: &Corpus,
        records: u64,
    ) -> Result<(), Error> {
        let (Some(wanted), Some(store)) = (self.logged_bytes, subject.store()) else {
            return Ok(());
        };
        store.checkpoint()?;
        let clients: Result<Vec<_>, _> = (0..FILLERS).map(|_| subject.client()).collect();
        let mut clients = clients?;
        let mut makers: Vec<_> = (0..FILL_BATCH).map(|_| Maker::new(corpus)).collect();
        let logged = || store.stats().own("log_used_bytes").unwrap_or(0);
        let before = store.stats().own("checkpoints");
        let mut next = 0;
        while logged() < wanted {
            for client in &mut clients {
                let numbers = (next..).map(|number| number % records);
                let pairs = makers.iter_mut().zip(numbers);
                let some: Vec<_> = pairs.map(|(maker, at)| maker.record(at, 1)).collect();
                client.put_many(&some)?;
                next += FILL_BATCH as u64;
            }
            ensure!(
                store.stats().own("checkpoints") == before,
                "a checkpoint began before the logs held {wanted} bytes"
            );
        }
        Ok(())
    }
}

/// An open store.
pub(crate) struct Open {
    pub(crate) store: Store,
    pub(crate) is_prefaulted: bool,
}

impl Subject for Open {
    fn client(&self) -> Result<Box<dyn Client + '_>, Error> {
        Ok(Box::new(Way::over(self.store.session()?)))
    }

    fn store(&self) -> Option<&Store> {
        Some(&self.store)
    }

    fn dram_bytes(&self) -> Option<u64> {
        Some(self.store.stats().index_bytes)
    }

    fn own(&self, name: &str) -> Option<u64> {
        self.store.stats().own(name)
    }

    fn checkpoint(&self) -> Result<(), Error> {
        Ok(self.store.checkpoint()?)
    }

    /// Of a pool that was made large beforehand, the part that is in use.
    fn medium_bytes(&self) -> Option<u64> {
        let stats = self.store.stats();
        Some(if self.is_prefaulted {
            stats.used_bytes
        } else {
            stats.pool_bytes
        })
    }
}

/// A session, and where its scans go on.
struct Way {
    session: Session,
    found: Vec<(Option<Found>, usize)>,
    cursor: u64,
    keys: Vec<u8>,
    ends: Vec<usize>,
}

impl Way {
    fn over(session: Session) -> Way {
        Way {
            session,
            found: Vec::new(),
            cursor: 0,
            keys: Vec::new(),
            ends: Vec::new(),
        }
    }
}

impl Client for Way {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.session.put(key, value)?;
        Ok(())
    }

    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        Ok(self.session.get_into(key, into)?.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.session.delete(key)?)
    }

    fn turn(&mut self) -> Result<bool, Error> {
        Ok(self.session.turn()?)
    }

    fn update_word(&mut self, key: &[u8]) -> Result<bool, Error> {
        let before = self
            .session
            .update_word(key, 0, &mut |word| word.wrapping_add(1))?;
        Ok(before.is_some())
    }

    fn put_many(&mut self, records: &[(&[u8], &[u8])]) -> Result<(), Error> {
        for (key, value) in records {
            self.session.submit_put(key, value)?;
        }
        let ticket = self.session.commit()?;
        Ok(self.session.wait(ticket)?)
    }

    fn get_many(&mut self, keys: &[&[u8]], into: &mut Vec<u8>) -> Result<usize, Error> {
        self.found.clear();
        let engine = self.session.engine();
        engine.get_many(keys, into, &mut self.found)?;
        let ticket = engine.last_read();
        wait(engine, ticket)?;
        Ok(self
            .found
            .iter()
            .filter(|(found, _)| found.is_some())
            .count())
    }

    /// Goes on where the last scan ended: a hash index has no order to begin in.
    fn scan(&mut self, _key: &[u8], count: usize, into: &mut Vec<u8>) -> Result<usize, Error> {
        let (keys, ends) = (&mut self.keys, &mut self.ends);
        keys.clear();
        ends.clear();
        // At the end of the store there may be none left: once more, from its start.
        for _ in 0..2 {
            self.cursor = self.session.scan(self.cursor, count, &mut |key, _, _| {
                if ends.len() < count {
                    keys.extend_from_slice(key);
                    ends.push(keys.len());
                }
            })?;
            if !ends.is_empty() {
                break;
            }
        }
        let mut visited = 0;
        let mut from = 0;
        for end in ends {
            visited += usize::from(self.session.get_into(&keys[from..*end], into)?.is_some());
            from = *end;
        }
        Ok(visited)
    }
}

fn wait(engine: &mut dyn EngineSession, ticket: Ticket) -> Result<(), Error> {
    Ok(engine.wait(ticket)?)
}
