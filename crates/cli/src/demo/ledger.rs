//! What the store owes: for each key, which of its states may be seen, before and after a crash.
//!
//! Each key is written by one connection, so its writes have an order, and write number `n` of a key
//! (1, 2, ...) makes its state `n`; state 0 is "absent". For a counter the number is its value.
//!
//! * `floor` is the newest state that must not be undone: the last one acknowledged, or shown to a reader.
//! * `last` is the newest state asked for. States after `floor` were not acknowledged; any may be there.
//! * A read that began at floor `f` may show any state from `f` on. Older: **stale**. A state that a crash
//!   undid may never come back: **resurrected**.
//! * After a crash [`Ledger::settle`] sees which state survived and forgets the others.
//!
//! The ledger does not know how the store works; it is the judge, and its own tests show that it convicts.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Deletions remembered for each key. If a read spans more of them, it is not judged on absence.
const DELETIONS_MAX: usize = 64;

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Values that say their own sequence number.
    Document,
    /// A number that only `INCR` changes, from absent = 0.
    Counter,
}

/// What was seen under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Nothing there.
    Absent,
    /// The value of this write (a counter's value).
    Write(u64),
    /// Bytes that nobody wrote there.
    Damaged(String),
}

/// What a read may show: fixed when the read is sent.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    oldest: u64,
    newest: Option<u64>,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An acknowledged value is gone.
    Lost {
        /// Oldest state that would have been right.
        expected: u64,
    },
    /// A value older than one that was acknowledged or read before.
    Stale {
        /// Oldest state that would have been right.
        expected: u64,
        /// What was there.
        found: u64,
    },
    /// A value that was deleted, or undone by a crash, is back.
    Resurrected {
        /// Oldest state that would have been right.
        expected: u64,
        /// What was there.
        found: u64,
    },
    /// A state that nobody asked for yet.
    Invented {
        /// Newest state that could have been there.
        newest: u64,
        /// What was there.
        found: u64,
    },
    /// Bytes that nobody wrote there.
    Damaged(String),
    /// The answer to a write contradicts the state before it.
    Answer {
        /// What the reply should have been.
        expected: i64,
        /// What it was.
        found: i64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Lost { expected } => {
                write!(f, "LOST: absent, but write {expected} was promised")
            }
            Violation::Stale { expected, found } => {
                write!(f, "STALE: write {found}, but write {expected} was promised")
            }
            Violation::Resurrected { expected, found } => {
                write!(f, "RESURRECTED: write {found} was gone by write {expected}")
            }
            Violation::Invented { newest, found } => {
                write!(
                    f,
                    "INVENTED: write {found}, but only {newest} were asked for"
                )
            }
            Violation::Damaged(what) => write!(f, "DAMAGED: {what}"),
            Violation::Answer { expected, found } => {
                write!(f, "WRONG ANSWER: {found}, expected {expected}")
            }
        }
    }
}

struct Entry {
    kind: Kind,
    /// Newest number ever given out; never reused for documents.
    issued: u64,
    last: u64,
    floor: u64,
    /// Numbers of the latest deletions, ascending; state 0 counts as one.
    deletions: VecDeque<u64>,
    /// Newest deletion that was forgotten for lack of room.
    forgotten: Option<u64>,
    /// Ranges of states that a crash undid.
    undone: Vec<(u64, u64)>,
    /// Acknowledged writes.
    acknowledged: u64,
}

/// The states owed for a fixed set of keys, addressed by index.
pub struct Ledger {
    entries: Vec<Mutex<Entry>>,
}

