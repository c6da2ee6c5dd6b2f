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
        if clock.counter {
            // One interrupted run does not move the median.
            let mut rates: Vec<f64> = (0..5).map(|_| counter_rate()).collect();
            rates.sort_by(f64::total_cmp);
            clock.ticks_per_ns = rates.get(rates.len() / 2).copied().unwrap_or(1.0);
        }
        // The least of many runs: a busy machine lengthens runs, and that must not shorten waits.
        let cost = (0..101).map(|_| {
            let from = clock.now();
            clock.wait_until(clock.now());
            clock.now().saturating_sub(from)
        });
        // This measured three readings of the clock, and a wait takes two.
        clock.overhead = cost.min().unwrap_or(0) * 2 / 3;
        clock
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
