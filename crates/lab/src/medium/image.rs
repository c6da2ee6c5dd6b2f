//! What a crash leaves: the bytes of a memory, the files of a disk, or both.

use std::collections::BTreeMap;

/// The medium of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Medium {
    /// Persistent memory: lines, flushes, fences.
    Pmem,
    /// Files on a disk: sectors and syncs, under the redo log.
    File,
}

impl Medium {
    /// Both.
    pub const ALL: [Medium; 2] = [Medium::Pmem, Medium::File];
}

impl std::fmt::Display for Medium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Medium::Pmem => "pmem",
            Medium::File => "file",
        })
    }
}

impl std::str::FromStr for Medium {
    type Err = String;
    fn from_str(name: &str) -> Result<Medium, String> {
        match name {
            "pmem" => Ok(Medium::Pmem),
            "file" => Ok(Medium::File),
            _ => Err(format!("medium `{name}`: the lab has `pmem` and `file`")),
        }
    }
}

/// Files of a pool's directory, by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What a crash leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Every byte of the persistent memory. `None`: there is none, and a crash loses everything that was
    /// stored.
    pub memory: Option<Vec<u8>>,
    /// Every file of the directory.
    pub files: Files,
}

impl Image {
    /// An image of a memory alone.
    #[must_use]
    pub fn of_memory(bytes: Vec<u8>) -> Image {
        Image {
            memory: Some(bytes),
            files: Files::new(),
        }
    }

    /// An image of files alone.
    #[must_use]
    pub fn of_files(files: Files) -> Image {
        Image {
            memory: None,
            files,
        }
    }
}
