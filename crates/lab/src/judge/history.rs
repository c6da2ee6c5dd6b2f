//! Durable linearizability: the states that a crash may leave, given the answers until then.
//!
//! A history is linearizable if each call can be placed at one moment between its invocation and its return
//! such that all answers are right. It is *durably* linearizable if a crash keeps every call that has
//! returned, and keeps each of the others whole or not at all. Reads are calls, too: a value that was shown
//! may not vanish.
//!
//! The checker keeps all configurations ([`super::linearize`]): a state, and which of the open calls are part
//! of it. A return drops the configurations that do not explain its answer. If none is left, the engine
//! answered wrongly while it ran. A crash may leave the state of any configuration, with any of the open
//! calls added.
//!
//! A scan has no moment of its own: `judge::interval` has what it may have seen.

use super::interval::Interval;
use super::linearize::reachable;
use crate::plan::call::{Call, Expiry, Key, Outcome, Reach, ValueId, Values};
use crate::run::trace::Step;
use std::collections::HashSet;

/// What the keys hold. Index: the key's number.
pub type State = Vec<Option<(ValueId, Expiry)>>;

/// One call of the history.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The session. Its open calls happen in their order.
    pub session: u32,
    /// What was asked.
    pub call: Call,
    /// What was answered, if it returned.
    pub outcome: Option<Outcome>,
}

/// Numbers of sessions for each process: those of the second process begin here, and so forth.
pub const SESSIONS: u32 = 100;
/// Calls beside a session, such as those of remote clients, have numbers of their own: in steps of this from
/// its number on.
pub const BESIDE: u32 = 1000 * SESSIONS;

impl Entry {
    /// Whether it was refused, and so never happened.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self.outcome, Some(Outcome::NoRoom | Outcome::Declined))
    }

    /// The session's number in the plan, which is the same in each process.
    #[must_use]
    pub fn planned_session(&self) -> u32 {
        self.session % SESSIONS
    }
}

/// Everything asked and answered in a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// By number.
    pub entries: Vec<Entry>,
}

/// One explanation of the history so far.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Configuration {
    state: State,
    /// For each open call its answer, if it is part of the state.
    taken: Vec<Option<Outcome>>,
    /// For each open call that takes an interval, what it may have seen.
    intervals: Vec<Option<Interval>>,
}

/// All configurations at one moment of a history.
pub struct Checker {
    configurations: HashSet<Configuration>,
    /// Numbers of the calls that were invoked and have not returned.
    open: Vec<u32>,
    now: u64,
    allowed: Option<Allowed>,
}

/// The states that a crash may leave.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Without keys that have expired.
    pub states: HashSet<State>,
    /// A hash of the set.
    pub number: u64,
}

/// Whether `told` is an answer to a call with this outcome. A pipeline answers its puts with `Done`.
fn fits(told: Option<&Outcome>, found: &Outcome) -> bool {
    told == Some(found) || (told == Some(&Outcome::Done) && matches!(found, Outcome::Was(_)))
}