impl Ledger {
    /// A ledger for keys of these kinds, all absent.
    #[must_use]
    pub fn new(kinds: impl IntoIterator<Item = Kind>) -> Ledger {
        let entry = |kind| {
            Mutex::new(Entry {
                kind,
                issued: 0,
                last: 0,
                floor: 0,
                deletions: VecDeque::from([0]),
                forgotten: None,
                undone: Vec::new(),
                acknowledged: 0,
            })
        };
        Ledger {
            entries: kinds.into_iter().map(entry).collect(),
        }
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn entry(&self, key: usize) -> MutexGuard<'_, Entry> {
        // A panic elsewhere fails the run anyway; the numbers are whole after each step.
        self.entries[key]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A put (or an increment) is about to be sent; returns its number.
    #[must_use]
    pub fn write(&self, key: usize) -> u64 {
        self.entry(key).next()
    }

    /// A deletion is about to be sent; returns its number and whether the key is there before it.
    #[must_use]
    pub fn delete(&self, key: usize) -> (u64, bool) {
        let mut entry = self.entry(key);
        let present = !entry.deletions.contains(&entry.last);
        let number = entry.next();
        entry.remember_deletion(number);
        (number, present)
    }

    /// The writer was told that its write `number` is done.
    pub fn acknowledge(&self, key: usize, number: u64) {
        let mut entry = self.entry(key);
        entry.floor = entry.floor.max(number);
        entry.acknowledged += 1;
    }

    /// Acknowledged writes of a key.
    #[must_use]
    pub fn acknowledged(&self, key: usize) -> u64 {
        self.entry(key).acknowledged
    }

    /// A read is about to be sent. Its own writer sees exactly its last write; others any state from the
    /// floor on.
    #[must_use]
    pub fn begin_read(&self, key: usize, by_writer: bool) -> Window {
        let entry = self.entry(key);
        if by_writer {
            Window {
                oldest: entry.last,
                newest: Some(entry.last),
            }
        } else {
            Window {
                oldest: entry.floor,
                newest: None,
            }
        }
    }

    /// The answer to a read has come. What it showed becomes part of the floor.
    ///
    /// # Errors
    /// The promise it breaks.
    pub fn end_read(&self, key: usize, window: Window, seen: &Observed) -> Result<(), Violation> {
        let mut entry = self.entry(key);
        let newest = window.newest.unwrap_or(entry.last);
        let state = entry.judge(window.oldest, newest, seen)?;
        if let Some(state) = state {
            entry.floor = entry.floor.max(state);
        }
        Ok(())
    }

    /// After a crash, with nobody writing: judges what is there, and takes it as the state from now on.
    ///
    /// # Errors
    /// The promise it breaks. The state seen is taken as the new one all the same, so that one loss is
    /// reported once.
    pub fn settle(&self, key: usize, seen: &Observed) -> Result<(), Violation> {
        let mut entry = self.entry(key);
        let verdict = entry.judge(entry.floor, entry.last, seen);
        entry.accept(seen);
        verdict.map(|_| ())
    }
}

impl Entry {
    fn next(&mut self) -> u64 {
        self.issued += 1;
        self.last = self.issued;
        self.last
    }

    fn remember_deletion(&mut self, number: u64) {
        self.deletions.push_back(number);
        if self.deletions.len() > DELETIONS_MAX {
            self.forgotten = self.deletions.pop_front();
        }
    }

    /// The state that was seen, if it is one of `oldest..=newest`; `None` if it cannot be told which.
    fn judge(&self, oldest: u64, newest: u64, seen: &Observed) -> Result<Option<u64>, Violation> {
        match *seen {
            Observed::Damaged(ref what) => Err(Violation::Damaged(what.clone())),
            Observed::Absent => self.judge_absent(oldest, newest),
            Observed::Write(found) if found > newest => Err(Violation::Invented { newest, found }),
            Observed::Write(found) if self.was_undone(found) || self.deletions.contains(&found) => {
                Err(Violation::Resurrected {
                    expected: oldest,
                    found,
                })
            }
            Observed::Write(found) if found < oldest => {
                let deleted_since = self.deletions.iter().any(|d| (found..=oldest).contains(d));
                Err(if deleted_since {
                    Violation::Resurrected {
                        expected: oldest,
                        found,
                    }
                } else {
                    Violation::Stale {
                        expected: oldest,
                        found,
                    }
                })
            }
            Observed::Write(found) => Ok(Some(found)),
        }
    }

