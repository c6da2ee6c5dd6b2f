//! Taking a lock that is held across calls that another thread may have to go on for.
//!
//! Under the lab's scheduler one thread runs at a time, and may be stopped inside a call on the disk, with a
//! lock held. Whoever blocked on that lock would keep the holder from running; so it lets others run instead.

use parking_lot::{Mutex, MutexGuard};

/// Locks as [`Mutex::lock`] does; a thread that the lab schedules never blocks here.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(feature = "lab")]
    loop {
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
        if !crate::lab::waiting() {
            break;
        }
    }
    mutex.lock()
}