/// The state after a call, and its answer.
fn apply(state: &State, call: &Call, now: u64, values: &mut Values) -> (State, Outcome) {
    let seen = |state: &State, key: Key| {
        let held = state.get(usize::from(key)).copied().flatten();
        held.filter(|&(_, expires)| expires == 0 || expires > now)
    };
    let mut after = state.clone();
    let mut set = |key: Key, held: Option<(ValueId, Expiry)>| {
        if let Some(place) = after.get_mut(usize::from(key)) {
            *place = held;
        }
    };
    let outcome = match call {
        Call::Put(key, value, expires) | Call::Remote(key, value, expires, _) => {
            set(*key, Some((*value, *expires)));
            Outcome::Was(seen(state, *key).is_some())
        }
        Call::Get(key) => Outcome::Value(seen(state, *key).map(|held| held.0)),
        Call::Delete(key) => {
            set(*key, None);
            Outcome::Was(seen(state, *key).is_some())
        }
        Call::Swap(key, value) => {
            set(*key, Some((*value, 0)));
            Outcome::Value(seen(state, *key).map(|held| held.0))
        }
        Call::Take(key) => {
            set(*key, None);
            Outcome::Value(seen(state, *key).map(|held| held.0))
        }
        Call::Append(key, value) => {
            let before = seen(state, *key);
            let joined = values.joined(before.map(|held| held.0), *value);
            set(*key, Some((joined, before.map_or(0, |held| held.1))));
            Outcome::Length(values.bytes(joined).len() as u64)
        }
        Call::Overwrite(key, at, value) => {
            let before = seen(state, *key);
            let changes = before.is_some() || !values.bytes(*value).is_empty();
            let made = values.overwritten(before.map(|held| held.0), *at, *value);
            if changes {
                set(*key, Some((made, before.map_or(0, |held| held.1))));
            }
            Outcome::Length(values.bytes(made).len() as u64)
        }
        Call::Cut(key, length) => match seen(state, *key) {
            None => Outcome::Word(None),
            Some((value, expires)) => {
                let before = values.bytes(value).len() as u64;
                set(*key, Some((values.cut(value, *length), expires)));
                Outcome::Word(Some(before))
            }
        },
        Call::Part(key, at, count) => {
            Outcome::Value(seen(state, *key).map(|held| values.part(held.0, *at, *count)))
        }
        Call::Many(keys) => Outcome::Several(keys.iter().map(|&key| seen(state, key)).collect()),
        Call::Probe(key) => {
            Outcome::Size(seen(state, *key).map(|held| (values.bytes(held.0).len() as u64, held.1)))
        }
        Call::Guarded(key, value, _) => {
            set(*key, Some((*value, 0)));
            Outcome::Several(vec![seen(state, *key)])
        }
        Call::Exec(exec) => {
            if exec.reach == Reach::Cleared {
                (0..state.len()).for_each(|key| set(key as Key, None));
            }
            for &(key, value) in exec.around_clear().1 {
                set(key, value.map(|value| (value, 0)));
            }
            Outcome::Several(exec.reads.iter().map(|&key| seen(state, key)).collect())
        }
        Call::Add(key, by) => match seen(state, *key) {
            None => Outcome::Word(None),
            Some((value, expires)) => match values.added(value, *by) {
                None => Outcome::Word(None),
                Some((before, sum)) => {
                    set(*key, Some((sum, expires)));
                    Outcome::Word(Some(before))
                }
            },
        },
        Call::Batch(parts) | Call::Pipeline(parts) | Call::Slow(parts, _) => {
            for &(key, value) in parts {
                set(key, value.map(|value| (value, 0)));
            }
            Outcome::Done
        }
        Call::Clear => {
            after.iter_mut().for_each(|held| *held = None);
            Outcome::Done
        }
        // They change nothing, and `judge::interval` judges their answers.
        Call::Scan(_) | Call::Range(..) | Call::RandomKey => Outcome::Done,
        Call::Tend
        | Call::Turn(_)
        | Call::Late(_)
        | Call::Hangup(_)
        | Call::Reclaim
        | Call::Checkpoint
        | Call::Advance(_)
        | Call::Kill
        | Call::Reopen
        | Call::Leave => Outcome::Done,
    };
    (after, outcome)
}

/// Whether a call has changed nothing. Such a call need not wait for those submitted before it: a removal
/// that finds no key reads when it is submitted, and earlier writes take effect at the commit.
fn only_looked(call: &Call, outcome: &Outcome) -> bool {
    matches!((call, outcome), (Call::Delete(_), Outcome::Was(false)))
}

impl Checker {
    /// Before anything happened: `keys` keys, all absent.
    #[must_use]
    pub fn new(keys: usize) -> Checker {
        Checker::from_state(vec![None; keys], 0)
    }

