//! Durable linearizability: histories so short that the states allowed can be written down.

use everdram_lab::call::{Call, Outcome, ValueId, Values};
use everdram_lab::history::{Checker, Entry, History, State};
use everdram_lab::trace::Step;
use std::collections::HashSet;

const KEYS: usize = 3;

/// A history while it happens. Values are their numbers: 0, 1, 2, ...
struct Story {
    checker: Checker,
    history: History,
    values: Values,
}

impl Story {
    fn new() -> Story {
        let mut values = Values::default();
        for value in 0..6u64 {
            assert_eq!(u64::from(values.number(&value.to_le_bytes())), value);
        }
        Story {
            checker: Checker::new(KEYS),
            history: History::default(),
            values,
        }
    }

    /// A call begins.
    fn begin(&mut self, session: u32, call: Call) -> u32 {
        let number = self.history.entries.len() as u32;
        self.history.entries.push(Entry {
            session,
            call,
            outcome: None,
        });
        self.checker.invoke(number, &self.history);
        number
    }

    /// It returns, and says so.
    fn end(&mut self, number: u32, outcome: Outcome) -> Result<(), String> {
        self.history.entries[number as usize].outcome = Some(outcome);
        self.checker.ret(number, &self.history, &mut self.values)
    }

    /// The process dies.
    fn die(&mut self) {
        self.checker
            .step(&Step::Death, &self.history, &mut self.values)
            .unwrap();
    }

    /// Begins and returns.
    fn call(&mut self, session: u32, call: Call, outcome: Outcome) -> Result<(), String> {
        let number = self.begin(session, call);
        self.end(number, outcome)
    }

    /// What the keys may hold after a crash.
    #[track_caller]
    fn expect(&mut self, allowed: &[[Option<ValueId>; KEYS]]) {
        let found = self.checker.allowed(&self.history, &mut self.values);
        let values = |state: &State| -> Vec<Option<ValueId>> {
            state.iter().map(|held| held.map(|held| held.0)).collect()
        };
        let found: HashSet<_> = found.states.iter().map(values).collect();
        assert_eq!(found, allowed.iter().map(|state| state.to_vec()).collect());
    }
}

fn put(key: u8, value: ValueId) -> Call {
    Call::Put(key, value, 0)
}

const NEW: Outcome = Outcome::Was(false);
const NOTHING: [Option<ValueId>; KEYS] = [None; KEYS];

/// What a killed process had been asked to do it did before it was gone, or never: not later, when the next
/// process has answered others.
#[test]
fn a_call_that_a_kill_cut_off_does_not_happen_later() {
    let mut story = Story::new();
    story.begin(0, put(0, 1));
    let kill = story.begin(0, Call::Kill);
    story.die();
    story.expect(&[NOTHING, [Some(1), None, None]]);
    story.end(kill, Outcome::Done).unwrap();
    story.call(100, put(0, 2), Outcome::Was(true)).unwrap();
    story.expect(&[[Some(2), None, None]]);

    let mut story = Story::new();
    story.begin(0, put(0, 1));
    story.die();
    story.call(100, put(0, 2), NEW).unwrap();
    story.expect(&[[Some(2), None, None]]);
}

#[test]
fn what_returned_is_there_and_what_did_not_may_be() {
    let mut story = Story::new();
    story.expect(&[NOTHING]);
    let number = story.begin(0, put(0, 1));
    story.expect(&[NOTHING, [Some(1), None, None]]);
    story.end(number, NEW).unwrap();
    story.expect(&[[Some(1), None, None]]);
    story.begin(0, Call::Delete(0));
    story.expect(&[NOTHING, [Some(1), None, None]]);
}

#[test]
fn wrong_answers_are_errors() {
    let defect = [
        (put(0, 1), Outcome::Was(true)),
        (Call::Delete(0), Outcome::Was(true)),
        (Call::Get(0), Outcome::Value(Some(1))),
        (Call::Get(1), Outcome::Value(None)),
        (Call::Swap(1, 3), Outcome::Value(Some(3))),
        (Call::Add(1, 1), Outcome::Word(Some(3))),
        (Call::Add(0, 1), Outcome::Word(Some(0))),
    ];
    for (call, outcome) in defect {
        let mut story = Story::new();
        story.call(0, put(1, 2), NEW).unwrap();
        let said = story.call(0, call.clone(), outcome.clone());
        assert!(said.is_err(), "{call:?} answered {outcome:?}");
    }
    let right = [
        (Call::Get(1), Outcome::Value(Some(2))),
        (Call::Add(1, 4), Outcome::Word(Some(2))),
        (Call::Swap(1, 5), Outcome::Value(Some(6))),
        (Call::Delete(1), Outcome::Was(true)),
        (Call::Add(1, 1), Outcome::Word(None)),
        (put(2, 1), NEW),
        (Call::Clear, Outcome::Done),
        (Call::Get(2), Outcome::Value(None)),
    ];
    let mut story = Story::new();
    story.call(0, put(1, 2), NEW).unwrap();
    for (call, outcome) in right {
        story.call(0, call, outcome).unwrap();
    }
}

