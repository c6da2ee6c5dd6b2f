//! DIPPER: decoupled, in-memory and parallel persistence (DStore, HPDC 2021, section 3). It makes any set of
//! DRAM structures persistent.
//!
//! The structures are a *machine*, whose memory is a few segments of words in DRAM. Whoever changes it logs
//! the change first ([`crate::crl`]), and shows it in DRAM after the fence. Persistent memory holds a
//! *shadow*: a copy of the same segments, some time behind. When the logs are half full, a checkpoint replays
//! them on the shadow, in the background: it reads logs and shadow, and neither looks at the segments in DRAM
//! nor stops those who change them.
//!
//! ```text
//!   sessions ── entry, fence ──▶ logs ── replay, by the machine ──▶ shadow ── root, heads ──▶ ledger
//!       └────── store ──▶ segments in DRAM                            ▲ at a start: copy, replay
//! ```
//!
//! The shadow consists of pages that are never changed in place. A checkpoint writes changed pages to free
//! places, fences them, and switches the root. The root lies in the ledger of the logs, so one record
//! switches root and heads (hole D8). A checkpoint goes in *pieces*, each with a ledger of its own: a ledger
//! between two pieces has the new root and the old heads, and replaying entries again changes nothing. So a
//! checkpoint needs a bounded number of free pages, however much has changed.
//!
//! This module knows nothing of what the segments mean. The engine `dstore` is one machine; the tests have a
//! smaller one.
//!
//! Rules for a machine:
//! - A change names an *object* and has an LSN, which grows with each change of the object. Changes of
//!   different objects commute (section 3.7), because no two objects' changes in the logs name one place.
//! - `apply` does nothing for changes that the space has already.
//! - Nothing but the entries and the space decides what `apply` does (D12).

mod checkpoint;
mod recover;
mod shadow;
#[cfg(test)]
mod tests;

use crate::concurrency::shares::share_out;
use crate::crl::Entry;
use crate::error::Error;
use everdram_pm::prefetch;

pub(crate) use checkpoint::Dipper;
pub(crate) use recover::Found;
pub(crate) use shadow::{Shadow, ShadowShape};

/// What is made persistent.
pub(crate) trait Machine: Send + Sync {
    /// What the machine needs to know of a change, besides its object, LSN and bytes.
    type Change: Copy + Send + Sync;

    /// Whether a writer can have written this entry.
    fn is_sound(&self, entry: &Entry<'_>) -> bool;

    /// Collects the changes of an entry.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    fn read(&self, entry: &Entry<'_>, into: &mut Collected<Self::Change>) -> Result<(), Error>;

    /// An entry does not verify, or is impossible, and later ones are sound. A machine that is being salvaged
    /// notes what it lacks.
    ///
    /// # Errors
    /// The given one: recovery refuses.
    fn lose(&self, error: Error, _lost: &Entry<'_>) -> Result<(), Error> {
        Err(error)
    }

    /// The first entry that a log ever had does not verify. A crash may have torn it.
    fn begins_torn(&self, _at: u64) {}

    /// Applies changes of one object, in the order of their LSNs, unless the space has them already.
    ///
    /// # Errors
    /// Those of the space; [`Error::Corrupt`], without the path.
    fn apply<S: Space>(
        &self,
        space: &mut S,
        changes: Changes<'_, Self::Change>,
    ) -> Result<(), Error>;
}

/// Segments of words: those in DRAM, or their shadow. The same code changes both (section 3.3).
pub(crate) trait Space {
    /// The word at byte `at` of a segment; 0 where nothing was stored.
    ///
    /// # Errors
    /// The page cannot be read.
    fn load(&mut self, segment: usize, at: u64) -> Result<u64, Error>;

    /// Stores whole words at byte `at`, a multiple of 8.
    ///
    /// # Errors
    /// The page cannot be read, or there is no memory.
    fn store(&mut self, segment: usize, at: u64, bytes: &[u8]) -> Result<(), Error>;
}

/// Bytes of a buffer of changes, unless one change has more.
const BUFFER_BYTES: usize = 64 << 10;
/// Changes whose bytes are fetched ahead.
const AHEAD: usize = 8;

/// A change that was read from a log.
#[derive(Clone, Copy, Debug)]
struct Item<C> {
    object: u64,
    lsn: u64,
    change: C,
    /// Where its bytes are.
    buffer: u32,
    bytes: u32,
    from: usize,
}

impl<C> Item<C> {
    fn own<'a>(&self, buffers: &[&'a [u8]]) -> &'a [u8] {
        let buffer = buffers.get(self.buffer as usize);
        let own = self.from..self.from + self.bytes as usize;
        match buffer.and_then(|buffer| buffer.get(own)) {
            Some(own) => own,
            None => unreachable!("the bytes of a change were not collected"),
        }
    }
}

