//! When operations begin, and whether each is timed.
//!
//! The throughput pass reads no clock inside its loop. The latency passes do: in a closed loop an operation
//! begins when the one before has ended; in an open loop at a time set beforehand, and what it waited for the
//! one before is part of its latency (so a stall is not hidden by the operations that it kept from starting).

use crate::latency::Latencies;
use crate::process::Waiting;
use std::time::{Duration, Instant};

/// Latency from which on an operation is asked whether it waited for a core: shorter ones cannot have.
const SUSPICIOUS_NS: u64 = 3_000;
/// The same in an open loop, of the time that an operation adds to what it is behind. Asking costs as much as
/// an operation does, and a loop that asks each time that it is behind never catches up.
const SUSPICIOUS_BEHIND_NS: u64 = 20_000;
/// Time after which an open loop asks while it waits for the next operation: what was waited for a core until
/// then delayed no later one.
const ASKED_AFTER: Duration = Duration::from_millis(10);

/// How a pass is timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Timing {
    /// As a whole, as fast as it goes.
    Throughput,
    /// Each call, begun when the one before has ended.
    Closed,
    /// Each call, from a time set beforehand: so many operations a second of all threads.
    Open(f64),
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Called around each operation.
pub(crate) trait Pace {
    /// Before it; an open loop waits here.
    fn before(&mut self);
    /// After it.
    fn after(&mut self);
}

/// As fast as it goes, without a clock.
pub(crate) struct Free;

impl Pace for Free {
    #[inline]
    fn before(&mut self) {}
    #[inline]
    fn after(&mut self) {}
}

/// Times the calls of one thread.
pub(crate) struct Timer {
    pub(crate) latencies: Latencies,
    waiting: Waiting,
    queued_ns: u64,
}

impl Timer {
    /// On the thread that makes the calls: it alone knows what it waited for.
    pub(crate) fn new() -> Timer {
        let waiting = Waiting::of_this_thread();
        Timer {
            latencies: Latencies::default(),
            queued_ns: waiting.queued_ns(),
            waiting,
        }
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        let latency_ns = nanoseconds(latency);
        let is_suspicious = latency_ns >= SUSPICIOUS_NS;
        let queued_ns = if is_suspicious { self.queued() } else { 0 };
        self.count(latency_ns, is_suspicious && queued_ns >= latency_ns / 2);
    }

    fn count(&mut self, latency_ns: u64, is_disturbed: bool) {
        self.latencies.all.saturating_record(latency_ns);
        if !is_disturbed {
            self.latencies.undisturbed.saturating_record(latency_ns);
        }
    }

    /// Nanoseconds that the thread waited for a core since the last call of this.
    #[cold]
    fn queued(&mut self) -> u64 {
        let queued_ns = self.waiting.queued_ns();
        queued_ns.saturating_sub(std::mem::replace(&mut self.queued_ns, queued_ns))
    }
}

/// One after another, timed.
pub(crate) struct Closed {
    pub(crate) timer: Timer,
    begun: Instant,
}

impl Closed {
    pub(crate) fn new() -> Closed {
        Closed {
            timer: Timer::new(),
            begun: Instant::now(),
        }
    }
}

impl Pace for Closed {
    #[inline]
    fn before(&mut self) {
        self.begun = Instant::now();
    }

    #[inline]
    fn after(&mut self) {
        self.timer.record(self.begun.elapsed());
    }
}

/// At times set beforehand, timed from these.
pub(crate) struct Open {
    pub(crate) timer: Timer,
    next: Instant,
    apart: Duration,
    /// When the last operation ended.
    ended: Instant,
    asked: Instant,
    behind: Behind,
}

impl Open {
    /// `rate` operations a second of this thread.
    pub(crate) fn new(rate: f64) -> Open {
        let apart = Duration::from_secs_f64(1.0 / rate.max(0.001));
        let now = Instant::now();
        Open {
            timer: Timer::new(),
            next: now + apart,
            apart,
            ended: now,
            asked: now,
            behind: Behind::default(),
        }
    }
}