#[test]
fn calls_that_overlap_come_in_any_order() {
    let mut story = Story::new();
    let first = story.begin(0, put(0, 1));
    let second = story.begin(1, put(0, 2));
    story.expect(&[NOTHING, [Some(1), None, None], [Some(2), None, None]]);
    // Whose key was new decides who came first.
    story.end(second, Outcome::Was(true)).unwrap();
    story.end(first, NEW).unwrap();
    story.expect(&[[Some(2), None, None]]);
    // One after the other: no choice.
    let mut story = Story::new();
    story.call(0, put(0, 1), NEW).unwrap();
    assert!(story.call(1, put(0, 2), NEW).is_err());
}

#[test]
fn what_somebody_was_shown_stays() {
    let mut story = Story::new();
    story.begin(0, put(0, 1));
    story
        .call(1, Call::Get(0), Outcome::Value(Some(1)))
        .unwrap();
    story.expect(&[[Some(1), None, None]]);
    assert!(story.call(1, Call::Get(0), Outcome::Value(None)).is_err());
    // Who saw nothing has said nothing about what comes.
    let mut story = Story::new();
    story.begin(0, put(0, 1));
    story.call(1, Call::Get(0), Outcome::Value(None)).unwrap();
    story.expect(&[NOTHING, [Some(1), None, None]]);
}

#[test]
fn while_it_runs_a_session_is_in_order() {
    let mut story = Story::new();
    story.begin(0, put(0, 1));
    story.begin(0, put(1, 2));
    story
        .call(1, Call::Get(1), Outcome::Value(Some(2)))
        .unwrap();
    assert!(story.call(1, Call::Get(0), Outcome::Value(None)).is_err());
    // Calls of two sessions are not.
    let mut story = Story::new();
    story.begin(0, put(0, 1));
    story.begin(2, put(1, 2));
    story
        .call(1, Call::Get(1), Outcome::Value(Some(2)))
        .unwrap();
    story.call(1, Call::Get(0), Outcome::Value(None)).unwrap();
}

#[test]
fn a_crash_drops_any_of_a_pipeline() {
    let mut story = Story::new();
    story.begin(0, put(0, 1));
    story.begin(0, put(1, 2));
    story.expect(&[
        NOTHING,
        [Some(1), None, None],
        [None, Some(2), None],
        [Some(1), Some(2), None],
    ]);
    // In the order of the session all the same: 1 + 1 is possible, 4 + 1 is not, since 4 came later.
    let mut story = Story::new();
    story.call(0, put(0, 1), NEW).unwrap();
    story.begin(0, Call::Add(0, 1));
    story.begin(0, put(0, 4));
    story.expect(&[1, 2, 4].map(|value| [Some(value), None, None]));
}

#[test]
fn batches_are_there_or_not() {
    let mut story = Story::new();
    story.call(0, put(2, 5), NEW).unwrap();
    story.begin(0, Call::Batch(vec![(0, Some(1)), (1, Some(2)), (2, None)]));
    story.expect(&[[None, None, Some(5)], [Some(1), Some(2), None]]);
    story
        .call(1, Call::Get(1), Outcome::Value(Some(2)))
        .unwrap();
    story.expect(&[[Some(1), Some(2), None]]);
    assert!(story.call(1, Call::Get(0), Outcome::Value(None)).is_err());
}

#[test]
fn what_was_refused_never_happened() {
    let mut story = Story::new();
    story.call(0, put(0, 1), Outcome::NoRoom).unwrap();
    story.expect(&[NOTHING]);
    story.call(0, Call::Get(0), Outcome::Value(None)).unwrap();
    // Not even for those who looked meanwhile.
    let number = story.begin(0, put(0, 1));
    story
        .call(1, Call::Get(0), Outcome::Value(Some(1)))
        .unwrap();
    assert!(story.end(number, Outcome::NoRoom).is_err());
}

#[test]
fn what_has_expired_is_gone() {
    let mut story = Story::new();
    story.checker.advance(100);
    story.call(0, Call::Put(0, 1, 110), NEW).unwrap();
    story.call(0, Call::Put(1, 2, 120), NEW).unwrap();
    story.expect(&[[Some(1), Some(2), None]]);
    story.checker.advance(110);
    story.expect(&[[None, Some(2), None]]);
    story.call(0, Call::Get(0), Outcome::Value(None)).unwrap();
    // Adding keeps the expiry, swapping does not.
    story
        .call(0, Call::Add(1, 1), Outcome::Word(Some(2)))
        .unwrap();
    story.expect(&[[None, Some(3), None]]);
    story.checker.advance(120);
    story.expect(&[NOTHING]);
    assert!(story.call(0, Call::Delete(1), Outcome::Was(true)).is_err());
}

/// Sets of states are told apart by their numbers: an image that was judged by one is judged again by
/// another.
#[test]
fn other_states_have_another_number() {
    let number = |story: &mut Story| {
        let allowed = story.checker.allowed(&story.history, &mut story.values);
        allowed.number
    };
    let mut story = Story::new();
    let empty = number(&mut story);
    let open = story.begin(0, put(0, 1));
    let both = number(&mut story);
    story.end(open, NEW).unwrap();
    let full = number(&mut story);
    assert!(empty != both && both != full && empty != full);
    story.call(0, Call::Delete(0), Outcome::Was(true)).unwrap();
    assert_eq!(number(&mut story), empty);
}
