//! Waiting until a position is durable: who leads the next batch, who sleeps, and for how long.
//!
//! Waiters sleep on the count of finished batches. Each batch has a bit of the futex's set, so no waiter is
//! woken in vain.
//!
//! A sync costs about the same for one group as for a hundred. So while no thread leads, a batch *gathers*:
//! waiters sleep until as many groups have come as the last sync had in it and after it, and the waiter that
//! brings the last one leads. The first waiter of a gathering batch keeps the clock: it leads after half the
//! duration of a sync, however many have come.
//!
//! No waiter is forgotten:
//! - A waiter reads the count before anything else, and sleeps only if the count has not changed.
//! - The leader releases the role before it raises the count. It raises the count even if it found nothing to
//!   write: another waiter may have found the role taken meanwhile.
//! - While no thread leads, some thread keeps the clock of the batch that gathers, or is awake.

use super::Shared;
use crate::error::Error;
use rustix::thread::futex::{self, Flags};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

/// What a waiter does next.
enum Turn {
    /// Leads, if no other thread does.
    Lead,
    /// Sleeps until its batch is finished, at most until this time.
    Sleep(Option<Timespec>),
}

impl Shared {
    /// Blocks until the log is durable up to `lsn`; writes it itself if no other thread does.
    pub(super) fn wait_durable(&self, lsn: u64) -> Result<(), Error> {
        self.wait_leading(lsn, self.options.setup.has_threads())
    }

    /// As [`Shared::wait_durable`], for the flusher. The sessions it writes for do not wait in
    /// `wait_durable`, so gathering would be useless.
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
            // A changed count, a signal, a wake-up or the timeout: the loop checks again in each case.
            let _ = futex::wait_bitset(
                &self.completed,
                Flags::PRIVATE,
                completed,
                until.as_ref(),
                bit(number),
            );
        }
    }

    /// The batch with `lsn` in it, and the waiter's next step. `clock` is the deadline by which this waiter
    /// leads, if it keeps the clock of that batch.
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

    /// Half the duration of a sync from now; a second at most.
    fn half_a_sync_from_here(&self) -> Timespec {
        let half_ns = self.sync_ns.load(Ordering::Relaxed) / 2;
        clock_gettime(ClockId::Monotonic)
            + Timespec {
                tv_sec: 0,
                tv_nsec: half_ns.min(999_999_999) as _,
            }
    }

    /// Wakes the waiters of a finished batch, after one waiter of the next: that one leads while the others
    /// are still being woken.
    pub(super) fn wake_after(&self, number: u32) {
        self.completed.fetch_add(1, Ordering::AcqRel);
        for (count, number) in [(1, number.wrapping_add(1)), (i32::MAX as u32, number)] {
            // If no thread waits, nothing happens; on a valid address the call has no other way to fail.
            let _ = futex::wake_bitset(&self.completed, Flags::PRIVATE, count, bit(number));
        }
    }

    /// Wakes every waiter.
    pub(super) fn wake_all(&self) {
        self.completed.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&self.completed, Flags::PRIVATE, i32::MAX as u32);
    }
}

/// The futex bit of a batch. Only two batches have waiters at any time, so 32 bits are plenty.
fn bit(number: u32) -> NonZeroU32 {
    NonZeroU32::new(1 << (number % 32)).unwrap_or(NonZeroU32::MIN)
}
