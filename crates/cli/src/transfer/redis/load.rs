//! Loads the files of a stock Redis into a store: RDB entries are stored, requests of an AOF are replayed.
//!
//! Invariants: nothing is left out in silence. What everdram cannot hold is an error with its name and place,
//! or counted, if only strings are asked for. Only the last file may end inside a request or a transaction,
//! which is then dropped as `aof-load-truncated yes` does in Redis, and told.

use crate::terminal::Progress;
use crate::transfer::redis::aof::Request;
use crate::transfer::redis::foreign;
use crate::transfer::redis::rdb::{self, Content, Entry};
use crate::transfer::redis::source::{Source, Trouble};
use crate::{findings, units};
use anyhow::{Context, bail, ensure};
use everdram_resp::replay::Replay;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Changes before waiting until they are durable, and their bytes.
const WINDOW: usize = 256;
const WINDOW_BYTES: u64 = 4 << 20;
const ONLY_STRINGS: &str =
    "everdram holds strings in one database; --strings-only leaves out and counts the rest";

/// What was loaded, and what was not.
#[derive(Default)]
pub(crate) struct Counts {
    /// Strings from RDB files.
    pub(crate) strings: u64,
    /// Requests from AOF files.
    pub(crate) commands: u64,
    /// What was left out, by what it is.
    pub(crate) skipped: BTreeMap<String, u64>,
    pub(crate) dropped: Option<Dropped>,
    pub(crate) bytes: u64,
}

/// The end of the last file, which is half a request or half a transaction.
pub(crate) struct Dropped {
    pub(crate) file: PathBuf,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

pub(crate) struct Loader {
    replay: Replay,
    strings_only: bool,
    database: u64,
    waiting: usize,
    waiting_since: u64,
    pub(crate) counts: Counts,
    progress: Progress,
}

impl Loader {
    pub(crate) fn new(mut replay: Replay, strings_only: bool, progress: Progress) -> Loader {
        if strings_only {
            replay.allow_absent_keys();
        }
        Loader {
            replay,
            strings_only,
            database: 0,
            waiting: 0,
            waiting_since: 0,
            counts: Counts::default(),
            progress,
        }
    }

    /// Loads the files in this order. What stood before an error is loaded and durable.
    pub(crate) fn load(&mut self, files: &[PathBuf]) -> anyhow::Result<()> {
        let loaded = files.iter().enumerate().try_for_each(|(index, path)| {
            let loaded = self.load_file(path, index + 1 == files.len());
            loaded.with_context(|| format!("file {}", path.display()))
        });
        self.progress.finish();
        let committed = self.replay.commit();
        loaded?;
        Ok(committed?)
    }

    fn load_file(&mut self, path: &Path, is_last: bool) -> anyhow::Result<()> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let before = self.counts.bytes;
        let mut source = Source::new(BufReader::with_capacity(1 << 20, file), bytes);
        if source.begins_with(rdb::MAGIC)? {
            self.load_rdb(&mut source, before)?;
        }
        let dropped = self.load_commands(&mut source, before)?;
        self.counts.bytes = before + bytes;
        let Some(at) = dropped else { return Ok(()) };
        ensure!(
            is_last,
            "byte {at}: the file ends inside a request or a transaction, and only the last file may"
        );
        self.counts.dropped = Some(Dropped {
            file: path.to_owned(),
            at,
            bytes: bytes - at,
        });
        Ok(())
    }

    fn load_rdb(&mut self, source: &mut Source<impl BufRead>, before: u64) -> anyhow::Result<()> {
        let mut reader = rdb::Reader::new(source).context("byte 0")?;
        loop {
            match reader.next() {
                Ok(Some(entry)) => {
                    self.store(&entry).with_context(|| place(&entry))?;
                    self.step(before, reader.offset())?;
                }
                Ok(None) => return Ok(()),
                Err(trouble) => {
                    return Err(trouble).with_context(|| format!("byte {}", reader.offset()));
                }
            }
        }
    }

    fn store(&mut self, entry: &Entry) -> anyhow::Result<()> {
        match &entry.content {
            Content::Other(kind) => self.leave_out(kind),
            Content::String(_) if entry.database != 0 => {
                self.leave_out(&format!("database {}", entry.database))
            }
            Content::String(value) => {
                self.counts.strings += 1;
                Ok(self.replay.put(&entry.key, value, entry.expires_at_ms)?)
            }
        }
    }

