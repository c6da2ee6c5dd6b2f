//! Waiting until a position is durable: who leads the next batch, who sleeps, and for how long.
//!
//! Waiters sleep on the count of finished batches, and each batch has a bit of the futex's set, so nobody is
//! woken for nothing.
//!
//! A sync costs about the same for one group as for a hundred. So while nobody leads, a batch *gathers*:
//! waiters sleep until as many groups have come as the last sync had in it and behind it, and whoever brings
//! the last one leads. The first waiter of a gathering batch keeps the clock: it leads after half of what a
//! sync takes, whatever has come until then.
//!
//! Nobody is forgotten:
//! - A waiter reads the count before it looks at anything else, and sleeps only if the count has not changed.
//! - The leader gives the role back before it raises the count, and raises it also if it found nothing to
//!   write: somebody may have found the role taken meanwhile.
//! - While nobody leads, somebody keeps the clock of the batch that gathers, or is awake.

use super::Shared;
use crate::error::Error;
use rustix::thread::futex::{self, Flags};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

/// What a waiter does next.
enum Turn {
    /// Leads, if nobody else does.
    Lead,
    /// Sleeps until its batch is finished, or until then.
    Sleep(Option<Timespec>),
}

impl Shared {
    /// Blocks until the log is durable up to `lsn`; writes it itself if nobody else does.
    pub(super) fn wait_durable(&self, lsn: u64) -> Result<(), Error> {
        self.wait_leading(lsn, self.options.setup.has_threads())
    }

    /// As [`Shared::wait_durable`], for the flusher: those it writes for do not wait in `wait_durable`, so
    /// there is nobody to gather.
    pub(super) fn flush_to(&self, lsn: u64) -> Result<(), Error> {
        self.wait_leading(lsn, false)
    }

    fn wait_leading(&self, lsn: u64, gather: bool) -> Result<(), Error> {
        let mut clock = None;
        loop {
            let completed = self.completed.load(Ordering::Acquire);
            if self.durable.load(Ordering::Acquire) >= lsn {
                return Ok(());
            }
            self.healthy()?;
            let (number, turn) = self.turn(lsn, gather, &mut clock);
            let until = match turn {
                Turn::Sleep(until) => until,
                Turn::Lead => match self.writer.try_lock() {
                    Some(writer) => {
                        self.lead(writer);
                        continue;
                    }
                    None => None,
                },
            };
            #[cfg(feature = "lab")]
            if crate::lab::waiting() {
                continue;
            }
            // A changed count, a signal, a wake-up or the end of the time: the loop looks again in each case.
            let _ = futex::wait_bitset(
                &self.completed,
                Flags::PRIVATE,
                completed,
                until.as_ref(),
                bit(number),
            );
        }
    }

    /// The batch that `lsn` is in, and what its waiter does. `clock` is when this waiter leads at the latest,
    /// if it keeps the clock of that batch.
    fn turn(&self, lsn: u64, gather: bool, clock: &mut Option<Timespec>) -> (u32, Turn) {
        let mut pending = self.pending.lock();
        let number = pending.number_of(lsn);
        let gathers = gather && !self.writer.is_locked() && pending.is_gathering(number);
        if !gathers {
            return (number, Turn::Lead);
        }
        let turn = match *clock {
            Some(until) if until <= clock_gettime(ClockId::Monotonic) => Turn::Lead,
            Some(until) => Turn::Sleep(Some(until)),
            None => {
                if pending.take_clock() {
                    *clock = Some(self.half_a_sync_from_here());
                }
                Turn::Sleep(*clock)
            }
        };
        (number, turn)
    }

    /// When half of what a sync takes will be over; a second at most.
    fn half_a_sync_from_here(&self) -> Timespec {
        let half_ns = self.sync_ns.load(Ordering::Relaxed) / 2;
        clock_gettime(ClockId::Monotonic)
            + Timespec {
                tv_sec: 0,
                tv_nsec: half_ns.min(999_999_999) as _,
            }
    }

    /// Wakes those who wait for a batch that is finished, after one who waits for the next: that one leads it
    /// while the others are still being woken.
    pub(super) fn wake_after(&self, number: u32) {
        self.completed.fetch_add(1, Ordering::AcqRel);
        for (count, number) in [(1, number.wrapping_add(1)), (i32::MAX as u32, number)] {
            // Waking nobody is fine, and the call has no other way to fail on a valid address.
            let _ = futex::wake_bitset(&self.completed, Flags::PRIVATE, count, bit(number));
        }
    }

    /// Wakes everybody who waits, for whatever.
    pub(super) fn wake_all(&self) {
        self.completed.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&self.completed, Flags::PRIVATE, i32::MAX as u32);
    }
}

/// The futex bit of a batch. Only two batches have waiters at any time, so 32 bits are plenty.
fn bit(number: u32) -> NonZeroU32 {
    NonZeroU32::new(1 << (number % 32)).unwrap_or(NonZeroU32::MIN)
}
