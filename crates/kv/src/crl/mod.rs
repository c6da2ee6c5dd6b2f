//! Cross-referencing logs (section 2.3 of Bullet's paper): they make any volatile structure persistent.
//!
//! Writers append entries to circular logs, in groups; one fence makes a group durable. The user of the logs
//! gives entries their meaning. Log room is reclaimed epoch by epoch: a pass applies the entries of an epoch
//! to a back (the trait `Back`), then writes one ledger that moves the heads of all logs. After a crash
//! recovery replays the logs (the trait `Replay`).
//!
//! Engine `bullet` logs for its table in DRAM and applies to its persistent table. [`Journal`] does it for
//! any map of a program, with the logs as the only copy:
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
//!     fn show(&self, key: &[u8], version: u64, value: Option<&[u8]>) {
//!         let mut map = self.0.write().unwrap();
//!         match value {
//!             Some(value) => map.insert(key.into(), (version, value.into())),
//!             None => map.remove(key),
//!         };
//!     }
//!     fn version(&self, key: &[u8]) -> Option<u64> {
//!         self.0.read().unwrap().get(key).map(|(version, _)| *version)
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
pub(crate) use ledger::{LEDGERS_AT, LEDGERS_END, LOGS_MAX, Ledger, Notes};
pub(crate) use log::{Group, Logs, Shape};
pub(crate) use pass::{Back, Step};
pub(crate) use recover::Replay;

#[doc(hidden)]
pub use journal::{Journal, Volatile, identity};
pub use writer::Writer;
