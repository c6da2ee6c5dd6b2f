//! The ledger of a campaign and its durable form, the expected-state file. Clients write this file outside
//! the pool.
//!
//! The file is text and append-only, one event a line: what clients are about to request, and which answers
//! they received. A client records a request before it sends it, and an answer before it relies on it. So the
//! file says what the store owes, even if the campaign itself was killed. An incomplete last line is cut off.

use super::expected::{Event, Expected};
use crate::settings::usage;
use anyhow::Context;
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) const FIRST_LINE: &str = "everdram expected state 1";

/// The wall clock; the server's expiry uses it too.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

pub(crate) fn name(path: &Path) -> String {
    format!("the expected-state file {}", path.display())
}

pub(crate) fn not_ours(path: &Path) -> anyhow::Error {
    let path = path.display();
    usage(format!(
        "{path} is no expected-state file: it does not begin with `{FIRST_LINE}`; give the name of another file, or a new one"
    ))
}

/// Cuts off an incomplete last line.
fn cut_last_line(file: &mut File) -> io::Result<()> {
    file.rewind()?;
    let mut whole = 0;
    let mut reader = BufReader::new(&mut *file);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        whole += line.len() as u64;
        line.clear();
    }
    file.set_len(whole)
}

/// The end of an expected-state file, to which events are appended.
pub(crate) struct Journal {
    file: Mutex<File>,
}

impl Journal {
    /// Opens or creates the file at `path`, for one campaign at a time. Cuts off the incomplete last line of
    /// a killed campaign.
    ///
    /// # Errors
    /// If the file cannot be written, another campaign is writing it, or it is no expected-state file. It
    /// stays unchanged then.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Journal> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(path);
        let mut file = file.with_context(|| name(path))?;
        file.try_lock()
            .with_context(|| format!("{}: another campaign is writing it", name(path)))?;
        let mut begin = Vec::new();
        let title = format!("{FIRST_LINE}\n");
        (&mut file)
            .take(title.len() as u64)
            .read_to_end(&mut begin)?;
        if !title.as_bytes().starts_with(&begin) {
            return Err(not_ours(path));
        }
        cut_last_line(&mut file)?;
        if file.metadata()?.len() == 0 {
            file.write_all(title.as_bytes())?;
        }
        Ok(Journal {
            file: Mutex::new(file),
        })
    }

    /// Appends complete lines. The lines are in the file on return, even if this process dies then.
    ///
    /// # Errors
    /// If the file cannot be written. The caller must then not act on the lines.
    pub(crate) fn append(&self, lines: &str) -> anyhow::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.write_all(lines.as_bytes());
        written.context("writing the expected-state file")
    }
}

/// The requests of the clients and the answers they received.
#[derive(Clone, Copy)]
pub(crate) struct Ledger<'a> {
    pub(crate) expected: &'a Expected,
    /// The file for a later process; `None` keeps the ledger in memory only.
    pub(crate) journal: Option<&'a Journal>,
}

/// The entries that one thread adds to a ledger.
pub(crate) struct Notes<'a> {
    ledger: Ledger<'a>,
    /// Lines not written to the file yet.
    lines: String,
}

impl<'a> Ledger<'a> {
    pub(crate) fn notes(self) -> Notes<'a> {
        let lines = String::new();
        Notes {
            ledger: self,
            lines,
        }
    }
}

impl Notes<'_> {
    pub(crate) fn add(&mut self, event: Event) {
        self.ledger.expected.apply(event);
        if self.ledger.journal.is_some() {
            // Writing to a string cannot fail.
            let _ = write!(self.lines, "{event}");
        }
    }

    /// Writes the added entries. Call it before relying on them.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        let journal = self.ledger.journal;
        let written = journal.map_or(Ok(()), |journal| journal.append(&self.lines));
        self.lines.clear();
        written
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (letter, key, number, at_ms) = match *self {
            Event::Sent { key, state } => {
                let (number, value, at) = (state.number, state.value, state.expires_at_ms);
                return writeln!(f, "S {key} {number} {value} {at}");
            }
            Event::Acknowledged { key, number, at_ms } => ('A', key, number, at_ms),
            Event::Shown { key, number, at_ms } => ('R', key, number, at_ms),
            Event::Found { key, number, at_ms } => ('F', key, number, at_ms),
        };
        writeln!(f, "{letter} {key} {number} {at_ms}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_campaign_on_the_same_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("expected");
        let first = Journal::open(&path).unwrap();
        let error = Journal::open(&path).err().unwrap();
        assert!(format!("{error:#}").contains("another campaign"));
        drop(first);
        Journal::open(&path).unwrap();
    }
}
