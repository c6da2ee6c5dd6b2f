//! What a tap hears, and what it may say.
//!
//! A tap is called before the event happens. It makes the event happen itself, by calling what it was given,
//! so that it can put events of several threads into one order: what it records is then the order in which
//! memory saw them. A tap that answers a flush or a fence with `false` takes it out of the program: that is
//! how the lab finds flushes and fences that no test would miss.

use crate::memory::region::Region;
use std::panic::Location;
use std::sync::Arc;

/// Where in the source an event was asked for.
pub type Site = &'static Location<'static>;

/// Who asks: a lane, or the superblock. A fence covers the flushes of its own actor alone.
pub type Actor = u32;

/// How bytes were stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// One aligned word: never torn, and kept in order with other word stores to its line.
    Word,
    /// As `Word`; harmless to lose, so that no acknowledgement waits for it.
    Late,
    /// Several words through the cache: between two word stores of a line any of them may be there.
    Bulk,
    /// Whole lines past the cache: any of their words may be there until the actor's next fence, which
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

/// Who asks, and where.
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

/// Makes a store happen; `false` if it does not (a compare-and-swap that found another word).
pub type Perform<'a> = &'a mut dyn FnMut() -> bool;

/// Hears every event of a pool in memory. See the module text.
pub trait Tap: Send + Sync {
    /// A new lane, or superblock, wants a name.
    fn actor(&self) -> Actor;

    /// An event is about to happen to `region`. A store happens by `perform`; the answer says whether it did.
    /// For flushes and fences `perform` does nothing on persistent memory and must be called on files unless
    /// the answer is `false`, which takes the event out of the program.
    fn event(
        &self,
        region: &Region,
        source: Source,
        event: Event<'_>,
        perform: Perform<'_>,
    ) -> bool;

    /// Somebody is about to store to `at .. at + bytes` of `region`: comes within the event, for those who
    /// have to decide first what was there.
    fn before_store(&self, _region: &Region, _at: u64, _bytes: u64) {}

    /// Somebody is about to read `at .. at + bytes` of `region`.
    fn load(&self, region: &Region, at: u64, bytes: u64);
}

/// A tap, shared by a pool and its lanes.
pub(crate) type TapRef = Arc<dyn Tap>;
