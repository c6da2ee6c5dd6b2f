//! The names of a disk: which file each entry of the directory, and of its folders, stands for.
//!
//! 1. Until its folder is synced, a changed entry is as it was before any of its changes, or after.
//! 2. A rename is atomic: a crash never leaves the file under both names, nor under none.
//! 3. Entries that no rename connects are independent of each other. Entries that a rename connects may still
//!    be in any combination that was possible before it. So images only get more until their folder is
//!    synced.
//! 4. A failed sync of a folder loses nothing: kernels keep metadata, and the next sync may succeed.

use super::unit::Unit;
use crate::run::trace::StepId;
use std::collections::{BTreeMap, BTreeSet};

/// Whether a name is in a folder itself; see [`Disk`](everdram_pm::lab::Disk).
pub(crate) fn is_in(folder: &str, name: &str) -> bool {
    let inside = name.strip_prefix(folder);
    inside.is_some_and(|name| !name.contains('/'))
}

/// Files by name.
pub(super) type Names = BTreeMap<String, u32>;

/// See the module text.
#[derive(Default)]
pub(super) struct Directory {
    certain: Names,
    seen: Names,
    /// No two of them share a name or a file.
    groups: Vec<Group>,
}

/// Names whose entries depend on each other.
#[derive(Default)]
struct Group {
    names: BTreeSet<String>,
    files: BTreeSet<u32>,
    /// In order. None is certain.
    changes: Vec<Change>,
    /// Entries that a crash may leave. The first are the certain ones.
    possible: Vec<Names>,
}

/// The entries that one call set or removed.
struct Change {
    step: StepId,
    entries: Vec<(String, Option<u32>)>,
}

impl Directory {
    /// A directory with these entries, which are certain.
    pub(super) fn new(certain: Names) -> Directory {
        Directory {
            seen: certain.clone(),
            certain,
            groups: Vec::new(),
        }
    }

    /// A file was made under this name.
    pub(super) fn create(&mut self, step: StepId, name: &str, file: u32) {
        self.change(step, file, vec![(name.to_owned(), Some(file))]);
    }

    /// A file was removed.
    pub(super) fn unlink(&mut self, step: StepId, file: u32) {
        if let Some(name) = self.name(file).map(str::to_owned) {
            self.change(step, file, vec![(name, None)]);
        }
    }

    /// A file was renamed, and replaces the file that had the name.
    pub(super) fn rename(&mut self, step: StepId, file: u32, name: &str) {
        let before = self.name(file).map(str::to_owned);
        let before = before.filter(|before| before != name);
        let mut entries: Vec<_> = before.into_iter().map(|before| (before, None)).collect();
        entries.push((name.to_owned(), Some(file)));
        self.change(step, file, entries);
    }

    /// The name of a file, as the process sees it.
    pub(super) fn name(&self, file: u32) -> Option<&str> {
        let mut entries = self.seen.iter();
        let found = entries.find(|(_, entry)| **entry == file);
        found.map(|(name, _)| name.as_str())
    }

    /// The name of a file, or the certain one if it was removed since.
    pub(super) fn last_name(&self, file: u32) -> Option<&str> {
        let mut certain = self.certain.iter();
        self.name(file).or_else(|| {
            let found = certain.find(|(_, entry)| **entry == file);
            found.map(|(name, _)| name.as_str())
        })
    }

    fn change(&mut self, step: StepId, file: u32, entries: Vec<(String, Option<u32>)>) {
        let change = Change { step, entries };
        let mut group = Group {
            files: BTreeSet::from([file]),
            possible: vec![Names::new()],
            ..Group::default()
        };
        for (name, _) in &change.entries {
            if !self.groups.iter().any(|other| other.names.contains(name)) {
                group.add(name, self.certain.get(name).copied());
            }
        }
        for other in std::mem::take(&mut self.groups) {
            let is_met = |name: &String| other.names.contains(name);
            let shares_name = change.entries.iter().any(|(name, _)| is_met(name));
            if shares_name || !other.files.is_disjoint(&group.files) {
                group.join(other);
            } else {
                self.groups.push(other);
            }
        }
        change.apply(&mut self.seen);
        let mut after = self.seen.clone();
        after.retain(|name, _| group.names.contains(name));
        group.possible.push(after);
        group.changes.push(change);
        self.groups.push(group);
        self.groups.sort_unstable_by_key(Group::number);
    }

