//! The process dies in the middle of a call: before one of its events, after so many. On persistent memory
//! the events are stores, flushes and fences; on files they are what is asked of the disk.
//!
//! On memory a thread that dies unwinds out of the engine, which goes on storing while it does so
//! (destructors). On files it cannot: a log that its writer unwinds out of waits for him for good. There
//! everything that is asked of the disk fails, and the thread stops where its call ends. None of what comes
//! after death happened: nothing is heard of it, and what the next process finds in memory is put aside.
//! Other threads stop in the same way.

use crate::medium::image::Medium;
use everdram_pm::Region;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// What a thread that dies unwinds with.
struct Died;

/// Runs `body`; `None` if it is unwound because the process dies.
pub fn mortal<T>(body: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(done) => Some(done),
        Err(panic) if panic.is::<Died>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// Runs what is left to do of a process that died, on a thread that lives on. It may have died between any
/// two steps: what it finds wrong with itself then says nothing.
pub fn surviving(body: impl FnOnce()) {
    let _panic = catch_unwind(AssertUnwindSafe(body));
}

/// A death to come. None by default.
pub struct Death {
    /// Events until then; negative: never.
    events: AtomicI64,
    /// Whether events are those of the disk.
    on_disk: AtomicBool,
    /// Whether the process is dead.
    over: AtomicBool,
    left: Mutex<Option<Vec<u8>>>,
}

impl Default for Death {
    fn default() -> Death {
        Death {
            events: AtomicI64::new(-1),
            on_disk: AtomicBool::new(false),
            over: AtomicBool::new(false),
            left: Mutex::default(),
        }
    }
}

impl Death {
    /// After so many more events on a medium.
    pub fn after(&self, medium: Medium, events: u32) {
        self.on_disk.store(medium == Medium::File, Ordering::SeqCst);
        self.events.store(i64::from(events), Ordering::SeqCst);
    }

    /// Whether the process is dead.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// The next process lives. Returns what it finds in memory, if the old one died of an event there.
    pub fn bury(&self) -> Option<Vec<u8>> {
        self.over.store(false, Ordering::SeqCst);
        self.left.lock().take()
    }

    /// An event is about to happen to `memory`, or to the disk; whether it does. As [`Death::is_alive`].
    pub(crate) fn spares(&self, memory: Option<&Region>) -> bool {
        if !self.is_over() && self.comes(memory.is_none()) {
            *self.left.lock() = memory.map(Region::snapshot);
            self.over.store(true, Ordering::SeqCst);
        }
        self.is_alive()
    }

    fn comes(&self, on_disk: bool) -> bool {
        self.on_disk.load(Ordering::SeqCst) == on_disk
            && self.events.load(Ordering::SeqCst) >= 0
            && self.events.fetch_sub(1, Ordering::SeqCst) == 0
    }

    /// Whether the process lives. If it died on memory this does not come back, unless to a thread that is
    /// dying.
    pub(crate) fn is_alive(&self) -> bool {
        if !self.on_disk.load(Ordering::SeqCst) {
            self.stop();
        }
        !self.is_over()
    }

    /// No thread of a dead process comes back from here, unless it is dying.
    pub(crate) fn stop(&self) {
        if self.is_over() && !std::thread::panicking() {
            // Nobody has to be told of it.
            resume_unwind(Box::new(Died));
        }
    }
}
