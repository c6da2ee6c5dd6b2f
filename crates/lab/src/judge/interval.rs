//! What a call may have seen that takes an interval and not a moment: a scan, a range, a random key.
//!
//! What such a call says of a key must have been true at some moment between its begin and its end. A key
//! that it names was there then; a key that a scan leaves out was not, nor one between the ends of a range.
//! Each configuration of [`crate::judge::history`] remembers the states that it has passed since the call
//! began.

use crate::plan::call::{Call, Held, Key, Outcome, Values};

/// What each key held since the call began.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Interval {
    /// By key, sorted.
    keys: Vec<Vec<Held>>,
}

impl Interval {
    /// The call begins in this state.
    pub(crate) fn new(visible: &[Held]) -> Interval {
        let mut intervals = Interval {
            keys: vec![Vec::new(); visible.len()],
        };
        intervals.look(visible);
        intervals
    }

    /// The state changed to this one.
    pub(crate) fn look(&mut self, visible: &[Held]) {
        for (seen, held) in self.keys.iter_mut().zip(visible) {
            if let Err(place) = seen.binary_search(held) {
                seen.insert(place, *held);
            }
        }
    }

    /// Whether this answer to a call is right.
    pub(crate) fn explain(&self, call: &Call, told: Option<&Outcome>, values: &Values) -> bool {
        match told {
            // It reads one key after the other, so each key must have been absent at some moment.
            Some(Outcome::Key(None)) => self.keys.iter().all(|seen| seen.contains(&None)),
            Some(Outcome::Key(Some(key))) => self.of(*key).iter().any(Option::is_some),
            Some(Outcome::Visited(visited)) => {
                let is_asked_for = |key: Key| match call {
                    Call::Range(from, to, _) => (*from..=*to).contains(&key),
                    _ => true,
                };
                self.explain_visits(visited, is_asked_for, values)
            }
            _ => false,
        }
    }

    fn of(&self, key: Key) -> &[Held] {
        self.keys.get(usize::from(key)).map_or(&[], Vec::as_slice)
    }

    fn explain_visits(
        &self,
        visited: &[(Key, u64, u64)],
        is_asked_for: impl Fn(Key) -> bool,
        values: &Values,
    ) -> bool {
        let was_there = |&(key, bytes, expires): &(Key, u64, u64)| {
            let mut held = self.of(key).iter().flatten();
            is_asked_for(key)
                && held.any(|held| values.bytes(held.0).len() as u64 == bytes && held.1 == expires)
        };
        let is_left_out = |key: usize| {
            is_asked_for(key as Key) && visited.iter().all(|visit| usize::from(visit.0) != key)
        };
        visited.iter().all(was_there)
            && (0..self.keys.len()).all(|key| !is_left_out(key) || self.keys[key].contains(&None))
    }
}
