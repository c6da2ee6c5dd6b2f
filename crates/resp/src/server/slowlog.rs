//! The last slow commands. Bounded in entries, arguments and bytes per argument, so that it never holds much
//! of the clients' data.

use crate::request::args::Args;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Most arguments of an entry, including the note about the others.
const ARGUMENTS_MAX: usize = 32;
/// Most bytes of an argument, without the note about the rest.
const ARGUMENT_BYTES_MAX: usize = 128;

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) at_s: u64,
    pub(crate) microseconds: u64,
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) address: String,
    pub(crate) name: Vec<u8>,
}

#[derive(Default)]
struct State {
    entries: VecDeque<Entry>,
    next_id: u64,
}

#[derive(Default)]
pub(crate) struct SlowLog(Mutex<State>);

impl SlowLog {
    /// Adds `entry` with a new id, and drops the oldest entries beyond `len_max`.
    pub(crate) fn add(&self, mut entry: Entry, len_max: usize) {
        let mut state = self.0.lock();
        entry.id = state.next_id;
        state.next_id += 1;
        state.entries.push_front(entry);
        state.entries.truncate(len_max);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().entries.len()
    }

    pub(crate) fn reset(&self) {
        self.0.lock().entries.clear();
    }

    /// The newest entries, newest first.
    pub(crate) fn newest(&self, count: usize) -> Vec<Entry> {
        self.0.lock().entries.iter().take(count).cloned().collect()
    }
}

/// A request's arguments, shortened for the log.
pub(crate) fn shorten(args: &Args<'_>) -> Vec<Vec<u8>> {
    let count = args.len();
    let kept = if count > ARGUMENTS_MAX {
        ARGUMENTS_MAX - 1
    } else {
        count
    };
    let mut short: Vec<Vec<u8>> = args.iter_from(0).take(kept).map(shorten_one).collect();
    if count > kept {
        short.push(format!("... ({} more arguments)", count - kept).into_bytes());
    }
    short
}

fn shorten_one(argument: &[u8]) -> Vec<u8> {
    match argument.split_at_checked(ARGUMENT_BYTES_MAX) {
        Some((front, rest)) if !rest.is_empty() => {
            let mut short = front.to_vec();
            short.extend_from_slice(format!("... ({} more bytes)", rest.len()).as_bytes());
            short
        }
        _ => argument.to_vec(),
    }
}
