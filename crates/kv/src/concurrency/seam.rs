//! Extra points where the crash lab may switch threads, besides stores, flushes, fences and waits.

/// Marks a store to DRAM that publishes something: an index entry, a stamp, a free block, an unlock, a note
/// of a mark. The lab's scheduler may run another thread first; outside the lab this is empty. The caller
/// must hold no lock on which other threads block without telling the scheduler.
macro_rules! publishes {
    () => {
        #[cfg(feature = "lab")]
        everdram_pm::lab::step();
    };
}

/// Marks a gap between two loads of a read, where another thread may change what the first one has shown.
/// Like `publishes!`, for readers, which stay in the store while others continue.
macro_rules! looks {
    () => {
        #[cfg(feature = "lab")]
        everdram_pm::lab::step();
    };
}

/// How many things to do at once, where more are only faster: `most`, and fewer in some runs of the lab. Its
/// workloads are short, so nothing would happen in the middle of a step of hundreds.
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
