//! The death of a process within a call, before an event that is given by its number. On persistent memory
//! events are stores, flushes and fences; on files they are calls of the disk.
//!
//! On memory, each thread of the dead process unwinds out of the engine. Destructors may store while it does.
//! On files a thread cannot unwind: a log whose writer is gone would wait for it for ever. There every call
//! of the disk fails, and the thread stops at the end of its call. Nothing after the death counts: it is not
//! recorded, and the next process gets a copy of the memory from the moment of death.

use crate::medium::image::Medium;
use everdram_pm::Region;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// The payload with which threads of a dead process unwind.
struct Died;

/// Runs `body`. Returns `None` if the process dies meanwhile.
pub fn mortal<T>(body: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(done) => Some(done),
        Err(panic) if panic.is::<Died>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// Runs destructors of a process that died, on a thread that lives on. Their panics are ignored: the process
/// may have died between any two steps, so its assertions need not hold.
pub fn surviving(body: impl FnOnce()) {
    let _panic = catch_unwind(AssertUnwindSafe(body));
}

/// When the process dies. By default it does not.
pub struct Death {
    /// Events until then. Negative: never.
    events: AtomicI64,
    /// Whether calls of the disk are counted, and not events on memory.
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
    /// The process will die after so many more events on a medium.
    pub fn after(&self, medium: Medium, events: u32) {
        self.on_disk.store(medium == Medium::File, Ordering::SeqCst);
        self.events.store(i64::from(events), Ordering::SeqCst);
    }

    /// Whether the process is dead.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// The next process begins. Returns the memory at the moment of death, if that was an event on memory.
    pub fn bury(&self) -> Option<Vec<u8>> {
        self.over.store(false, Ordering::SeqCst);
        self.left.lock().take()
    }

    /// Called before an event on `memory`, or on the disk. Returns whether it happens; as
    /// [`Death::is_alive`].
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

    /// Whether the process lives. If it died on memory, the calling thread unwinds, unless it does so
    /// already.
    pub(crate) fn is_alive(&self) -> bool {
        if !self.on_disk.load(Ordering::SeqCst) {
            self.stop();
        }
        !self.is_over()
    }

    /// Unwinds the calling thread if the process is dead, unless it unwinds already.
    pub(crate) fn stop(&self) {
        if self.is_over() && !std::thread::panicking() {
            // Without the panic hook: this is no failure.
            resume_unwind(Box::new(Died));
        }
    }
}
