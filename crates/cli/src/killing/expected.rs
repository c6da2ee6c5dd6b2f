//! What the store owes: for each key the states that may be seen, before and after a kill. The judge.
//!
//! * Each key is written by one connection, so its writes have an order. A write makes a *state*: the number
//!   of the write whose value is there (0 = none; for a counter, its value) and when it expires.
//! * The *floor* is the newest state that must not be undone: acknowledged, or shown to a reader. States
//!   after it were asked for and not acknowledged; after a kill any of them may be there, and then is the
//!   only one.
//! * A read shows any state from the floor at its sending on. A state counts as absent once it has expired,
//!   by the wall clock that clients and server share.
//!
//! Nothing here knows how the store works. All changes are [`Event`]s, the lines of an expected-state file;
//! live connections and whoever reads such a file come to the same knowledge by the same function.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// States remembered below the floor. A read that has seen more of them go by is not judged.
const PAST_MAX: usize = 64;

/// What a write makes of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Number of the write.
    pub(crate) number: u64,
    /// Number of the write whose value is there; 0 = none. Of a counter, its value.
    pub(crate) value: u64,
    /// When that expires, in Unix milliseconds; 0 = never.
    pub(crate) expires_at_ms: u64,
    /// When it was promised, in Unix milliseconds; 0 = not yet.
    pub(crate) promised_at_ms: u64,
}

/// What happened to a key, and a line of an expected-state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A write is about to be sent.
    Sent { key: usize, state: State },
    /// The writer has its answer.
    Acknowledged { key: usize, number: u64, at_ms: u64 },
    /// A reader was shown the state.
    Shown { key: usize, number: u64, at_ms: u64 },
    /// After a kill, this state was there: all others that were possible are not any more.
    Found { key: usize, number: u64, at_ms: u64 },
}

/// What was seen under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing.
    Absent,
    /// A value (or a counter's).
    Value { value: u64, expiry: Expiry },
    /// Bytes that nobody wrote there.
    Damaged(String),
    /// Names of a batch that are not of one write.
    Torn(String),
}

/// What was seen of a value's expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// It was not asked for.
    Unasked,
    /// Unix milliseconds; 0 = never.
    At(u64),
    /// When it was asked for, a moment after the value had been there, the key had expired.
    Passed,
}

impl Seen {
    pub(crate) fn value(value: u64) -> Seen {
        Seen::Value {
            value,
            expiry: Expiry::Unasked,
        }
    }
}

/// When something was seen, in Unix milliseconds: not before the one, not after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
}

/// What a read may show: fixed when it is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    oldest: u64,
    newest: Option<u64>,
}

/// In which way a promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breach {
    /// What was promised is gone, or an older state is there.
    Lost,
    /// What was deleted, expired or undone by a kill is back.
    Resurrected,
    /// Half of a batch, bytes nobody wrote, a value before it was asked for, another expiry.
    Damaged,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) breach: Breach,
    /// Oldest state that would have been right.
    pub(crate) promised: State,
    /// Newest state that would have been right.
    pub(crate) newest: u64,
    pub(crate) seen: Seen,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.breach {
            Breach::Lost => "LOST",
            Breach::Resurrected => "RESURRECTED",
            Breach::Damaged => "DAMAGED",
        };
        write!(f, "{word}: promised was {}", self.promised)?;
        if self.newest > self.promised.number {
            write!(f, " (writes up to {} were under way)", self.newest)?;
        }
        match &self.seen {
            Seen::Absent => f.write_str("; found was nothing"),
            Seen::Value { value, expiry } => {
                write!(f, "; found was the value {value}")?;
                match expiry {
                    Expiry::Unasked => Ok(()),
                    Expiry::At(at) => write!(f, ", expiring at {at} ms"),
                    Expiry::Passed => f.write_str(", which had expired a moment later"),
                }
            }
            Seen::Damaged(what) | Seen::Torn(what) => write!(f, "; {what}"),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            0 => write!(f, "nothing, by write {}", self.number)?,
            value => write!(f, "the value {value}, by write {}", self.number)?,
        }
        if self.expires_at_ms > 0 {
            write!(f, ", expiring at {} ms", self.expires_at_ms)?;
        }
        match self.promised_at_ms {
            0 => Ok(()),
            at => write!(f, ", acknowledged or shown at {at} ms"),
        }
    }
}

