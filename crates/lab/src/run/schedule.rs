//! A scheduler that lets one thread run at a time and decides at every event which is next, from a seed.
//!
//! It decides by one of three policies. *Random*: a thread keeps the turn with some probability. *Priorities*
//! that change at a few random moments (probabilistic concurrency testing): this finds mistakes that take few
//! switches at the right places. *[Stops](Scheduler::with_stops)*: each thread stops once or twice, at a
//! given event of its own, until the others cannot go on. Under the first two, most runs have pauses as well:
//! a thread stops before it publishes something in DRAM, or at any event, for so long that others make whole
//! calls. A thread that waits for another ([`everdram_pm::lab::waiting`]) gives the turn away. A thread that
//! has nothing to do, or holds something on purpose, rests for a number of events of others.
//!
//! A thread may block on a lock of the engine without the scheduler's knowledge. When there was no event for
//! a while, the scheduler gives the turn to another thread. The blocked thread then runs beside others from
//! the moment it gets the lock until its next event. That costs repeatability and nothing else: the
//! [recorder](crate::run::recorder) orders racing stores by itself. Locks that are held across events are
//! taken through [`everdram_pm::lock`], which tells the scheduler.
//!
//! A deadlock, where all threads wait for each other, is a defect like any other.

use crate::plan::Stops;
use everdram_pm::lab::Waiter;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rand::RngExt;
use rand::rngs::StdRng;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// How long the thread with the turn may be without an event.
const SILENCE: Duration = Duration::from_millis(100);
/// Priorities change within so many events of a run. Runs differ in length.
const EVENTS: [u64; 4] = [80, 300, 1200, 4000];
/// Waits in a row after which resting threads are woken.
const WAITS_OF_RESTING: u64 = 64;
/// One in so many waits lets a stopped thread go on.
const WAITS_OF_STOPS: u32 = 8;
/// How long a waiting thread sleeps if no other is ready.
const MOMENT: Duration = Duration::from_millis(1);
/// How many waits such a sleep counts as.
const WAITS_ALONE: u64 = 20;
/// Waits in a row that prove a deadlock.
const WAITS_MAX: u64 = 100_000;
/// Longest pauses, in events: one call of another thread, several, or a round of all jobs.
const PAUSE: [u32; 3] = [40, 300, 2500];
/// Largest lot in most runs: see [`Waiter::few`].
const LOT_MAX: usize = 4;
/// Most pauses of a run.
const PAUSES: u32 = 80;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Ready,
    /// Until the run has had so many events.
    Resting(u64),
    /// Lost the turn because it had no event for a while, and has had none since.
    Blocked,
    Done,
}

enum Policy {
    /// One in so many events is a switch.
    Random(u32),
    /// The thread with the highest priority runs. At these events it gets the lowest.
    Priorities { of: Vec<u64>, changes: Vec<u64> },
    /// By thread: events until it stops (0: it has stopped, `None`: it stops no more), and events from there
    /// until it stops again (0: it does not).
    Stops(Vec<(Option<u32>, u32)>),
}

/// Where threads pause.
#[derive(Clone, Copy)]
struct Pauses {
    /// Places of the source at which something is published, by the last 6 bits of a hash.
    places: u64,
    /// One in so many visits of such a place is a pause.
    one_in: u32,
    /// One in so many events of any kind is a pause.
    anywhere: Option<u32>,
    /// Pauses left.
    left: u32,
}

struct State {
    random: StdRng,
    policy: Policy,
    pauses: Pauses,
    threads: Vec<Status>,
    turn: usize,
    events: u64,
    lowest: u64,
    /// Since the last event.
    waits: u64,
    /// How often a thread lost the turn because it had no event.
    silences: u64,
}

/// See the module text.
pub struct Scheduler {
    state: Mutex<State>,
    /// For each thread, notified when it gets the turn.
    bells: Vec<Condvar>,
    /// See [`Waiter::few`].
    lot: usize,
}

thread_local! {
    /// The scheduler of this thread, and its number there.
    static SCHEDULED: RefCell<Option<(Arc<Scheduler>, usize)>> = const { RefCell::new(None) };
}