    /// A folder was synced.
    pub(super) fn sync(&mut self, folder: &str) {
        // Renames stay in their folder, so a group is in one.
        let is_synced = |group: &Group| group.names.iter().any(|name| is_in(folder, name));
        for group in self.groups.extract_if(.., |group| is_synced(group)) {
            for name in group.names {
                match self.seen.get(&name) {
                    Some(file) => self.certain.insert(name, *file),
                    None => self.certain.remove(&name),
                };
            }
        }
    }

    /// What a crash leaves open: a unit for each group, in ascending order of the group's lowest file, whose
    /// `place` it has.
    pub(super) fn units(&self, place: impl Fn(u32) -> u64) -> impl Iterator<Item = Unit> {
        self.groups.iter().map(move |group| {
            let mut entries = group.possible[0].clone();
            let mut unit = Unit::new(place(group.number()), written(&entries).into());
            unit.commits = true;
            for possible in &group.possible {
                unit.add(&written(possible));
            }
            let mut newest = 0;
            for change in &group.changes {
                change.apply(&mut entries);
                newest = unit.add(&written(&entries));
                unit.prefixes.push((change.step, newest));
            }
            unit.put_last(newest);
            unit
        })
    }

    /// The entries if the groups hold this: for each unit of [`Directory::units`], its bytes. Groups without
    /// are as is certain.
    pub(super) fn entries<'a>(
        &'a self,
        held: impl Iterator<Item = &'a [u8]>,
    ) -> BTreeMap<&'a str, u32> {
        let certain = self.certain.iter();
        let mut entries: BTreeMap<&str, u32> =
            certain.map(|(name, file)| (name.as_str(), *file)).collect();
        for (group, held) in self.groups.iter().zip(held) {
            for name in &group.names {
                entries.remove(name.as_str());
            }
            entries.extend(read(held));
        }
        entries
    }
}

impl Group {
    /// The lowest file. No other group has it.
    fn number(&self) -> u32 {
        self.files.first().copied().unwrap_or(u32::MAX)
    }

    /// Adds a name with its certain entry.
    fn add(&mut self, name: &str, entry: Option<u32>) {
        self.names.insert(name.to_owned());
        self.files.extend(entry);
        for possible in &mut self.possible {
            possible.extend(entry.map(|file| (name.to_owned(), file)));
        }
    }

    fn join(&mut self, other: Group) {
        self.names.extend(other.names);
        self.files.extend(other.files);
        self.changes.extend(other.changes);
        self.changes.sort_by_key(|change| change.step);
        let both = |ours: &Names| {
            let theirs = other.possible.iter().cloned();
            let joined = theirs.map(|theirs| ours.iter().map(owned).chain(theirs).collect());
            joined.collect::<Vec<Names>>()
        };
        self.possible = self.possible.iter().flat_map(both).collect();
    }
}

fn owned((name, file): (&String, &u32)) -> (String, u32) {
    (name.clone(), *file)
}

impl Change {
    fn apply(&self, entries: &mut Names) {
        for (name, entry) in &self.entries {
            match entry {
                Some(file) => entries.insert(name.clone(), *file),
                None => entries.remove(name),
            };
        }
    }
}

/// Entries as the bytes of a unit: for each its file, the length of the name, and the name.
fn written(entries: &Names) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, file) in entries {
        bytes.extend_from_slice(&file.to_le_bytes());
        bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
    }
    bytes
}

/// Reads what [`written`] wrote. Bytes of a plan file may be anything: what is no entry ends the list.
fn read(mut bytes: &[u8]) -> Vec<(&str, u32)> {
    let mut entries = Vec::new();
    while let Some((file, rest)) = bytes.split_first_chunk()
        && let Some((length, rest)) = rest.split_first_chunk()
        && let Some((name, rest)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)
        && let Ok(name) = std::str::from_utf8(name)
    {
        entries.push((name, u32::from_le_bytes(*file)));
        bytes = rest;
    }
    entries
}