#[derive(Clone)]
struct Entry {
    /// From the oldest remembered to the newest asked for, ascending, never empty.
    states: VecDeque<State>,
    floor: u64,
    /// Acknowledged writes.
    acknowledged: u64,
    /// Whether states were forgotten.
    forgot: bool,
    /// Ranges of writes that a kill undid.
    undone: Vec<(u64, u64)>,
    /// Whether the last kill left nothing, and that may be a value that has expired.
    lingers: bool,
}

/// The states owed for a fixed set of keys, by number.
pub(crate) struct Expected {
    entries: Vec<Mutex<Entry>>,
}

impl Clone for Expected {
    fn clone(&self) -> Expected {
        let entries = (0..self.entries.len()).map(|key| Mutex::new(self.entry(key).clone()));
        Expected {
            entries: entries.collect(),
        }
    }
}

impl Expected {
    /// Nothing is owed for any of `keys` keys, and nothing is there.
    pub(crate) fn new(keys: usize) -> Expected {
        let entry = || {
            Mutex::new(Entry {
                states: VecDeque::from([State::default()]),
                floor: 0,
                acknowledged: 0,
                forgot: false,
                undone: Vec::new(),
                lingers: false,
            })
        };
        Expected {
            entries: (0..keys).map(|_| entry()).collect(),
        }
    }

    fn entry(&self, key: usize) -> MutexGuard<'_, Entry> {
        // A panic elsewhere fails the campaign anyway; an entry is whole after each step.
        self.entries[key]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `key` is one of those this was made for.
    pub(crate) fn knows(&self, key: usize) -> bool {
        key < self.entries.len()
    }

    /// The newest state asked for: what the key's own writer is shown next.
    pub(crate) fn last(&self, key: usize) -> State {
        self.entry(key).last()
    }

    /// How many writes of `key` were acknowledged.
    pub(crate) fn acknowledged(&self, key: usize) -> u64 {
        self.entry(key).acknowledged
    }

    /// Takes note of what happened.
    pub(crate) fn apply(&self, event: Event) {
        match event {
            Event::Sent { key, state } => self.entry(key).states.push_back(state),
            Event::Acknowledged { key, number, at_ms } => {
                let mut entry = self.entry(key);
                entry.promise(number, at_ms);
                entry.acknowledged += 1;
            }
            Event::Shown { key, number, at_ms } => self.entry(key).promise(number, at_ms),
            Event::Found { key, number, at_ms } => self.entry(key).keep_only(number, at_ms),
        }
    }

    /// A read is about to be sent. A key's own writer sees exactly its last write; others anything promised.
    pub(crate) fn begin_read(&self, key: usize, by_writer: bool) -> Window {
        let entry = self.entry(key);
        if by_writer {
            let last = entry.last().number;
            Window {
                oldest: last,
                newest: Some(last),
            }
        } else {
            Window {
                oldest: entry.floor,
                newest: None,
            }
        }
    }

    /// The answer to a read has come: the state it showed, if that raises what is promised.
    ///
    /// # Errors
    /// The promise it breaks.
    pub(crate) fn judge(
        &self,
        key: usize,
        window: Window,
        seen: &Seen,
        moment: Moment,
    ) -> Result<Option<u64>, Violation> {
        let entry = self.entry(key);
        let newest = window.newest.unwrap_or(entry.last().number);
        let number = entry.judge(window.oldest, newest, seen, moment)?;
        Ok(number.filter(|&number| number > entry.floor))
    }

    /// After a kill, with nobody writing: the state that is there, if it was not the only one possible.
    ///
    /// # Errors
    /// The promise it breaks.
    pub(crate) fn settle(
        &self,
        key: usize,
        seen: &Seen,
        moment: Moment,
    ) -> Result<Option<u64>, Violation> {
        let entry = self.entry(key);
        let number = entry.judge(entry.floor, entry.last().number, seen, moment)?;
        Ok(number.filter(|_| entry.last().number > entry.floor))
    }

    /// Whether there may be a value that has expired, and is not removed yet.
    pub(crate) fn may_linger(&self, key: usize, at_ms: u64) -> bool {
        let entry = self.entry(key);
        entry.lingers || entry.may_have_expired(at_ms)
    }

    /// Whether the writer can tell what its next deletion or change of expiry will answer, whenever within
    /// the next minute the server gets to it: whether there is a value.
    pub(crate) fn is_there(&self, key: usize, now_ms: u64) -> Option<bool> {
        let last = self.last(key);
        match (last.value, last.expires_at_ms) {
            (0, _) => Some(false),
            (_, 0) => Some(true),
            (_, at) if at <= now_ms => Some(false),
            (_, at) => (at > now_ms + 60_000).then_some(true),
        }
    }
}