/// Runs `body` as thread `me` of a scheduler.
pub fn scheduled<T>(scheduler: &Arc<Scheduler>, me: usize, body: impl FnOnce() -> T) -> T {
    struct End<'a>(&'a Scheduler, usize);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            SCHEDULED.take();
            self.0.end(self.1);
        }
    }
    scheduler.begin(me);
    SCHEDULED.set(Some((Arc::clone(scheduler), me)));
    let _end = End(scheduler, me);
    body()
}

/// An event of this thread: if it is scheduled, another thread may be next.
pub fn event() {
    if let Some((scheduler, me)) = SCHEDULED.with_borrow(Option::clone) {
        scheduler.event(me);
    }
}

/// Lets other threads run for so many events, if this thread is scheduled.
pub fn linger(events: u32) {
    if events > 0
        && let Some((scheduler, me)) = SCHEDULED.with_borrow(Option::clone)
    {
        scheduler.rest(me, events);
    }
}

/// Lets other threads run because this one cannot go on before they do. Does nothing for a thread that is not
/// scheduled.
pub fn wait() {
    if let Some((scheduler, me)) = SCHEDULED.with_borrow(Option::clone) {
        scheduler.wait(me);
    }
}

/// How the engine waits on a scheduled thread. The function is called after each wait.
pub struct Turn<F>(pub F);

impl<F: Fn()> Waiter for Turn<F> {
    fn wait(&self) {
        wait();
        (self.0)();
    }

    fn step(&self, there: &'static Location<'static>) {
        if let Some((scheduler, me)) = SCHEDULED.with_borrow(Option::clone) {
            scheduler.publication(me, there);
        }
    }

    fn few(&self, most: usize) -> usize {
        let scheduler = SCHEDULED.with_borrow(Option::clone);
        scheduler.map_or(most, |(scheduler, _)| most.min(scheduler.lot))
    }
}

impl Scheduler {
    /// A scheduler of `threads` threads.
    #[must_use]
    pub fn new(threads: usize, mut random: StdRng) -> Arc<Scheduler> {
        let policy = if random.random_range(0..2) == 0 {
            Policy::Random([2, 4, 12, 40][random.random_range(0..4)])
        } else {
            let depth = random.random_range(1..12);
            let events = EVENTS[random.random_range(0..EVENTS.len())];
            Policy::Priorities {
                of: (0..threads).map(|_| priority(&mut random)).collect(),
                changes: (0..depth).map(|_| random.random_range(0..events)).collect(),
            }
        };
        let pauses = Pauses::draw(&mut random);
        Scheduler::that_goes(policy, pauses, threads, random)
    }

    /// A scheduler of `threads` threads. The first runs to its stop, then the second to its own, and so
    /// forth; the last one runs to its end. Then the others run on, in random order, to their second stop or
    /// their end. A thread that must wait lets the one that it waits for go on.
    #[must_use]
    pub fn with_stops(threads: usize, stops: Stops, random: StdRng) -> Arc<Scheduler> {
        let Stops { first, again } = stops;
        let of = |thread: usize| {
            let first = first.get(thread).copied().filter(|&stop| stop > 0);
            (first, again.get(thread).copied().unwrap_or(0))
        };
        let policy = Policy::Stops((0..threads).map(of).collect());
        Scheduler::that_goes(policy, Pauses::NONE, threads, random)
    }

    fn that_goes(
        policy: Policy,
        pauses: Pauses,
        threads: usize,
        mut random: StdRng,
    ) -> Arc<Scheduler> {
        let lot = match random.random_range(0..3) {
            0 => usize::MAX,
            _ => random.random_range(1..=LOT_MAX),
        };
        Arc::new(Scheduler {
            state: Mutex::new(State {
                random,
                policy,
                pauses,
                threads: vec![Status::Ready; threads],
                turn: 0,
                events: 0,
                lowest: 1 << 31,
                waits: 0,
                silences: 0,
            }),
            bells: (0..threads).map(|_| Condvar::new()).collect(),
            lot,
        })
    }

    /// How often a thread blocked without telling the scheduler.
    #[must_use]
    pub fn silences(&self) -> u64 {
        self.state.lock().silences
    }

    /// Waits for the first turn.
    pub fn begin(&self, me: usize) {
        self.await_turn(&mut self.state.lock(), me);
    }

    /// An event of thread `me`: another thread may be next.
    pub fn event(&self, me: usize) {
        let pause = self.state.lock().pause(None);
        self.goes_on(me, pause);
    }

