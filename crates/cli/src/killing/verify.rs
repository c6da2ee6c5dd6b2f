//! After a restart, reads every key and judges it by the ledger alone.

use super::expected::{Breach, Event, Expiry, Moment, Seen};
use super::journal::{Ledger, Notes, now_ms};
use super::keys::{Keys, Kind};
use super::load::{is_loading, queue_read, receive_read};
use super::process::misconduct;
use super::stretch::on_each;
use super::tally::Tally;
use crate::client::{Client, Reply, SILENCE_MAX};
use std::time::{Duration, Instant};

/// Keys read at once.
const CHUNK: usize = 64;
/// Time until a server that was loading is asked again.
const LOADING: Duration = Duration::from_millis(5);

/// Counts the names with a value, by what the keys showed when read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Census {
    /// Names that showed a value.
    found: u64,
    /// Of these, names whose value may expire soon.
    expiring: u64,
    /// Names that showed nothing and may hold an expired value that is not removed yet.
    lingering: u64,
    /// Acknowledged writes of the keys that passed.
    verified: u64,
}

impl std::iter::Sum for Census {
    fn sum<I: Iterator<Item = Census>>(parts: I) -> Census {
        parts.fold(Census::default(), |sum, part| Census {
            found: sum.found + part.found,
            expiring: sum.expiring + part.expiring,
            lingering: sum.lingering + part.lingering,
            verified: sum.verified + part.verified,
        })
    }
}

impl Census {
    /// What is wrong if the store reports `size` keys.
    fn judge(self, size: u64) -> Option<Breach> {
        if size > self.found + self.lingering {
            Some(Breach::Resurrected)
        } else if size + self.expiring < self.found {
            Some(Breach::Lost)
        } else {
            None
        }
    }
}

/// One verification.
pub(crate) struct Verifier<'a> {
    pub(crate) keys: &'a dyn Keys,
    pub(crate) ledger: Ledger<'a>,
    pub(crate) tally: &'a Tally,
    /// Kills so far, for a violation's text.
    pub(crate) kills: u64,
}

