//! The judge: which states of each key a reader may see, before and after a kill.
//!
//! * One connection writes a key, so the key's writes have an order. Each write makes a *state*: the number
//!   of the write whose value the key holds (0 = no value; for a counter, the counter's value), and its
//!   expiry.
//! * The *floor* is the newest state that must not be undone: it was acknowledged, or a reader saw it. The
//!   states after it were requested and not acknowledged. After a kill the key may hold any of them, and from
//!   then on only that one.
//! * A read may show any state from the floor at its sending on. A state counts as absent once it has
//!   expired, by the wall clock that clients and server share.
//!
//! The judge knows nothing of how the store works. Each change is an [`Event`], which is a line of the
//! expected-state file. So live connections and a reader of the file apply the same function.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// States kept below the floor. If the floor passed more states during a read, the read may go unjudged.
const PAST_MAX: usize = 64;

/// The state of a key after a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Number of the write.
    pub(crate) number: u64,
    /// Number of the write whose value the key holds; 0 = no value. For a counter, its value.
    pub(crate) value: u64,
    /// When the value expires, in Unix milliseconds; 0 = never.
    pub(crate) expires_at_ms: u64,
    /// When the state was promised, in Unix milliseconds; 0 = not yet.
    pub(crate) promised_at_ms: u64,
}

/// An event of a key: one line of the expected-state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A write is about to be sent.
    Sent { key: usize, state: State },
    /// The writer has received its answer.
    Acknowledged { key: usize, number: u64, at_ms: u64 },
    /// A reader saw the state.
    Shown { key: usize, number: u64, at_ms: u64 },
    /// After a kill, the key held this state. None of the other states is possible any more.
    Found { key: usize, number: u64, at_ms: u64 },
}

/// What a read of a key showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// No value.
    Absent,
    /// A value (or a counter's).
    Value { value: u64, expiry: Expiry },
    /// Bytes that no client wrote there.
    Damaged(String),
    /// The names of a batch show values of different writes.
    Torn(String),
}

/// What a read showed of a value's expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// The reader did not ask for it.
    Unasked,
    /// Unix milliseconds; 0 = never.
    At(u64),
    /// The value was there, and a moment later the request for its expiry found the key expired.
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

/// When a read took place, in Unix milliseconds: not before `from_ms`, not after `to_ms`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
}

/// The states a read may show, fixed when the read is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    oldest: u64,
    newest: Option<u64>,
}

/// How a promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breach {
    /// A promised state is gone, or the key holds an older one.
    Lost,
    /// A value has returned after its deletion, its expiry, or the kill that undid its write.
    Resurrected,
    /// Half of a batch, bytes that no client wrote, a value that no client has requested yet, or a wrong
    /// expiry.
    Damaged,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) breach: Breach,
    /// The oldest correct state.
    pub(crate) promised: State,
    /// The newest correct state.
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
    /// Ascending from the oldest one kept to the newest one requested; never empty.
    states: VecDeque<State>,
    floor: u64,
    /// Acknowledged writes.
    acknowledged: u64,
    /// Whether older states were dropped.
    forgot: bool,
    /// Ranges of writes that a kill undid.
    undone: Vec<(u64, u64)>,
    /// Whether the key may hold a value that had expired when the last kill was judged and is not removed
    /// yet.
    lingers: bool,
}

/// The possible states of a fixed set of keys, by number.
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
    /// For `keys` keys without a value.
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
        // A panic elsewhere fails the campaign anyway, and every step leaves the entry consistent.
        self.entries[key]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `key` is one of these keys.
    pub(crate) fn knows(&self, key: usize) -> bool {
        key < self.entries.len()
    }

    /// The newest requested state: the key's own writer sees it next.
    pub(crate) fn last(&self, key: usize) -> State {
        self.entry(key).last()
    }

    /// The number of acknowledged writes of `key`.
    pub(crate) fn acknowledged(&self, key: usize) -> u64 {
        self.entry(key).acknowledged
    }

    /// Applies an event.
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

    /// Call it before a read is sent. A key's own writer sees exactly its last write; other readers may see
    /// any state from the floor on.
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

    /// Judges the answer to a read. Returns the state that it showed if this raises the floor.
    ///
    /// # Errors
    /// The broken promise.
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

    /// Judges a read after a kill, while nothing is written. Returns the state of the key if others were
    /// possible.
    ///
    /// # Errors
    /// The broken promise.
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

    /// Whether the key may hold a value that has expired and is not removed yet.
    pub(crate) fn may_linger(&self, key: usize, at_ms: u64) -> bool {
        let entry = self.entry(key);
        entry.lingers || entry.may_have_expired(at_ms)
    }

    /// Whether the key has a value, which decides the answer to the writer's next deletion or change of
    /// expiry. `None` if that depends on when, within the next minute, the server executes it.
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

    /// Whether one of the possible states is an expired value.
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
        // A newer write has replaced the expired value.
        self.lingers &= number <= self.floor;
        self.floor = self.floor.max(number);
        let past = self.states.partition_point(|s| s.number < self.floor);
        for _ in PAST_MAX..past {
            self.states.pop_front();
            self.forgot = true;
        }
    }

    /// Numbers continue after the newest requested one, so that no two writes share a number.
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

    /// The oldest state of `oldest..=newest` that shows `seen`; `None` if too many states were dropped to
    /// decide.
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
            // The value is correct, so the expiry is wrong.
            Breach::Damaged
        } else if self.undone.iter().any(undone) || possible().any(|state| gone(&state)) {
            Breach::Resurrected
        } else if possible().all(|state| state.value < value) {
            // No client has requested this value yet.
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

    /// Whether a read between the two times of `moment` may show this state as `seen`.
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
