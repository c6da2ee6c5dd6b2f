//! Reads an expected-state file from its beginning, and goes on as it grows.
//!
//! One event a line ([`journal`](crate::killing::journal)); times are Unix milliseconds:
//!
//! ```text
//! everdram expected state 1
//! P 6 file viper 4194304 16777216 /path   a new, empty pool: connections, medium, engine, chunk, log, path
//! S 17 45 45 0                            key 17: write 45 is about to be sent; its value is 45, it never expires
//! A 17 45 1763721530123                   write 45 of key 17 was acknowledged
//! R 17 45 1763721530124                   a reader was shown write 45 of key 17
//! K 1763721530200                         the server was killed
//! F 17 45 1763721530300                   after the kill key 17 held write 45: later ones did not happen
//! ```

use super::keys::Keys;
use crate::killing::expected::{Event, Expected, State};
use crate::killing::journal::{FIRST_LINE, name, not_ours};
use crate::killing::keys::Keys as _;
use anyhow::Context;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A pool of a campaign, and how its server is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) keys: Keys,
    pub(crate) medium: String,
    pub(crate) engine: String,
    pub(crate) chunk_bytes: u64,
    pub(crate) log_bytes: u64,
    pub(crate) path: PathBuf,
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Pool(Pool),
    Event(Event),
    Killed { at_ms: u64 },
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Pool(pool) => writeln!(
                f,
                "P {} {} {} {} {} {}",
                pool.keys.connections,
                pool.medium,
                pool.engine,
                pool.chunk_bytes,
                pool.log_bytes,
                pool.path.display()
            ),
            Line::Event(event) => write!(f, "{event}"),
            Line::Killed { at_ms } => writeln!(f, "K {at_ms}"),
        }
    }
}

impl Line {
    /// `None` if this program does not write such a line.
    fn parse(text: &str) -> Option<Line> {
        let (letter, rest) = text.split_once(' ')?;
        if letter == "P" {
            return Line::parse_pool(rest);
        }
        let numbers: Vec<u64> = rest
            .split(' ')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        let key = usize::try_from(*numbers.first()?).ok()?;
        let event = match (letter, numbers.as_slice()) {
            ("K", &[at_ms]) => return Some(Line::Killed { at_ms }),
            ("S", &[_, number, value, expires_at_ms]) => {
                let promised_at_ms = 0;
                let state = State {
                    number,
                    value,
                    expires_at_ms,
                    promised_at_ms,
                };
                Event::Sent { key, state }
            }
            ("A", &[_, number, at_ms]) => Event::Acknowledged { key, number, at_ms },
            ("R", &[_, number, at_ms]) => Event::Shown { key, number, at_ms },
            ("F", &[_, number, at_ms]) => Event::Found { key, number, at_ms },
            _ => return None,
        };
        Some(Line::Event(event))
    }

    fn parse_pool(rest: &str) -> Option<Line> {
        let mut words = rest.splitn(6, ' ');
        let connections = words.next()?.parse().ok()?;
        Some(Line::Pool(Pool {
            keys: Keys { connections },
            medium: words.next()?.to_owned(),
            engine: words.next()?.to_owned(),
            chunk_bytes: words.next()?.parse().ok()?,
            log_bytes: words.next()?.parse().ok()?,
            path: words.next()?.into(),
        }))
    }
}

/// An expected-state file, read from its beginning and on as it grows.
pub(crate) struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    /// The pool that the latest lines describe.
    pub(crate) pool: Option<Pool>,
    /// What that pool owes.
    pub(crate) expected: Expected,
    /// Kills, of all pools.
    pub(crate) kills: u64,
    lines: u64,
}

