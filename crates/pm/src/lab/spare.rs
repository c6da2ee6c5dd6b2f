//! Memory of short-lived tables, kept for reuse.
//!
//! The lab recovers thousands of images a second, and each engine has its tables. Mapping, touching and
//! unmapping them interrupts every core that runs a thread of the process, and took longer than the work in
//! them. So a thread that has opened a copy of an image keeps such memory for the next one; other threads
//! keep nothing.

use crate::memory::map::Reservation;
use crate::memory::region::Backing;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most reservations that a thread keeps.
const KEPT_MOST: usize = 4;
/// Most usable bytes of a kept one: clearing more takes longer than a new reservation.
const USABLE_MOST: u64 = 512 << 10;

thread_local! {
    static SIMULATES: Cell<bool> = const { Cell::new(false) };
    static KEPT: RefCell<Vec<Reservation>> = const { RefCell::new(Vec::new()) };
}

/// Marks this thread as one that opens copies of images, one after another.
pub(crate) fn this_thread_simulates() {
    SIMULATES.set(true);
}

/// Whether [`this_thread_simulates`] was called on this thread.
pub(crate) fn does_this_thread_simulate() -> bool {
    SIMULATES.get()
}

/// A [`Reservation`] that may be used again.
pub(crate) struct Spare {
    /// `Some` until it is dropped.
    reservation: Option<Reservation>,
    /// Bytes that may have been written.
    usable: AtomicU64,
}

impl Spare {
    /// As [`Reservation::new`].
    pub(crate) fn new(needed: u64, wanted: u64, align: u64) -> Result<Spare, Errno> {
        let kept = KEPT.with_borrow_mut(|kept| {
            let fits = |spare: &Reservation| spare.bytes() == wanted && spare.is_aligned(align);
            let number = kept.iter().position(fits)?;
            Some(kept.swap_remove(number))
        });
        let reservation = match kept {
            Some(kept) => kept,
            None => Reservation::new(needed, wanted, align)?,
        };
        Ok(Spare {
            reservation: Some(reservation),
            usable: AtomicU64::new(0),
        })
    }

    fn reservation(&self) -> &Reservation {
        match &self.reservation {
            Some(reservation) => reservation,
            None => unreachable!("a spare reservation is used after its drop"),
        }
    }

    /// As [`Reservation::bytes`].
    pub(crate) fn bytes(&self) -> u64 {
        self.reservation().bytes()
    }

    /// As [`Reservation::fill_with_zeros`].
    pub(crate) fn fill_with_zeros(&self, bytes: u64) -> Result<(), Errno> {
        self.reservation().fill_with_zeros(bytes)?;
        self.usable.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }
}

// SAFETY: as for the reservation, until this is dropped; its next user owns it alone.
unsafe impl Backing for Spare {
    fn base(&self) -> NonNull<u8> {
        self.reservation().base()
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        let usable = *self.usable.get_mut();
        if !SIMULATES.try_with(Cell::get).unwrap_or(false) || usable > USABLE_MOST {
            return;
        }
        let Some(reservation) = self.reservation.take() else {
            return;
        };
        // SAFETY: these bytes were made usable, and no reference to the memory remains.
        unsafe { reservation.base().write_bytes(0, usable as usize) };
        // Surplus reservations are unmapped here, the others when the thread ends.
        let _ended = KEPT.try_with(|kept| {
            if let Ok(mut kept) = kept.try_borrow_mut()
                && kept.len() < KEPT_MOST
            {
                kept.push(reservation);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 4 << 20;

    fn one() -> Spare {
        Spare::new(BYTES, BYTES, 4096).unwrap()
    }

    fn fill(spare: &Spare, bytes: u64) -> bool {
        spare.fill_with_zeros(bytes).unwrap();
        // SAFETY: usable, and owned here alone.
        let memory =
            unsafe { std::slice::from_raw_parts_mut(spare.base().as_ptr(), bytes as usize) };
        let was_zero = memory.iter().all(|byte| *byte == 0);
        memory.fill(7);
        was_zero
    }

    fn kept() -> usize {
        KEPT.with_borrow(Vec::len)
    }

    #[test]
    fn what_is_used_again_is_zero() {
        this_thread_simulates();
        let first = one();
        let at = first.base();
        assert!(fill(&first, USABLE_MOST));
        drop(first);
        assert_eq!(kept(), 1);
        let again = one();
        assert_eq!((again.base(), kept()), (at, 0));
        assert!(fill(&again, 4096) && fill(&one(), USABLE_MOST));
        drop(again);
        assert!(fill(&one(), USABLE_MOST));
    }

    #[test]
    fn only_what_is_small_and_simulated_is_kept() {
        drop(one());
        assert_eq!(kept(), 0);
        this_thread_simulates();
        let large = one();
        assert!(fill(&large, BYTES));
        drop(large);
        assert_eq!(kept(), 0);
        drop(one());
        assert!(Spare::new(BYTES / 2, BYTES / 2, 4096).is_ok());
        let all: Vec<Spare> = std::iter::repeat_with(one).take(2 * KEPT_MOST).collect();
        drop(all);
        assert_eq!(kept(), KEPT_MOST);
    }
}
