//! What a disk holds: files of sectors, and a directory.
//!
//! 1. A sector of 512 bytes never tears. A sector that was written and not synced holds any of the contents it has
//!    had since the last sync, however the other sectors fared.
//! 2. A file that was cut or extended and not synced has any of the lengths it has had since.
//! 3. A file that was created or unlinked is there or not until the directory is synced; a sync of the file does
//!    not help.
//! 4. A sync that succeeds makes certain what was written before it. A sync of a file that fails makes nothing
//!    certain, and what it covered is no longer dirty to the kernel: no later sync saves it. Names are metadata,
//!    which kernels keep: after a failed sync of the directory a later one may succeed.
//!
//! Between two syncs the images only get more, so it is enough to look just before each, and at the end.

use crate::image::Files;
use crate::trace::{DiskStep, StepId};
use crate::unit::{self, Unit};
use std::collections::BTreeMap;

/// Bytes that a disk writes whole or not at all.
pub const SECTOR: usize = 512;

const LENGTH: u64 = 1 << 39;
const PRESENCE: u64 = LENGTH + 1;

/// Something that was changed and not made certain.
#[derive(Clone, Debug)]
struct Version<T> {
    step: StepId,
    content: T,
    /// A sync failed while this was dirty.
    lost: bool,
}

#[derive(Clone, Debug, Default)]
struct File {
    name: String,
    /// Certain contents; as long as anything certain was ever written.
    base: Vec<u8>,
    /// Certain length.
    length: u64,
    lengths: Vec<Version<u64>>,
    sectors: BTreeMap<u64, Vec<Version<Box<[u8]>>>>,
    /// Whether the directory surely has it.
    present: bool,
    presences: Vec<Version<bool>>,
}

/// What a unit of a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A sector, by number.
    Sector(u64),
    /// How long the file is.
    Length,
    /// Whether the directory has it.
    Presence,
}

/// The file, by number, and the part of it that a unit's place names.
#[must_use]
pub fn part(place: u64) -> (u32, Part) {
    let part = match place & ((1 << 40) - 1) {
        LENGTH => Part::Length,
        PRESENCE => Part::Presence,
        sector => Part::Sector(sector),
    };
    ((place >> 40) as u32, part)
}

/// The state of a disk.
pub struct Sectors {
    files: BTreeMap<u32, File>,
    base_hash: u64,
}

impl Sectors {
    /// A disk that surely holds `files`.
    #[must_use]
    pub fn new(files: &Files) -> Sectors {
        let mut base_hash = 0;
        let mut known = BTreeMap::new();
        for (number, (name, bytes)) in files.iter().enumerate() {
            base_hash ^= unit::hash(number as u64, bytes);
            known.insert(
                number as u32,
                File {
                    name: name.clone(),
                    base: bytes.clone(),
                    length: bytes.len() as u64,
                    present: true,
                    ..File::default()
                },
            );
        }
        Sectors {
            files: known,
            base_hash,
        }
    }

    /// The hash of what is certain.
    #[must_use]
    pub fn base_hash(&self) -> u64 {
        self.base_hash
    }

    /// The name of a file.
    #[must_use]
    pub fn name(&self, file: u32) -> Option<&str> {
        self.files.get(&file).map(|file| file.name.as_str())
    }

