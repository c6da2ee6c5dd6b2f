//! Numbers of fences: debug builds detect a publication before its fence by them.

/// Which fence of which lane. Empty except in debug builds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FenceNumber {
    #[cfg(debug_assertions)]
    lane: u64,
    #[cfg(debug_assertions)]
    number: u64,
}

impl FenceNumber {
    /// Of a new lane, before its first fence.
    pub(crate) fn first() -> FenceNumber {
        #[cfg(debug_assertions)]
        static LANES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        FenceNumber {
            #[cfg(debug_assertions)]
            lane: LANES.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            #[cfg(debug_assertions)]
            number: 0,
        }
    }

    /// Of no lane.
    pub(crate) const fn found() -> FenceNumber {
        FenceNumber {
            #[cfg(debug_assertions)]
            lane: 0,
            #[cfg(debug_assertions)]
            number: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn next(self) -> FenceNumber {
        FenceNumber {
            #[cfg(debug_assertions)]
            lane: self.lane,
            #[cfg(debug_assertions)]
            number: self.number + 1,
        }
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn assert_covers(self, written: FenceNumber) {
        #[cfg(debug_assertions)]
        assert!(
            written.lane == self.lane && written.number <= self.number,
            "published before its fence: {written:?} after {self:?}"
        );
        #[cfg(not(debug_assertions))]
        let FenceNumber {} = written;
    }
}
