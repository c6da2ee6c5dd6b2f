//! Lazy exploration: the contents of a line are decided only when recovery reads the line (Jaaru).
//!
//! Lines that recovery never reads multiply nothing. Recovery starts on the certain bytes. The first read of,
//! or store to, an uncertain line takes the next choice from a script, or the first choice if the script has
//! ended. Scripts are tried depth first. Lines that were not read get a random choice before the store is
//! used.
//!
//! Files are read whole when they are opened, so this is for memory only.

use super::unit::Unit;
use everdram_pm::lab::{Actor, Event, Perform, Source, Tap};
use everdram_pm::{LINE, Region};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// Decides lines as they are read.
pub struct Oracle {
    units: HashMap<u64, Unit>,
    state: Mutex<State>,
    actors: AtomicU32,
}

#[derive(Default)]
struct State {
    /// By line.
    chosen: HashMap<u64, usize>,
    script: Vec<usize>,
    widths: Vec<usize>,
}

/// Choices of lines, in the order in which recovery first touches them.
pub type Script = Vec<usize>;

impl Oracle {
    /// An oracle over uncertain lines that follows a script.
    #[must_use]
    pub fn new(units: &[Unit], script: Script) -> Oracle {
        Oracle {
            units: units
                .iter()
                .map(|unit| (unit.place, unit.clone()))
                .collect(),
            state: Mutex::new(State {
                script,
                ..State::default()
            }),
            actors: AtomicU32::new(0),
        }
    }

    fn decide(&self, region: &Region, at: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut state = self.state.lock();
        if state.chosen.len() == self.units.len() {
            return;
        }
        for line in at / LINE..=(at + bytes - 1) / LINE {
            let Some(unit) = self.units.get(&line) else {
                continue;
            };
            if state.chosen.contains_key(&line) {
                continue;
            }
            let place = state.widths.len();
            state.widths.push(unit.choices.len());
            if state.script.len() <= place {
                state.script.push(0);
            }
            // A random script does not know how many choices a line has.
            let choice = state.script[place] % unit.choices.len();
            state.script[place] = choice;
            state.chosen.insert(line, choice);
            region.imprint(line * LINE, &unit.choices[choice].bytes);
        }
    }

    /// Decides the lines that were not read.
    pub fn decide_rest(&self, region: &Region, mut choose: impl FnMut(&Unit) -> usize) {
        let mut state = self.state.lock();
        for (&line, unit) in &self.units {
            state.chosen.entry(line).or_insert_with(|| {
                let choice = choose(unit).min(unit.newest());
                region.imprint(line * LINE, &unit.choices[choice].bytes);
                choice
            });
        }
    }

    /// The lines decided so far, and their contents.
    #[must_use]
    pub fn chosen(&self) -> Vec<(u64, Box<[u8]>)> {
        let state = self.state.lock();
        let mut chosen: Vec<_> = state
            .chosen
            .iter()
            .map(|(&line, &choice)| (line, self.units[&line].choices[choice].bytes.clone()))
            .collect();
        chosen.sort_unstable();
        chosen
    }

    /// The next script, or `None` when all were tried.
    #[must_use]
    pub fn next(&self) -> Option<Script> {
        let state = self.state.lock();
        let mut script = state.script[..state.widths.len()].to_vec();
        while let Some(last) = script.pop() {
            if last + 1 < state.widths[script.len()] {
                script.push(last + 1);
                return Some(script);
            }
        }
        None
    }
}

impl Tap for Oracle {
    fn actor(&self) -> Actor {
        self.actors.fetch_add(1, Ordering::Relaxed)
    }

    fn event(
        &self,
        _region: &Region,
        _source: Source,
        _event: Event<'_>,
        perform: Perform<'_>,
    ) -> bool {
        perform()
    }

    fn before_store(&self, region: &Region, at: u64, bytes: u64) {
        self.decide(region, at, bytes);
    }

    fn load(&self, region: &Region, at: u64, bytes: u64) {
        self.decide(region, at, bytes);
    }
}
