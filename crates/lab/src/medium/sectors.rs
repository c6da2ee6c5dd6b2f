//! The model of a disk: files of sectors, and a directory.
//!
//! 1. A sector of 512 bytes never tears. A sector that was written and not synced holds any of the contents
//!    that it has had since the last sync. Sectors are independent of each other.
//! 2. A file that was cut or extended and not synced has any of the lengths that it has had since.
//! 3. A sync that succeeds makes all earlier writes certain. A sync of a file that fails makes nothing
//!    certain, and the kernel forgets that those pages are dirty: no later sync saves them.
//! 4. A sync of a file does not cover its name. `medium::directory` has the rules of names.
//!
//! Between two syncs the images only get more. It is enough to examine the images just before each sync, and
//! at the end.

use super::directory::Directory;
use super::image::Files;
use super::unit;
use super::unit::{FILES, Unit};
use crate::run::trace::{DiskStep, Held, StepId};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// The bytes that a disk writes as a whole or not at all.
pub const SECTOR: usize = 512;

/// Numbers of places for each file.
const PLACES: u64 = 1 << 40;
const LENGTH: u64 = PLACES / 2;
const ENTRY: u64 = LENGTH + 1;

/// A change that is not certain.
#[derive(Clone, Debug)]
struct Version<T> {
    step: StepId,
    content: T,
    /// A sync failed while this was dirty, so no later one makes it certain.
    lost: bool,
}

#[derive(Clone, Debug, Default)]
struct File {
    /// The certain contents, also behind the certain length.
    base: Vec<u8>,
    /// The certain length.
    length: u64,
    lengths: Vec<Version<u64>>,
    sectors: BTreeMap<u64, Vec<Version<Box<[u8]>>>>,
    /// The hash of all sectors of `base`.
    base_hash: u64,
}

/// What a place of a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A sector, by number.
    Sector(u64),
    /// The length of the file.
    Length,
    /// The entry of the file in the directory, and the entries that renames connect with it.
    Entry,
}

/// The file of a place, by number, and what of it the place is.
#[must_use]
pub fn part(place: u64) -> (u32, Part) {
    let part = match place % PLACES {
        LENGTH => Part::Length,
        ENTRY => Part::Entry,
        sector => Part::Sector(sector),
    };
    (((place - FILES) / PLACES) as u32, part)
}

fn place(file: u32, at: u64) -> u64 {
    FILES + u64::from(file) * PLACES + at
}

/// The state of a disk.
#[derive(Default)]
pub struct Sectors {
    files: BTreeMap<u32, File>,
    directory: Directory,
}

impl Sectors {
    /// A disk that holds `files` for certain.
    #[must_use]
    pub fn new(files: &Files) -> Sectors {
        let names = files.keys().cloned();
        let files = files.values().map(|bytes| {
            let mut file = File {
                base: bytes.clone(),
                length: bytes.len() as u64,
                ..File::default()
            };
            for sector in 0..file.length.div_ceil(SECTOR as u64) {
                file.base_hash ^= unit::hash(sector, &file.certain(sector));
            }
            file
        });
        Sectors {
            files: (0..).zip(files).collect(),
            directory: Directory::new(names.zip(0..).collect()),
        }
    }

    /// The name of a file that has one, or had one before it was removed.
    #[must_use]
    pub fn name(&self, file: u32) -> Option<&str> {
        self.directory.last_name(file)
    }

    /// Takes in one step. `muted` syncs have no effect.
    pub fn step(&mut self, id: StepId, step: &DiskStep, muted: bool) {
        match step {
            DiskStep::Create { file, name } => {
                self.files.entry(*file).or_default();
                self.directory.create(id, name, *file);
            }
            DiskStep::Unlink { file } => self.directory.unlink(id, *file),
            DiskStep::Rename { file, name } => self.directory.rename(id, *file, name),
            DiskStep::Write { file, at, bytes } => {
                if let Some(entry) = self.files.get_mut(file) {
                    entry.write(id, *at, bytes);
                }
            }
            DiskStep::SetLen { file, bytes } => {
                if let Some(entry) = self.files.get_mut(file) {
                    entry.set_length(id, *bytes);
                }
            }
            DiskStep::Allocate { file, at, bytes } => {
                if let Some(entry) = self.files.get_mut(file) {
                    let end = (at + bytes).max(entry.seen_length());
                    entry.set_length(id, end);
                }
            }
            DiskStep::Sync { file, ok } if !muted => {
                if let Some(entry) = self.files.get_mut(file) {
                    entry.sync(*ok);
                }
            }
            DiskStep::SyncDirectory { folder, ok: true } if !muted => self.directory.sync(folder),
            DiskStep::Sync { .. } | DiskStep::SyncDirectory { .. } => {}
        }
    }