    /// From a known state.
    #[must_use]
    pub fn from_state(state: State, now: u64) -> Checker {
        let configuration = Configuration {
            state,
            taken: Vec::new(),
            intervals: Vec::new(),
        };
        Checker {
            configurations: HashSet::from([configuration]),
            open: Vec::new(),
            now,
            allowed: None,
        }
    }

    /// The workload's clock.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The clock moved on. Open scans may see the state before and the state after that.
    pub fn advance(&mut self, now: u64) {
        self.now = now;
        self.allowed = None;
        let configurations = std::mem::take(&mut self.configurations);
        self.configurations = configurations
            .into_iter()
            .map(|configuration| self.looked(configuration))
            .collect();
    }

    /// The configuration after its open scans have seen its state.
    fn looked(&self, mut configuration: Configuration) -> Configuration {
        if configuration.intervals.iter().any(Option::is_some) {
            let visible = self.visible(&configuration.state);
            let looking = configuration.intervals.iter_mut().flatten();
            looking.for_each(|intervals| intervals.look(&visible));
        }
        configuration
    }

    /// Whether a call is open.
    #[must_use]
    pub fn is_within_a_call(&self) -> bool {
        !self.open.is_empty()
    }

    /// Takes in one step of a trace.
    ///
    /// # Errors
    /// No order of the calls explains an answer.
    pub fn step(
        &mut self,
        step: &Step,
        history: &History,
        values: &mut Values,
    ) -> Result<(), String> {
        match step {
            Step::Invoke(call) => self.invoke(*call, history),
            Step::Return(call) => self.ret(*call, history, values)?,
            Step::Clock(now) => self.advance(*now),
            Step::Death | Step::Outage(_) => self.died(history, values),
            _ => {}
        }
        Ok(())
    }

    /// The process died. Its open calls have happened by now, or never will. The call that started the next
    /// process is still to return.
    fn died(&mut self, history: &History, values: &mut Values) {
        let stays: Vec<bool> = self
            .open
            .iter()
            .map(|&number| history.entries[number as usize].call.outlives_process())
            .collect();
        let keep = |place: &mut usize| {
            *place += 1;
            stays[*place - 1]
        };
        self.configurations = self
            .closure(history, values, true)
            .into_iter()
            .map(|mut configuration| {
                let mut place = 0;
                configuration.taken.retain(|_| keep(&mut place));
                let mut place = 0;
                configuration.intervals.retain(|_| keep(&mut place));
                configuration
            })
            .collect();
        let mut place = 0;
        self.open.retain(|_| keep(&mut place));
        self.allowed = None;
    }

    /// Call `number` began.
    pub fn invoke(&mut self, number: u32, history: &History) {
        self.open.push(number);
        let observes = history.entries[number as usize].call.observes();
        let configurations = std::mem::take(&mut self.configurations);
        self.configurations = configurations
            .into_iter()
            .map(|mut configuration| {
                configuration.taken.push(None);
                let intervals =
                    observes.then(|| Interval::new(&self.visible(&configuration.state)));
                configuration.intervals.push(intervals);
                configuration
            })
            .collect();
        self.allowed = None;
    }

