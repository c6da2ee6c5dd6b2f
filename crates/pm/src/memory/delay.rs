//! Emulated latency and bandwidth for the `emulated` medium. Off by default, at the cost of one branch.
//!
//! Latency is spun off where it arises: at the read, the flush, the fence. Bandwidth is a token bucket for
//! all threads together. To avoid contention a thread takes tokens for [`GRAIN`] bytes at a time. Written
//! bytes are paid for at the fence, as a real device makes the writer wait when its queue is full.
//!
//! The model changes time, never behaviour. It takes single words ([`crate::Region::load_word`]) to be in the
//! cache, at no cost.

use super::clock::Clock;
use super::cpu::LINE;
use super::preset::Preset;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of bandwidth a thread takes from the bucket at once.
const GRAIN: u64 = 16 << 10;
/// Unused bandwidth is kept this long, so that a burst after a pause does not wait.
const BURST_NS: f64 = 10_000.0;

/// Adds modelled time to flushes, fences and reads.
#[derive(Clone, Debug)]
pub(crate) struct Delay(Arc<Model>);

#[derive(Debug)]
struct Model {
    preset: &'static Preset,
    clock: Clock,
    read_ticks: u64,
    write_ticks: u64,
    fence_ticks: u64,
    read: Option<Bucket>,
    write: Option<Bucket>,
}

/// Remaining bandwidth, as the tick at which everything handed out will have been transferred.
#[derive(Debug)]
pub(crate) struct Bucket {
    grain_ticks: u64,
    burst_ticks: u64,
    free_at: AtomicU64,
}

thread_local! {
    /// Bytes this thread may still read, and write, before it takes more from the bucket.
    static CREDIT: [Cell<u64>; 2] = const { [Cell::new(0), Cell::new(0)] };
    /// When the writes of this thread will have been transferred.
    static WRITTEN_AT: Cell<u64> = const { Cell::new(0) };
}

impl Delay {
    /// A model of the preset's device.
    pub(crate) fn new(preset: &'static Preset) -> Delay {
        let clock = Clock::get();
        let bucket = |bytes_per_second| Bucket::new(&clock, bytes_per_second);
        Delay(Arc::new(Model {
            preset,
            clock,
            read_ticks: clock.ticks(preset.read_ns as f64),
            write_ticks: clock.ticks(preset.write_ns as f64),
            fence_ticks: clock.ticks(preset.fence_ns as f64),
            read: preset.read_bytes_per_second.map(bucket),
            write: preset.write_bytes_per_second.map(bucket),
        }))
    }

    /// Where the figures come from.
    pub(crate) fn preset(&self) -> &'static Preset {
        self.0.preset
    }

    /// A copy of `bytes` out of the pool; the model assumes it misses the caches.
    #[inline]
    pub(crate) fn read(&self, bytes: u64) {
        let model = &*self.0;
        model.clock.wait(model.read_ticks);
        if let Some(bucket) = &model.read {
            let done = CREDIT.with(|[read, _]| bucket.take(&model.clock, read, bytes));
            model.clock.wait_until(done);
        }
    }

    /// Reads of `lines` independent lines: their latencies overlap up to the number of misses a core can have
    /// in flight.
    #[inline]
    pub(crate) fn read_each(&self, lines: u64) {
        /// Line fill buffers of a core; current ones have 10 to 16.
        const AT_ONCE: u64 = 10;
        (0..lines.div_ceil(AT_ONCE)).for_each(|_| self.read(AT_ONCE.min(lines) * LINE));
    }

    /// A flush, or a streaming write, of `lines` lines.
    #[inline]
    pub(crate) fn flush(&self, lines: u64) {
        let model = &*self.0;
        model.clock.wait(model.write_ticks);
        if let Some(bucket) = &model.write {
            let done = CREDIT.with(|[_, write]| bucket.take(&model.clock, write, lines * LINE));
            WRITTEN_AT.with(|at| at.set(at.get().max(done)));
        }
    }

    /// A fence.
    #[inline]
    pub(crate) fn fence(&self) {
        let model = &*self.0;
        model.clock.wait(model.fence_ticks);
        if model.write.is_some() {
            model.clock.wait_until(WRITTEN_AT.with(Cell::get));
        }
    }
}