    /// Power failed and left this. Places that are not named hold what was written last. Files are numbered
    /// anew, by name.
    pub fn lose(&mut self, held: &Held) {
        let units = self.units();
        let choice = |unit: &Unit| {
            let held = held.iter().find(|(place, _)| *place == unit.place);
            let of_bytes = |(_, bytes): &(u64, Box<[u8]>)| {
                unit.choices
                    .iter()
                    .position(|choice| choice.bytes == *bytes)
            };
            held.and_then(of_bytes).unwrap_or(unit.newest())
        };
        let pick: Vec<usize> = units.iter().map(choice).collect();
        *self = Sectors::new(&self.image(&units, &pick));
    }

    /// What a crash at this moment decides: entries of the directory, and then the files, each by place.
    #[must_use]
    pub fn units(&self) -> Vec<Unit> {
        let mut units: Vec<Unit> = self
            .directory
            .units(|number| place(number, ENTRY))
            .collect();
        for (&number, file) in &self.files {
            file.units(place(number, 0), &mut units);
        }
        units
    }

    /// The hash of the files of a pick. Units are in the order of [`Sectors::units`].
    #[must_use]
    pub fn hash(&self, units: &[Unit], pick: &[usize]) -> u64 {
        let hashes = self.left(units, pick).map(|(name, file, units, pick)| {
            let (contents, length) = file.hash(units, pick);
            let contents = [contents.to_le_bytes(), length.to_le_bytes()];
            xxh3_64(&[name.as_bytes(), contents.as_flattened()].concat())
        });
        hashes.fold(0, |all, hash| all ^ hash)
    }

    /// The files of a pick. Units are in the order of [`Sectors::units`].
    #[must_use]
    pub fn image(&self, units: &[Unit], pick: &[usize]) -> Files {
        let files = self.left(units, pick);
        files
            .map(|(name, file, units, pick)| (name.to_owned(), file.image(units, pick)))
            .collect()
    }

    /// The files that the directory of a pick has, each with its name and its part of the units and of the
    /// pick.
    fn left<'a>(
        &'a self,
        units: &'a [Unit],
        pick: &'a [usize],
    ) -> impl Iterator<Item = (&'a str, &'a File, &'a [Unit], &'a [usize])> {
        let entries = units.partition_point(|unit| unit.place % PLACES == ENTRY);
        let (of_names, units) = units.split_at(entries);
        let (of_names, pick) = {
            let (chosen, pick) = pick.split_at(entries.min(pick.len()));
            (of_names.iter().zip(chosen), pick)
        };
        let held = of_names.map(|(unit, &choice)| &*unit.choices[choice].bytes);
        let entries = self.directory.entries(held).into_iter();
        entries.filter_map(move |(name, number)| {
            let end = |number: u32| units.partition_point(|unit| unit.place < place(number, 0));
            let part = end(number)..end(number + 1);
            let file = self.files.get(&number)?;
            Some((name, file, &units[part.clone()], &pick[part]))
        })
    }
}

/// The length that a unit holds.
fn as_length(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word))
}

fn version<T>(step: StepId, content: T) -> Version<T> {
    Version {
        step,
        content,
        lost: false,
    }
}

/// A sync: returns the last version that it makes certain, and drops those before it. Versions that an
/// earlier failed sync gave up after that one stay open.
fn settle<T>(versions: &mut Vec<Version<T>>, ok: bool) -> Option<T> {
    if !ok {
        versions.iter_mut().for_each(|version| version.lost = true);
        return None;
    }
    let last = versions.iter().rposition(|version| !version.lost)?;
    versions.drain(..last);
    Some(versions.remove(0).content)
}