    fn judge_absent(&self, oldest: u64, newest: u64) -> Result<Option<u64>, Violation> {
        if self.forgotten.is_some_and(|forgotten| forgotten >= oldest) {
            return Ok(None);
        }
        let deletion = self
            .deletions
            .iter()
            .find(|&&d| (oldest..=newest).contains(&d));
        deletion.map_or(Err(Violation::Lost { expected: oldest }), |&d| Ok(Some(d)))
    }

    fn was_undone(&self, state: u64) -> bool {
        self.undone
            .iter()
            .any(|&(from, to)| (from..=to).contains(&state))
    }

    fn accept(&mut self, seen: &Observed) {
        match (self.kind, seen) {
            (Kind::Counter, &Observed::Write(value)) => self.restart_at(value, value),
            (Kind::Counter, _) => self.restart_at(0, 0),
            (Kind::Document, &Observed::Write(state)) => {
                if state < self.issued {
                    self.undone.push((state + 1, self.issued));
                }
                self.deletions.retain(|&deletion| deletion < state);
                self.restart_at(state, self.issued);
            }
            // Which deletion won cannot be told; none of the values up to here may come back.
            (Kind::Document, _) => {
                let newest = self.issued;
                self.deletions.retain(|&deletion| deletion < newest);
                self.remember_deletion(newest);
                self.restart_at(newest, newest);
            }
        }
    }

