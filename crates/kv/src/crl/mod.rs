//! Cross-referencing logs (section 2.3 of Bullet's paper): what makes something volatile persistent, whatever
//! it is.
//!
//! Writers append entries to circular logs, in groups; an entry is durable with one fence. What entries say
//! is for whoever logs. Their room is used again epoch by epoch: a pass has them applied to something else,
//! which is a trait, and writes one ledger that moves the heads of all logs. After a crash what is in the
//! logs is replayed, into something that is another trait.
//!
//! Engine `bullet` logs for its table in DRAM and applies to its persistent table. [`Journal`] does it for
//! any map that a program has; nothing but the logs is behind that:
//!
//! ```
//! use everdram::crl::{Journal, Volatile};
//! use std::collections::HashMap;
//! use std::sync::RwLock;
//!
//! #[derive(Default)]
//! struct Map(RwLock<HashMap<Vec<u8>, (u64, Vec<u8>)>>);
//!
//! impl Volatile for Map {
//!     fn show(&self, key: &[u8], lsn: u64, value: Option<&[u8]>) {
//!         let mut map = self.0.write().unwrap();
//!         match value {
//!             Some(value) => map.insert(key.into(), (lsn, value.into())),
//!             None => map.remove(key),
//!         };
//!     }
//!     fn lsn(&self, key: &[u8]) -> Option<u64> {
//!         self.0.read().unwrap().get(key).map(|(lsn, _)| *lsn)
//!     }
//! }
//! # fn main() -> Result<(), everdram::Error> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("journal");
//! let journal = Journal::open(path, &everdram::Options::default(), Map::default())?;
//! let mut writer = journal.writer(); // one for each thread
//! writer.put(b"key", b"value")?; // durable when it returns
//! assert!(journal.map().0.read().unwrap().contains_key(&b"key"[..]));
//! # drop(writer);
//! journal.close()
//! # }
//! ```

mod change;
mod cursor;
mod entry;
mod estimate;
mod inspect;
mod journal;
mod ledger;
mod log;
mod pass;
mod recover;
mod writer;

pub(crate) use cursor::{Cursor, Entries, Next};
pub(crate) use entry::{ENTRY_HEAD, Entry, RecordAt, word_at};
pub(crate) use inspect::{NAME as JOURNAL_NAME, check, describe, pool};
pub(crate) use ledger::{LEDGERS_AT, LOGS_MAX, Ledger, Notes};
pub(crate) use log::{Group, Logs, Shape};
pub(crate) use pass::{Back, Step};
pub(crate) use recover::Replay;

#[doc(hidden)]
pub use journal::{Journal, Volatile, identity};
pub use writer::Writer;