impl Entry {
    fn last(&self) -> State {
        self.states.back().copied().unwrap_or_default()
    }

    /// Whether one of the states that are possible is a value that has expired.
    fn may_have_expired(&self, at_ms: u64) -> bool {
        let mut possible = self.states.iter().filter(|s| s.number >= self.floor);
        possible.any(|state| state.has_expired(at_ms))
    }

    fn promise(&mut self, number: u64, at_ms: u64) {
        if let Some(state) = self.states.iter_mut().find(|state| state.number == number)
            && state.promised_at_ms == 0
        {
            state.promised_at_ms = at_ms;
        }
        // What a write that happened leaves is its own.
        self.lingers &= number <= self.floor;
        self.floor = self.floor.max(number);
        let past = self.states.partition_point(|s| s.number < self.floor);
        for _ in PAST_MAX..past {
            self.states.pop_front();
            self.forgot = true;
        }
    }

    /// Numbers go on from the newest ever asked for, so that no number stands for two writes.
    fn keep_only(&mut self, number: u64, at_ms: u64) {
        let newest = self.last().number;
        self.lingers |= self.may_have_expired(at_ms);
        let kept = self.states.iter().find(|state| state.number == number);
        let kept = kept.copied().unwrap_or_default();
        if number < newest {
            self.undone.push((number + 1, newest));
        }
        let promised_at_ms = match kept.promised_at_ms {
            0 => at_ms,
            earlier => earlier,
        };
        self.states = VecDeque::from([State {
            number: newest,
            promised_at_ms,
            ..kept
        }]);
        self.floor = newest;
        self.forgot = false;
    }

    /// The oldest state of `oldest..=newest` that shows what was seen; `None` if too much was forgotten to
    /// say.
    fn judge(
        &self,
        oldest: u64,
        newest: u64,
        seen: &Seen,
        moment: Moment,
    ) -> Result<Option<u64>, Violation> {
        let possible = self
            .states
            .iter()
            .filter(|state| (oldest..=newest).contains(&state.number));
        let shown = possible.clone().find(|state| state.may_show(seen, moment));
        if let Some(state) = shown {
            return Ok(Some(state.number));
        }
        let first = self.states.front().map_or(0, |state| state.number);
        if self.forgot && oldest < first && !matches!(seen, Seen::Damaged(_) | Seen::Torn(_)) {
            return Ok(None);
        }
        Err(Violation {
            breach: self.breach(oldest, newest, seen, moment),
            promised: possible.clone().next().copied().unwrap_or_default(),
            newest,
            seen: seen.clone(),
        })
    }

    fn breach(&self, oldest: u64, newest: u64, seen: &Seen, moment: Moment) -> Breach {
        let Seen::Value { value, .. } = *seen else {
            return match seen {
                Seen::Absent => Breach::Lost,
                _ => Breach::Damaged,
            };
        };
        let possible = || {
            self.states
                .iter()
                .filter(|state| (oldest..=newest).contains(&state.number))
        };
        let undone = |&(from, to): &(u64, u64)| (from..=to).contains(&value);
        let gone = |state: &&State| {
            (state.number > value && state.value == 0) || state.has_expired(moment.from_ms)
        };
        if possible().any(|state| state.value == value && !state.has_expired(moment.from_ms)) {
            // The value is right, so its expiry is not.
            Breach::Damaged
        } else if self.undone.iter().any(undone) || possible().any(|state| gone(&state)) {
            Breach::Resurrected
        } else if possible().all(|state| state.value < value) {
            // Nobody asked for it yet.
            Breach::Damaged
        } else {
            Breach::Lost
        }
    }
}

impl State {
    fn has_expired(&self, at_ms: u64) -> bool {
        self.value != 0 && self.expires_at_ms != 0 && self.expires_at_ms <= at_ms
    }

    /// Whether a read at some moment between may show this state as `seen`.
    fn may_show(&self, seen: &Seen, moment: Moment) -> bool {
        match *seen {
            Seen::Absent => self.value == 0 || self.has_expired(moment.to_ms),
            Seen::Value { value, expiry } => {
                let is_expiry = match expiry {
                    Expiry::Unasked => true,
                    Expiry::At(at) => at == self.expires_at_ms,
                    Expiry::Passed => self.has_expired(moment.to_ms),
                };
                let is_there = self.value == value && !self.has_expired(moment.from_ms);
                value != 0 && is_there && is_expiry
            }
            Seen::Damaged(_) | Seen::Torn(_) => false,
        }
    }
}

#[cfg(test)]
#[path = "expected_tests.rs"]
mod tests;