    /// Takes in one step. `muted` syncs have no effect.
    pub fn step(&mut self, id: StepId, step: &DiskStep, muted: bool) {
        match step {
            DiskStep::Create { file, name } => {
                let entry = self.files.entry(*file).or_default();
                entry.name.clone_from(name);
                entry.presences.push(version(id, true));
            }
            DiskStep::Unlink { file } => {
                if let Some(entry) = self.files.get_mut(file) {
                    entry.presences.push(version(id, false));
                }
            }
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
                    self.base_hash ^= entry.sync(u64::from(*file), *ok);
                }
            }
            DiskStep::SyncDirectory { ok } if !muted => {
                for (number, entry) in &mut self.files {
                    self.base_hash ^= entry.sync_presence(u64::from(*number), *ok);
                }
            }
            DiskStep::Sync { .. } | DiskStep::SyncDirectory { .. } => {}
        }
    }

    /// What a crash at this moment leaves open.
    #[must_use]
    pub fn units(&self) -> Vec<Unit> {
        let mut units = Vec::new();
        for (&number, file) in &self.files {
            file.units(u64::from(number) << 40, &mut units);
        }
        units
    }

    /// The hash of what is certain at a unit's place.
    #[must_use]
    pub fn place_hash(&self, place: u64) -> u64 {
        let Some(file) = self.files.get(&((place >> 40) as u32)) else {
            return 0;
        };
        match place & ((1 << 40) - 1) {
            LENGTH => unit::hash(place, &file.length.to_le_bytes()),
            PRESENCE => unit::hash(place, &[u8::from(file.present)]),
            sector => unit::hash(place, &file.certain(sector)),
        }
    }

    /// The files that a pick of choices makes.
    #[must_use]
    pub fn image(&self, units: &[Unit], pick: &[usize]) -> Files {
        let mut lengths = BTreeMap::new();
        let mut presences = BTreeMap::new();
        let mut sectors: Vec<(u32, u64, &[u8])> = Vec::new();
        for (unit, &choice) in units.iter().zip(pick) {
            let bytes = &*unit.choices[choice].bytes;
            let number = (unit.place >> 40) as u32;
            match unit.place & ((1 << 40) - 1) {
                LENGTH => {
                    let length = bytes
                        .first_chunk()
                        .map_or(0, |word| u64::from_le_bytes(*word));
                    lengths.insert(number, length);
                }
                PRESENCE => {
                    presences.insert(number, bytes == [1]);
                }
                sector => sectors.push((number, sector, bytes)),
            }
        }
        let mut files: BTreeMap<u32, (&str, Vec<u8>)> = BTreeMap::new();
        for (number, file) in &self.files {
            if !presences.get(number).copied().unwrap_or(file.present) {
                continue;
            }
            let length = lengths.get(number).copied().unwrap_or(file.length) as usize;
            let mut bytes = Vec::with_capacity(length);
            bytes.extend_from_slice(&file.base[..length.min(file.base.len())]);
            bytes.resize(length, 0);
            files.insert(*number, (&file.name, bytes));
        }
        for (number, sector, content) in sectors {
            if let Some((_, bytes)) = files.get_mut(&number) {
                let at = (sector as usize * SECTOR).min(bytes.len());
                let end = (at + SECTOR).min(bytes.len());
                bytes[at..end].copy_from_slice(&content[..end - at]);
            }
        }
        files
            .into_values()
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .collect()
    }
}

fn version<T>(step: StepId, content: T) -> Version<T> {
    Version {
        step,
        content,
        lost: false,
    }
}

/// Makes the last of `versions` that a sync can save certain; the rest before it is gone. Those that an earlier
/// failed sync gave up stay open.
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
            // What is cut off is zero if the file grows again.
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

    /// The change of the base hash.
    fn sync(&mut self, number: u64, ok: bool) -> u64 {
        let mut change = 0;
        let place = number << 40;
        if let Some(length) = settle(&mut self.lengths, ok) {
            change ^= unit::hash(place | LENGTH, &self.length.to_le_bytes());
            self.length = length;
            change ^= unit::hash(place | LENGTH, &self.length.to_le_bytes());
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
                change ^= unit::hash(place | sector, &self.certain(sector));
                let at = sector as usize * SECTOR;
                if self.base.len() < at + SECTOR {
                    self.base.resize(at + SECTOR, 0);
                }
                self.base[at..at + SECTOR].copy_from_slice(&content);
                change ^= unit::hash(place | sector, &content);
            }
        }
        change
    }

    fn sync_presence(&mut self, number: u64, ok: bool) -> u64 {
        let place = number << 40 | PRESENCE;
        if !ok {
            return 0;
        }
        match settle(&mut self.presences, true) {
            None => 0,
            Some(present) => {
                let before = unit::hash(place, &[u8::from(self.present)]);
                self.present = present;
                before ^ unit::hash(place, &[u8::from(present)])
            }
        }
    }

    fn units(&self, place: u64, units: &mut Vec<Unit>) {
        let mut push =
            |at: u64, least: Vec<u8>, versions: Vec<(StepId, Vec<u8>)>, commits: bool| {
                let mut unit = Unit::new(place | at, least.into());
                unit.commits = commits;
                let mut newest = 0;
                for (step, content) in versions {
                    newest = unit.add(&content);
                    unit.prefixes.push((step, newest));
                }
                unit.put_last(newest);
                units.push(unit);
            };
        if !self.presences.is_empty() {
            let versions = self.presences.iter();
            let versions = versions
                .map(|v| (v.step, vec![u8::from(v.content)]))
                .collect();
            push(PRESENCE, vec![u8::from(self.present)], versions, true);
        }
        if !self.lengths.is_empty() {
            let versions = self.lengths.iter();
            let versions = versions
                .map(|v| (v.step, v.content.to_le_bytes().to_vec()))
                .collect();
            push(LENGTH, self.length.to_le_bytes().to_vec(), versions, true);
        }
        for (&sector, versions) in &self.sectors {
            let least = self.certain(sector);
            let versions = versions
                .iter()
                .map(|v| (v.step, v.content.to_vec()))
                .collect();
            push(sector, least, versions, false);
        }
    }
}
