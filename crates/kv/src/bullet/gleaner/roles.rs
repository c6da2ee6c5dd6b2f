//! Roles of the threads of a worker pool: which answer requests, and which glean (section 4.3).
//!
//! A worker asks for its role between two requests
//! ([`EngineSession::turn`](crate::engine::EngineSession::turn)). The fill of the logs sets the number of
//! gleaners: one more while it is above 60 % and does not fall, one less while it is below 30 % and does not
//! rise. One worker always answers; a single worker alternates.
//!
//! Without damping, the number would swing, since a change takes time to have an effect. So at least one look
//! passes between two changes, and several before a change in the other direction.
//!
//! Unlike in the paper, a worker never hands a request to another one, so each client's requests stay in
//! order (B11).

use crate::concurrency::seam::publishes;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Percent of the logs in use above which there are too few gleaners, and below which there are too many.
const TOO_FULL: u64 = 60;
const TOO_EMPTY: u64 = 30;
/// Looks that pass before a change in the other direction.
const BEFORE_TURNING: u32 = 8;

/// The result of the last look.
#[derive(Debug)]
struct Look {
    percent: u64,
    /// Looks since the number changed, and whether it rose then.
    since: u32,
    rose: bool,
}

/// See the module text.
#[derive(Debug)]
pub(in crate::bullet) struct Roles {
    are_fixed: bool,
    begun: Instant,
    /// Nanoseconds between two looks.
    period_ns: u64,
    /// When the next look is due, since `begun`: only then does a worker take the lock.
    due_ns: CachePadded<AtomicU64>,
    /// The number of workers.
    workers: AtomicUsize,
    /// How many of them should glean: read at each request, changed seldom.
    wanted: CachePadded<AtomicUsize>,
    /// How many do.
    gleaners: CachePadded<AtomicUsize>,
    look: Mutex<Look>,
}

/// The role of one worker.
#[derive(Debug, Default)]
pub(in crate::bullet) struct Role {
    is_worker: bool,
    is_gleaner: bool,
    /// A single worker has just gleaned.
    has_gleaned: bool,
    turns: u32,
}

impl Roles {
    pub(in crate::bullet) fn new(are_fixed: bool, period: Duration) -> Roles {
        let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        Roles {
            are_fixed,
            begun: Instant::now(),
            period_ns,
            due_ns: CachePadded::new(AtomicU64::new(period_ns)),
            workers: AtomicUsize::new(0),
            wanted: CachePadded::new(AtomicUsize::new(0)),
            gleaners: CachePadded::new(AtomicUsize::new(0)),
            look: Mutex::new(Look {
                percent: 0,
                since: BEFORE_TURNING,
                rose: false,
            }),
        }
    }

    /// Whether there is a worker pool, which gleans by itself.
    pub(in crate::bullet) fn has_workers(&self) -> bool {
        self.workers.load(Ordering::Relaxed) > 0
    }

    /// Workers that glean now.
    pub(in crate::bullet) fn gleaners(&self) -> usize {
        self.gleaners.load(Ordering::Relaxed)
    }

    /// Whether the worker is to glean now. `percent`: how full the logs are.
    #[inline]
    pub(in crate::bullet) fn take(&self, role: &mut Role, percent: impl Fn() -> u64) -> bool {
        /// Turns between two looks at the clock.
        const TURNS: u32 = 16;
        role.turns = role.turns.wrapping_add(1);
        if role.turns % TURNS == 1 || role.is_gleaner {
            self.look(role, percent);
        }
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted == 0 && !role.is_gleaner {
            return false;
        }
        self.take_of(role, wanted)
    }

    fn take_of(&self, role: &mut Role, wanted: usize) -> bool {
        let gleaners = self.gleaners.load(Ordering::Relaxed);
        let change = |by: isize| {
            publishes!();
            let next = gleaners.wrapping_add_signed(by);
            let order = Ordering::AcqRel;
            let changed = self
                .gleaners
                .compare_exchange(gleaners, next, order, Ordering::Relaxed);
            changed.is_ok()
        };
        if role.is_gleaner && gleaners > wanted && change(-1) {
            role.is_gleaner = false;
        } else if !role.is_gleaner && gleaners < wanted && change(1) {
            role.is_gleaner = true;
        }
        // A single worker answers between two turns of gleaning.
        let is_alone = self.workers.load(Ordering::Relaxed) <= 1;
        role.has_gleaned = role.is_gleaner && !(is_alone && role.has_gleaned);
        role.has_gleaned
    }