    fn restart_at(&mut self, state: u64, issued: u64) {
        self.issued = issued;
        self.last = state;
        self.floor = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Ledger {
        Ledger::new([Kind::Document])
    }

    fn put(ledger: &Ledger) -> u64 {
        let number = ledger.write(0);
        ledger.acknowledge(0, number);
        number
    }

    #[test]
    fn an_acknowledged_write_must_survive() {
        let ledger = document();
        assert_eq!(put(&ledger), 1);
        assert_eq!(
            ledger.settle(0, &Observed::Absent),
            Err(Violation::Lost { expected: 1 })
        );
    }

    #[test]
    fn an_unacknowledged_write_may_survive_or_not() {
        for survivor in [1, 2, 3] {
            let ledger = document();
            put(&ledger);
            let _ = (ledger.write(0), ledger.write(0));
            assert_eq!(
                ledger.settle(0, &Observed::Write(survivor)),
                Ok(()),
                "{survivor}"
            );
        }
        let ledger = document();
        put(&ledger);
        let _ = ledger.write(0);
        assert_eq!(
            ledger.settle(0, &Observed::Absent),
            Err(Violation::Lost { expected: 1 })
        );
    }

    #[test]
    fn an_unacknowledged_deletion_may_survive_or_not() {
        for seen in [Observed::Absent, Observed::Write(1)] {
            let ledger = document();
            put(&ledger);
            assert_eq!(ledger.delete(0), (2, true));
            assert_eq!(ledger.settle(0, &seen), Ok(()), "{seen:?}");
        }
    }

    #[test]
    fn an_older_value_is_stale() {
        let ledger = document();
        put(&ledger);
        put(&ledger);
        let seen = Observed::Write(1);
        assert_eq!(
            ledger.settle(0, &seen),
            Err(Violation::Stale {
                expected: 2,
                found: 1
            })
        );
    }

    #[test]
    fn a_deleted_value_may_not_return() {
        let ledger = document();
        put(&ledger);
        let (number, _) = ledger.delete(0);
        ledger.acknowledge(0, number);
        let verdict = ledger.settle(0, &Observed::Write(1));
        assert_eq!(
            verdict,
            Err(Violation::Resurrected {
                expected: 2,
                found: 1
            })
        );
    }

    #[test]
    fn what_a_crash_undid_may_not_return() {
        let ledger = document();
        put(&ledger);
        let _ = ledger.write(0);
        assert_eq!(ledger.settle(0, &Observed::Write(1)), Ok(()));
        assert_eq!(put(&ledger), 3, "numbers are not given out twice");
        let window = ledger.begin_read(0, false);
        let verdict = ledger.end_read(0, window, &Observed::Write(2));
        assert_eq!(
            verdict,
            Err(Violation::Resurrected {
                expected: 3,
                found: 2
            })
        );
    }

    #[test]
    fn what_was_undone_under_an_absence_may_not_return() {
        let ledger = document();
        let _ = ledger.write(0);
        assert_eq!(ledger.settle(0, &Observed::Absent), Ok(()));
        let verdict = ledger.settle(0, &Observed::Write(1));
        assert_eq!(
            verdict,
            Err(Violation::Resurrected {
                expected: 1,
                found: 1
            })
        );
    }

    #[test]
    fn a_value_once_read_is_never_older_later() {
        let ledger = document();
        put(&ledger);
        let _ = ledger.write(0);
        let first = ledger.begin_read(0, false);
        let second = ledger.begin_read(0, false);
        assert_eq!(ledger.end_read(0, first, &Observed::Write(2)), Ok(()));
        // The second read was sent before the first was answered: either state is right.
        assert_eq!(ledger.end_read(0, second, &Observed::Write(1)), Ok(()));
        let third = ledger.begin_read(0, false);
        let stale = Violation::Stale {
            expected: 2,
            found: 1,
        };
        assert_eq!(
            ledger.end_read(0, third, &Observed::Write(1)),
            Err(stale.clone())
        );
        // A crash does not excuse it: what a reader was shown must survive.
        assert_eq!(ledger.settle(0, &Observed::Write(1)), Err(stale));
    }

    #[test]
    fn an_absence_once_read_stays() {
        let ledger = document();
        put(&ledger);
        let _ = ledger.delete(0);
        let window = ledger.begin_read(0, false);
        assert_eq!(ledger.end_read(0, window, &Observed::Absent), Ok(()));
        let verdict = ledger.settle(0, &Observed::Write(1));
        assert_eq!(
            verdict,
            Err(Violation::Resurrected {
                expected: 2,
                found: 1
            })
        );
    }

    #[test]
    fn writers_read_their_own_writes() {
        let ledger = document();
        let _ = ledger.write(0);
        let window = ledger.begin_read(0, true);
        let _ = ledger.write(0);
        assert_eq!(ledger.end_read(0, window, &Observed::Write(1)), Ok(()));
        let lost = ledger.end_read(0, window, &Observed::Absent);
        assert_eq!(lost, Err(Violation::Lost { expected: 1 }));
        let early = ledger.end_read(0, window, &Observed::Write(2));
        assert_eq!(
            early,
            Err(Violation::Invented {
                newest: 1,
                found: 2
            })
        );
    }

    #[test]
    fn nothing_is_invented() {
        let ledger = document();
        put(&ledger);
        let verdict = ledger.settle(0, &Observed::Write(2));
        assert_eq!(
            verdict,
            Err(Violation::Invented {
                newest: 1,
                found: 2
            })
        );
        let damage = Observed::Damaged("x".into());
        assert_eq!(
            ledger.settle(0, &damage),
            Err(Violation::Damaged("x".into()))
        );
    }

    #[test]
    fn counters_go_on_from_what_survived() {
        let ledger = Ledger::new([Kind::Counter]);
        put(&ledger);
        put(&ledger);
        let _ = (ledger.write(0), ledger.write(0));
        assert_eq!(ledger.settle(0, &Observed::Write(3)), Ok(()));
        assert_eq!(put(&ledger), 4, "the number is the counter's value");
        let verdict = ledger.settle(0, &Observed::Write(3));
        assert_eq!(
            verdict,
            Err(Violation::Stale {
                expected: 4,
                found: 3
            })
        );
        let verdict = ledger.settle(0, &Observed::Write(9));
        assert_eq!(
            verdict,
            Err(Violation::Invented {
                newest: 3,
                found: 9
            })
        );
    }

    #[test]
    fn many_deletions_do_not_convict_the_innocent() {
        let ledger = document();
        let window = ledger.begin_read(0, false);
        for _ in 0..DELETIONS_MAX {
            put(&ledger);
            let (number, _) = ledger.delete(0);
            ledger.acknowledge(0, number);
        }
        put(&ledger);
        assert_eq!(ledger.end_read(0, window, &Observed::Absent), Ok(()));
    }
}
