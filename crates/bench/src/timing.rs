//! Time that a thread took, on the wall and on a processor, and how it spreads over repetitions.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Time this thread has spent on a processor.
#[must_use]
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// Begun now, on this thread.
pub struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    /// Starts.
    #[must_use]
    pub fn start() -> Stopwatch {
        Stopwatch {
            cpu: thread_cpu(),
            wall: Instant::now(),
        }
    }

    /// What `operations` took since the start.
    #[must_use]
    pub fn stop(&self, operations: u64) -> Sample {
        let wall = self.wall.elapsed();
        Sample {
            operations,
            wall,
            cpu: thread_cpu().saturating_sub(self.cpu),
        }
    }
}

/// One repetition of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// How often it was done.
    pub operations: u64,
    /// From the start to the end, by the clock.
    pub wall: Duration,
    /// Time on a processor, of all threads that did it.
    pub cpu: Duration,
}

impl Sample {
    /// Nanoseconds an operation, by the clock.
    #[must_use]
    pub fn wall_ns(&self) -> f64 {
        self.wall.as_nanos() as f64 / self.operations.max(1) as f64
    }

    /// Nanoseconds an operation, on a processor.
    #[must_use]
    pub fn cpu_ns(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.operations.max(1) as f64
    }

    /// Operations a second, by the clock.
    #[must_use]
    pub fn rate(&self) -> f64 {
        1e9 / self.wall_ns().max(1e-9)
    }

    /// Operations a second of processor time.
    #[must_use]
    pub fn cpu_rate(&self) -> f64 {
        1e9 / self.cpu_ns().max(1e-9)
    }
}

/// Least, middle and greatest of some repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The middle; the lower one of two.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Over some values; all zero over none.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (values.first(), values.last()) else {
            return Spread::default();
        };
        Spread {
            min: *min,
            median: values[(values.len() - 1) / 2],
            max: *max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_values_in_order() {
        let spread = |values: &[f64]| {
            let spread = Spread::of(values.iter().copied());
            (spread.min, spread.median, spread.max)
        };
        assert_eq!(spread(&[]), (0.0, 0.0, 0.0));
        assert_eq!(spread(&[4.0]), (4.0, 4.0, 4.0));
        assert_eq!(spread(&[9.0, 1.0]), (1.0, 1.0, 9.0));
        assert_eq!(spread(&[5.0, 9.0, 1.0]), (1.0, 5.0, 9.0));
    }

    #[test]
    fn a_thread_that_works_spends_time_on_a_processor() {
        let watch = Stopwatch::start();
        let mut sum = 0u64;
        while thread_cpu().saturating_sub(watch.cpu) < Duration::from_millis(2) {
            sum = std::hint::black_box(sum + 1);
        }
        let sample = watch.stop(sum);
        assert!(sample.cpu >= Duration::from_millis(2) && sample.wall_ns() > 0.0);
    }
}
