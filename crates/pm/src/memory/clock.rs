//! A clock cheap enough to wait for tens of nanoseconds.
//!
//! On x86-64 with a time stamp counter that runs at one rate in every power state, ticks are its ticks,
//! calibrated once against the system's monotonic clock; elsewhere a tick is a nanosecond of that clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Ticks per nanosecond, and what waiting itself costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    counter: bool,
    ticks_per_ns: f64,
    /// Ticks that an empty wait takes; subtracted from each wait.
    overhead: u64,
}

impl Clock {
    /// The process's clock; the first call takes a few milliseconds.
    pub(crate) fn get() -> Clock {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(Clock::calibrate)
    }

    fn calibrate() -> Clock {
        let mut clock = Clock {
            counter: counter_is_steady(),
            ticks_per_ns: 1.0,
            overhead: 0,
        };
        // In moments a millisecond apart: who shares the core lengthens a few microseconds as a whole, and
        // one interrupted run does not move the median.
        let mut least = u64::MAX;
        let mut rates = [1.0; 5];
        for rate in &mut rates {
            least = least.min(clock.least_wait());
            *rate = if clock.counter { counter_rate() } else { 1.0 };
        }
        rates.sort_by(f64::total_cmp);
        clock.ticks_per_ns = rates[rates.len() / 2];
        // This measured three readings of the clock, and a wait takes two.
        clock.overhead = least * 2 / 3;
        clock
    }

    /// The shortest of many empty waits: a busy machine lengthens them, and that must not shorten others.
    fn least_wait(&self) -> u64 {
        let took = (0..101).map(|_| {
            let from = self.now();
            self.wait_until(self.now());
            self.now().saturating_sub(from)
        });
        took.min().unwrap_or(0)
    }

    /// Now, in ticks.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        if self.counter {
            counter()
        } else {
            static START: OnceLock<Instant> = OnceLock::new();
            START.get_or_init(Instant::now).elapsed().as_nanos() as u64
        }
    }

    /// Nanoseconds in ticks.
    pub(crate) fn ticks(&self, ns: f64) -> u64 {
        (ns * self.ticks_per_ns) as u64
    }

    /// Spins for `ticks`, call included.
    #[inline]
    pub(crate) fn wait(&self, ticks: u64) {
        if ticks > self.overhead {
            self.wait_until(self.now() + (ticks - self.overhead));
        }
    }

    /// Spins until the clock shows `tick`.
    #[inline]
    pub(crate) fn wait_until(&self, tick: u64) {
        while self.now() < tick {
            std::hint::spin_loop();
        }
    }
}

fn counter_rate() -> f64 {
    let (started, from) = (Instant::now(), counter());
    while started.elapsed() < Duration::from_millis(1) {}
    let (elapsed, to) = (started.elapsed(), counter());
    to.saturating_sub(from) as f64 / elapsed.as_nanos() as f64
}

#[inline]
fn counter() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: reading the time stamp counter is part of x86-64 and touches no memory.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    0
}

fn counter_is_steady() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let highest = std::arch::x86_64::__cpuid(0x8000_0000).eax;
        highest >= 0x8000_0007 && std::arch::x86_64::__cpuid(0x8000_0007).edx & (1 << 8) != 0
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    false
}