    /// Decides how many workers glean, if a look is due.
    fn look(&self, role: &mut Role, percent: impl Fn() -> u64) {
        if !role.is_worker {
            role.is_worker = true;
            self.workers.fetch_add(1, Ordering::AcqRel);
        }
        let now_ns = self.begun.elapsed().as_nanos() as u64;
        let is_due = || now_ns >= self.due_ns.load(Ordering::Relaxed);
        if !is_due() {
            return;
        }
        let Some(mut look) = self.look.try_lock() else {
            return;
        };
        // Another worker may have looked meanwhile.
        if !is_due() {
            return;
        }
        let due_ns = now_ns.saturating_add(self.period_ns);
        self.due_ns.store(due_ns, Ordering::Relaxed);
        let (before, workers) = (look.percent, self.workers.load(Ordering::Relaxed));
        look.percent = percent();
        let wanted = self.wanted.load(Ordering::Relaxed);
        let most = workers.saturating_sub(1).max(1);
        let next = match self.are_fixed && workers > 1 {
            true => workers / 2,
            false => decide(&look, before, wanted).min(most),
        };
        look.since = look.since.saturating_add(1);
        if next != wanted {
            (look.since, look.rose) = (0, next > wanted);
            publishes!();
            self.wanted.store(next, Ordering::Relaxed);
        }
    }

    /// Unregisters a worker that ends.
    pub(in crate::bullet) fn leave(&self, role: &mut Role) {
        if std::mem::take(&mut role.is_gleaner) {
            let gleaners = self.gleaners.fetch_sub(1, Ordering::AcqRel);
            assert!(gleaners > 0, "a gleaner leaves that was never counted");
        }
        if std::mem::take(&mut role.is_worker) && self.workers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.wanted.store(0, Ordering::Relaxed);
        }
    }
}

/// How many workers are to glean, with the logs `look.percent` full now and `before` at the last look.
fn decide(look: &Look, before: u64, wanted: usize) -> usize {
    let may = |rise: bool| look.since >= 1 && (look.rose == rise || look.since >= BEFORE_TURNING);
    if look.percent > TOO_FULL && (look.percent >= before || wanted == 0) && may(true) {
        wanted + 1
    } else if look.percent < TOO_EMPTY && look.percent <= before && may(false) {
        wanted.saturating_sub(1)
    } else {
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at logs with these fills in turn; returns how many gleaners were wanted after each.
    fn wanted(percents: &[u64]) -> Vec<usize> {
        let mut look = Look {
            percent: 0,
            since: BEFORE_TURNING,
            rose: false,
        };
        let mut wanted = 0;
        let each = percents.iter().map(|percent| {
            let before = std::mem::replace(&mut look.percent, *percent);
            let next = decide(&look, before, wanted);
            look.since += 1;
            if next != wanted {
                (look.since, look.rose) = (0, next > wanted);
            }
            wanted = next;
            wanted
        });
        each.collect()
    }

    #[test]
    fn logs_that_fill_up_get_more_gleaners_until_they_empty() {
        assert_eq!(
            wanted(&[10, 50, 60, 61, 70, 80, 79, 50]),
            [0, 0, 0, 1, 1, 2, 2, 2]
        );
    }

    #[test]
    fn logs_that_are_nearly_empty_release_gleaners() {
        let mut percents = vec![70, 70, 70];
        percents.extend([29; 12]);
        let after = wanted(&percents);
        assert_eq!(after[2], 2);
        assert_eq!(after.last(), Some(&0));
    }

    #[test]
    fn a_change_is_not_taken_back_at_once() {
        // Logs that fill up again at once get one more instead.
        assert_eq!(wanted(&[70, 20, 20, 20, 70]), [1, 1, 1, 1, 2]);
    }

    #[test]
    fn logs_are_looked_at_when_it_is_due() {
        let looks = |period: Duration, turns: u32| {
            let roles = Roles::new(false, period);
            let (mut role, looks) = (Role::default(), std::cell::Cell::new(0));
            for _ in 0..turns {
                roles.take(&mut role, || {
                    looks.set(looks.get() + 1);
                    0
                });
            }
            looks.get()
        };
        assert_eq!(looks(Duration::ZERO, 33), 3);
        assert_eq!(looks(Duration::from_secs(3600), 1000), 0);
        assert_eq!(looks(Duration::MAX, 1000), 0);
    }

    #[test]
    fn one_worker_always_answers() {
        let roles = Roles::new(false, Duration::from_secs(3600));
        let mut workers: Vec<Role> = (0..3).map(|_| Role::default()).collect();
        for role in &mut workers {
            roles.take(role, || 90);
        }
        roles.wanted.store(2, Ordering::Relaxed);
        let gleaning = workers
            .iter_mut()
            .map(|role| roles.take_of(role, 2))
            .filter(|gleans| *gleans)
            .count();
        assert_eq!((gleaning, roles.gleaners()), (2, 2));
        workers.iter_mut().for_each(|role| roles.leave(role));
        assert_eq!((roles.gleaners(), roles.has_workers()), (0, false));
    }

    #[test]
    fn who_is_alone_answers_in_between() {
        let roles = Roles::new(false, Duration::from_secs(3600));
        let mut role = Role::default();
        roles.take(&mut role, || 0);
        let turns: Vec<bool> = (0..4).map(|_| roles.take_of(&mut role, 1)).collect();
        assert_eq!(turns, [true, false, true, false]);
    }
}