    /// Call `number` returned, with the answer in the history.
    ///
    /// # Errors
    /// No order of the calls explains the answer.
    pub fn ret(
        &mut self,
        number: u32,
        history: &History,
        values: &mut Values,
    ) -> Result<(), String> {
        let Some(place) = self.open.iter().position(|&open| open == number) else {
            return Err(format!("call {number} returned without having begun"));
        };
        let entry = &history.entries[number as usize];
        let told = entry.outcome.as_ref();
        let mut next = HashSet::new();
        if entry.is_refused() {
            // It was refused: configurations in which it happened are wrong.
            next.extend(
                self.configurations
                    .drain()
                    .filter(|configuration| configuration.taken[place].is_none()),
            );
        } else {
            let reachable = self.closure(history, values, false);
            let explains = |configuration: &Configuration| match &configuration.intervals[place] {
                Some(intervals) => intervals.explain(&entry.call, told, values),
                None => {
                    let found = configuration.taken[place].as_ref();
                    found.is_some_and(|found| fits(told, found))
                }
            };
            next.extend(reachable.into_iter().filter(explains));
        }
        let next: HashSet<Configuration> = next
            .into_iter()
            .map(|mut configuration| {
                configuration.taken.remove(place);
                configuration.intervals.remove(place);
                configuration
            })
            .collect();
        if next.is_empty() {
            return Err(format!(
                "no order of the calls explains that call {number}, {:?} of session {}, answered {:?}; the states possible before were {:?}",
                entry.call,
                entry.session,
                told,
                self.configurations
                    .iter()
                    .map(|configuration| &configuration.state)
                    .collect::<Vec<_>>(),
            ));
        }
        self.open.remove(place);
        self.configurations = next;
        self.allowed = None;
        Ok(())
    }

    /// The configurations that are reachable by letting open calls happen. After a crash (`crashed`) an open
    /// call may be missing while a later one of its session is there.
    fn closure(
        &self,
        history: &History,
        values: &mut Values,
        crashed: bool,
    ) -> HashSet<Configuration> {
        reachable(
            self.configurations.iter().cloned(),
            |configuration, next| {
                for (place, &number) in self.open.iter().enumerate() {
                    let entry = &history.entries[number as usize];
                    if configuration.taken[place].is_some()
                        || configuration.intervals[place].is_some()
                        || entry.is_refused()
                    {
                        continue;
                    }
                    let of_open = |place: usize| &history.entries[self.open[place] as usize];
                    let same = |other: usize| of_open(other).session == entry.session;
                    let changed = |later: usize| {
                        let outcome = configuration.taken[later].as_ref();
                        outcome.is_some_and(|outcome| !only_looked(&of_open(later).call, outcome))
                    };
                    let (state, outcome) =
                        apply(&configuration.state, &entry.call, self.now, values);
                    let blocked = if crashed {
                        // A call that was passed over stays out: calls of a session happen in order.
                        (place + 1..self.open.len()).any(|later| same(later) && changed(later))
                    } else {
                        !only_looked(&entry.call, &outcome)
                            && (0..place).any(|earlier| {
                                // No call waits for one that never happens.
                                let is_to_come = !of_open(earlier).is_refused();
                                same(earlier)
                                    && configuration.taken[earlier].is_none()
                                    && is_to_come
                            })
                    };
                    if blocked {
                        continue;
                    }
                    let mut taken = configuration.taken.clone();
                    taken[place] = Some(outcome);
                    let intervals = configuration.intervals.clone();
                    next.push(self.looked(Configuration {
                        state,
                        taken,
                        intervals,
                    }));
                }
            },
        )
    }

    /// The states that a crash at this moment may leave.
    pub fn allowed(&mut self, history: &History, values: &mut Values) -> &Allowed {
        if self.allowed.is_none() {
            let states: HashSet<State> = self
                .closure(history, values, true)
                .into_iter()
                .map(|configuration| self.visible(&configuration.state))
                .collect();
            let mut number = 0u64;
            for state in &states {
                let mut bytes = Vec::new();
                for held in state {
                    let (value, expires) = held.map_or((u32::MAX, 0), |held| held);
                    bytes.extend_from_slice(&value.to_le_bytes());
                    bytes.extend_from_slice(&expires.to_le_bytes());
                }
                number ^= xxhash_rust::xxh3::xxh3_64(&bytes);
            }
            self.allowed = Some(Allowed { states, number });
        }
        self.allowed.get_or_insert_default()
    }

    /// A state without what has expired.
    #[must_use]
    pub fn visible(&self, state: &State) -> State {
        state
            .iter()
            .map(|held| held.filter(|&(_, expires)| expires == 0 || expires > self.now))
            .collect()
    }
}
