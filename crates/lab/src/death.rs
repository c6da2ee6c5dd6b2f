//! The process dies in the middle of a call, on persistent memory: after so many events.
//!
//! The thread unwinds out of the engine, which goes on storing while it does so (destructors). So what the next
//! process finds is put aside at the moment of death.

use crate::image::Image;
use everdram_pm::Pool;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};

/// What a thread that dies panics with.
pub struct Died;

/// A death to come. None by default.
pub struct Death {
    /// Events until then; negative: never.
    events: AtomicI64,
    pool: Mutex<Weak<Pool>>,
    left: Mutex<Option<Image>>,
}

impl Default for Death {
    fn default() -> Death {
        Death {
            events: AtomicI64::new(-1),
            pool: Mutex::default(),
            left: Mutex::default(),
        }
    }
}

impl Death {
    /// After so many more events.
    pub fn after(&self, events: u32) {
        self.events.store(i64::from(events), Ordering::Relaxed);
    }

    /// Whose memory is left.
    pub fn of(&self, pool: &Arc<Pool>) {
        *self.pool.lock() = Arc::downgrade(pool);
    }

    /// What the next process finds.
    pub fn left(&self) -> Option<Image> {
        self.left.lock().take()
    }

    /// An event is about to happen; whether it does not, because the process is dead. What is left is put aside.
    pub(crate) fn comes(&self) -> bool {
        if self.events.load(Ordering::Relaxed) < 0
            || self.events.fetch_sub(1, Ordering::Relaxed) > 0
        {
            return false;
        }
        let Some(pool) = self.pool.lock().upgrade() else {
            return false;
        };
        let mut bytes = vec![0; pool.region().len() as usize];
        pool.region().load(0, &mut bytes);
        *self.left.lock() = Some(Image::Memory(bytes));
        true
    }
}
