//! Where threads of the crash lab change places besides at stores, flushes, fences and waits.

/// Stands before each store to DRAM that publishes something: an index entry, a stamp, a free block, a lock given back, a
/// note of a mark. The lab's scheduler may let another thread come first; outside the lab it is nothing. Whoever
/// stands here holds no lock that others block on without saying so.
macro_rules! publishes {
    () => {
        #[cfg(feature = "lab")]
        everdram_pm::lab::step();
    };
}

pub(crate) use publishes;
