//! The log of a pool, made or found: what the manifest has and the pool knows must be there, and what is
//! behind the settled end is cut off.

use super::entry::Position;
use super::manifest::{self, Manifest};
use super::segment::{self, HEAD, SEAL, parse_head};
use super::{Known, Log, REMEDY, spare};
use crate::error::Error;
use everdram_pm::{Secret, Shelf, ShelfFile};
use std::sync::atomic::Ordering;

/// A manifest is smaller: it has a line for each of at most 2^17 segments.
const WHOLE_MAX: u64 = 16 << 20;
/// Bytes of a seal that prove where it was, if others are damaged.
const BLURRED: usize = 12;

/// Where the entries of a segment end.
pub(super) enum End {
    /// Before its seal.
    Sealed(u64),
    /// Before a seal of which a few bytes are wrong.
    Blurred(u64),
    /// It has no seal, so nobody knows.
    Missing,
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
        let segment = log.new_segment(log.segment_bytes)?;
        log.write_manifest(&[segment.number])?;
        let known = Known {
            settled: segment.at(HEAD),
            generation: log.generation(),
        };
        Ok((log, known))
    }

    /// Opens the log of a pool, and cuts off what is not settled; a log that is open to be read stays as it
    /// is.
    ///
    /// # Errors
    /// [`Error::Options`]: log and pool do not belong together, or one of them is an older copy.
    /// [`Error::Corrupt`]: the manifest or a head is damaged, or a segment is missing. [`Error::Pool`].
    pub(crate) fn open(
        shelf: Shelf,
        secret: &Secret,
        incarnation: u64,
        segment_bytes: u64,
        known: Known,
        is_read_only: bool,
    ) -> Result<Log, Error> {
        let mut log = Log::new(shelf, secret, incarnation, segment_bytes);
        let Some(manifest) = log.read_manifest()? else {
            return Err(log.refused(
                "it holds no log, and the pool has one: name the directory of this pool's log. If its manifest is lost, \
                 `everdram export --salvage POOL FILE` saves what is left",
            ));
        };
        log.check_moment(&manifest, known)?;
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

    /// The manifest; `None`: there is no such file.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: it is not this pool's, or is damaged. [`Error::Options`]: it is as long as no
    /// manifest is. [`Error::Pool`].
    pub(super) fn read_manifest(&self) -> Result<Option<Manifest>, Error> {
        let Some(bytes) = self.read_whole(manifest::NAME)? else {
            return Ok(None);
        };
        match Manifest::parse(&bytes, &self.secret) {
            Some(manifest) => Ok(Some(manifest)),
            None => Err(Error::Corrupt {
                path: self.shelf.path().join(manifest::NAME),
                offset: 0,
                what: "the manifest is not this pool's, or is damaged".into(),
                remedy: REMEDY,
            }),
        }
    }

    /// Refuses a manifest that is not of the moment that the pool is of. A crash may come between a change of
    /// it and the pool's note.
    pub(super) fn check_moment(&self, manifest: &Manifest, known: Known) -> Result<(), Error> {
        if manifest.generation < known.generation {
            return Err(self.refused(
                "it is an older copy of the log: what the pool moved here later is not in it",
            ));
        }
        if manifest.generation > known.generation + 1 {
            return Err(self
                .refused("the pool is an older copy than its log: restore both from one moment"));
        }
        Ok(())
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
            self.with_spare(|| self.write_manifest(&kept))?;
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
                [manifest::NEXT, spare::NAME].contains(&name.as_str())
                    || !name.starts_with("everdram.aof.")
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
            let what = "the segment is missing, and the pool's data are in it";
            return Err(self.damaged(number, 0, what));
        }
        let file = match is_read_only {
            true => self.shelf.open_to_read(&name),
            false => self.shelf.open_file(&name),
        };
        let file = file.map_err(Error::of_pool)?;
        let length = file.len().map_err(Error::of_pool)?;
        let Some(incarnation) = self.head_of(&file, number)? else {
            return Err(self.damaged(number, 0, "the head of a segment does not verify"));
        };
        self.check_incarnation(incarnation)?;
        let bytes = if number == known.settled.segment {
            let end = known.settled.offset;
            if length < end {
                let what =
                    format!("the log ends at byte {length}, before its settled end at {end}");
                return Err(self.damaged(number, length, &what));
            }
            self.cut(&file, number, end, length, is_read_only)?;
            end
        } else if let End::Sealed(end) = self.end_of(&file, number, length)? {
            end
        } else {
            let what = "the end of a segment is missing, with what was there";
            let error = self.damaged(number, length, what);
            self.cut_off.lock().push(error);
            length
        };
        file.advise_random();
        self.enter(number, file, bytes).map(drop)
    }

    /// The life of the pool in which a segment was made; `None`: its head does not verify.
    pub(super) fn head_of(&self, file: &ShelfFile, number: u64) -> Result<Option<u64>, Error> {
        let length = file.len().map_err(Error::of_pool)?;
        let mut head = vec![0; HEAD.min(length) as usize];
        file.read_at(0, &mut head).map_err(Error::of_pool)?;
        Ok(parse_head(&self.secret, number, &head))
    }

    /// Refuses a segment of a life that the pool has not come to.
    pub(super) fn check_incarnation(&self, incarnation: u64) -> Result<(), Error> {
        match incarnation > self.incarnation {
            true => Err(self
                .refused("the pool is an older copy than its log: restore both from one moment")),
            false => Ok(()),
        }
    }

    /// Cuts off what is behind the settled end. A command without a head there was written by another
    /// program, which took it for its own file.
    fn cut(
        &self,
        file: &ShelfFile,
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

    /// Where the entries end of a segment that others follow.
    pub(super) fn end_of(&self, file: &ShelfFile, number: u64, length: u64) -> Result<End, Error> {
        let end = length.saturating_sub(SEAL).max(HEAD);
        let position = Position {
            segment: number,
            offset: end,
        };
        let mut found = [0; SEAL as usize];
        let count = file.read_some_at(end, &mut found).map_err(Error::of_pool)?;
        let seal = segment::seal(&self.secret, position);
        let same = seal.iter().zip(&found).filter(|(one, other)| one == other);
        Ok(match same.count() {
            _ if count < found.len() => End::Missing,
            BLURRED.. if found == *seal => End::Sealed(end),
            BLURRED.. => End::Blurred(end),
            _ => End::Missing,
        })
    }

    /// Segments that have lost their ends, as errors; once.
    pub(crate) fn take_cut_off(&self) -> Vec<Error> {
        std::mem::take(&mut self.cut_off.lock())
    }
}
