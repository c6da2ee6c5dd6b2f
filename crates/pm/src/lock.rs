//! Takes a lock that a thread of the lab may hold while it is stopped.
//!
//! The lab's scheduler runs one thread at a time, and may stop one inside a call on the disk, with a lock
//! held. A thread that blocked on that lock would keep the holder from running; so it lets others run
//! instead.

use parking_lot::{Mutex, MutexGuard};

/// Locks as [`Mutex::lock`] does; a thread under the lab's scheduler never blocks here.
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
