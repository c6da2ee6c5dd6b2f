//! A scheduler that lets one thread run at a time and decides at every event who is next, from a seed.
//!
//! Two ways to decide: at random, where a thread keeps the turn with some probability; and by priorities that
//! change at a few random moments (probabilistic concurrency testing), which finds mistakes that need few switches
//! at the right places. A thread that waits for another one ([`everdram_pm::lab::waiting`]) gives the turn away.
//!
//! Threads may also block on a lock of the engine that somebody holds who does not have the turn. Nobody tells the
//! scheduler; if nothing has happened for a while it gives the turn to another thread. The blocked thread then runs
//! along with others from the moment it gets the lock to its next event. Nothing of what the lab concludes of memory
//! rests on one thread running at a time, only that a run can be repeated: the [recorder](crate::recorder) orders
//! stores that may meet by itself.

use parking_lot::{Condvar, Mutex};
use rand::RngExt;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::Duration;

/// How long the thread with the turn may be silent.
const SILENCE: Duration = Duration::from_millis(20);
/// Events of a run among which priorities change.
const EVENTS: u64 = 1500;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Ready,
    /// Lost the turn by silence, and has not been heard of since.
    Blocked,
    Done,
}

enum Way {
    /// One in so many events is a switch.
    Random(u32),
    /// The highest runs; at these events the running thread becomes the lowest.
    Priorities { of: Vec<u64>, changes: Vec<u64> },
}

struct State {
    random: StdRng,
    way: Way,
    threads: Vec<Status>,
    turn: usize,
    events: u64,
    lowest: u64,
}

/// See the module text.
pub struct Scheduler {
    state: Mutex<State>,
    changed: Condvar,
}

impl Scheduler {
    /// A scheduler of `threads` threads.
    #[must_use]
    pub fn new(threads: usize, mut random: StdRng) -> Arc<Scheduler> {
        let way = if random.random_range(0..2) == 0 {
            Way::Random([2, 4, 12, 40][random.random_range(0..4)])
        } else {
            let depth = random.random_range(1..5);
            Way::Priorities {
                of: (0..threads)
                    .map(|_| random.random_range(1 << 32..1 << 33))
                    .collect(),
                changes: (0..depth).map(|_| random.random_range(0..EVENTS)).collect(),
            }
        };
        Arc::new(Scheduler {
            state: Mutex::new(State {
                random,
                way,
                threads: vec![Status::Ready; threads],
                turn: 0,
                events: 0,
                lowest: 1 << 31,
            }),
            changed: Condvar::new(),
        })
    }

    /// Waits for the first turn.
    pub fn begin(&self, me: usize) {
        self.await_turn(&mut self.state.lock(), me);
    }

    /// An event of thread `me`: somebody else may be next.
    pub fn event(&self, me: usize) {
        let mut state = self.state.lock();
        state.events += 1;
        state.threads[me] = Status::Ready;
        if state.turn == me {
            state.choose(me);
            self.changed.notify_all();
        }
        self.await_turn(&mut state, me);
    }

    /// Thread `me` cannot go on until somebody else has.
    pub fn wait(&self, me: usize) {
        let mut state = self.state.lock();
        state.threads[me] = Status::Ready;
        if state.turn == me {
            state.give_away(me);
            self.changed.notify_all();
        }
        self.await_turn(&mut state, me);
    }

    /// Thread `me` has no more to do.
    pub fn end(&self, me: usize) {
        let mut state = self.state.lock();
        state.threads[me] = Status::Done;
        if state.turn == me {
            state.give_away(me);
        }
        self.changed.notify_all();
    }

    fn await_turn(&self, state: &mut parking_lot::MutexGuard<'_, State>, me: usize) {
        while state.turn != me {
            let heard = state.events;
            let silent = self.changed.wait_for(state, SILENCE).timed_out();
            if silent && state.turn != me && state.events == heard {
                let holder = state.turn;
                if state.threads[holder] == Status::Ready {
                    state.threads[holder] = Status::Blocked;
                }
                state.turn = me;
                state.events += 1;
            }
        }
    }
}

impl State {
    fn ready(&self, except: Option<usize>) -> Vec<usize> {
        (0..self.threads.len())
            .filter(|&thread| self.threads[thread] == Status::Ready && Some(thread) != except)
            .collect()
    }

    fn choose(&mut self, me: usize) {
        let events = self.events;
        match &mut self.way {
            Way::Random(one_in) => {
                let one_in = *one_in;
                if self.random.random_range(0..one_in) == 0 {
                    let ready = self.ready(None);
                    self.turn = ready[self.random.random_range(0..ready.len())];
                }
            }
            Way::Priorities { of, changes } => {
                if changes.contains(&events) {
                    self.lowest -= 1;
                    of[me] = self.lowest;
                }
                let of = of.clone();
                if let Some(first) = self
                    .ready(None)
                    .into_iter()
                    .max_by_key(|&thread| of[thread])
                {
                    self.turn = first;
                }
            }
        }
    }

    fn give_away(&mut self, me: usize) {
        self.lowest -= 1;
        let lowest = self.lowest;
        if let Way::Priorities { of, .. } = &mut self.way {
            of[me] = lowest;
        }
        let others = self.ready(Some(me));
        if others.is_empty() {
            return;
        }
        self.turn = match &self.way {
            Way::Priorities { of, .. } => others
                .into_iter()
                .max_by_key(|&thread| of[thread])
                .unwrap_or(me),
            Way::Random(_) => others[self.random.random_range(0..others.len())],
        };
    }
}
