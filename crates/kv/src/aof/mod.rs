//! The log of a lower tier: an append-only file that any Redis can read, in segments, read at random.
//!
//! The log knows no engine. Its owner appends states of keys in *batches* ([`Writer`]), makes a batch
//! durable, and keeps in its pool how far the log counts: the *settled* position. What lies behind it at
//! an open is cut off, and what lies before it must verify. Reads go by location, at any time and from
//! any thread ([`Log::read`]).
//!
//! Invariants:
//! - A segment's file and its line in the manifest are durable before an entry is written to it.
//! - The numbers of segments only grow, and no number is used twice. In one process the same holds for their
//!   slots in locations, so an old location never leads to another entry.
//! - The first sync that fails is the last write to the log (`everdram_pm::Shelf`).
//!
//! Paper: NDHedis (SAC 2019), sections 3.1 and 3.3: the append-only file of tier 2. `docs/engines.md` says
//! what is different.

mod digits;
mod entry;
mod expiries;
mod manifest;
mod open;
mod replay;
mod salvage;
mod segment;
mod spare;
mod worth;
mod writer;

pub(crate) use entry::{Entry, Order, Position, Said, removal_bytes};
pub(crate) use replay::{Part, Read};
pub(crate) use spare::has_room;
pub(crate) use worth::{Dirty, Worth};
pub(crate) use writer::Writer;

use crate::error::Error;
use crate::index::Location;
use crate::stats::LogFile;
use everdram_pm::{Secret, Shelf};
use manifest::Manifest;
use parking_lot::{Mutex, RwLock};
use segment::{HEAD, Segment};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The bit of a location that says that it lies in the log.
const BELOW: u64 = 1 << 39;
const SLOT_BITS: u32 = 17;
const OFFSET_BITS: u32 = 22;
/// Generations and numbers of segments are smaller: nobody counts so far, so one that is not was forged.
pub(crate) const NUMBER_END: u64 = 1 << 62;
/// Entries begin before this offset; a segment ends behind the one that passes it.
pub(crate) const SEGMENT_BYTES_MAX: u64 = entry::GRAIN << OFFSET_BITS;
/// Bytes of the first read of an entry.
const USUAL: usize = 512;
/// What to do about damage.
const REMEDY: &str = "`everdram check` lists all damage; restore the pool and its log from copies of one moment, or save \
     what verifies: `everdram export --salvage POOL FILE` writes it to a file, `everdram serve --salvage --pool POOL` \
     serves it read-only";

const _: () = {
    assert!(1 + SLOT_BITS + OFFSET_BITS == 40 && BELOW == 1 << (SLOT_BITS + OFFSET_BITS));
    assert!(HEAD < SEGMENT_BYTES_MAX && SEGMENT_BYTES_MAX == 64 << 20);
};

/// Whether a location lies in the log.
#[inline]
pub(crate) fn is_below(location: Location) -> bool {
    location.get() & BELOW != 0
}

/// What the owner's pool knows of its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Entries before this position count.
    pub(crate) settled: Position,
    /// The manifest had this generation then.
    pub(crate) generation: u64,
}

/// See the module text.
pub(crate) struct Log {
    shelf: Shelf,
    secret: Secret,
    incarnation: u64,
    segment_bytes: u64,
    /// By slot; `None`: removed.
    table: RwLock<Vec<Option<Arc<Segment>>>>,
    generation: AtomicU64,
    /// Greater than the number of any segment that there ever was.
    next: AtomicU64,
    /// Bytes of the spare; 0: there is none. See [`self::spare`].
    spare: AtomicU64,
    /// See [`Log::is_short`].
    short: AtomicBool,
    /// Segments behind the settled end, made before a crash.
    unsettled: bool,
    /// See [`Log::take_cut_off`].
    cut_off: Mutex<Vec<Error>>,
}

/// The file of a segment that has no name any more. Dropping it gives its room back to the disk, unless
/// somebody reads it still. That takes some 20 ms for 64 MiB.
pub(crate) struct Removed {
    _open: Option<Arc<Segment>>,
}

