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
        let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latencies.all.saturating_record(latency_ns);
        if latency_ns < SUSPICIOUS_NS || !self.was_disturbed(latency_ns) {
            self.latencies.undisturbed.saturating_record(latency_ns);
        }
    }

    #[cold]
    fn was_disturbed(&mut self, latency_ns: u64) -> bool {
        let queued_ns = self.waiting.queued_ns();
        let waited = queued_ns.saturating_sub(std::mem::replace(&mut self.queued_ns, queued_ns));
        waited >= latency_ns / 2
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
}

impl Open {
    /// `rate` operations a second of this thread.
    pub(crate) fn new(rate: f64) -> Open {
        let apart = Duration::from_secs_f64(1.0 / rate.max(0.001));
        Open {
            timer: Timer::new(),
            next: Instant::now() + apart,
            apart,
        }
    }
}

impl Pace for Open {
    #[inline]
    fn before(&mut self) {
        while Instant::now() < self.next {
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn after(&mut self) {
        self.timer.record(self.next.elapsed());
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
