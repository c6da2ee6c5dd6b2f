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
mod manifest;
mod replay;
mod segment;
mod writer;

pub(crate) use entry::{Entry, Order, Position, Said};
pub(crate) use replay::{Part, Read};
pub(crate) use writer::Writer;

use crate::error::Error;
use crate::index::Location;
use crate::stats::LogFile;
use everdram_pm::{Secret, Shelf};
use manifest::Manifest;
use parking_lot::{Mutex, RwLock};
use segment::{HEAD, SEAL, Segment, parse_head};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bit of a location that says that it lies in the log.
const BELOW: u64 = 1 << 39;
const SLOT_BITS: u32 = 17;
const OFFSET_BITS: u32 = 22;
/// Generations and numbers of segments are smaller: nobody counts so far, so one that is not was forged.
pub(crate) const NUMBER_END: u64 = 1 << 62;
/// Entries begin before this offset; a segment ends behind the one that passes it.
pub(crate) const SEGMENT_BYTES_MAX: u64 = entry::GRAIN << OFFSET_BITS;
/// A manifest is smaller: it has a line for each of at most 2^17 segments.
const WHOLE_MAX: u64 = 16 << 20;
/// Bytes of the first read of an entry.
const USUAL: usize = 512;
/// What to do about damage.
const REMEDY: &str =
    "`everdram check` lists all damage; restore the pool and its log from copies of one moment";

const _: () = {
    assert!(1 + SLOT_BITS + OFFSET_BITS == 40 && BELOW == 1 << (SLOT_BITS + OFFSET_BITS));
    assert!(HEAD < SEGMENT_BYTES_MAX && SEGMENT_BYTES_MAX == 64 << 20);
};

/// Whether a location lies in the log.
#[inline]
pub(crate) fn is_below(location: Location) -> bool {
    location.get() & BELOW != 0
}

/// Share of garbage from which a segment costs nothing to clean.
const NEARLY_ALL: f64 = 0.95;
/// Share of removals in the log from which the oldest segments are cleaned, whatever is in them.
const REMOVALS: f64 = 0.25;

/// When cleaning is worth it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Worth {
    /// As long as more than this share of the log's bytes is garbage.
    All(f64),
    /// As long as more than this share of a segment's bytes is garbage, or one of its entries has expired.
    Each(f64),
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
    /// Segments behind the settled end, made before a crash.
    unsettled: bool,
    /// See [`Log::take_cut_off`].
    cut_off: Mutex<Vec<Error>>,
}

impl Log {
    /// Makes the log of a new pool in an empty directory. Returns what the pool is to know of it.
    ///
    /// # Errors
    /// [`Error::Options`]: the directory holds another log. [`Error::Pool`], [`Error::NoSpace`].
    pub(crate) fn create(
        shelf: Shelf,
        secret: &Secret,
        incarnation: u64,
        segment_bytes: u64,
    ) -> Result<(Log, Known), Error> {
        let log = Log::new(shelf, secret, incarnation, segment_bytes);
        log.clear_unknown()?;
        let segment = log.new_segment()?;
        log.write_manifest(&[segment.number])?;
        let known = Known {
            settled: segment.at(HEAD),
            generation: log.generation(),
        };
        Ok((log, known))
    }

    /// Opens the log of a pool, and cuts off what is not settled; a log that is open to be read stays as it
    /// is. Without what the pool knew, all of it counts: for salvage.
    ///
    /// # Errors
    /// [`Error::Options`]: log and pool do not belong together, or one of them is an older copy.
    /// [`Error::Corrupt`]: the manifest or a head is damaged. [`Error::Pool`].
    pub(crate) fn open(
        shelf: Shelf,
        secret: &Secret,
        incarnation: u64,
        segment_bytes: u64,
        known: Option<Known>,
        is_read_only: bool,
    ) -> Result<Log, Error> {
        let mut log = Log::new(shelf, secret, incarnation, segment_bytes);
        let Some(bytes) = log.read_whole(manifest::NAME)? else {
            return Err(log.refused(
                "it holds no log, and the pool has one: name the directory of this pool's log",
            ));
        };
        let Some(manifest) = Manifest::parse(&bytes, secret) else {
            return Err(log.refused(
                "its manifest is not this pool's, or is damaged: name the directory of this pool's log, or restore \
                 everdram.aof.manifest",
            ));
        };
        let known = known.unwrap_or(Known {
            settled: Position {
                segment: manifest.segments.last().copied().unwrap_or(0),
                offset: u64::MAX,
            },
            generation: manifest.generation,
        });
        // A crash may come between a change of the manifest and the pool's note of it.
        if manifest.generation < known.generation {
            return Err(log.refused(
                "it is an older copy of the log: what the pool moved here later is not in it",
            ));
        }
        if manifest.generation > known.generation + 1 {
            return Err(
                log.refused("the pool is an older copy than its log: restore both from one moment")
            );
        }
        log.generation.store(manifest.generation, Ordering::Relaxed);
        let (kept, later): (Vec<u64>, Vec<u64>) = manifest
            .segments
            .iter()
            .partition(|&&number| number <= known.settled.segment);
        if kept.last() != Some(&known.settled.segment) {
            return Err(log.refused("a segment that the pool knows is not in the manifest: it is not this pool's log as it was"));
        }
        for &number in &kept {
            log.open_segment(number, known, is_read_only)?;
        }
        log.unsettled = !later.is_empty();
        let names = log.names()?;
        let numbers = names
            .iter()
            .filter_map(|name| manifest::segment_number(name));
        let next = numbers.chain(manifest.segments.iter().copied()).max();
        log.next.store(next.unwrap_or(0) + 1, Ordering::Relaxed);
        Ok(log)
    }

