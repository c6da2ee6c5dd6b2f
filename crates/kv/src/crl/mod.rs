//! Cross-referencing logs (section 2.3 of Bullet's paper): what makes something volatile persistent, whatever it is.

mod cursor;
mod entry;
mod holes;
mod ledger;
mod log;
mod pass;
mod recover;

pub(crate) use cursor::{Cursor, Entries, Next};
pub(crate) use entry::{ENTRY_HEAD, Entry, RecordAt, word_at};
pub(crate) use ledger::{LEDGERS_AT, LOGS_MAX, Ledger, Notes};
pub(crate) use log::{Group, Logs, Shape};
pub(crate) use pass::{Back, Step};
pub(crate) use recover::Replay;