impl Pace for Open {
    #[inline]
    fn before(&mut self) {
        if self.ended < self.next && self.ended.saturating_duration_since(self.asked) >= ASKED_AFTER
        {
            self.asked = self.ended;
            let _delayed_nothing = self.timer.queued();
        }
        while Instant::now() < self.next {
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn after(&mut self) {
        let before = std::mem::replace(&mut self.ended, Instant::now());
        let behind_ns = nanoseconds(before.saturating_duration_since(self.next));
        let begun = before.max(self.next);
        let own_ns = nanoseconds(self.ended.saturating_duration_since(begun));
        let is_disturbed = self.behind.add(behind_ns, own_ns, || {
            self.asked = self.ended;
            self.timer.queued()
        });
        self.timer.count(behind_ns + own_ns, is_disturbed);
        self.next += self.apart;
    }
}

/// How much of the time that an open loop is behind was spent waiting for a core.
#[derive(Default)]
struct Behind {
    queued_ns: u64,
}

impl Behind {
    /// Adds an operation that was `behind_ns` late when it could begin, and took `own_ns` more. `queued` says
    /// how long the thread has waited for a core lately. Whether that is half of the whole.
    #[inline]
    fn add(&mut self, behind_ns: u64, own_ns: u64, queued: impl FnOnce() -> u64) -> bool {
        // What the loop has caught up with since counts no more.
        self.queued_ns = self.queued_ns.min(behind_ns);
        if own_ns >= SUSPICIOUS_BEHIND_NS {
            self.queued_ns += queued().min(own_ns);
        }
        self.queued_ns > 0 && self.queued_ns >= (behind_ns + own_ns) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operation that stalls delays the ones after it, and an open loop says so for each of them.
    #[test]
    fn an_open_loop_counts_a_stall_for_all_that_it_delays() {
        let mut pace = Open::new(100_000.0);
        let stall = Duration::from_millis(20);
        let begun = Instant::now();
        for number in 0..1000 {
            pace.before();
            if number == 0 {
                let until = Instant::now() + stall;
                while Instant::now() < until {}
            }
            pace.after();
        }
        assert!(begun.elapsed() >= stall);
        let late = pace.timer.latencies.all.count_between(5_000_000, u64::MAX);
        // A thousand operations were due in the first 10 ms, while the first one took 20.
        assert!(late >= 990, "{late}");
    }

    const MS: u64 = 1_000_000;

    fn nobody_asks() -> u64 {
        panic!("a call that adds little asks how long it waited")
    }

    /// What a turn of the scheduler delays was disturbed, too. A loop that is behind does not ask around each
    /// operation, which would keep it there.
    #[test]
    fn whatever_waits_behind_a_lost_core_is_disturbed() {
        let mut behind = Behind::default();
        assert!(!behind.add(0, 2_000, nobody_asks));
        assert!(behind.add(0, 4 * MS, || 4 * MS));
        assert!(behind.add(4 * MS - 3_000, 2_000, nobody_asks));
        assert!(behind.add(100_000, 2_000, nobody_asks));
        assert!(!behind.add(0, 2_000, nobody_asks));
    }

    #[test]
    fn a_stall_is_not_excused_by_a_core_that_was_lost_before() {
        let mut behind = Behind::default();
        assert!(!behind.add(0, 6 * MS, || 0));
        assert!(!behind.add(6 * MS, 2_000, nobody_asks));
        // The loop has caught up with all but a millisecond when the next stall comes.
        assert!(behind.add(0, 4 * MS, || 4 * MS));
        assert!(!behind.add(MS, 6 * MS, || 0));
        assert!(!behind.add(7 * MS, 2_000, nobody_asks));
        // Or with everything.
        assert!(behind.add(0, 4 * MS, || 4 * MS));
        assert!(!behind.add(0, 2_000, nobody_asks));
        assert!(!behind.add(0, 6 * MS, || 0));
        // Or most of the wait was over before the call was due.
        assert!(!behind.add(7 * MS, 30_000, || 4 * MS));
    }

    #[test]
    fn a_closed_loop_counts_a_stall_once() {
        let mut pace = Closed::new();
        for number in 0..100 {
            pace.before();
            if number == 0 {
                let until = Instant::now() + Duration::from_millis(60);
                while Instant::now() < until {}
            }
            pace.after();
        }
        assert_eq!(pace.timer.latencies.all.len(), 100);
        assert!(pace.timer.latencies.all.max() >= 59_000_000);
        assert!(pace.timer.latencies.all.value_at_quantile(0.5) < 50_000_000);
    }
}