    /// Whether the manifest has segments behind the settled end. [`Log::tidy`] changes it then, so the pool
    /// must know its present generation, durably, before.
    pub(crate) fn has_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Removes what a crash has left: segments behind the settled end, and files that the manifest does not
    /// have.
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::NoSpace`].
    pub(crate) fn tidy(&self) -> Result<(), Error> {
        let kept = self.numbers();
        if self.unsettled {
            self.write_manifest(&kept)?;
        }
        let mut is_changed = false;
        for name in self.names()? {
            let number = manifest::segment_number(&name);
            if name == manifest::NEXT || number.is_some_and(|number| !kept.contains(&number)) {
                self.shelf.unlink(&name).map_err(Error::of_pool)?;
                is_changed = true;
            }
        }
        match is_changed {
            true => self.shelf.sync().map_err(Error::of_pool),
            false => Ok(()),
        }
    }

    fn new(shelf: Shelf, secret: &Secret, incarnation: u64, segment_bytes: u64) -> Log {
        Log {
            shelf,
            secret: secret.clone(),
            incarnation,
            segment_bytes: segment_bytes.min(SEGMENT_BYTES_MAX),
            table: RwLock::default(),
            generation: AtomicU64::new(0),
            next: AtomicU64::new(1),
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

    /// All bytes of a small file; `None` if there is none.
    fn read_whole(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        if !self.names()?.iter().any(|other| other == name) {
            return Ok(None);
        }
        let file = self.shelf.open_to_read(name).map_err(Error::of_pool)?;
        let length = file.len().map_err(Error::of_pool)?;
        if length > WHOLE_MAX {
            return Err(self.refused(&format!(
                "{name} has {length} bytes, and is no file of a log"
            )));
        }
        let mut bytes = vec![0; length as usize];
        file.read_at(0, &mut bytes).map_err(Error::of_pool)?;
        Ok(Some(bytes))
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        self.shelf.names().map_err(Error::of_pool)
    }

    /// Removes what a crash left of this pool's first attempt at a log. Anything else is somebody's.
    fn clear_unknown(&self) -> Result<(), Error> {
        for name in self.names()? {
            let is_ours = if name == manifest::NAME {
                let manifest = self.read_whole(&name)?;
                manifest
                    .and_then(|bytes| Manifest::parse(&bytes, &self.secret))
                    .is_some_and(|manifest| manifest.generation == 1)
            } else if name == manifest::segment_name(1) {
                let bytes = self.read_whole(&name)?.unwrap_or_default();
                // The crash may have kept its length alone.
                let is_blank = bytes.iter().all(|&byte| byte == 0);
                let is_empty = bytes.len() as u64 <= HEAD;
                is_empty && (is_blank || parse_head(&self.secret, 1, &bytes).is_some())
            } else {
                name == manifest::NEXT || !name.starts_with("everdram.aof.")
            };
            if !is_ours {
                return Err(
                    self.refused("it holds the log of another pool; name an empty directory")
                );
            }
            if name.starts_with("everdram.aof.") {
                self.shelf.unlink(&name).map_err(Error::of_pool)?;
            }
        }
        Ok(())
    }

    fn open_segment(&self, number: u64, known: Known, is_read_only: bool) -> Result<(), Error> {
        let name = manifest::segment_name(number);
        if !self.names()?.contains(&name) {
            let why = format!("{name} is missing, and the pool's data are in it; restore it");
            return Err(self.refused(&why));
        }
        let file = match is_read_only {
            true => self.shelf.open_to_read(&name),
            false => self.shelf.open_file(&name),
        };
        let file = file.map_err(Error::of_pool)?;
        let length = file.len().map_err(Error::of_pool)?;
        let mut head = vec![0; HEAD.min(length) as usize];
        file.read_at(0, &mut head).map_err(Error::of_pool)?;
        let Some(incarnation) = parse_head(&self.secret, number, &head) else {
            return Err(self.damaged(number, 0, "the head of a segment does not verify"));
        };
        if incarnation > self.incarnation {
            return Err(self
                .refused("the pool is an older copy than its log: restore both from one moment"));
        }
        let mut bytes = length;
        if number == known.settled.segment && known.settled.offset != u64::MAX {
            bytes = known.settled.offset;
            if length < bytes {
                let what =
                    format!("the log ends at byte {length}, before its settled end at {bytes}");
                return Err(self.damaged(number, length, &what));
            }
            self.cut(&file, number, bytes, length, is_read_only)?;
        } else if known.settled.offset != u64::MAX || number != known.settled.segment {
            bytes = self.sealed_end(&file, number, length)?;
            if bytes == length {
                let what = "the end of a segment is missing, with what was there";
                let error = self.damaged(number, length, what);
                self.cut_off.lock().push(error);
            }
        }
        file.advise_random();
        self.enter(number, file, bytes).map(drop)
    }

    /// Cuts off what is behind the settled end. A command without a head there was written by another
    /// program, which took it for its own file.
    fn cut(
        &self,
        file: &everdram_pm::ShelfFile,
        number: u64,
        end: u64,
        length: u64,
        is_read_only: bool,
    ) -> Result<(), Error> {
        if length == end {
            return Ok(());
        }
        let mut first = [0];
        file.read_at(end, &mut first).map_err(Error::of_pool)?;
        if &first == b"*" {
            let name = manifest::segment_name(number);
            let why = format!(
                "another program has appended commands to {name} at byte {end}; move them away"
            );
            return Err(self.refused(&why));
        }
        match is_read_only {
            true => Ok(()),
            false => file
                .set_len(end)
                .and_then(|()| file.sync())
                .map_err(Error::of_pool),
        }
    }

    /// Where the entries end of a segment that others follow: before its seal, or where the file ends if that
    /// is missing.
    fn sealed_end(
        &self,
        file: &everdram_pm::ShelfFile,
        number: u64,
        length: u64,
    ) -> Result<u64, Error> {
        let end = length.saturating_sub(SEAL).max(HEAD);
        let position = Position {
            segment: number,
            offset: end,
        };
        let mut found = [0; SEAL as usize];
        let count = file.read_some_at(end, &mut found).map_err(Error::of_pool)?;
        let is_sealed = found.get(..count) == Some(&segment::seal(&self.secret, position));
        Ok(if is_sealed { end } else { length })
    }

    /// Segments that have lost their ends, as errors; once.
    pub(crate) fn take_cut_off(&self) -> Vec<Error> {
        std::mem::take(&mut self.cut_off.lock())
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

    /// Makes the file of a segment, durably; the manifest does not have it yet.
    fn new_segment(&self) -> Result<Arc<Segment>, Error> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = manifest::segment_name(number);
        let made = || {
            let file = self.shelf.create(&name)?;
            // A full disk shows here, and not in the middle of a batch.
            file.reserve(self.segment_bytes)?;
            file.write_at(0, &segment::head(&self.secret, number, self.incarnation))?;
            file.sync()?;
            // The name, too: of the two names, a crash could keep the manifest's alone.
            self.shelf.sync()?;
            file.advise_random();
            Ok(file)
        };
        match made() {
            Ok(file) => self.enter(number, file, HEAD),
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
    pub(crate) fn remove(&self, number: u64) -> Result<(), Error> {
        let segments = self.segments();
        let rest = segments
            .iter()
            .map(|segment| segment.number)
            .filter(|other| *other != number);
        self.write_manifest(&rest.collect::<Vec<_>>())?;
        if let Some(segment) = segments.iter().find(|segment| segment.number == number)
            && let Some(place) = self.table.write().get_mut(segment.slot as usize)
        {
            *place = None;
        }
        self.shelf
            .unlink(&manifest::segment_name(number))
            .map_err(Error::of_pool)
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

    /// The segment to clean, among those with a number below `before`, at `now` (Unix milliseconds); `None`:
    /// it is not worth it.
    pub(crate) fn worth_cleaning(&self, worth: Worth, now: u64, before: u64) -> Option<u64> {
        let mut segments = self.segments();
        segments.retain(|segment| segment.number < before);
        let oldest = segments.first()?;
        let garbage = |segment: &Segment| segment.garbage(now, segment.number == oldest.number);
        let share = |segment: &Segment| garbage(segment) as f64 / segment.use_of().0.max(1) as f64;
        // Of equals, the oldest.
        let by_share =
            |one: &&Arc<Segment>, other: &&Arc<Segment>| share(one).total_cmp(&share(other));
        let worst = segments.iter().rev().max_by(by_share)?;
        match worth {
            Worth::Each(least) => {
                let expired = segments.iter().find(|segment| segment.has_expired(now));
                let worst = (share(worst) > least).then_some(worst);
                Some(expired.or(worst)?.number)
            }
            Worth::All(least) => {
                let sum = |of: &dyn Fn(&Segment) -> u64| -> f64 {
                    segments.iter().map(|segment| of(segment)).sum::<u64>() as f64
                };
                let removals = sum(&|segment| segment.removals.load(Ordering::Relaxed));
                let bytes = sum(&|segment| segment.use_of().0);
                if removals > bytes * REMOVALS {
                    // They can go once nothing is left that is older.
                    return Some(oldest.number);
                }
                let is_worth_it = sum(&garbage) > bytes * least || share(worst) > NEARLY_ALL;
                is_worth_it.then_some(worst.number)
            }
        }
    }

    /// Whether no segment is older.
    pub(crate) fn is_oldest(&self, number: u64) -> bool {
        self.segments()
            .first()
            .is_some_and(|segment| segment.number == number)
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
