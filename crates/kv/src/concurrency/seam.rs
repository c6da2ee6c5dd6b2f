//! Where threads of the crash lab change places besides at stores, flushes, fences and waits.

/// Stands before each store to DRAM that publishes something: an index entry, a stamp, a free block, a lock
/// given back, a note of a mark. The lab's scheduler may let another thread come first; outside the lab it is
/// nothing. Whoever stands here holds no lock that others block on without saying so.
macro_rules! publishes {
    () => {
        #[cfg(feature = "lab")]
        everdram_pm::lab::step();
    };
}

/// Stands between two looks of a read, where another thread may have changed what the first one has shown.
/// The same as `publishes!`, for readers: they stay in the store while others go on.
macro_rules! looks {
    () => {
        #[cfg(feature = "lab")]
        everdram_pm::lab::step();
    };
}

/// How many things are done at once where more are only faster: that many, and fewer in some runs of the lab,
/// whose workloads are so short that nothing else would happen in the middle of what takes hundreds of them.
macro_rules! few {
    ($most:expr) => {{
        #[cfg(feature = "lab")]
        let most = everdram_pm::lab::few($most);
        #[cfg(not(feature = "lab"))]
        let most = $most;
        most
    }};
}

pub(crate) use {few, looks, publishes};