impl Bucket {
    pub(crate) fn new(clock: &Clock, bytes_per_second: u64) -> Bucket {
        Bucket {
            grain_ticks: clock.ticks(GRAIN as f64 * 1e9 / bytes_per_second as f64),
            burst_ticks: clock.ticks(BURST_NS),
            free_at: AtomicU64::new(0),
        }
    }

    /// Pays for `bytes` from `credit`, and from the bucket when that is used up. Returns the tick at which
    /// the transfer is done, 0 if `credit` covered it.
    fn take(&self, clock: &Clock, credit: &Cell<u64>, bytes: u64) -> u64 {
        if let Some(rest) = credit.get().checked_sub(bytes) {
            credit.set(rest);
            return 0;
        }
        let missing = bytes - credit.get();
        let grains = missing.div_ceil(GRAIN);
        credit.set(grains * GRAIN - missing);
        self.transfer(clock, grains * GRAIN)
    }

    /// Pays for `bytes`. Returns the tick at which their transfer is done.
    pub(crate) fn transfer(&self, clock: &Clock, bytes: u64) -> u64 {
        let cost = (u128::from(bytes) * u128::from(self.grain_ticks) / u128::from(GRAIN)) as u64;
        let earliest = clock.now().saturating_sub(self.burst_ticks);
        let mut free_at = self.free_at.load(Ordering::Relaxed);
        loop {
            let done = free_at.max(earliest) + cost;
            match self.free_at.compare_exchange_weak(
                free_at,
                done,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return done,
                Err(found) => free_at = found,
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::memory::preset::PRESETS;
    use std::time::{Duration, Instant};

    /// Best of 50 runs, or of fewer (at least three) once one took at most `enough`: a busy machine makes
    /// runs slower, never faster.
    fn best(enough: Duration, mut run: impl FnMut()) -> Duration {
        let mut best = Duration::MAX;
        for number in 1..=50 {
            let started = Instant::now();
            run();
            best = best.min(started.elapsed());
            if number >= 3 && best <= enough {
                break;
            }
        }
        best
    }

    #[test]
    fn each_latency_is_about_what_the_preset_says() {
        const COUNT: u32 = 200;
        for preset in &PRESETS {
            let preset = Box::leak(Box::new(Preset {
                read_bytes_per_second: None,
                write_bytes_per_second: None,
                ..*preset
            }));
            let delay = Delay::new(preset);
            let measured = [
                (
                    preset.read_ns,
                    best(Duration::ZERO, || (0..COUNT).for_each(|_| delay.read(64))),
                ),
                (
                    preset.write_ns,
                    best(Duration::ZERO, || (0..COUNT).for_each(|_| delay.flush(1))),
                ),
                (
                    preset.fence_ns,
                    best(Duration::ZERO, || (0..COUNT).for_each(|_| delay.fence())),
                ),
            ];
            for (wanted, took) in measured {
                let each = (took / COUNT).as_nanos() as u64;
                assert!(
                    each >= wanted * 7 / 10 && each <= wanted * 2 + 60,
                    "{}: wanted {wanted} ns, took {each} ns",
                    preset.name
                );
            }
        }
    }

    #[test]
    fn bandwidth_is_capped_for_all_threads_together() {
        const BYTES: u64 = 8 << 20;
        let preset = Box::leak(Box::new(Preset {
            read_ns: 0,
            write_ns: 0,
            fence_ns: 0,
            read_bytes_per_second: None,
            write_bytes_per_second: Some(1 << 30),
            ..PRESETS[0]
        }));
        let delay = Delay::new(preset);
        let wanted = Duration::from_secs_f64(BYTES as f64 / (1u64 << 30) as f64);
        let took = best(wanted * 4, || {
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..BYTES / 2 / 256 {
                            delay.flush(4);
                            delay.fence();
                        }
                    });
                }
            });
        });
        assert!(
            took >= wanted * 9 / 10,
            "8 MiB at 1 GiB/s took {took:?}, less than {wanted:?}"
        );
        assert!(
            took <= wanted * 4,
            "8 MiB at 1 GiB/s took {took:?}, far more than {wanted:?}"
        );
    }

    #[test]
    fn names_are_found_and_unknown_ones_listed() {
        for preset in &PRESETS {
            assert_eq!(Preset::by_name(preset.name), Ok(preset));
        }
        let refused = Preset::by_name("floppy").unwrap_err();
        assert!(
            PRESETS.iter().all(|preset| refused.contains(preset.name)),
            "{refused}"
        );
    }
}
