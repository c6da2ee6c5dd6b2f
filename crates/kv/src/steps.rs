//! A clock between the steps of a write: how long writers of this process spent in each, all together; of
//! `dstore` for table 3 of its paper, of `viper` for figures 2 and 7 of RDMP-KV's. Only a build with the
//! feature `steps` has it; in others it is nothing, and costs nothing. A look at the clock takes some 25 ns.

/// A step of a write.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// Room for slot, cells and blocks, the new slot, and the copy of the value ([`Step::Stage`] is within).
    Prepare,
    /// The value is copied and summed.
    Stage,
    /// The same, before the key is looked up.
    Ahead,
    /// Blocks are written, and the write is made durable.
    Data,
    /// Records are appended to a log, and fenced.
    Log,
    /// A fenced write is shown: its slot, the index and the order of keys.
    Show,
    /// The index and the order of keys are changed ([`Step::Show`] has it, too).
    Order,
    /// `viper`: room for a record, or blocks for a long value.
    Room,
    /// `viper`: a record, or the pieces of a long value, are summed and stored.
    Store,
    /// `viper`: what was stored is fenced.
    Fence,
    /// `viper`: the old record is looked up, and the index changed.
    Index,
}

#[cfg(not(feature = "steps"))]
mod clock {
    /// No clock.
    #[derive(Clone, Copy)]
    pub(crate) struct Begun;

    #[inline(always)]
    pub(crate) fn begin() -> Begun {
        Begun
    }

    impl Begun {
        #[inline(always)]
        pub(crate) fn end(self, _: super::Step) {}
    }
}

#[cfg(feature = "steps")]
mod clock {
    use super::Step;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Instant;

    /// Nanoseconds, by [`Step`].
    static SPENT: [AtomicU64; 11] = [const { AtomicU64::new(0) }; 11];
    /// Writes shown.
    static WRITES: AtomicU64 = AtomicU64::new(0);

    /// When a step began.
    #[derive(Clone, Copy)]
    pub(crate) struct Begun(Instant);

    #[inline]
    pub(crate) fn begin() -> Begun {
        Begun(Instant::now())
    }

    impl Begun {
        pub(crate) fn end(self, step: Step) {
            let ns = u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX);
            SPENT[step as usize].fetch_add(ns, Relaxed);
            if matches!(step, Step::Show) {
                WRITES.fetch_add(1, Relaxed);
            }
        }
    }

    /// What the writes of this process have taken so far, in nanoseconds.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Taken {
        /// Writes.
        pub writes: u64,
        /// Blocks written and made durable.
        pub data_ns: u64,
        /// Values copied and summed.
        pub stage_ns: u64,
        /// Room taken, and slots stored.
        pub metadata_ns: u64,
        /// Index and order of keys changed, of new and removed objects.
        pub order_ns: u64,
        /// Records appended to logs, and fenced.
        pub log_ns: u64,
        /// `viper`: room taken.
        pub room_ns: u64,
        /// `viper`: records and pieces summed and stored.
        pub store_ns: u64,
        /// `viper`: fences.
        pub fence_ns: u64,
        /// `viper`: old records looked up, and the index changed.
        pub index_ns: u64,
    }

    /// So far. Between steps only: of a write under way, some steps are counted and others not yet.
    #[must_use]
    pub fn taken() -> Taken {
        let spent = |step: Step| SPENT[step as usize].load(Relaxed);
        let [stage_ns, order_ns] = [spent(Step::Stage), spent(Step::Order)];
        let room_ns = spent(Step::Prepare).saturating_sub(stage_ns);
        Taken {
            writes: WRITES.load(Relaxed),
            data_ns: spent(Step::Data),
            stage_ns: stage_ns + spent(Step::Ahead),
            metadata_ns: room_ns + spent(Step::Show).saturating_sub(order_ns),
            order_ns,
            log_ns: spent(Step::Log),
            room_ns: spent(Step::Room),
            store_ns: spent(Step::Store),
            fence_ns: spent(Step::Fence),
            index_ns: spent(Step::Index),
        }
    }

    impl Taken {
        /// What came after an earlier look.
        #[must_use]
        pub fn since(self, before: Taken) -> Taken {
            Taken {
                writes: self.writes.saturating_sub(before.writes),
                data_ns: self.data_ns.saturating_sub(before.data_ns),
                stage_ns: self.stage_ns.saturating_sub(before.stage_ns),
                metadata_ns: self.metadata_ns.saturating_sub(before.metadata_ns),
                order_ns: self.order_ns.saturating_sub(before.order_ns),
                log_ns: self.log_ns.saturating_sub(before.log_ns),
                room_ns: self.room_ns.saturating_sub(before.room_ns),
                store_ns: self.store_ns.saturating_sub(before.store_ns),
                fence_ns: self.fence_ns.saturating_sub(before.fence_ns),
                index_ns: self.index_ns.saturating_sub(before.index_ns),
            }
        }
    }
}

pub(crate) use clock::begin;
#[cfg(feature = "steps")]
pub use clock::{Taken, taken};
