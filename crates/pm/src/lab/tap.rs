//! The events that a tap sees, and its answers.
//!
//! A tap is called before the event happens, and performs the event itself by calling `perform`. So it can
//! order the events of several threads: it records them in the order in which memory saw them. A tap that
//! answers a flush or a fence with `false` removes it from the program: so the lab finds flushes and fences
//! that no test would miss.

use crate::memory::region::Region;
use std::panic::Location;
use std::sync::Arc;

/// The source line of an event.
pub type Site = &'static Location<'static>;

/// A lane, or the superblock. A fence covers the flushes of its own actor alone.
pub type Actor = u32;

/// How bytes were stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// One aligned word: never torn, and kept in order with other word stores to its line.
    Word,
    /// As `Word`, but its loss is harmless, so no acknowledgement waits for it.
    Late,
    /// Several words through the cache: between two word stores to a line any of them may have arrived.
    Bulk,
    /// Whole lines past the cache: any of their words may have arrived before the actor's next fence, which
    /// covers them without a flush.
    Stream,
}

impl StoreKind {
    /// Whether one aligned word was stored.
    #[must_use]
    pub fn is_word(self) -> bool {
        matches!(self, StoreKind::Word | StoreKind::Late)
    }
}

/// Actor and source line.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Who.
    pub actor: Actor,
    /// Where.
    pub site: Site,
}

/// One event on persistent memory.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// `bytes` are stored at offset `at`.
    Store {
        /// Offset in the image.
        at: u64,
        /// What is stored.
        bytes: &'a [u8],
        /// How.
        kind: StoreKind,
    },
    /// The lines of `at .. at + bytes` are flushed.
    Flush {
        /// Offset in the image.
        at: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Everything the actor flushed or streamed is ordered before everything it stores later.
    Fence,
}

/// Performs a store; `false` if nothing was stored (a compare-and-swap found another word).
pub type Perform<'a> = &'a mut dyn FnMut() -> bool;

/// Is told of every event of a pool in memory. See the module text.
pub trait Tap: Send + Sync {
    /// A number for a new lane or superblock.
    fn actor(&self) -> Actor;

    /// An event is about to happen to `region`. For a store, `perform` does it, and the answer says whether
    /// it was done. For flushes and fences `perform` does nothing on persistent memory. On files the tap must
    /// call it, unless it answers `false`, which removes the event from the program.
    fn event(
        &self,
        region: &Region,
        source: Source,
        event: Event<'_>,
        perform: Perform<'_>,
    ) -> bool;

    /// A store to `at .. at + bytes` of `region` is about to happen. Called within the event, for taps that
    /// must first decide the old contents.
    fn before_store(&self, _region: &Region, _at: u64, _bytes: u64) {}

    /// A read of `at .. at + bytes` of `region` is about to happen.
    fn load(&self, region: &Region, at: u64, bytes: u64);
}

/// A tap, shared by a pool and its lanes.
pub(crate) type TapRef = Arc<dyn Tap>;
