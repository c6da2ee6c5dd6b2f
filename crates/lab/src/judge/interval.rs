//! What a call could see that looks at the store for longer than a moment: a scan, a random key.
//!
//! Such a call happens at no single moment. What it says of a key must have been so at some moment between
//! its beginning and its end: a key that it names was there then, one that a scan leaves out was not. Of how
//! things may have happened ([`crate::judge::history`]) each way remembers what it went past.

use super::history::State;
use crate::plan::call::{Held, Key, Outcome, Values};

/// What was there since the call began.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Interval {
    /// By key, sorted.
    keys: Vec<Vec<Held>>,
}

impl Interval {
    /// The call begins, or begins to look, at this state.
    pub(crate) fn new(visible: &State) -> Interval {
        let mut intervals = Interval {
            keys: vec![Vec::new(); visible.len()],
        };
        intervals.look(visible);
        intervals
    }

    /// The store is in this state now.
    pub(crate) fn look(&mut self, visible: &State) {
        for (seen, held) in self.keys.iter_mut().zip(visible) {
            if let Err(place) = seen.binary_search(held) {
                seen.insert(place, *held);
            }
        }
    }

    /// Whether the call may have been told this.
    pub(crate) fn explain(&self, told: Option<&Outcome>, values: &Values) -> bool {
        match told {
            // It looks at one key after the other, as iterations do.
            Some(Outcome::Key(None)) => self.keys.iter().all(|seen| seen.contains(&None)),
            Some(Outcome::Key(Some(key))) => self.of(*key).iter().any(Option::is_some),
            Some(Outcome::Visited(visited)) => self.explain_visits(visited, values),
            _ => false,
        }
    }

    fn of(&self, key: Key) -> &[Held] {
        self.keys.get(usize::from(key)).map_or(&[], Vec::as_slice)
    }

    fn explain_visits(&self, visited: &[(Key, u64, u64)], values: &Values) -> bool {
        let was_there = |&(key, bytes, expires): &(Key, u64, u64)| {
            let mut held = self.of(key).iter().flatten();
            held.any(|held| values.bytes(held.0).len() as u64 == bytes && held.1 == expires)
        };
        let is_left_out = |key: usize| visited.iter().all(|visit| usize::from(visit.0) != key);
        visited.iter().all(was_there)
            && (0..self.keys.len()).all(|key| !is_left_out(key) || self.keys[key].contains(&None))
    }
}
