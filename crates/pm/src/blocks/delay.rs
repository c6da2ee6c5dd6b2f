//! Emulated latency and bandwidth of a disk, for a data file on tmpfs. Off by default, at the cost of one
//! branch.
//!
//! A call takes as long as the disk would take, the time that memory took included: it spins, as the
//! user-space driver of DStore does (section 5.1), so on a machine with few cores it takes time from the
//! background. The model has no queue: it gains nothing from blocks that are asked for ahead
//! ([`super::Blocks::will_need`]).

use crate::memory::clock::Clock;
use crate::memory::delay::Bucket;
use crate::memory::preset::DiskPreset;

/// Bytes that the latency of a write is of.
const WRITE_UNIT: u64 = 4096;

/// Makes calls on a data file as slow as those of a disk.
#[derive(Debug)]
pub(crate) struct DiskDelay {
    clock: Clock,
    read_ticks: u64,
    write_ticks: u64,
    read: Bucket,
    write: Bucket,
}

/// When a call began.
pub(crate) struct Begun(u64);

impl DiskDelay {
    pub(crate) fn new(preset: &DiskPreset) -> DiskDelay {
        let clock = Clock::get();
        DiskDelay {
            clock,
            read_ticks: clock.ticks(preset.read_ns as f64),
            write_ticks: clock.ticks(preset.write_ns as f64),
            read: Bucket::new(&clock, preset.read_bytes_per_second),
            write: Bucket::new(&clock, preset.write_bytes_per_second),
        }
    }

    /// A call begins.
    pub(crate) fn begin(&self) -> Begun {
        Begun(self.clock.now())
    }

    /// Waits until the disk would have read so many bytes.
    pub(crate) fn end_read(&self, begun: Begun, bytes: u64) {
        self.wait(begun, self.read_ticks, &self.read, bytes);
    }

    /// Waits until the disk would have written so many bytes.
    pub(crate) fn end_write(&self, begun: Begun, bytes: u64) {
        let ticks = self.write_ticks * bytes.div_ceil(WRITE_UNIT);
        self.wait(begun, ticks, &self.write, bytes);
    }

    fn wait(&self, Begun(begun): Begun, ticks: u64, bucket: &Bucket, bytes: u64) {
        let transferred = bucket.transfer(&self.clock, bytes);
        self.clock.wait_until(transferred.max(begun + ticks));
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::memory::preset::DISK_PRESETS;
    use std::time::{Duration, Instant};

    const COUNT: u32 = 50;

    /// The least time of a call, of some rounds: a busy machine makes calls longer.
    fn least(mut call: impl FnMut()) -> Duration {
        let rounds = (0..20).map(|_| {
            let begun = Instant::now();
            (0..COUNT).for_each(|_| call());
            begun.elapsed() / COUNT
        });
        rounds.min().unwrap_or_default()
    }

    #[test]
    fn a_call_takes_as_long_as_the_preset_says() {
        for preset in &DISK_PRESETS {
            let disk = DiskDelay::new(preset);
            let read = |bytes: u64| disk.end_read(disk.begin(), bytes);
            let write = |bytes: u64| disk.end_write(disk.begin(), bytes);
            for (took, wanted_ns) in [
                (least(|| read(4096)), preset.read_ns),
                (least(|| write(4096)), preset.write_ns),
                (least(|| write(100)), preset.write_ns),
                (least(|| write(16384)), 4 * preset.write_ns),
                (
                    least(|| read(1 << 20)),
                    (1 << 20) * 1_000_000_000 / preset.read_bytes_per_second,
                ),
            ] {
                let wanted = Duration::from_nanos(wanted_ns);
                assert!(
                    took >= wanted * 9 / 10 && took <= wanted * 2,
                    "{}: {took:?} instead of {wanted:?}",
                    preset.name
                );
            }
        }
    }

    #[test]
    fn the_time_that_memory_took_is_a_part_of_the_call() {
        let disk = DiskDelay::new(&DISK_PRESETS[0]);
        let part = Duration::from_nanos(DISK_PRESETS[0].write_ns / 2);
        let took = least(|| {
            let begun = disk.begin();
            let own = Instant::now();
            while own.elapsed() < part {}
            disk.end_write(begun, 4096);
        });
        assert!(took < part * 3, "{took:?}");
    }

    #[test]
    fn threads_share_the_bandwidth() {
        const BYTES: u64 = 1 << 20;
        let preset = DiskPreset {
            write_ns: 0,
            write_bytes_per_second: 1 << 30,
            ..DISK_PRESETS[0]
        };
        let disk = DiskDelay::new(&preset);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..4).for_each(|_| disk.end_write(disk.begin(), BYTES)));
            }
        });
        let (took, wanted) = (begun.elapsed(), Duration::from_secs_f64(8.0 / 1024.0));
        assert!(took >= wanted * 9 / 10, "{took:?} instead of {wanted:?}");
    }
}
