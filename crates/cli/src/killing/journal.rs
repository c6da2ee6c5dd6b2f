//! The ledger of a campaign, and its durable form: the expected-state file, which clients write outside the
//! pool.
//!
//! The file is text, only ever appended to, one event a line: what clients are about to ask for, and what
//! they were told. A request is here before it is sent, and an answer is here before anybody relies on it.
//! So whoever reads the file knows what the store owes, also if the campaign itself was killed: a last line
//! without its end is cut off.

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

/// The wall clock, which the server's expiry uses too.
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

/// Cuts off a last line that has no end.
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

/// The end of the file that is written.
pub(crate) struct Journal {
    file: Mutex<File>,
}

impl Journal {
    /// Opens the file at `path`, or makes it, for one campaign at a time. What a killed campaign wrote half
    /// is cut off.
    ///
    /// # Errors
    /// If it cannot be written, another campaign is writing it, or it is something else, which then stays as
    /// it is.
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

    /// Appends whole lines: they are in the file when this returns, whatever happens to this process.
    ///
    /// # Errors
    /// If the file cannot be written; the lines must then not be acted on.
    pub(crate) fn append(&self, lines: &str) -> anyhow::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.write_all(lines.as_bytes());
        written.context("writing the expected-state file")
    }
}

/// What clients asked for and were told.
#[derive(Clone, Copy)]
pub(crate) struct Ledger<'a> {
    pub(crate) expected: &'a Expected,
    /// Where it is written down for whoever comes after this process; `None` keeps it in memory only.
    pub(crate) journal: Option<&'a Journal>,
}

/// What one thread adds to a ledger.
pub(crate) struct Notes<'a> {
    ledger: Ledger<'a>,
    /// Of the file, not written yet.
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

    /// To be called before anybody relies on what was added.
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