/// Changes read from logs, with their bytes.
#[derive(Debug)]
pub(crate) struct Collected<C> {
    items: Vec<Item<C>>,
    /// The bytes of the changes. A buffer does not move when another one is full.
    buffers: Vec<Vec<u8>>,
    /// Changes with LSNs up to this one do not count.
    floor: u64,
}

impl<C> Default for Collected<C> {
    fn default() -> Collected<C> {
        Collected {
            items: Vec::new(),
            buffers: Vec::new(),
            floor: 0,
        }
    }
}

impl<C: Copy> Collected<C> {
    /// Adds a change of an object.
    pub(crate) fn push(&mut self, object: u64, lsn: u64, change: C, bytes: &[u8]) {
        let has_room = |buffer: &Vec<u8>| buffer.capacity() - buffer.len() >= bytes.len();
        if !self.buffers.last().is_some_and(has_room) {
            self.buffers
                .push(Vec::with_capacity(BUFFER_BYTES.max(bytes.len())));
        }
        let number = self.buffers.len() as u32 - 1;
        let Some(buffer) = self.buffers.last_mut() else {
            unreachable!("there is a buffer with room");
        };
        self.items.push(Item {
            object,
            lsn,
            change,
            buffer: number,
            bytes: bytes.len() as u32,
            from: buffer.len(),
        });
        buffer.extend_from_slice(bytes);
    }

    /// Everything that was changed up to this LSN, of any object, is gone. The root keeps it.
    pub(crate) fn raise_floor(&mut self, lsn: u64) {
        self.floor = self.floor.max(lsn);
    }

    /// Calls `each` with the changes of one object after the other, in ascending order. Changes up to `floor`
    /// are left out: what they name may have been given to other objects.
    fn by_object(
        &mut self,
        floor: u64,
        each: impl FnMut(Changes<'_, C>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.items.retain(|item| item.lsn > floor);
        let buffers: Vec<&[u8]> = self.buffers.iter().map(Vec::as_slice).collect();
        one_by_one(&mut self.items, &buffers, &|_| {}, each)
    }

    fn clear(&mut self) {
        self.items.clear();
        self.buffers.truncate(1);
        self.buffers.iter_mut().for_each(Vec::clear);
    }

    /// Changes collected.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }
}

/// As [`Collected::by_object`], of what several threads have collected, on several threads, each with objects
/// of its own. Calls `approach` with an object a while before.
fn by_object_together<C: Copy + Send + Sync>(
    parts: &[Collected<C>],
    threads: usize,
    floor: u64,
    approach: &(dyn Fn(u64) + Sync),
    each: impl Fn(Changes<'_, C>) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let mut buffers: Vec<&[u8]> = Vec::new();
    let mut firsts = Vec::new();
    for part in parts {
        firsts.push(buffers.len() as u32);
        buffers.extend(part.buffers.iter().map(Vec::as_slice));
    }
    // Neighbours together: they share pages.
    let thread_of = |object: u64| (object / 64) as usize % threads;
    let apply = |number: usize| {
        let mut items: Vec<Item<C>> = Vec::new();
        for (part, first) in parts.iter().zip(&firsts) {
            let is_own = |item: &&Item<C>| item.lsn > floor && thread_of(item.object) == number;
            let own = part.items.iter().filter(is_own);
            items.extend(own.map(|item| Item {
                buffer: item.buffer + first,
                ..*item
            }));
        }
        one_by_one(&mut items, &buffers, approach, &each)
    };
    share_out(threads, threads, apply).map(drop)
}

/// Calls `each` with the changes of one object after the other, in ascending order.
fn one_by_one<C: Copy>(
    items: &mut [Item<C>],
    buffers: &[&[u8]],
    approach: &(dyn Fn(u64) + Sync),
    mut each: impl FnMut(Changes<'_, C>) -> Result<(), Error>,
) -> Result<(), Error> {
    items.sort_unstable_by_key(|item| (item.object, item.lsn));
    let mut at = 0;
    while let Some(first) = items.get(at) {
        let same = items[at..].iter();
        let count = same.take_while(|item| item.object == first.object).count();
        for item in items.iter().skip(at + AHEAD).take(count) {
            approach(item.object);
            prefetch(item.own(buffers));
        }
        let items = &items[at..at + count];
        each(Changes { items, buffers })?;
        at += count;
    }
    Ok(())
}

/// Changes of one object, at least one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changes<'a, C> {
    items: &'a [Item<C>],
    buffers: &'a [&'a [u8]],
}

impl<'a, C: Copy> Changes<'a, C> {
    /// The object.
    pub(crate) fn object(&self) -> u64 {
        self.items.first().map_or(0, |item| item.object)
    }

    /// LSN, change and bytes of each, in the order of LSNs.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, C, &'a [u8])> + use<'a, C> {
        let buffers = self.buffers;
        let items = self.items.iter();
        items.map(move |item| (item.lsn, item.change, item.own(buffers)))
    }
}
