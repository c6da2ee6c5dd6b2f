//! Records for each executed request: counters, the slow log, and what its reply depends on.

use super::Turn;
use super::client::Client;
use crate::command::Command;
use crate::dispatch::Outcome;
use crate::request::args::Args;
use crate::server::Shared;
use crate::server::slowlog;
use crate::server::statistics::Statistics;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// The records of one turn.
pub(crate) struct Metrics<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) statistics: &'a Statistics,
    /// Whether the event loop's session has writes that are not committed.
    pub(crate) uncommitted: &'a mut bool,
    /// End of the last request.
    pub(crate) before: Instant,
    pub(crate) now_ms: u64,
}

impl Metrics<'_> {
    /// Nanoseconds since the end of the last request: parsing and execution of this one.
    pub(crate) fn lap(&mut self) -> u64 {
        let now = Instant::now();
        let took = now.saturating_duration_since(self.before);
        self.before = now;
        u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn count(&self, outcome: &Outcome, nanoseconds: u64, failed: bool) {
        self.statistics.commands.add(1);
        self.statistics.errors.add(u64::from(failed));
        match outcome {
            Outcome::Executed(number, _) => {
                if let Some(calls) = self.statistics.of(*number) {
                    calls.note(nanoseconds);
                    calls.failed.add(u64::from(failed));
                }
            }
            Outcome::Refused(Some(number)) => {
                if let Some(calls) = self.statistics.of(*number) {
                    calls.rejected.add(1);
                }
            }
            Outcome::Refused(None) | Outcome::Queued => {}
        }
    }

    /// A session reads its own writes before they are committed. So a command that reads keys after a write
    /// also waits for the commit: it may have seen another connection's write.
    pub(crate) fn note_dependence(&mut self, command: &Command, turn: &mut Turn) {
        if command.writes {
            *self.uncommitted = true;
            self.statistics.writes.add(1);
        } else if command.reads {
            self.statistics.reads.add(1);
        }
        turn.on_commit |= command.reads && *self.uncommitted;
    }

    pub(crate) fn note_slow(
        &self,
        command: &Command,
        args: &Args<'_>,
        client: &Client,
        nanoseconds: u64,
    ) {
        let config = &self.shared.config;
        let microseconds = nanoseconds / 1000;
        let Ok(threshold) = u64::try_from(config.slowlog_slower_than_us.load(Relaxed)) else {
            return;
        };
        if microseconds < threshold || command.has_flag("skip_slowlog") {
            return;
        }
        let mut arguments = slowlog::shorten(args);
        if matches!(command.name, "auth" | "hello" | "config|set") {
            // These may hold a password.
            arguments
                .iter_mut()
                .skip(1)
                .for_each(|argument| *argument = b"(redacted)".to_vec());
        }
        let entry = slowlog::Entry {
            id: 0,
            at_s: self.now_ms / 1000,
            microseconds,
            arguments,
            address: client.peer.address.clone(),
            name: client.peer.names.lock().name.clone(),
        };
        self.shared
            .slowlog
            .add(entry, config.slowlog_max_len.load(Relaxed));
    }
}
