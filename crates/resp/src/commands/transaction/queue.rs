//! The commands queued since MULTI, prepared to run: each with its row of the command table, its arguments in
//! one buffer, and whether it touches keys.

use crate::command::{self, Command};
use crate::keyspace::is_key;
use crate::request::args::Args;

/// Commands that may touch keys which their arguments do not name.
const ANY_KEY: [&str; 6] = ["dbsize", "flushall", "flushdb", "keys", "randomkey", "scan"];
/// It covers earlier writes without reading keys, and would wait under locks.
const WAITS: &str = "waitaof";

/// One queued command.
pub(super) struct Entry {
    pub(super) command: Option<&'static Command>,
    /// It touches keys, and so runs inside the transaction.
    pub(super) is_on_keys: bool,
    buffer: Vec<u8>,
    spans: Vec<(u32, u32)>,
}

/// All queued commands, in order.
pub(super) struct Queue {
    pub(super) entries: Vec<Entry>,
}

impl Entry {
    fn new(arguments: &[Vec<u8>]) -> Entry {
        let mut buffer = Vec::with_capacity(arguments.iter().map(Vec::len).sum());
        let mut spans = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let start = buffer.len() as u32;
            buffer.extend_from_slice(argument);
            // A request fits in the query buffer, which is far smaller than 4 GiB.
            spans.push((start, buffer.len() as u32));
        }
        let command = command::resolve(&Args::new(&buffer, &spans))
            .ok()
            .map(|(_, command)| command);
        let is_on_keys = command.is_some_and(|command| command.reads && command.name != WAITS);
        Entry {
            command,
            is_on_keys,
            buffer,
            spans,
        }
    }

    pub(super) fn args(&self) -> Args<'_> {
        Args::new(&self.buffer, &self.spans)
    }

    fn name(&self) -> &'static str {
        self.command.map_or("", |command| command.name)
    }
}

impl Queue {
    pub(super) fn new(queued: Vec<Vec<Vec<u8>>>) -> Queue {
        // Each request is dropped right after it was copied.
        Queue {
            entries: queued
                .into_iter()
                .map(|arguments| Entry::new(&arguments))
                .collect(),
        }
    }

    /// The keys that the commands name, and the watched ones. Invalid keys are left out: the command that
    /// names one answers with an error.
    pub(super) fn keys<'k>(&'k self, watched: &'k [(Vec<u8>, u64)]) -> Vec<&'k [u8]> {
        let mut keys: Vec<&[u8]> = watched.iter().map(|(key, _)| key.as_slice()).collect();
        for entry in &self.entries {
            let (Some(command), args) = (entry.command, entry.args()) else {
                continue;
            };
            let positions = command::key_positions(command, args.len());
            keys.extend(
                positions
                    .map(|position| args.get(position))
                    .filter(|key| is_key(key)),
            );
        }
        keys
    }

    pub(super) fn touches_any_key(&self) -> bool {
        self.entries
            .iter()
            .any(|entry| ANY_KEY.contains(&entry.name()))
    }
}