    /// Thread `me` is about to publish something.
    fn publication(&self, me: usize, there: &Location<'_>) {
        let pause = self.state.lock().pause(Some(there));
        self.goes_on(me, pause);
    }

    fn goes_on(&self, me: usize, pause: Option<u32>) {
        if let Some(events) = pause {
            return self.rest(me, events);
        }
        let mut state = self.state.lock();
        state.events += 1;
        state.waits = 0;
        state.threads[me] = Status::Ready;
        if state.turn == me {
            state.wake(false);
            state.choose(me);
        }
        self.pass_on(&mut state, me);
    }

    /// Thread `me` cannot go on before another one does.
    ///
    /// # Panics
    /// On a deadlock.
    pub fn wait(&self, me: usize) {
        let mut state = self.state.lock();
        state.waits += 1;
        if state.waits > WAITS_MAX && !std::thread::panicking() {
            drop(state);
            panic!("nobody goes on: all threads wait for each other");
        }
        state.threads[me] = Status::Ready;
        if state.turn == me {
            if state.waits.is_multiple_of(WAITS_OF_RESTING) || state.ready(Some(me)).is_empty() {
                state.wake(true);
            }
            state.give_away(me);
            if state.turn == me {
                // The only thread that could go on lost the turn, and runs without it.
                state.waits += WAITS_ALONE;
                self.bells[me].wait_for(&mut state, MOMENT);
            }
        }
        self.pass_on(&mut state, me);
    }

    /// Lets other threads run for so many events, or until none of them can.
    pub fn rest(&self, me: usize, events: u32) {
        let mut state = self.state.lock();
        state.threads[me] = Status::Resting(state.events + u64::from(events));
        if state.turn == me {
            if state.ready(Some(me)).is_empty() {
                state.wake(true);
            }
            state.give_away(me);
        }
        self.pass_on(&mut state, me);
        state.threads[me] = Status::Ready;
    }

    /// Thread `me` has no more to do.
    pub fn end(&self, me: usize) {
        let mut state = self.state.lock();
        state.threads[me] = Status::Done;
        if state.turn == me {
            if state.ready(None).is_empty() {
                state.wake(true);
            }
            state.give_away(me);
        }
        self.bells[state.turn].notify_all();
    }

    fn pass_on(&self, state: &mut MutexGuard<'_, State>, me: usize) {
        if state.turn != me {
            self.bells[state.turn].notify_all();
            self.await_turn(state, me);
        }
    }

    fn await_turn(&self, state: &mut MutexGuard<'_, State>, me: usize) {
        while state.turn != me {
            let heard = (state.events, state.waits);
            let silent = self.bells[me].wait_for(state, SILENCE).timed_out();
            if state.threads[me] == Status::Blocked {
                // The thread does not block. It lost the turn because the machine did not run it.
                state.threads[me] = Status::Ready;
            }
            let rests = matches!(state.threads[me], Status::Resting(until) if until > state.events);
            // The silent thread may wait for something that a resting thread holds.
            let may_take = !rests || state.ready(Some(state.turn)).is_empty();
            if silent && state.turn != me && (state.events, state.waits) == heard && may_take {
                let holder = state.turn;
                if state.threads[holder] == Status::Ready {
                    state.threads[holder] = Status::Blocked;
                    state.silences += 1;
                }
                state.turn = me;
                state.events += 1;
            }
        }
    }
}

impl Pauses {
    const NONE: Pauses = Pauses {
        places: 0,
        one_in: 1,
        anywhere: None,
        left: 0,
    };

    fn draw(random: &mut StdRng) -> Pauses {
        let (places, one_in) = match random.random_range(0..4) {
            0 => (0, 1),
            1 => (u64::MAX, random.random_range(4..40)),
            _ => {
                // About one place in eight.
                let mut half = || random.random::<u64>();
                (half() & half() & half(), random.random_range(1..4))
            }
        };
        let anywhere = random.random::<bool>();
        let anywhere = anywhere.then(|| random.random_range(10..200));
        Pauses {
            places,
            one_in,
            anywhere,
            left: PAUSES,
        }
    }

    fn are_at(self, place: &Location<'_>) -> bool {
        let word = place.file().len() as u64 * 29 + u64::from(place.line());
        self.places >> (word % 64) & 1 == 1
    }
}

fn priority(random: &mut StdRng) -> u64 {
    random.random_range(1 << 32..1 << 33)
}

