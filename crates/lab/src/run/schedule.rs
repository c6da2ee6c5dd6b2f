//! A scheduler that lets one thread run at a time and decides at every event who is next, from a seed.
//!
//! Three ways to decide: at random, where a thread keeps the turn with some probability; by priorities that
//! change at a few random moments (probabilistic concurrency testing), which finds mistakes that need few
//! switches at the right places; and by [stops](Scheduler::with_stops), where each thread is left once or
//! twice, at an event of its own, until the others have come as far as they can. In most runs of the first
//! two kinds threads also stop on purpose, at a few of the places where they publish something in DRAM, now
//! and then at all of these, or anywhere, for so long that others make whole calls meanwhile. A thread that
//! waits for another one ([`everdram_pm::lab::waiting`]) gives the turn away. One that has nothing to do for
//! a while, or holds something for a while on purpose, rests for so many events of others.
//!
//! Threads may also block on a lock of the engine that somebody holds who does not have the turn. Nobody
//! tells the scheduler; if nothing has happened for a while it gives the turn to another thread. The blocked
//! thread then runs along with others from the moment it gets the lock to its next event. Nothing of what the
//! lab concludes of memory rests on one thread running at a time, only that a run can be repeated: the
//! [recorder](crate::run::recorder) orders stores that may meet by itself. Locks that are held across events
//! are taken through [`everdram_pm::lock`], which says so.
//!
//! If all threads wait for each other, none comes back: that is something wrong, too.

use crate::plan::Stops;
use everdram_pm::lab::Waiter;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rand::RngExt;
use rand::rngs::StdRng;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// How long the thread with the turn may be silent.
const SILENCE: Duration = Duration::from_millis(100);
/// Events of a run among which priorities change: runs are of very different lengths.
const EVENTS: [u64; 4] = [80, 300, 1200, 4000];
/// Times that threads wait in a row before those are woken who rest.
const WAITS_OF_RESTING: u64 = 64;
/// Of the times that a thread waits where others have stopped, in one of so many any of these goes on.
const WAITS_OF_STOPS: u32 = 8;
/// How long a thread sleeps that waits while no other has the turn to come.
const MOMENT: Duration = Duration::from_millis(1);
/// What such a sleep counts.
const WAITS_ALONE: u64 = 20;
/// Times that threads wait in a row before it is clear that they wait for each other.
const WAITS_MAX: u64 = 100_000;
/// Events that a pause takes, at most: one call of others, some, or a round of all jobs.
const PAUSE: [u32; 3] = [40, 300, 2500];
/// Things that are done at once, at most, in most runs: see [`Waiter::few`].
const LOT_MAX: usize = 4;
/// Pauses of a run, at most.
const PAUSES: u32 = 80;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Ready,
    /// Until there were so many events.
    Resting(u64),
    /// Lost the turn by silence, and has not been heard of since.
    Blocked,
    Done,
}

enum Policy {
    /// One in so many events is a switch.
    Random(u32),
    /// The highest runs; at these events the running thread becomes the lowest.
    Priorities { of: Vec<u64>, changes: Vec<u64> },
    /// By thread: how many events are left until it stops (0: it has stopped, `None`: it does so no more),
    /// and how many follow until it stops again (0: it does not).
    Stops(Vec<(Option<u32>, u32)>),
}

/// Where threads stop before they publish something.
#[derive(Clone, Copy)]
struct Pauses {
    /// Places, by what their hash ends with.
    places: u64,
    /// One in so many times that a thread comes to one of them.
    one_in: u32,
    /// One in so many events of any kind.
    anywhere: Option<u32>,
    /// So often; some places are come to for each key.
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
    /// How often the turn was taken from somebody silent.
    silences: u64,
}

/// See the module text.
pub struct Scheduler {
    state: Mutex<State>,
    /// One for each thread: it has the turn.
    bells: Vec<Condvar>,
    /// Things that are done at once, at most.
    lot: usize,
}

thread_local! {
    /// By whom this thread is scheduled, and as whom.
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

/// An event of this thread, if it is scheduled: somebody else may be next.
pub fn event() {
    if let Some((scheduler, me)) = SCHEDULED.with_borrow(Option::clone) {
        scheduler.event(me);
    }
}

/// Lets others go on for so many events, if this thread is scheduled.
pub fn linger(events: u32) {
    if events > 0
        && let Some((scheduler, me)) = SCHEDULED.with_borrow(Option::clone)
    {
        scheduler.rest(me, events);
    }
}

/// The calling thread cannot go on until somebody else has, if it is scheduled; otherwise it has to wait its
/// own way.
pub fn wait() {
    if let Some((scheduler, me)) = SCHEDULED.with_borrow(Option::clone) {
        scheduler.wait(me);
    }
}

/// A scheduled thread, as the engine knows it. Calls `then` after each wait.
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

    /// A scheduler of `threads` threads. The first one goes on for so many events of its own, then the second
    /// one, and so forth; the last one to its end, and then the others to theirs, or to where they stop
    /// again, in an order of chance. Whoever has to wait for somebody lets him go on.
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

    /// How often somebody blocked without saying so.
    #[must_use]
    pub fn silences(&self) -> u64 {
        self.state.lock().silences
    }

    /// Waits for the first turn.
    pub fn begin(&self, me: usize) {
        self.await_turn(&mut self.state.lock(), me);
    }

    /// An event of thread `me`: somebody else may be next.
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

    /// Thread `me` cannot go on until somebody else has.
    ///
    /// # Panics
    /// Nobody can.
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
                // Whoever could go on has lost the turn by silence, and does so by itself.
                state.waits += WAITS_ALONE;
                self.bells[me].wait_for(&mut state, MOMENT);
            }
        }
        self.pass_on(&mut state, me);
    }

    /// Lets others go on for so many events of theirs, or until none of them can.
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
                // The turn came and was taken again while the machine had no time for this thread: it blocks
                // nowhere.
                state.threads[me] = Status::Ready;
            }
            let rests = matches!(state.threads[me], Status::Resting(until) if until > state.events);
            // Who is silent may wait for what somebody holds who rests.
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
                // About one of eight.
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
    /// For how many events a thread stops that comes to a place where it publishes something, or to any other
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

    /// Wakes those who have rested, or `all` who rest.
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

    /// Who is next, after an event of thread `me`.
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

    /// Who is next among those who are ready where they stop: the first that has not stopped, or one that
    /// has, which then goes on.
    fn first(&mut self, except: Option<usize>) -> Option<usize> {
        let ready = self.ready(except);
        let Policy::Stops(of) = &mut self.policy else {
            return None;
        };
        let going = ready.iter().find(|&&thread| of[thread].0 != Some(0));
        // Those who go on may wait for one who has stopped.
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

    /// Who has the highest priority among those who are ready.
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
