//! A bell that wakes one thread: two rings before that thread listens count as one.
//!
//! No ring is lost. A caller that finds the bell rung already does not ring, so the listener, which has not
//! silenced it yet, must see everything that caller did before. Each side writes one word and then reads the
//! other's, so each needs a fence between the two. An exchange is no fence: on AArch64 a later load may
//! happen before the exchange's store is visible.

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
    /// Wakes the listener, now or when it listens next. Cheap if the bell is rung already.
    #[inline]
    pub(super) fn ring(&self) {
        // What the caller did before is visible to a listener that silences the bell after this load.
        // `silence` has the other half.
        fence(Ordering::SeqCst);
        if self.word.load(Ordering::SeqCst) == SILENT
            && self.word.swap(RUNG, Ordering::SeqCst) == SILENT
        {
            // If no thread waits, nothing happens; on a valid address the call has no other way to fail.
            let _ = futex::wake(&self.word, Flags::PRIVATE, 1);
        }
    }

    /// Blocks until the bell is rung or the timeout is over, then silences it.
    pub(super) fn listen(&self, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if self.word.load(Ordering::SeqCst) == SILENT {
            // Rung, timed out or interrupted: the caller checks the state in each case.
            let _ = futex::wait(&self.word, Flags::PRIVATE, SILENT, timeout.as_ref());
        }
        self.silence();
    }

    /// Silences the bell; returns whether it was rung.
    pub(super) fn silence(&self) -> bool {
        let rung = self.word.swap(SILENT, Ordering::SeqCst) == RUNG;
        // Loads of the listener from here on see everything that a caller did before it found the bell rung.
        fence(Ordering::SeqCst);
        rung
    }
}
