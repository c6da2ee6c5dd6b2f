//! A pool as bytes: taken from one directory, changed, written to another.
//!
//! Taken from a store that is open and idle, it is the image after a kill at that moment.

use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Bytes before the first extent: superblock, root page, spare.
pub const DATA_AT: usize = 65_536;

/// The files of a pool's directory, and of a log below it.
#[derive(Clone, PartialEq)]
pub struct Frozen {
    files: BTreeMap<String, Vec<u8>>,
}

impl Frozen {
    pub fn take(directory: &Path) -> Frozen {
        let names = files_below(directory);
        // A file may go while the names are read.
        let read = |name: String| Some((name.clone(), fs::read(directory.join(name)).ok()?));
        Frozen {
            files: names.into_iter().filter_map(read).collect(),
        }
    }

    /// As [`Frozen::take`], of a store that may still work by itself: of files that change while they are
    /// read, one may be of an earlier moment than another, as after no kill.
    pub fn take_idle(directory: &Path) -> Frozen {
        const TRIES: usize = 1000;
        let mut before = Frozen::take(directory);
        for _ in 0..TRIES {
            std::thread::sleep(Duration::from_millis(2));
            let now = Frozen::take(directory);
            if now == before {
                return now;
            }
            before = now;
        }
        panic!("{}: the store does not come to rest", directory.display());
    }

    /// Names of the files, which have a slash below another directory.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// With a file.
    pub fn add(&mut self, name: &str, bytes: &[u8]) {
        self.files.insert(name.to_owned(), bytes.to_vec());
    }

    /// Without a file.
    pub fn remove(&mut self, name: &str) {
        self.files.remove(name).unwrap();
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
        for name in files_below(directory) {
            if !self.files.contains_key(&name) {
                fs::remove_file(directory.join(name)).unwrap();
            }
        }
        for (name, bytes) in &self.files {
            let path = directory.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
}

/// Names of the files of a directory, and of those in it.
pub fn files_below(directory: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        match path.is_dir() {
            true => names.extend(
                files_below(&path)
                    .iter()
                    .map(|file| format!("{name}/{file}")),
            ),
            false => names.push(name),
        }
    }
    names
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
