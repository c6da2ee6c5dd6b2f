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
const SUSPICIOUS_BEHIND: Duration = Duration::from_micros(20);
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
    /// Nanoseconds that were waited for a core since an operation last began in time.
    queued_ns: u64,
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
            queued_ns: 0,
        }
    }

    #[cold]
    fn ask(&mut self) -> u64 {
        self.asked = self.ended;
        self.timer.queued()
    }
}

impl Pace for Open {
    #[inline]
    fn before(&mut self) {
        if self.ended < self.next && self.ended.saturating_duration_since(self.asked) >= ASKED_AFTER
        {
            self.ask();
        }
        while Instant::now() < self.next {
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn after(&mut self) {
        let before = std::mem::replace(&mut self.ended, Instant::now());
        if before < self.next {
            self.queued_ns = 0;
        }
        let begun = before.max(self.next);
        if self.ended.saturating_duration_since(begun) >= SUSPICIOUS_BEHIND {
            self.queued_ns += self.ask();
        }
        let latency_ns = nanoseconds(self.ended.saturating_duration_since(self.next));
        let is_disturbed = self.queued_ns > 0 && self.queued_ns >= latency_ns / 2;
        self.timer.count(latency_ns, is_disturbed);
        self.next += self.apart;
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

    /// A loop that is behind does not ask around each operation, which would keep it there.
    #[test]
    fn an_open_loop_that_is_behind_costs_little() {
        const COUNT: u32 = 20_000;
        let timed = |mut call: Box<dyn FnMut()>| {
            let begun = Instant::now();
            (0..COUNT).for_each(|_| call());
            begun.elapsed()
        };
        let (mut open, mut timer) = (Open::new(1e9), Timer::new());
        let behind = timed(Box::new(move || {
            open.before();
            open.after();
        }));
        let asked = timed(Box::new(move || timer.record(Duration::from_millis(1))));
        assert!(behind < asked / 2, "{behind:?}; if it asks: {asked:?}");
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
