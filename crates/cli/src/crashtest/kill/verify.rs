//! After a restart: every key is read and judged by what the expected-state file says, and by nothing else.

use super::expected::{Breach, Event, Expected, Moment, Seen};
use super::journal::{Journal, now_ms};
use super::keys::{Keys, Kind};
use super::load::{Tally, queue_read, receive_read};
use crate::client::{Client, Reply};
use anyhow::Context;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Keys asked for at once.
const CHUNK: usize = 64;

/// What verification found, over all kills of a campaign.
#[derive(Default)]
pub(crate) struct Findings {
    /// Keys read and judged.
    pub(crate) checked: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) resurrected: AtomicU64,
    pub(crate) damaged: AtomicU64,
}

impl Findings {
    fn count(&self, breach: Breach) -> &AtomicU64 {
        match breach {
            Breach::Lost => &self.lost,
            Breach::Resurrected => &self.resurrected,
            Breach::Damaged => &self.damaged,
        }
    }
}

/// One verification.
pub(crate) struct Verifier<'a> {
    pub(crate) keys: Keys,
    /// As the file says.
    pub(crate) expected: &'a Expected,
    pub(crate) journal: &'a Journal,
    pub(crate) findings: &'a Findings,
    pub(crate) tally: &'a Tally,
    /// Kills so far, for the words of a violation.
    pub(crate) kills: u64,
}

impl Verifier<'_> {
    /// Reads and judges all keys; which of the possible states they hold goes to the file.
    ///
    /// # Errors
    /// If the server refuses, or a connection breaks. Broken promises are findings, not errors.
    pub(crate) fn run(&self, port: u16) -> anyhow::Result<()> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.keys.connections)
                .map(|connection| scope.spawn(move || self.connection(connection, port)))
                .collect();
            threads.into_iter().try_for_each(super::campaign::join)
        })
    }

    fn connection(&self, connection: usize, port: u16) -> anyhow::Result<()> {
        let mut client = Client::connect(("127.0.0.1", port))?;
        let owned: Vec<usize> = self.keys.owned_by(connection).collect();
        let mut lines = String::new();
        for chunk in owned.chunks(CHUNK) {
            let from_ms = now_ms();
            for &key in chunk {
                queue_read(self.keys, key, &mut client);
                if self.expires(key) {
                    client.queue(&[b"PEXPIRETIME", self.keys.name(key).as_bytes()]);
                }
            }
            client.send()?;
            for &key in chunk {
                let seen = self.receive(key, &mut client).context("checking")?;
                let to_ms = now_ms();
                if let Some(event) = self.judge(key, &seen, Moment { from_ms, to_ms }) {
                    // Writing to a string cannot fail.
                    let _ = write!(lines, "{event}");
                }
            }
        }
        self.journal.append(&lines)
    }

    fn expires(&self, key: usize) -> bool {
        matches!(self.keys.kind(key), Kind::Document | Kind::Large)
    }

    fn receive(&self, key: usize, client: &mut Client) -> anyhow::Result<Seen> {
        let seen = receive_read(self.keys, key, client)?;
        if !self.expires(key) {
            return Ok(seen);
        }
        let expires_at_ms = match client.receive()?.accepted()? {
            Reply::Integer(-1) => Some(0),
            // It expired between the two commands: its value was still seen.
            Reply::Integer(-2) => None,
            Reply::Integer(at) => Some(u64::try_from(at)?),
            other => anyhow::bail!("PEXPIRETIME was answered {other:?}"),
        };
        Ok(match seen {
            Seen::Value { value, .. } => Seen::Value {
                value,
                expires_at_ms,
            },
            Seen::Absent if expires_at_ms.is_some() => {
                Seen::Damaged(format!("GET found nothing, PEXPIRETIME {expires_at_ms:?}"))
            }
            other => other,
        })
    }

    fn judge(&self, key: usize, seen: &Seen, moment: Moment) -> Option<Event> {
        self.findings.checked.fetch_add(1, Ordering::Relaxed);
        match self.expected.settle(key, seen, moment) {
            Ok(number) => number.map(|number| Event::Found {
                key,
                number,
                at_ms: moment.to_ms,
            }),
            Err(violation) => {
                let count = self.findings.count(violation.breach);
                count.fetch_add(1, Ordering::Relaxed);
                let name = self.keys.name(key);
                let (kills, at) = (self.kills, moment.to_ms);
                let words = format!("{name} after kill {kills}, read at {at} ms: {violation}");
                self.tally.tell(words);
                None
            }
        }
    }
}
