//! A pool as bytes: taken from one directory, changed, written to another.
//!
//! Taken from a store that is open and idle, it is the image after a kill at that moment.

use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Bytes before the first extent: superblock, root page, spare.
pub const DATA_AT: usize = 65_536;

/// The files of a pool's directory.
#[derive(Clone, PartialEq)]
pub struct Frozen {
    files: BTreeMap<String, Vec<u8>>,
}

impl Frozen {
    pub fn take(directory: &Path) -> Frozen {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            files.insert(name, fs::read(entry.path()).unwrap());
        }
        Frozen { files }
    }

    pub fn image(&self) -> &[u8] {
        &self.files["image"]
    }

    pub fn image_mut(&mut self) -> &mut Vec<u8> {
        self.files.get_mut("image").unwrap()
    }

    pub fn file(&self, name: &str) -> &[u8] {
        &self.files[name]
    }

    pub fn file_mut(&mut self, name: &str) -> &mut Vec<u8> {
        self.files.get_mut(name).unwrap()
    }

    /// Changes one nonzero byte of the redo log; says which.
    pub fn damage_log(&mut self, random: &mut StdRng) -> String {
        let logs = self
            .files
            .iter_mut()
            .filter(|(name, _)| name.starts_with("log-"));
        let mut all: Vec<(&String, usize, &mut u8)> = Vec::new();
        for (name, bytes) in logs {
            let bytes = bytes.iter_mut().enumerate();
            all.extend(
                bytes
                    .filter(|(_, byte)| **byte != 0)
                    .map(|(at, byte)| (name, at, byte)),
            );
        }
        let nth = random.random_range(0..all.len());
        let (name, at, byte) = &mut all[nth];
        **byte ^= random.random_range(1..=255_u8);
        format!("byte {at} of {name}")
    }

    /// Writes exactly these files to `directory`.
    pub fn lay(&self, directory: &Path) {
        fs::create_dir_all(directory).unwrap();
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if !self.files.contains_key(entry.file_name().to_str().unwrap()) {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        for (name, bytes) in &self.files {
            fs::write(directory.join(name), bytes).unwrap();
        }
    }
}

/// The little-endian word at byte `at`.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Offsets of the words in which two images of one length differ.
pub fn changed_words(before: &[u8], after: &[u8]) -> Vec<usize> {
    assert_eq!(before.len(), after.len(), "the pool grew in between");
    let mut changed = Vec::new();
    for (number, (old, new)) in before.chunks(4096).zip(after.chunks(4096)).enumerate() {
        if old != new {
            let words = (0..old.len())
                .step_by(8)
                .filter(|&at| old[at..at + 8] != new[at..at + 8]);
            changed.extend(words.map(|at| number * 4096 + at));
        }
    }
    changed
}