impl Log {
    fn new(shelf: Shelf, secret: &Secret, incarnation: u64, segment_bytes: u64) -> Log {
        Log {
            shelf,
            secret: secret.clone(),
            incarnation,
            segment_bytes: segment_bytes.min(SEGMENT_BYTES_MAX),
            table: RwLock::default(),
            generation: AtomicU64::new(0),
            next: AtomicU64::new(1),
            spare: AtomicU64::new(0),
            short: AtomicBool::new(false),
            unsettled: false,
            cut_off: Mutex::default(),
        }
    }

    /// The manifest's generation.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn refused(&self, why: &str) -> Error {
        Error::Options(format!("{}: {why}", self.shelf.path().display()))
    }

    /// Whether the log still takes writes.
    ///
    /// # Errors
    /// The first sync that failed.
    pub(crate) fn healthy(&self) -> Result<(), Error> {
        self.shelf.healthy().map_err(Error::of_pool)
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        self.shelf.names().map_err(Error::of_pool)
    }

    /// Enters an open segment into the table.
    fn enter(
        &self,
        number: u64,
        file: everdram_pm::ShelfFile,
        bytes: u64,
    ) -> Result<Arc<Segment>, Error> {
        let mut table = self.table.write();
        let slot = table.len() as u64;
        if slot >> SLOT_BITS != 0 {
            let what = "the log was written 8 TiB long since the store was opened; open it again";
            return Err(Error::NoSpace(what.into()));
        }
        let segment = Arc::new(Segment::new(number, slot, file, bytes));
        table.push(Some(Arc::clone(&segment)));
        Ok(segment)
    }

    /// Makes the file of a segment, durably, with room for so many bytes; the manifest does not have it yet.
    fn new_segment(&self, bytes: u64) -> Result<Arc<Segment>, Error> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = manifest::segment_name(number);
        let made = || {
            let file = self.shelf.create(&name)?;
            // A full disk shows here, and not in the middle of a batch.
            file.reserve(bytes)?;
            file.write_at(0, &segment::head(&self.secret, number, self.incarnation))?;
            file.sync()?;
            // The name, too: of the two names, a crash could keep the manifest's alone.
            self.shelf.sync()?;
            file.advise_random();
            Ok(file)
        };
        match made() {
            Ok(file) => self.enter(number, file, HEAD).inspect_err(|_| {
                let _ = self.shelf.unlink(&name);
            }),
            Err(error) => {
                // What cannot be removed is removed at the next open.
                let _ = self.shelf.unlink(&name);
                Err(Error::of_pool(error))
            }
        }
    }

    /// Removes a segment that the manifest does not have.
    fn forget(&self, segment: &Segment) {
        self.table.write()[segment.slot as usize] = None;
        // What cannot be removed is removed at the next open.
        let _ = self.shelf.unlink(&manifest::segment_name(segment.number));
    }

    /// Replaces the manifest, durably.
    fn write_manifest(&self, segments: &[u64]) -> Result<(), Error> {
        let manifest = Manifest {
            generation: self.generation() + 1,
            segments: segments.to_vec(),
        };
        let write = || {
            if self
                .shelf
                .names()?
                .iter()
                .any(|name| name == manifest::NEXT)
            {
                self.shelf.unlink(manifest::NEXT)?;
            }
            let file = self.shelf.create(manifest::NEXT)?;
            file.write_at(0, &manifest.to_bytes(&self.secret))?;
            file.sync()?;
            self.shelf.rename(manifest::NEXT, manifest::NAME)?;
            self.shelf.sync()
        };
        write().map_err(Error::of_pool)?;
        self.generation
            .store(manifest.generation, Ordering::Relaxed);
        Ok(())
    }

    /// The segments that exist, the oldest first.
    fn segments(&self) -> Vec<Arc<Segment>> {
        self.table.read().iter().flatten().map(Arc::clone).collect()
    }

    /// Removes a segment to which no entry of the owner's table leads. What made that so is durable.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub(crate) fn remove(&self, number: u64) -> Result<Removed, Error> {
        let segments = self.segments();
        let rest = segments.iter().map(|segment| segment.number);
        let rest: Vec<u64> = rest.filter(|other| *other != number).collect();
        self.with_spare(|| self.write_manifest(&rest))?;
        let is_removed = |segment: &Arc<Segment>| segment.number == number;
        let removed = segments.into_iter().find(is_removed);
        if let Some(segment) = &removed
            && let Some(place) = self.table.write().get_mut(segment.slot as usize)
        {
            *place = None;
        }
        let unlinked = self.shelf.unlink(&manifest::segment_name(number));
        unlinked.map_err(Error::of_pool)?;
        Ok(Removed { _open: removed })
    }

    /// Asks the system to have an entry in memory soon.
    pub(crate) fn will_need(&self, location: Location) {
        if let Some(segment) = self.segment_of(location) {
            segment.file.will_need(offset_of(location), USUAL as u64);
        }
    }

    /// The entry at a location; its bytes are left in `scratch`. `None`: its segment was removed since the
    /// owner's table led there, so the table leads elsewhere now.
    ///
    /// # Errors
    /// [`Error::Corrupt`] names the file and the offset. [`Error::Pool`].
    pub(crate) fn read(
        &self,
        location: Location,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Entry>, Error> {
        let Some(segment) = self.segment_of(location) else {
            return Ok(None);
        };
        let offset = offset_of(location);
        if scratch.len() < USUAL {
            scratch.resize(USUAL, 0);
        }
        let count = segment
            .file
            .read_some_at(offset, &mut scratch[..USUAL])
            .map_err(Error::of_pool)?;
        let length = entry::length(&scratch[..count]);
        if let Some(length) = length.filter(|length| *length > count) {
            // A damaged length must not cost more memory than the file has.
            let end = segment.file.len().map_err(Error::of_pool)?;
            if offset + length as u64 <= end {
                if scratch.len() < length {
                    scratch.resize(length, 0);
                }
                let rest = &mut scratch[count..length];
                segment
                    .file
                    .read_at(offset + count as u64, rest)
                    .map_err(Error::of_pool)?;
            }
        }
        match entry::parse(scratch, &self.secret, segment.at(offset)) {
            Some(entry) => Ok(Some(entry)),
            None => Err(self.damaged(
                segment.number,
                offset,
                "an entry of the log does not verify",
            )),
        }
    }

    fn segment_of(&self, location: Location) -> Option<Arc<Segment>> {
        debug_assert!(
            is_below(location),
            "a location in the pool is looked for in the log"
        );
        let slot = (location.get() & !BELOW) >> OFFSET_BITS;
        self.table.read().get(slot as usize)?.clone()
    }

    /// Counts an entry that is not its key's state any more.
    pub(crate) fn add_stale(&self, location: Location, bytes: u64) {
        if let Some(segment) = self.segment_of(location) {
            segment.stale.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts every entry as stale.
    pub(crate) fn all_stale(&self) {
        for segment in self.segments() {
            segment.stale.store(segment.use_of().0, Ordering::Relaxed);
        }
    }

    /// Bytes of all entries, stale ones among them, and the number of segments.
    pub(crate) fn use_of(&self) -> (u64, u64, u64) {
        let segments = self.segments();
        let uses = segments.iter().map(|segment| segment.use_of());
        let (bytes, stale) = uses.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (bytes, stale, segments.len() as u64)
    }

    /// All files, the oldest first.
    pub(crate) fn files(&self) -> Vec<LogFile> {
        let files = self.segments().into_iter().map(|segment| {
            let (bytes, stale) = segment.use_of();
            let removals = segment.removals.load(Ordering::Relaxed);
            LogFile {
                path: self.path_of(segment.number),
                bytes,
                stale_bytes: (stale + removals).min(bytes),
            }
        });
        files.collect()
    }

    fn damaged(&self, number: u64, offset: u64, what: &str) -> Error {
        Error::Corrupt {
            path: self.path_of(number),
            offset,
            what: what.into(),
            remedy: REMEDY,
        }
    }

    fn path_of(&self, number: u64) -> PathBuf {
        self.shelf.path().join(manifest::segment_name(number))
    }
}

/// The location of the entry at `offset` of the segment in `slot`.
fn location_of(slot: u64, offset: u64) -> Option<Location> {
    let units = offset / entry::GRAIN;
    debug_assert!(slot >> SLOT_BITS == 0 && offset.is_multiple_of(entry::GRAIN));
    match units >> OFFSET_BITS {
        0 => Location::new(BELOW | slot << OFFSET_BITS | units),
        _ => None,
    }
}

fn offset_of(location: Location) -> u64 {
    (location.get() & ((1 << OFFSET_BITS) - 1)) * entry::GRAIN
}