impl File {
    /// The bytes of the file under a pick.
    fn image(&self, units: &[Unit], pick: &[usize]) -> Vec<u8> {
        let chosen = || units.iter().zip(pick);
        let of_length = chosen().find(|(unit, _)| unit.place % PLACES == LENGTH);
        let length = of_length.map_or(self.length, |(unit, &choice)| {
            as_length(&unit.choices[choice].bytes)
        });
        let length = length as usize;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&self.base[..length.min(self.base.len())]);
        bytes.resize(length, 0);
        for (unit, &choice) in chosen().filter(|(unit, _)| unit.place % PLACES != LENGTH) {
            let at = ((unit.place % PLACES) as usize * SECTOR).min(length);
            let end = (at + SECTOR).min(length);
            bytes[at..end].copy_from_slice(&unit.choices[choice].bytes[..end - at]);
        }
        bytes
    }

    /// The hash of the bytes of the file under a pick, and their number.
    fn hash(&self, units: &[Unit], pick: &[usize]) -> (u64, u64) {
        let (mut length, mut hash) = (self.length, self.base_hash);
        let mut end = self.base.len() as u64;
        for (unit, &choice) in units.iter().zip(pick) {
            let choice = &unit.choices[choice];
            match unit.place % PLACES {
                LENGTH => length = as_length(&choice.bytes),
                sector => {
                    hash ^= unit::hash(sector, &self.certain(sector)) ^ choice.hash;
                    end = end.max((sector + 1) * SECTOR as u64);
                }
            }
        }
        // Bytes behind the end count as zeros.
        for sector in length / SECTOR as u64..end.div_ceil(SECTOR as u64) {
            let mut chosen = units.iter().zip(pick);
            let mut content = match chosen.find(|(unit, _)| unit.place % PLACES == sector) {
                Some((unit, &choice)) => unit.choices[choice].bytes.to_vec(),
                None => self.certain(sector),
            };
            hash ^= unit::hash(sector, &content);
            let kept = length.saturating_sub(sector * SECTOR as u64) as usize;
            content[kept..].fill(0);
            hash ^= unit::hash(sector, &content);
        }
        (hash, length)
    }

    fn seen_length(&self) -> u64 {
        self.lengths.last().map_or(self.length, |last| last.content)
    }

    fn certain(&self, sector: u64) -> Vec<u8> {
        let at = (sector as usize * SECTOR).min(self.base.len());
        let end = (at + SECTOR).min(self.base.len());
        let mut bytes = self.base[at..end].to_vec();
        bytes.resize(SECTOR, 0);
        bytes
    }

    fn seen(&self, sector: u64) -> Vec<u8> {
        match self
            .sectors
            .get(&sector)
            .and_then(|versions| versions.last())
        {
            Some(last) => last.content.to_vec(),
            None => self.certain(sector),
        }
    }

    fn set_length(&mut self, step: StepId, bytes: u64) {
        if bytes == self.seen_length() {
            return;
        }
        if bytes < self.seen_length() {
            // Bytes that were cut off are zeros if the file grows again.
            for sector in bytes.div_ceil(SECTOR as u64)..self.seen_length().div_ceil(SECTOR as u64)
            {
                self.push(step, sector, vec![0; SECTOR]);
            }
            if !bytes.is_multiple_of(SECTOR as u64) {
                let sector = bytes / SECTOR as u64;
                let mut content = self.seen(sector);
                content[(bytes % SECTOR as u64) as usize..].fill(0);
                self.push(step, sector, content);
            }
        }
        self.lengths.push(version(step, bytes));
    }

    fn write(&mut self, step: StepId, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        for sector in at / SECTOR as u64..end.div_ceil(SECTOR as u64) {
            let first = sector * SECTOR as u64;
            let (from, to) = (at.max(first), end.min(first + SECTOR as u64));
            let mut content = self.seen(sector);
            content[(from - first) as usize..(to - first) as usize]
                .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
            self.push(step, sector, content);
        }
        if end > self.seen_length() {
            self.lengths.push(version(step, end));
        }
    }

    fn push(&mut self, step: StepId, sector: u64, content: Vec<u8>) {
        self.sectors
            .entry(sector)
            .or_default()
            .push(version(step, content.into()));
    }

    fn sync(&mut self, ok: bool) {
        if let Some(length) = settle(&mut self.lengths, ok) {
            self.length = length;
        }
        let numbers: Vec<u64> = self.sectors.keys().copied().collect();
        for sector in numbers {
            let Some(versions) = self.sectors.get_mut(&sector) else {
                continue;
            };
            let settled = settle(versions, ok);
            if versions.is_empty() {
                self.sectors.remove(&sector);
            }
            if let Some(content) = settled {
                self.base_hash ^= unit::hash(sector, &self.certain(sector));
                self.base_hash ^= unit::hash(sector, &content);
                let at = sector as usize * SECTOR;
                if self.base.len() < at + SECTOR {
                    self.base.resize(at + SECTOR, 0);
                }
                self.base[at..at + SECTOR].copy_from_slice(&content);
            }
        }
    }

    fn units(&self, place: u64, units: &mut Vec<Unit>) {
        let mut push =
            |at: u64, least: Vec<u8>, versions: Vec<(StepId, Vec<u8>)>, commits: bool| {
                let mut unit = Unit::seeded(place + at, at, least.into());
                unit.commits = commits;
                let mut newest = 0;
                for (step, content) in versions {
                    newest = unit.add(&content);
                    unit.prefixes.push((step, newest));
                }
                unit.put_last(newest);
                units.push(unit);
            };
        for (&sector, versions) in &self.sectors {
            let least = self.certain(sector);
            let versions = versions
                .iter()
                .map(|v| (v.step, v.content.to_vec()))
                .collect();
            push(sector, least, versions, false);
        }
        if !self.lengths.is_empty() {
            let versions = self.lengths.iter();
            let versions = versions
                .map(|v| (v.step, v.content.to_le_bytes().to_vec()))
                .collect();
            push(LENGTH, self.length.to_le_bytes().to_vec(), versions, true);
        }
    }
}