    /// Returns where the file has to be cut, if it ends inside a request or a transaction.
    fn load_commands(
        &mut self,
        source: &mut Source<impl BufRead>,
        before: u64,
    ) -> anyhow::Result<Option<u64>> {
        self.database = 0;
        let (mut request, mut transaction) = (Request::default(), None);
        loop {
            match request.read(source) {
                Ok(true) => {}
                Ok(false) => return Ok(transaction),
                Err(Trouble::Cut) => return Ok(Some(transaction.unwrap_or(request.at))),
                Err(trouble) => {
                    return Err(trouble).with_context(|| format!("byte {}", request.at));
                }
            }
            let (at, name) = (request.at, request.name());
            match name.as_slice() {
                b"MULTI" => transaction = transaction.or(Some(at)),
                b"EXEC" => transaction = None,
                _ => {}
            }
            self.run(&name, &mut request)
                .with_context(|| format!("byte {at}, `{}`", shown(&name)))?;
            self.counts.commands += 1;
            self.step(before, source.offset())?;
        }
    }

    fn run(&mut self, name: &[u8], request: &mut Request) -> anyhow::Result<()> {
        if name == b"SELECT" {
            let number = std::str::from_utf8(request.argument(1)).ok();
            let number = number.and_then(|number| number.parse().ok());
            self.database = number.context("a database that is no number")?;
            return Ok(());
        }
        let is_of_all = [&b"FLUSHALL"[..], b"MULTI", b"EXEC"].contains(&name);
        if self.database != 0 && !is_of_all {
            let is_option =
                |at| name == b"COPY" && request.argument(at).eq_ignore_ascii_case(b"DB");
            let crosses = [&b"MOVE"[..], b"SWAPDB"].contains(&name)
                || (3..request.spans.len()).any(is_option);
            ensure!(
                !crosses,
                "it brings keys from one database to another, and everdram has one"
            );
            return self.leave_out(&format!("database {}", self.database));
        }
        if let Some(foreign) = foreign::find(name, request.spans.len(), |at| request.argument(at)) {
            self.leave_out(foreign.kind)?;
            let Some(replaced) = foreign.replaces else {
                return Ok(());
            };
            let key = request.argument(replaced).to_vec();
            request.set(&[b"DEL", &key]);
        } else if self.strings_only {
            self.make_way(name, request)?;
        }
        Ok(self.replay.request(&request.bytes, &request.spans)?)
    }

    /// A key that was left out may take the place of a string: RENAME and COPY of it remove the string.
    fn make_way(&mut self, name: &[u8], request: &Request) -> anyhow::Result<()> {
        let (from, to) = (request.argument(1), request.argument(2));
        let mut options = (3..request.spans.len()).map(|at| request.argument(at));
        let replaces = match name {
            b"RENAME" => true,
            b"COPY" => options.any(|option| option.eq_ignore_ascii_case(b"REPLACE")),
            _ => false,
        };
        if !replaces || from == to {
            return Ok(());
        }
        let mut removal = Request::default();
        removal.set(&[b"DEL", to]);
        Ok(self.replay.request(&removal.bytes, &removal.spans)?)
    }

    /// Counts something that everdram does not hold; an error if everything was asked for.
    fn leave_out(&mut self, what: &str) -> anyhow::Result<()> {
        if !self.strings_only {
            let article = if what.starts_with("database") {
                "it is in"
            } else {
                "it is of type"
            };
            bail!("{article} {what}: {ONLY_STRINGS}");
        }
        match self.counts.skipped.get_mut(what) {
            Some(count) => *count += 1,
            None => _ = self.counts.skipped.insert(what.to_owned(), 1),
        }
        Ok(())
    }

    /// After each change: makes some of them durable together, and shows how far it is.
    fn step(&mut self, before: u64, offset: u64) -> anyhow::Result<()> {
        self.waiting += 1;
        let position = before + offset;
        if self.waiting >= WINDOW || position.saturating_sub(self.waiting_since) >= WINDOW_BYTES {
            (self.waiting, self.waiting_since) = (0, position);
            self.replay.commit()?;
            let changes = self.counts.strings + self.counts.commands;
            self.progress
                .at(position, &format!("{} changes", units::count(changes)));
        }
        Ok(())
    }
}

/// Where an entry is; a library of functions has no key.
fn place(entry: &Entry) -> String {
    match entry.key.as_slice() {
        b"" => format!("byte {}", entry.at),
        key => format!("byte {}, key {}", entry.at, findings::key(key)),
    }
}

/// The beginning of a name that may be anything.
fn shown(name: &[u8]) -> String {
    name.get(..name.len().min(32))
        .unwrap_or_default()
        .escape_ascii()
        .to_string()
}