impl State {
    /// How many events a thread pauses for, at a place where it publishes something or (`None`) at any other
    /// event.
    fn pause(&mut self, place: Option<&Location<'_>>) -> Option<u32> {
        let Pauses {
            one_in,
            anywhere,
            left,
            ..
        } = self.pauses;
        let one_in = match place {
            Some(place) => self.pauses.are_at(place).then_some(one_in),
            None => anywhere,
        };
        let one_in = one_in.filter(|_| left > 0)?;
        if self.random.random_range(0..one_in) > 0 {
            return None;
        }
        self.pauses.left -= 1;
        let most = PAUSE[self.random.random_range(0..PAUSE.len())];
        Some(self.random.random_range(1..most))
    }

    fn ready(&self, except: Option<usize>) -> Vec<usize> {
        (0..self.threads.len())
            .filter(|&thread| self.threads[thread] == Status::Ready && Some(thread) != except)
            .collect()
    }

    /// Wakes the threads that have rested long enough, or `all` that rest.
    fn wake(&mut self, all: bool) {
        for thread in 0..self.threads.len() {
            let Status::Resting(until) = self.threads[thread] else {
                continue;
            };
            if all || until <= self.events {
                self.threads[thread] = Status::Ready;
                if let Policy::Priorities { of, .. } = &mut self.policy {
                    of[thread] = priority(&mut self.random);
                }
            }
        }
    }

    /// Chooses the next thread after an event of thread `me`.
    fn choose(&mut self, me: usize) {
        let events = self.events;
        match &mut self.policy {
            Policy::Random(one_in) => {
                let one_in = *one_in;
                if self.random.random_range(0..one_in) == 0 {
                    let ready = self.ready(None);
                    self.turn = ready[self.random.random_range(0..ready.len())];
                }
            }
            Policy::Priorities { of, changes } => {
                if changes.contains(&events) {
                    self.lowest -= 1;
                    of[me] = self.lowest;
                }
                self.turn = self.highest(None).unwrap_or(me);
            }
            Policy::Stops(of) => {
                if let Some(left) = &mut of[me].0
                    && let Some(fewer) = left.checked_sub(1)
                {
                    *left = fewer;
                    if fewer == 0 {
                        self.turn = self.first(None).unwrap_or(me);
                    }
                }
            }
        }
    }

    /// The next of the ready threads under stops: the first that has not stopped, or else a stopped one,
    /// which goes on.
    fn first(&mut self, except: Option<usize>) -> Option<usize> {
        let ready = self.ready(except);
        let Policy::Stops(of) = &mut self.policy else {
            return None;
        };
        let going = ready.iter().find(|&&thread| of[thread].0 != Some(0));
        // The running thread may wait for a stopped one.
        let anyone = self.waits > 0 && self.random.random_range(0..WAITS_OF_STOPS) == 0;
        let next = match anyone && !ready.is_empty() {
            true => ready[self.random.random_range(0..ready.len())],
            false => match going {
                Some(going) => *going,
                None if ready.is_empty() => return None,
                None => ready[self.random.random_range(0..ready.len())],
            },
        };
        if let (left @ Some(0), again) = &mut of[next] {
            *left = Some(std::mem::take(again)).filter(|&more| more > 0);
        }
        Some(next)
    }

    /// The ready thread with the highest priority.
    fn highest(&self, except: Option<usize>) -> Option<usize> {
        let Policy::Priorities { of, .. } = &self.policy else {
            return None;
        };
        let threads = self.threads.iter().enumerate();
        let ready =
            threads.filter(|&(thread, status)| *status == Status::Ready && Some(thread) != except);
        ready
            .map(|(thread, _)| thread)
            .max_by_key(|&thread| of[thread])
    }

    fn give_away(&mut self, me: usize) {
        self.lowest -= 1;
        let lowest = self.lowest;
        if let Policy::Priorities { of, .. } = &mut self.policy {
            of[me] = lowest;
        }
        let others = self.ready(Some(me));
        if others.is_empty() {
            return;
        }
        self.turn = match &self.policy {
            Policy::Priorities { .. } => self.highest(Some(me)).unwrap_or(me),
            Policy::Stops(_) => self.first(Some(me)).unwrap_or(me),
            Policy::Random(_) => others[self.random.random_range(0..others.len())],
        };
    }
}
