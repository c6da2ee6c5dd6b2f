//! Emulated latency and bandwidth; off by default.

/// Adds modelled time to flushes, fences and reads.
#[derive(Debug, Clone)]
pub struct Delay {}

impl Delay {
    /// A read of `bytes` that missed the caches.
    pub(crate) fn read(&self, _bytes: u64) {}
    /// A flush of `lines` lines.
    pub(crate) fn flush(&self, _lines: u64) {}
    /// A fence.
    pub(crate) fn fence(&self) {}
}