impl Reader {
    /// # Errors
    /// If the file cannot be read, or is no expected-state file.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Reader> {
        let file = File::open(path).with_context(|| name(path))?;
        let mut reader = Reader {
            path: path.to_owned(),
            file: BufReader::new(file),
            pool: None,
            expected: Expected::new(0),
            kills: 0,
            lines: 1,
        };
        let mut first = String::new();
        reader.file.read_line(&mut first)?;
        if first.trim_end() != FIRST_LINE {
            return Err(not_ours(path));
        }
        reader.read_on()?;
        Ok(reader)
    }

    /// Applies all lines that were added since the last call.
    ///
    /// # Errors
    /// If the file cannot be read, or has a line that makes no sense.
    pub(crate) fn read_on(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.file.read_line(&mut line)?;
            let Some(text) = line.strip_suffix('\n') else {
                // The end of the file, or an incomplete line: read it again once it is complete.
                let back = i64::try_from(read)?;
                self.file.seek(SeekFrom::Current(-back))?;
                return Ok(());
            };
            self.lines += 1;
            let known = Line::parse(text).is_some_and(|line| self.take(line));
            let (path, number) = (self.path.display(), self.lines);
            anyhow::ensure!(known, "{path}, line {number}: `{text}` makes no sense");
        }
    }

    fn take(&mut self, line: Line) -> bool {
        match line {
            Line::Pool(pool) => {
                self.expected = Expected::new(pool.keys.len());
                self.pool = Some(pool);
            }
            Line::Killed { .. } => self.kills += 1,
            Line::Event(event) => {
                let (Event::Sent { key, .. }
                | Event::Acknowledged { key, .. }
                | Event::Shown { key, .. }
                | Event::Found { key, .. }) = event;
                if !self.expected.knows(key) {
                    return false;
                }
                self.expected.apply(event);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::killing::journal::Journal;
    use crate::settings::UsageError;

    fn lines() -> Vec<Line> {
        let (key, number, at_ms) = (3, 1, 77);
        let state = State {
            number,
            value: 1,
            expires_at_ms: 99,
            promised_at_ms: 0,
        };
        vec![
            Line::Pool(Pool {
                keys: Keys { connections: 2 },
                medium: "file".into(),
                engine: "viper".into(),
                chunk_bytes: 1,
                log_bytes: 2,
                path: "/a pool/of mine".into(),
            }),
            Line::Event(Event::Sent { key, state }),
            Line::Event(Event::Acknowledged { key, number, at_ms }),
            Line::Event(Event::Shown { key, number, at_ms }),
            Line::Event(Event::Found { key, number, at_ms }),
            Line::Killed { at_ms },
        ]
    }

    #[test]
    fn lines_read_back() {
        for line in lines() {
            let text = line.to_string();
            assert_eq!(Line::parse(text.trim_end()), Some(line), "{text}");
        }
        for nonsense in ["", "S", "S 1 2 3", "A 1 2 x", "Q 1", "P 1 file", "K 1 2"] {
            assert_eq!(Line::parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_line_that_was_written_half_is_cut_off_and_the_rest_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("expected");
        let journal = Journal::open(&path).unwrap();
        let text: String = lines().iter().map(Line::to_string).collect();
        journal.append(&text).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(reader.kills, 1);
        assert_eq!(reader.expected.last(3).value, 1);
        journal.append("S 3 2 ").unwrap();
        reader.read_on().unwrap();
        assert_eq!(reader.expected.last(3).number, 1, "half a line is no line");
        journal.append("2 0\n").unwrap();
        reader.read_on().unwrap();
        assert_eq!(reader.expected.last(3).number, 2);
        journal.append("S 3 3 3").unwrap();
        drop(journal);
        Journal::open(&path).unwrap().append("K 5\n").unwrap();
        let again = Reader::open(&path).unwrap();
        assert_eq!((again.kills, again.expected.last(3).number), (2, 2));
    }

    /// A campaign once changed whatever file `--expected` named before it looked at the content: it cut the
    /// file after its last newline, or overwrote a file without one.
    #[test]
    fn other_files_are_refused_and_stay_as_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("letter");
        let longer = format!("{FIRST_LINE}2\nA 1");
        for text in ["Dear reader,\nyours", "no line at all", "\n", &longer] {
            std::fs::write(&path, text).unwrap();
            let error = Journal::open(&path).err().expect(text);
            assert!(error.is::<UsageError>(), "{error:#}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert!(Reader::open(&path).is_err(), "{text}");
        }
        for begun in ["", &FIRST_LINE[..5], FIRST_LINE] {
            std::fs::write(&path, begun).unwrap();
            Journal::open(&path).unwrap();
            assert!(Reader::open(&path).unwrap().pool.is_none(), "{begun}");
        }
        std::fs::write(&path, format!("{FIRST_LINE}\nA 1 1 1\n")).unwrap();
        assert!(Reader::open(&path).is_err(), "a key of no pool");
    }
}
