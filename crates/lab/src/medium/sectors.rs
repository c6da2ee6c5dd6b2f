//! What a disk holds: files of sectors, and a directory.
//!
//! 1. A sector of 512 bytes never tears. A sector that was written and not synced holds any of the contents
//!    it has had since the last sync, however the other sectors fared.
//! 2. A file that was cut or extended and not synced has any of the lengths it has had since.
//! 3. A file that was created or unlinked is there or not until the directory is synced; a sync of the file
//!    does not help.
//! 4. A sync that succeeds makes certain what was written before it. A sync of a file that fails makes
//!    nothing certain, and what it covered is no longer dirty to the kernel: no later sync saves it. Names
//!    are metadata, which kernels keep: after a failed sync of the directory a later one may succeed.
//!
//! Between two syncs the images only get more, so it is enough to look just before each, and at the end.

use super::image::Files;
use super::outage::Held;
use super::unit;
use super::unit::Unit;
use crate::run::trace::{DiskStep, StepId};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

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
    /// What hashes of it start from: two files of one name are never there at once.
    seed: u64,
    /// Certain contents; as long as anything certain was ever written.
    base: Vec<u8>,
    /// Certain length.
    length: u64,
    lengths: Vec<Version<u64>>,
    sectors: BTreeMap<u64, Vec<Version<Box<[u8]>>>>,
    /// The hash of all certain sectors, however long the file is.
    base_hash: u64,
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
}

impl Sectors {
    /// A disk that surely holds `files`.
    #[must_use]
    pub fn new(files: &Files) -> Sectors {
        let files = files.iter().map(|(name, bytes)| {
            let mut file = File {
                base: bytes.clone(),
                length: bytes.len() as u64,
                present: true,
                ..File::named(name)
            };
            for sector in 0..file.length.div_ceil(SECTOR as u64) {
                file.base_hash ^= file.sector_hash(sector, &file.certain(sector));
            }
            file
        });
        Sectors {
            files: (0..).zip(files).collect(),
        }
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
                let entry = self.files.entry(*file);
                let entry = entry.or_insert_with(|| File::named(name));
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
                    entry.sync(*ok);
                }
            }
            DiskStep::SyncDirectory { ok } if !muted => {
                for entry in self.files.values_mut() {
                    entry.sync_presence(*ok);
                }
            }
            DiskStep::Sync { .. } | DiskStep::SyncDirectory { .. } => {}
        }
    }

    /// Everything that was open is decided: places held this, and what is not named is as it was written
    /// last. The files that are left have new numbers, in the same order.
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

    /// What a crash at this moment leaves open.
    #[must_use]
    pub fn units(&self) -> Vec<Unit> {
        let mut units = Vec::new();
        for (&number, file) in &self.files {
            file.units(u64::from(number) << 40, &mut units);
        }
        units
    }

    /// The hash of the files that a pick of choices makes. The units of a file stand side by side, in the
    /// order in which [`Sectors::units`] has files.
    #[must_use]
    pub fn hash(&self, units: &[Unit], pick: &[usize]) -> u64 {
        let mut rest = units.len().min(pick.len());
        let mut hash = 0;
        // Of two files of one name the later one counts, as in an image.
        let mut names = Vec::with_capacity(self.files.len());
        for (&number, file) in self.files.iter().rev() {
            let end = rest;
            while rest > 0 && units[rest - 1].place >> 40 == u64::from(number) {
                rest -= 1;
            }
            if names.contains(&file.seed) {
                continue;
            }
            if let Some(held) = file.hash(&units[rest..end], &pick[rest..end]) {
                hash ^= held;
                names.push(file.seed);
            }
        }
        hash
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
                    lengths.insert(number, as_length(bytes));
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

/// Makes the last of `versions` that a sync can save certain; the rest before it is gone. Those that an
/// earlier failed sync gave up stay open.
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
    fn named(name: &str) -> File {
        File {
            name: name.to_owned(),
            seed: xxh3_64(name.as_bytes()),
            ..File::default()
        }
    }

    fn sector_hash(&self, sector: u64, content: &[u8]) -> u64 {
        unit::hash(self.seed ^ sector, content)
    }

    /// The hash of what a pick makes of the file; `None` if it is not there.
    fn hash(&self, units: &[Unit], pick: &[usize]) -> Option<u64> {
        let (mut length, mut is_present, mut hash) = (self.length, self.present, self.base_hash);
        let mut end = self.base.len() as u64;
        for (unit, &choice) in units.iter().zip(pick) {
            let choice = &unit.choices[choice];
            match unit.place & ((1 << 40) - 1) {
                LENGTH => length = as_length(&choice.bytes),
                PRESENCE => is_present = *choice.bytes == [1],
                sector => {
                    hash ^= self.sector_hash(sector, &self.certain(sector)) ^ choice.hash;
                    end = end.max((sector + 1) * SECTOR as u64);
                }
            }
        }
        if !is_present {
            return None;
        }
        // What lies behind its end is not there.
        for sector in length / SECTOR as u64..end.div_ceil(SECTOR as u64) {
            let place = |unit: &Unit| unit.place & ((1 << 40) - 1);
            let chosen = units
                .iter()
                .zip(pick)
                .find(|(unit, _)| place(unit) == sector);
            let mut content = match chosen {
                Some((unit, &choice)) => unit.choices[choice].bytes.to_vec(),
                None => self.certain(sector),
            };
            hash ^= self.sector_hash(sector, &content);
            let kept = length.saturating_sub(sector * SECTOR as u64) as usize;
            content[kept..].fill(0);
            hash ^= self.sector_hash(sector, &content);
        }
        Some(hash ^ xxh3_64_with_seed(&length.to_le_bytes(), self.seed))
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
                self.base_hash ^= self.sector_hash(sector, &self.certain(sector));
                self.base_hash ^= self.sector_hash(sector, &content);
                let at = sector as usize * SECTOR;
                if self.base.len() < at + SECTOR {
                    self.base.resize(at + SECTOR, 0);
                }
                self.base[at..at + SECTOR].copy_from_slice(&content);
            }
        }
    }

    fn sync_presence(&mut self, ok: bool) {
        // A sync of the directory that fails loses nothing.
        if ok && let Some(present) = settle(&mut self.presences, true) {
            self.present = present;
        }
    }

    fn units(&self, place: u64, units: &mut Vec<Unit>) {
        let mut push =
            |at: u64, least: Vec<u8>, versions: Vec<(StepId, Vec<u8>)>, commits: bool| {
                let mut unit = Unit::seeded(place | at, self.seed ^ at, least.into());
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
