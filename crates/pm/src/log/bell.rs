//! A bell that wakes one thread: ringing it twice before that thread listens is ringing it once.
//!
//! No ring is lost: whoever finds the bell rung already does not ring, and then the listener, which has not
//! silenced it yet, must see what that caller had done before. Each side writes one word and then reads the
//! other's, so each needs a fence between the two. An exchange is none: on AArch64 a load that follows may be
//! done before the exchange's store is seen.

use rustix::thread::futex::{self, Flags, Timespec};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

const SILENT: u32 = 0;
const RUNG: u32 = 1;

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Bell {
    word: AtomicU32,
}

impl Bell {
    /// Wakes the listener, now or when it listens next. Cheap if the bell was rung already.
    #[inline]
    pub(super) fn ring(&self) {
        // What the caller did before is visible to a listener that silences the bell after this look at it.
        // The other half is in `silence`.
        fence(Ordering::SeqCst);
        if self.word.load(Ordering::SeqCst) == SILENT
            && self.word.swap(RUNG, Ordering::SeqCst) == SILENT
        {
            // Waking nobody is fine, and the call has no other way to fail on a valid address.
            let _ = futex::wake(&self.word, Flags::PRIVATE, 1);
        }
    }

    /// Blocks until the bell is rung or the time is over; silences it.
    pub(super) fn listen(&self, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if self.word.load(Ordering::SeqCst) == SILENT {
            // Whether it was rung, timed out or interrupted: the caller looks at the state anyway.
            let _ = futex::wait(&self.word, Flags::PRIVATE, SILENT, timeout.as_ref());
        }
        self.silence();
    }

    /// Silences the bell; whether it was rung.
    pub(super) fn silence(&self) -> bool {
        let rung = self.word.swap(SILENT, Ordering::SeqCst) == RUNG;
        // What the listener reads from here on is no older than what a caller did who found the bell rung
        // before.
        fence(Ordering::SeqCst);
        rung
    }
}
