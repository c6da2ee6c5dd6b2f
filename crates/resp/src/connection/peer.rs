//! The part of a connection that other threads see: its identity, its state, and whether it must close.
//!
//! Its own event loop writes the counters after each turn, so CLIENT LIST may be a turn behind. A peer is in
//! the registry of `Shared` exactly as long as its connection is open.

use parking_lot::Mutex;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};
use std::time::Instant;

/// No command: the state of a connection before its first.
pub(crate) const NO_COMMAND: u32 = u32::MAX;

/// Names that a client gave itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
}

/// One open connection, as seen from outside.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: u64,
    pub(crate) address: String,
    pub(crate) local_address: String,
    pub(crate) is_unix: bool,
    pub(crate) descriptor: i32,
    /// Number of its event loop.
    pub(crate) worker: usize,
    pub(crate) since: Instant,
    pub(crate) names: Mutex<Names>,
    /// CLIENT KILL has closed it.
    pub(crate) killed: AtomicBool,
    pub(crate) no_evict: AtomicBool,
    pub(crate) no_touch: AtomicBool,
    pub(crate) resp3: AtomicBool,
    /// Commands queued since MULTI; -1 outside a transaction.
    pub(crate) queued: AtomicI64,
    /// Milliseconds after `since` at which it last sent something.
    pub(crate) active_ms: AtomicU64,
    pub(crate) query_bytes: AtomicU64,
    pub(crate) query_room: AtomicU64,
    pub(crate) output_bytes: AtomicU64,
    pub(crate) output_room: AtomicU64,
    /// Capacity of all its buffers.
    pub(crate) buffered: AtomicUsize,
    /// Number of the last command; see `command::by_number`.
    pub(crate) command: AtomicU32,
}

/// Origin of a connection, for [`Peer::new`].
pub(crate) struct Origin {
    pub(crate) address: String,
    pub(crate) local_address: String,
    pub(crate) is_unix: bool,
    pub(crate) descriptor: i32,
}

impl Peer {
    pub(crate) fn new(id: u64, worker: usize, origin: Origin) -> Self {
        Peer {
            id,
            address: origin.address,
            local_address: origin.local_address,
            is_unix: origin.is_unix,
            descriptor: origin.descriptor,
            worker,
            since: Instant::now(),
            names: Mutex::default(),
            killed: AtomicBool::new(false),
            no_evict: AtomicBool::new(false),
            no_touch: AtomicBool::new(false),
            resp3: AtomicBool::new(false),
            queued: AtomicI64::new(-1),
            active_ms: AtomicU64::new(0),
            query_bytes: AtomicU64::new(0),
            query_room: AtomicU64::new(0),
            output_bytes: AtomicU64::new(0),
            output_room: AtomicU64::new(0),
            buffered: AtomicUsize::new(0),
            command: AtomicU32::new(NO_COMMAND),
        }
    }

    pub(crate) fn touch(&self, now: Instant) {
        let since = now.saturating_duration_since(self.since).as_millis();
        self.active_ms
            .store(u64::try_from(since).unwrap_or(u64::MAX), Relaxed);
    }

    /// Seconds since it connected, and since it last sent something.
    pub(crate) fn age_and_idle_s(&self) -> (u64, u64) {
        let age_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        (
            age_ms / 1000,
            age_ms.saturating_sub(self.active_ms.load(Relaxed)) / 1000,
        )
    }

    /// RESET clears the name and the modes, not the identity.
    pub(crate) fn reset(&self) {
        self.names.lock().name.clear();
        self.no_evict.store(false, Relaxed);
        self.no_touch.store(false, Relaxed);
        self.resp3.store(false, Relaxed);
        self.queued.store(-1, Relaxed);
    }

    /// As CLIENT LIST shows them.
    pub(crate) fn flags(&self) -> String {
        let mut flags = String::new();
        if self.is_unix {
            flags.push('U');
        }
        if self.queued.load(Relaxed) >= 0 {
            flags.push('x');
        }
        if self.no_evict.load(Relaxed) {
            flags.push('e');
        }
        if self.no_touch.load(Relaxed) {
            flags.push('T');
        }
        if flags.is_empty() {
            flags.push('N');
        }
        flags
    }
}