impl Verifier<'_> {
    /// Reads and judges all keys, and records in the ledger which of the possible states each holds. Then
    /// compares the number of keys, which reveals keys that no client would read. Returns the number of
    /// acknowledged writes that passed.
    ///
    /// # Errors
    /// [`Misconduct`](super::process::Misconduct) if the server refuses a request or a connection breaks.
    /// Broken promises are in the tally.
    pub(crate) fn run(&self, port: u16) -> anyhow::Result<u64> {
        let broken_before = self.tally.broken();
        let connections = self.keys.connections();
        let parts = on_each(connections, |connection| self.connection(connection, port))?;
        let census: Census = parts.into_iter().sum();
        if self.tally.broken() == broken_before {
            self.count(port, census)?;
        }
        Ok(census.verified)
    }

    /// No connection reads a name that no client uses, so this looks for such names. The number of keys
    /// reveals a name that is there twice, or is counted and cannot be read. This number includes expired
    /// values until their removal.
    fn count(&self, port: u16, census: Census) -> anyhow::Result<()> {
        let asked = Client::connect(("127.0.0.1", port))
            .and_then(|mut client| {
                // This waits until the server knows all keys.
                let size = client.count_keys()?;
                Ok((client.call(&[b"KEYS", b"*"])?, size))
            })
            .map_err(|error| misconduct(format_args!("KEYS and DBSIZE after a start: {error}")))?;
        let (Reply::Array(names), size) = asked else {
            return Err(misconduct(format_args!("KEYS: {asked:?}")));
        };
        let kills = self.kills;
        let known = self.keys.all_names();
        for name in names {
            let name = match name {
                Reply::Bulk(name) if known.contains(&name) => continue,
                Reply::Bulk(name) => name.escape_ascii().to_string(),
                other => format!("{other:?}"),
            };
            let words = format!("after kill {kills} there is `{name}`, which nobody wrote");
            self.tally.convict(Breach::Resurrected, words);
        }
        if let Some(breach) = census.judge(size) {
            let words =
                format!("after kill {kills} DBSIZE is {size}, and reading showed {census:?}");
            self.tally.convict(breach, words);
        }
        Ok(())
    }

    fn connection(&self, connection: usize, port: u16) -> anyhow::Result<Census> {
        let mut notes = self.ledger.notes();
        let census = self.read_all(connection, port, &mut notes);
        // The states found so far count, even if the next answer was a refusal.
        notes.flush()?;
        census
            .map_err(|error| misconduct(format_args!("reading the keys after a start: {error:#}")))
    }

    fn read_all(
        &self,
        connection: usize,
        port: u16,
        notes: &mut Notes<'_>,
    ) -> anyhow::Result<Census> {
        let mut client = Client::connect(("127.0.0.1", port))?;
        let mut census = Census::default();
        let owned = self.keys.owned_by(connection);
        // What the server does not know yet is asked for again at the end.
        let (mut owned, mut refused, begun) = (owned, Vec::new(), Instant::now());
        while !owned.is_empty() {
            for chunk in owned.chunks(CHUNK) {
                let from_ms = now_ms();
                for &key in chunk {
                    queue_read(self.keys, key, &mut client);
                    if self.expires(key) {
                        client.queue(&[b"PEXPIRETIME", &self.keys.name(key)]);
                    }
                }
                client.send()?;
                for &key in chunk {
                    let seen = match self.receive(key, &mut client) {
                        Err(error) if is_loading(&error) && begun.elapsed() < SILENCE_MAX => {
                            refused.push(key);
                            continue;
                        }
                        received => received?,
                    };
                    let to_ms = now_ms();
                    self.add(key, &seen, to_ms, &mut census);
                    if self.judge(key, &seen, Moment { from_ms, to_ms }, notes) {
                        census.verified += self.ledger.expected.acknowledged(key);
                    }
                }
            }
            if !refused.is_empty() {
                std::thread::sleep(LOADING);
            }
            owned = std::mem::take(&mut refused);
        }
        Ok(census)
    }

    fn add(&self, key: usize, seen: &Seen, at_ms: u64, census: &mut Census) {
        match *seen {
            Seen::Value { value, expiry } => {
                census.found += self.keys.names_with_value(key, value);
                // The value has just expired or may expire soon, so it is not certain to be counted.
                let is_lasting = expiry == Expiry::At(0) || !self.expires(key);
                census.expiring += u64::from(!is_lasting);
            }
            _ => census.lingering += u64::from(self.ledger.expected.may_linger(key, at_ms)),
        }
    }

    fn expires(&self, key: usize) -> bool {
        matches!(self.keys.kind(key), Kind::Document | Kind::Large)
    }

    fn receive(&self, key: usize, client: &mut Client) -> anyhow::Result<Seen> {
        let seen = receive_read(self.keys, key, client);
        if !self.expires(key) {
            return Ok(seen?);
        }
        // Received also after a refusal, so that the next answer is that to the next request.
        let expiry = client.receive()?;
        let seen = seen?;
        let expiry = match expiry.accepted()? {
            Reply::Integer(-1) => Expiry::At(0),
            // If GET still found the value, it expired between the two commands, since no client writes now.
            Reply::Integer(-2) => Expiry::Passed,
            Reply::Integer(at) => Expiry::At(u64::try_from(at)?),
            other => anyhow::bail!("PEXPIRETIME was answered {other:?}"),
        };
        Ok(match seen {
            Seen::Value { value, .. } => Seen::Value { value, expiry },
            Seen::Absent if expiry != Expiry::Passed => {
                Seen::Damaged(format!("GET found nothing, PEXPIRETIME {expiry:?}"))
            }
            other => other,
        })
    }

    /// Whether the read agrees with the ledger.
    fn judge(&self, key: usize, seen: &Seen, moment: Moment, notes: &mut Notes<'_>) -> bool {
        self.tally.checked.add(1);
        let at_ms = moment.to_ms;
        match self.ledger.expected.settle(key, seen, moment) {
            Ok(None) => true,
            Ok(Some(number)) => {
                notes.add(Event::Found { key, number, at_ms });
                true
            }
            Err(violation) => {
                let (name, kills) = (self.keys.name(key), self.kills);
                let name = name.escape_ascii();
                let words = format!("{name} after kill {kills}, read at {at_ms} ms: {violation}");
                self.tally.convict(violation.breach, words);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_nobody_asked_for_are_counted() {
        let census = Census {
            found: 10,
            expiring: 2,
            lingering: 3,
            verified: 0,
        };
        let verdicts = [7, 8, 10, 13, 14].map(|size| census.judge(size));
        let (lost, resurrected) = (Some(Breach::Lost), Some(Breach::Resurrected));
        assert_eq!(verdicts, [lost, None, None, None, resurrected]);
    }
}
